//! When a login that came to nothing is tried again: a pure state machine, the time comes in.
//!
//! OpenBao and Vault lock an AppRole after five refused logins for a quarter of an hour, on all nodes at once, and count
//! anew after a quarter of an hour without one. A node that goes on trying with a bad secret id would keep the others
//! out. So it makes three tries soon, for what heals by itself, and then each leaves time to count anew: with one that an
//! admin asks for, that is one less than the role bears.

use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;

/// After how long without a refused login the service counts anew, unless it is configured otherwise.
pub(super) const COUNTED_ANEW_AFTER: Duration = Duration::from_secs(15 * 60);
/// Before the second and the third login, if the service refuses them and counts.
const SOON: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(100)];
/// What who goes on trying has to know.
const WAITS: &str = "; the same one is tried again every quarter of an hour, lest the service lock the role";
/// Before each further one: longer than the service counts. As long as that an admin may ask once, too.
pub(super) const LONG: Duration = Duration::from_secs(16 * 60);
/// The first pause after any other failure, doubled for each further one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The longest that a service may ask for.
pub(super) const LONGEST_ASKED: Duration = Duration::from_secs(60);
/// How much of a pause is added at most, by chance: nodes shall not come all at once.
const SPREAD: f64 = 0.25;

/// What is known of logins that came to nothing since the last one that was granted.
#[derive(Debug, Default)]
pub(super) struct Patience {
    last: Option<Failed>,
    /// In a row, of those that the service counts.
    refusals: usize,
    refused: Option<Instant>,
    asked: Option<Instant>,
}

/// The last login, if it came to nothing.
#[derive(Debug)]
struct Failed {
    credentials: [u8; 32],
    failure: Failure,
    /// When the same credentials may be tried again.
    until: Instant,
    counts: bool,
    /// In a row, of those that the service does not count, with the same credentials.
    others: u32,
}

impl Patience {
    /// What is answered instead of a login with these credentials: why the last one came to nothing, and how long it
    /// is to the next.
    pub(super) fn answer(&self, credentials: &[u8; 32], now: Instant) -> Option<Failure> {
        let last = self.last.as_ref().filter(|last| last.credentials == *credentials)?;
        let left = last.until.saturating_duration_since(now);
        (!left.is_zero()).then(|| Failure { retry_after: Some(left), unasked: true, ..last.failure.clone() })
    }

    /// Whether what it knows still matters: logins wait, or the service still counts those that it refused.
    pub(super) fn matters(&self, now: Instant) -> bool {
        let counts_on = |at| now.saturating_duration_since(at) <= COUNTED_ANEW_AFTER;
        self.refused.is_some_and(counts_on) || self.last.as_ref().is_some_and(|last| now < last.until)
    }

    /// A login with these credentials came to nothing; `counts` if the service counts it. `chance` is between 0 and 1.
    /// Returns the failure, with the time that is to pass.
    pub(super) fn failed(
        &mut self,
        credentials: [u8; 32],
        failure: Failure,
        counts: bool,
        now: Instant,
        chance: f64,
    ) -> Failure {
        let before = self.last.take().filter(|last| last.credentials == credentials);
        let (pause, others) = if counts {
            let is_counted_anew =
                self.refused.is_none_or(|at| now.saturating_duration_since(at) > COUNTED_ANEW_AFTER);
            // Others were delivered: they get their tries. The same ones had theirs.
            if before.is_none() && is_counted_anew {
                self.refusals = 0;
            }
            self.refused = Some(now);
            self.refusals = self.refusals.saturating_add(1);
            (SOON.get(self.refusals - 1).copied().unwrap_or(LONG), 0)
        } else {
            let others = before.map_or(0, |last| last.others);
            (PAUSES.0.saturating_mul(1 << others.min(8)).min(PAUSES.1), others.saturating_add(1))
        };
        let pause = pause.mul_f64(1.0 + SPREAD * chance.clamp(0.0, 1.0));
        let pause = pause.max(failure.retry_after.unwrap_or_default().min(LONGEST_ASKED));
        let mut failure = Failure { retry_after: Some(pause), ..failure };
        if counts && self.refusals > SOON.len() {
            failure.remedy += WAITS;
        }
        self.last =
            Some(Failed { credentials, failure: failure.clone(), until: now + pause, counts, others });
        failure
    }

    /// A login was granted.
    pub(super) fn granted(&mut self) {
        *self = Self { asked: self.asked, ..Self::default() };
    }

