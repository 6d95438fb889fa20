//! What needs a key, and whether it may go.
mod doubts;

use casemate_encryption_config::{EncryptionConfiguration, Provider};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Source, Verdict};
use crate::classify::Name;
use crate::survey::{Encryption, Entry, Group, Key, Tally};

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
    let is_configured = config.is_some_and(|config| names(key, config));
    let unclear = doubts::doubts(key, sources, is_configured);
    let verdict = match (held_by.is_empty() && writes.is_empty(), unclear.is_empty()) {
        (false, _) => Verdict::No,
        (true, false) => Verdict::Unknown,
        (true, true) => Verdict::Yes,
    };
    let mut notes = match verdict {
        Verdict::Yes => conditions(key, sources, config.is_some()),
        _ => Vec::new(),
    };
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

/// Why it can't be told that nothing is under `key`, where [`needs`] is empty.
pub fn unclear(key: &Key, sources: &[Source<'_>]) -> Vec<String> {
    doubts::doubts(key, sources, false)
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

/// What a yes stands on.
fn conditions(key: &Key, sources: &[Source<'_>], is_configured: bool) -> Vec<String> {
    let mut conditions = vec![
        "no value names this key: compare its spelling with what names it. Files that were not given, another etcd \
         (--etcd-servers-overrides), and what was written since, are not in the answer"
            .to_owned(),
        "it holds as long as nothing is written with this key: an API server does so until it has loaded a configuration \
         without it, and a plugin until it has switched. If one did after this was read, ask again"
            .to_owned(),
    ];
    if !is_configured {
        conditions.push(
            "whether API servers write with it was not asked: --encryption-config FILE tells for keys that it names"
                .to_owned(),
        );
    }
    if !matches!(key, Key::Local { .. } | Key::KmsV1(_) | Key::KmsV2(_)) {
        conditions.push(
            "which key a plugin writes with is in no file: `casemate kms status` shows it on each host"
                .to_owned(),
        );
    }
    let plugins: std::collections::BTreeSet<String> = sources
        .iter()
        .flat_map(|source| &source.survey.groups)
        .filter_map(|entry| match &entry.group.encryption {
            Encryption::KmsV1 { provider } => Some(format!("kms:v1:{provider}")),
            Encryption::KmsV2 { provider, .. } => Some(format!("kms:v2:{provider}")),
            _ => None,
        })
        .collect();
    if matches!(key, Key::KmsV1(_) | Key::KmsV2(_) | Key::KeyId(_)) && !plugins.is_empty() {
        let plugins: Vec<String> = plugins.into_iter().collect();
        conditions.push(format!(
            "values of plugins are there ({}): if one of them uses the same key of a key service by another name, that key \
             is not free",
            plugins.join(", ")
        ));
    }
    conditions
}

/// Whether `config` has a key or a plugin of this name.
fn names(key: &Key, config: &EncryptionConfiguration) -> bool {
    config.entries.iter().flat_map(|entry| &entry.providers).any(|provider| match key {
        Key::Local { cipher, name } => {
            provider.field() == cipher.as_str()
                && provider.local_keys().iter().any(|key| is_named(&key.name, name))
        }
        Key::KmsV1(name) => matches!(provider, Provider::KmsV1(kms) if is_named(&kms.name, name)),
        Key::KmsV2(name) => matches!(provider, Provider::KmsV2(kms) if is_named(&kms.name, name)),
        _ => false,
    })
}

/// Whether `name` of a configuration is shown so.
fn is_named(name: &str, shown: &str) -> bool {
    Name::new(name.as_bytes()).to_string() == shown
}

/// Resources that are written with `key`.
fn writes(key: &Key, config: &EncryptionConfiguration) -> Vec<String> {
    let written = |entry: &&casemate_encryption_config::Entry| {
        let Some(first) = entry.providers.first() else { return false };
        match (key, first) {
            (
                Key::Local { cipher, name },
                Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys),
            ) => {
                first.field() == cipher.as_str() && keys.first().is_some_and(|key| is_named(&key.name, name))
            }
            (Key::KmsV1(name), Provider::KmsV1(kms)) => is_named(&kms.name, name),
            (Key::KmsV2(name), Provider::KmsV2(kms)) => is_named(&kms.name, name),
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
