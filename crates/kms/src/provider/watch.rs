//! What was seen of each root key: for people, no decision looks at it.
//!
//! Two things are kept apart. What the observer itself asked (which version writes; its own wraps) says how a root key
//! is. What was asked to open a record from etcd is counted only: whoever writes etcd chooses it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use casemate_keys::{LineagePrefix, Root};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Class, Failure};
use tokio::time::Instant;

use super::{Settings, WallClock};

/// Names of the outcomes of a call to a root key, as labels and in `/status`.
pub const OUTCOMES: [&str; 9] = [
    "ok",
    "unreachable",
    "throttled",
    "credential",
    "refused",
    "corrupt",
    "not_opened",
    "undecided",
    "other",
];

/// The name of a class among [`OUTCOMES`].
pub fn class_name(class: Class) -> &'static str {
    OUTCOMES[outcome(Some(class))]
}

fn outcome(class: Option<Class>) -> usize {
    match class {
        None => 0,
        Some(Class::Unreachable) => 1,
        Some(Class::Throttled) => 2,
        Some(Class::Credential) => 3,
        Some(Class::Refused) => 4,
        Some(Class::Corrupt) => 5,
        Some(Class::NotOpened) => 6,
        Some(Class::Undecided) => 7,
        // A class that is younger than this table.
        Some(_) => OUTCOMES.len() - 1,
    }
}

/// What a root key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// New data is wrapped under it.
    Write,
    /// It opens what was written before.
    Read,
}

/// A moment on both clocks: one for people, one for how long ago it was.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Seconds since 1970.
    pub unix: u64,
    /// Monotonic.
    pub instant: Instant,
}

/// All root keys of a provider.
pub(super) struct Watch {
    keys: Vec<Watched>,
    clock: WallClock,
}

struct Watched {
    name: String,
    key: Arc<Guarded>,
    prefix: LineagePrefix,
    role: Use,
    seen: Mutex<Seen>,
    observed: Arc<Outcomes>,
    opened: Arc<Outcomes>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    root: Option<Root>,
    last_good: Option<Moment>,
    /// The last answers to what is asked: which version writes, and wrap and open again.
    problems: [Option<Failure>; 2],
    failing_since: Option<Moment>,
    last_failure: Option<(Failure, Moment)>,
}

/// Counts by outcome, in the order of [`OUTCOMES`].
#[derive(Debug, Default)]
pub struct Outcomes([AtomicU64; OUTCOMES.len()]);

impl Outcomes {
    /// The counts now.
    pub fn counts(&self) -> [u64; OUTCOMES.len()] {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }

    fn add(&self, class: Option<Class>) {
        self.0[outcome(class)].fetch_add(1, Ordering::Relaxed);
    }
}

/// What is known of one root key.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Its configured name, or what its lineages begin with.
    pub name: String,
    /// The root key itself, for its condition now.
    pub key: Arc<Guarded>,
    /// What its lineages begin with.
    pub prefix: LineagePrefix,
    /// What it is for.
    pub role: Use,
    /// The version that it named last.
    pub root: Option<Root>,
    /// When it last answered as it should.
    pub last_good: Option<Moment>,
    /// Since when it does not.
    pub failing_since: Option<Moment>,
    /// How and when it failed last; it may be well again since.
    pub last_failure: Option<(Failure, Moment)>,
    /// What the observer asked.
    pub observed: Arc<Outcomes>,
    /// What was asked to open records.
    pub opened: Arc<Outcomes>,
}

/// What the observer asked of a root key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Version = 0,
    Wrap = 1,
}

impl Watch {
    pub(super) fn new(settings: &Settings) -> Self {
        let write = settings.write_keys.iter().map(|key| (key, Use::Write));
        let read = settings.read_only_keys.iter().map(|key| (key, Use::Read));
        let watched = |(index, (key, role)): (usize, (&Arc<Guarded>, Use))| Watched {
            name: settings.key_names.get(index).cloned().unwrap_or_else(|| key.prefix().to_string()),
            key: key.clone(),
            prefix: key.prefix().clone(),
            role,
            seen: Mutex::default(),
            observed: Arc::default(),
            opened: Arc::default(),
        };
        Self { keys: write.chain(read).enumerate().map(watched).collect(), clock: settings.clock.clone() }
    }

    /// The same root keys as seen until now, if they are still configured for the same. Of one that was split, the first
    /// part goes on.
    pub(super) fn succeeding(mut self, before: &Self) -> Self {
        let mut before: Vec<&Watched> = before.keys.iter().collect();
        for key in &mut self.keys {
            let same = |other: &&Watched| other.role == key.role && other.prefix.overlaps(&key.prefix);
            let Some(at) = before.iter().position(same) else { continue };
            let other = before.remove(at);
            let mut seen = lock(&other.seen).clone();
            // A version that is another root key's now, or nobody's, is not one of this one.
            seen.root = seen.root.filter(|root| key.prefix.rest(&root.lineage).is_some());
            key.seen = Mutex::new(seen);
            (key.observed, key.opened) = (other.observed.clone(), other.opened.clone());
        }
        self
    }

    /// The root key with this prefix was asked which version writes.
    pub(super) fn observed(&self, prefix: &LineagePrefix, answer: &Result<Root, Failure>) {
        let Some(key) = self.keys.iter().find(|key| key.prefix == *prefix) else { return };
        if let Ok(root) = answer {
            lock(&key.seen).root = Some(root.clone());
        }
        self.note(key, Asked::Version, answer.as_ref().err());
    }

    /// The root key of `root` was asked to wrap a payload of ours and to open it again.
    pub(super) fn wrapped<T>(&self, root: &Root, answer: &Result<T, Failure>) {
        if let Some(key) = self.key_of(root) {
            self.note(key, Asked::Wrap, answer.as_ref().err());
        }
    }

    /// The root key of `root` was asked to open a wrap that stands in etcd.
    pub(super) fn opened(&self, root: &Root, class: Option<Class>) {
        if let Some(key) = self.key_of(root) {
            key.opened.add(class);
        }
    }

    /// All that is known, in the order of the configuration.
    pub(super) fn sightings(&self) -> Vec<Sighting> {
        let sighting = |key: &Watched| {
            let seen = lock(&key.seen).clone();
            Sighting {
                name: key.name.clone(),
                key: key.key.clone(),
                prefix: key.prefix.clone(),
                role: key.role,
                root: seen.root,
                last_good: seen.last_good,
                failing_since: seen.failing_since,
                last_failure: seen.last_failure,
                observed: key.observed.clone(),
                opened: key.opened.clone(),
            }
        };
        self.keys.iter().map(sighting).collect()
    }

    pub(super) fn now(&self) -> Moment {
        Moment { unix: (self.clock)(), instant: Instant::now() }
    }

    fn note(&self, key: &Watched, asked: Asked, failure: Option<&Failure>) {
        key.observed.add(failure.map(|failure| failure.class));
        let now = self.now();
        let mut seen = lock(&key.seen);
        seen.problems[asked as usize] = failure.cloned();
        if let Some(failure) = failure {
            seen.last_failure = Some((failure.clone(), now));
        }
        if seen.problems.iter().any(Option::is_some) {
            seen.failing_since.get_or_insert(now);
        } else {
            (seen.failing_since, seen.last_good) = (None, Some(now));
        }
    }

    fn key_of(&self, root: &Root) -> Option<&Watched> {
        self.keys.iter().find(|key| key.prefix.rest(&root.lineage).is_some())
    }
}

/// Every state of it is valid, whatever panicked.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
