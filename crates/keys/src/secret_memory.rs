//! Memory for keys that live long: local KEKs. Away from swap, core files, forks and, where the kernel can, from the
//! kernel itself.
//!
//! * Keys stand 32 bytes apart in pages that are fetched one by one as keys come: thousands take some hundred kilobytes,
//!   an idle process one page. A page stays, for keys to come.
//! * A key that goes is wiped before its place is used again.
//! * No page of the better kinds to be had is no error: keys then stand in ordinary memory, wiped all the same, and
//!   [`usage`] says how many.
//!
//! Keys that are made for one call only stand on the stack: [`with_wiped_stack`] leaves nothing of them there.
//!
//! What gets the pages from the system is in `pages`, the one module of Casemate with `unsafe`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroize;

#[allow(unsafe_code)]
mod pages;
mod stack;

pub use stack::with_wiped_stack;

/// How well a key's memory is kept from others; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Mapped into this process alone: not even the kernel reads it, for `ptrace`, `/proc` or a core file
    /// (`memfd_secret`, Linux 5.14; from 6.5 on it need not be switched on).
    Secret,
    /// Never swapped and in no core file (`mlock`).
    Locked,
    /// As any memory of the process; `RLIMIT_MEMLOCK` lets it lock no more.
    Ordinary,
}

/// How many keys stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Keys in memory of [`Kind::Secret`].
    pub secret: usize,
    /// Keys in memory of [`Kind::Locked`].
    pub locked: usize,
    /// Keys in memory of [`Kind::Ordinary`].
    pub ordinary: usize,
    /// Bytes that were fetched for keys, whether one stands there now or not.
    pub reserved: usize,
}

/// Where the next key will stand.
pub fn kind() -> Kind {
    pool().kind_of_next(pages::map)
}

/// Where the keys of this process stand.
pub fn usage() -> Usage {
    pool().usage
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "secret: neither swapped nor dumped, and hidden from the kernel (memfd_secret)",
            Self::Locked => "locked: neither swapped nor dumped (mlock); this kernel has no memfd_secret",
            Self::Ordinary => "ordinary: it may be swapped, since RLIMIT_MEMLOCK lets no page be locked",
        })
    }
}

const KEY_LEN: usize = 32;
const KINDS: [Kind; 3] = [Kind::Secret, Kind::Locked, Kind::Ordinary];
/// What ordinary memory grows by.
const ORDINARY_PAGE_LEN: usize = 4096;

/// 32 bytes at a place of their own, which does not move; wiped when dropped.
pub(crate) struct KeyBytes {
    kind: Kind,
    bytes: Place,
}

type Place = &'static mut [u8];
type Page = (Kind, Place);

impl KeyBytes {
    /// All zero.
    pub(crate) fn zero() -> Self {
        let (kind, bytes) = pool().take(pages::map);
        Self { kind, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        self.bytes.first_chunk().expect("a place has 32 bytes")
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; KEY_LEN] {
        self.bytes.first_chunk_mut().expect("a place has 32 bytes")
    }
}

impl Clone for KeyBytes {
    fn clone(&self) -> Self {
        let mut copy = Self::zero();
        copy.bytes_mut().copy_from_slice(self.bytes);
        copy
    }
}

impl Drop for KeyBytes {
    fn drop(&mut self) {
        pool().give_back(self.kind, std::mem::take(&mut self.bytes));
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Every state of it is valid, also if a thread panicked with the lock held.
fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Places that are free, all zero, of each kind.
struct Pool {
    free: [Vec<Place>; KINDS.len()],
    usage: Usage,
}

impl Pool {
    const fn new() -> Self {
        let usage = Usage { secret: 0, locked: 0, ordinary: 0, reserved: 0 };
        Self { free: [const { Vec::new() }; KINDS.len()], usage }
    }

    /// A free place, the best that is to be had. `map` gets a page from the system.
    fn take(&mut self, map: impl FnOnce() -> Option<Page>) -> Page {
        let kind = self.kind_of_next(map);
        let place = self.free[kind as usize].pop().expect("a place of this kind is free");
        *self.held(kind) += 1;
        (kind, place)
    }

    /// Wipes a place and takes it back.
    fn give_back(&mut self, kind: Kind, place: Place) {
        place.zeroize();
        *self.held(kind) -= 1;
        self.free[kind as usize].push(place);
    }

    /// Sees to it that a place is free, and says of what kind.
    fn kind_of_next(&mut self, map: impl FnOnce() -> Option<Page>) -> Kind {
        let free = |pool: &Self, kind: Kind| !pool.free[kind as usize].is_empty();
        if let Some(kind) = [Kind::Secret, Kind::Locked].into_iter().find(|kind| free(self, *kind)) {
            return kind;
        }
        match map() {
            Some((kind, page)) => self.add(kind, page),
            None if free(self, Kind::Ordinary) => Kind::Ordinary,
            None => self.add(Kind::Ordinary, Vec::leak(vec![0; ORDINARY_PAGE_LEN])),
        }
    }

    fn add(&mut self, kind: Kind, page: Place) -> Kind {
        self.usage.reserved += page.len();
        // The first place of a page is taken first.
        self.free[kind as usize].extend(page.chunks_exact_mut(KEY_LEN).rev());
        kind
    }

    fn held(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Secret => &mut self.usage.secret,
            Kind::Locked => &mut self.usage.locked,
            Kind::Ordinary => &mut self.usage.ordinary,
        }
    }
}

#[cfg(test)]
mod tests;
