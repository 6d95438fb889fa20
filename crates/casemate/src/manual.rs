//! Man pages and shell completion, made from the command line itself.
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::cli;
use crate::output::{Exit, Failure, Output, write_stdout};

/// `casemate completion`.
#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// The shell that is to complete
    shell: Shell,
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
    clap_complete::generate(args.shell, &mut cli::command(), "casemate", &mut script);
    write_stdout(&script)?;
    Ok(Exit::Yes)
}

/// Writes one page a command.
pub(crate) fn pages(args: ManArgs, output: &Output) -> Result<Exit, Failure> {
    clap_mangen::generate_to(cli::command(), &args.dir).map_err(|error| {
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
