//! Whether a migration is finished. Pure: a census says so, or nobody does.
//!
//! An object of a KMS v2 plugin is stale as well if the plugin has another key id by now, which no configuration says:
//! which key id API servers write with comes from elsewhere. Without it, a survey in which a plugin wrote proves nothing.
use std::collections::{BTreeMap, BTreeSet};

use casemate_census::answers::{State, against};
use casemate_census::survey::{Encryption, Entry, Resource, Survey, Tally};
use casemate_encryption_config::{EncryptionConfiguration, GroupResource, ResourcePattern, file_hash};
use schemars::JsonSchema;
use serde::Serialize;

/// What objects are to become.
#[derive(Clone, Debug)]
pub struct Aim<'a> {
    /// What API servers write by.
    pub config: &'a EncryptionConfiguration,
    /// By the names of KMS v2 plugins, SHA-256 of the key ids that API servers write with, as [`file_hash`] writes it.
    pub key_ids: &'a BTreeMap<String, BTreeSet<String>>,
    /// Whose objects it is about.
    pub patterns: &'a [ResourcePattern],
}

/// How an object stands to an [`Aim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As a write stores it now.
    Current,
    /// Otherwise.
    Stale,
    /// No API server with that configuration can read it.
    Unreadable,
    /// It can't be told, because of this.
    Unclear(String),
    /// It is not about this one.
    Outside,
}

/// Whether all objects are stored as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A census of etcd found no stale object.
    Proven,
    /// A census of etcd found some.
    Stale,
    /// It is not known.
    Unproven,
}

/// What a census says of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Proof {
    /// The answer.
    pub verdict: Verdict,
    /// The revision of etcd that it is of, if a census was made.
    pub revision: Option<u64>,
    /// Objects that are stored as a write stores them now.
    pub current: u64,
    /// Objects that are not, by resource and by how they are stored.
    pub stale: Vec<Remaining>,
    /// Objects that nobody can read with this configuration: no write brings them back.
    pub unreadable: Vec<Remaining>,
    /// Why it is not known.
    pub unclear: Vec<String>,
}

/// Objects that are not stored as they should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Remaining {
    /// Whose they are.
    pub resource: String,
    /// How they are stored.
    pub stored: String,
    /// How many.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Keys in etcd of some of them.
    pub examples: Vec<String>,
}

