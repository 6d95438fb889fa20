//! The words of the command line.
use std::ffi::OsString;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::{Exit, Failure, Output};
use crate::{
    audit, census, doctor, inspect, key, kms, manual, migrate, plan, recover, recovery, status, version,
};

const EXIT_CODES: &str = "\
Exit codes:
  0  yes, done
  1  no: something was found
  2  usage: the command line or a file given on it is wrong
  3  can't tell: what was asked could not be reached
  4  partly: some of it could not be told or done";

/// KMS-backed encryption for Kubernetes.
#[derive(Parser)]
#[command(name = "casemate", version, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    output: Output,

    #[command(subcommand)]
    noun: Noun,
}

/// What the command is about.
#[derive(Subcommand)]
enum Noun {
    /// The audit log of casemate-kms
    Audit(audit::Args),
    /// What etcd holds: how each object is encrypted, and which key it needs
    Census(census::Args),
    /// What is wrong on a plugin host, why, and what to do
    #[command(long_about = doctor::ABOUT, after_help = doctor::EXIT_CODES)]
    Doctor(doctor::Args),
    /// What some bytes are, and which key they need: never a secret
    #[command(long_about = inspect::ABOUT, after_help = inspect::EXIT_CODES)]
    Inspect(inspect::Args),
    /// Root keys in files
    Key(key::Args),
    /// Any KMS v2 plugin, by its socket
    Kms(kms::Args),
    /// Objects are written anew, so that they are encrypted as API servers encrypt now
    #[command(long_about = migrate::ABOUT, after_help = migrate::EXIT_CODES)]
    Migrate(Box<migrate::Args>),
    /// What each step to another key would be, write, take and strand
    #[command(long_about = plan::ABOUT, after_help = plan::EXIT_CODES)]
    Plan(Box<plan::Args>),
    /// The way back from a snapshot of etcd and a key
    Recover(Box<recover::Args>),
    /// Identities that open what is written when no key service does
    Recovery(recovery::Args),
    /// How the cluster is encrypted, how far it is, and what holds it up
    #[command(long_about = status::ABOUT, after_help = status::EXIT_CODES)]
    Status(Box<status::Args>),
    /// Completion of this command line, or of that of casemate-kms, for a shell
    Completion(manual::CompletionArgs),
    /// Man pages of all commands, and of casemate-kms
    Man(manual::ManArgs),
    /// Print version, commit, features and cryptographic module
    Version,
}

impl Noun {
    fn run(self, commit: Option<&'static str>, output: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Audit(args) => audit::run(args, output),
            Self::Census(args) => census::run(args, output),
            Self::Doctor(args) => doctor::run(args, output),
            Self::Inspect(args) => inspect::run(args, output),
            Self::Key(args) => key::run(args, output),
            Self::Kms(args) => kms::run(args, output),
            Self::Migrate(args) => migrate::run(&args, output),
            Self::Plan(args) => plan::run(&args, output),
            Self::Recover(args) => recover::run(*args, output),
            Self::Recovery(args) => recovery::run(args, output),
            Self::Status(args) => status::run(&args, output),
            Self::Completion(args) => manual::completion(args),
            Self::Man(args) => manual::pages(args, output),
            Self::Version => version::run(commit, output),
        }
    }
}

/// Parses `arguments`, the program's name first, runs what they ask for and prints what comes of it.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>, commit: Option<&'static str>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // Before parsing: the parser's own errors and help have colours too.
    let plain = arguments.iter().any(|argument| argument == "--no-color");
    let command = command().color(if plain { ColorChoice::Never } else { ColorChoice::Auto });
    let parsed = command.try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // A closed terminal is no reason to fail twice.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Yes };
        }
    };
    cli.noun.run(commit, &cli.output).unwrap_or_else(|failure| cli.output.fail(&failure))
}

/// The whole command line as data: for parsing, man pages, completion and the reference page.
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
