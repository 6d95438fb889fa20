//! Making, re-opening and opening local KEKs: the only code that asks root keys to wrap and unwrap.

use std::fmt;
use std::sync::Arc;

use casemate_keys::names::sha256;
use casemate_keys::origin::OriginPolicy;
use casemate_keys::{
    Core, Digest, Fingerprint, KekError, KeyId, LocalKek, Readable, Record, Root, WritePolicy,
    Writer as Program, origin_message, payload,
};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Class, Failure};
use casemate_recipients::Recipient;
use zeroize::Zeroizing;

use super::watch::Watch;
use super::{MAX_KEK_AGE, OpenError, Opened, Signing, WallClock, root_key};

/// How far in the future a record may have been made: clocks differ.
const CLOCK_SKEW: u64 = 300;

/// A local KEK to write with, and its record.
pub struct WriteKek {
    kek: Arc<LocalKek>,
    record: Record,
    annotation: Vec<u8>,
    digest: Digest,
    key_id: KeyId,
}

impl WriteKek {
    fn new(kek: Arc<LocalKek>, record: Record) -> Self {
        let annotation = record.encode();
        let (digest, key_id) = (sha256(&annotation), record.core().policy.key_id());
        Self { kek, record, annotation, digest, key_id }
    }

    /// The name of its write policy.
    pub fn key_id(&self) -> &KeyId {
        &self.key_id
    }

    /// What is stored beside the data.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The record, encoded: the annotation's value.
    pub fn annotation(&self) -> &[u8] {
        &self.annotation
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    pub(super) fn local_kek(&self) -> &Arc<LocalKek> {
        &self.kek
    }

    /// What a restart needs to write with it again: the record, and a tag where opening the record does not prove
    /// every part of it.
    pub(super) fn stored(&self) -> Vec<u8> {
        let mut stored = self.annotation.clone();
        if self.record.recovery_wraps().next().is_some() || self.record.origin_signature().is_some() {
            stored.extend(self.kek.record_tag(&self.digest));
        }
        stored
    }

    pub(super) fn seal(&self, dek_source: &[u8]) -> Result<Vec<u8>, KekError> {
        self.kek.seal(self.record.core().policy.suite(), &self.digest, dek_source)
    }
}

impl fmt::Debug for WriteKek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteKek").field("record", &self.record).finish_non_exhaustive()
    }
}

/// What a probe has opened again, at the cost of one call each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// What it has just wrapped.
    Fresh,
    /// What stands in the record.
    Record,
    /// Both.
    Both,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Probed {
    /// Whether the record is one of all these root keys, as far as that was asked and answered.
    pub(super) record_opens: Option<bool>,
    /// What is wrong with them.
    pub(super) failures: Vec<Failure>,
}

/// What became of a stored record.
pub(super) enum Reopened {
    /// It writes on.
    Kek {
        /// What writes.
        kek: Arc<WriteKek>,
        /// Whether every root key opened it; those that did not could not be asked.
        by_all: bool,
        /// Whether a new one is due.
        is_old: bool,
    },
    /// It is not what a new one would be, or is damaged.
    Unfit,
    /// It is what a new one would be, and this root key does not open it.
    NotOpened(Root),
}

/// Asks root keys.
pub struct Keyholder {
    keys: Vec<Arc<Guarded>>,
    signing: Option<Arc<Signing>>,
    origin: OriginPolicy,
    watch: Arc<Watch>,
    program: Program,
    clock: WallClock,
}

impl Keyholder {
    pub(super) fn new(
        keys: Vec<Arc<Guarded>>,
        signing: Option<Arc<Signing>>,
        origin: OriginPolicy,
        watch: Arc<Watch>,
        program: Program,
        clock: WallClock,
    ) -> Self {
        Self { keys, signing, origin, watch, program, clock }
    }