impl Aim<'_> {
    /// How objects of `resource` that are stored like this stand.
    pub fn judge(&self, resource: &Resource, encryption: &Encryption) -> Standing {
        let chosen = |resource: &GroupResource| self.patterns.iter().any(|pattern| pattern.matches(resource));
        match resource.group_resource() {
            Some(resource) if !chosen(&resource.stored()) => return Standing::Outside,
            None if resource.is_bookkeeping() => return Standing::Outside,
            // Its group is not known: by its name alone it may be one of them.
            None if !self.patterns.iter().any(|pattern| match pattern {
                ResourcePattern::One(one) => one.resource == resource.name,
                _ => true,
            }) =>
            {
                return Standing::Outside;
            }
            _ => {}
        }
        let group =
            casemate_census::survey::Group { resource: resource.clone(), encryption: encryption.clone() };
        let mut survey = Survey::default();
        survey.groups.push(Entry { group, live: Tally::default(), past: Tally::default() });
        match against(self.config, &survey).first().map(|judged| judged.state) {
            Some(State::Current) => self.by_key_id(encryption),
            Some(State::Stale | State::Unencrypted) => Standing::Stale,
            Some(State::Unreadable) => Standing::Unreadable,
            Some(State::Undecided) | None => Standing::Unclear(format!(
                "what {resource} should be stored like: the key in etcd does not tell"
            )),
        }
    }

    fn by_key_id(&self, encryption: &Encryption) -> Standing {
        let Encryption::KmsV2 { provider, key_id, .. } = encryption else { return Standing::Current };
        match self.key_ids.get(provider) {
            Some(current) if current.len() == 1 && current.contains(&file_hash(key_id.as_bytes())) => {
                Standing::Current
            }
            Some(current) if current.len() == 1 => Standing::Stale,
            Some(current) if current.len() > 1 => Standing::Unclear(format!(
                "which key id of {provider} is the one: API servers write with {}; wait until all have switched",
                current.len()
            )),
            _ => Standing::Unclear(format!(
                "which key id of {provider} API servers write with: give it with --key-id, or the right to get /metrics"
            )),
        }
    }

    /// What `survey` says.
    pub fn prove(&self, survey: &Survey) -> Proof {
        let mut proof = Proof::unknown(Vec::new());
        proof.revision = survey.revision;
        let mut unclear = BTreeSet::new();
        if survey.looked_elsewhere() {
            unclear.insert(format!(
                "whether there is anything: nothing is below {}, and something is elsewhere; give --prefix",
                survey.prefix
            ));
        }
        if survey.ungrouped > 0 {
            unclear.insert(format!("{} values were of too many kinds to be told apart", survey.ungrouped));
        }
        unclear.extend(survey.unseen.iter().filter(|unseen| !unseen.is_past()).map(ToString::to_string));
        for Entry { group, live, .. } in survey.groups.iter().filter(|entry| entry.live.values > 0) {
            let remaining = || Remaining {
                resource: group.resource.to_string(),
                stored: stored(&group.encryption),
                objects: live.values,
                bytes: live.bytes,
                examples: live.examples.clone(),
            };
            match self.judge(&group.resource, &group.encryption) {
                Standing::Current => proof.current += live.values,
                Standing::Stale => proof.stale.push(remaining()),
                Standing::Unreadable => proof.unreadable.push(remaining()),
                Standing::Unclear(why) => {
                    unclear.insert(why);
                }
                Standing::Outside => {}
            }
        }
        proof.unclear = unclear.into_iter().collect();
        proof.verdict = match &proof {
            Proof { stale, unreadable, .. } if !stale.is_empty() || !unreadable.is_empty() => Verdict::Stale,
            Proof { unclear, .. } if !unclear.is_empty() => Verdict::Unproven,
            _ => Verdict::Proven,
        };
        proof
    }
}

impl Proof {
    /// Nothing is known, because of this.
    pub fn unknown(unclear: Vec<String>) -> Self {
        Self {
            verdict: Verdict::Unproven,
            revision: None,
            current: 0,
            stale: Vec::new(),
            unreadable: Vec::new(),
            unclear,
        }
    }

    /// How many objects are left to write.
    pub fn stale_objects(&self) -> u64 {
        self.stale.iter().map(|remaining| remaining.objects).sum()
    }
}

