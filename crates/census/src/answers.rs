//! What surveys say of a key, of a configuration, and of each other. Pure.
//!
//! | question | answer |
//! |---|---|
//! | what still needs key K? | [`needs`] |
//! | may K go? | [`may_go`], which says yes only where nothing is left open |
//! | what is not as this EncryptionConfiguration stores it? | [`against`] |
//! | what can nobody read who has this? | [`closed`] |
//! | what became of it since? | [`diff`] |
mod closed;
mod coverage;
mod diff;
mod may_go;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::Serialize;

pub use closed::{Closed, Given, closed};
pub use coverage::{Judged, State, against};
pub use diff::{Amount, Change, diff};
pub use may_go::{Holder, MayGo, may_go, needs, unclear};

use crate::survey::Survey;

/// A survey, and what it was made of.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// A file, as people name it.
    pub name: &'a str,
    /// What it holds.
    pub survey: &'a Survey,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is so, and nothing is left open.
    Yes,
    /// It is not.
    No,
    /// Nothing speaks against it, and something is left open.
    Unknown,
}
