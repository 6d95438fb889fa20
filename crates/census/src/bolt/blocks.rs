//! Bytes of the file, in aligned blocks, of which those that were used last are kept.
//!
//! A page of 4 KiB is seldom alone: bbolt puts what one transaction writes side by side. Reading 64 KiB at once makes a
//! walk over a cold disk sequential where the file is.
use std::{
    fmt,
    fs::File,
    io,
    num::NonZeroUsize,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;
use prost::bytes::{Bytes, BytesMut};

use super::Error;

/// A multiple of every page size.
const BLOCK: u64 = 64 << 10;

/// Where the bytes come from.
pub trait Source: Send + Sync {
    /// Reads some bytes from `offset` on into `buffer`, as pread(2) does: 0 is the end.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl Source for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|start| self.get(start..)).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

pub(super) struct Blocks {
    source: Arc<dyn Source>,
    len: u64,
    kept: Mutex<LruCache<u64, Bytes>>,
}

impl Blocks {
    pub(super) fn new(source: Arc<dyn Source>, len: u64, cache_bytes: usize) -> Self {
        let blocks = cache_bytes / BLOCK as usize;
        let kept = LruCache::new(NonZeroUsize::new(blocks).unwrap_or(NonZeroUsize::MIN));
        Self { source, len, kept: Mutex::new(kept) }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// `length` bytes from `offset`, both within the file.
    pub(super) fn read(&self, offset: u64, length: u64) -> Result<Bytes, Error> {
        let (first, within) = (offset / BLOCK, offset % BLOCK);
        if within + length <= BLOCK {
            let block = self.block(first)?;
            let (start, end) = (within as usize, (within + length) as usize);
            if end > block.len() {
                return Err(Error::Shrunk { offset: first * BLOCK + block.len() as u64 });
            }
            return Ok(block.slice(start..end));
        }
        // Long values are read once: they would only push out what is used again.
        let mut bytes = BytesMut::zeroed(length as usize);
        read_exact(&*self.source, &mut bytes, offset)?;
        Ok(bytes.freeze())
    }

    fn block(&self, number: u64) -> Result<Bytes, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = kept.get(&number) {
            return Ok(block.clone());
        }
        let offset = number * BLOCK;
        let mut bytes = BytesMut::zeroed(BLOCK.min(self.len.saturating_sub(offset)) as usize);
        read_exact(&*self.source, &mut bytes, offset)?;
        let block = bytes.freeze();
        kept.put(number, block.clone());
        Ok(block)
    }
}

/// Fills `buffer`; a file that ends before it got shorter since it was opened.
pub(crate) fn read_exact(source: &dyn Source, mut buffer: &mut [u8], mut offset: u64) -> Result<(), Error> {
    while !buffer.is_empty() {
        match source.read_at(buffer, offset) {
            Ok(0) => return Err(Error::Shrunk { offset }),
            Ok(length) => {
                buffer = &mut buffer[length..];
                offset += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Io { offset, source }),
        }
    }
    Ok(())
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("len", &self.len).finish_non_exhaustive()
    }
}
