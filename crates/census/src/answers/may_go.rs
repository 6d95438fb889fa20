//! What needs a key, and whether it may go.
use casemate_encryption_config::{EncryptionConfiguration, Provider};
use casemate_keys::Lineage;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Source, Verdict};
use crate::survey::{Encryption, Entry, Group, Key, Survey, Tally};

/// Values of one group that a key opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Holder {
    /// Which file they are in.
    pub source: String,
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Values that are what their objects are now.
    pub live: Tally,
    /// Values that were overwritten or deleted, and not compacted away.
    pub past: Tally,
    /// Other keys, any one of which opens them too.
    pub alternatives: Vec<Key>,
}

/// Whether a key may go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MayGo {
    /// Which key.
    pub key: Key,
    /// The answer: no as long as one value is under it, even if another key opens that value too.
    pub verdict: Verdict,
    /// What is under it.
    pub held_by: Vec<Holder>,
    /// Resources for which the EncryptionConfiguration writes with it.
    pub writes: Vec<String>,
    /// Why it can't be told.
    pub unclear: Vec<String>,
    /// What should be known beside it.
    pub notes: Vec<String>,
}

/// What is under `key`.
pub fn needs(key: &Key, sources: &[Source<'_>]) -> Vec<Holder> {
    let mut holders = Vec::new();
    for source in sources {
        for entry in &source.survey.groups {
            let keys = entry.group.encryption.keys();
            if keys.contains(key) {
                holders.push(Holder {
                    source: source.name.to_owned(),
                    group: entry.group.clone(),
                    live: entry.live.clone(),
                    past: entry.past.clone(),
                    alternatives: alternatives(key, keys),
                });
            }
        }
    }
    holders
}

/// Whether `key` may go, as far as `sources` tell, and what the servers write with by `config`.
pub fn may_go(key: &Key, sources: &[Source<'_>], config: Option<&EncryptionConfiguration>) -> MayGo {
    let held_by = needs(key, sources);
    let writes = config.map(|config| writes(key, config)).unwrap_or_default();
    let mut unclear: Vec<String> =
        sources.iter().flat_map(|source| source.survey.doubts(key, source.name)).collect();
    if sources.is_empty() {
        unclear.push("nothing was read".to_owned());
    }
    let verdict = match (held_by.is_empty() && writes.is_empty(), unclear.is_empty()) {
        (false, _) => Verdict::No,
        (true, false) => Verdict::Unknown,
        (true, true) => Verdict::Yes,
    };
    let mut notes = Vec::new();
    if verdict == Verdict::Yes {
        notes.push(
            "no value names this key: compare its spelling with what names it. Files that were not given, and what \
             was written since, are not in the answer"
                .to_owned(),
        );
    }
    let broken = |source: &Source<'_>| {
        let broken = source.survey.groups.iter().filter(|entry| entry.group.encryption.is_broken());
        let values: u64 = broken.map(Entry::values).sum();
        (values > 0).then(|| {
            format!("{}: {values} values are damaged, which nobody can read with any key", source.name)
        })
    };
    notes.extend(sources.iter().filter_map(broken));
    MayGo { key: key.clone(), verdict, held_by, writes, unclear, notes }
}

impl MayGo {
    /// The answer, where `more` is left open besides.
    #[must_use]
    pub fn with_doubts(mut self, more: impl IntoIterator<Item = String>) -> Self {
        self.unclear.extend(more);
        if self.verdict == Verdict::Yes && !self.unclear.is_empty() {
            self.verdict = Verdict::Unknown;
            self.notes.clear();
        }
        self
    }
}

/// Keys that open by themselves what `key` opens: roots and recovery recipients stand beside each other, all else is on
/// the way to the same key.
fn alternatives(key: &Key, keys: Vec<Key>) -> Vec<Key> {
    let is_wrap = |key: &Key| matches!(key, Key::Root(_) | Key::Recovery(_));
    match is_wrap(key) {
        true => keys.into_iter().filter(|other| is_wrap(other) && other != key).collect(),
        false => Vec::new(),
    }
}

/// Resources that are written with `key`.
fn writes(key: &Key, config: &EncryptionConfiguration) -> Vec<String> {
    let written = |entry: &&casemate_encryption_config::Entry| {
        let Some(first) = entry.providers.first() else { return false };
        match (key, first) {
            (
                Key::Local { cipher, name },
                Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys),
            ) => first.field() == cipher.as_str() && keys.first().is_some_and(|key| key.name == *name),
            (Key::KmsV1(name), Provider::KmsV1(kms)) => kms.name == *name,
            (Key::KmsV2(name), Provider::KmsV2(kms)) => kms.name == *name,
            _ => false,
        }
    };
    config
        .entries
        .iter()
        .filter(written)
        .flat_map(|entry| &entry.resources)
        .map(ToString::to_string)
        .collect()
}

impl Survey {
    /// Why a survey in which nothing is under `key` proves nothing.
    fn doubts(&self, key: &Key, source: &str) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.looked_elsewhere() {
            doubts.push(format!(
                "{source}: nothing is below {}, but {} revisions are elsewhere: give kube-apiserver's --etcd-prefix as --prefix",
                self.prefix, self.outside
            ));
        }
        doubts.extend(self.unseen.iter().map(|unseen| format!("{source}: {unseen}")));
        if self.ungrouped > 0 {
            doubts
                .push(format!("{source}: {} values were of too many kinds to be told apart", self.ungrouped));
        }
        for (says, why) in [
            (
                unknown as fn(&Key, &Encryption) -> bool,
                "are of a provider that is not known here, and may need any key",
            ),
            (silent, "are of plugins that don't say which root key they need"),
            (ambiguous, "begin with this name up to its colon, and may be under it or under another"),
        ] {
            let doubtful = self.groups.iter().filter(|entry| says(key, &entry.group.encryption));
            let values: u64 = doubtful.map(Entry::values).sum();
            if values > 0 {
                doubts.push(format!("{source}: {values} values {why}"));
            }
        }
        doubts
    }
}

fn unknown(_: &Key, encryption: &Encryption) -> bool {
    encryption.is_unknown()
}

/// A root key in a key service may serve other plugins too. Ones in files and tokens have ids that are ours alone.
fn silent(key: &Key, encryption: &Encryption) -> bool {
    let Key::Root(lineage) = key else { return false };
    let shared = lineage.parse().is_ok_and(|lineage: Lineage| !["file", "pkcs11"].contains(&lineage.kind()));
    shared
        && match encryption {
            Encryption::KmsV1 { .. } => true,
            Encryption::KmsV2 { record, faults, .. } => record.is_none() && faults.is_empty(),
            _ => false,
        }
}

/// A mark ends a name at its first colon, and names of keys may have one.
fn ambiguous(key: &Key, encryption: &Encryption) -> bool {
    let cut = |name: &str, found: &str| name.split_once(':').is_some_and(|(begin, _)| begin == found);
    match (key, encryption) {
        (Key::Local { cipher, name }, Encryption::Local { cipher: found, key }) => {
            cipher.as_str() == found && cut(name, key)
        }
        (Key::KmsV1(name), Encryption::KmsV1 { provider }) => cut(name, provider),
        _ => false,
    }
}
