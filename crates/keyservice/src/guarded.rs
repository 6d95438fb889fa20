//! One root key as the daemon holds it: what every kind of key service needs around it, said once.
//!
//! Two kinds of calls are kept apart. *Own* calls ask with payloads of the daemon itself: how they end says how the
//! root key is. *Stored* calls open bytes that came from etcd: whoever writes there chooses them, so that they decide
//! nothing about own calls, and own calls never stand in their way.
//!
//! | | own calls | stored calls |
//! |---|---|---|
//! | end, with all retries, within | [`DEADLINE`] | [`DEADLINE`] |
//! | at a time | [`OWN_PLACES`] | [`STORED_PLACES`] |
//! | move the [breaker](BreakerState) | yes, if anybody was [asked](Failure::unasked) | never |
//! | while it is open | are made: they find out | one at a time, the others fail at once |
//! | after `Retry-After` | wait that long | are made |
//! | that did not open | – | not again for [`REMEMBERED_FOR`], [`FAILURES_AT_ONCE`] at once, then one a second |
//! | that named what is not there | – | the same, of all that name it, but for [`MISSING_FOR`] |
//!
//! What is [local](Pace::Local) costs nobody anything: it is not retried, and its stored calls are always made.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use casemate_keys::{Digest, LineagePrefix, Root, payload};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::{Answer, Class, Failure, Pace, RootKey};
use breaker::Breaker;
use condition::Counters;
use contained::contained;
use cost::Latency;
use unopened::{Unopened, Untried};

mod breaker;
mod condition;
mod contained;
mod cost;
mod unopened;

pub use breaker::BreakerState;
pub use condition::{Condition, Counts};
pub use cost::Cost;
pub use unopened::{FAILURES_AT_ONCE, MISSING_FOR, REMEMBERED, REMEMBERED_FOR};

/// The longest that a call takes, with all its retries: below the 3 s after which kube-apiserver gives up.
pub const DEADLINE: Duration = Duration::from_millis(2500);
/// Own calls at a time.
pub const OWN_PLACES: usize = 2;
/// Stored calls at a time. Others wait for a place, within the deadline.
pub const STORED_PLACES: usize = 32;
/// Attempts of a call after its first.
pub const RETRIES: usize = 4;
/// How often [`Guarded::wanted`] may end, at most.
pub const WANTED_EVERY: Duration = Duration::from_secs(5);
/// The longest that own calls wait because a service asks for time: longer, and its repair would not be seen.
pub const LONGEST_WAIT: Duration = Duration::from_secs(180);
/// Before the first retry; doubled for each further one. As much again is left to chance, so that many nodes don't come
/// back at the same moment.
const FIRST_RETRY_AFTER: Duration = Duration::from_millis(50);

/// A root key with deadlines, retries, a breaker, and limits.
#[derive(Debug)]
pub struct Guarded {
    key: Box<dyn RootKey>,
    own: Semaphore,
    stored: Semaphore,
    /// Whether a stored call tries what is out.
    tried: AtomicBool,
    state: Mutex<State>,
    wanted: Notify,
    counters: OnceLock<Arc<Counters>>,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    latency: Latency,
    unopened: Unopened,
    /// What own calls are answered, until when.
    asked_for_time: Option<(Failure, Instant)>,
    /// When [`Guarded::wanted`] ended last.
    wanted: Option<Instant>,
}

