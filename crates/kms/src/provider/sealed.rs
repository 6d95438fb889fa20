//! The sealed cache: opened local KEKs on this node's disk, so that a host starts while no root key answers.
//!
//! Two files in the provider's folder: `sealing-key`, a random key under what the admin delivers, and `sealed-cache`,
//! local KEKs under that key, in the order in which memory would drop them. Memory is the master: the file is replaced
//! whole, by one writer, off the way of calls. Whatever is wrong with either costs the cache and nothing else.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwapOption, Guard};
use casemate_keys::{CacheOf, Core, Digest, LocalKek, Protector, SealedKek, SealingKey};
use tokio::sync::mpsc;

use super::opened::{Kept, State, lock};
use super::{Store, StoreError, store};
use format::{Entry, KeyForm, MAX_CACHE_LEN, MAX_KEY_LEN};

mod format;
mod secret;

pub use secret::{Protection, SecretError, SecretKind};

const KEY: &str = "sealing-key";
const CACHE: &str = "sealed-cache";
/// Between two writings: a start that opens many local KEKs is few of them.
const PAUSE: Duration = Duration::from_secs(1);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(30);

/// What the sealed cache is, at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedCounts {
    /// Local KEKs in its file.
    pub entries: u64,
    /// Entries that were refused since the start: torn, or changed.
    pub damaged: u64,
    /// Whether the file has all that memory has.
    pub saved: bool,
    /// Why it can't be read or written, and what to do.
    pub problem: Option<String>,
}

/// Why the sealed cache can't be used now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// What protects it can't be had, or protects nothing.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Another secret, or a file of another provider.
    #[error(
        "{}: it does not open with what {} holds: another {what} was delivered, the file was changed, or it is of another \
         cluster or provider; deliver the one that it was made with, or remove the file to begin anew", file.display(), secret.display()
    )]
    NotOpened {
        /// Which sealing key.
        file: PathBuf,
        /// What should have opened it.
        secret: PathBuf,
        /// Credential or passphrase.
        what: SecretKind,
    },
    /// The configuration was changed from one kind to the other.
    #[error(
        "{}: it was made with a {made}, and sealedCache names a {configured}; name the {made} again, or remove the file to \
         begin anew", file.display()
    )]
    OtherKind {
        /// Which sealing key.
        file: PathBuf,
        /// What it was made with.
        made: SecretKind,
        /// What is configured.
        configured: SecretKind,
    },
    /// The state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One provider's.
pub(super) struct SealedCache {
    store: Store,
    protection: Protection,
    of: CacheOf,
    kept: Arc<Mutex<State>>,
    /// There while the files are those of this key.
    key: ArcSwapOption<SealingKey>,
    /// Whoever touches the files.
    desk: Mutex<()>,
    /// The files are to go, whatever is in them.
    doomed: AtomicBool,
    /// Memory has what the file has not, or has no more.
    changed: AtomicBool,
    entries: AtomicU64,
    damaged: AtomicU64,
    problem: ArcSwapOption<String>,
    wake: mpsc::Sender<()>,
}

impl SealedCache {
    /// Reads what is there, and keeps it up to date from then on. A problem is told and tried again: it must not keep
    /// the provider from its start.
    pub(super) async fn begin(
        store: Store,
        protection: Protection,
        of: CacheOf,
        kept: Arc<Mutex<State>>,
    ) -> Arc<Self> {
        let (wake, woken) = mpsc::channel(1);
        let cache = Arc::new(Self {
            store,
            protection,
            of,
            kept,
            key: ArcSwapOption::empty(),
            desk: Mutex::default(),
            doomed: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            problem: ArcSwapOption::empty(),
            wake,
        });
        let good = cache.clone().work().await;
        tokio::spawn(tend(Arc::downgrade(&cache), woken, good));
        cache
    }

    /// The local KEK of an entry that was read from the file.
    pub(super) fn open(&self, annotation: &Digest, core: &Core, sealed: &SealedKek) -> Option<LocalKek> {
        let opened = self.key.load().as_ref()?.open(sealed, &self.of, annotation, core);
        if opened.is_none() {
            self.damaged.fetch_add(1, Ordering::Relaxed);
        }
        opened
    }

