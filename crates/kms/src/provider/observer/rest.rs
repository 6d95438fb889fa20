//! How long an observer rests between two looks at its root keys.
//!
//! Files are looked at every ten seconds. A key service is shared, and somebody pays for each call: a look at it is one
//! call to see which version writes, one to wrap and one to open, and [`PROBE_EVERY`] keeps that below 60 an hour.

use std::time::Duration;

use crate::provider::kek::Opening;

/// How often root keys in files are looked at. Two sightings and a local KEK: all nodes agree within 60 s of the delivery
/// of an activated key file.
pub const OBSERVE_EVERY: Duration = Duration::from_secs(10);
/// How often root keys in key services are looked at while all is well: two looks take less than seven minutes.
pub const PROBE_EVERY: Duration = Duration::from_secs(200);
/// How soon a look follows another one, whoever asks for it.
pub const AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// How soon what was seen once is looked at again.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);
/// The first rest in trouble; each is twice the one before, up to [`LONGEST_IN_TROUBLE`].
const FIRST_IN_TROUBLE: Duration = Duration::from_secs(10);
const LONGEST_IN_TROUBLE: Duration = Duration::from_secs(60);

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nobody pays for it.
    Local,
    /// A key service says something new.
    News,
    /// It wraps and opens as it should, and something else of it is not as it should be.
    Oddity,
    /// A key service, or what it says, is not as it should be.
    Trouble,
    /// All is well.
    Well,
}

/// How long to rest next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    in_trouble: u32,
}

impl Rest {
    /// After a look with this outcome; `chance` between 0 and 1 keeps the nodes of a cluster from asking all at once.
    pub(super) fn after(&mut self, outcome: Outcome, chance: f64) -> Duration {
        let doublings = std::mem::take(&mut self.in_trouble);
        let (rest, spread) = match outcome {
            Outcome::Local => (OBSERVE_EVERY, 0.0),
            Outcome::News => (CONFIRM_AFTER, 0.2),
            Outcome::Well => (PROBE_EVERY, 0.05),
            Outcome::Trouble | Outcome::Oddity => {
                self.in_trouble = doublings.saturating_add(1);
                let longer = FIRST_IN_TROUBLE.saturating_mul(1 << doublings.min(8));
                let longest = if outcome == Outcome::Trouble { LONGEST_IN_TROUBLE } else { PROBE_EVERY };
                (longer.min(longest), 0.2)
            }
        };
        rest.mul_f64(1.0 - spread / 2.0 + spread * chance.clamp(0.0, 1.0))
    }
}

/// What probes open again, in turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    record_next: bool,
}

impl Turns {
    pub(super) fn next(&mut self) -> Opening {
        self.record_next = !self.record_next;
        // The first after a start follows an opening of the record.
        if self.record_next { Opening::Fresh } else { Opening::Record }
    }
}

/// Between 0 and 1, unlike on other nodes.
pub(super) fn chance() -> f64 {
    let mut byte = [0];
    // Without it, nodes ask at once, and that is all.
    let _ = aws_lc_rs::rand::fill(&mut byte);
    f64::from(byte[0]) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_as_long_as_the_outcome_says() {
        let seconds = |rest: Duration| rest.as_millis();
        let mut rest = Rest::default();
        for (outcome, least, most) in [
            (Outcome::Local, 10_000, 10_000),
            (Outcome::Well, 195_000, 205_000),
            (Outcome::News, 27_000, 33_000),
            (Outcome::Trouble, 9_000, 11_000),
            (Outcome::Trouble, 18_000, 22_000),
            (Outcome::Trouble, 36_000, 44_000),
            (Outcome::Trouble, 54_000, 66_000),
            (Outcome::Trouble, 54_000, 66_000),
            (Outcome::Well, 195_000, 205_000),
            (Outcome::Trouble, 9_000, 11_000),
            (Outcome::Oddity, 18_000, 22_000),
            (Outcome::Oddity, 36_000, 44_000),
            (Outcome::Oddity, 72_000, 88_000),
            (Outcome::Oddity, 144_000, 176_000),
            (Outcome::Oddity, 180_000, 220_000),
        ] {
            let before = rest;
            assert_eq!(seconds(rest.clone().after(outcome, 0.0)), least, "{outcome:?} after {before:?}");
            assert_eq!(seconds(rest.after(outcome, 1.0)), most, "{outcome:?} after {before:?}");
        }
    }

    #[test]
    fn an_hour_of_looks_is_at_most_sixty_calls_and_two_looks_at_most_seven_minutes() {
        const CALLS_OF_A_LOOK: f64 = 3.0;

        let shortest = Rest::default().after(Outcome::Well, 0.0).as_secs_f64();
        assert!(3600.0 / shortest * CALLS_OF_A_LOOK <= 60.0, "{shortest}");
        let longest = Rest::default().after(Outcome::Well, 1.0);
        assert!(longest * 2 < Duration::from_secs(7 * 60), "{longest:?}");
    }

    #[test]
    fn three_looks_in_trouble_take_as_long_as_a_refusal_needs() {
        let mut rest = Rest::default();
        let rests = (0..5).map(|_| rest.after(Outcome::Trouble, 0.0));
        assert!(rests.sum::<Duration>() >= Duration::from_secs(120));
    }

    #[test]
    fn both_are_opened_in_turn() {
        let mut turns = Turns::default();
        let opened = [turns.next(), turns.next(), turns.next()];
        assert_eq!(opened, [Opening::Fresh, Opening::Record, Opening::Fresh]);
    }
}
