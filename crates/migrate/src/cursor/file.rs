//! Cursors in a folder.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{Cursor, CursorStore};

/// A folder of one migration at a time.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    /// Held as long as this is.
    _lock: File,
}

/// Why a cursor can't be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Two migrations would undo each other's cursor.
    #[error("{}: another migration runs with this folder: wait for its end, or name another folder", .0.display())]
    Taken(PathBuf),
    /// The file system says no.
    #[error("{}: {source}: the cursor must be kept in a folder that can be written", .path.display())]
    File {
        /// What was touched.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is kept elsewhere, and that says no.
    #[error("the cursor can't be kept: {0}")]
    Elsewhere(String),
}

const CURSOR: &str = "cursor.json";
const PARTIAL: &str = "cursor.partial";
const LOCK: &str = "lock";
/// More than any cursor has.
const LARGEST: u64 = 64 << 20;

impl FileStore {
    /// Takes the folder, which is made if it is not there, until this is dropped or the process ends.
    ///
    /// # Errors
    /// If another process has it, or it can't be written.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::File { path, source }
        };
        fs::create_dir_all(folder).map_err(at(folder))?;
        let path = folder.join(LOCK);
        let lock = options().create(true).truncate(false).open(&path).map_err(at(&path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: lock }),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(StoreError::Taken(folder.to_owned())),
            Err(error) => Err(at(&path)(error.into())),
        }
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let partial = self.folder.join(PARTIAL);
        let mut file = options().create(true).truncate(true).open(&partial)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&partial, self.folder.join(CURSOR))?;
        File::open(&self.folder)?.sync_all()
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::File { path: self.folder.join(CURSOR), source }
    }
}

impl CursorStore for FileStore {
    async fn load(&mut self) -> Result<Option<Cursor>, StoreError> {
        let path = self.folder.join(CURSOR);
        match fs::metadata(&path) {
            Ok(found) if found.len() > LARGEST => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        }
        let text = fs::read(&path).map_err(|error| self.failed(error))?;
        Ok(serde_json::from_slice(&text).ok())
    }

    async fn save(&mut self, cursor: &Cursor) -> Result<(), StoreError> {
        let text = serde_json::to_vec(cursor).map_err(|error| self.failed(error.into()))?;
        self.replace(&text).map_err(|error| self.failed(error))
    }

    async fn clear(&mut self) -> Result<(), StoreError> {
        match fs::remove_file(self.folder.join(CURSOR)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }
}

/// Names of objects are nobody else's business.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_saved_last_is_there_whatever_was_half_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = FileStore::open(folder.path()).unwrap();
        assert_eq!(store.load().await.unwrap(), None);
        let mut cursor = Cursor::new("goal");
        for page in ["a/1", "a/2"] {
            cursor.lane("secrets").after = page.into();
            store.save(&cursor).await.unwrap();
        }
        // Killed while it wrote.
        fs::write(folder.path().join(PARTIAL), "{\"version\":1,\"go").unwrap();
        drop(store);
        let mut store = FileStore::open(folder.path()).unwrap();
        assert_eq!(store.load().await.unwrap(), Some(cursor));
        store.clear().await.unwrap();
        store.clear().await.unwrap();
        assert_eq!(store.load().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_nobody_understands_is_no_cursor() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = FileStore::open(folder.path()).unwrap();
        for text in ["", "{", "[]", "{\"version\":1,\"goal\":\"g\",\"lanes\":{},\"more\":1}"] {
            fs::write(folder.path().join(CURSOR), text).unwrap();
            assert_eq!(store.load().await.unwrap(), None, "{text}");
        }
    }

    #[test]
    fn a_folder_is_of_one_migration() {
        let folder = tempfile::tempdir().unwrap();
        let first = FileStore::open(folder.path()).unwrap();
        assert!(matches!(FileStore::open(folder.path()), Err(StoreError::Taken(_))));
        drop(first);
        FileStore::open(folder.path()).unwrap();
    }
}
