//! What was observed of one API server component: everything that a decision rests on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use casemate_encryption_config::Scheme;

use crate::{
    File, Moment, PluginKeyId, Progress, Proposal, ProviderId, Resources, ServerName, ServiceName, Settings,
    Slot, Turn,
};

/// What was observed of one API server component, which has its own servers, resources and keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observed {
    /// Who acts on it, and when: for history.
    pub by: String,
    /// When it was observed.
    pub at: Moment,
    /// What the admin wants.
    pub intent: Intent,
    /// Key records, as far as there is anything of them. One that is lost is absent.
    pub records: BTreeMap<ProviderId, Record>,
    /// The servers that must be there.
    pub expected: BTreeSet<ServerName>,
    /// The servers that were found, those on their way out included.
    pub servers: BTreeMap<ServerName, Server>,
    /// What was recorded of the way so far. None: nothing ever was, or it is lost.
    pub progress: Option<Progress>,
    /// What the migration engine last said of each resource.
    pub engine: BTreeMap<Resources, EngineReport>,
    /// Whether etcd can be read. Without it nothing is ever proven.
    pub has_census: bool,
    /// The last count of each resource.
    pub census: BTreeMap<Resources, Count>,
    /// Backups that are to stay readable, each with what its objects are stored under.
    pub backups: BTreeMap<String, BTreeSet<Stored>>,
    /// Proposals that were approved, each with those who did.
    pub approvals: BTreeMap<Proposal, BTreeSet<String>>,
}

/// What the admin wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intent {
    /// Who said so: who approves is somebody else.
    pub by: String,
    /// What is to be written with.
    pub wanted: Wanted,
    /// For which resources.
    pub resources: BTreeSet<Resources>,
    /// A text that asks for a new local key whenever it changes. A plugin's root key is rotated in its key service.
    pub reason: Option<String>,
    /// How long after its migration a local key is used.
    pub max_age: Option<Duration>,
    /// For how long all plugins must have reported a key id before it is migrated to. Five minutes
    /// ([`Intent::KEY_ID_STABLE_FOR`]), but for tests.
    pub key_id_stable_for: Duration,
    /// Whether new keys and key ids are to be approved by somebody else.
    pub needs_approval: bool,
    /// Nothing is changed for as long as it is set.
    pub paused: bool,
    /// Keys that may go although nothing proves that they are not needed, each with the turn of
    /// [`Progress::turn`] in which that was said: it does not count in a later one.
    pub accept_unproven: BTreeMap<ProviderId, Turn>,
}

impl Intent {
    /// An API server asks its plugin each minute, and may use what it was told for three more.
    pub const KEY_ID_STABLE_FOR: Duration = Duration::from_secs(300);
}

/// What is to be written with. KMS v1 can only be left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// Plaintext.
    Identity,
    /// A local key, AES in CBC mode.
    AesCbc,
    /// A local key, AES-GCM.
    AesGcm,
    /// A local key, NaCl's secretbox.
    Secretbox,
    /// A plugin that speaks KMS v2, and the root key behind it.
    KmsV2(ServiceName),
}

impl Wanted {
    /// The scheme of a key that does it.
    pub fn scheme(&self) -> Option<Scheme> {
        match self {
            Self::Identity => None,
            Self::AesCbc => Some(Scheme::AesCbc),
            Self::AesGcm => Some(Scheme::AesGcm),
            Self::Secretbox => Some(Scheme::Secretbox),
            Self::KmsV2(_) => Some(Scheme::KmsV2),
        }
    }

    /// The root key behind it.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::KmsV2(service) => Some(service),
            _ => None,
        }
    }
}

/// The record of a key, which holds what its provider needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// As it was written.
    Intact(Key),
    /// What can't be used any more, with what is still legible.
    Damaged {
        /// How it encrypted.
        scheme: Option<Scheme>,
    },
}

impl Record {
    /// What it holds, if it can be used.
    pub fn intact(&self) -> Option<&Key> {
        match self {
            Self::Intact(key) => Some(key),
            Self::Damaged { .. } => None,
        }
    }
}

/// What an intact record says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// How it encrypts.
    pub scheme: Scheme,
    /// The root key behind a plugin.
    pub service: Option<ServiceName>,
    /// What can change about it.
    pub settings: Settings,
    /// The admin's text for which it was made.
    pub reason: Option<String>,
    /// Since when everything has been migrated to it.
    pub migrated: Age,
}

/// How long ago something was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Age {
    /// It has not been, or nobody knows.
    Unknown,
    /// So long.
    Since(Duration),
    /// Later than now: a clock is wrong. It makes nothing old.
    InTheFuture,
}

/// An API server that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// Whether it is on its way out. It still writes, and no longer reads its file.
    pub terminating: bool,
    /// Its file; where there is none, an empty one. None: it can't be read, or not as a configuration.
    pub file: Option<File>,
    /// What it runs with, by the hash that it tells and not by its file. None: it does not say, or what it says is none of
    /// the files that are known, or too old.
    pub loaded: Option<File>,
    /// What its plugins report as their key ids.
    pub key_ids: BTreeMap<ProviderId, KeyIdReport>,
}

/// What a plugin reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyIdReport {
    /// Its key id.
    pub key_id: PluginKeyId,
    /// For how long it has reported it.
    pub since: Duration,
}

/// What the migration engine says of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineReport {
    /// For which turn it works, as [`crate::Step::Migrate`] said.
    pub turn: Turn,
    /// For which key id, likewise.
    pub key_id: Option<PluginKeyId>,
    /// How it went.
    pub outcome: Outcome,
}

/// How a migration went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It goes on.
    Running,
    /// Every object was rewritten, or was fresh.
    Finished,
    /// It ended, and some objects were not.
    Failed,
}

/// What a census counted of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Count {
    /// The turn in which it was counted, as [`crate::Step::Prove`] said. Whoever counts promises that counting began after
    /// that step was given.
    pub turn: Turn,
    /// The key id that was the target then.
    pub key_id: Option<PluginKeyId>,
    /// Whether counting began after the migration of this turn and key id was recorded: only then is what was found stale
    /// a contradiction, and not just work to be done.
    pub after_claim: bool,
    /// What was found, by how it is stored. What is absent was not found.
    pub stored: BTreeMap<Stored, Need>,
}

/// How an object is stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// Under which key.
    pub slot: Slot,
    /// Under which of its plugin's key ids. None for local keys, and where it is not known: then it may be any.
    pub key_id: Option<PluginKeyId>,
}

/// How much is stored in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Need {
    /// Objects.
    pub objects: u64,
    /// Older revisions that etcd has not compacted.
    pub revisions: u64,
}
