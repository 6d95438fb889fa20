//! Local KEKs that were opened: a bounded cache, and one call for all who wait for the same record.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use casemate_keys::{CacheOf, Core, Digest, LocalKek, ReadPolicy, Root, SealedKek, WritePolicy};
use casemate_keyservice::{Class, Failure};
use lru::LruCache;
use tokio::sync::watch;

use super::sealed::{self, SealedCache};
use super::{
    Keyholder, Opened, Protection, SealedCounts, SharedReadable, Store, WallClock, WriteKek, is_readable,
};

/// More local KEKs than a cluster meets in years; each takes some 200 bytes.
pub(super) const CAPACITY: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Opened local KEKs by SHA-256 of their annotation's value. Cheap to share.
#[derive(Clone, Debug)]
pub struct OpenedKeks {
    state: Arc<Mutex<State>>,
    /// As the state has it: Status reads it, and must wait for no lock.
    wipes: Arc<AtomicU64>,
    counts: Arc<Counters>,
    /// What of them outlives a restart.
    sealed: Option<Arc<SealedCache>>,
}

#[derive(Debug)]
pub(super) struct State {
    kept: LruCache<Digest, Kept>,
    /// Openings that are under way, to be joined.
    flights: HashMap<Digest, watch::Receiver<Option<Opened>>>,
    readers: Readers,
    wipes: Arc<AtomicU64>,
}

/// How often all was forgotten: what began before the last time is not kept after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wipes(u64);

/// What may be read now, whoever asks: of a configuration that was replaced, calls may still be under way.
pub(super) struct Readers {
    policy: ReadPolicy,
    clock: WallClock,
}

/// A local KEK: opened, or as it was read from the sealed cache, or both.
#[derive(Debug)]
pub(super) struct Kept {
    /// What its record says of it.
    core: Core,
    kek: Option<Arc<LocalKek>>,
    sealed: Option<Box<SealedKek>>,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    sealed_hits: AtomicU64,
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
    /// Opened from the sealed cache.
    pub sealed_hits: u64,
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
    pub(super) fn new(readers: Readers) -> Self {
        let state = State::new(readers);
        let wipes = state.wipes.clone();
        Self { state: Arc::new(Mutex::new(state)), wipes, counts: Arc::default(), sealed: None }
    }

