//! Bytes of a file that no tree holds. What transactions wrote there once may still stand in them.
use prost::bytes::Bytes;

use super::meta;
use super::{Error, Inventory};

/// Bytes of free pages, or of the end of the file, that are read at once.
const AT_ONCE: u64 = 256 << 10;

/// Why no tree holds some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// They are of pages that no tree reaches.
    Free,
    /// They stand behind the last element of a page, or behind the fields of a meta page.
    Tail,
    /// They stand behind the last page: the file is longer than its database.
    Beyond,
}

/// Some of these bytes. Neighbours may come in several parts.
#[derive(Clone)]
pub struct Leftover {
    /// Why no tree holds them.
    pub unused: Unused,
    /// Where they stand in the file.
    pub offset: u64,
    /// The bytes: anything, plaintext too.
    pub bytes: Bytes,
}

/// Goes through the file once.
pub struct Leftovers<'a> {
    inventory: &'a Inventory<'a>,
    /// The next page, or, behind the last one, the next place in units of pages.
    next: u64,
    failed: bool,
}

impl<'a> Leftovers<'a> {
    pub(super) fn new(inventory: &'a Inventory<'a>) -> Self {
        Self { inventory, next: 0, failed: false }
    }

    /// Bytes of the file that were gone through so far, those that trees hold among them.
    pub fn passed(&self) -> u64 {
        let database = self.inventory.database;
        (self.next * u64::from(database.meta.page_size)).min(database.len())
    }

    /// What page `next` has of it, and goes behind that.
    fn step(&mut self) -> Result<Leftover, Error> {
        let Inventory { database, reached } = self.inventory;
        let meta = &database.meta;
        let (page_size, first) = (u64::from(meta.page_size), self.next);
        let at_once = (AT_ONCE / page_size).max(1);
        let offset = first * page_size;
        if first >= meta.pages {
            let length = (at_once * page_size).min(database.len() - offset);
            self.next += at_once;
            let bytes = database.blocks.read(offset, length)?;
            return Ok(Leftover { unused: Unused::Beyond, offset, bytes });
        }
        if first < 2 {
            self.next += 1;
            let bytes = database.blocks.read(offset, page_size)?.slice(meta::END..);
            return Ok(Leftover { unused: Unused::Tail, offset: offset + meta::END as u64, bytes });
        }
        if reached.contains(first) {
            // No page of a tree overlaps another, so that what follows one is the beginning of the next.
            let page = database.page(first)?;
            self.next += page.pages(meta.page_size).max(1);
            let (end, bytes) = page.tail();
            return Ok(Leftover { unused: Unused::Tail, offset: offset + end as u64, bytes });
        }
        let run = (first + 1..meta.pages).take(at_once as usize - 1);
        let pages = 1 + run.take_while(|page| !reached.contains(*page)).count() as u64;
        self.next += pages;
        let bytes = database.page_bytes(first, pages)?;
        Ok(Leftover { unused: Unused::Free, offset, bytes })
    }
}

impl Iterator for Leftovers<'_> {
    type Item = Result<Leftover, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let database = self.inventory.database;
        let is_there = self.next * u64::from(database.meta.page_size) < database.len();
        // It ends with what can't be read.
        (is_there && !self.failed).then(|| self.step().inspect_err(|_| self.failed = true))
    }
}
