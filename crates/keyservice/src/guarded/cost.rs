//! Which of several root keys to ask first.

use std::time::Duration;

use tokio::time::Instant;

use super::BreakerState;
use crate::Pace;

/// What was measured so long ago says nothing any more: the key is tried again, like one that never was.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// How much of the average the last one is.
const WEIGHT: u32 = 4;

/// What it costs to open a wrap: the lowest is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    breaker: BreakerState,
    remote: bool,
    /// Doublings of a millisecond: equals shall stay equals, whatever the noise.
    latency: u32,
}

/// A moving average of how long openings take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latency(Option<(Duration, Instant)>);

impl Cost {
    pub(super) fn new(breaker: BreakerState, pace: Pace, latency: Duration) -> Self {
        let millis = u32::try_from(latency.as_millis()).unwrap_or(u32::MAX);
        Self { breaker, remote: pace == Pace::Remote, latency: u32::BITS - millis.leading_zeros() }
    }
}

impl Latency {
    /// Nothing, if it was not measured lately.
    pub(super) fn average(&self, now: Instant) -> Duration {
        match self.0 {
            Some((average, at)) if now.saturating_duration_since(at) < FORGOTTEN_AFTER => average,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn took(&mut self, latency: Duration, now: Instant) {
        let average = match self.average(now) {
            Duration::ZERO => latency,
            average => (average * (WEIGHT - 1) + latency) / WEIGHT,
        };
        self.0 = Some((average, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order() {
        let ms = Duration::from_millis;
        let ascending = [
            Cost::new(BreakerState::Closed, Pace::Local, ms(2000)),
            Cost::new(BreakerState::Closed, Pace::Remote, ms(0)),
            Cost::new(BreakerState::Closed, Pace::Remote, ms(5)),
            Cost::new(BreakerState::Closed, Pace::Remote, ms(40)),
            Cost::new(BreakerState::HalfOpen, Pace::Local, ms(0)),
            Cost::new(BreakerState::HalfOpen, Pace::Remote, ms(0)),
            Cost::new(BreakerState::Open, Pace::Local, ms(0)),
            Cost::new(BreakerState::Open, Pace::Remote, Duration::MAX),
        ];
        assert!(ascending.is_sorted_by(|one, next| one < next), "{ascending:?}");
        let alike = |latency| Cost::new(BreakerState::Closed, Pace::Remote, latency);
        assert_eq!(alike(ms(32)), alike(ms(60)), "noise");
        assert_eq!(alike(ms(0)), alike(Duration::from_micros(900)), "noise");
    }

    #[test]
    fn an_average_follows_and_is_forgotten() {
        let start = Instant::now();
        let mut latency = Latency::default();
        assert_eq!(latency.average(start), Duration::ZERO);
        latency.took(Duration::from_millis(100), start);
        assert_eq!(latency.average(start), Duration::from_millis(100));
        latency.took(Duration::from_millis(500), start);
        assert_eq!(latency.average(start), Duration::from_millis(200));
        for _ in 0..30 {
            latency.took(Duration::from_millis(500), start);
        }
        assert!(latency.average(start) > Duration::from_millis(490));
        assert_eq!(latency.average(start + FORGOTTEN_AFTER), Duration::ZERO);
    }
}
