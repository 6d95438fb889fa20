//! Local KEKs that were opened: a bounded cache, and one call for all who wait for the same record.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use casemate_keys::{Digest, LocalKek, ReadPolicy, Root, WritePolicy};
use casemate_keyservice::{Class, Failure};
use lru::LruCache;
use tokio::sync::watch;

use super::{Keyholder, Opened, SharedReadable, WriteKek, is_readable};

/// More local KEKs than a cluster meets in years; each takes some 200 bytes.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Opened local KEKs by SHA-256 of their annotation's value. Cheap to share.
#[derive(Clone, Debug)]
pub struct OpenedKeks {
    state: Arc<Mutex<State>>,
    counts: Arc<Counters>,
}

#[derive(Debug)]
struct State {
    kept: LruCache<Digest, Kept>,
    flights: HashMap<Digest, watch::Receiver<Option<Opened>>>,
}

#[derive(Debug)]
struct Kept {
    kek: Arc<LocalKek>,
    /// What its record says it was written under.
    policy: WritePolicy,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    opened: AtomicU64,
    joined: AtomicU64,
    failed: AtomicU64,
    evicted: AtomicU64,
}

/// What the cache did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedCounts {
    /// Found.
    pub hits: u64,
    /// Opened by asking root keys.
    pub opened: u64,
    /// Waited for an opening that was under way.
    pub joined: u64,
    /// Openings that failed.
    pub failed: u64,
    /// Dropped for newer ones.
    pub evicted: u64,
    /// Held now.
    pub held: u64,
}

/// Why a record's local KEK could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct OpenError {
    /// What a caller may conclude: the class that leaves most hope.
    pub class: Class,
    /// Whether a root key version is not where it should be.
    pub missing: bool,
    text: String,
}

impl OpenError {
    /// From the failures of all attempts; `None` stands for a wrap that opened to another record's payload.
    /// Failures of the cryptography look alike: which step failed is nobody's business.
    pub(super) fn new(failures: Vec<(Root, Option<Failure>)>) -> Self {
        let mut class = Class::NotOpened;
        let mut texts = Vec::new();
        let mut missing = false;
        for (root, failure) in failures {
            match failure {
                Some(failure) if failure.class != Class::NotOpened => {
                    if class == Class::NotOpened || failure.class != Class::Refused {
                        class = failure.class;
                    }
                    missing |= failure.missing.is_some();
                    texts.push(failure.to_string());
                }
                _ => texts.push(format!(
                    "root key {} did not open the record: the object is damaged; restore it from a backup",
                    root.lineage
                )),
            }
        }
        Self { class, missing, text: texts.join("; ") }
    }

    fn stopped() -> Self {
        Self { class: Class::Unreachable, missing: false, text: "the program is stopping".into() }
    }
}

impl OpenedKeks {
    pub(super) fn new() -> Self {
        let state = State { kept: LruCache::new(CAPACITY), flights: HashMap::new() };
        Self { state: Arc::new(Mutex::new(state)), counts: Arc::default() }
    }

