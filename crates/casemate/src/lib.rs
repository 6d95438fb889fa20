//! Casemate's command line: `casemate NOUN VERB`.
//!
//! It asks, prints and exits; the decisions are in the crates below. What it promises:
//! * the answer is on stdout, everything else on stderr;
//! * exit codes are stable, see [`Exit`];
//! * secrets are never taken from arguments and never shown on a terminal unasked.
//!
//! Map:
//! * `cli`: the words of the command line. **To add a noun: one variant of `cli::Noun`, one arm of
//!   `Noun::run`, one module with its `Args` and `run`.**
//! * `output`: tables, JSON, exit codes, errors
//! * `audit`: whether an audit log is as it was written
//! * `census`: what files of etcd hold, and what that says of keys
//! * `cluster`: what is seen of a cluster: its API servers, files, keys and counts, as what `rotation` decides on
//! * `status`: how a cluster is encrypted, and what holds it up
//! * `plan`: the steps to another key
//! * `inspect`: what some bytes are, and which key they need
//! * `doctor`: what is wrong on a plugin host
//! * `host`: the configuration of a plugin host and its root keys, for commands that run there
//! * `key`: root keys in files: new, add-version, activate, list, retire; of any kind: plan-rotation
//! * `kms`: any KMS v2 plugin's socket: status, encrypt, decrypt, probe, refresh
//! * `migrate`: objects are written anew
//! * `recover`: what files of etcd hold, opened with keys: object, snapshot, drill, restore
//! * `recovery`: identities for recovery: new, test
//! * `manual`: man pages and shell completion
//! * `version`: what was built, and with which cryptography
mod audit;
mod census;
mod cli;
mod cluster;
mod doctor;
mod host;
mod inspect;
mod key;
mod kms;
mod manual;
mod migrate;
mod output;
mod plan;
mod recover;
mod recovery;
#[cfg(test)]
mod schemas;
mod status;
mod version;

use std::process::ExitCode;

pub use cli::command;
pub use output::Exit;

/// Runs the command line of this process and gives its exit code. `commit` is what the program was built from, if known.
pub fn main(commit: Option<&'static str>) -> ExitCode {
    cli::run(std::env::args_os(), commit).into()
}
