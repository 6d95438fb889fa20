//! Where a bucket's tree begins.
use prost::bytes::Bytes;

use super::page::{self, Page};
use super::{Entry, Error, PageFault};

/// Bytes in front of a small bucket's page: root and sequence.
const HEADER: usize = 16;

/// A tree of its own: in pages, or, if it is small, in the element that names it.
#[derive(Clone)]
pub struct Bucket(pub(super) Place);

#[derive(Clone)]
pub(super) enum Place {
    Tree(u64),
    /// Bytes of a page, and the page that they stand in.
    Inline {
        bytes: Bytes,
        page: u64,
    },
}

impl Bucket {
    pub(super) fn at(root: u64) -> Self {
        Self(Place::Tree(root))
    }

    /// The bucket that `entry` is.
    ///
    /// # Errors
    /// If it is a value, or cut off.
    pub fn of(entry: &Entry<'_>) -> Result<Self, Error> {
        let none = || PageFault::NoBucket { index: entry.index }.at(entry.page);
        if !entry.is_bucket || entry.value.len() < HEADER {
            return Err(none());
        }
        let place = match page::number::<8>(entry.value, 0) {
            0 => Place::Inline { bytes: entry.value_bytes().slice(HEADER..), page: entry.page },
            root => Place::Tree(root),
        };
        Ok(Self(place))
    }
}

impl Place {
    /// The page of a bucket without pages of its own.
    pub(super) fn parse_inline(page: u64, bytes: &Bytes) -> Result<Page, Error> {
        Page::parse_inline(page, bytes.clone()).map_err(|fault| PageFault::Inline(Box::new(fault)).at(page))
    }
}
