//! What etcd keeps in its database: every revision of every key that was not compacted away.
//!
//! Bucket `key` has one entry a revision, ordered by number. Read against that order, the first entry of a key is what it
//! is now, and all others of it are its past; so one pass and a set of [`Fingerprints`] tell them apart, and no value
//! waits in memory for its successor.
//!
//! ```text
//!  newest ──────────────────────────────────────────────► oldest
//!  5: b      4: a deleted   3: b        2: a        1: c
//!  live      (a is gone)    past        past        live
//! ```
//!
//! Map: [`Store`] is the database of one etcd, [`Revisions`] goes through all of it, [`Live`] yields each key once,
//! [`StoreFacts`] is what etcd says of itself.
mod error;
mod facts;
mod fingerprints;
mod key_value;
mod live;
mod revision;
mod revisions;

#[cfg(test)]
pub(crate) mod tests;

pub use error::{Error, ValueFault};
pub use facts::{Member, NEWEST_STORAGE, StoreFacts};
pub use fingerprints::Fingerprints;
pub use key_value::KeyValue;
#[cfg(any(feature = "etcd", feature = "kine"))]
pub(crate) use live::is_under;
pub use live::{Counts, Live, Standing};
pub use revision::Revision;
pub use revisions::{Item, Revisions};

use crate::bolt::{Bucket, Database, Direction};

/// The bucket of all revisions.
const KEYS: &[u8] = b"key";

/// The store of one etcd.
#[derive(Debug)]
pub struct Store<'db> {
    database: &'db Database,
    facts: StoreFacts,
}

impl<'db> Store<'db> {
    /// Reads what etcd says of itself. `accept_newer` goes on where etcd's layout is newer than [`NEWEST_STORAGE`].
    ///
    /// # Errors
    /// If the database is not etcd's, or of a newer layout.
    pub fn open(database: &'db Database, accept_newer: bool) -> Result<Self, Error> {
        let facts = StoreFacts::read(database, accept_newer)?;
        let store = Self { database, facts };
        let latest = store.revisions(Direction::Descending)?.next_item()?.map(|item| item.revision);
        Ok(Self { facts: StoreFacts { latest, ..store.facts }, ..store })
    }

    /// What etcd says of itself.
    pub fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    /// The database that it is in.
    pub fn database(&self) -> &'db Database {
        self.database
    }

    /// All revisions that are there.
    ///
    /// # Errors
    /// If the first page of them is damaged.
    pub fn revisions(&self, direction: Direction) -> Result<Revisions<'db>, Error> {
        Ok(Revisions::new(self.database.cursor(&keys(self.database)?, direction)?))
    }

    /// Each key under `prefix` as it is now, newest first. `/registry` is kube-apiserver's, if `--etcd-prefix` does not
    /// say otherwise; it stands for itself and what is below `/registry/`, not for `/registry2`. An empty one is all.
    ///
    /// # Errors
    /// If the first page is damaged, or the system has no randomness.
    pub fn live(&self, prefix: &[u8]) -> Result<Live<'db>, Error> {
        Ok(Live::new(self.revisions(Direction::Descending)?, Fingerprints::new()?, prefix))
    }

    /// The same as it was at `revision`, which is not below [`StoreFacts::compacted`]: what is newer is stepped over.
    ///
    /// # Errors
    /// As [`Self::live`].
    pub fn live_at(&self, prefix: &[u8], revision: u64) -> Result<Live<'db>, Error> {
        Ok(self.live(prefix)?.until(revision))
    }
}

fn keys(database: &Database) -> Result<Bucket, Error> {
    database.bucket(KEYS)?.ok_or(Error::NoKeys)
}
