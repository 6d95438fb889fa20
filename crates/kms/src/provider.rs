//! One provider: answers KMS v2 from one atomic state, and knows nothing of gRPC.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use casemate_keys::{
    CacheOf, ClusterId, Epoch, KeyId, LocalKek, ReadPolicy, Readable, Sealed, WritePolicy, Writer as Program,
};
use casemate_keyservice::guarded::Guarded;
use casemate_kms_state::outage::Rules;
use casemate_recipients::Recipient;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::traffic::Traffic;
use opened::{Readers, Wipes};
use told::Retired;
use watch::Watch;

mod error;
mod kek;
mod observer;
mod opened;
mod renewal;
mod sealed;
mod signing;
mod snapshot;
mod store;
mod told;
mod watch;

pub use error::Error;
pub use kek::{Keyholder, WriteKek};
pub use observer::{NotReady, OBSERVE_EVERY, Observer, PROBE_EVERY, Ready, Requests, Succession, succession};
pub use opened::{OpenError, OpenedCounts, OpenedKeks};
pub use renewal::KekProblem;
pub use sealed::{Peeked, Protection, SealedCounts, SealedError, SecretError, SecretKind, peek_sealed_cache};
pub use signing::Signing;
pub use snapshot::{Snapshot, Wrong};
pub use store::{ANSWERS_WITHIN, Store, StoreError, StoredRecord};
pub use told::Told;
pub use watch::{Moment, OUTCOMES, Outcomes, Sighting, Use, class_name};

/// How long an Encrypt on the same connection keeps to the key id of a Status: kube-apiserver compares the
/// two, and a switch in between would turn it red.
pub const STATUS_HOLDS: Duration = Duration::from_secs(10);
/// A local KEK older than this is replaced at the next Encrypt: hygiene, no bound on exposure.
pub const MAX_KEK_AGE: Duration = Duration::from_secs(90 * 24 * 3600);

/// Seconds since 1970, from whatever clock the provider was given.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What the provider is configured to be.
pub struct Settings {
    /// For logs and errors.
    pub name: String,
    /// The configured cluster.
    pub cluster: ClusterId,
    /// The configured epoch.
    pub epoch: Epoch,
    /// Root keys to write with, in the configuration's order.
    pub write_keys: Vec<Arc<Guarded>>,
    /// Root keys to read with only.
    pub read_only_keys: Vec<Arc<Guarded>>,
    /// What people call the root keys: those that write, then those that only read.
    pub key_names: Vec<String>,
    /// What may be read.
    pub read_policy: ReadPolicy,
    /// What signs records, if anything does. What is read must be proven by its public half too.
    pub signing: Option<Arc<Signing>>,
    /// What an outage does.
    pub outage: Rules,
    /// What records say of who wrote them.
    pub program: Program,
    /// The clock of records.
    pub clock: WallClock,
}

impl Settings {
    /// Those that write, and those that only read.
    fn root_keys(&self) -> impl Iterator<Item = &Arc<Guarded>> {
        self.write_keys.iter().chain(&self.read_only_keys)
    }
}

/// Answers Status, Encrypt and Decrypt. Cheap to share; every method may be called at any time.
pub struct Provider {
    settings: Settings,
    recipients: Vec<Recipient>,
    store: Store,
    keyholder: Arc<Keyholder>,
    watch: Arc<Watch>,
    opened: OpenedKeks,
    standing: ArcSwap<Standing>,
    snapshot: ArcSwap<Snapshot>,
    traffic: Arc<Traffic>,
    retired: Arc<Retired>,
    /// Whoever saves a record, until it is known whether it writes.
    renewal: Arc<tokio::sync::Mutex<()>>,
    refreshes: Arc<Refreshes>,
    counts: Arc<Counts>,
}