    /// A new local KEK under `policy`. Each wrap is opened again before anything is sealed, and where the
    /// service binds associated data, must not open with another digest: services ignore misspelled
    /// parameters in silence. Recovery wraps can't be opened here: their form is looked at.
    pub(super) async fn make(
        &self,
        policy: &WritePolicy,
        recipients: &[Recipient],
    ) -> Result<WriteKek, Failure> {
        let kek = LocalKek::generate();
        let core = Core {
            policy: policy.clone(),
            kek_id: kek.id(),
            created: (self.clock)(),
            writer: self.program.clone(),
        };
        let digest = core.digest();
        let payload = payload::encode(&kek, &digest);
        let mut wraps = Vec::with_capacity(policy.roots().len());
        for root in policy.roots() {
            wraps.push(self.wrap_and_prove(root, &digest, &payload).await?);
        }
        let recovery_wraps = recovery_wraps(policy, recipients, &payload)?;
        let signature = self.signature(&core, &wraps, &recovery_wraps).await?;
        let record = Record::new(core, wraps, recovery_wraps, signature).map_err(|error| {
            Failure::new(
                Class::Corrupt,
                format!("the wraps make no record: {error}"),
                "use a root key whose wraps fit, or fewer recovery recipients",
            )
        })?;
        Ok(WriteKek::new(Arc::new(kek), record))
    }

    /// The signature of a record of these parts, if its policy has a signer.
    async fn signature(
        &self,
        core: &Core,
        wraps: &[Vec<u8>],
        recovery_wraps: &[Vec<u8>],
    ) -> Result<Option<Vec<u8>>, Failure> {
        let Some(named) = core.policy.signer() else { return Ok(None) };
        let signing =
            self.signing.as_ref().filter(|signing| signing.lineage() == named).ok_or_else(|| {
                Failure::new(
                    Class::Refused,
                    format!("signer {named} is not configured here"),
                    "add it as `signer`",
                )
            })?;
        signing.sign(&origin_message(core, wraps, recovery_wraps)).await.map(Some)
    }

    /// Whether this record may be written with again, as far as its origin goes. Whoever writes the state directory could
    /// plant one under an asymmetric key; its signature proves that nobody did, and what is accepted unproven is read
    /// only.
    fn may_write_on(&self, record: &Record) -> bool {
        let policy = &record.core().policy;
        let needs_proof =
            policy.signer().is_some() || policy.roots().iter().any(|root| root.algorithm.is_asymmetric());
        !needs_proof || (self.origin != OriginPolicy::AcceptUnproven && self.origin.check(record).is_ok())
    }

    /// Shows that every root key of `kek` wraps, with a payload of no use to anybody, and opens: what it has just made,
    /// or what stands in the record. A record that does not open while what was just made does is another key's.
    pub(super) async fn probe(&self, kek: &WriteKek, opening: Opening) -> Probed {
        let of_no_use = LocalKek::generate();
        let digest = sha256(&of_no_use.id().0);
        let payload = payload::encode(&of_no_use, &digest);
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        for (root, stored) in kek.record.wraps() {
            let wrapped_and_opened = async {
                let key = self.key(root)?;
                let fresh = key.wrap(root, &digest, &payload).await?;
                let record_opens = match opening {
                    Opening::Fresh => None,
                    Opening::Record | Opening::Both => Some(self.is_of(root, stored, kek).await?),
                };
                if opening != Opening::Record || record_opens == Some(false) {
                    let opened = key.unwrap_own(root, &digest, &fresh).await?;
                    same_payload(root, &opened, &payload)?;
                }
                Ok(record_opens)
            };
            let answer: Result<Option<bool>, Failure> = wrapped_and_opened.await;
            let seen = match &answer {
                Ok(Some(false)) => Err(not_its_own(root)),
                Ok(_) => Ok(()),
                Err(failure) => Err(failure.clone()),
            };
            self.watch.wrapped(root, &seen);
            match answer {
                Ok(opens) => answers.push(opens),
                Err(failure) => {
                    answers.push(None);
                    failures.push(failure);
                }
            }
        }
        let record_opens = match answers.iter().copied().collect::<Option<Vec<bool>>>() {
            // One that says no is enough, whatever the others say.
            _ if answers.contains(&Some(false)) => Some(false),
            all => all.map(|_| true),
        };
        Probed { record_opens, failures }
    }

    /// Shows that this root key wraps and opens.
    pub(super) async fn prove(&self, root: &Root) -> Result<(), Failure> {
        let of_no_use = LocalKek::generate();
        let digest = sha256(&of_no_use.id().0);
        self.wrap_and_prove(root, &digest, &payload::encode(&of_no_use, &digest)).await.map(drop)
    }

    /// The same of every root key of `policy`; what is wrong with them.
    pub(super) async fn prove_all(&self, policy: &WritePolicy) -> Vec<Failure> {
        let mut failures = Vec::new();
        for root in policy.roots() {
            failures.extend(self.prove(root).await.err());
        }
        failures
    }

