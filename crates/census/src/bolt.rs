//! Files of bbolt, read-only: etcd's `db`, and its snapshots.
//!
//! ```text
//!  page 0   page 1   pages 2 …
//! ┌────────┬────────┬──────────────────────────────────────────────┐
//! │ meta   │ meta   │ branch, leaf, free list, or free             │
//! └────────┴────────┴──────────────────────────────────────────────┘
//!   the newer whole one names the root ─► branch ─► … ─► leaf: keys and values; a value may be a bucket, a tree of its own
//! ```
//!
//! Only the two meta pages carry checksums. So everything else is checked by what bbolt can't but write: a page knows its
//! number; elements stand one behind the other; keys ascend, between the keys that the page above has for it; no page
//! belongs to two places. The free list is not used: etcd writes none, and one that lies would hide pages. What is free is
//! what no tree reaches: [`Database::inventory`].
//!
//! Bounds, whatever the file says: a walk visits a page once; trees are [`MAX_DEPTH`] pages deep; a leaf is at most
//! [`MAX_LEAF_BYTES`] long and a branch [`MAX_BRANCH_BYTES`]; beside these, a [`Database`] keeps the bytes of its cache.
mod blocks;
mod bucket;
mod cursor;
mod error;
mod inventory;
mod leftover;
mod meta;
mod page;
mod page_set;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod writer;

use std::sync::Arc;

use prost::bytes::Bytes;

pub use blocks::Source;
pub use bucket::Bucket;
pub use cursor::{Cursor, Direction, Entry};
pub use error::{Error, PageFault};
pub use inventory::{Free, Inventory};
pub use leftover::{Leftover, Leftovers, Unused};
pub use meta::Meta;

pub(crate) use blocks::read_exact;

use blocks::Blocks;
use page::{Kind, Page};

/// Bytes of blocks that a [`Database`] keeps, if not told otherwise.
pub const CACHE_BYTES: usize = 16 << 20;
/// How deep a tree may be. One of three levels holds a million keys.
pub const MAX_DEPTH: usize = 16;
/// How deep buckets may stand in buckets; etcd has its own in the root's, and nothing in these.
pub const MAX_BUCKET_DEPTH: usize = 4;
/// The longest leaf. One outgrows its page by one value only, and etcd's largest are a few MiB.
pub const MAX_LEAF_BYTES: u64 = 64 << 20;
/// The longest branch. One outgrows its page by a long key only.
pub const MAX_BRANCH_BYTES: u64 = 1 << 20;

/// One file of bbolt, at its last whole transaction.
#[derive(Debug)]
pub struct Database {
    blocks: Blocks,
    meta: Meta,
}

impl Database {
    /// Reads the meta pages of a file of `len` bytes, and keeps at most `cache_bytes` of what is read later.
    ///
    /// # Errors
    /// If neither meta page is whole, or the file is shorter than they say.
    pub fn open(source: Arc<dyn Source>, len: u64, cache_bytes: usize) -> Result<Self, Error> {
        let blocks = Blocks::new(source, len, cache_bytes);
        let meta = Meta::read(&blocks)?;
        Ok(Self { blocks, meta })
    }

    /// What the meta page says.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.blocks.len()
    }

    /// Never: an empty file does not open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bucket that all others are in.
    pub fn root(&self) -> Bucket {
        Bucket::at(self.meta.root)
    }

    /// The bucket `name` of the root; `None` if there is none.
    ///
    /// # Errors
    /// If the root's tree is damaged, or `name` is no bucket.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, Error> {
        let mut cursor = self.cursor(&self.root(), Direction::Ascending)?;
        while let Some(entry) = cursor.next_entry()? {
            if entry.key == name {
                return Bucket::of(&entry).map(Some);
            }
        }
        Ok(None)
    }

    /// Walks the entries of `bucket`.
    ///
    /// # Errors
    /// If its first page is damaged.
    pub fn cursor(&self, bucket: &Bucket, direction: Direction) -> Result<Cursor<'_>, Error> {
        Cursor::new(self, bucket, direction)
    }

    /// Goes through every tree, and tells what no tree reaches.
    ///
    /// # Errors
    /// If any page that a tree reaches is damaged.
    pub fn inventory(&self) -> Result<Inventory<'_>, Error> {
        Inventory::take(self)
    }

    /// Page `id` and those that belong to it.
    fn page(&self, id: u64) -> Result<Page, Error> {
        let first = self.page_bytes(id, 1)?;
        let header = page::Header::of(&first);
        let kind = header.check(id).map_err(|fault| fault.at(id))?;
        let pages = u64::from(header.overflow) + 1;
        let most = match kind {
            Kind::Branch => MAX_BRANCH_BYTES,
            Kind::Leaf => MAX_LEAF_BYTES,
        };
        let end = id.checked_add(pages).filter(|end| *end <= self.meta.pages);
        if end.is_none() || pages * u64::from(self.meta.page_size) > most.max(u64::from(self.meta.page_size))
        {
            let fault = PageFault::Overflow { pages, of: self.meta.pages, most };
            return Err(fault.at(id));
        }
        let bytes = if pages == 1 { first } else { self.page_bytes(id, pages)? };
        Page::parse(id, kind, header.count, bytes).map_err(|fault| fault.at(id))
    }

    /// The bytes of `pages` pages from `id`, which must be below the high water mark.
    fn page_bytes(&self, id: u64, pages: u64) -> Result<Bytes, Error> {
        if id < 2 || id >= self.meta.pages {
            return Err(PageFault::OutOfRange { of: self.meta.pages }.at(id));
        }
        // Within the file, which is as long as the meta page says: the product is below its length.
        let page_size = u64::from(self.meta.page_size);
        self.blocks.read(id * page_size, pages * page_size)
    }
}
