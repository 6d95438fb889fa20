//! A key file on disk: who may own it, and how it is replaced.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use zeroize::Zeroizing;

use super::keyring::Keyring;
use super::text::{self, KeyFileError, MAX_LEN};

/// Another writer has the folder for as long as one change takes; more than this many looks mean a stuck one.
const LOCK_LOOKS: u32 = 200;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// A key file at a path. Nothing of it is kept between calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
}

/// Why a key file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No such file.
    #[error("there is no key file {}", .path.display())]
    Absent {
        /// Where it should be.
        path: PathBuf,
    },
    /// No folder to make it in.
    #[error("there is no folder {}; make it: `mkdir -m 0700 {}`", .folder.display(), .folder.display())]
    NoFolder {
        /// Which folder.
        folder: PathBuf,
    },
    /// It would have been overwritten.
    #[error(
        "{} exists already, and a key file is never overwritten: what is encrypted under it would be lost; \
         name another file, or add a version with `casemate key add-version`",
        .path.display()
    )]
    Exists {
        /// What exists.
        path: PathBuf,
    },
    /// Others may read or write it.
    #[error("key file {} has mode {mode:04o}, which lets others in; run `chmod 600 {}`", .path.display(), .path.display())]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else's.
    #[error(
        "key file {} belongs to uid {owner}, not to root or to uid {euid}, as which this program runs; \
         run it as uid {owner}, or `chown {euid} {}`",
        .path.display(), .path.display()
    )]
    Owner {
        /// Which file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who this process is.
        euid: u32,
    },
    /// A folder, a pipe, a device.
    #[error("{} is not a regular file; a key file is one", .path.display())]
    NotAFile {
        /// What is no file.
        path: PathBuf,
    },
    /// The bytes are no key file.
    #[error("key file {} can't be used: {error}", .path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: KeyFileError,
    },
    /// Another writer does not come to an end.
    #[error(
        "another program holds the lock on folder {}; wait for the other `casemate key`, or find it with `lsof`",
        .folder.display()
    )]
    Busy {
        /// What is locked.
        folder: PathBuf,
    },
    /// The system says no.
    #[error("can't {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl KeyFile {
    /// The key file at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it, after its owner and mode were found right.
    ///
    /// # Errors
    /// [`StoreError`]; nothing of a file that is not whole is used.
    pub fn read(&self) -> Result<Keyring, StoreError> {
        self.read_with_mode().map(|(keyring, _)| keyring)
    }

    /// Makes the file, mode 0600.
    ///
    /// # Errors
    /// [`StoreError::Exists`] rather than to overwrite anything.
    pub fn create(&self, keyring: &Keyring) -> Result<(), StoreError> {
        let place = Place::of(&self.path)?;
        let _lock = place.lock()?;
        let new = place.write_new(keyring, 0o600)?;
        // Unlike a rename, a link never replaces.
        fs::hard_link(&new.path, &place.file).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists { path: self.path.clone() },
            _ => failed("create", &place.file)(source),
        })?;
        drop(new);
        place.sync()
    }

    /// Changes the file as `change` says: atomically, and not at the same time as another writer.
    /// After a failure or a crash it is the old file or the new one, whole. A file that `change`
    /// leaves as it was is not written.
    ///
    /// # Errors
    /// Those of `change`, and [`StoreError`].
    pub fn update<T, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Keyring) -> Result<T, E>,
    ) -> Result<T, E> {
        // A path that is a symbolic link stays one.
        let real = fs::canonicalize(&self.path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StoreError::Absent { path: self.path.clone() },
            _ => failed("find", &self.path)(source),
        })?;
        let place = Place::of(&real)?;
        let _lock = place.lock()?;
        let (old, mode) = Self::at(real).read_with_mode()?;
        let mut keyring = old.clone();
        let answer = change(&mut keyring)?;
        if keyring != old {
            let mut new = place.write_new(&keyring, mode)?;
            fs::rename(&new.path, &place.file).map_err(failed("replace", &place.file))?;
            new.gone = true;
            place.sync()?;
        }
        Ok(answer)
    }

    fn read_with_mode(&self) -> Result<(Keyring, u32), StoreError> {
        let path = || self.path.clone();
        let mut file = OpenOptions::new()
            .read(true)
            // A pipe must not hold up who opens it.
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
            .open(&self.path)
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => StoreError::Absent { path: path() },
                _ => failed("open", &self.path)(source),
            })?;
        // Of what was opened, not of what the path names now.
        let found = file.metadata().map_err(failed("examine", &self.path))?;
        if !found.is_file() {
            return Err(StoreError::NotAFile { path: path() });
        }
        let euid = rustix::process::geteuid().as_raw();
        if !owner_is_accepted(found.uid(), euid) {
            return Err(StoreError::Owner { path: path(), owner: found.uid(), euid });
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(StoreError::Mode { path: path(), mode });
        }
        // One byte more than a key file has tells a larger one; never grown, so that no copy stays behind.
        let mut bytes = Zeroizing::new(vec![0; MAX_LEN + 1]);
        let mut length = 0;
        while length < bytes.len() {
            match file.read(&mut bytes[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(failed("read", &self.path)(source)),
            }
        }
        let keyring =
            text::parse(&bytes[..length]).map_err(|error| StoreError::Content { path: path(), error })?;
        Ok((keyring, mode & 0o700))
    }
}

/// Another user could change the file, or leave it open to others, at any time.
fn owner_is_accepted(owner: u32, euid: u32) -> bool {
    owner == 0 || owner == euid
}

/// Where a file is replaced.
struct Place {
    folder: PathBuf,
    file: PathBuf,
}

/// A file beside the key file that takes its name, or goes.
struct NewFile {
    path: PathBuf,
    gone: bool,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.gone {
            // The next writer removes what could not be removed here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Place {
    fn of(path: &Path) -> Result<Self, StoreError> {
        let Some(name) = path.file_name() else {
            return Err(StoreError::NotAFile { path: path.to_owned() });
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = fs::canonicalize(parent).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StoreError::NoFolder { folder: parent.to_owned() },
            _ => failed("find folder", parent)(source),
        })?;
        Ok(Self { file: folder.join(name), folder })
    }

    /// Held until dropped, by the end of the process at the latest.
    fn lock(&self) -> Result<File, StoreError> {
        let folder = File::open(&self.folder).map_err(failed("open folder", &self.folder))?;
        for _ in 0..LOCK_LOOKS {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(folder),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                Err(error) => return Err(failed("lock folder", &self.folder)(error.into())),
            }
        }
        Err(StoreError::Busy { folder: self.folder.clone() })
    }

    /// The whole new file under another name, safe on disk. The lock is held.
    fn write_new(&self, keyring: &Keyring, mode: u32) -> Result<NewFile, StoreError> {
        // One name, so that what a killed writer left is found, and never more than one.
        let mut name = std::ffi::OsString::from(".");
        name.push(self.file.file_name().unwrap_or_default());
        name.push(".new");
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path)(source));
            }
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("create", &path))?;
        let new = NewFile { path, gone: false };
        file.write_all(text::render(keyring).as_bytes()).map_err(failed("write", &new.path))?;
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed("set the mode of", &new.path))?;
        file.sync_all().map_err(failed("write", &new.path))?;
        Ok(new)
    }

    fn sync(&self) -> Result<(), StoreError> {
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed("make durable the change in", &self.folder))
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { doing, path, source }
}

#[cfg(test)]
mod tests;
