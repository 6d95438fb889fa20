//! A configuration that changes while it is served.
//!
//! What it promises:
//! * a file is looked at by its content, so that an edit in place, a rename and a link that is turned are all seen;
//! * what is unsound, or would take away a way to read, is not taken over, and what held goes on;
//! * it is taken over whole or not at all;
//! * a call goes on with what held when it began; no connection is closed but those of a socket that is gone.
//!
//! Map: [`rules`] (what may follow what), [`changes`] (what differs, for the log), `watch` (when to look); carried out
//! in [`crate::serve`].

pub mod changes;
pub mod rules;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;

use casemate_daemon::confine::{Folders, Lacking};
use casemate_keys::KeyId;
use casemate_keys::names::sha256;

pub(crate) use self::watch::says_still;
pub use self::watch::{LOOK_EVERY, Reading, watch};
use crate::config::{ConfigError, Source};
use crate::provider::NotReady;
use crate::serve::PartError;
use changes::changes;
use rules::{NotTakenOver, may_take_over, needed};

/// Why what the file says now does not hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// It is unsound.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It ends in the middle of a line.
    #[error(
        "{}: the last line has no end, as if the file were half written; it is read again when it has one",
        path.display()
    )]
    HalfWritten {
        /// Which file.
        path: PathBuf,
    },
    /// It is not there any more.
    #[error("{}: it changed again while what it said was prepared; what it says now is looked at next", path.display())]
    Replaced {
        /// Which file.
        path: PathBuf,
    },
    /// It may not follow what holds.
    #[error(transparent)]
    NotTakenOver(#[from] NotTakenOver),
    /// Something that this process gave up when it started.
    #[error(
        "{0} (it is confined to what the configuration named that it was started with), which needs a restart"
    )]
    Confined(Lacking),
    /// A part that it needs can't be started.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A provider can't go on under it.
    #[error("provider {provider}: {source}{}", needed(seen))]
    Provider {
        /// Which one.
        provider: String,
        /// Why.
        source: NotReady,
        /// Key ids of records that the process has opened and could open no more.
        seen: Vec<KeyId>,
    },
}

impl ReloadError {
    /// Whether there is nothing to correct: a restart takes it as it is.
    pub fn needs_restart(&self) -> bool {
        matches!(self, Self::NotTakenOver(NotTakenOver::NeedsRestart { .. }) | Self::Confined(_))
    }
}

/// What a running process that holds `before` would make of `after`, as far as can be told without it. Changes nothing.
///
/// # Errors
/// [`ReloadError`], as it would say.
pub fn dry_run(before: &Source, after: &Source, now: u64) -> Result<Vec<String>, ReloadError> {
    let (held, config) = (before.config()?, after.config()?);
    is_whole(after)?;
    may_take_over(&held, &config, now)?;
    let (kept, wanted) = (held.folders(before.path()), config.folders(before.path()));
    covers(&kept, &wanted)?;
    Ok(changes(&before.fields(), &after.fields()))
}

/// What was read ends with the end of a line.
pub(crate) fn is_whole(source: &Source) -> Result<(), ReloadError> {
    if source.text().ends_with('\n') {
        return Ok(());
    }
    Err(ReloadError::HalfWritten { path: source.path().to_owned() })
}

/// A process that is confined to `kept` can use all that is `wanted`.
pub(crate) fn covers(kept: &Folders, wanted: &Folders) -> Result<(), ReloadError> {
    match kept.lack(wanted) {
        Some(lacking) => Err(ReloadError::Confined(lacking)),
        None => Ok(()),
    }
}

/// The configuration that holds, and what became of the last one that does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Its file.
    pub path: PathBuf,
    /// SHA-256 of the text that holds, in hex.
    pub sha256: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// How often another one was taken over since the start.
    pub reloads: u64,
    /// How often one was refused since the start, each text and reason once.
    pub refusals: u64,
    /// Why what the file says now does not hold, and since when (seconds since 1970).
    pub refused: Option<(String, u64)>,
    /// Whether a restart takes what it says now, as it is.
    pub needs_restart: bool,
    /// Providers of it that could not be started, and why; each is tried again and again.
    pub not_started: BTreeMap<String, String>,
}

impl Configured {
    /// What a process was started with.
    pub fn at_start(source: &Source, now: u64) -> Self {
        let (path, sha256) = (source.path().to_owned(), digest(source));
        Self {
            path,
            sha256,
            since: now,
            reloads: 0,
            refusals: 0,
            refused: None,
            needs_restart: false,
            not_started: BTreeMap::new(),
        }
    }

    /// After `source` was taken over.
    #[must_use]
    pub fn replaced_by(&self, source: &Source, now: u64) -> Self {
        let reloads = self.reloads + 1;
        Self {
            sha256: digest(source),
            since: now,
            reloads,
            refused: None,
            needs_restart: false,
            ..self.clone()
        }
    }

    /// After another one was not.
    #[must_use]
    pub fn refusing(&self, why: String, needs_restart: bool, now: u64) -> Self {
        Self { refusals: self.refusals + 1, refused: Some((why, now)), needs_restart, ..self.clone() }
    }

    /// After the file says again what holds.
    #[must_use]
    pub fn as_it_is(&self) -> Self {
        Self { refused: None, needs_restart: false, ..self.clone() }
    }
}

fn digest(source: &Source) -> String {
    sha256(source.text().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
