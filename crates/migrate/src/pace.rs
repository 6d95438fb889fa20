//! How many requests are in flight. Pure: time and what came of requests are values.
//!
//! An API server that is given more than it can do at once lets requests wait, its other clients' too. How many of ours
//! wait is told by how much longer they take than at the best of times: of `width` requests in flight,
//! `width × (1 − best / now)` wait. The width grows by one a round while few of them wait and shrinks while many do, so
//! that it settles where the server is busy and others find it quick. What the best of times is changes with what others
//! do: now and then a few requests go one by one to see. A server that says that it is too busy, or that can't be
//! reached, halves the width at once and is left alone for a while; how much was too much is tried again seldom, and more
//! seldom each time.
use std::time::Duration;

/// Bounds of a [`Pace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most requests in flight, 1 at least.
    pub widest: usize,
    /// Below this many that wait, the width grows.
    pub few: u32,
    /// Above this many that wait, it shrinks.
    pub many: u32,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The server answered after so long. Requests that time out count with the time they took.
    Answered(Duration),
    /// It is too busy (429), and may say for how long.
    Throttled {
        /// Its `Retry-After`.
        after: Option<Duration>,
    },
    /// It can't be reached, or is not ready.
    Unreached,
}

/// How many requests may be in flight, and when the next one may begin.
#[derive(Clone, Debug)]
pub struct Pace {
    limits: Limits,
    width: usize,
    /// Until the first round in which enough wait, the width doubles.
    is_searching: bool,
    /// How long a request takes that waits for no other of ours.
    best: Option<Duration>,
    round: Round,
    rounds: u32,
    /// To which width it returns when a few requests have gone one by one.
    looking: Option<usize>,
    /// More than this was too much.
    ceiling: usize,
    /// After how many rounds at the ceiling one more is tried, and how many there were.
    doubt: u32,
    at_ceiling: u32,
    /// Bad signs since the last answer: each makes the rest longer.
    in_a_row: u32,
    resting_until: Duration,
}

/// Answers since the width changed.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    answers: u32,
    took: Duration,
}

/// With how many it begins, and how many make a round at least.
const FIRST: usize = 4;
/// After so many rounds, a few requests go one by one.
const LOOK_EVERY: u32 = 100;
/// The first [`Pace::doubt`], and the longest.
const DOUBTS: [u32; 2] = [8, 1024];
/// The first rest, if the server says nothing.
const SHORTEST_REST: Duration = Duration::from_millis(100);
/// The longest rest, whatever it says: a proxy in between may say anything.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// Its own guesses don't become longer than this.
const LONGEST_GUESS: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Self { widest: 32, few: 4, many: 10 }
    }
}

