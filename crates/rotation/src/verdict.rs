//! What comes of a decision: the next step, and what there is to know about it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Entry, File, PluginKeyId, Progress, ProviderId, Resources, ServerName, Slot, Turn, Wanted};

/// What comes of [`desired`](crate::desired).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// What to do now. Then observe again.
    pub step: Step,
    /// What there is to know.
    pub decisions: Decisions,
}

/// What to do next. Each may be given up at any point and at any of its writes: what is decided next goes on from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing, until somebody does something.
    Hold(Hold),
    /// Ask somebody else to approve.
    Propose(Proposal),
    /// Make a key, and its record. The plugin behind it should be tried first.
    CreateKey {
        /// Its number. If there is a record of it by then, somebody else was faster.
        id: ProviderId,
        /// What it is to do.
        wanted: Wanted,
        /// Why.
        because: Vec<NewKeyReason>,
        /// For history.
        history: Vec<Entry>,
    },
    /// Record this, on the condition that what was recorded is still what was observed.
    Record {
        /// What to record.
        progress: Progress,
        /// What it changes.
        history: Vec<Entry>,
    },
    /// Write files, in any order, each on two conditions: the server's file is still the one that was observed, and so is
    /// what is recorded.
    Write(Vec<ServerFile>),
    /// Rewrite all objects of these resources.
    Migrate(Vec<Task>),
    /// Count these resources. Until etcd has compacted old revisions it is asked for again.
    Prove(Vec<Task>),
    /// Nothing, until these are as they should be.
    Wait(BTreeMap<ServerName, Lag>),
    /// Nothing: everything is as it is wanted, but for keys that are [held](Decisions::held).
    Done,
}

/// A file for a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerFile {
    /// Which server.
    pub server: ServerName,
    /// What was observed to stand there. None: something that is no configuration.
    pub replaces: Option<File>,
    /// What is to stand there.
    pub file: File,
}

/// A resource to migrate or to count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Which.
    pub resource: Resources,
    /// For [`Count::turn`](crate::Count::turn) and [`EngineReport::turn`](crate::EngineReport::turn).
    pub turn: Turn,
    /// What everything should be stored under.
    pub writer: Slot,
    /// And under which key id of its plugin.
    pub key_id: Option<PluginKeyId>,
}

/// Why nothing happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// The admin paused it.
    Paused,
    /// It is not known which servers there are: then nothing is agreed.
    NoServers,
    /// All numbers of keys are used up.
    NoNumbersLeft,
}

/// What is to be approved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proposal {
    /// A new key.
    Key {
        /// Its number.
        id: ProviderId,
        /// What it is to do.
        wanted: Wanted,
    },
    /// A plugin's new key id.
    KeyId {
        /// Of which key.
        provider: ProviderId,
        /// The key id.
        key_id: PluginKeyId,
    },
}

/// Why a new key is needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NewKeyReason {
    /// There is none.
    NoKey,
    /// The record of the one that writes is damaged.
    Damaged(ProviderId),
    /// There is no record of the one that writes.
    Lost(ProviderId),
    /// Another scheme is wanted.
    Scheme,
    /// Another root key behind the plugin is wanted.
    Service,
    /// The admin's text has changed.
    Reason,
    /// It has been used long enough.
    Age,
}

impl NewKeyReason {
    /// As in the annotation by which OpenShift's operators tell it.
    pub fn openshift(&self) -> String {
        match self {
            Self::NoKey => "key-does-not-exist".into(),
            Self::Damaged(id) => format!("key-secret-{id}-is-invalid"),
            Self::Lost(id) => format!("encryption-config-key-{id}-not-backed-by-secret"),
            Self::Scheme => "encryption-mode-changed".into(),
            Self::Service => "kms-provider-changed".into(),
            Self::Reason => "external-reason-changed".into(),
            Self::Age => "rotation-interval-has-passed".into(),
        }
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lag {
    /// It is expected, and nothing was found of it.
    Absent,
    /// It is still there, and on its way out.
    Terminating,
    /// It is there, and is not expected. It writes, too.
    Unexpected,
    /// Its file can't be read.
    NoFile,
    /// It does not say what it runs with.
    Silent,
    /// It runs with something else than its file.
    NotLoaded,
    /// Its plugin does not report a key id, or not for long enough, or another one than the others.
    KeyId(ProviderId),
}

/// What there is to know beside the step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decisions {
    /// The key that is to write, once there is one.
    pub goal: Option<Slot>,
    /// Why a new key is needed, if one is. It is made when nothing else is left to do.
    pub new_key: Vec<NewKeyReason>,
    /// Which servers are not as they should be. Empty: converged.
    pub lagging: BTreeMap<ServerName, Lag>,
    /// Every key that is in a configuration and not to write, with what holds it there: nothing, if it is about to go.
    pub held: BTreeMap<ProviderId, Vec<Held>>,
    /// Records that nothing needs any more.
    pub prunable: BTreeSet<ProviderId>,
    /// Keys that are needed and of which nothing is left, no record and no file: what is stored under them is lost, unless
    /// a record is restored.
    pub gone: BTreeSet<ProviderId>,
    /// Records that are damaged or absent while their keys are in use.
    pub unbacked: BTreeSet<ProviderId>,
    /// What could write at once, since every server reads it: back, or forward.
    pub could_write: BTreeSet<Slot>,
    /// A clock is wrong: these were migrated in the future.
    pub from_the_future: BTreeSet<ProviderId>,
}

/// What holds a key in the configuration of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// Which resource.
    pub resource: Resources,
    /// What.
    pub by: HeldBy,
}

/// What needs a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeldBy {
    /// It is to write.
    Writer,
    /// This server may write with it: it does, or what it does is not known.
    Server(ServerName),
    /// So many objects.
    Objects(u64),
    /// So many older revisions, until etcd compacts them.
    Revisions(u64),
    /// Nothing proves that nothing is stored under it: no census of this turn.
    Unproven,
    /// A backup, by name.
    Backup(String),
}
