//! Every revision, one after another.
use super::{Error, KeyValue, Revision, ValueFault};
use crate::bolt::Cursor;

/// Goes through revisions. After an error it is at its end.
pub struct Revisions<'db> {
    cursor: Cursor<'db>,
}

/// One revision of one key.
#[derive(Debug)]
pub struct Item<'a> {
    /// Its number.
    pub revision: Revision,
    /// Whether it deletes the key; then it has no value.
    pub deletes: bool,
    /// What it wrote.
    pub pair: KeyValue<'a>,
    /// The page that it stands in.
    pub page: u64,
}

impl<'db> Revisions<'db> {
    pub(super) fn new(cursor: Cursor<'db>) -> Self {
        Self { cursor }
    }

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// If it, or the page that it stands in, is damaged.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Error> {
        self.advance()?;
        self.item()
    }

    /// Goes to the next one, and tells whether there is one.
    ///
    /// # Errors
    /// If the page that it stands in is damaged.
    pub fn advance(&mut self) -> Result<bool, Error> {
        Ok(self.cursor.advance()?)
    }

    /// The one that it stands at; `None` before the first and after the last.
    ///
    /// # Errors
    /// If it is no revision.
    pub fn item(&self) -> Result<Option<Item<'_>>, Error> {
        let Some(entry) = self.cursor.entry() else { return Ok(None) };
        let fault = |fault| Error::Revision { page: entry.page, index: entry.index, fault };
        if entry.is_bucket {
            return Err(fault(ValueFault::Bucket));
        }
        let (revision, deletes) =
            Revision::parse(entry.key).ok_or(fault(ValueFault::Number { length: entry.key.len() }))?;
        let pair = KeyValue::parse(entry.value).map_err(|at| fault(ValueFault::Protobuf { at }))?;
        if pair.key.is_empty() {
            return Err(fault(ValueFault::NoKey));
        }
        // etcd writes the key alone where it deletes.
        if !deletes && u64::try_from(pair.mod_revision) != Ok(revision.main) {
            return Err(fault(ValueFault::Mismatch { found: pair.mod_revision, expected: revision.main }));
        }
        Ok(Some(Item { revision, deletes, pair, page: entry.page }))
    }

    /// Pages that were visited so far.
    pub fn pages_visited(&self) -> u64 {
        self.cursor.pages_visited()
    }
}