/// The one atomic state that Status and Encrypt read.
#[derive(Clone, Debug)]
pub enum Standing {
    /// This writes.
    Writing(Arc<WriteKek>),
    /// This writes, and Status does not say `ok`; why.
    Failing(Arc<WriteKek>, String),
    /// Nothing is written; why, and what to do.
    Refusing(String),
}

impl Standing {
    /// What writes, if anything does.
    pub fn writes(&self) -> Option<&Arc<WriteKek>> {
        match self {
            Self::Writing(kek) | Self::Failing(kek, _) => Some(kek),
            Self::Refusing(_) => None,
        }
    }

    /// The same with another local KEK.
    fn with(&self, kek: Arc<WriteKek>) -> Self {
        match self {
            Self::Failing(_, why) => Self::Failing(kek, why.clone()),
            _ => Self::Writing(kek),
        }
    }
}

/// What Status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether all is well: `healthz: ok`.
    pub ok: bool,
    /// What the next Encrypt writes under.
    pub key_id: KeyId,
}

/// A sealed DEK source with what has to be stored beside it.
#[derive(Clone, Debug)]
pub struct Encrypted {
    /// The ciphertext.
    pub ciphertext: Vec<u8>,
    /// What it was written under.
    pub kek: Arc<WriteKek>,
}

/// Wishes to have the root keys looked at.
#[derive(Debug, Default)]
struct Refreshes {
    asked: AtomicU64,
    wanted: Notify,
}

/// What was done, counted since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Encrypts that succeeded.
    pub encrypted: AtomicU64,
    /// Decrypts that succeeded.
    pub decrypted: AtomicU64,
    /// Decrypts that were refused without asking a key service.
    pub refused: AtomicU64,
}

impl Provider {
    /// A provider that keeps what outlives a restart in `store`. It writes nothing until an [`Observer`] runs.
    pub fn new(settings: Settings, store: Store) -> Self {
        let watch = Arc::new(Watch::new(&settings));
        Self::watched(settings, store, watch)
    }

    fn watched(settings: Settings, store: Store, watch: Arc<Watch>) -> Self {
        let snapshot = Snapshot::before_the_first_look(watch.now(), watch.sightings());
        let keyholder = Arc::new(Keyholder::new(
            settings.root_keys().cloned().collect(),
            settings.signing.clone(),
            settings.read_policy.origin.clone(),
            watch.clone(),
            settings.program.clone(),
            settings.clock.clone(),
        ));
        let readers = Readers::new(settings.read_policy.clone(), settings.clock.clone());
        let starting = Standing::Refusing("it is starting; ask again in a moment".into());
        Self {
            settings,
            recipients: Vec::new(),
            store,
            keyholder,
            watch,
            opened: OpenedKeks::new(readers),
            standing: ArcSwap::from_pointee(starting),
            snapshot: ArcSwap::from_pointee(snapshot),
            traffic: Arc::default(),
            retired: Arc::default(),
            renewal: Arc::default(),
            refreshes: Arc::default(),
            counts: Arc::default(),
        }
    }

    /// What takes its place when the configuration changes: the same state directory, cache and counts, other keys. It
    /// writes nothing until its observer says so.
    fn successor(&self, settings: Settings, recipients: Vec<Recipient>) -> Self {
        let both = [
            (&settings.write_keys, &self.settings.write_keys),
            (&settings.read_only_keys, &self.settings.read_only_keys),
        ];
        for (keys, before) in both {
            // Of one that was split, the first part goes on.
            let mut before: Vec<_> = before.iter().collect();
            for key in keys {
                if let Some(at) = before.iter().position(|before| before.prefix().overlaps(key.prefix())) {
                    key.succeed(before.remove(at));
                }
            }
        }
        let watch = Arc::new(Watch::new(&settings).succeeding(&self.watch));
        Self {
            opened: self.opened.clone(),
            traffic: self.traffic.clone(),
            retired: self.retired.clone(),
            renewal: self.renewal.clone(),
            refreshes: self.refreshes.clone(),
            counts: self.counts.clone(),
            ..Self::watched(settings, self.store.rehearsing(), watch).recoverable_by(recipients)
        }
    }

