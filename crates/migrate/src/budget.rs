//! How many objects the next page may have. Pure.
//!
//! A page costs three times: what is sent, the time of the list, and the memory of the API server, which reads whole
//! objects to send their metadata. Only the first two are seen from outside, and large objects take long to read, so both
//! bound it: a page that was small and quick lets the next one have twice as many, and what an object cost so far says how
//! many fit at most.
use std::time::Duration;

/// How many objects the next page may have.
#[derive(Clone, Debug)]
pub struct PageBudget {
    bytes: u64,
    most: u64,
    limit: u64,
    /// The dearest of the last pages, in bytes an object.
    dearest: u64,
}

/// With how many it begins: of objects of the largest size these are not too much for a server either.
const FIRST: u64 = 50;
/// What a list should take at most.
const QUICK: Duration = Duration::from_millis(500);

impl PageBudget {
    /// Pages of about `bytes` bytes and `most` objects at most, 1 at least.
    pub fn new(bytes: u64, most: u64) -> Self {
        let most = most.max(1);
        Self { bytes: bytes.max(1), most, limit: FIRST.min(most), dearest: 1 }
    }

    /// How many objects to ask for.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Learns from a page of `objects` objects in `bytes` bytes, which took so long.
    pub fn learn(&mut self, objects: u64, bytes: u64, took: Duration) {
        if objects == 0 {
            return;
        }
        // What was dear is forgotten slowly: large objects stand beside each other.
        self.dearest = (bytes / objects).max(self.dearest - self.dearest / 4).max(1);
        let fits = self.bytes / self.dearest;
        let quick = match took {
            took if took > QUICK => objects / 2,
            took if took > QUICK / 2 => objects,
            _ => objects.max(self.limit).saturating_mul(2),
        };
        self.limit = fits.min(quick).clamp(1, self.most);
    }

    /// Halves it: the page did not come, or could not be read. `false` if it has one object already.
    pub fn shrink(&mut self) -> bool {
        let shrinks = self.limit > 1;
        self.limit = (self.limit / 2).max(1);
        shrinks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT_ONCE: Duration = Duration::from_millis(1);
    const MIB: u64 = 1 << 20;

    #[test]
    fn small_objects_come_in_large_pages() {
        let mut budget = PageBudget::new(4 * MIB, 500);
        assert_eq!(budget.limit(), FIRST);
        for _ in 0..5 {
            let objects = budget.limit();
            budget.learn(objects, objects * 1000, AT_ONCE);
        }
        assert_eq!(budget.limit(), 500);
    }

    #[test]
    fn one_large_object_makes_pages_small_and_is_forgotten_slowly() {
        let mut budget = PageBudget::new(4 * MIB, 500);
        for _ in 0..5 {
            let objects = budget.limit();
            budget.learn(objects, objects * 1000, AT_ONCE);
        }
        // Of 1.4 MB each.
        budget.learn(3, 3 * 1_468_006, AT_ONCE);
        assert_eq!(budget.limit(), 2);
        let mut pages = 0;
        while budget.limit() < 500 {
            let objects = budget.limit();
            budget.learn(objects, objects * 1000, AT_ONCE);
            pages += 1;
            assert!(pages < 60);
        }
        assert!(pages > 8, "forgotten after {pages} pages");
    }

    #[test]
    fn slow_lists_become_smaller() {
        let mut budget = PageBudget::new(4 * MIB, 500);
        budget.learn(50, 50_000, 2 * QUICK);
        assert_eq!(budget.limit(), 25);
        budget.learn(25, 25_000, QUICK);
        assert_eq!(budget.limit(), 25);
        while budget.shrink() {}
        assert_eq!(budget.limit(), 1);
        // An empty page says nothing.
        budget.learn(0, 200, AT_ONCE);
        assert_eq!(budget.limit(), 1);
    }

    proptest! {
        #[test]
        fn what_was_seen_twice_fits(size in 1_u64..10 * MIB, most in 1_u64..2000) {
            let mut budget = PageBudget::new(4 * MIB, most);
            for _ in 0..20 {
                let objects = budget.limit();
                budget.learn(objects, objects * size, AT_ONCE);
                prop_assert!(budget.limit() == 1 || budget.limit() * size <= 4 * MIB);
                prop_assert!((1..=most).contains(&budget.limit()));
            }
        }
    }
}