    /// The same, and what outlives a restart is kept in `store` from now on, sealed under what `protection` names.
    pub(super) async fn sealed_in(mut self, store: Store, protection: Protection, of: CacheOf) -> Self {
        self.sealed = Some(SealedCache::begin(store, protection, of, self.state.clone()).await);
        self
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
            if let Some(kek) = self.find(&mut state, &digest) {
                return Ok(kek);
            }
            if let Some(flight) = state.flights.get(&digest) {
                self.counts.joined.fetch_add(1, Ordering::Relaxed);
                flight.clone()
            } else {
                let flight =
                    self.start(keyholder.clone(), readable.clone(), ciphertext.to_vec(), self.wipes());
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

    /// The local KEK of this annotation, if no root key is needed for it.
    pub(super) fn held(&self, annotation: &Digest) -> Option<Arc<LocalKek>> {
        self.find(&mut lock(&self.state), annotation)
    }

    fn find(&self, state: &mut State, annotation: &Digest) -> Option<Arc<LocalKek>> {
        let kept = state.kept.get_mut(annotation)?;
        if let Some(kek) = &kept.kek {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Some(kek.clone());
        }
        let opened = kept.sealed.as_deref().and_then(|sealed| {
            // What is known of its core was bound when it was sealed, and its id is computed again.
            self.sealed.as_ref()?.open(annotation, &kept.core, sealed)
        });
        let Some(kek) = opened.map(Arc::new) else {
            state.kept.pop(annotation);
            return None;
        };
        self.counts.sealed_hits.fetch_add(1, Ordering::Relaxed);
        kept.kek = Some(kek.clone());
        Some(kek)
    }

    fn start(
        &self,
        keyholder: Arc<Keyholder>,
        readable: SharedReadable,
        ciphertext: Vec<u8>,
        begun: Wipes,
    ) -> watch::Receiver<Option<Opened>> {
        let (answer, flight) = watch::channel(None);
        let landing =
            Landing { state: self.state.clone(), digest: *readable.annotation(), flight: flight.clone() };
        let (counts, keeps) = (self.counts.clone(), self.clone());
        tokio::spawn(async move {
            let opened = keyholder.open(&readable).await;
            match &opened {
                Ok(kek) => {
                    counts.opened.fetch_add(1, Ordering::Relaxed);
                    // Before the flight ends, so that nobody starts another in between.
                    if readable.open(kek, &ciphertext).is_ok() {
                        keeps.put(landing.digest, readable.record().core().clone(), kek.clone(), begun);
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
        self.keep_begun(kek, self.wipes());
    }

    /// The same, if all was not forgotten since its making was `begun`.
    pub(super) fn keep_begun(&self, kek: &WriteKek, begun: Wipes) {
        self.put(*kek.digest(), kek.record().core().clone(), kek.local_kek().clone(), begun);
    }

    /// For [`OpenedKeks::keep_begun`].
    pub(super) fn wipes(&self) -> Wipes {
        Wipes(self.wipes.load(Ordering::Acquire))
    }

    /// What was begun before a wipe, or under readers that are there no more, is of use to who waits for it alone.
    fn put(&self, annotation: Digest, core: Core, kek: Arc<LocalKek>, begun: Wipes) {
        let mut state = lock(&self.state);
        if self.wipes() != begun || !state.reads(&core) {
            return;
        }
        let (was_sealed, pushed_out) = state.put_first(annotation, Kept::opened(core, kek));
        drop(state);
        if pushed_out {
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        if !was_sealed {
            self.note_change();
        }
    }

    fn note_change(&self) {
        if let Some(sealed) = &self.sealed {
            sealed.note_change();
        }
    }

    /// The write policies of kept records that could be opened no more with `policy`, each once.
    pub(super) fn unreadable_by(&self, policy: &ReadPolicy) -> Vec<WritePolicy> {
        let mut found: Vec<WritePolicy> = Vec::new();
        for (_, kept) in &lock(&self.state).kept {
            if !is_readable(&kept.core.policy, policy) && !found.contains(&kept.core.policy) {
                found.push(kept.core.policy.clone());
            }
        }
        found
    }

    /// Forgets all, and destroys what would outlive a restart in `store`; the memory of a local KEK is wiped when nobody
    /// uses it any more.
    pub(super) async fn forget_all(&self, store: &Store) {
        if let Some(sealed) = &self.sealed {
            sealed.doom();
        }
        lock(&self.state).forget_all();
        match &self.sealed {
            Some(sealed) => sealed.clone().destroy().await,
            None => sealed::destroy_leftovers(store.clone()).await,
        }
    }

    /// Drops, and wipes, what can't be opened with `policy`, and keeps nothing of that kind from now on.
    pub(super) fn retain_readable_by(&self, policy: &ReadPolicy) {
        let mut state = lock(&self.state);
        state.readers.policy = policy.clone();
        state.drop_unreadable();
        drop(state);
        self.note_change();
    }

    pub(super) fn counts(&self) -> OpenedCounts {
        let held = lock(&self.state).kept.iter().filter(|(_, kept)| kept.kek.is_some()).count() as u64;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OpenedCounts {
            hits: read(&self.counts.hits),
            sealed_hits: read(&self.counts.sealed_hits),
            opened: read(&self.counts.opened),
            joined: read(&self.counts.joined),
            failed: read(&self.counts.failed),
            evicted: read(&self.counts.evicted),
            held,
        }
    }

    /// What the sealed cache is, if there is one.
    pub(super) fn sealed_counts(&self) -> Option<SealedCounts> {
        self.sealed.as_ref().map(|sealed| sealed.counts())
    }
}

impl State {
    pub(super) fn new(readers: Readers) -> Self {
        Self { kept: LruCache::new(CAPACITY), flights: HashMap::new(), readers, wipes: Arc::default() }
    }

    /// In one step with the count: what is put under the lock is put before the wipe, or sees it.
    fn forget_all(&mut self) {
        self.wipes.fetch_add(1, Ordering::AcqRel);
        self.kept.clear();
        // Their answers may be older: who asks from now on has a root key asked.
        self.flights.clear();
    }

    /// Whether a record with this core may be read now.
    pub(super) fn reads(&self, core: &Core) -> bool {
        self.readers.read(core)
    }

    /// Readers may end by the clock, too.
    pub(super) fn drop_unreadable(&mut self) {
        let unreadable = self.kept.iter().filter(|(_, kept)| !self.readers.read(&kept.core));
        for annotation in unreadable.map(|(annotation, _)| *annotation).collect::<Vec<_>>() {
            self.kept.pop(&annotation);
        }
    }

    /// As what was used last; says whether it was sealed already, and whether it pushed out another.
    pub(super) fn put_first(&mut self, annotation: Digest, mut kept: Kept) -> (bool, bool) {
        kept.sealed = self.kept.pop(&annotation).and_then(|before| before.sealed);
        let was_sealed = kept.sealed.is_some();
        (was_sealed, self.kept.push(annotation, kept).is_some())
    }

    /// Takes in what is known to be needed less than all that is there.
    pub(super) fn put_behind(&mut self, annotation: Digest, kept: Kept) {
        if self.kept.len() < CAPACITY.get() && !self.kept.contains(&annotation) {
            self.kept.push(annotation, kept);
            self.kept.demote(&annotation);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What was opened and never sealed.
    pub(super) fn unsealed(&self) -> Vec<(Digest, Core, Arc<LocalKek>)> {
        let unsealed = self.kept.iter().filter(|(_, kept)| kept.sealed.is_none());
        unsealed
            .filter_map(|(annotation, kept)| Some((*annotation, kept.core.clone(), kept.kek.clone()?)))
            .collect()
    }

    pub(super) fn put_sealed(&mut self, annotation: &Digest, sealed: SealedKek) {
        if let Some(kept) = self.kept.peek_mut(annotation) {
            kept.sealed = Some(Box::new(sealed));
        }
    }

    /// What is opened stays.
    pub(super) fn forget_sealed(&mut self) {
        for (_, kept) in &mut self.kept {
            kept.sealed = None;
        }
        let closed = self.kept.iter().filter(|(_, kept)| kept.kek.is_none());
        for annotation in closed.map(|(annotation, _)| *annotation).collect::<Vec<_>>() {
            self.kept.pop(&annotation);
        }
    }

    /// What was sealed, the one used last first.
    pub(super) fn sealed(&self) -> impl Iterator<Item = (&Digest, &Core, &SealedKek)> {
        self.kept
            .iter()
            .filter_map(|(annotation, kept)| Some((annotation, &kept.core, kept.sealed.as_deref()?)))
    }
}

impl Readers {
    pub(super) fn new(policy: ReadPolicy, clock: WallClock) -> Self {
        Self { policy, clock }
    }

    fn read(&self, core: &Core) -> bool {
        self.policy.accepts(core.policy.cluster(), (self.clock)()) && is_readable(&core.policy, &self.policy)
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Kept {
    pub(super) fn opened(core: Core, kek: Arc<LocalKek>) -> Self {
        Self { core, kek: Some(kek), sealed: None }
    }

    /// As it was read.
    pub(super) fn sealed(core: Core, sealed: SealedKek) -> Self {
        Self { core, kek: None, sealed: Some(Box::new(sealed)) }
    }
}

/// Ends a flight even if its task panics.
struct Landing {
    state: Arc<Mutex<State>>,
    digest: Digest,
    flight: watch::Receiver<Option<Opened>>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        // After a wipe, there may be another one.
        if state.flights.get(&self.digest).is_some_and(|flight| flight.same_channel(&self.flight)) {
            state.flights.remove(&self.digest);
        }
    }
}

/// The cache stays usable if a thread panicked with the lock held: every state of it is valid.
pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
