//! Log lines on stderr, where systemd and the kubelet collect them.

mod harmless;

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use self::harmless::Harmless;

/// The environment variable with a filter like `info,h2=debug`.
pub const FILTER: &str = "CASEMATE_LOG";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For programs: one JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Starts to log, at level `info` unless [`FILTER`] says otherwise. To be called once.
pub fn start(form: Form) {
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match form {
        Form::Json => log.json().with_writer(|| Harmless(stderr())).init(),
        Form::Text => log.with_writer(stderr).with_ansi(stderr().is_terminal()).init(),
    }
}
