//! The program under test, run as a user runs it.
use std::path::PathBuf;

use assert_cmd::Command;

/// Where `casemate` is: in the folder that `./dev test` names, else where cargo has built it.
pub(crate) fn path() -> PathBuf {
    match std::env::var_os("CASEMATE_BIN") {
        Some(folder) => PathBuf::from(folder).join("casemate"),
        None => PathBuf::from(env!("CARGO_BIN_EXE_casemate")),
    }
}

/// `casemate` with these arguments, separated by blanks.
pub(crate) fn casemate(arguments: &str) -> Command {
    let mut command = Command::new(path());
    command.args(arguments.split_whitespace());
    command
}