    /// An admin wants a refused login tried again now. Not more often than the service counts anew.
    pub(super) fn try_again(&mut self, now: Instant) {
        let may = self.asked.is_none_or(|at| now.saturating_duration_since(at) >= LONG);
        if let Some(last) = self.last.as_mut().filter(|last| last.counts && now < last.until && may) {
            last.until = now;
            self.asked = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Class;

    /// How many refused logins, none of them a quarter of an hour after the one before, lock a role.
    const LOCKS: usize = 5;
    const REFUSALS_SOON: usize = SOON.len() + 1;

    fn no() -> Failure {
        Failure::new(Class::Credential, "planted", "nothing")
    }

    fn throttled(seconds: u64) -> Failure {
        let retry_after = Some(Duration::from_secs(seconds));
        Failure { retry_after, ..Failure::new(Class::Throttled, "planted", "nothing") }
    }

    /// The role as the service sees it.
    #[derive(Default)]
    struct Role {
        refused: Option<Instant>,
        counted: usize,
        most: usize,
        tries: Vec<Duration>,
    }

    impl Role {
        fn refuses(&mut self, start: Instant, now: Instant) {
            let anew = self.refused.is_none_or(|at| now - at > COUNTED_ANEW_AFTER);
            self.counted = if anew { 1 } else { self.counted + 1 };
            self.most = self.most.max(self.counted);
            self.refused = Some(now);
            self.tries.push(now - start);
        }
    }

    /// Somebody calls each second for so many hours, with what `credentials` says; an admin asks each time that
    /// `admin` says so.
    fn hours(hours: u64, chance: f64, credentials: impl Fn(u64) -> u8, admin: impl Fn(u64) -> bool) -> Role {
        let (start, mut patience, mut role) = (Instant::now(), Patience::default(), Role::default());
        for second in 0..hours * 3600 {
            let now = start + Duration::from_secs(second);
            if admin(second) {
                patience.try_again(now);
            }
            let credentials = [credentials(second); 32];
            if patience.answer(&credentials, now).is_none() {
                role.refuses(start, now);
                patience.failed(credentials, no(), true, now, chance);
            }
        }
        role
    }

    #[test]
    fn an_hour_of_refusals_is_six_tries_and_the_role_is_never_near_to_being_locked() {
        for (chance, tries) in [(0.0, 6), (1.0, 5)] {
            let role = hours(1, chance, |_| 1, |_| false);
            assert_eq!(role.tries.len(), tries, "{:?}", role.tries);
            let day = hours(24, chance, |_| 1, |_| false);
            assert_eq!((role.most, day.most), (REFUSALS_SOON, REFUSALS_SOON));
        }
    }

    #[test]
    fn an_admin_may_ask_again_and_again_and_does_not_lock_it() {
        let asked = hours(24, 0.0, |_| 1, |second| second.is_multiple_of(5));
        assert_eq!(asked.most, LOCKS - 1, "{:?}", asked.tries);
        // It is tried at once.
        let once = hours(1, 0.0, |_| 1, |second| second == 700);
        assert!(once.tries.contains(&Duration::from_secs(700)), "{:?}", once.tries);
        // What is not counted is not hurried.
        let (now, mut patience) = (Instant::now(), Patience::default());
        patience.failed([1; 32], throttled(30), false, now, 0.0);
        patience.try_again(now);
        assert!(patience.answer(&[1; 32], now).is_some());
    }

    #[test]
    fn what_is_delivered_is_tried_at_once_and_has_tries_of_its_own_if_time_has_passed() {
        // After eight minutes: once, since the service counts on.
        let early = hours(1, 0.0, |second| u8::from(second >= 480), |_| false);
        assert!(early.tries.contains(&Duration::from_secs(480)), "{:?}", early.tries);
        assert_eq!(early.most, REFUSALS_SOON + 1);
        // After seventeen: anew. (Of those before, the last was after 110 s.)
        let late = hours(1, 0.0, |second| u8::from(second >= 1020), |_| false);
        for second in [1020, 1030, 1130] {
            assert!(late.tries.contains(&Duration::from_secs(second)), "{:?}", late.tries);
        }
        assert_eq!(late.most, REFUSALS_SOON);
    }

    #[test]
    fn a_login_that_is_granted_ends_it() {
        let (now, mut patience) = (Instant::now(), Patience::default());
        for _ in 0..REFUSALS_SOON {
            patience.failed([1; 32], no(), true, now, 0.0);
        }
        let told = patience.answer(&[1; 32], now).unwrap();
        assert!(told.retry_after == Some(LONG) && told.remedy.ends_with(WAITS), "{told}");
        assert!(patience.answer(&[2; 32], now).is_none() && patience.matters(now));
        patience.granted();
        assert!(patience.answer(&[1; 32], now).is_none() && !patience.matters(now));
        // Who logs in once does not try again.
        let told = patience.failed([1; 32], no(), true, now, 0.0);
        assert!(told.retry_after == Some(SOON[0]) && !told.remedy.contains(WAITS), "{told}");
    }

    #[test]
    fn who_asks_for_time_gets_a_minute_at_most_and_callers_know_the_rest() {
        let (now, mut patience) = (Instant::now(), Patience::default());
        for (asked, given) in [(7, 7), (59, 59), (3600, 60)] {
            let told = patience.failed([1; 32], throttled(asked), false, now, 0.0);
            assert_eq!(told.retry_after, Some(Duration::from_secs(given)));
            patience.granted();
        }
        patience.failed([1; 32], throttled(u64::MAX), false, now, 0.0);
        let later = now + Duration::from_secs(45);
        let left = patience.answer(&[1; 32], later).unwrap();
        assert_eq!((left.class, left.retry_after), (Class::Throttled, Some(Duration::from_secs(15))));
        assert!(patience.answer(&[1; 32], now + LONGEST_ASKED).is_none());
    }

    #[test]
    fn other_failures_are_tried_again_after_growing_pauses() {
        let (now, mut patience) = (Instant::now(), Patience::default());
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let told = patience.failed([1; 32], no(), false, now, 0.0);
            assert_eq!(told.retry_after, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(
            patience.failed([1; 32], no(), false, now, 1.0).retry_after,
            Some(Duration::from_secs(75))
        );
        assert_eq!(patience.failed([2; 32], no(), false, now, 0.0).retry_after, Some(PAUSES.0));
    }
}
