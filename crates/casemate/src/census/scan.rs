//! Files to surveys.
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[cfg(feature = "kine")]
use casemate_census::kine;
use casemate_census::snapshot::{Digest, Error, Fault, Integrity, Options, Snapshot};
use casemate_census::survey::{Survey, survey};
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::{Exit, Failure, Output};

/// A file that was read to its end.
pub(super) struct Scanned {
    pub(super) file: String,
    pub(super) bytes: u64,
    pub(super) checksum: Checksum,
    /// Of the whole file, as hex digits; a running etcd has none.
    pub(super) sha256: Option<String>,
    pub(super) survey: Survey,
}

/// Whether a file is as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Checksum {
    /// The SHA-256 behind it is that of its bytes.
    Verified,
    /// It carries none.
    Absent,
    /// It is no file: a running etcd was asked.
    Live,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    File(#[from] Error),
    #[cfg(feature = "kine")]
    #[error(transparent)]
    Kine(#[from] kine::Error),
    #[error(
        "{0}: its bytes are not those of the SHA-256 behind them: it was damaged since it was made. Take another copy"
    )]
    Damaged(String),
}

impl ScanError {
    /// Whether a running etcd has it.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(self, Self::File(Error { fault: Fault::Locked, .. }))
    }
}

/// The files that `paths` are: folders stand for what is in them.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        files.extend(files_in(path)?);
    }
    Ok(files)
}

/// The most folders inside of each other.
const DEEPEST: usize = 16;

/// What is in a folder, and in those inside of it, by name, and is not hidden. What is no file is told of when it is opened:
/// whoever asks of a folder of backups must hear of each that was not read.
pub(super) fn files_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut inside = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let unreadable =
            |error: io::Error| Failure::new(Exit::Usage, &format_args!("{}: {error}", folder.display()));
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            // Links to folders are not followed: they may lead round.
            let is_folder = entry.file_type().map_err(unreadable)?.is_dir();
            match is_folder && depth < DEEPEST {
                _ if is_hidden => {}
                true => folders.push((entry.path(), depth + 1)),
                false => inside.push(entry.path()),
            }
        }
    }
    if inside.is_empty() {
        let nothing = format_args!("{}: there is no file in this folder", path.display());
        return Err(Failure::new(Exit::Usage, &nothing));
    }
    inside.sort();
    Ok(inside)
}

/// Opens a file and compares its checksum.
pub(crate) fn open(path: &Path, output: &Output) -> Result<(Snapshot, Checksum), ScanError> {
    let snapshot = Snapshot::open(path, Options::default())?;
    let mut progress = Progress::of_bytes(&snapshot, output);
    let integrity = snapshot.check_integrity(|read| progress.at(read, read))?;
    drop(progress);
    let checksum = checked(&snapshot, integrity, output)?;
    Ok((snapshot, checksum))
}

fn checked(snapshot: &Snapshot, integrity: Integrity, output: &Output) -> Result<Checksum, ScanError> {
    let file = snapshot.path().display();
    match integrity {
        Integrity::Verified => Ok(Checksum::Verified),
        Integrity::Mismatch => Err(ScanError::Damaged(file.to_string())),
        Integrity::Absent => {
            if snapshot.is_locked() {
                output.note(format_args!(
                    "{file}: an etcd that starts on this file meanwhile waits until it is read"
                ));
            }
            Ok(Checksum::Absent)
        }
    }
}

/// Reads all of a file.
pub(super) fn scan(path: &Path, prefix: &str, output: &Output) -> Result<Scanned, ScanError> {
    #[cfg(feature = "kine")]
    if kine::is_sqlite(path) {
        return scan_kine(path, prefix, output);
    }
    let snapshot = Snapshot::open(path, Options::default())?;
    let mut progress = Progress::of_bytes(&snapshot, output);
    let Digest { integrity, sha256 } = snapshot.digest(|read| progress.at(read, read))?;
    drop(progress);
    let (checksum, sha256) = (checked(&snapshot, integrity, output)?, Some(hex::encode(sha256)));
    let store = snapshot.store()?;
    let file = path.display().to_string();
    let mut progress = Progress::new(output, file.clone(), "values", snapshot.database().meta().pages);
    let survey = survey(&store, prefix, |values| {
        let counts = values.counts();
        progress.at(values.pages_visited(), counts.live + counts.past);
    })
    .map_err(|error| snapshot.error(error))?;
    drop(progress);
    snapshot.ensure_unchanged()?;
    Ok(Scanned { file, bytes: snapshot.len(), checksum, sha256, survey })
}

