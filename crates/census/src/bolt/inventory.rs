//! Which pages the trees reach, and what stands in the others.
use std::mem;

use prost::bytes::Bytes;

use super::leftover::Leftovers;
use super::page_set::PageSet;
use super::{Bucket, Cursor, Database, Direction, Error, MAX_BUCKET_DEPTH, PageFault};

/// All pages of a file, by use.
pub struct Inventory<'db> {
    pub(super) database: &'db Database,
    pub(super) reached: PageSet,
}

/// Free pages one after another. What transactions wrote there stands in them until others overwrite it, or the file is
/// defragmented.
pub struct Free<'a> {
    inventory: &'a Inventory<'a>,
    next: u64,
}

impl<'db> Inventory<'db> {
    pub(super) fn take(database: &'db Database) -> Result<Self, Error> {
        // The cursor that is at work has what all of them visited.
        let mut path = vec![Cursor::new(database, &database.root(), Direction::Ascending)?];
        let mut reached = PageSet::default();
        while let Some(cursor) = path.last_mut() {
            let Some(entry) = cursor.next_entry()? else {
                reached = path.pop().map(Cursor::into_visited).unwrap_or_default();
                if let Some(outer) = path.last_mut() {
                    outer.resume_with(mem::take(&mut reached));
                }
                continue;
            };
            if entry.is_bucket {
                let (page, bucket) = (entry.page, Bucket::of(&entry)?);
                if path.len() == MAX_BUCKET_DEPTH {
                    return Err(PageFault::TooDeep { most: MAX_BUCKET_DEPTH }.at(page));
                }
                let visited = path.last_mut().map(Cursor::pause).unwrap_or_default();
                path.push(Cursor::resume(database, &bucket, Direction::Ascending, visited)?);
            }
        }
        Ok(Self { database, reached })
    }

    /// Pages of trees.
    pub fn used(&self) -> u64 {
        self.reached.len()
    }

    /// Pages that no tree reaches: free ones, and those of a free list if one was written.
    pub fn free(&self) -> u64 {
        // Two meta pages are of no tree, and all pages of trees are below the high water mark.
        self.database.meta.pages.saturating_sub(2 + self.used())
    }

    /// Their bytes.
    pub fn free_pages(&self) -> Free<'_> {
        Free { inventory: self, next: 2 }
    }

    /// All bytes of the file that no tree holds, in the order in which they stand.
    pub fn leftovers(&self) -> Leftovers<'_> {
        Leftovers::new(self)
    }
}

impl Iterator for Free<'_> {
    type Item = Result<(u64, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let Inventory { database, reached } = self.inventory;
        let page = (self.next..database.meta.pages).find(|page| !reached.contains(*page))?;
        self.next = page + 1;
        Some(database.page_bytes(page, 1).map(|bytes| (page, bytes)))
    }
}