    /// Memory has changed.
    pub(super) fn note_change(&self) {
        self.changed.store(true, Ordering::Release);
        // One that waits already is enough.
        let _ = self.wake.try_send(());
    }

    /// Nothing of it is opened any more. Next, memory is to be cleared, and the files are to be destroyed.
    pub(super) fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
        self.key.store(None);
    }

    /// Destroys the files of a cache that is doomed.
    pub(super) async fn destroy(self: Arc<Self>) {
        if !self.clone().work().await {
            // It is told; tried again until they are gone.
            let _ = self.wake.try_send(());
        }
    }

    pub(super) fn counts(&self) -> SealedCounts {
        let problem = self.problem.load();
        SealedCounts {
            entries: self.entries.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            saved: !self.changed.load(Ordering::Acquire) && problem.is_none(),
            problem: problem.as_ref().map(|problem| problem.to_string()),
        }
    }

    /// Brings the files up to date; says whether they are. What went wrong is logged when it begins and when it ends.
    async fn work(self: Arc<Self>) -> bool {
        let cache = self.clone();
        let done = self.store.work(move |_| cache.bring_up_to_date()).await;
        let provider = &self.of.provider;
        let problem = done.err().map(|error| error.to_string());
        let before = self.problem.swap(problem.clone().map(Arc::new));
        match (&problem, before.as_deref()) {
            (Some(problem), before) if before != Some(problem) => {
                tracing::error!(%provider, problem, "the sealed cache can't be used now: a start during an outage would fail");
            }
            (None, Some(_)) => tracing::info!(%provider, "the sealed cache is up to date again"),
            _ => {}
        }
        problem.is_none()
    }

    fn bring_up_to_date(&self) -> Result<(), SealedError> {
        let _desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        if self.doomed.load(Ordering::Acquire) {
            self.destroy_files()?;
            self.doomed.store(false, Ordering::Release);
        }
        if self.key.load().is_none() {
            self.read()?;
        }
        if self.changed.swap(false, Ordering::AcqRel) {
            let written = self.write();
            if written.is_err() {
                self.changed.store(true, Ordering::Release);
            }
            written?;
        }
        Ok(())
    }

    fn destroy_files(&self) -> Result<(), StoreError> {
        // A writer that was at its desk meanwhile may have made one, and sealed what was opened since.
        self.key.store(None);
        lock(&self.kept).forget_sealed();
        self.changed.store(true, Ordering::Release);
        shred(&self.store)?;
        self.entries.store(0, Ordering::Relaxed);
        tracing::warn!(provider = %self.of.provider, "the sealing key and the sealed cache are destroyed");
        Ok(())
    }

    /// Opens the sealing key, if there is one, and takes over what is sealed under it.
    fn read(&self) -> Result<(), SealedError> {
        let (form, sealed) = match self.stored(KEY, MAX_KEY_LEN, format::parse_key)? {
            Stored::Whole(key) => key,
            Stored::Damaged => return Ok(self.set_both_aside()?),
            // A wipe that was cut off: what is sealed under a key that is gone is of no use.
            Stored::Absent if self.store.path_of(CACHE).exists() => return Ok(shred(&self.store)?),
            Stored::Absent => return Ok(()),
        };
        let secret = self.protection.read(self.store.folder())?;
        let key = open_key(&form, &sealed, &secret, &self.protection, &self.of, self.store.path_of(KEY))?;
        let mut entries = self.stored_entries(&key)?;
        let intact = entries.len();
        let mut state = lock(&self.kept);
        entries.retain(|entry| state.reads(&entry.core));
        if entries.len() < intact {
            self.changed.store(true, Ordering::Release);
        }
        self.entries.store(entries.len() as u64, Ordering::Relaxed);
        // A wipe that came meanwhile has cleared memory, and destroys the files next.
        if self.doomed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.key.store(Some(Arc::new(key)));
        for Entry { annotation, core, sealed } in entries {
            state.put_behind(annotation, Kept::sealed(core, sealed));
        }
        Ok(())
    }

    /// Those that open, the one used last first.
    fn stored_entries(&self, key: &SealingKey) -> Result<Vec<Entry>, StoreError> {
        let (mut entries, mut damaged) = match self.stored(CACHE, MAX_CACHE_LEN, format::parse_cache)? {
            Stored::Whole(cache) => cache,
            Stored::Absent => return Ok(Vec::new()),
            Stored::Damaged => {
                self.set_aside(CACHE)?;
                return Ok(Vec::new());
            }
        };
        entries.retain(|entry| {
            let opens = entry.opens(key, &self.of);
            damaged += u64::from(!opens);
            opens
        });
        if damaged > 0 {
            tracing::warn!(
                provider = %self.of.provider, damaged, intact = entries.len(),
                "entries of the sealed cache are torn or changed: they are left out, root keys are asked for them"
            );
            self.damaged.fetch_add(damaged, Ordering::Relaxed);
            self.changed.store(true, Ordering::Release);
        }
        Ok(entries)
    }

    /// What a file has; one that is too long is damaged.
    fn stored<T>(
        &self,
        name: &str,
        most: usize,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Stored<T>, StoreError> {
        match self.store.read(name, most as u64) {
            Ok(Some(bytes)) => Ok(parse(&bytes).map_or(Stored::Damaged, Stored::Whole)),
            Ok(None) => Ok(Stored::Absent),
            Err(error) if error.is_of_content() => Ok(Stored::Damaged),
            Err(error) => Err(error),
        }
    }

    /// What is sealed under a key that can't be read opens with a good copy of it, or with the version that made it. The
    /// cache goes first: cut off between the two, the next start finds the key as it was, and no cache without a key.
    fn set_both_aside(&self) -> Result<(), StoreError> {
        if self.store.path_of(CACHE).exists() {
            let kept = self.store.set_aside(CACHE)?;
            tracing::warn!(
                provider = %self.of.provider, file = %kept.display(),
                "its sealing-key can't be read: this is kept aside with it"
            );
        }
        self.set_aside(KEY)
    }

    fn set_aside(&self, name: &str) -> Result<(), StoreError> {
        let kept = self.store.set_aside(name)?;
        self.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            provider = %self.of.provider, file = %kept.display(),
            "this was no {name} of this version, and is kept aside; the cache begins anew"
        );
        Ok(())
    }

    /// Replaces the file by what memory has. The first time, with a new sealing key.
    fn write(&self) -> Result<(), SealedError> {
        let key = match Guard::into_inner(self.key.load()) {
            Some(key) => key,
            // With nothing in memory there is nothing to protect: not before a root key has opened something.
            None if lock(&self.kept).is_empty() => return Ok(()),
            None => self.make_key()?,
        };
        let unsealed = {
            let mut state = lock(&self.kept);
            state.drop_unreadable();
            state.unsealed()
        };
        for (annotation, core, kek) in unsealed {
            let sealed = key.seal(&kek, &self.of, &annotation, &core);
            lock(&self.kept).put_sealed(&annotation, sealed);
        }
        let (bytes, entries) = {
            let state = lock(&self.kept);
            let sealed = || state.sealed();
            (format::render_cache(sealed()), sealed().count())
        };
        self.store.replace(CACHE, &bytes)?;
        self.entries.store(entries as u64, Ordering::Relaxed);
        Ok(())
    }

    fn make_key(&self) -> Result<Arc<SealingKey>, SealedError> {
        let secret = self.protection.read(self.store.folder())?;
        let form = KeyForm::new(self.protection.kind());
        let protector = protector(&form, &secret, &self.protection)?;
        let key = Arc::new(SealingKey::generate());
        let sealed = key.sealed_under(&protector, &self.of, &form.encode());
        self.store.replace(KEY, &format::render_key(&form, &sealed))?;
        self.key.store(Some(key.clone()));
        Ok(key)
    }
}