    /// The local KEK of `readable`. Whoever asks while another is asking waits for the same answer; an asker
    /// that goes away does not take the answer along.
    ///
    /// Kept is only what opened `ciphertext`, or what is given to [`OpenedKeks::keep`]: wraps bind the core, not
    /// the whole annotation, so whoever writes etcd can make any number of annotations that unwrap to a known
    /// local KEK and open nothing. They must not push out those that do.
    ///
    /// Before it waits for a root key, be it with others, it says so.
    pub(super) async fn get_or_open(
        &self,
        keyholder: &Arc<Keyholder>,
        readable: &SharedReadable,
        ciphertext: &[u8],
        asks_root_key: impl FnOnce(),
    ) -> Opened {
        let mut flight = {
            let digest = *readable.annotation();
            let mut state = lock(&self.state);
            if let Some(kept) = state.kept.get(&digest) {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(kept.kek.clone());
            }
            if let Some(flight) = state.flights.get(&digest) {
                self.counts.joined.fetch_add(1, Ordering::Relaxed);
                flight.clone()
            } else {
                let flight = self.start(keyholder.clone(), readable.clone(), ciphertext.to_vec());
                state.flights.insert(digest, flight.clone());
                flight
            }
        };
        asks_root_key();
        match flight.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(|| Err(OpenError::stopped())),
            Err(_) => Err(OpenError::stopped()),
        }
    }

    fn start(
        &self,
        keyholder: Arc<Keyholder>,
        readable: SharedReadable,
        ciphertext: Vec<u8>,
    ) -> watch::Receiver<Option<Opened>> {
        let (answer, flight) = watch::channel(None);
        let landing = Landing { state: self.state.clone(), digest: *readable.annotation() };
        let counts = self.counts.clone();
        tokio::spawn(async move {
            let opened = keyholder.open(&readable).await;
            match &opened {
                Ok(kek) => {
                    counts.opened.fetch_add(1, Ordering::Relaxed);
                    // Before the flight ends, so that nobody starts another in between.
                    if readable.open(kek, &ciphertext).is_ok() {
                        let policy = readable.record().core().policy.clone();
                        keep(&landing.state, &counts, landing.digest, Kept { kek: kek.clone(), policy });
                    }
                }
                Err(_) => {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            drop(landing);
            let _ = answer.send(Some(opened));
        });
        flight
    }

    /// Keeps a local KEK that is known to open what belongs to this annotation.
    pub(super) fn keep(&self, kek: &WriteKek) {
        let kept = Kept { kek: kek.local_kek().clone(), policy: kek.record().core().policy.clone() };
        keep(&self.state, &self.counts, *kek.digest(), kept);
    }

    /// The write policies of kept records that could be opened no more with `policy`, each once.
    pub(super) fn unreadable_by(&self, policy: &ReadPolicy) -> Vec<WritePolicy> {
        let mut found: Vec<WritePolicy> = Vec::new();
        for (_, kept) in &lock(&self.state).kept {
            if !is_readable(&kept.policy, policy) && !found.contains(&kept.policy) {
                found.push(kept.policy.clone());
            }
        }
        found
    }

    /// Forgets all; the memory of a local KEK is wiped when nobody uses it any more.
    pub(super) fn forget_all(&self) {
        lock(&self.state).kept.clear();
    }

    /// Drops, and wipes, what can't be opened with `policy`.
    pub(super) fn retain_readable_by(&self, policy: &ReadPolicy) {
        let mut state = lock(&self.state);
        let gone: Vec<_> = state
            .kept
            .iter()
            .filter(|(_, kept)| !is_readable(&kept.policy, policy))
            .map(|(digest, _)| *digest)
            .collect();
        for digest in gone {
            state.kept.pop(&digest);
        }
    }

    pub(super) fn counts(&self) -> OpenedCounts {
        let held = lock(&self.state).kept.len() as u64;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OpenedCounts {
            hits: read(&self.counts.hits),
            opened: read(&self.counts.opened),
            joined: read(&self.counts.joined),
            failed: read(&self.counts.failed),
            evicted: read(&self.counts.evicted),
            held,
        }
    }
}

/// Ends a flight even if its task panics.
struct Landing {
    state: Arc<Mutex<State>>,
    digest: Digest,
}

impl Drop for Landing {
    fn drop(&mut self) {
        lock(&self.state).flights.remove(&self.digest);
    }
}

fn keep(state: &Mutex<State>, counts: &Counters, digest: Digest, kept: Kept) {
    let pushed_out = lock(state).kept.push(digest, kept);
    if pushed_out.is_some_and(|(other, _)| other != digest) {
        counts.evicted.fetch_add(1, Ordering::Relaxed);
    }
}

/// The cache stays usable if a thread panicked with the lock held: every state of it is valid.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
