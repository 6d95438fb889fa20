//! What an API server's `/metrics` says of encryption. Pure.
//!
//! Of all lines only those of the families below are read; these strictly, since a bound that rests on half a line is none.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

const OPERATIONS: &str = "apiserver_storage_transformation_operations_total";
const CONFIG: &str = "apiserver_encryption_config_controller_last_config_info";
const KEY_IDS: &str = "apiserver_envelope_encryption_key_id_hash_total";
const KEY_ID_USED: &str = "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds";
const KEY_ID_STATUS: &str = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds";
const DEK_SOURCES: &str = "apiserver_envelope_encryption_dek_source_cache_size";
const ETCD: &str = "etcd_requests_total";
const STARTED: &str = "process_start_time_seconds";
const RELOADED: &str = "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds";
const WANTED: [&str; 9] =
    [OPERATIONS, CONFIG, KEY_IDS, KEY_ID_USED, KEY_ID_STATUS, DEK_SOURCES, ETCD, STARTED, RELOADED];

/// One look at `/metrics`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    family: &'static str,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// A line of a family that is read does not follow the text format of Prometheus.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "line {line} of /metrics is not in the text format of Prometheus: a proxy may have changed it; ask the API server itself, with --server"
)]
pub(super) struct Malformed {
    line: usize,
}

/// Which process answered: two behind one address differ.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Instance {
    /// When it started, in seconds since 1970.
    pub(super) started: Option<f64>,
    /// SHA-256 of its identity, which it shows once it has used an EncryptionConfiguration.
    pub(super) id_hash: Option<String>,
}

/// How often an API server used one key id since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct KeyIdUse {
    /// The provider's name.
    pub(super) provider: String,
    /// SHA-256 of the key id.
    pub(super) hash: String,
    /// The key id, if it was given with --key-id.
    pub(super) key_id: Option<String>,
    /// Values written under it.
    pub(super) encrypted: u64,
    /// Values read under it.
    pub(super) decrypted: u64,
    /// When the plugin last gave it as the one to write with, in seconds since 1970.
    pub(super) last_status: Option<f64>,
    /// Whether the plugin gave no other one later. Objects, old revisions and backups may need each of the others.
    pub(super) is_newest: bool,
    /// When something was last written under it.
    pub(super) last_encrypted: Option<f64>,
    /// When something was last read under it.
    pub(super) last_decrypted: Option<f64>,
}

/// Values that an API server took from etcd or put there since it started.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Operations {
    /// Of which resource; absent for API servers that do not tell.
    pub(super) resource: Option<String>,
    /// `from_storage` or `to_storage`.
    pub(super) direction: String,
    /// With what the values begin: `identity` or nothing for plaintext.
    pub(super) prefix: String,
    /// `OK`, or how it failed.
    pub(super) status: String,
    /// How many.
    pub(super) count: u64,
}

