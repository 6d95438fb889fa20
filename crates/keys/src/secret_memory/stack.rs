use std::hint::black_box;

/// Runs `work`, then wipes `DEPTH` bytes of the stack that it ran on: what is moved, and what C code holds on the stack,
/// leaves copies there that nobody else wipes. What `work` gives back should hold secrets behind a pointer only.
pub fn with_wiped_stack<const DEPTH: usize, T>(work: impl FnOnce() -> T) -> T {
    let answer = deeper(work);
    wipe::<DEPTH>();
    answer
}

/// On the stack that [`wipe`] gets too.
#[inline(never)]
fn deeper<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

#[inline(never)]
fn wipe<const DEPTH: usize>() {
    black_box(&mut [0u8; DEPTH]);
}
