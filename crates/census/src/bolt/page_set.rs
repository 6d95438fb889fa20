//! Which pages a walk has visited.
use std::collections::HashMap;

/// A set of page numbers; a bit for each in dense parts, and never more than what was put in asks for.
#[derive(Default)]
pub(super) struct PageSet {
    words: HashMap<u64, u64>,
    len: u64,
}

impl PageSet {
    /// Whether `page` was new.
    pub(super) fn insert(&mut self, page: u64) -> bool {
        let word = self.words.entry(page / 64).or_default();
        let bit = 1 << (page % 64);
        let new = *word & bit == 0;
        *word |= bit;
        self.len += u64::from(new);
        new
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        self.words.get(&(page / 64)).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    /// How many are in it.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}
