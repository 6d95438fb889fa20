//! `casemate version`: what was built, from what, and with which cryptography.
use casemate_kms::version::Version;

use crate::output::{Exit, Failure, Output};

/// `commit` is what the build was told.
pub(crate) fn run(commit: Option<&'static str>, output: &Output) -> Result<Exit, Failure> {
    let version = Version::of("casemate", env!("CARGO_PKG_VERSION"), commit);
    output.answer(&version, version.rows())?;
    Ok(Exit::Yes)
}
