//! Whether a root key is worth waiting for: a pure state machine, the time comes in.
//!
//! ```text
//!            two silences in a row            an answer
//!   closed ────────────────────────► open ──────────────► half-open
//!     ▲                               ▲                     │   │
//!     │                               └──────a silence──────┘   │
//!     └───────────────────────────an answer─────────────────────┘
//! ```
//!
//! It hears of the daemon's own calls alone. Whoever writes etcd chooses what is asked for a Decrypt: that must neither
//! close nor open anything.

use tokio::time::Instant;

/// Own calls without an answer, each with all its retries, after which a root key is out.
const SILENCES_THAT_OPEN: u32 = 2;

/// What is expected of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerState {
    /// An answer: calls are made, and retried.
    Closed,
    /// It has answered once again since it was out: calls are made, and one silence is enough.
    HalfOpen,
    /// None: what is stored is tried one at a time.
    Open,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// For metrics and `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// The state, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Breaker {
    state: BreakerState,
    since: Instant,
    /// In a row, while it is closed.
    silences: u32,
}

impl Breaker {
    pub(super) fn new(now: Instant) -> Self {
        Self { state: BreakerState::Closed, since: now, silences: 0 }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.state
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// An own call was answered, be it with a no.
    pub(super) fn answered(&mut self, now: Instant) {
        match self.state {
            BreakerState::Closed => self.silences = 0,
            BreakerState::HalfOpen => self.enter(BreakerState::Closed, now),
            BreakerState::Open => self.enter(BreakerState::HalfOpen, now),
        }
    }

    /// An own call was not answered.
    pub(super) fn silent(&mut self, now: Instant) {
        self.silences += 1;
        match self.state {
            BreakerState::Closed if self.silences < SILENCES_THAT_OPEN => {}
            BreakerState::Closed | BreakerState::HalfOpen => self.enter(BreakerState::Open, now),
            BreakerState::Open => self.silences = 0,
        }
    }

    fn enter(&mut self, state: BreakerState, now: Instant) {
        *self = Self { state, since: now, silences: 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::BreakerState::{Closed, HalfOpen, Open};
    use super::*;

    /// After each answer (`+`) and silence (`-`), one a second: the state, and the second since which it is.
    const TABLE: &[(&str, &[(BreakerState, u64)])] = &[
        ("+++", &[(Closed, 0), (Closed, 0), (Closed, 0)]),
        ("-+-+", &[(Closed, 0), (Closed, 0), (Closed, 0), (Closed, 0)]),
        ("--", &[(Closed, 0), (Open, 2)]),
        ("----", &[(Closed, 0), (Open, 2), (Open, 2), (Open, 2)]),
        ("--+", &[(Closed, 0), (Open, 2), (HalfOpen, 3)]),
        ("--++", &[(Closed, 0), (Open, 2), (HalfOpen, 3), (Closed, 4)]),
        ("--+-", &[(Closed, 0), (Open, 2), (HalfOpen, 3), (Open, 4)]),
        ("--++-", &[(Closed, 0), (Open, 2), (HalfOpen, 3), (Closed, 4), (Closed, 4)]),
        ("---++--", &[(Closed, 0), (Open, 2), (Open, 2), (HalfOpen, 4), (Closed, 5), (Closed, 5), (Open, 7)]),
    ];

    #[test]
    fn table() {
        for (events, expected) in TABLE {
            let start = Instant::now();
            let mut breaker = Breaker::new(start);
            for (second, (event, (state, since))) in (1..).zip(events.chars().zip(*expected)) {
                let now = start + Duration::from_secs(second);
                if event == '+' {
                    breaker.answered(now)
                } else {
                    breaker.silent(now)
                }
                let found = (breaker.state(), (breaker.since() - start).as_secs());
                assert_eq!(found, (*state, *since), "{events} at {second}");
            }
        }
    }

    proptest! {
        #[test]
        fn two_alike_decide_and_one_alone_never_opens(events in prop::collection::vec(any::<bool>(), 0..60)) {
            let start = Instant::now();
            let mut breaker = Breaker::new(start);
            let mut before = (Closed, start, true);
            for (second, answered) in (1..).zip(&events) {
                let now = start + Duration::from_secs(second);
                if *answered { breaker.answered(now) } else { breaker.silent(now) }
                let (state, since, last) = before;
                if *answered == last && second > 1 {
                    prop_assert_eq!(breaker.state(), if *answered { Closed } else { Open });
                }
                match (state, *answered) {
                    (Closed, false) if last => prop_assert_eq!(breaker.state(), Closed),
                    (Closed, true) => prop_assert_eq!(breaker.state(), Closed),
                    (Open, false) => prop_assert_eq!(breaker.state(), Open),
                    _ => {}
                }
                // It is "since" the last change, and nothing else.
                prop_assert_eq!(breaker.since(), if breaker.state() == state { since } else { now });
                before = (breaker.state(), breaker.since(), *answered);
            }
        }
    }
}
