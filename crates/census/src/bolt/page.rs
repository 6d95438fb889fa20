//! One page of a tree, with all its elements checked before any is used.
use prost::bytes::Bytes;

use super::PageFault;

/// Bytes of a page's header.
pub(super) const HEADER: usize = 16;
/// Bytes of what stands for an element in front of the keys, in both kinds.
const ELEMENT: usize = 16;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
pub(super) const META: u16 = 0x04;
const IS_BUCKET: u32 = 0x01;

/// What stands in front of every page.
pub(super) struct Header {
    pub(super) id: u64,
    pub(super) flags: u16,
    pub(super) count: u16,
    pub(super) overflow: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Branch,
    Leaf,
}

/// A page whose elements are where they should be, in order.
pub(super) struct Page {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) count: u16,
    bytes: Bytes,
    end: usize,
}

impl Header {
    /// Of a page's bytes, of which there are more than a header has.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            id: number::<8>(bytes, 0),
            flags: number::<2>(bytes, 8) as u16,
            count: number::<2>(bytes, 10) as u16,
            overflow: number::<4>(bytes, 12) as u32,
        }
    }

    /// Of page `id` of a tree.
    pub(super) fn check(&self, id: u64) -> Result<Kind, PageFault> {
        if self.id != id {
            return Err(PageFault::WrongId { found: self.id });
        }
        match self.flags {
            BRANCH => Ok(Kind::Branch),
            LEAF => Ok(Kind::Leaf),
            found => Err(PageFault::Flags { found }),
        }
    }
}

impl Page {
    /// `bytes` are all of it, header included.
    pub(super) fn parse(id: u64, kind: Kind, count: u16, bytes: Bytes) -> Result<Self, PageFault> {
        let page = Self { id, kind, count, bytes, end: 0 };
        let end = page.end()?;
        Ok(Self { end, ..page })
    }

    /// The page of a bucket that is so small that it stands in an element of page `id`.
    pub(super) fn parse_inline(id: u64, bytes: Bytes) -> Result<Self, PageFault> {
        if bytes.len() < HEADER {
            return Err(PageFault::Count { count: 0, bytes: 0 });
        }
        let Header { flags, count, overflow, .. } = Header::of(&bytes);
        if flags != LEAF || overflow != 0 {
            return Err(PageFault::Flags { found: flags });
        }
        let page = Self { id, kind: Kind::Leaf, count, bytes, end: 0 };
        let end = page.end()?;
        match page.bytes.len() - end {
            0 => Ok(Self { end, ..page }),
            found => Err(PageFault::Remainder { found }),
        }
    }

    /// Where the last element ends. bbolt writes them without gaps, so that a number that was changed contradicts the next.
    fn end(&self) -> Result<usize, PageFault> {
        let count = usize::from(self.count);
        let bytes = self.bytes.len() - HEADER;
        if count * ELEMENT > bytes {
            return Err(PageFault::Count { count: self.count, bytes });
        }
        if self.kind == Kind::Branch && count == 0 {
            return Err(PageFault::NoElements);
        }
        let mut end = HEADER + count * ELEMENT;
        let mut before: &[u8] = &[];
        for index in 0..self.count {
            let (start, key, value) = self.extent(index);
            let after = start + key + value;
            if start != end || after > self.bytes.len() {
                return Err(PageFault::Place { index });
            }
            if key == 0 {
                return Err(PageFault::NoKey { index });
            }
            let flags = self.flags(index);
            if flags > IS_BUCKET {
                return Err(PageFault::ElementFlags { index, found: flags });
            }
            let key = &self.bytes[start..start + key];
            if key <= before {
                return Err(PageFault::Order { index });
            }
            (before, end) = (key, after);
        }
        Ok(end)
    }

    /// How many pages it has, those included that only continue it.
    pub(super) fn pages(&self, page_size: u32) -> u64 {
        self.bytes.len() as u64 / u64::from(page_size)
    }

    /// What stands behind its last element, and where that begins in it.
    pub(super) fn tail(&self) -> (usize, Bytes) {
        (self.end, self.bytes.slice(self.end..))
    }

    /// Below a branch: whether all keys are from `least` on and below `end`.
    pub(super) fn check_range(&self, least: &[u8], end: Option<&[u8]>) -> Result<(), PageFault> {
        let last = self.count.checked_sub(1).ok_or(PageFault::NoElements)?;
        if self.key(0) < least {
            return Err(PageFault::Outside { index: 0 });
        }
        if end.is_some_and(|end| self.key(last) >= end) {
            return Err(PageFault::Outside { index: last });
        }
        Ok(())
    }

    pub(super) fn key(&self, index: u16) -> &[u8] {
        let (start, key, _) = self.extent(index);
        &self.bytes[start..start + key]
    }

    /// Of a leaf.
    pub(super) fn value(&self, index: u16) -> &[u8] {
        &self.bytes[self.value_range(index)]
    }

    /// The same without a copy, to be kept.
    pub(super) fn value_bytes(&self, index: u16) -> Bytes {
        self.bytes.slice(self.value_range(index))
    }

    /// Of a leaf: whether the value is a bucket.
    pub(super) fn is_bucket(&self, index: u16) -> bool {
        self.flags(index) == IS_BUCKET
    }

    /// Of a branch.
    pub(super) fn child(&self, index: u16) -> u64 {
        number::<8>(&self.bytes, Self::element(index) + 8)
    }

    fn flags(&self, index: u16) -> u32 {
        match self.kind {
            Kind::Branch => 0,
            Kind::Leaf => number::<4>(&self.bytes, Self::element(index)) as u32,
        }
    }

    fn value_range(&self, index: u16) -> std::ops::Range<usize> {
        let (start, key, value) = self.extent(index);
        start + key..start + key + value
    }

    /// Where its key begins, and the lengths of key and value. Four numbers of 32 bits, so that sums don't overflow.
    fn extent(&self, index: u16) -> (usize, usize, usize) {
        let at = Self::element(index);
        let field = |offset: usize| number::<4>(&self.bytes, at + offset) as usize;
        match self.kind {
            Kind::Branch => (at + field(0), field(4), 0),
            Kind::Leaf => (at + field(4), field(8), field(12)),
        }
    }

    fn element(index: u16) -> usize {
        HEADER + usize::from(index) * ELEMENT
    }
}

/// A number of N ≤ 8 bytes, little-endian, at a place that was checked to be there.
pub(super) fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut all = [0; 8];
    all[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(all)
}
