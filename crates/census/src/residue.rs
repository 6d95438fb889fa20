//! Plaintext that encryption left behind.
//!
//! Who turns encryption on and writes all objects anew has not removed what stood there before. It is in etcd's old
//! revisions, then in pages of its file that are free, and in its write-ahead log. Each goes by something else, which
//! [`Place::removed_by`] says. This looks for Kubernetes' objects there, and tells how many copies it found and where;
//! nothing of one is told or kept.
//!
//! What is recognised, in bytes that no tree holds: the beginning of an object as API servers store it. In protobuf that is
//! `k8s`, a zero byte and the object's API version and kind; in JSON `{` and `apiVersion` or `kind` first, and the other
//! within [`LOOKAHEAD`] bytes. In trees, the key and the whole value count.
//!
//! So what is not found:
//! * the rest of an object whose beginning was overwritten, and one whose beginning reaches into a page that was;
//! * plaintext that kube-apiserver did not write (a value of another program, an object in another encoding);
//! * what left the file: a defragmentation writes another file, and the old one's blocks stay on the disk until something
//!   else is written there.
//!
//! [`Found::written`] says how many bytes there are in which any of that could be: only where it is 0 there surely is
//! nothing. And what is found too much: a manifest that stands in another object's value (kubectl's annotation
//! `last-applied-configuration`, a ConfigMap with manifests), which is plaintext as well and counts as a copy of its own.
//!
//! k3s without etcd (kine, feature `kine`) has the same in its file of SQLite: in rows of the past, among which is each row's
//! copy of the value before it, in parts of the file that nothing uses, and in SQLite's log.
//!
//! Bounds: bytes go through a window of a few hundred KiB that is wiped, whatever the file says.
mod header;
mod scanner;
#[cfg(feature = "kine")]
mod state_db;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use casemate_encryption_config::{GroupResource, ResourcePattern};
use schemars::JsonSchema;
use serde::Serialize;

use crate::bolt::{self, Source, Unused};
use crate::classify::{Name, ObjectPath};
use crate::mvcc::{Error, Item, Standing, Store};
use crate::snapshot::{self, Opened};
use crate::survey::Resource;

pub use header::LOOKAHEAD;
pub use scanner::Scanner;

/// The most copies that are named for a place.
pub const MAX_EXAMPLES: usize = 5;

/// Where plaintext can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// In what objects are now.
    Objects,
    /// In revisions that were overwritten or deleted, and not compacted away.
    OldRevisions,
    /// In pages of etcd's file that no tree reaches.
    FreePages,
    /// Behind the last element of a page in use.
    PageTails,
    /// Behind the last page of the file.
    BeyondEnd,
    /// In a write-ahead log, `member/wal/*.wal`.
    WriteAheadLog,
    /// In another file of a member.
    OtherFile,
    /// Of kine: in rows that were replaced or deleted, or as a row's copy of the value before.
    OldRows,
    /// Of kine: in what nothing uses of SQLite's file.
    UnusedParts,
    /// Of kine: in SQLite's log, `state.db-wal`.
    SqliteLog,
}

/// What was found in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Found {
    /// Where.
    pub place: Place,
    /// Copies of plaintext objects.
    pub copies: u64,
    /// The same, by resource.
    pub by_resource: BTreeMap<String, u64>,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// How many of these stand in blocks of 512 in which not all is zero: what could hold plaintext that is not recognised.
    pub written: u64,
    /// Where some of the copies stand: a key and its revision, or an offset in the file.
    pub examples: Vec<String>,
}

/// Which plaintext is looked for.
#[derive(Clone, Debug)]
pub struct Search {
    resources: Vec<ResourcePattern>,
    prefix: String,
}

impl Place {
    /// What is to be done so that it goes.
    pub fn removed_by(self) -> &'static str {
        match self {
            Self::Objects => "writing each object anew under an EncryptionConfiguration that encrypts it",
            Self::OldRevisions => {
                "compaction: kube-apiserver's own, each 5 minutes, or etcdctl compact; then it is in free pages"
            }
            Self::FreePages | Self::PageTails | Self::BeyondEnd => {
                "defragmentation of each member, after compaction: etcdctl defrag"
            }
            Self::WriteAheadLog => {
                "a new member with an empty folder (or etcdutl snapshot restore of a clean snapshot); in time, rotation: \
                 after enough writes, the member makes a snapshot and removes old files"
            }
            Self::OtherFile => "a new member with an empty folder; what etcd left of a stop can be deleted",
            Self::OldRows => {
                "a change of each object after it was written anew, since its row carries the value before (kubectl annotate; \
                 API servers do not store an empty one); then kine's compaction, each 5 minutes, which leaves the last 1000 \
                 revisions; then it is in unused parts"
            }
            Self::UnusedParts => {
                "a restart of k3s, which runs VACUUM; or, while it is stopped: sqlite3 state.db VACUUM"
            }
            Self::SqliteLog => "stopping k3s, which empties the log into the file",
        }
    }

    /// What does not remove it, though one might think so.
    pub fn not_removed_by(self) -> &'static str {
        match self {
            Self::Objects => "an EncryptionConfiguration alone",
            Self::OldRevisions => "rewriting the objects, defragmentation",
            Self::FreePages | Self::PageTails | Self::BeyondEnd => {
                "compaction; a snapshot copies free pages, too"
            }
            Self::WriteAheadLog => "compaction, defragmentation, a restart",
            Self::OtherFile => "compaction, defragmentation",
            Self::OldRows => "rewriting the objects once, compaction alone, VACUUM",
            Self::UnusedParts => "compaction; a copy of the file has them, too",
            Self::SqliteLog => "compaction; a k3s that was killed leaves it",
        }
    }
}

