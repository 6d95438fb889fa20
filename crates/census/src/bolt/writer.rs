//! Makes files of bbolt for tests, of pages as small as can be.
use super::meta::fnv_64a;

/// An element to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) is_bucket: bool,
}

impl Element {
    pub(crate) fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: value.into(), is_bucket: false }
    }

    /// A bucket whose tree begins at `root`.
    pub(crate) fn bucket(key: impl Into<Vec<u8>>, root: u64) -> Self {
        let value = [root.to_le_bytes(), [0; 8]].concat();
        Self { is_bucket: true, ..Self::new(key, value) }
    }

    /// A bucket that stands in its element.
    pub(crate) fn inline(key: impl Into<Vec<u8>>, elements: &[Element]) -> Self {
        let value = [&[0; 16][..], &page(0, LEAF, elements)].concat();
        Self { is_bucket: true, ..Self::new(key, value) }
    }
}

/// A file in the making.
pub(crate) struct Writer {
    page_size: usize,
    pages: Vec<u8>,
}

pub(crate) const BRANCH: u16 = 1;
pub(crate) const LEAF: u16 = 2;

impl Writer {
    pub(crate) fn new(page_size: usize) -> Self {
        Self { page_size, pages: vec![0; 2 * page_size] }
    }

    /// The number that the next page gets.
    pub(crate) fn next(&self) -> u64 {
        (self.pages.len() / self.page_size) as u64
    }

    /// Puts bytes into pages of their own, and tells the first.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        let number = self.next();
        self.pages.extend_from_slice(bytes);
        self.pages.resize(self.pages.len().next_multiple_of(self.page_size), 0);
        number
    }

    /// One page of these elements.
    pub(crate) fn page(&mut self, flags: u16, elements: &[Element]) -> u64 {
        let id = self.next();
        let mut bytes = page(id, flags, elements);
        let overflow = bytes.len().div_ceil(self.page_size) as u32 - 1;
        bytes[12..16].copy_from_slice(&overflow.to_le_bytes());
        self.put(&bytes)
    }

    /// A branch to these children, by their first keys.
    pub(crate) fn branch(&mut self, children: &[(Vec<u8>, u64)]) -> u64 {
        let elements: Vec<Element> =
            children.iter().map(|(key, id)| Element::new(key.clone(), id.to_le_bytes())).collect();
        self.page(BRANCH, &elements)
    }

    /// A tree of sorted elements, and the page that it begins at.
    pub(crate) fn tree(&mut self, elements: &[Element]) -> u64 {
        let mut level = Vec::new();
        for part in parts(elements, |element| 16 + element.key.len() + element.value.len(), self.page_size) {
            level.push((part[0].key.clone(), self.page(LEAF, part)));
        }
        while level.len() > 1 {
            let mut above = Vec::new();
            for part in parts(&level, |(key, _)| 16 + key.len(), self.page_size) {
                above.push((part[0].0.clone(), self.branch(part)));
            }
            level = above;
        }
        level.pop().map_or_else(|| self.page(LEAF, &[]), |(_, root)| root)
    }

    /// The whole file, with two meta pages as a snapshot has them.
    pub(crate) fn finish(mut self, root: u64) -> Vec<u8> {
        let pages = self.next();
        for (id, transaction) in [(0, 8), (1, 7)] {
            let meta = meta(id, self.page_size as u32, root, pages, transaction);
            let at = id as usize * self.page_size;
            self.pages[at..at + meta.len()].copy_from_slice(&meta);
        }
        self.pages
    }
}

/// A meta page's bytes.
pub(crate) fn meta(id: u64, page_size: u32, root: u64, pages: u64, transaction: u64) -> Vec<u8> {
    let mut bytes = header(id, 4, 0);
    for number in [0xED0C_DAED_u32, 2, page_size, 0] {
        bytes.extend(number.to_le_bytes());
    }
    for number in [root, 0, u64::MAX, pages, transaction] {
        bytes.extend(number.to_le_bytes());
    }
    seal(&mut bytes);
    bytes
}

/// Puts the right checksum behind a meta page's fields, or over the wrong one.
pub(crate) fn seal(meta: &mut Vec<u8>) {
    meta.truncate(72);
    let sum = fnv_64a(&meta[16..]);
    meta.extend(sum.to_le_bytes());
}

/// Slices that fill a page each; one element at least, and two in a branch, which else would never end.
fn parts<T>(all: &[T], size: impl Fn(&T) -> usize, page_size: usize) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let mut rest = all;
    while !rest.is_empty() {
        let mut bytes = 16;
        let fits = rest.iter().take_while(|one| {
            bytes += size(one);
            bytes <= page_size
        });
        let (part, after) = rest.split_at(fits.count().max(2).min(rest.len()));
        parts.push(part);
        rest = after;
    }
    parts
}

fn header(id: u64, flags: u16, count: u16) -> Vec<u8> {
    [&id.to_le_bytes()[..], &flags.to_le_bytes(), &count.to_le_bytes(), &[0; 4]].concat()
}

fn page(id: u64, flags: u16, elements: &[Element]) -> Vec<u8> {
    let mut bytes = header(id, flags, elements.len() as u16);
    let mut end = 16 * elements.len();
    for (index, Element { key, value, is_bucket }) in elements.iter().enumerate() {
        let place = (end - 16 * index) as u32;
        if flags == BRANCH {
            bytes.extend(place.to_le_bytes());
            bytes.extend((key.len() as u32).to_le_bytes());
            bytes.extend(value);
            end += key.len();
        } else {
            for number in [u32::from(*is_bucket), place, key.len() as u32, value.len() as u32] {
                bytes.extend(number.to_le_bytes());
            }
            end += key.len() + value.len();
        }
    }
    for Element { key, value, .. } in elements {
        bytes.extend(key);
        if flags != BRANCH {
            bytes.extend(value);
        }
    }
    bytes
}