impl Pace {
    /// One that has seen nothing.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { widest: limits.widest.max(1), ..limits };
        Self {
            limits,
            width: 1,
            is_searching: true,
            best: None,
            round: Round::default(),
            rounds: 0,
            looking: Some(FIRST),
            ceiling: limits.widest,
            doubt: DOUBTS[0],
            at_ceiling: 0,
            in_a_row: 0,
            resting_until: Duration::ZERO,
        }
    }

    /// How many requests may be in flight.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How long no request should begin. `now` is the time since the migration began.
    pub fn rest(&self, now: Duration) -> Duration {
        self.resting_until.saturating_sub(now)
    }

    /// Learns from what came of one request.
    pub fn observe(&mut self, now: Duration, sign: Sign) {
        let wanted = match sign {
            Sign::Answered(took) => return self.answered(took),
            Sign::Throttled { after } => after,
            Sign::Unreached => None,
        };
        // Requests that were in flight together get the same answer: they are one sign.
        if now < self.resting_until {
            self.resting_until = self.resting_until.max(now + wanted.unwrap_or_default().min(LONGEST_REST));
            return;
        }
        let guess = SHORTEST_REST.saturating_mul(1 << self.in_a_row.min(16)).min(LONGEST_GUESS);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.resting_until = now + wanted.map_or(guess, |wanted| wanted.max(guess)).min(LONGEST_REST);
        let width = self.looking.take().unwrap_or(self.width);
        if let Sign::Throttled { .. } = sign {
            self.ceiling = (width - 1).max(1);
            self.doubt = (self.doubt * 2).min(DOUBTS[1]);
            self.at_ceiling = 0;
        }
        self.set_width(width / 2);
        self.is_searching = false;
    }

    fn answered(&mut self, took: Duration) {
        self.in_a_row = 0;
        self.round.answers += 1;
        self.round.took += took;
        if (self.round.answers as usize) < self.width.max(FIRST) {
            return;
        }
        let mean = (self.round.took / self.round.answers).max(Duration::from_micros(1));
        self.rounds += 1;
        if let Some(width) = self.looking.take() {
            self.best = Some(mean);
            return self.set_width(width);
        }
        if self.rounds.is_multiple_of(LOOK_EVERY) {
            self.looking = Some(self.width);
            return self.set_width(1);
        }
        let best = self.best.map_or(mean, |best| best.min(mean));
        self.best = Some(best);
        let waiting = self.width as f64 * (1.0 - best.as_secs_f64() / mean.as_secs_f64());
        if waiting < f64::from(self.limits.few) {
            let wider = if self.is_searching { self.width * 2 } else { self.width + 1 };
            self.set_width(wider);
            if wider > self.ceiling {
                self.at_ceiling += 1;
                if self.at_ceiling > self.doubt {
                    (self.ceiling, self.at_ceiling) = (self.ceiling + 1, 0);
                }
            }
        } else {
            self.is_searching = false;
            let shrink = if waiting > f64::from(self.limits.many) { (self.width / 8).max(1) } else { 0 };
            self.set_width(self.width - shrink);
        }
    }

    fn set_width(&mut self, width: usize) {
        self.width = width.min(self.ceiling).clamp(1, self.limits.widest);
        self.round = Round::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A server that does `at_once` requests in `each` and lets the others wait: how long one takes with `width` in flight.
    fn server(width: usize, at_once: u32, each: Duration) -> Duration {
        each * (width as u32).max(at_once) / at_once
    }

    fn settle(limits: Limits, at_once: u32, each: Duration) -> (Pace, Vec<usize>) {
        let mut pace = Pace::new(limits);
        let mut widths = Vec::new();
        for _ in 0..20_000 {
            pace.observe(Duration::ZERO, Sign::Answered(server(pace.width(), at_once, each)));
            if pace.looking.is_none() {
                widths.push(pace.width());
            }
        }
        let half = widths.len() / 2;
        (pace, widths.split_off(half))
    }

    #[test]
    fn it_settles_where_the_server_is_busy_and_few_wait() {
        for at_once in [1, 2, 4, 8] {
            let (_, widths) = settle(Limits { widest: 64, ..Limits::default() }, at_once, 5 * MS);
            let (least, most) = (widths.iter().min().unwrap(), widths.iter().max().unwrap());
            assert!(*least >= at_once as usize, "{at_once} at once, and {least} in flight");
            let bound = at_once as usize + Limits::default().many as usize + 4;
            assert!(*most <= bound, "{at_once} at once, and {most} in flight");
        }
    }

    #[test]
    fn a_server_that_never_slows_down_gets_all_that_is_allowed_and_no_more() {
        let (_, widths) = settle(Limits { widest: 24, ..Limits::default() }, 1000, MS);
        assert_eq!((widths.iter().min(), widths.iter().max()), (Some(&24), Some(&24)));
        let mut none = Pace::new(Limits { widest: 0, ..Limits::default() });
        for _ in 0..1000 {
            none.observe(Duration::ZERO, Sign::Answered(MS));
            assert_eq!(none.width(), 1);
        }
    }

    #[test]
    fn a_server_that_becomes_slower_gets_less_and_one_that_recovers_more() {
        let (mut pace, _) = settle(Limits::default(), 16, 2 * MS);
        let before = pace.width();
        // Others have taken most of it.
        let mut during = usize::MAX;
        for _ in 0..20_000 {
            pace.observe(Duration::ZERO, Sign::Answered(server(pace.width(), 2, 10 * MS)));
            during = pace.width();
        }
        assert!(during * 2 <= before, "{before}, then {during}");
        for _ in 0..20_000 {
            pace.observe(Duration::ZERO, Sign::Answered(server(pace.width(), 16, 2 * MS)));
        }
        assert!(pace.width() >= 16, "{}", pace.width());
    }

    #[test]
    fn a_busy_server_is_left_alone_for_as_long_as_it_says() {
        let (mut pace, _) = settle(Limits::default(), 16, MS);
        let before = pace.width();
        let throttled = Sign::Throttled { after: Some(Duration::from_secs(7)) };
        let now = Duration::from_secs(100);
        for _ in 0..before {
            pace.observe(now, throttled);
        }
        // All that were in flight are one sign.
        assert_eq!((pace.width(), pace.rest(now)), (before / 2, Duration::from_secs(7)));
        assert_eq!(pace.rest(now + Duration::from_secs(7)), Duration::ZERO);
        // One that says an hour is asked again sooner.
        let mut pace = Pace::new(Limits::default());
        pace.observe(now, Sign::Throttled { after: Some(Duration::from_secs(3600)) });
        assert_eq!(pace.rest(now), LONGEST_REST);
    }

    #[test]
    fn a_server_with_few_seats_is_told_seldom_that_there_are_more() {
        for seats in [1_usize, 3, 10] {
            let mut pace = Pace::new(Limits::default());
            let (mut now, mut throttled, mut answered, mut rested) =
                (Duration::ZERO, 0, 0_u32, Duration::ZERO);
            while answered < 5000 {
                if pace.width() > seats {
                    throttled += 1;
                    pace.observe(now, Sign::Throttled { after: Some(Duration::from_secs(1)) });
                    rested += pace.rest(now);
                    now += pace.rest(now);
                }
                answered += 1;
                now += MS;
                pace.observe(now, Sign::Answered(5 * MS));
            }
            assert!((1..25).contains(&throttled), "{throttled} times with {seats} seats");
            assert!(rested < Duration::from_secs(40), "{rested:?} with {seats} seats");
            assert!(pace.width() <= seats + 1);
        }
    }

    #[test]
    fn rests_grow_until_there_is_an_answer() {
        let mut pace = Pace::new(Limits::default());
        let (mut now, mut rests) = (Duration::ZERO, Vec::new());
        for _ in 0..10 {
            pace.observe(now, Sign::Unreached);
            rests.push(pace.rest(now));
            now += pace.rest(now);
        }
        assert_eq!((rests[0], rests[1], rests[9]), (SHORTEST_REST, SHORTEST_REST * 2, LONGEST_GUESS));
        assert_eq!(pace.width(), 1);
        pace.observe(now, Sign::Answered(MS));
        pace.observe(now, Sign::Unreached);
        assert_eq!(pace.rest(now), SHORTEST_REST);
    }

    proptest! {
        #[test]
        fn whatever_happens_the_bounds_hold(
            signs in prop::collection::vec((0_u64..10_000, 0_u8..4, 0_u64..100_000), 0..300),
            widest in 1_usize..100,
        ) {
            let mut pace = Pace::new(Limits { widest, ..Limits::default() });
            let mut now = Duration::ZERO;
            for (later, kind, number) in signs {
                now += Duration::from_millis(later);
                let after = Duration::from_millis(number);
                pace.observe(now, match kind {
                    0 | 1 => Sign::Answered(after),
                    2 => Sign::Throttled { after: Some(after) },
                    _ => Sign::Unreached,
                });
                prop_assert!((1..=widest).contains(&pace.width()));
                prop_assert!(pace.rest(now) <= LONGEST_REST);
            }
        }
    }
}
