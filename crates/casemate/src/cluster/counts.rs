//! What a census of etcd says of the keys that are known. Pure.
use std::collections::{BTreeMap, BTreeSet};

use casemate_census::survey::{Encryption, Survey};
use casemate_encryption_config::{Scheme, file_hash};
use casemate_rotation::{
    Count, Course, Need, PluginKeyId, Progress, ProviderId, Resources, Slot, Stored, Turn,
};

use super::keys::{Known, entry_of};

/// Objects that are stored under nothing that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) resource: String,
    pub(crate) stored: String,
    pub(crate) objects: u64,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// By entry, what is stored how.
    pub(crate) entries: BTreeMap<Resources, BTreeMap<Stored, Need>>,
    /// By entry, bytes of what is stored how.
    pub(crate) bytes: BTreeMap<Resources, BTreeMap<Stored, u64>>,
    /// What no file has a key for.
    pub(crate) unknown: Vec<Unknown>,
    /// Key ids in the clear, by what they are called in decisions.
    pub(crate) key_ids: BTreeMap<PluginKeyId, String>,
    /// Whether old revisions are counted, too.
    pub(crate) has_past: bool,
    /// The revision of etcd.
    pub(crate) revision: Option<u64>,
}

impl Counted {
    /// Counts what is below the entries of `resources`. A survey that does not cover everything is no census: then it says
    /// why.
    pub(crate) fn of(
        survey: &Survey,
        known: &Known,
        resources: &BTreeSet<Resources>,
    ) -> Result<Self, String> {
        if survey.looked_elsewhere() {
            let prefix = &survey.prefix;
            return Err(format!(
                "nothing is below {prefix} in etcd, and something is elsewhere: give --prefix"
            ));
        }
        if survey.ungrouped > 0 {
            return Err(format!(
                "{} values in etcd were of too many kinds to be told apart",
                survey.ungrouped
            ));
        }
        if let Some(unseen) = survey.unseen.iter().find(|unseen| !unseen.is_past()) {
            return Err(unseen.to_string());
        }
        let mut counted =
            Self { has_past: survey.unseen.is_empty(), revision: survey.revision, ..Self::default() };
        counted.entries = resources.iter().map(|entry| (entry.clone(), BTreeMap::new())).collect();
        for found in &survey.groups {
            let (resource, encryption) = (&found.group.resource, &found.group.encryption);
            let Some(named) = resource.group_resource() else {
                if !resource.is_bookkeeping() && found.live.values > 0 && !encryption.is_plain() {
                    counted.unknown(resource.to_string(), encryption, found.live.values);
                }
                continue;
            };
            let Some(entry) = entry_of(&named.stored(), resources) else {
                if found.live.values > 0 && !encryption.is_plain() {
                    counted.unknown(resource.to_string(), encryption, found.live.values);
                }
                continue;
            };
            let stored = counted.stored(known, entry, encryption);
            if stored.is_empty() && found.live.values > 0 {
                counted.unknown(resource.to_string(), encryption, found.live.values);
            }
            // Under two keys of one name it may be either.
            for stored in stored {
                let need =
                    counted.entries.entry(entry.clone()).or_default().entry(stored.clone()).or_default();
                need.objects += found.live.values;
                need.revisions += found.past.values;
                *counted.bytes.entry(entry.clone()).or_default().entry(stored).or_default() +=
                    found.live.bytes;
            }
        }
        Ok(counted)
    }

    /// As a count of the turns that are recorded: of those that were settled when counting began, so that no server wrote
    /// otherwise any more. Of another one it tells which keys are needed, and proves nothing.
    pub(crate) fn counts(
        &self,
        progress: &Progress,
        is_settled: impl Fn(&Resources, &Course) -> bool,
    ) -> BTreeMap<Resources, Count> {
        let mut counts = BTreeMap::new();
        for (resources, course) in &progress.courses {
            let Some(found) = self.entries.get(resources) else { continue };
            let mut stored = found.clone();
            if !self.has_past {
                // An old revision that nobody looked for is one that may be there.
                for slot in course.keys.iter().map(|id| Slot::Key(*id)) {
                    stored.entry(Stored { slot, key_id: None }).or_default().revisions += 1;
                }
            }
            let target = |id: &ProviderId| progress.key_ids.get(id).map(|known| known.target.clone());
            counts.insert(
                resources.clone(),
                Count {
                    turn: match is_settled(resources, course) {
                        true => course.turn,
                        false => Turn(course.turn.0.wrapping_sub(1)),
                    },
                    key_id: course.writer.key().as_ref().and_then(target),
                    after_claim: course.claim.is_some(),
                    stored,
                },
            );
        }
        counts
    }

    fn unknown(&mut self, resource: String, encryption: &Encryption, objects: u64) {
        let stored = casemate_migrate::proof::stored(encryption);
        self.unknown.push(Unknown { resource, stored, objects });
    }

    fn stored(&mut self, known: &Known, entry: &Resources, encryption: &Encryption) -> Vec<Stored> {
        let (scheme, name, key_id) = match encryption {
            Encryption::PlainProtobuf | Encryption::PlainJson | Encryption::PlainOther => {
                return vec![Stored { slot: Slot::Plain, key_id: None }];
            }
            Encryption::Local { cipher, key } => match cipher.as_str() {
                "aescbc" => (Scheme::AesCbc, key, None),
                "aesgcm" => (Scheme::AesGcm, key, None),
                "secretbox" => (Scheme::Secretbox, key, None),
                _ => return Vec::new(),
            },
            Encryption::KmsV1 { provider } => (Scheme::KmsV1, provider, None),
            Encryption::KmsV2 { provider, key_id, .. } => (Scheme::KmsV2, provider, Some(key_id)),
            _ => return Vec::new(),
        };
        let key_id = key_id.and_then(|text| {
            let id = PluginKeyId::new(&file_hash(text.as_bytes()))?;
            self.key_ids.insert(id.clone(), text.clone());
            Some(id)
        });
        let ids = known.named(entry, scheme, name).into_iter();
        ids.map(|id| Stored { slot: Slot::Key(id), key_id: key_id.clone() }).collect()
    }
}

#[cfg(test)]
mod tests;