/// How something is stored, down to the key.
pub fn stored(encryption: &Encryption) -> String {
    match encryption {
        Encryption::KmsV2 { key_id, .. } => format!("{encryption} under key id {key_id}"),
        _ => encryption.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use casemate_encryption_config::ServerFlags;

    use super::*;

    const CONFIG: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
        - resources: [secrets, things.a.example]\n  providers:\n  - kms: {apiVersion: v2, name: new, endpoint: unix:///a}\n\
        \x20 - kms: {apiVersion: v2, name: old, endpoint: unix:///b}\n  - identity: {}\n";

    fn kms(provider: &str, key_id: &str) -> Encryption {
        let (provider, key_id, dek_source) = (provider.into(), key_id.into(), "seed".into());
        Encryption::KmsV2 { provider, key_id, dek_source, record: None, faults: Vec::new() }
    }

    fn broken() -> Encryption {
        Encryption::Malformed { claims: "kms:v2".into(), name: None }
    }

    fn survey(of: &[(&str, Encryption, u64)]) -> Survey {
        let mut survey = Survey::default();
        (survey.live, survey.revision) = (1, Some(7));
        for (name, encryption, values) in of {
            let GroupResource { group, resource } = GroupResource::parse(name);
            let resource = Resource { name: resource, group: Some(group) };
            let group = casemate_census::survey::Group { resource, encryption: encryption.clone() };
            let live = Tally { values: *values, ..Tally::default() };
            survey.groups.push(Entry { group, live, past: Tally::default() });
        }
        survey
    }

    fn proof(of: &[(&str, Encryption, u64)], key_ids: &[&str]) -> Proof {
        let config = EncryptionConfiguration::read(CONFIG.as_bytes(), ServerFlags::default()).unwrap();
        let ids: BTreeSet<String> = key_ids.iter().map(|id| file_hash(id.as_bytes())).collect();
        let key_ids = BTreeMap::from([("new".to_owned(), ids)]);
        let patterns: Vec<ResourcePattern> =
            config.entries.iter().flat_map(|entry| entry.resources.clone()).collect();
        Aim { config: &config, key_ids: &key_ids, patterns: &patterns }.prove(&survey(of))
    }

    #[test]
    fn proven_is_a_census_without_a_stale_object() {
        let of = [
            ("secrets", kms("new", "k2"), 5),
            ("things.a.example", kms("new", "k2"), 2),
            // Not about these.
            ("configmaps", Encryption::PlainProtobuf, 9),
        ];
        let found = proof(&of, &["k2"]);
        assert_eq!((found.verdict, found.current, found.revision), (Verdict::Proven, 7, Some(7)));
    }

    #[test]
    fn whatever_a_write_would_store_otherwise_is_stale() {
        for other in [kms("new", "k1"), kms("old", "k2"), Encryption::PlainProtobuf] {
            let found = proof(&[("secrets", kms("new", "k2"), 5), ("secrets", other.clone(), 3)], &["k2"]);
            assert_eq!((found.verdict, found.stale_objects()), (Verdict::Stale, 3), "{other:?}");
            assert_eq!(found.stale[0].stored, stored(&other));
        }
        for unreadable in [kms("third", "k2"), broken()] {
            let found = proof(&[("things.a.example", unreadable, 1)], &["k2"]);
            assert_eq!((found.verdict, found.unreadable.len(), found.stale.len()), (Verdict::Stale, 1, 0));
        }
        // What was overwritten is nobody's object.
        assert_eq!(proof(&[("secrets", kms("old", "k1"), 0)], &["k2"]).verdict, Verdict::Proven);
    }

    #[test]
    fn without_the_one_key_id_nothing_is_proven() {
        for key_ids in [&[][..], &["k1", "k2"][..]] {
            let found = proof(&[("secrets", kms("new", "k2"), 5)], key_ids);
            assert_eq!((found.verdict, found.unclear.len()), (Verdict::Unproven, 1), "{key_ids:?}");
        }
        // That something is stale is known even so.
        let found = proof(&[("secrets", kms("new", "k2"), 5), ("secrets", kms("old", "k2"), 1)], &[]);
        assert_eq!(found.verdict, Verdict::Stale);
    }

    #[test]
    fn what_a_census_leaves_open_stays_open() {
        let config = EncryptionConfiguration::read(CONFIG.as_bytes(), ServerFlags::default()).unwrap();
        let (key_ids, patterns) = (BTreeMap::new(), ["secrets".parse().unwrap()]);
        let aim = Aim { config: &config, key_ids: &key_ids, patterns: &patterns };
        let mut empty = Survey::default();
        empty.prefix = "/registry".into();
        assert_eq!(aim.prove(&empty).verdict, Verdict::Proven);
        for (spoil, is_proven) in [
            ((|survey: &mut Survey| survey.outside = 3) as fn(&mut Survey), false),
            (|survey: &mut Survey| survey.ungrouped = 1, false),
            (
                |survey: &mut Survey| {
                    let moment = casemate_census::survey::Unseen::Moment { oldest: 1, newest: 2 };
                    survey.unseen.push(moment);
                },
                false,
            ),
            // Old revisions are of no object that is to be written.
            (
                |survey: &mut Survey| {
                    let past = casemate_census::survey::Unseen::Past { since: None, why: String::new() };
                    survey.unseen.push(past);
                },
                true,
            ),
        ] {
            let mut survey = empty.clone();
            spoil(&mut survey);
            assert_eq!(aim.prove(&survey).verdict == Verdict::Proven, is_proven, "{survey:?}");
        }
    }
}