impl Search {
    /// For objects that one of `resources` chooses. Those in trees are known by their keys below `prefix`, too.
    pub fn new(resources: Vec<ResourcePattern>, prefix: &str) -> Self {
        Self { resources, prefix: prefix.to_owned() }
    }

    /// Looks through all of a database: trees first, then what no tree holds. `progress` is told how many bytes of how many
    /// passed, which are twice the file's.
    ///
    /// # Errors
    /// If a page or a revision is damaged.
    pub fn database(
        &self,
        store: &Store<'_>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Vec<Found>, Error> {
        let database = store.database();
        let (all, page_size) = (2 * database.len(), u64::from(database.meta().page_size));
        let [mut objects, mut past] = [Place::Objects, Place::OldRevisions].map(Found::new);
        let mut values = store.live(b"")?;
        loop {
            let passed = values.pages_visited().saturating_mul(page_size);
            let Some((item, standing)) = values.next_value()? else { break };
            progress(passed, all);
            let found = match standing {
                Standing::Live => &mut objects,
                Standing::Past => &mut past,
            };
            self.value(&item, "at", found);
        }
        let inventory = database.inventory()?;
        let mut scanners =
            [Place::FreePages, Place::PageTails, Place::BeyondEnd].map(|place| self.scanner(place));
        let mut leftovers = inventory.leftovers();
        while let Some(leftover) = leftovers.next() {
            let leftover = leftover?;
            let scanner = match leftover.unused {
                Unused::Free => 0,
                Unused::Tail => 1,
                Unused::Beyond => 2,
            };
            scanners[scanner].feed(leftover.offset, &leftover.bytes);
            progress(all / 2 + leftovers.passed(), all);
        }
        Ok([objects, past].into_iter().chain(scanners.map(Scanner::finish)).collect())
    }

    /// Looks through a file of a stopped member without a look at its form: a write-ahead log, what etcd left of a stop.
    ///
    /// # Errors
    /// If it is no regular file, a running etcd holds it, or it can't be read or changes meanwhile.
    pub fn file(
        &self,
        place: Place,
        path: &Path,
        progress: impl FnMut(u64, u64),
    ) -> Result<Found, snapshot::Error> {
        let opened = Opened::open(path)?;
        opened.refuse_locked_log(path)?;
        let found = self.bytes(place, &opened.file, opened.metadata.len(), progress);
        let found = found.map_err(|error| snapshot::Error { path: path.to_owned(), fault: error.into() })?;
        opened.ensure_unchanged(path)?;
        Ok(found)
    }

    /// Looks through `len` bytes of any file, without a look at its form.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn bytes(
        &self,
        place: Place,
        source: &dyn Source,
        len: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Found, bolt::Error> {
        let (mut scanner, mut offset) = (self.scanner(place), 0);
        let mut buffer = zeroize::Zeroizing::new(vec![0; 256 << 10]);
        while offset < len {
            let length = (len - offset).min(buffer.len() as u64);
            let part = &mut buffer[..length as usize];
            bolt::read_exact(source, part, offset)?;
            scanner.feed(offset, part);
            offset += length;
            progress(offset, len);
        }
        Ok(scanner.finish())
    }

    /// For bytes of one place, which are given to it one after another.
    pub fn scanner(&self, place: Place) -> Scanner<'_> {
        Scanner::new(self, place)
    }

    /// Looks at a value that stands `at` a revision.
    fn value(&self, item: &Item<'_>, at: &str, found: &mut Found) {
        found.look(item.pair.value);
        if let Some(resource) = self.plaintext(item.pair.key, item.pair.value) {
            found.note(&resource, || format!("{} {at} revision {}", Name::new(item.pair.key), item.revision));
        }
    }

    /// Whose plaintext a value is, if it is looked for.
    fn plaintext(&self, key: &[u8], value: &[u8]) -> Option<String> {
        // What has the mark of a provider, be it one of a later Kubernetes, is none; a damaged object is.
        if value.starts_with(b"k8s:enc:") {
            return None;
        }
        let path = ObjectPath::parse(&self.prefix, key);
        let by_key = path.and_then(|_| Resource::of(path).group_resource());
        let by_value = || header::read(value).object().map(|object| object.resource());
        by_key
            .filter(|resource| self.wants(resource))
            .or_else(|| by_value().filter(|resource| self.wants(resource)))
            .map(|resource| name(&resource))
    }

    fn wants(&self, resource: &GroupResource) -> bool {
        self.resources.iter().any(|pattern| pattern.matches(resource))
    }
}

impl Found {
    fn new(place: Place) -> Self {
        let by_resource = BTreeMap::new();
        Self { place, copies: 0, by_resource, bytes: 0, written: 0, examples: Vec::new() }
    }

    fn look(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let is_written = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
        self.written += bytes.chunks(512).filter(is_written).map(|block| block.len() as u64).sum::<u64>();
    }

    fn note(&mut self, resource: &str, example: impl FnOnce() -> String) {
        self.copies += 1;
        // A pattern may choose many kinds, and bytes say any of them.
        const MOST: usize = 1024;
        if self.by_resource.len() < MOST || self.by_resource.contains_key(resource) {
            *self.by_resource.entry(resource.to_owned()).or_default() += 1;
        }
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(example());
        }
    }
}

fn name(resource: &GroupResource) -> String {
    match resource.group.as_str() {
        "" => resource.resource.clone(),
        group => format!("{}.{group}", resource.resource),
    }
}