/// What is found in a file.
enum Stored<T> {
    Absent,
    Damaged,
    Whole(T),
}

/// Destroys what a cache that is configured no more has left in `store`, and says so: the day it is configured again, it
/// would bring back what was wiped meanwhile. A problem keeps nobody from anything.
pub(super) async fn destroy_leftovers(store: Store) {
    let done = store.work(|store| {
        let are_there = are_there(store);
        shred(store).map(|()| are_there)
    });
    match done.await {
        Ok(true) => {
            tracing::warn!(
                folder = %store.folder().display(),
                "sealedCache is not configured: the sealing key and the sealed cache that were there are destroyed"
            );
        }
        Err(problem) => {
            tracing::error!(%problem, "a sealed cache that is configured no more can't be destroyed: remove sealing-key and sealed-cache");
        }
        Ok(false) => {}
    }
}

/// The files, what is written aside of them and what was set aside.
fn are_there(store: &Store) -> bool {
    let is_ours =
        |name: &OsStr| [KEY, CACHE].iter().any(|ours| name.as_encoded_bytes().starts_with(ours.as_bytes()));
    fs::read_dir(store.folder())
        .is_ok_and(|entries| entries.flatten().any(|entry| is_ours(&entry.file_name())))
}

/// The key first: what is left of the cache then opens with nothing.
fn shred(store: &Store) -> Result<(), StoreError> {
    store.shred(KEY)?;
    store.shred(CACHE)
}

