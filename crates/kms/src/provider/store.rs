//! What outlives a restart: the current record and the ledger. Neither is secret; both are replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use casemate_keys::names::sha256;
use casemate_keys::{Digest, MAX_RECORD_LEN, Record};
use casemate_kms_state::{Ledger, LedgerDamage};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::kek::record_of;
use desk::Desk;

mod desk;

pub use desk::ANSWERS_WITHIN;

const RECORD: &str = "record";
/// What a successor writes with, until it takes over.
const REHEARSED: &str = "record.rehearsed";
/// SHA-256 of the record's file, in hex, and of the one before it: who sees a record that does not open wants to know
/// whether it is as it was.
const RECORD_DIGEST: &str = "record.sha256";
/// The same, of the record that a root key that is well did not open: another key of the same name is there.
const DISOWNED: &str = "record.disowned";
/// With the tag that may stand behind a record.
const MAX_STORED_LEN: usize = MAX_RECORD_LEN + size_of::<Digest>();
const LEDGER: &str = "ledger";
/// Some ten thousand rotations.
const MAX_LEDGER_LEN: u64 = 1024 * 1024;

/// The folder of one provider, held by one process at a time.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    _turn: Arc<Turn>,
    rehearses: Arc<AtomicBool>,
    desk: Arc<Desk>,
}

/// While it is there, no other process uses the folder. Its end is said, and not left to the end of its descriptor: a
/// program that another thread is just starting has that one too, until it runs.
#[derive(Debug)]
struct Turn(File);

impl Drop for Turn {
    fn drop(&mut self) {
        // If that fails, the descriptor ends as well.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The current record as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// What was saved.
    pub bytes: Vec<u8>,
    /// Whether it is known to be what was saved: damage is no reason to doubt a root key.
    pub is_whole: bool,
    /// Whether a root key that is well has said that it is none of its own.
    pub is_disowned: bool,
}

/// The state directory could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Two processes would overwrite each other's history.
    #[error("{}: another process uses this folder; give each casemate-kms its own stateDirectory", folder.display())]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// The disk, or the network that it is behind.
    #[error(
        "{}: it has given no answer for {} s, and nothing else is tried there until it does; see what its disk or network \
         file system waits for", folder.display(), ANSWERS_WITHIN.as_secs()
    )]
    Hangs {
        /// Which folder.
        folder: PathBuf,
    },
    /// Nothing is begun any more.
    #[error("the program is stopping")]
    Stopping,
    /// The system refused.
    #[error("{}: can't be {action}: {source}; make room there or correct its permissions", path.display())]
    System {
        /// Which file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl StoredRecord {
    /// The record, if these bytes are one. Only its local KEK can tell whether it was changed.
    pub fn record(&self) -> Option<Record> {
        record_of(&self.bytes)
    }
}

impl StoreError {
    /// Whether the system did its part, and what is there can't be what was asked for.
    pub(super) fn is_of_content(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == ErrorKind::InvalidData)
    }
}

impl Store {
    /// The folder of provider `name` below `state_directory`, made if it is not there (mode 0700).
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(state_directory: &Path, name: &str) -> Result<Self, StoreError> {
        let folder = state_directory.join(name);
        let system = |action| {
            let path = folder.clone();
            move |source| StoreError::System { path, action, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(system("made"))?;
        let turn = File::open(&folder).map_err(system("opened"))?;
        match flock(&turn, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let turn = Arc::new(Turn(turn));
                Ok(Self { folder, _turn: turn, rehearses: Arc::default(), desk: Arc::default() })
            }
            Err(Errno::WOULDBLOCK) => Err(StoreError::InUse { folder }),
            Err(errno) => Err(system("locked")(errno.into())),
        }
    }

    /// The current record, as it was saved; `None` if there is none, or something that can be none: a new one
    /// takes its place and nothing is lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record(&self) -> Result<Option<StoredRecord>, StoreError> {
        stored_record(&self.folder)
    }

