//! Each key as it is now.
use super::{Error, Fingerprints, Item, Revisions};
use crate::classify::is_encrypted;

/// Yields each key under a prefix once, with its newest value. After an error it is at its end.
pub struct Live<'db> {
    revisions: Revisions<'db>,
    seen: Fingerprints,
    prefix: Vec<u8>,
    /// The newest revision that counts.
    until: u64,
    counts: Counts,
}

/// What a pass came by so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are there.
    pub live: u64,
    /// Keys whose newest revision is a deletion.
    pub deleted: u64,
    /// Values of older revisions that were not compacted away. Marks of deletions that something was written after are not
    /// counted: they hold nothing, and a running etcd does not show them.
    pub past: u64,
    /// Revisions of keys outside of the prefix.
    pub outside: u64,
    /// How many of these wrote a value that is encrypted, by what it begins with.
    pub outside_encrypted: u64,
}

/// Whether a value is what its key is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Live,
    /// Overwritten or deleted since, and not compacted away: who asks etcd for an older revision gets it.
    Past,
}

impl<'db> Live<'db> {
    pub(super) fn new(revisions: Revisions<'db>, seen: Fingerprints, prefix: &[u8]) -> Self {
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix).to_vec();
        Self { revisions, seen, prefix, until: u64::MAX, counts: Counts::default() }
    }

    pub(super) fn until(self, revision: u64) -> Self {
        Self { until: revision, ..self }
    }

    /// The next key; `None` at the end.
    ///
    /// # Errors
    /// If a revision or a page is damaged.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Error> {
        while self.revisions.advance()? {
            if self.count()? == Some(Standing::Live) {
                return self.revisions.item();
            }
        }
        Ok(None)
    }

    /// The next value under the prefix, those that were overwritten or deleted since among them; `None` at the end.
    ///
    /// # Errors
    /// If a revision or a page is damaged.
    pub fn next_value(&mut self) -> Result<Option<(Item<'_>, Standing)>, Error> {
        while self.revisions.advance()? {
            if let Some(standing) = self.count()? {
                return Ok(self.revisions.item()?.map(|item| (item, standing)));
            }
        }
        Ok(None)
    }

    /// Counts the revision that it stands at; `None` if it has no value, or is outside of the prefix.
    fn count(&mut self) -> Result<Option<Standing>, Error> {
        let Self { revisions, seen, prefix, until, counts } = self;
        let Some(Item { revision, deletes, pair, .. }) = revisions.item()? else { return Ok(None) };
        if revision.main > *until {
            return Ok(None);
        }
        let (counter, standing) = if !is_under(prefix, pair.key) {
            counts.outside_encrypted += u64::from(is_encrypted(pair.value));
            (&mut counts.outside, None)
        } else if !seen.insert(pair.key) {
            if deletes {
                return Ok(None);
            }
            (&mut counts.past, Some(Standing::Past))
        } else if deletes {
            (&mut counts.deleted, None)
        } else {
            (&mut counts.live, Some(Standing::Live))
        };
        *counter += 1;
        Ok(standing)
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

/// Whether `key` is `prefix` or below it. An empty one is all.
pub(crate) fn is_under(prefix: &[u8], key: &[u8]) -> bool {
    prefix.is_empty() || key.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
