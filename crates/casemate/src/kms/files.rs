//! What goes in and comes out: files, stdin and stdout, with care for plaintext.
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::output::{Exit, Failure, write_stdout};

/// More than any lawful message of the contract needs.
const LARGEST: u64 = 1024 * 1024;

/// All of a file, or of stdin.
pub(super) fn read(path: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let (name, content) = match path {
        Some(path) => (path.display().to_string(), File::open(path).and_then(bounded)),
        None => ("stdin".to_owned(), bounded(io::stdin().lock())),
    };
    let content = content.map_err(|error| usage(format_args!("can't read {name}: {error}")))?;
    if content.len() as u64 > LARGEST {
        return Err(usage(format_args!("{name} is larger than {LARGEST} bytes: a DEK source has 32")));
    }
    Ok(content)
}

/// Writes to a new file with mode 0600, or to stdout. A file that is there is replaced only if `replace`.
pub(super) fn write(path: Option<&Path>, replace: bool, content: &[u8]) -> Result<(), Failure> {
    let Some(path) = path else { return write_stdout(content) };
    if replace && path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        fs::remove_file(path).map_err(|error| cannot_write(path, &error))?;
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match opened.and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all())) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(usage(format_args!(
            "{} is there already: give another name, or --yes to replace a regular file",
            path.display()
        ))),
        Err(error) => Err(cannot_write(path, &error)),
        Ok(()) => Ok(()),
    }
}

/// Plaintext is not shown to whoever looks over a shoulder, nor kept in a terminal's history.
pub(super) fn refuse_terminal() -> Result<(), Failure> {
    if io::stdout().is_terminal() {
        return Err(usage("stdout is a terminal: give a file to --out, or --yes to show the bytes here"));
    }
    Ok(())
}

fn bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut content)?;
    Ok(content)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    usage(format_args!("can't write {}: {error}; give a file that can be made", path.display()))
}

fn usage(text: impl Display) -> Failure {
    Failure::new(Exit::Usage, &text)
}
