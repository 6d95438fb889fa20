//! k3s without etcd: kine keeps the same keys and values in a file of SQLite, `server/db/state.db`.
//!
//! ```text
//! table kine   id = revision, name = key, value, deleted, prev_revision, old_value = the value before
//! ```
//!
//! A key is what its newest row says; all others of it are its past. A row also carries the value that it replaced. As long
//! as the row before is there that is a copy, and not counted; once kine's compaction has removed that row, the old value
//! **still stands in the new one**, until the object is written once more and compacted again. So such an `old_value` is
//! counted as a past value of its own, under the revision that wrote it.
//!
//! The file is read by SQLite itself, and nothing is written:
//! * Without a log beside it (`state.db-wal`), which is how k3s leaves it when it stops, it is opened as immutable: no lock,
//!   no file beside it.
//! * With one, what is in the log counts. SQLite reads that through its index (`state.db-shm`), which a running k3s has
//!   and one that was killed leaves; a reader marks itself there, and a running k3s is not disturbed. Without the index
//!   the file is refused, since SQLite would make one.
//! * With a journal beside it a write was broken off, and it is refused.
//!
//! A file from elsewhere can't make SQLite run something: table `kine` must be a plain one with kine's columns, none of them
//! computed. Values are bounded by [`MAX_VALUE`], and memory by SQLite's page cache and a fingerprint a key.
mod error;
mod open;
mod unused;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

pub use error::{Error, Fault};
pub use open::is_sqlite;

use crate::classify::is_encrypted;
use crate::mvcc::{Counts, Fingerprints, Item, KeyValue, Revision, Standing, StoreFacts, is_under};
use crate::snapshot::Opened;
use crate::survey::{Survey, Surveyor};

/// The longest value. kube-apiserver's are a few MiB.
pub const MAX_VALUE: i32 = 64 << 20;
/// Whose rows say up to which revision kine has compacted: in `prev_revision`.
const COMPACTED: &str = "compact_rev_key";

/// One file of kine.
#[derive(Debug)]
pub struct StateDb {
    path: PathBuf,
    opened: Opened,
    connection: Connection,
    has_log: bool,
    facts: StoreFacts,
    rows: u64,
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Revisions that were passed, from the newest on; some have no row.
    pub revisions: u64,
    /// What it came by so far.
    pub counts: Counts,
}

impl StateDb {
    /// Opens the file at `path`, as of this moment.
    ///
    /// # Errors
    /// If it is no regular file, no table of kine's is in it, it is damaged, or it can't be read without writing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        open::open(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file, without its log.
    pub fn len(&self) -> u64 {
        self.opened.metadata.len()
    }

    /// Never: an empty file does not open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a log stands beside it, of which the values count, too.
    pub fn has_log(&self) -> bool {
        self.has_log
    }

    /// The newest revision, and up to which one kine has compacted.
    pub fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    /// Where its log stands.
    pub fn log(&self) -> PathBuf {
        open::beside(&self.path, "-wal")
    }

    /// How many revisions there are at most.
    pub fn revisions(&self) -> u64 {
        self.rows
    }

