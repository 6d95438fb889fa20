//! What came from etcd and did not open. Whoever writes there chooses it, and each opening is paid for by somebody: the
//! same bytes are not tried again for a while, and others only so often. What a root key does not have is said once for
//! all that was written under it: a cluster may hold many records of a version that is gone.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use casemate_keys::{Digest, Root};
use lru::LruCache;
use tokio::time::Instant;

use crate::{Class, Failure};

/// How many wraps are remembered.
pub const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// For how long.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// For how long if they name what is not there: it may be delivered the next moment.
pub const MISSING_FOR: Duration = Duration::from_secs(10);
/// How many may fail at once; then one a second.
pub const FAILURES_AT_ONCE: u32 = 60;

/// The memory of them.
#[derive(Debug)]
pub(super) struct Unopened {
    remembered: LruCache<Digest, (Failure, Instant)>,
    missing: LruCache<Root, (Failure, Instant)>,
    /// Below zero if more than the rest were under way at once: then it takes longer.
    left: f64,
    counted: Instant,
}

/// Why bytes are not tried.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Untried {
    /// They did not open a moment ago, or what they were written under was not there.
    Remembered(Failure),
    /// Too many did not open.
    Limited(Failure),
}

impl Unopened {
    pub(super) fn new(now: Instant) -> Self {
        let left = f64::from(FAILURES_AT_ONCE);
        let (remembered, missing) = (LruCache::new(REMEMBERED), LruCache::new(REMEMBERED));
        Self { remembered, missing, left, counted: now }
    }

    /// Whether the wrap with this [`name`] under `root` may be tried.
    pub(super) fn may_try(&mut self, root: &Root, name: &Digest, now: Instant) -> Result<(), Untried> {
        let known = recall(&mut self.missing, root, now).or_else(|| recall(&mut self.remembered, name, now));
        if let Some(failure) = known {
            return Err(Untried::Remembered(failure));
        }
        self.refill(now);
        if self.left < 1.0 {
            return Err(Untried::Limited(Failure {
                retry_after: Some(Duration::from_secs_f64(1.0 - self.left)),
                ..Failure::new(
                    Class::Throttled,
                    "too many stored wraps did not open: this program itself tries only one a second now",
                    "find out who writes damaged or foreign values to etcd; what opens is not held against anybody",
                )
            }));
        }
        Ok(())
    }

    /// The wrap with this name under `root` was tried, and its bytes are to blame. Those that were tried several times at
    /// once are counted once.
    pub(super) fn failed(&mut self, root: &Root, name: Digest, failure: &Failure, now: Instant) {
        let is_known = recall(&mut self.missing, root, now).is_some()
            || recall(&mut self.remembered, &name, now).is_some();
        if is_known {
            return;
        }
        self.refill(now);
        self.left -= 1.0;
        let time = if failure.class == Class::NotOpened { REMEMBERED_FOR } else { MISSING_FOR };
        let kept = (failure.clone(), now + time);
        // Of anything else that is not there, nothing is known but these bytes.
        if failure.missing.as_ref() == Some(&root.lineage) {
            self.missing.put(root.clone(), kept);
        } else {
            self.remembered.put(name, kept);
        }
    }

    /// Something under `root` has opened: it is there.
    pub(super) fn opened(&mut self, root: &Root) {
        self.missing.pop(root);
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.left = (self.left + passed).min(f64::from(FAILURES_AT_ONCE));
        self.counted = now;
    }
}

/// What is remembered of `key` and holds still.
fn recall<K: Hash + Eq>(
    memory: &mut LruCache<K, (Failure, Instant)>,
    key: &K,
    now: Instant,
) -> Option<Failure> {
    let (failure, until) = memory.get(key)?;
    if now < *until {
        return Some(failure.clone());
    }
    memory.pop(key);
    None
}

/// Whether the bytes are to blame, and not the service: a wrap that does not open, or that names what is not there.
pub(super) fn blames_the_bytes(failure: &Failure) -> bool {
    failure.class == Class::NotOpened || failure.missing.is_some()
}

/// What a wrap is remembered by: all that decides whether it opens.
pub(super) fn name(root: &Root, core: &Digest, wrap: &[u8]) -> Digest {
    let mut context = Context::new(&SHA256);
    let lineage = root.lineage.as_str().as_bytes();
    context.update(&(lineage.len() as u64).to_be_bytes());
    context.update(lineage);
    context.update(&root.algorithm.number().to_be_bytes());
    context.update(core);
    context.update(wrap);
    let mut name = Digest::default();
    name.copy_from_slice(context.finish().as_ref());
    name
}

#[cfg(test)]
mod tests {
    use casemate_keys::Algorithm;

    use super::*;

    fn root() -> Root {
        version(1)
    }

    fn version(number: u64) -> Root {
        Root { lineage: format!("transit:/t/k/{number}/1").parse().unwrap(), algorithm: Algorithm::TRANSIT }
    }

    fn not_opened() -> Failure {
        Failure::new(Class::NotOpened, "planted", "nothing")
    }