    /// Wraps every local KEK that is made from now on for these recovery recipients too.
    #[must_use]
    pub fn recoverable_by(mut self, recipients: Vec<Recipient>) -> Self {
        self.recipients = recipients;
        self
    }

    /// Keeps local KEKs that it has opened on disk too, sealed under what `protection` names, and reads those of the last
    /// run. What is wrong with them keeps it from nothing. Without `protection`, what such a run has left is destroyed.
    #[must_use]
    pub async fn keeping_sealed(mut self, protection: Option<Protection>) -> Self {
        let Some(protection) = protection else {
            sealed::destroy_leftovers(self.store.clone()).await;
            return self;
        };
        let of = CacheOf { cluster: self.settings.cluster.clone(), provider: self.settings.name.clone() };
        self.opened = self.opened.sealed_in(self.store.clone(), protection, of).await;
        self
    }

    /// The configured name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// What the next Encrypt writes under. Never waits.
    ///
    /// # Errors
    /// [`Error::NotWriting`]: Status must not name a key id under which Encrypt would not write.
    pub fn status(&self, told: &Told) -> Result<KeyId, Error> {
        self.health(told).map(|health| health.key_id)
    }

    /// The same, and whether all is well.
    ///
    /// # Errors
    /// As [`Provider::status`].
    pub fn health(&self, told: &Told) -> Result<Health, Error> {
        // In this order: what a wipe that comes in between has stopped is not remembered as told after it.
        let wipes = self.opened.wipes();
        let standing = self.standing.load();
        match &**standing {
            Standing::Writing(kek) | Standing::Failing(kek, _) => {
                told.remember(kek, wipes);
                let ok = matches!(&**standing, Standing::Writing(_));
                Ok(Health { ok, key_id: kek.key_id().clone() })
            }
            Standing::Refusing(reason) => Err(self.not_writing(reason)),
        }
    }

    /// Seals a DEK source: under what the connection was told less than [`STATUS_HOLDS`] ago, if that is still read,
    /// else under what is active.
    ///
    /// # Errors
    /// [`Error::NotWriting`], or [`Error::Invalid`] for a length that no DEK source has.
    pub async fn encrypt(self: &Arc<Self>, dek_source: &[u8], told: &Told) -> Result<Encrypted, Error> {
        loop {
            let wipes = self.opened.wipes();
            let kek = self.kek_to_write_with(told, wipes).await?;
            // One that was wiped while its replacement was waited for.
            if self.opened.wipes() != wipes {
                continue;
            }
            let ciphertext = kek.seal(dek_source)?;
            self.counts.encrypted.fetch_add(1, Ordering::Relaxed);
            return Ok(Encrypted { ciphertext, kek });
        }
    }

    async fn kek_to_write_with(self: &Arc<Self>, told: &Told, wipes: Wipes) -> Result<Arc<WriteKek>, Error> {
        let active = match &**self.standing.load() {
            Standing::Writing(kek) | Standing::Failing(kek, _) => kek.clone(),
            Standing::Refusing(reason) => return Err(self.not_writing(reason)),
        };
        Ok(match told.recently(wipes) {
            Some(kek) if kek.key_id() != active.key_id() && self.reads(&kek.record().core().policy) => kek,
            _ => self.fresh(active).await,
        })
    }

    /// Opens what any node of the cluster sealed, asking a key service only for a local KEK not seen before.
    ///
    /// # Errors
    /// All but [`Error::NotWriting`].
    pub async fn decrypt(&self, sealed: &Sealed<'_>) -> Result<Zeroizing<Vec<u8>>, Error> {
        self.decrypt_and_tell(sealed, || {}).await
    }