    /// Notes for later runs whether a root key that is well has said that the current record is none of its own.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn note_disowned(&self, is_disowned: bool) -> Result<(), StoreError> {
        let digest = if is_disowned { self.record()?.map(|record| digest_of(&record.bytes)) } else { None };
        self.replace(DISOWNED, &digest.unwrap_or_default())
    }

    /// Replaces the current record.
    ///
    /// # Errors
    /// [`StoreError`]; then the old one is still there.
    pub fn save_record(&self, record: &[u8]) -> Result<(), StoreError> {
        if self.rehearses.load(Ordering::Relaxed) {
            return self.replace(REHEARSED, record);
        }
        // Both are known, whenever the power goes.
        let before = read(&self.folder.join(RECORD), MAX_STORED_LEN as u64).ok().flatten();
        let digests: Vec<_> =
            [Some(record), before.as_deref()].into_iter().flatten().map(digest_of).collect();
        self.replace(RECORD_DIGEST, &digests.concat())?;
        self.replace(RECORD, record)
    }

    /// The same folder, for what may never be: records are saved aside until [`Store::adopt`].
    #[must_use]
    pub fn rehearsing(&self) -> Self {
        Self { rehearses: Arc::new(AtomicBool::new(true)), ..self.clone() }
    }

    /// What was rehearsed is the record from now on; the one before takes its place aside, until it is known that it stays
    /// so.
    ///
    /// # Errors
    /// [`StoreError`]; then the old record is still there.
    pub fn adopt(&self) -> Result<(), StoreError> {
        if !self.rehearses.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let rehearsed = read(&self.folder.join(REHEARSED), MAX_STORED_LEN as u64)?;
        let before = read(&self.folder.join(RECORD), MAX_STORED_LEN as u64).ok().flatten();
        let Some(rehearsed) = rehearsed else { return Ok(()) };
        self.save_record(&rehearsed)?;
        match before {
            Some(before) => self.replace(REHEARSED, &before),
            None => {
                self.forget_rehearsed();
                Ok(())
            }
        }
    }

    /// What was rehearsed is not to be, adopted or not.
    ///
    /// # Errors
    /// [`StoreError`]; then a restart makes a new local KEK.
    pub fn take_back(&self) -> Result<(), StoreError> {
        if !self.rehearses.load(Ordering::Relaxed)
            && let Some(before) = read(&self.folder.join(REHEARSED), MAX_STORED_LEN as u64)?
        {
            self.save_record(&before)?;
            self.replace(RECORD_DIGEST, &digest_of(&before))?;
        }
        self.forget_rehearsed();
        Ok(())
    }

    /// Nobody needs what stands aside. A file that stays says nothing to anybody.
    pub fn forget_rehearsed(&self) {
        let _ = fs::remove_file(self.folder.join(REHEARSED));
    }

    /// The ledger of provider `name`, looked at beside the process that may be using it. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn peek_ledger(
        state_directory: &Path,
        name: &str,
    ) -> Result<(Ledger, Option<LedgerDamage>), StoreError> {
        let text = read(&state_directory.join(name).join(LEDGER), MAX_LEDGER_LEN)?.unwrap_or_default();
        Ok(Ledger::parse(&text))
    }

    /// The current record of provider `name`, looked at beside the process that may be using it. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn peek_record(state_directory: &Path, name: &str) -> Result<Option<StoredRecord>, StoreError> {
        stored_record(&state_directory.join(name))
    }

    /// The ledger, and what of it could not be read. A damaged file is kept aside for people to look at.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn ledger(&self) -> Result<(Ledger, Option<LedgerDamage>), StoreError> {
        let text = read(&self.folder.join(LEDGER), MAX_LEDGER_LEN)?.unwrap_or_default();
        let (ledger, damage) = Ledger::parse(&text);
        if damage.is_some() {
            self.replace("ledger.damaged", &text)?;
        }
        Ok((ledger, damage))
    }

    /// Replaces the ledger.
    ///
    /// # Errors
    /// [`StoreError`]; then the old one is still there.
    pub fn save_ledger(&self, ledger: &Ledger) -> Result<(), StoreError> {
        self.replace(LEDGER, ledger.render().as_bytes())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A file of the folder, if it is there and has at most so many bytes.
    pub(super) fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, StoreError> {
        read(&self.folder.join(name), most)
    }

    /// Keeps a file for people to look at, and says where.
    pub(super) fn set_aside(&self, name: &str) -> Result<PathBuf, StoreError> {
        let (path, aside) = (self.folder.join(name), self.folder.join(format!("{name}.damaged")));
        let moved = fs::rename(&path, &aside).and_then(|()| File::open(&self.folder)?.sync_all());
        moved.map_err(|source| StoreError::System { path, action: "kept aside", source })?;
        Ok(aside)
    }

    /// Removes a file and what may be left of it. Its bytes are written over first, which is all that can be done from
    /// here: what the disk keeps of them elsewhere is its own affair.
    pub(super) fn shred(&self, name: &str) -> Result<(), StoreError> {
        let mut gone = false;
        for name in [name.to_owned(), format!("{name}.new"), format!("{name}.damaged")] {
            let path = self.folder.join(name);
            // On a disk that can't be written to, it may still be removed.
            let _ = overwrite(&path);
            match fs::remove_file(&path) {
                Ok(()) => gone = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(StoreError::System { path, action: "removed", source }),
            }
        }
        if gone {
            let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
            synced.map_err(|source| StoreError::System {
                path: self.folder.clone(),
                action: "synced",
                source,
            })?;
        }
        Ok(())
    }

    /// Old or new, whenever the power goes: written aside, synced, renamed. A left-over temporary file of a
    /// killed process is overwritten.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.folder.join(name);
        let aside = self.folder.join(format!("{name}.new"));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&aside, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        let written = write();
        written.map_err(|source| {
            // Frees the room it took; that it may fail too changes nothing.
            let _ = fs::remove_file(&aside);
            StoreError::System { path: path.clone(), action: "written", source }
        })
    }
}