    #[test]
    fn the_same_bytes_wait_and_are_forgotten_by_time_and_number() {
        let start = Instant::now();
        let mut unopened = Unopened::new(start);
        unopened.failed(&root(), [7; 32], &not_opened(), start);
        let later = start + REMEMBERED_FOR - Duration::from_nanos(1);
        assert_eq!(unopened.may_try(&root(), &[7; 32], later), Err(Untried::Remembered(not_opened())));
        assert_eq!(unopened.may_try(&root(), &[8; 32], later), Ok(()));
        assert_eq!(unopened.may_try(&root(), &[7; 32], start + REMEMBERED_FOR), Ok(()));
        for number in 0..2 * REMEMBERED.get() {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&number.to_be_bytes());
            unopened.failed(&root(), name, &not_opened(), start);
        }
        assert_eq!(unopened.remembered.len(), REMEMBERED.get());
    }

    #[test]
    fn what_is_not_there_is_said_once_for_all_of_it_and_for_less_long() {
        let start = Instant::now();
        let mut unopened = Unopened::new(start);
        let missing = |root: &Root| Failure {
            missing: Some(root.lineage.clone()),
            ..Failure::new(Class::Refused, "planted", "nothing")
        };
        let absent = version(999);
        assert!(blames_the_bytes(&missing(&absent)) && blames_the_bytes(&not_opened()));
        assert!(!blames_the_bytes(&Failure::new(Class::Refused, "disabled", "enable it")));
        for record in 0..2 * FAILURES_AT_ONCE {
            // All of them were under way at the same time.
            unopened.failed(&absent, [record as u8; 32], &missing(&absent), start);
        }
        let later = start + MISSING_FOR - Duration::from_nanos(1);
        unopened.failed(&absent, [7; 32], &missing(&absent), later);
        assert_eq!(
            unopened.may_try(&absent, &[200; 32], later),
            Err(Untried::Remembered(missing(&absent))),
            "whichever record"
        );
        assert_eq!(unopened.may_try(&root(), &[7; 32], start), Ok(()), "others are not slowed");
        let elsewhere = Root { algorithm: Algorithm::RSA_OAEP_SHA256, ..absent.clone() };
        assert_eq!(unopened.may_try(&elsewhere, &[7; 32], later), Ok(()));
        assert_eq!(unopened.may_try(&absent, &[7; 32], start + MISSING_FOR), Ok(()));

        unopened.failed(&absent, [7; 32], &missing(&absent), start);
        unopened.opened(&absent);
        assert_eq!(unopened.may_try(&absent, &[7; 32], start), Ok(()), "it was delivered");
        // Who names another one says nothing of this one.
        unopened.failed(&absent, [7; 32], &missing(&root()), start);
        assert!(unopened.may_try(&absent, &[7; 32], start).is_err());
        assert_eq!(unopened.may_try(&absent, &[8; 32], start), Ok(()));
        assert_eq!(unopened.may_try(&root(), &[9; 32], start), Ok(()));
    }

    #[test]
    fn what_is_tried_several_times_at_once_is_counted_once() {
        let start = Instant::now();
        let mut unopened = Unopened::new(start);
        for _ in 0..2 * FAILURES_AT_ONCE {
            unopened.failed(&root(), [7; 32], &not_opened(), start);
        }
        assert_eq!(unopened.may_try(&root(), &[8; 32], start), Ok(()));
    }

    #[test]
    fn so_many_at_once_and_then_one_a_second() {
        let start = Instant::now();
        let mut unopened = Unopened::new(start);
        let mut failed = 0;
        let mut until = |unopened: &mut Unopened, seconds: u64| {
            for tenth in 0..seconds * 10 {
                let now = start + Duration::from_millis(tenth * 100);
                while unopened.may_try(&root(), &[failed as u8; 32], now).is_ok() {
                    unopened.failed(&root(), [failed as u8; 32], &not_opened(), now);
                    failed += 1;
                }
            }
            failed
        };
        assert_eq!(until(&mut unopened, 1), FAILURES_AT_ONCE);
        let after_a_while = until(&mut unopened, 31);
        assert!((FAILURES_AT_ONCE + 29..=FAILURES_AT_ONCE + 31).contains(&after_a_while), "{after_a_while}");
    }

    #[test]
    fn every_part_is_in_the_name() {
        let root = |lineage: &str, algorithm| Root { lineage: lineage.parse().unwrap(), algorithm };
        let one = root("transit:/t/k/1/1", Algorithm::TRANSIT);
        let names = [
            name(&one, &[1; 32], b"wrap"),
            name(&root("transit:/t/k/1/2", Algorithm::TRANSIT), &[1; 32], b"wrap"),
            name(&root("transit:/t/k/1/1", Algorithm::RSA_OAEP_SHA256), &[1; 32], b"wrap"),
            name(&one, &[2; 32], b"wrap"),
            name(&one, &[1; 32], b"wrap2"),
        ];
        let different: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
