//! Each key as it is now.
use super::{Error, Fingerprints, Item, Revisions};

/// Yields each key under a prefix once, with its newest value. After an error it is at its end.
pub struct Live<'db> {
    revisions: Revisions<'db>,
    seen: Fingerprints,
    prefix: Vec<u8>,
    counts: Counts,
}

/// What a pass came by so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are there.
    pub live: u64,
    /// Keys whose newest revision is a deletion.
    pub deleted: u64,
    /// Older revisions of keys, deletions among them, that were not compacted away.
    pub past: u64,
    /// Revisions of keys outside of the prefix.
    pub outside: u64,
}

impl<'db> Live<'db> {
    pub(super) fn new(revisions: Revisions<'db>, seen: Fingerprints, prefix: &[u8]) -> Self {
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix).to_vec();
        Self { revisions, seen, prefix, counts: Counts::default() }
    }

    /// The next key; `None` at the end.
    ///
    /// # Errors
    /// If a revision or a page is damaged.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Error> {
        while self.revisions.advance()? {
            if self.count()? {
                return self.revisions.item();
            }
        }
        Ok(None)
    }

    /// Counts the revision that it stands at, and tells whether it is what a key is now.
    fn count(&mut self) -> Result<bool, Error> {
        let Self { revisions, seen, prefix, counts } = self;
        let Some(Item { deletes, pair, .. }) = revisions.item()? else { return Ok(false) };
        let counter = if !is_under(prefix, pair.key) {
            &mut counts.outside
        } else if !seen.insert(pair.key) {
            &mut counts.past
        } else if deletes {
            &mut counts.deleted
        } else {
            counts.live += 1;
            return Ok(true);
        };
        *counter += 1;
        Ok(false)
    }

    /// What it came by so far; after the last key, of all.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The set of keys that were seen.
    pub fn seen(&self) -> &Fingerprints {
        &self.seen
    }

    /// Pages that were visited so far.
    pub fn pages_visited(&self) -> u64 {
        self.revisions.pages_visited()
    }
}

fn is_under(prefix: &[u8], key: &[u8]) -> bool {
    prefix.is_empty() || key.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
