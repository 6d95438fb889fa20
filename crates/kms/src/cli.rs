//! The words of the command line.

use std::path::PathBuf;

use casemate_daemon::probe::Attempt;
use casemate_keys::KeyId;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a finding or failure, 2 usage or configuration.";

/// KMS v2 plugin of Kubernetes: encrypts with a local key that root keys of your choice wrap.
#[derive(Debug, Parser)]
#[command(name = "casemate-kms", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve all providers of the configuration until SIGTERM or SIGINT
    Serve {
        /// Which configuration.
        #[command(flatten)]
        config: ConfigFile,
        /// Let this key id write again although another one was active since
        #[arg(long, value_name = "KEY-ID")]
        accept_reuse: Option<KeyId>,
        /// How log lines look
        #[arg(long, value_enum, default_value_t)]
        log: LogForm,
    },
    /// Validate the configuration and all it names, without serving
    Check {
        /// Which configuration.
        #[command(flatten)]
        config: ConfigFile,
        /// Also say what a process that serves this other configuration would change, and whether it would
        #[arg(long, value_name = "FILE")]
        replaces: Option<PathBuf>,
        /// Form of the answer
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Try from inside what confinement must refuse on this kernel; 0 if all of it is refused
    Probe {
        /// Which configuration.
        #[command(flatten)]
        config: ConfigFile,
        /// Form of the answer
        #[arg(long, value_enum, default_value_t)]
        output: Output,
        /// Only this one, in this process: how the others are made
        #[arg(long, value_name = "WHAT", hide = true, value_parser = attempt)]
        attempt: Option<Attempt>,
    },
    /// Keep processes that hold PKCS#11 modules for a daemon that may start none
    #[command(hide = true)]
    Pkcs11Keeper,
    /// Hold one PKCS#11 module
    #[command(hide = true)]
    Pkcs11Host {
        /// Which one, and what the process may touch
        host: String,
    },
    /// Print the JSON Schema of the configuration
    Schema,
    /// Print version, commit, features, cryptographic module and formats
    Version {
        /// Form of the answer
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
}

/// Where the configuration is.
#[derive(clap::Args, Debug)]
pub struct ConfigFile {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/casemate-kms/config.yaml")]
    pub config: PathBuf,
    /// Keep all that the process may do: open any file, start programs, use the network. For finding faults
    #[arg(long)]
    pub no_confinement: bool,
}

fn attempt(word: &str) -> Result<Attempt, String> {
    Attempt::of(word).ok_or_else(|| "there is no such attempt".into())
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogForm {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

impl From<LogForm> for casemate_daemon::log::Form {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Json => Self::Json,
            LogForm::Text => Self::Text,
        }
    }
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

/// The whole command line as data: the reference page is made from it.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
