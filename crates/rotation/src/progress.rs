//! What is recorded of the way: all that a later decision needs and can't see.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Moment, NewKeyReason, PluginKeyId, ProviderId, Resources, Slot, Turn};

/// What is recorded of one component. It is written as a whole, on the condition that nobody wrote it since it was read.
///
/// If it is lost, it is made again from what servers have; then nothing counts as migrated or proven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The last turn that was given.
    pub turn: Turn,
    /// The highest number that a key has had.
    pub highest: ProviderId,
    /// The highest number of a key that was ever put into a configuration. What is not above it is not new, and is not used
    /// again once it has left.
    pub deployed: ProviderId,
    /// By resource, those that are being left included.
    pub courses: BTreeMap<Resources, Course>,
    /// Of plugins.
    pub key_ids: BTreeMap<ProviderId, KeyIds>,
}

/// Where a resource is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Course {
    /// Since which turn.
    pub turn: Turn,
    /// What is to write.
    pub writer: Slot,
    /// What may be needed: keys that no server may be without, and that none loses without a proof.
    pub keys: BTreeSet<ProviderId>,
    /// Whether everything was migrated in this turn, as the engine or a census said.
    pub claim: Option<Claim>,
    /// Whether everything was once migrated to a key, and plaintext was not to be written since.
    pub encrypted: bool,
}

impl Course {
    /// Whether plaintext is written and nothing else is read.
    pub(crate) fn is_plain(&self) -> bool {
        self.writer == Slot::Plain && self.keys.is_empty()
    }
}

/// Everything was migrated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// To this key id of the plugin, if a plugin writes.
    pub key_id: Option<PluginKeyId>,
}

/// What is recorded of a plugin's key ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyIds {
    /// The one that everything is migrated to.
    pub target: PluginKeyId,
    /// The last one that everything was migrated to.
    pub migrated: Option<PluginKeyId>,
}

/// A line of history, which is never changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Who.
    pub by: String,
    /// When, as it was handed in.
    pub at: Moment,
    /// What, with old and new.
    pub change: Change,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A resource was found as it is.
    Adopted {
        /// Which.
        resource: Resources,
        /// What writes.
        writer: Slot,
        /// What else is read.
        keys: BTreeSet<ProviderId>,
    },
    /// A resource is left alone from now on.
    Left {
        /// Which.
        resource: Resources,
    },
    /// A key is made.
    KeyCreated {
        /// Its number.
        id: ProviderId,
        /// Why.
        because: Vec<NewKeyReason>,
        /// Who approved it.
        approved: BTreeSet<String>,
    },
    /// What is read changes.
    Read {
        /// Of which resource.
        resource: Resources,
        /// The keys so far.
        old: BTreeSet<ProviderId>,
        /// The keys from now on.
        new: BTreeSet<ProviderId>,
        /// Of those that go, the ones that nothing proves to be unneeded: somebody accepted that.
        unproven: BTreeSet<ProviderId>,
    },
    /// What writes changes.
    Promoted {
        /// Of which resource.
        resource: Resources,
        /// What wrote so far.
        old: Slot,
        /// What writes from now on.
        new: Slot,
    },
    /// A server wrote with something else again: what was known of this turn is void.
    Strayed {
        /// Of which resource.
        resource: Resources,
        /// What writes, as before.
        writer: Slot,
    },
    /// Everything is migrated.
    Migrated {
        /// Of which resource.
        resource: Resources,
        /// To what.
        writer: Slot,
        /// To which key id.
        key_id: Option<PluginKeyId>,
        /// Whether a census counted it, or the engine says so.
        counted: bool,
    },
    /// A census found what was not migrated after all.
    NotMigrated {
        /// Of which resource.
        resource: Resources,
    },
    /// A plugin's key id is to be migrated to.
    KeyId {
        /// Of which key.
        provider: ProviderId,
        /// The last one.
        old: Option<PluginKeyId>,
        /// The new one.
        new: PluginKeyId,
        /// Who approved it.
        approved: BTreeSet<String>,
    },
    /// Everything is migrated to a plugin's key id.
    KeyIdMigrated {
        /// Of which key.
        provider: ProviderId,
        /// The last one.
        old: Option<PluginKeyId>,
        /// This one.
        new: PluginKeyId,
    },
}