impl Metrics {
    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut samples = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let end = line.find(|c: char| c == '{' || c.is_whitespace()).unwrap_or(line.len());
            let Some(family) = WANTED.iter().find(|family| **family == &line[..end]) else { continue };
            let (labels, value) = labels_and_value(&line[end..]).ok_or(Malformed { line: number + 1 })?;
            samples.push(Sample { family, labels, value });
        }
        Ok(Self { samples })
    }

    pub(super) fn instance(&self) -> Instance {
        let started = self.of(STARTED).map(|sample| sample.value).next();
        let id_hash = self.samples.iter().find_map(|sample| sample.labels.get("apiserver_id_hash").cloned());
        Instance { started, id_hash }
    }

    /// SHA-256 of each EncryptionConfiguration that it says to run with: one, or none if it does not tell.
    pub(super) fn configurations(&self) -> Vec<String> {
        self.of(CONFIG).filter(|sample| sample.value > 0.0).map(|sample| sample.label("hash")).collect()
    }

    /// When it last took up another EncryptionConfiguration without a restart, and its plugins anew, in seconds since 1970.
    pub(super) fn reloaded(&self) -> Option<f64> {
        let done = self.of(RELOADED).filter(|sample| sample.is("status", "success"));
        done.map(|sample| sample.value).reduce(f64::max)
    }

    pub(super) fn key_ids(&self) -> Vec<KeyIdUse> {
        let mut uses: BTreeMap<(String, String), KeyIdUse> = BTreeMap::new();
        for sample in &self.samples {
            if ![KEY_IDS, KEY_ID_USED, KEY_ID_STATUS].contains(&sample.family) {
                continue;
            }
            let (provider, hash) = (sample.label("provider_name"), sample.label("key_id_hash"));
            if hash.is_empty() {
                continue;
            }
            let used = uses.entry((provider.clone(), hash.clone())).or_insert_with(|| KeyIdUse {
                provider,
                hash,
                ..KeyIdUse::default()
            });
            let writes = sample.is("transformation_type", "to_storage");
            match (sample.family, writes) {
                (KEY_ID_STATUS, _) => used.last_status = Some(sample.value),
                (KEY_IDS, true) => used.encrypted = sample.count(),
                (KEY_IDS, false) => used.decrypted = sample.count(),
                (_, true) => used.last_encrypted = Some(sample.value),
                (_, false) => used.last_decrypted = Some(sample.value),
            }
        }
        let mut uses: Vec<KeyIdUse> = uses.into_values().collect();
        mark_newest(&mut uses);
        uses
    }

    /// How many DEK sources it holds opened, by provider.
    pub(super) fn dek_sources(&self) -> BTreeMap<String, u64> {
        self.of(DEK_SOURCES).map(|sample| (sample.label("provider_name"), sample.count())).collect()
    }

    pub(super) fn operations(&self) -> Vec<Operations> {
        self.of(OPERATIONS)
            .map(|sample| Operations {
                resource: sample.labels.get("resource").cloned(),
                direction: sample.label("transformation_type"),
                prefix: sample.label("transformer_prefix"),
                status: sample.label("status"),
                count: sample.count(),
            })
            .collect()
    }

    /// Values of `resource` that were read from etcd, by what they begin with. Those whose resource is not told count.
    pub(super) fn read(&self, resource: &str) -> BTreeMap<String, u64> {
        let plural = resource.split('.').next().unwrap_or(resource);
        let mut read = BTreeMap::new();
        for sample in self.of(OPERATIONS) {
            let of = sample.labels.get("resource").is_none_or(|of| of == resource || of == plural);
            if of && sample.is("transformation_type", "from_storage") && sample.is("status", "OK") {
                *read.entry(sample.label("transformer_prefix")).or_default() += sample.count();
            }
        }
        read
    }

    /// Whether it counts by resource, as API servers after 1.31 do.
    pub(super) fn tells_resources(&self) -> bool {
        self.of(OPERATIONS).all(|sample| sample.labels.contains_key("resource"))
    }

    /// Single objects of `resource` that etcd was asked for; none if that is not told by resource.
    pub(super) fn etcd_gets(&self, resource: &str) -> Option<u64> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let told = |sample: &&Sample| sample.labels.contains_key("resource");
        self.of(ETCD).find(told)?;
        let of = |sample: &&Sample| {
            sample.is("operation", "get") && sample.is("resource", plural) && sample.label("group") == group
        };
        Some(self.of(ETCD).filter(of).map(Sample::count).sum())
    }

    fn of(&self, family: &'static str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.family == family)
    }
}

/// By provider, those that were given last.
pub(super) fn mark_newest(uses: &mut [KeyIdUse]) {
    let mut newest: BTreeMap<String, f64> = BTreeMap::new();
    for used in uses.iter() {
        let at = newest.entry(used.provider.clone()).or_default();
        *at = at.max(used.last_status.unwrap_or_default());
    }
    for used in uses {
        used.is_newest =
            used.last_status.is_some_and(|at| newest.get(&used.provider).is_some_and(|newest| at >= *newest));
    }
}

impl Sample {
    fn label(&self, name: &str) -> String {
        self.labels.get(name).cloned().unwrap_or_default()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.labels.get(name).is_some_and(|found| found == value)
    }

    /// As counters are; what is none counts as 0.
    fn count(&self) -> u64 {
        self.value as u64
    }
}

/// `{name="value",…} 1 timestamp`, as far as the value.
fn labels_and_value(text: &str) -> Option<(BTreeMap<String, String>, f64)> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim_start();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (name, after) = rest.split_once('=')?;
            let (value, after) = quoted(after.trim_start())?;
            labels.insert(name.trim().to_owned(), value);
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if rest.starts_with('}') => {}
                None => return None,
            }
        }
    }
    let mut words = rest.split_whitespace();
    let value = words.next()?.parse().ok()?;
    // At most a timestamp follows.
    match (words.next().map(str::parse::<i64>), words.next()) {
        (None | Some(Ok(_)), None) => Some((labels, value)),
        _ => None,
    }
}

/// A quoted value, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.strip_prefix('"')?.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 2..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests;
