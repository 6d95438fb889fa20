//! What stays closed, whatever is tried.
use casemate_encryption_config::EncryptionConfiguration;
use schemars::JsonSchema;
use serde::Serialize;

use super::coverage::{Reads, coverage_of, reads};
use crate::survey::{Encryption, Group, Key, Survey, Tally};

/// What somebody has who wants to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Its local keys, and its plugins as long as no key is given for them.
    pub config: Option<&'a EncryptionConfiguration>,
    /// Keys, or access to who has them.
    pub keys: &'a [Key],
}

/// Values that nobody can read who has this only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Closed {
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Values that are what their objects are now.
    pub live: Tally,
    /// Values that were overwritten or deleted, and not compacted away.
    pub past: Tally,
    /// Any one of these keys would open them; none if no key does.
    pub opened_by: Vec<Key>,
}

/// What nobody can read who has `given` only. A configuration opens what falls under a provider of it that reads it.
pub fn closed(given: Given<'_>, survey: &Survey) -> Vec<Closed> {
    let entries = survey.groups.iter().filter(|entry| !given.opens(&entry.group));
    let closed = entries.map(|entry| Closed {
        group: entry.group.clone(),
        live: entry.live.clone(),
        past: entry.past.clone(),
        opened_by: if entry.group.encryption.is_broken() {
            Vec::new()
        } else {
            entry.group.encryption.keys()
        },
    });
    closed.collect()
}

impl Given<'_> {
    fn opens(&self, Group { resource, encryption }: &Group) -> bool {
        if encryption.is_plain() {
            return true;
        }
        if encryption.is_broken() {
            return false;
        }
        if encryption.keys().iter().any(|key| self.keys.contains(key)) {
            return true;
        }
        let is_local = matches!(encryption, Encryption::Local { .. });
        let Some(config) = self.config.filter(|_| is_local || self.keys.is_empty()) else { return false };
        coverage_of(config, resource).is_some_and(|coverage| {
            coverage.transformers().iter().any(|one| matches!(reads(one, encryption), Some(Reads::Key(_))))
        })
    }
}