    /// Whether a root key of `kek` is well and does not open its record: another key has its name.
    pub(super) async fn is_another_keys(&self, kek: &WriteKek) -> bool {
        for (root, wrap) in kek.record.wraps() {
            if self.is_of(root, wrap, kek).await == Ok(false) {
                return true;
            }
        }
        false
    }

    /// Whether one of the root keys that are here opens the record of `kek`.
    ///
    /// # Errors
    /// The last one's answer.
    pub(super) async fn opens(&self, kek: &WriteKek) -> Result<(), Failure> {
        let what = format!("no root key of {} is configured", kek.key_id);
        let mut last = Failure::new(Class::Refused, what, "add one under rootKeys or readKeys");
        for (root, wrap) in kek.record.wraps().filter(|(root, _)| self.key(root).is_ok()) {
            match self.is_of(root, wrap, kek).await {
                Ok(true) => return Ok(()),
                Ok(false) => last = not_its_own(root),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Whether `wrap` of the record of `kek` opens to it.
    async fn is_of(&self, root: &Root, wrap: &[u8], kek: &WriteKek) -> Result<bool, Failure> {
        let core = kek.record.core().digest();
        match self.key(root)?.unwrap_own(root, &core, wrap).await {
            Ok(opened) => same_payload(root, &opened, &payload::encode(&kek.kek, &core)).map(|()| true),
            Err(failure) if failure.class == Class::NotOpened => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn wrap_and_prove(
        &self,
        root: &Root,
        core: &Digest,
        payload: &[u8; payload::LEN],
    ) -> Result<Vec<u8>, Failure> {
        let proved = self.proved_wrap(root, core, payload).await;
        self.watch.wrapped(root, &proved);
        proved
    }

    async fn proved_wrap(
        &self,
        root: &Root,
        core: &Digest,
        payload: &[u8; payload::LEN],
    ) -> Result<Vec<u8>, Failure> {
        let key = self.key(root)?;
        let wrap = key.wrap(root, core, payload).await?;
        let opened = key.unwrap_own(root, core, &wrap).await?;
        same_payload(root, &opened, payload)?;
        if key.binds_associated_data(root) {
            let other: Digest = sha256(core);
            match key.unwrap_own(root, &other, &wrap).await {
                Ok(_) => {
                    let what = format!("root key {} ignores associated data", root.lineage);
                    return Err(Failure::new(
                        Class::Corrupt,
                        what,
                        "do not use this key service: it would let wraps be moved",
                    ));
                }
                // Only an answer proves something; silence does not.
                Err(failure) => match failure.class {
                    Class::NotOpened | Class::Refused => {}
                    _ => return Err(failure),
                },
            }
        }
        Ok(wrap)
    }

    /// The local KEK of a stored record, for writing: only if it is exactly what a new one would be. A root key that
    /// can't be asked is a failure, or every outage would end in one more local KEK.
    pub(super) async fn reopen(&self, policy: &WritePolicy, stored: &[u8]) -> Result<Reopened, Failure> {
        let Some(record) = record_of(stored) else { return Ok(Reopened::Unfit) };
        let (core, now) = (record.core(), (self.clock)());
        let fits = core.policy == *policy
            && core.created <= now.saturating_add(CLOCK_SKEW)
            && self.may_write_on(&record);
        if !fits {
            return Ok(Reopened::Unfit);
        }
        let is_old = now.saturating_sub(core.created) >= MAX_KEK_AGE.as_secs();
        let digest = core.digest();
        let (mut found, mut not_asked) = (None, Vec::new());
        for (root, wrap) in record.wraps() {
            let payload = match self.key(root)?.unwrap_own(root, &digest, wrap).await {
                Ok(payload) => payload,
                Err(failure) if failure.class == Class::NotOpened => {
                    return Ok(Reopened::NotOpened(root.clone()));
                }
                Err(failure) if failure.class.could_not_be_asked() => {
                    not_asked.push(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            found = payload.get(..32).and_then(LocalKek::from_bytes).filter(|kek| {
                kek.id() == core.kek_id && payload.as_slice() == payload::encode(kek, &digest).as_slice()
            });
            if found.is_none() {
                return Ok(Reopened::Unfit);
            }
        }
        let by_all = not_asked.is_empty();
        let Some(kek) = found.map(|kek| Arc::new(WriteKek::new(Arc::new(kek), record))) else {
            return not_asked.into_iter().next().map_or(Ok(Reopened::Unfit), Err);
        };
        // Nobody here can open recovery wraps: a changed one would be found on the day it is needed.
        if kek.stored() != stored {
            tracing::warn!(
                "the record of the last run was changed in the state directory; a new local KEK replaces it"
            );
            return Ok(Reopened::Unfit);
        }
        Ok(Reopened::Kek { kek, by_all, is_old })
    }

    /// The same without any root key, while one of them can't be asked: `held` gives what was opened before for exactly
    /// this annotation. Nothing else would write now, so its age does not matter.
    pub(super) fn reopen_held(
        &self,
        policy: &WritePolicy,
        stored: &[u8],
        held: impl FnOnce(&Digest) -> Option<Arc<LocalKek>>,
    ) -> Option<WriteKek> {
        let record = record_of(stored)?;
        let (core, now) = (record.core(), (self.clock)());
        let is_of_then = core.created <= now.saturating_add(CLOCK_SKEW);
        if core.policy != *policy || !is_of_then || !self.may_write_on(&record) {
            return None;
        }
        let kek = held(&sha256(&record.encode())).filter(|kek| kek.id() == core.kek_id)?;
        Some(WriteKek::new(kek, record)).filter(|kek| kek.stored() == stored)
    }

    /// The local KEK of a record that may be read: its wraps one after the other, the cheapest first, until one opens.
    pub(super) async fn open(&self, readable: &Readable) -> Opened {
        let mut failures = Vec::new();
        let mut attempts: Vec<_> = readable.attempts().iter().collect();
        // Equals stay in the record's order.
        attempts.sort_by_cached_key(|attempt| self.key(&attempt.root).ok().map(|key| key.cost()));
        for attempt in attempts {
            let unwrapped: Result<Zeroizing<Vec<u8>>, Failure> = match self.key(&attempt.root) {
                Ok(key) => key.unwrap_stored(&attempt.root, readable.core(), &attempt.wrap).await,
                Err(failure) => Err(failure),
            };
            self.watch.opened(&attempt.root, unwrapped.as_ref().err().map(|failure| failure.class));
            match unwrapped {
                Ok(payload) => match readable.local_kek(&payload) {
                    Some(kek) => return Ok(Arc::new(kek)),
                    None => failures.push((attempt.root.clone(), None)),
                },
                Err(failure) => failures.push((attempt.root.clone(), Some(failure))),
            }
        }
        Err(OpenError::new(failures))
    }

    fn key(&self, root: &Root) -> Result<&Arc<Guarded>, Failure> {
        root_key(&self.keys, root).ok_or_else(|| {
            let what = format!("root key {} is not configured here", root.lineage);
            Failure::new(Class::Refused, what, "add it under rootKeys or readKeys")
        })
    }
}

/// The record in what [`WriteKek::stored`] gave, if it is one. Only its local KEK can tell whether it was changed.
pub(super) fn record_of(stored: &[u8]) -> Option<Record> {
    let without_tag = stored.split_last_chunk::<{ size_of::<Digest>() }>().map(|(record, _)| record);
    [Some(stored), without_tag].into_iter().flatten().find_map(|bytes| Record::decode(bytes).ok())
}

/// One wrap for each recipient of the policy, in its order.
fn recovery_wraps(
    policy: &WritePolicy,
    recipients: &[Recipient],
    payload: &[u8; payload::LEN],
) -> Result<Vec<Vec<u8>>, Failure> {
    let wrap = |fingerprint: &Fingerprint| {
        let recipient = recipients.iter().find(|one| one.fingerprint() == *fingerprint).ok_or_else(|| {
            let what = format!("recovery recipient with fingerprint {fingerprint} is not configured here");
            Failure::new(Class::Refused, what, "add it under recoveryRecipients")
        })?;
        recipient.wrap(payload).map_err(|error| {
            Failure::new(Class::Corrupt, error.to_string(), "report it; until then, take that recipient out")
        })
    };
    policy.recipients().iter().map(wrap).collect()
}

fn not_its_own(root: &Root) -> Failure {
    let what = format!("root key {} does not open what it wrapped", root.lineage);
    Failure::new(Class::NotOpened, what, "another key has its name: bring the old one back, or raise `epoch`")
}

fn same_payload(root: &Root, opened: &[u8], payload: &[u8; payload::LEN]) -> Result<(), Failure> {
    aws_lc_rs::constant_time::verify_slices_are_equal(opened, payload).map_err(|_| {
        let what = format!("root key {} opened its own wrap to something else", root.lineage);
        Failure::new(Class::Corrupt, what, "do not use this key service; report it to its vendor")
    })
}
