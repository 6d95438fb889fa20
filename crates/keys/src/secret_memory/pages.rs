//! Pages from the system that are kept from others. The one module with `unsafe`: it asks for memory, and gives it on
//! as a slice that lives as long as the process. Nothing is ever unmapped, so no slice can outlive its memory.

use std::os::raw::{c_int, c_long};
use std::ptr;

use super::{Kind, Page};

/// One page of zeros, of the best kind that the system gives; `None` if it gives none that is locked.
pub(super) fn map() -> Option<Page> {
    let len = page_len()?;
    secret(len).map(|page| (Kind::Secret, page)).or_else(|| locked(len).map(|page| (Kind::Locked, page)))
}

fn page_len() -> Option<usize> {
    // SAFETY: `sysconf` takes a number and touches no memory of ours.
    let len: c_long = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(len).ok().filter(|len| *len > 0)
}

/// A page of a file that exists in this mapping only. The kernel locks it and leaves it out of core files by itself.
fn secret(len: usize) -> Option<&'static mut [u8]> {
    let size = libc::off_t::try_from(len).ok()?;
    // SAFETY: `memfd_secret` takes flags and gives a new descriptor, which is ours alone.
    let file = unsafe { libc::syscall(libc::SYS_memfd_secret, c_long::from(libc::O_CLOEXEC)) };
    let file = c_int::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: `file` is the open descriptor from above, which nothing else knows of.
    let sized = unsafe { libc::ftruncate(file, size) } == 0;
    let page = if sized { new_mapping(len, libc::MAP_SHARED, file) } else { None };
    // The mapping lives on, and nobody can get the page by the descriptor any more.
    // SAFETY: `file` is still open, was handed to nobody, and is not used after this.
    unsafe { libc::close(file) };
    keep(page?, len)
}

fn locked(len: usize) -> Option<&'static mut [u8]> {
    let page = new_mapping(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
    // SAFETY: `page` is a mapping of `len` bytes; locking or advising changes no byte of it.
    let locked = unsafe { libc::mlock(page, len) == 0 && libc::madvise(page, len, libc::MADV_DONTDUMP) == 0 };
    if locked { keep(page, len) } else { give_up(page, len) }
}

/// `len` bytes at an address of the kernel's choice, which is in use for nothing else.
fn new_mapping(len: usize, flags: c_int, file: c_int) -> Option<*mut libc::c_void> {
    // SAFETY: without MAP_FIXED a new mapping replaces none that exists; `len` is not zero.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
    (page != libc::MAP_FAILED && !page.is_null()).then_some(page)
}

/// The page as a slice. A child process gets none of it: one that used a key would end, not seal under zeros.
fn keep(page: *mut libc::c_void, len: usize) -> Option<&'static mut [u8]> {
    // SAFETY: `page` is a mapping of `len` bytes; the advice changes no byte of it.
    if unsafe { libc::madvise(page, len, libc::MADV_DONTFORK) } != 0 {
        return give_up(page, len);
    }
    // SAFETY: the mapping has `len` readable, writable bytes, all zero, which are valid for `u8` and aligned. It was made
    // by our caller, who knows no other pointer to it and keeps none: this is the only reference. It is never unmapped.
    Some(unsafe { std::slice::from_raw_parts_mut(page.cast(), len) })
}

fn give_up(page: *mut libc::c_void, len: usize) -> Option<&'static mut [u8]> {
    // SAFETY: `page` is a mapping of `len` bytes to which no reference was made.
    unsafe { libc::munmap(page, len) };
    None
}