/// Writes what changes, until its provider is gone.
async fn tend(cache: Weak<SealedCache>, mut woken: mpsc::Receiver<()>, mut good: bool) {
    loop {
        if good {
            if woken.recv().await.is_none() {
                return;
            }
        } else {
            // A full disk gets no less full by many tries.
            tokio::time::sleep(AGAIN).await;
        }
        let Some(cache) = cache.upgrade() else { return };
        good = cache.work().await;
        tokio::time::sleep(PAUSE).await;
    }
}

impl std::fmt::Debug for SealedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedCache").field("of", &self.of).finish_non_exhaustive()
    }
}

/// What a look at the files showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Local KEKs that open.
    pub entries: u64,
    /// Entries that don't.
    pub damaged: u64,
    /// When the file was written.
    pub written: Option<SystemTime>,
}

/// Looks at the files beside the process that may be using them, and changes nothing; `None` if there is nothing yet.
///
/// # Errors
/// [`SealedError`].
pub fn peek_sealed_cache(
    state_directory: &Path,
    protection: &Protection,
    of: &CacheOf,
) -> Result<Option<Peeked>, SealedError> {
    let folder = state_directory.join(&of.provider);
    let secret = protection.read(&folder)?;
    let file = folder.join(KEY);
    let Some(stored) = store::read(&file, MAX_KEY_LEN as u64)? else {
        protector(&KeyForm::new(protection.kind()), &secret, protection)?;
        return Ok(None);
    };
    let Some((form, sealed)) = format::parse_key(&stored) else {
        return Ok(Some(Peeked { entries: 0, damaged: 1, written: None }));
    };
    let key = open_key(&form, &sealed, &secret, protection, of, file)?;
    let cache = folder.join(CACHE);
    let (entries, damaged) = match store::read(&cache, MAX_CACHE_LEN as u64)? {
        Some(bytes) => format::parse_cache(&bytes).unwrap_or((Vec::new(), 1)),
        None => (Vec::new(), 0),
    };
    let opens = entries.iter().filter(|entry| entry.opens(&key, of)).count();
    Ok(Some(Peeked {
        entries: opens as u64,
        damaged: damaged + (entries.len() - opens) as u64,
        written: fs::metadata(&cache).and_then(|found| found.modified()).ok(),
    }))
}

fn open_key(
    form: &KeyForm,
    sealed: &SealedKek,
    secret: &[u8],
    protection: &Protection,
    of: &CacheOf,
    file: PathBuf,
) -> Result<SealingKey, SealedError> {
    let (made, configured) = (form.kind(), protection.kind());
    if made != configured {
        return Err(SealedError::OtherKind { file, made, configured });
    }
    let protector = protector(form, secret, protection)?;
    SealingKey::open_sealed(&protector, of, &form.encode(), sealed).ok_or_else(|| SealedError::NotOpened {
        file,
        secret: protection.path().to_owned(),
        what: configured,
    })
}

fn protector(form: &KeyForm, secret: &[u8], protection: &Protection) -> Result<Protector, SecretError> {
    form.protector(secret).map_err(|error| SecretError::Weak { path: protection.path().to_owned(), error })
}

#[cfg(test)]
mod tests;
