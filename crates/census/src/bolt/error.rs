//! What can be wrong with a file of bbolt. None of it holds bytes of a value.
use std::io;

/// Why a file, or a place of it, can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing in it.
    #[error("the file is empty (0 bytes): whatever should have written it did not")]
    Empty,
    /// Too short for two meta pages.
    #[error(
        "the file has {found} bytes, and the smallest database has {least}: it is cut off, or of another program"
    )]
    TooShort {
        /// Its length.
        found: u64,
        /// What two meta pages need.
        least: u64,
    },
    /// Neither meta page begins as one does.
    #[error(
        "this is no database of etcd: neither meta page has bbolt's mark at byte 16 of it; accepted are etcd's snapshots and member/snap/db"
    )]
    NotBolt,
    /// From a big-endian machine.
    #[error(
        "the file was written on a big-endian machine (s390x), whose order of bytes is not supported: read it there"
    )]
    ByteOrder,
    /// Of another version of bbolt's format.
    #[error(
        "the file has version {found} of bbolt's format, from a newer program than this; accepted is version 2"
    )]
    Version {
        /// What the meta page says.
        found: u32,
    },
    /// A size of pages that is none.
    #[error("the meta page says that pages have {found} bytes; accepted are powers of two from 512 to 65536")]
    PageSize {
        /// What the meta page says.
        found: u32,
    },
    /// Both meta pages are damaged.
    #[error(
        "both meta pages (0 and 1) are damaged: their checksums are wrong; take another copy of the file"
    )]
    MetaChecksum,
    /// A meta page whose parts contradict each other.
    #[error("the meta page contradicts itself: root {root} of {pages} pages")]
    MetaRange {
        /// The root's page.
        root: u64,
        /// The high water mark.
        pages: u64,
    },
    /// Shorter than its meta page says.
    #[error(
        "the file is cut off: it has {found} bytes, and its meta page speaks of {pages} pages, which are {needed}"
    )]
    Truncated {
        /// Its length.
        found: u64,
        /// Bytes up to the high water mark.
        needed: u64,
        /// The high water mark.
        pages: u64,
    },
    /// Ended earlier than it did when it was opened.
    #[error(
        "the file got shorter while it was read: nothing stands at byte {offset} any more; copy it first, then read the copy"
    )]
    Shrunk {
        /// Where nothing was.
        offset: u64,
    },
    /// The system's error.
    #[error("reading at byte {offset} failed: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A page is damaged.
    #[error("page {page}: {fault}")]
    Page {
        /// Its number.
        page: u64,
        /// What is wrong with it.
        fault: PageFault,
    },
}

/// What is wrong with a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageFault {
    /// No page of a tree has that number.
    #[error("a tree points to it, and trees are in pages 2 to {} of this file", of.saturating_sub(1))]
    OutOfRange {
        /// The high water mark.
        of: u64,
    },
    /// Another number stands in it.
    #[error("it says that it is page {found}: pages were lost, or written to another place")]
    WrongId {
        /// What it says.
        found: u64,
    },
    /// Neither a branch nor a leaf.
    #[error("its flags are {found:#06x}; a tree has branches (0x0001) and leaves (0x0002)")]
    Flags {
        /// What it says.
        found: u16,
    },
    /// Longer than the file, or than such a page can be.
    #[error("it says that it has {pages} pages; the file has {of}, and such a page at most {most} bytes")]
    Overflow {
        /// Together with those that belong to it.
        pages: u64,
        /// The high water mark.
        of: u64,
        /// Bytes that are accepted.
        most: u64,
    },
    /// Reached twice in one walk.
    #[error("two places of the tree lead to it, or it overlaps another page of it: a cycle, or a lost write")]
    Twice,
    /// Below too many others.
    #[error("it is more than {most} pages deep in the tree")]
    TooDeep {
        /// What is accepted.
        most: usize,
    },
    /// Without elements, where bbolt writes no such page: anywhere but at the root of a tree.
    #[error("it has no elements: bbolt removes such pages")]
    NoElements,
    /// A bucket within the value of an element that does not fill it.
    #[error("{found} bytes are behind its last element")]
    Remainder {
        /// How many.
        found: usize,
    },
    /// More elements than fit.
    #[error("it says that it has {count} elements, and {bytes} bytes follow")]
    Count {
        /// What it says.
        count: u16,
        /// Bytes behind its header.
        bytes: usize,
    },
    /// An element that does not stand where bbolt puts it.
    #[error("element {index} does not stand behind the one before it, or reaches out of the page")]
    Place {
        /// Counted from 0.
        index: u16,
    },
    /// An element without a key.
    #[error("element {index} has an empty key")]
    NoKey {
        /// Counted from 0.
        index: u16,
    },
    /// A key that is not above the one before it.
    #[error("the key of element {index} is not above the one before it")]
    Order {
        /// Counted from 0.
        index: u16,
    },
    /// A key that the page above does not send here.
    #[error("the key of element {index} is outside of what the page above has for it")]
    Outside {
        /// Counted from 0.
        index: u16,
    },
    /// Unknown flags of an element.
    #[error("element {index} has the flags {found:#x}; accepted are 0 (a value) and 1 (a bucket)")]
    ElementFlags {
        /// Counted from 0.
        index: u16,
        /// What it says.
        found: u32,
    },
    /// A value where a bucket is expected, or a bucket that is cut off.
    #[error("element {index} is no bucket")]
    NoBucket {
        /// Counted from 0.
        index: u16,
    },
    /// A bucket within the value of an element is damaged.
    #[error("the small bucket in it: {0}")]
    Inline(Box<PageFault>),
}

impl PageFault {
    pub(crate) fn at(self, page: u64) -> Error {
        Error::Page { page, fault: self }
    }
}
