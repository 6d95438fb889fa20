//! The two meta pages, of which each transaction writes the older one anew.
use super::blocks::Blocks;
use super::{Error, page};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Bytes of the fields, checksum included.
const LEN: usize = 64;
/// Where they end in the page.
pub(super) const END: usize = page::HEADER + LEN;
const CHECKSUM_AT: usize = 56;
const SMALLEST: u32 = 512;
const LARGEST: u32 = 64 << 10;

/// What the newer whole meta page says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Bytes of a page.
    pub page_size: u32,
    /// How many pages are in use or free: the high water mark. The file may be longer.
    pub pages: u64,
    /// The transaction that wrote it.
    pub transaction: u64,
    /// Page of the free list, if one was written. It is not used.
    pub free_list: Option<u64>,
    /// Whether the other meta page is damaged: the program was stopped while it wrote.
    pub other_damaged: bool,
    /// First page of the root's tree.
    pub(super) root: u64,
}

impl Meta {
    pub(super) fn read(blocks: &Blocks) -> Result<Self, Error> {
        let len = blocks.len();
        let least = 2 * u64::from(SMALLEST);
        match len {
            0 => return Err(Error::Empty),
            found if found < least => return Err(Error::TooShort { found, least }),
            _ => {}
        }
        let at = |page: u64, page_size: u32| match page * u64::from(page_size) {
            offset if offset + u64::from(SMALLEST) <= len => {
                blocks.read(offset, u64::from(SMALLEST)).map(|bytes| Self::parse(&bytes, page))
            }
            _ => Ok(Err(Error::NotBolt)),
        };
        let first = at(0, SMALLEST)?;
        // Where the second one is, the first one says; if it is damaged, every size may be it.
        let second = match &first {
            Ok(meta) => at(1, meta.page_size)?,
            Err(_) => {
                let sizes = (SMALLEST.trailing_zeros()..=LARGEST.trailing_zeros()).map(|bits| 1 << bits);
                let mut found = Err(Error::NotBolt);
                for size in sizes {
                    match at(1, size)? {
                        Ok(meta) if meta.page_size == size => found = Ok(meta),
                        Ok(_) => {}
                        // What was recognised says more than what was not.
                        Err(error) if matches!(found, Err(Error::NotBolt)) => found = Err(error),
                        Err(_) => {}
                    }
                }
                found
            }
        };
        let meta = match (first, second) {
            (Ok(first), Ok(second)) if first.page_size == second.page_size => {
                if second.transaction > first.transaction { second } else { first }
            }
            (Ok(meta), _) | (Err(_), Ok(meta)) => Self { other_damaged: true, ..meta },
            (Err(Error::NotBolt), Err(error)) | (Err(error), Err(_)) => return Err(error),
        };
        meta.check(len)
    }

    fn check(self, len: u64) -> Result<Self, Error> {
        let (root, pages) = (self.root, self.pages);
        if root < 2 || root >= pages {
            return Err(Error::MetaRange { root, pages });
        }
        let needed = pages.saturating_mul(u64::from(self.page_size));
        if needed > len {
            return Err(Error::Truncated { found: len, needed, pages });
        }
        Ok(self)
    }

    /// A meta page, without what only the file tells.
    fn parse(bytes: &[u8], number: u64) -> Result<Self, Error> {
        let header = page::Header::of(bytes);
        let fields = &bytes[page::HEADER..page::HEADER + LEN];
        let magic = u32_at(fields, 0);
        if magic == MAGIC.swap_bytes() {
            return Err(Error::ByteOrder);
        }
        if magic != MAGIC {
            return Err(Error::NotBolt);
        }
        let version = u32_at(fields, 4);
        if version != VERSION {
            return Err(Error::Version { found: version });
        }
        if fnv_64a(&fields[..CHECKSUM_AT]) != u64_at(fields, CHECKSUM_AT)
            || header.flags != page::META
            || header.id != number
        {
            return Err(Error::MetaChecksum);
        }
        let page_size = u32_at(fields, 8);
        if !page_size.is_power_of_two() || !(SMALLEST..=LARGEST).contains(&page_size) {
            return Err(Error::PageSize { found: page_size });
        }
        Ok(Self {
            page_size,
            pages: u64_at(fields, 40),
            transaction: u64_at(fields, 48),
            free_list: Some(u64_at(fields, 32)).filter(|page| *page != u64::MAX),
            other_damaged: false,
            root: u64_at(fields, 16),
        })
    }
}

/// FNV-1a of 64 bits: what bbolt has as checksum. It finds torn writes, and no intent.
pub(super) fn fnv_64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    page::number::<4>(bytes, at) as u32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    page::number::<8>(bytes, at)
}
