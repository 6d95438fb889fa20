//! A walk over one tree, in the order of its keys or against it.
use std::mem;

use prost::bytes::Bytes;

use super::bucket::Place;
use super::page::{Kind, Page};
use super::page_set::PageSet;
use super::{Bucket, Database, Error, MAX_DEPTH, PageFault};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// A place in a tree. What it has checked so far is sound; after an error it is at its end.
pub struct Cursor<'db> {
    database: &'db Database,
    direction: Direction,
    visited: PageSet,
    /// From the root down to a leaf, or to what is next.
    path: Vec<Step>,
}

/// A page on the way down.
struct Step {
    page: Page,
    /// How many of its elements are done.
    done: u16,
    /// What its keys are below.
    end: Option<Vec<u8>>,
}

/// An element of a leaf.
pub struct Entry<'a> {
    /// The page that it stands in.
    pub page: u64,
    /// Its number there.
    pub index: u16,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Whether the value is a bucket.
    pub is_bucket: bool,
    leaf: &'a Page,
}

impl<'db> Cursor<'db> {
    pub(super) fn new(database: &'db Database, bucket: &Bucket, direction: Direction) -> Result<Self, Error> {
        Self::resume(database, bucket, direction, PageSet::default())
    }

    /// The same, where pages in `visited` are those of other trees already.
    pub(super) fn resume(
        database: &'db Database,
        bucket: &Bucket,
        direction: Direction,
        visited: PageSet,
    ) -> Result<Self, Error> {
        let mut cursor = Self { database, direction, visited, path: Vec::new() };
        match &bucket.0 {
            Place::Tree(root) => cursor.descend(*root, &[], None)?,
            Place::Inline { bytes, page } => {
                let page = Place::parse_inline(*page, bytes)?;
                cursor.path.push(Step { page, done: 0, end: None });
            }
        }
        Ok(cursor)
    }

    /// The next element; `None` at the end.
    ///
    /// # Errors
    /// If the next page is damaged. The walk ends there.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, Error> {
        self.advance().map(|_| self.entry())
    }

    /// Goes to the next element, and tells whether there is one.
    ///
    /// # Errors
    /// If the next page is damaged. The walk ends there.
    pub fn advance(&mut self) -> Result<bool, Error> {
        self.step().inspect_err(|_| self.path.clear())
    }

    /// The element that it stands at; `None` before the first and after the last.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let Step { page, done, .. } = self.path.last()?;
        let index = self.index(page, done.checked_sub(1)?);
        Some(Entry {
            page: page.id,
            index,
            key: page.key(index),
            value: page.value(index),
            is_bucket: page.is_bucket(index),
            leaf: page,
        })
    }

    /// Pages that were visited, those included that only continue others.
    pub fn pages_visited(&self) -> u64 {
        self.visited.len()
    }

    /// Hands over what was visited, to a cursor over a bucket within this one, until [`Cursor::resume_with`].
    pub(super) fn pause(&mut self) -> PageSet {
        mem::take(&mut self.visited)
    }

    pub(super) fn resume_with(&mut self, visited: PageSet) {
        self.visited = visited;
    }

    pub(super) fn into_visited(self) -> PageSet {
        self.visited
    }

    /// Makes the last page a leaf with an element that is next.
    fn step(&mut self) -> Result<bool, Error> {
        while let Some(Step { page, done, .. }) = self.path.last() {
            if *done == page.count {
                self.path.pop();
                continue;
            }
            let index = self.index(page, *done);
            let down = match page.kind {
                Kind::Leaf => None,
                Kind::Branch => {
                    let next = Some(index + 1).filter(|next| *next < page.count);
                    Some((
                        page.child(index),
                        page.key(index).to_vec(),
                        next.map(|next| page.key(next).to_vec()),
                    ))
                }
            };
            let Some(step) = self.path.last_mut() else { break };
            step.done += 1;
            let Some((child, least, end)) = down else { return Ok(true) };
            let end = end.or_else(|| step.end.clone());
            self.descend(child, &least, end)?;
        }
        Ok(false)
    }

    /// Which element is number `done` on the way.
    fn index(&self, page: &Page, done: u16) -> u16 {
        match self.direction {
            Direction::Ascending => done,
            Direction::Descending => page.count - 1 - done,
        }
    }

    fn descend(&mut self, id: u64, least: &[u8], end: Option<Vec<u8>>) -> Result<(), Error> {
        if self.path.len() == MAX_DEPTH {
            return Err(PageFault::TooDeep { most: MAX_DEPTH }.at(id));
        }
        // Before it is read: a cycle costs nothing.
        if self.visited.contains(id) {
            return Err(PageFault::Twice.at(id));
        }
        let page = self.database.page(id)?;
        for part in id..id + page.pages(self.database.meta.page_size) {
            if !self.visited.insert(part) {
                return Err(PageFault::Twice.at(part));
            }
        }
        if !self.path.is_empty() {
            page.check_range(least, end.as_deref()).map_err(|fault| fault.at(id))?;
        }
        self.path.push(Step { page, done: 0, end });
        Ok(())
    }
}

impl Entry<'_> {
    /// The value without a copy, to be kept.
    pub(super) fn value_bytes(&self) -> Bytes {
        self.leaf.value_bytes(self.index)
    }
}
