//! Man pages and shell completion of both programs, made from their command lines.
use std::io;
use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli;
use crate::output::{Exit, Failure, Output, write_stdout};

/// `casemate completion`.
#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// The shell that is to complete
    shell: Shell,

    /// Whose command line
    #[arg(long, value_enum, default_value_t = Program::Casemate)]
    program: Program,
}

/// Both read their command line the same way, so one can speak for the other.
#[derive(Clone, Copy, ValueEnum)]
enum Program {
    /// This program
    Casemate,
    /// The plugin on control plane nodes
    CasemateKms,
}

impl Program {
    fn command(self) -> Command {
        match self {
            Self::Casemate => cli::command(),
            Self::CasemateKms => casemate_kms::cli::command(),
        }
    }

    /// Of the manual: commands of users, or daemons.
    fn section(self) -> &'static str {
        match self {
            Self::Casemate => "1",
            Self::CasemateKms => "8",
        }
    }
}

/// `casemate man`.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// Folder to write the pages to, which must exist
    dir: PathBuf,
}

/// Prints the completion script of one shell.
pub(crate) fn completion(args: CompletionArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    let mut command = args.program.command();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    write_stdout(&script)?;
    Ok(Exit::Yes)
}

/// Writes a page about each program, and one about each command that does something.
pub(crate) fn pages(args: ManArgs, output: &Output) -> Result<Exit, Failure> {
    let write = || -> io::Result<()> {
        for program in [Program::Casemate, Program::CasemateKms] {
            for (name, page) in Manual::of(program).pages()? {
                std::fs::write(args.dir.join(name), page)?;
            }
        }
        Ok(())
    };
    write().map_err(|error| {
        let dir = args.dir.display();
        Failure::new(
            Exit::Usage,
            &format_args!(
                "can't write man pages to {dir}: {error}; give a folder that exists and may be written"
            ),
        )
    })?;
    output.note(format_args!("man pages are in {}", args.dir.display()));
    Ok(Exit::Yes)
}

/// The manual of one program.
struct Manual {
    program: Command,
    section: &'static str,
    /// `casemate 0.1.0`, for the foot of each page.
    source: String,
}

impl Manual {
    fn of(program: Program) -> Self {
        let mut command = program.command().disable_help_subcommand(true);
        command.build();
        let source = format!("{} {}", command.get_name(), command.get_version().unwrap_or_default());
        Self { program: command, section: program.section(), source }
    }

    /// File names and texts. `casemate kms` has no page of its own: it would have the name of the plugin's.
    fn pages(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let verbs = verbs(&self.program);
        std::iter::once(&self.program).chain(verbs).map(|command| self.page(command)).collect()
    }

    fn page(&self, command: &Command) -> io::Result<(String, Vec<u8>)> {
        let page = Man::new(command.clone().override_usage(synopsis(command)));
        let page = page.section(self.section).source(&self.source);
        let mut text = Vec::new();
        page.render_title(&mut text)?;
        page.render_name_section(&mut text)?;
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        if command.has_subcommands() {
            self.list(command).to_writer(&mut text)?;
        }
        page.render_options_section(&mut text)?;
        self.exit_status(command).to_writer(&mut text)?;
        Ok((page.get_filename(), text))
    }

    /// The other pages.
    fn list(&self, command: &Command) -> Roff {
        let mut roff = Roff::new();
        roff.control("SH", ["COMMANDS"]);
        for verb in verbs(command) {
            let name = verb.get_display_name().unwrap_or(verb.get_name());
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            roff.control("TP", []);
            roff.text([bold(name), roman(format!("({})", self.section))]);
            roff.text([roman(about)]);
        }
        roff
    }

    /// The command's own, else its program's.
    fn exit_status(&self, command: &Command) -> Roff {
        let mut roff = Roff::new();
        let told = command.get_after_help().or(self.program.get_after_help()).map(ToString::to_string);
        if let Some(told) = told {
            roff.control("SH", ["EXIT STATUS"]);
            roff.control("nf", []);
            for line in told.trim_start_matches("Exit codes:").lines().filter(|line| !line.is_empty()) {
                roff.text([roman(line.trim_start())]);
            }
            roff.control("fi", []);
        }
        roff
    }
}

/// The usage as its help says it, with the options that may be left out instead of `[OPTIONS]`.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let options = command.get_arguments().filter(|option| {
        let everywhere = option.is_global_set() || ["help", "version"].contains(&option.get_id().as_str());
        !everywhere && !option.is_positional() && !option.is_hide_set() && !option.is_required_set()
    });
    let options: Vec<String> = options.map(|option| format!("[{option}]")).collect();
    let usage = usage.trim_start_matches("Usage:").trim().replacen("[OPTIONS]", &options.join(" "), 1);
    usage.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands below this one that do something, in the order of its help.
fn verbs(command: &Command) -> Vec<&Command> {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.flat_map(|below| if below.has_subcommands() { verbs(below) } else { vec![below] }).collect()
}
