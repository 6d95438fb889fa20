//! How much is asked for, and how fast.
use std::time::Duration;

/// Bytes that each request counts for beside what it answers: etcd's work for it.
const REQUEST: u64 = 4 << 10;
/// The most keys of a page.
const MAX_LIMIT: u64 = 20_000;
/// Keys of the first page, when nothing is known of their size.
const FIRST_LIMIT: u64 = 100;

/// Page sizes and pauses.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u64>,
    target: u64,
    limit: u64,
}

impl Pace {
    /// At most `rate` bytes a second. With one, pages are small: a request of somebody else waits for one at most.
    pub(super) fn new(rate: Option<u64>) -> Self {
        let target = if rate.is_some() { 32 << 10 } else { 1 << 20 };
        Self { rate, target, limit: FIRST_LIMIT }
    }

    /// How many keys to ask for.
    pub(super) fn limit(&self) -> i64 {
        self.limit as i64
    }

    /// A page of `keys` in `bytes` came after `took`: how long to wait before the next.
    pub(super) fn after(&mut self, keys: u64, bytes: u64, took: Duration) -> Duration {
        if let Some(fitting) = (self.target * keys).checked_div(bytes) {
            // Sizes differ from one resource to the next: growing is slow, shrinking is not.
            self.limit = fitting.clamp(1, (self.limit * 2).min(MAX_LIMIT));
        }
        self.pause(bytes, took)
    }

    /// How long to wait after a request that `took` so long for `bytes`.
    pub(super) fn pause(&self, bytes: u64, took: Duration) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        Duration::from_secs_f64((bytes + REQUEST) as f64 / rate.max(1) as f64).saturating_sub(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_to_the_size_that_they_should_have() {
        let mut pace = Pace::new(None);
        for _ in 0..12 {
            let keys = pace.limit() as u64;
            pace.after(keys, keys * 1024, Duration::ZERO);
        }
        assert_eq!(pace.limit(), 1024);
        // Then values of a megabyte.
        pace.after(1024, 1024 << 20, Duration::ZERO);
        assert_eq!(pace.limit(), 1);
        // An empty page teaches nothing.
        pace.after(0, 0, Duration::ZERO);
        assert_eq!(pace.limit(), 1);
    }

    #[test]
    fn pauses_keep_the_rate_and_count_what_a_request_took() {
        let mut pace = Pace::new(Some(1 << 20));
        let pause = pace.after(100, (1 << 20) - REQUEST, Duration::from_millis(400));
        assert_eq!(pause, Duration::from_millis(600));
        assert_eq!(pace.pause(0, Duration::from_secs(1)), Duration::ZERO);
        assert!(pace.pause(0, Duration::ZERO) > Duration::ZERO);
        assert_eq!(Pace::new(None).pause(1 << 30, Duration::ZERO), Duration::ZERO);
    }
}
