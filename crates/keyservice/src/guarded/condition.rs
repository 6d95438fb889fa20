//! How a guarded root key is, for people and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::BreakerState;

/// How it is now, and what was counted.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Whether it is worth waiting for.
    pub breaker: BreakerState,
    /// Since when it is in this state.
    pub since: Instant,
    /// Calls of the daemon itself that are under way.
    pub own_in_flight: u64,
    /// Openings of stored bytes that are under way.
    pub stored_in_flight: u64,
    /// What was counted.
    pub counts: Counts,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts after the first of a call.
    pub retries: u64,
    /// Calls that failed without an attempt: it is out, or asked for time.
    pub fast_failures: u64,
    /// Openings of bytes that did not open a moment ago, and were not tried again.
    pub negative_hits: u64,
    /// Openings that were not tried, because too many bytes did not open.
    pub limited: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) retries: Counter,
    pub(super) fast_failures: Counter,
    pub(super) negative_hits: Counter,
    pub(super) limited: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(super) fn now(&self) -> Counts {
        Counts {
            retries: self.retries.now(),
            fast_failures: self.fast_failures.now(),
            negative_hits: self.negative_hits.now(),
            limited: self.limited.now(),
        }
    }
}
