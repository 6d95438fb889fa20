//! How far it is, how fast, and how long it will take. Pure: time is a value.
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

/// How far a migration is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    resources: BTreeMap<String, Counts>,
    /// When how many were done in this run, the newest last.
    marks: VecDeque<(Duration, u64)>,
    /// Done in this run.
    done: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    done: u64,
    total: Option<u64>,
}

/// One look at it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Look {
    /// Objects that were dealt with.
    pub done: u64,
    /// Objects that there are, as far as is known; what is made meanwhile needs no migration.
    pub total: u64,
    /// Objects a second, of late.
    pub rate: f64,
    /// Seconds that are left at that rate; absent while it is not known.
    pub seconds_left: Option<u64>,
}

/// Over how long the rate is taken.
const WINDOW: Duration = Duration::from_secs(20);
/// How far marks are apart.
const STEP: Duration = Duration::from_millis(250);

impl Progress {
    /// There are so many objects of `resource`, `done` of them dealt with before this run.
    pub fn expect(&mut self, resource: &str, done: u64, total: Option<u64>) {
        let counts = self.resources.entry(resource.to_owned()).or_default();
        counts.done = counts.done.max(done);
        counts.total = total.or(counts.total);
    }

    /// So many more of `resource` were dealt with, at `now` since the run began.
    pub fn add(&mut self, resource: &str, objects: u64, now: Duration) {
        self.resources.entry(resource.to_owned()).or_default().done += objects;
        self.done += objects;
        match self.marks.back_mut() {
            Some((_, done)) if *done == self.done => {}
            Some((at, _)) if now.saturating_sub(*at) < STEP => {}
            _ => self.marks.push_back((now, self.done)),
        }
        while self.marks.len() > 2
            && self.marks.front().is_some_and(|(at, _)| now.saturating_sub(*at) > WINDOW)
        {
            self.marks.pop_front();
        }
    }

    /// How far it is at `now`.
    pub fn look(&self, now: Duration) -> Look {
        let done = self.resources.values().map(|counts| counts.done).sum();
        let total =
            self.resources.values().map(|counts| counts.total.unwrap_or(0).max(counts.done)).sum::<u64>();
        let is_known = self.resources.values().all(|counts| counts.total.is_some());
        let (since, before) = match self.marks.front() {
            Some((at, done)) if now.saturating_sub(*at) >= STEP => (*at, *done),
            _ => (Duration::ZERO, 0),
        };
        let seconds = now.saturating_sub(since).as_secs_f64();
        let rate = if seconds > 0.0 { (self.done - before) as f64 / seconds } else { 0.0 };
        let left = total.saturating_sub(done);
        let seconds_left = match left {
            _ if !is_known => None,
            0 => Some(0),
            left => (rate > 0.0).then(|| (left as f64 / rate).ceil() as u64),
        };
        Look { done, total, rate, seconds_left }
    }

    /// Done and total by resource.
    pub fn resources(&self) -> impl Iterator<Item = (&str, u64, Option<u64>)> {
        self.resources.iter().map(|(name, counts)| (name.as_str(), counts.done, counts.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rate_and_time_left_are_of_late() {
        let mut progress = Progress::default();
        progress.expect("secrets", 500, Some(10_500));
        let mut now = Duration::ZERO;
        // 100 a second for a minute, then 10.
        for _ in 0..600 {
            now += SECOND / 10;
            progress.add("secrets", 10, now);
        }
        let look = progress.look(now);
        assert_eq!((look.done, look.total), (6500, 10_500));
        assert!((look.rate - 100.0).abs() < 5.0, "{look:?}");
        assert!(look.seconds_left.is_some_and(|left| (38..=42).contains(&left)), "{look:?}");
        for _ in 0..300 {
            now += SECOND / 10;
            progress.add("secrets", 1, now);
        }
        let look = progress.look(now);
        assert!((look.rate - 10.0).abs() < 1.0, "{look:?}");
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let mut progress = Progress::default();
        progress.expect("secrets", 0, Some(10));
        progress.expect("configmaps", 0, None);
        assert_eq!(progress.look(SECOND).seconds_left, None);
        progress.expect("configmaps", 0, Some(10));
        // Nothing was done yet: no rate, no end.
        let look = progress.look(SECOND);
        assert_eq!((look.total, look.rate, look.seconds_left), (20, 0.0, None));
        progress.add("secrets", 15, SECOND);
        progress.add("configmaps", 10, SECOND);
        // More were there than was said.
        let look = progress.look(2 * SECOND);
        assert_eq!((look.done, look.total, look.seconds_left), (25, 25, Some(0)));
        assert_eq!(
            progress.resources().collect::<Vec<_>>(),
            [("configmaps", 10, Some(10)), ("secrets", 15, Some(10))]
        );
    }

    #[test]
    fn time_that_stands_still_makes_no_rate() {
        let mut progress = Progress::default();
        progress.add("a", 5, Duration::ZERO);
        assert_eq!(progress.look(Duration::ZERO).rate, 0.0);
    }
}