/// The same of k3s' file of SQLite.
#[cfg(feature = "kine")]
fn scan_kine(path: &Path, prefix: &str, output: &Output) -> Result<Scanned, ScanError> {
    let state = open_kine(path, output)?;
    let file = path.display().to_string();
    let mut progress = Progress::new(output, format!("{file}: checksum"), "bytes", state.len());
    // With a log, this file alone is not what was read.
    let sha256 = match state.has_log() {
        true => None,
        false => Some(hex::encode(state.sha256(|read| progress.at(read, read))?)),
    };
    let mut progress = Progress::new(output, file.clone(), "values", state.revisions());
    let survey = kine::survey(&state, prefix, |passed| {
        progress.at(passed.revisions, passed.counts.live + passed.counts.past);
    })?;
    drop(progress);
    Ok(Scanned { file, bytes: state.len(), checksum: Checksum::Absent, sha256, survey })
}

#[cfg(feature = "kine")]
pub(crate) fn open_kine(path: &Path, output: &Output) -> Result<kine::StateDb, ScanError> {
    let state = kine::StateDb::open(path)?;
    if state.has_log() {
        output.note(format_args!("{}: what stands in its log (-wal) counts, too", path.display()));
    }
    Ok(state)
}

/// One line on a terminal, with rate and time left.
pub(crate) struct Progress {
    what: String,
    unit: &'static str,
    all: u64,
    begun: Instant,
    next: Option<Instant>,
    is_shown: bool,
}

const INTERVAL: Duration = Duration::from_millis(200);

impl Progress {
    fn of_bytes(snapshot: &Snapshot, output: &Output) -> Self {
        Self::new(output, format!("{}: checksum", snapshot.path().display()), "bytes", snapshot.len())
    }

    pub(crate) fn new(output: &Output, what: String, unit: &'static str, all: u64) -> Self {
        let begun = Instant::now();
        let next = output.is_watched().then(|| begun + INTERVAL);
        Self { what: crate::output::printable(&what), unit, all, begun, next, is_shown: false }
    }

    /// `done` of all, in which `count` were met.
    pub(crate) fn at(&mut self, done: u64, count: u64) {
        // Looking at a clock for each value would be work, too.
        if count.is_multiple_of(1024) {
            self.now_at(done, self.all, count);
        }
    }

    /// The same, where it was not known before how much there is.
    pub(crate) fn now_at(&mut self, done: u64, all: u64, count: u64) {
        let Some(next) = self.next else { return };
        self.all = all;
        let now = Instant::now();
        if now < next {
            return;
        }
        self.next = Some(now + INTERVAL);
        self.is_shown = true;
        let line = line(done, self.all, count, self.unit, now - self.begun);
        let _ = write!(io::stderr(), "\r{}: {line}\x1b[K", self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, all: u64, count: u64, unit: &str, took: Duration) -> String {
    let share = (done as f64 / all.max(1) as f64).clamp(f64::EPSILON, 1.0);
    let seconds = took.as_secs_f64();
    let left = seconds / share - seconds;
    format!(
        "{:.0} %, {count} {unit}, {:.0} a second, about {left:.0} s left",
        share * 100.0,
        count as f64 / seconds
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_rate_and_time_left() {
        let told = line(25, 100, 5000, "values", Duration::from_secs(10));
        assert_eq!(told, "25 %, 5000 values, 500 a second, about 30 s left");
        // A file may say that it has no pages.
        assert!(line(5, 0, 5, "values", Duration::from_secs(1)).starts_with("100 %"));
    }
}
