//! One file of etcd: a snapshot, or a stopped member's `member/snap/db`.
//!
//! How a file is opened:
//! * For reading only, without waiting: a FIFO, a device or a folder is refused after a look at what was opened, so that
//!   nothing can be swapped in between. A symbolic link is followed, since backups are often reached by one; what counts
//!   is the file at its end.
//! * A shared lock is taken, as bbolt's own readers do, and held until the [`Snapshot`] is dropped. It is refused while a
//!   running etcd holds the file: pages that are read one after another would be of several transactions. An etcd that
//!   starts meanwhile waits. Where the file system has no locks the file is read without one.
//! * A file that changes while it is read gives errors, or [`Snapshot::ensure_unchanged`] tells.
//!
//! [`Snapshot::check_integrity`] reads all of it and compares the SHA-256 that `etcdctl snapshot save` puts behind a
//! snapshot. A `db` has none.
mod error;
mod integrity;

#[cfg(test)]
mod tests;

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub use error::{Error, Fault};
pub use integrity::{Digest, Integrity};

use crate::bolt::{self, Database};
use crate::mvcc::Store;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the file that are kept in memory at most.
    pub cache_bytes: usize,
    /// Whether to go on where etcd's layout is newer than [`crate::mvcc::NEWEST_STORAGE`].
    pub accept_newer: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache_bytes: bolt::CACHE_BYTES, accept_newer: false }
    }
}

/// An open file of etcd.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    file: Arc<File>,
    opened: Metadata,
    locked: bool,
    trailer: bool,
    database: Database,
    options: Options,
}

impl Snapshot {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If it is no regular file, a running etcd holds it, or it is no database.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let Opened { file, metadata: opened, locked } = Opened::open(path)?;
        let (len, trailer) = integrity::split(opened.len());
        let file = Arc::new(file);
        let database = Database::open(file.clone(), len, options.cache_bytes)
            .map_err(|error| Error { path: path.to_owned(), fault: error.into() })?;
        Ok(Self { path: path.to_owned(), file, opened, locked, trailer, database, options })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file, checksum included.
    pub fn len(&self) -> u64 {
        self.opened.len()
    }

    /// Never: an empty file does not open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a lock keeps etcd from writing it. Not where the file system has none.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Its pages.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// What etcd keeps in it.
    ///
    /// # Errors
    /// If it is of another program or of a newer etcd, or damaged.
    pub fn store(&self) -> Result<Store<'_>, Error> {
        Store::open(&self.database, self.options.accept_newer).map_err(|error| self.error(error))
    }

    /// Reads all of it, if it carries a checksum, and compares that. `progress` is told how many bytes were read so far.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn check_integrity(&self, progress: impl FnMut(u64)) -> Result<Integrity, Error> {
        match self.trailer {
            false => Ok(Integrity::Absent),
            true => self.digest(progress).map(|digest| digest.integrity),
        }
    }

    /// The same, and the SHA-256 of the file, for which one without a checksum is read, too.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn digest(&self, progress: impl FnMut(u64)) -> Result<Digest, Error> {
        integrity::digest(&*self.file, self.len(), progress).map_err(|error| self.error(error))
    }

    /// Whether length and times are those that the file had when it was opened: to be asked when all was read.
    ///
    /// # Errors
    /// If they are not.
    pub fn ensure_unchanged(&self) -> Result<(), Error> {
        ensure_unchanged(&self.path, &self.file, &self.opened)
    }

    /// `fault`, with this file's path.
    pub fn error(&self, fault: impl Into<Fault>) -> Error {
        Error { path: self.path.clone(), fault: fault.into() }
    }
}

/// A regular file of a member that is not running.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) metadata: Metadata,
    pub(crate) locked: bool,
}

impl Opened {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let at = |fault| Error { path: path.to_owned(), fault };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| at(Fault::Open(errno.into())))?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|error| at(Fault::Open(error)))?;
        if !metadata.is_file() {
            return Err(at(Fault::NotRegular { what: kind(&metadata) }));
        }
        let locked = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => true,
            Err(Errno::AGAIN) => return Err(at(Fault::Locked)),
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => false,
            Err(errno) => return Err(at(Fault::Open(errno.into()))),
        };
        Ok(Self { file, metadata, locked })
    }

    /// Refuses a file of a write-ahead log that a running etcd has: it locks them by fcntl(2), not by flock(2). To be asked
    /// of no file that SQLite has open, whose locks would go with this file.
    pub(crate) fn refuse_locked_log(&self, path: &Path) -> Result<(), Error> {
        match rustix::fs::fcntl_lock(&self.file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::AGAIN | Errno::ACCESS) => Err(Error { path: path.to_owned(), fault: Fault::Locked }),
            // Where the file system has no locks, nobody else has one.
            _ => Ok(()),
        }
    }

    /// As [`Snapshot::ensure_unchanged`].
    pub(crate) fn ensure_unchanged(&self, path: &Path) -> Result<(), Error> {
        ensure_unchanged(path, &self.file, &self.metadata)
    }
}

/// Of the first `len` bytes of any file.
#[cfg(feature = "kine")]
pub(crate) fn sha256(file: &File, len: u64, progress: impl FnMut(u64)) -> Result<[u8; 32], bolt::Error> {
    integrity::digest(file, len, progress).map(|digest| digest.sha256)
}

fn ensure_unchanged(path: &Path, file: &File, opened: &Metadata) -> Result<(), Error> {
    let at = |fault| Error { path: path.to_owned(), fault };
    let now = file.metadata().map_err(|error| at(Fault::Open(error)))?;
    let marks = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    if marks(&now) == marks(opened) { Ok(()) } else { Err(at(Fault::Changed)) }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