    /// The same; before it waits for a root key, it says so.
    ///
    /// # Errors
    /// As [`Provider::decrypt`].
    pub async fn decrypt_and_tell(
        &self,
        sealed: &Sealed<'_>,
        asks_root_key: impl FnOnce(),
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let now = (self.settings.clock)();
        let readable = self.settings.read_policy.check(sealed, now).map_err(|refusal| {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            Error::Refused { key_id: sealed.key_id.chars().take(100).collect(), refusal }
        })?;
        let readable = Arc::new(readable);
        let key_id = || readable.record().core().policy.key_id();
        let kek = self
            .opened
            .get_or_open(&self.keyholder, &readable, sealed.ciphertext, asks_root_key)
            .await
            .map_err(|source| Error::NotOpened { key_id: key_id(), source })?;
        let plaintext = readable
            .open(&kek, sealed.ciphertext)
            .map_err(|source| Error::Damaged { key_id: key_id(), source })?;
        self.counts.decrypted.fetch_add(1, Ordering::Relaxed);
        Ok(plaintext)
    }

    /// What the cache of opened local KEKs did since the start.
    pub fn opened_counts(&self) -> OpenedCounts {
        self.opened.counts()
    }

    /// What its sealed cache is; `None` if none is configured.
    pub fn sealed_counts(&self) -> Option<SealedCounts> {
        self.opened.sealed_counts()
    }

    /// The write policies of records that it has opened, and that `policy` would not read any more.
    pub fn unreadable_by(&self, policy: &ReadPolicy) -> Vec<WritePolicy> {
        self.opened.unreadable_by(policy)
    }

    /// Has its root keys looked at soon, and numbers the wish: it is fulfilled, by a look that began afterwards, when
    /// [`Snapshot::refreshed`] is no less. However many there are, root keys are looked at every few seconds at most.
    pub fn refresh(&self) -> u64 {
        let number = self.refreshes.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.refreshes.wanted.notify_one();
        number
    }

    /// How often [`Provider::refresh`] was called.
    pub fn refreshes(&self) -> u64 {
        self.refreshes.asked.load(Ordering::Acquire)
    }

    /// What it is configured to be.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What writes now, or why nothing does.
    pub fn standing(&self) -> Arc<Standing> {
        self.standing.load_full()
    }

    /// What its observer knew last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Calls and connections of its socket.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// What was served since the start.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Forgets all local KEKs and destroys what is sealed of them. Nothing must stand any more that writes.
    async fn wipe(&self) {
        self.retired.forget_all();
        self.opened.forget_all(&self.store).await;
    }

    /// Whether one of the root keys of `policy` may be asked.
    fn reads(&self, policy: &WritePolicy) -> bool {
        is_readable(policy, &self.settings.read_policy)
    }

    /// Ends when a root key that was out has opened something that is stored.
    async fn answers_again(&self) {
        let mut wanted: Vec<_> = self.settings.root_keys().map(|key| Box::pin(key.wanted())).collect();
        poll_fn(|cx| match wanted.iter_mut().any(|wanted| wanted.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn not_writing(&self, reason: &str) -> Error {
        Error::NotWriting { provider: self.name().to_owned(), reason: reason.to_owned() }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("name", &self.settings.name).finish_non_exhaustive()
    }
}

fn is_readable(policy: &WritePolicy, by: &ReadPolicy) -> bool {
    let proven = by.origin.may_prove(policy.signer());
    policy.roots().iter().any(|root| by.may_ask(root).is_ok() && (proven || !root.algorithm.is_asymmetric()))
}

/// The root key that covers `root`, if one is configured.
fn root_key<'a>(keys: &'a [Arc<Guarded>], root: &casemate_keys::Root) -> Option<&'a Arc<Guarded>> {
    keys.iter().find(|key| key.prefix().rest(&root.lineage).is_some())
}

/// A readable record and the local KEK that was found in it.
type Opened = Result<Arc<LocalKek>, OpenError>;
type SharedReadable = Arc<Readable>;

#[cfg(test)]
mod tests;