impl Guarded {
    /// Around this one.
    pub fn around(key: Box<dyn RootKey>) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            breaker: Breaker::new(now),
            latency: Latency::default(),
            unopened: Unopened::new(now),
            asked_for_time: None,
            wanted: None,
        };
        Arc::new(Self {
            key,
            own: Semaphore::new(OWN_PLACES),
            stored: Semaphore::new(STORED_PLACES),
            tried: AtomicBool::new(false),
            state: Mutex::new(state),
            wanted: Notify::new(),
            counters: OnceLock::new(),
        })
    }

    /// Goes on counting where `before` is, the same root key under an older configuration. To be called before anything
    /// is asked.
    pub fn succeed(&self, before: &Self) {
        // Once something is counted it is too late, and nothing depends on it.
        let _ = self.counters.set(before.counters().clone());
    }

    /// As [`RootKey::prefix`].
    pub fn prefix(&self) -> &LineagePrefix {
        self.key.prefix()
    }

    /// As [`RootKey::pace`].
    pub fn pace(&self) -> Pace {
        self.key.pace()
    }

    /// As [`RootKey::absent`].
    pub fn absent(&self) -> Vec<String> {
        self.key.absent()
    }

    /// As [`RootKey::binds_associated_data`].
    pub fn binds_associated_data(&self, root: &Root) -> bool {
        self.key.binds_associated_data(root)
    }

    /// Own call: as [`RootKey::observe`].
    ///
    /// # Errors
    /// Those of the key service; [`Class::Unreachable`] after [`DEADLINE`]; [`Class::Throttled`] for as long as it asked for.
    pub async fn observe(&self) -> Result<Root, Failure> {
        self.own_call(self.prefix(), || self.key.observe()).await
    }

    /// Own call: as [`RootKey::wrap`].
    ///
    /// # Errors
    /// As [`Guarded::observe`].
    pub async fn wrap(
        &self,
        root: &Root,
        core: &Digest,
        payload: &[u8; payload::LEN],
    ) -> Result<Vec<u8>, Failure> {
        self.own_call(&root.lineage, || self.key.wrap(root, core, payload)).await
    }

    /// Own call: as [`RootKey::unwrap`], for what this process or its last run has wrapped.
    ///
    /// # Errors
    /// As [`Guarded::observe`].
    pub async fn unwrap_own(
        &self,
        root: &Root,
        core: &Digest,
        wrap: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Failure> {
        self.own_call(&root.lineage, || self.key.unwrap(root, core, wrap)).await
    }

    /// Stored call: as [`RootKey::unwrap`], for bytes that came from etcd.
    ///
    /// # Errors
    /// Those of the key service; [`Class::Unreachable`] after [`DEADLINE`], or at once if it is out and tried by another
    /// call; [`Class::Throttled`] if too many such bytes did not open.
    pub async fn unwrap_stored(
        &self,
        root: &Root,
        core: &Digest,
        wrap: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let ends = Instant::now() + DEADLINE;
        let name = unopened::name(root, core, wrap);
        // Who is refused anyway waits for no place; who had to wait may be refused since.
        let mut trial = self.admit(root, &name)?;
        let _place = place(&self.stored, ends).await.ok_or_else(|| silence(&root.lineage))?;
        if trial.is_none() {
            trial = self.admit(root, &name)?;
        }
        let started = Instant::now();
        let answer = self.attempt(&root.lineage, ends, |_| true, || self.key.unwrap(root, core, wrap)).await;
        drop(trial);
        self.note_stored(root, name, answer.as_ref().err(), started);
        answer
    }

    /// Ends when an own call should be made now: the root key was out, and has opened something that was stored. Not more
    /// often than each [`WANTED_EVERY`].
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// What it costs to ask it for what is stored, compared with others.
    pub fn cost(&self) -> Cost {
        let state = self.state();
        Cost::new(state.breaker.state(), self.pace(), state.latency.average(Instant::now()))
    }

    /// How it is, for people.
    pub fn condition(&self) -> Condition {
        let state = self.state();
        Condition {
            breaker: state.breaker.state(),
            since: state.breaker.since(),
            own_in_flight: taken(&self.own, OWN_PLACES),
            stored_in_flight: taken(&self.stored, STORED_PLACES),
            counts: self.counters().now(),
        }
    }

    async fn own_call<'a, T>(
        &'a self,
        asked: &dyn Named,
        call: impl Fn() -> Answer<'a, T> + Send + Sync,
    ) -> Result<T, Failure> {
        if let Some(failure) = self.is_to_wait() {
            self.counters().fast_failures.one_more();
            return Err(failure);
        }
        let ends = Instant::now() + DEADLINE;
        let answer = match place(&self.own, ends).await {
            Some(_place) => {
                // Where it throttles, those who read go first.
                let may_retry = |failure: &Failure| {
                    failure.class != Class::Throttled || taken(&self.stored, STORED_PLACES) == 0
                };
                self.attempt(asked, ends, may_retry, call).await
            }
            // The two that have the places say how it is.
            None => Err(silence(asked).unasked()),
        };
        self.note_own(answer.as_ref().err());
        answer
    }

    /// Asks, and asks again while that may help and there is time.
    async fn attempt<'a, T>(
        &'a self,
        asked: &dyn Named,
        ends: Instant,
        may_retry: impl Fn(&Failure) -> bool + Send,
        call: impl Fn() -> Answer<'a, T> + Send + Sync,
    ) -> Result<T, Failure> {
        // What is out is asked again by whoever comes next; a file that is not there is not there in a moment.
        let retries = self.pace() == Pace::Remote && self.state().breaker.state() == BreakerState::Closed;
        let (call, counters) = (&call, self.counters());
        let times = ExponentialBuilder::default()
            .with_min_delay(FIRST_RETRY_AFTER)
            .with_max_times(RETRIES)
            .with_jitter();
        let (mut before, mut was_asked) = (None, false);
        let answer = (|| contained(async move { call().await }))
            .retry(times)
            .sleep(tokio::time::sleep)
            .when(|failure: &Failure| retries && may_pass(failure) && may_retry(failure))
            .adjust(|failure: &Failure, delay| {
                let delay = delay?.max(failure.retry_after.unwrap_or_default().min(LONGEST_WAIT));
                (Instant::now() + delay < ends).then_some(delay)
            })
            .notify(|failure, _| {
                counters.retries.one_more();
                before = Some(failure.what.clone());
                was_asked |= !failure.unasked;
            });
        let answer = timeout_at(ends, answer).await.unwrap_or_else(|_| {
            let mut silence = silence(asked);
            if let Some(before) = before {
                silence.what += &format!(" (the attempt before: {before})");
            }
            Err(silence)
        });
        answer.map_err(|failure| {
            let retry_after = failure.retry_after.map(|asked| asked.min(LONGEST_WAIT));
            // What is remembered of the first attempt does not undo it.
            Failure { retry_after, unasked: failure.unasked && !was_asked, ..failure }
        })
    }

    /// Whether these bytes may be tried now. What is out is tried by one at a time.
    fn admit(&self, root: &Root, name: &Digest) -> Result<Option<Trial<'_>>, Failure> {
        if self.pace() == Pace::Local {
            return Ok(None);
        }
        let (now, mut state, counters) = (Instant::now(), self.state(), self.counters());
        state.unopened.may_try(root, name, now).map_err(|untried| match untried {
            Untried::Remembered(failure) => {
                counters.negative_hits.one_more();
                failure
            }
            Untried::Limited(failure) => {
                counters.limited.one_more();
                failure
            }
        })?;
        if state.breaker.state() != BreakerState::Open {
            return Ok(None);
        }
        if self.tried.swap(true, Ordering::AcqRel) {
            counters.fast_failures.one_more();
            let seconds = now.saturating_duration_since(state.breaker.since()).as_secs();
            return Err(Failure::new(
                Class::Unreachable,
                format!(
                    "root key {} has been out for {seconds} s, and another call is trying it now",
                    self.prefix()
                ),
                "check the key service and the way to it; what is stored is read again as soon as it answers",
            ));
        }
        Ok(Some(Trial(&self.tried)))
    }

    /// What an own call is answered without being made.
    fn is_to_wait(&self) -> Option<Failure> {
        let state = self.state();
        let (failure, until) = state.asked_for_time.as_ref()?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| Failure { retry_after: Some(left), ..failure.clone() })
    }

    fn note_own(&self, failure: Option<&Failure>) {
        let (now, mut state) = (Instant::now(), self.state());
        match failure {
            Some(failure) if failure.unasked => {}
            Some(failure) if failure.class == Class::Unreachable => state.breaker.silent(now),
            // A no is an answer too.
            _ => state.breaker.answered(now),
        }
        state.asked_for_time = failure
            .filter(|failure| failure.class == Class::Throttled)
            .and_then(|failure| Some((failure.clone(), now + failure.retry_after?)));
    }

    fn note_stored(&self, root: &Root, name: Digest, failure: Option<&Failure>, started: Instant) {
        let (now, mut state) = (Instant::now(), self.state());
        match failure {
            None => {
                state.latency.took(now - started, now);
                state.unopened.opened(root);
            }
            Some(failure) if unopened::blames_the_bytes(failure) => {
                state.latency.took(now - started, now);
                state.unopened.failed(root, name, failure, now);
            }
            // Who is not let in has opened nothing: it says nothing of how long openings take once it is.
            Some(failure) if failure.unasked || failure.class == Class::Credential => {}
            // One that fails quickly is not cheap.
            Some(_) => state.latency.took(DEADLINE, now),
        }
        let again = state.wanted.is_none_or(|last| now.saturating_duration_since(last) >= WANTED_EVERY);
        if failure.is_none() && state.breaker.state() != BreakerState::Closed && again {
            state.wanted = Some(now);
            self.wanted.notify_one();
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        self.counters.get_or_init(Arc::default)
    }

    /// Every state of it is valid, whatever panicked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What can stand in a text about a root key, and be held while it is waited for.
trait Named: Display + Sync {}

impl<T: Display + Sync> Named for T {}

/// While it is held, no other stored call tries what is out.
struct Trial<'a>(&'a AtomicBool);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether the same call may be answered in a moment. A key service that is not let in logs in again by itself.
fn may_pass(failure: &Failure) -> bool {
    match failure.class {
        Class::Unreachable => true,
        Class::Throttled => failure.retry_after.is_some(),
        _ => false,
    }
}

async fn place(places: &Semaphore, ends: Instant) -> Option<SemaphorePermit<'_>> {
    // It is never closed.
    timeout_at(ends, places.acquire()).await.ok()?.ok()
}

fn taken(places: &Semaphore, of: usize) -> u64 {
    of.saturating_sub(places.available_permits()) as u64
}

fn silence(asked: &dyn fmt::Display) -> Failure {
    let what = format!("root key {asked} did not answer within {} ms", DEADLINE.as_millis());
    Failure::new(Class::Unreachable, what, "check the key service and the way to it")
}

#[cfg(test)]
mod tests;