    /// SHA-256 of the file, without its log.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn sha256(&self, progress: impl FnMut(u64)) -> Result<[u8; 32], Error> {
        crate::snapshot::sha256(&self.opened.file, self.len(), progress)
            .map_err(|error| self.error(Fault::File(error.into())))
    }

    /// Hands each value under `prefix` to `each`, newest first, those that were overwritten or deleted among them, until it
    /// says that it has enough.
    ///
    /// # Errors
    /// If the file is damaged, or changed while it was read.
    pub fn values(
        &self,
        prefix: &str,
        each: impl FnMut(&Item<'_>, Standing, Passed) -> bool,
    ) -> Result<Passed, Error> {
        self.values_at(prefix, self.rows, each)
    }

    /// The same as it was at `revision`, which must be none that was compacted away.
    ///
    /// # Errors
    /// If the file is damaged, or changed while it was read.
    pub fn values_at(
        &self,
        prefix: &str,
        revision: u64,
        mut each: impl FnMut(&Item<'_>, Standing, Passed) -> bool,
    ) -> Result<Passed, Error> {
        let mut seen = Fingerprints::new().map_err(|error| self.error(Fault::Store(error)))?;
        let prefix = prefix.trim_end_matches('/').as_bytes();
        let mut passed = Passed::default();
        self.rows(revision, |row| {
            passed.revisions = revision.saturating_sub(row.revision);
            let Passed { counts, .. } = &mut passed;
            if !is_under(prefix, row.key) {
                counts.outside += 1;
                let values = [row.value, row.left_behind().unwrap_or_default()];
                counts.outside_encrypted +=
                    values.into_iter().filter(|value| is_encrypted(value)).count() as u64;
                return true;
            }
            let is_newest = seen.insert(row.key);
            let standing = if is_newest { Standing::Live } else { Standing::Past };
            match (is_newest, row.deletes) {
                (true, false) => counts.live += 1,
                (true, true) => counts.deleted += 1,
                (false, false) => counts.past += 1,
                (false, true) => {}
            }
            if !row.deletes && !each(&row.item(row.revision, row.value), standing, passed) {
                return false;
            }
            row.left_behind().is_none_or(|value| {
                passed.counts.past += 1;
                each(&row.item(row.before, value), Standing::Past, passed)
            })
        })?;
        Ok(passed)
    }

    /// Hands everything that stands in a value's column to `each`, copies among them, newest row first.
    ///
    /// # Errors
    /// If the file is damaged, or changed while it was read.
    pub fn columns(&self, mut each: impl FnMut(&Item<'_>, Standing)) -> Result<(), Error> {
        let mut seen = Fingerprints::new().map_err(|error| self.error(Fault::Store(error)))?;
        self.rows(self.rows, |row| {
            let is_live = seen.insert(row.key) && !row.deletes;
            let standing = if is_live { Standing::Live } else { Standing::Past };
            for (value, standing) in [(row.value, standing), (row.old, Standing::Past)] {
                if !value.is_empty() {
                    each(&row.item(row.revision, value), standing);
                }
            }
            true
        })
    }

    /// Hands each row up to `revision` to `each`, newest first, but for kine's own, until it says that it has enough.
    fn rows(&self, revision: u64, mut each: impl FnMut(&Row<'_>) -> bool) -> Result<(), Error> {
        let sqlite = |error| self.error(Fault::of(&error));
        let mut statement = self.connection.prepare(ROWS).map_err(sqlite)?;
        let newest = i64::try_from(revision).unwrap_or(i64::MAX);
        let mut rows = statement.query([newest]).map_err(sqlite)?;
        while let Some(row) = rows.next().map_err(sqlite)? {
            let row = Row::read(row).map_err(|fault| self.error(fault))?;
            if row.key != COMPACTED.as_bytes() && !each(&row) {
                return Ok(());
            }
        }
        self.ensure_unchanged()
    }

    /// Whoever writes has a log: its pages stand still for a reader.
    fn ensure_unchanged(&self) -> Result<(), Error> {
        if self.has_log {
            return Ok(());
        }
        self.opened.ensure_unchanged(&self.path).map_err(|error| self.error(Fault::File(error.fault)))
    }

    fn error(&self, fault: Fault) -> Error {
        Error { path: self.path.clone(), fault }
    }
}

/// Surveys all of `file` under `prefix`. `progress` is told after each value how far it is.
///
/// # Errors
/// If the file is damaged, or changed while it was read.
pub fn survey(file: &StateDb, prefix: &str, mut progress: impl FnMut(Passed)) -> Result<Survey, Error> {
    let mut surveyor = Surveyor::new(prefix);
    let passed = file.values(prefix, |item, standing, passed| {
        surveyor.add(item, standing);
        progress(passed);
        true
    })?;
    Ok(surveyor.finish(file.facts(), passed.counts))
}

/// By revision, so that nothing is sorted and no index is trusted; of the row before, whether it is there.
const ROWS: &str = "
    SELECT row.id, row.name, row.deleted, row.create_revision, row.prev_revision, row.value, row.old_value,
        before.id IS NOT NULL AND before.name = row.name
    FROM kine AS row NOT INDEXED LEFT JOIN kine AS before ON before.id = row.prev_revision
    WHERE row.id <= ?1
    ORDER BY row.id DESC";

/// One row. Borrowed, as [`KeyValue`] is.
struct Row<'a> {
    revision: u64,
    key: &'a [u8],
    deletes: bool,
    created: i64,
    before: u64,
    value: &'a [u8],
    old: &'a [u8],
    has_before: bool,
}

impl<'a> Row<'a> {
    fn read(row: &'a rusqlite::Row<'_>) -> Result<Self, Fault> {
        let column = |column: usize| row.get_ref(column).map_err(|error| Fault::of(&error));
        let revision = match column(0)? {
            ValueRef::Integer(id) => u64::try_from(id).map_err(|_| Fault::Row { id, column: "id" })?,
            _ => return Err(Fault::Columns),
        };
        let fault = |column| Fault::Row { id: revision as i64, column };
        let number = |index: usize, name| match column(index)? {
            ValueRef::Integer(number) => Ok(number),
            ValueRef::Null => Ok(0),
            _ => Err(fault(name)),
        };
        let bytes = |index: usize, name| match column(index)? {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Ok(bytes),
            ValueRef::Null => Ok(&[][..]),
            _ => Err(fault(name)),
        };
        let before = number(4, "prev_revision")?;
        Ok(Self {
            revision,
            key: Some(bytes(1, "name")?).filter(|key| !key.is_empty()).ok_or_else(|| fault("name"))?,
            deletes: number(2, "deleted")? != 0,
            created: number(3, "create_revision")?,
            before: u64::try_from(before).map_err(|_| fault("prev_revision"))?,
            value: bytes(5, "value")?,
            old: bytes(6, "old_value")?,
            has_before: number(7, "prev_revision")? != 0,
        })
    }

    fn item(&self, revision: u64, value: &'a [u8]) -> Item<'a> {
        let pair = KeyValue {
            key: self.key,
            create_revision: self.created,
            mod_revision: i64::try_from(revision).unwrap_or_default(),
            value,
            ..KeyValue::default()
        };
        Item { revision: Revision { main: revision, sub: 0 }, deletes: false, pair, page: 0 }
    }

    /// The value before this one, if no other row has it. Older versions of kine put it into a deletion's own value, too.
    fn left_behind(&self) -> Option<&'a [u8]> {
        let value = if self.old.is_empty() && self.deletes { self.value } else { self.old };
        (!self.has_before && !value.is_empty()).then_some(value)
    }
}
