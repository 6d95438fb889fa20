//! How often wraps that do not open may cost a session or a process.
//!
//! Where a token has one code for a damaged wrap and for its own illness, and its key has no wrap of its own to try, a new
//! session and then a new process find out. Wraps come from etcd: whoever writes there could else have a host replaced
//! with each of them, and slow all reads.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// As many at once.
pub(super) const AT_ONCE: u32 = 4;

/// After so long there is one more.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Leeway(Mutex<(u32, Instant)>);

impl Default for Leeway {
    fn default() -> Self {
        Self(Mutex::new((AT_ONCE, Instant::now())))
    }
}

impl Leeway {
    /// Whether there is one; it is taken.
    pub(super) fn take(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = &mut *state;
        while *left < AT_ONCE && since.elapsed() >= EVERY {
            (*left, *since) = (*left + 1, *since + EVERY);
        }
        if *left == AT_ONCE {
            *since = Instant::now();
        }
        let is_there = *left > 0;
        *left = left.saturating_sub(1);
        is_there
    }

    /// One that was taken was not needed.
    pub(super) fn give_back(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = (state.0 + 1).min(AT_ONCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(leeway: &Leeway) -> usize {
        (0..100).filter(|_| leeway.take()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_a_few_at_once_and_one_more_each_minute() {
        let leeway = Leeway::default();
        assert_eq!(taken(&leeway), 4);
        tokio::time::advance(EVERY - Duration::from_millis(1)).await;
        assert_eq!(taken(&leeway), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(taken(&leeway), 1);
        tokio::time::advance(EVERY * 2).await;
        assert_eq!(taken(&leeway), 2);
        tokio::time::advance(EVERY * 1000).await;
        assert_eq!(taken(&leeway), 4, "they are not saved up");
        leeway.give_back();
        assert_eq!(taken(&leeway), 1);
        for _ in 0..9 {
            leeway.give_back();
        }
        assert_eq!(taken(&leeway), 4);
    }
}