fn stored_record(folder: &Path) -> Result<Option<StoredRecord>, StoreError> {
    let bytes = match read(&folder.join(RECORD), MAX_STORED_LEN as u64) {
        Err(StoreError::System { path, source, .. }) if source.kind() == ErrorKind::InvalidData => {
            tracing::warn!(path = %path.display(), problem = %source, "this is no record; a new one replaces it");
            None
        }
        read => read?,
    };
    // It is told apart from damage only if it can be read.
    let said = read(&folder.join(RECORD_DIGEST), 2 * DIGEST_LEN as u64).ok().flatten().unwrap_or_default();
    let disowned = read(&folder.join(DISOWNED), DIGEST_LEN as u64).ok().flatten();
    Ok(bytes.map(|bytes| {
        let digest = digest_of(&bytes);
        let is_whole = said.chunks(DIGEST_LEN).any(|one| one == digest);
        StoredRecord { is_whole, is_disowned: disowned == Some(digest), bytes }
    }))
}

const DIGEST_LEN: usize = 2 * size_of::<Digest>();

fn digest_of(record: &[u8]) -> Vec<u8> {
    hex::encode(sha256(record)).into_bytes()
}

fn overwrite(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = file.metadata()?.len();
    io::copy(&mut io::repeat(0).take(length), &mut file)?;
    file.sync_all()
}

pub(super) fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let read = || {
        let length = fs::metadata(path)?.len();
        if length > most {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("it has {length} bytes, at most {most} are expected"),
            ));
        }
        fs::read(path)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(StoreError::System { path: path.to_owned(), action: "read", source }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What a child has between its fork and its exec: the same open file, which `drop` here does not close.
    #[test]
    fn a_folder_is_free_when_its_store_is_gone_whoever_still_has_its_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), "test").unwrap();
        let inherited = store._turn.0.try_clone().unwrap();
        let clone = store.clone();
        drop(store);
        assert!(matches!(Store::open(folder.path(), "test"), Err(StoreError::InUse { .. })));
        drop(clone);
        Store::open(folder.path(), "test").unwrap();
        drop(inherited);
    }
}
