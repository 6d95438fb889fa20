//! How many of the objects that were read were stored how, from what the counters did meanwhile. Pure.
//!
//! An API server counts each value that it takes from etcd by what it begins with. Of N objects that were read, x(p) began
//! with p; the counter of p moved by d(p) = x(p) + what others did. Others never count backwards, so x(p) ≤ d(p); and
//! since all x sum up to N, x(p) ≥ N − Σ d(q) over all other q. Both hold whatever others did.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::metrics::Metrics;

/// A number that lies between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Bounds {
    /// Not fewer.
    pub(super) at_least: u64,
    /// Not more.
    pub(super) at_most: u64,
}

/// How plaintext is named that no provider was asked for: the server encrypts nothing of this resource.
pub(super) const UNCOVERED: &str = "none";
/// How API servers name plaintext.
pub(super) const IDENTITY: &str = "identity";
/// With what all begins that is encrypted.
const ENCRYPTED: &str = "k8s:enc:";
const KMS_V2: &str = "k8s:enc:kms:v2:";

/// What some reads in a row tell of the objects that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// How many were read.
    pub(super) read: u64,
    /// By what they begin with.
    pub(super) prefixes: BTreeMap<String, Bounds>,
    /// By the name of the local key.
    pub(super) local_keys: BTreeMap<String, Bounds>,
    /// By provider of KMS v2, and SHA-256 of the key id.
    pub(super) key_ids: BTreeMap<(String, String), Bounds>,
    /// Values that the server took from etcd for others meanwhile.
    pub(super) others: u64,
}

/// Why the counters tell nothing of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Silence {
    /// Two processes showed their counters: a load balancer stands between.
    TwoServers,
    /// They moved less often than objects were read.
    NotCounted,
}

impl Silence {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::TwoServers => {
                "several API servers answered at this address, each with counters of its own: name one with --server"
            }
            Self::NotCounted => {
                "its counters moved less often than objects were read: it has other counters, or answered from its cache, or another server answered"
            }
        }
    }
}

/// From the counters before and after `read` objects of `resource` were read.
pub(super) fn told(before: &Metrics, after: &Metrics, resource: &str, read: u64) -> Result<Told, Silence> {
    if before.instance() != after.instance() && before.instance().started != after.instance().started {
        return Err(Silence::TwoServers);
    }
    let moved = moved(&before.read(resource), &after.read(resource)).ok_or(Silence::TwoServers)?;
    let (prefixes, local): (BTreeMap<_, _>, BTreeMap<_, _>) =
        moved.into_iter().partition(|(prefix, _)| prefix == IDENTITY || prefix.starts_with(ENCRYPTED));
    let all: u64 = prefixes.values().sum();
    if all < read {
        // Without a provider nothing is counted; that etcd was asked is.
        let gets = before.etcd_gets(resource).zip(after.etcd_gets(resource));
        let asked = gets.is_some_and(|(before, after)| after.saturating_sub(before) >= read);
        if all > 0 || !asked {
            return Err(Silence::NotCounted);
        }
        let exactly = Bounds { at_least: read, at_most: read };
        let prefixes = BTreeMap::from([(UNCOVERED.to_owned(), exactly)]);
        return Ok(Told { read, prefixes, ..Told::default() });
    }
    let others = all - read;
    // All of that may be of other resources, if this is one that nothing is counted of.
    let uncovered = if others > 0 && !after.tells_resources() { read } else { 0 };
    let hidden = others + uncovered;
    let bounds =
        |moved: u64, others: u64| Bounds { at_least: moved.saturating_sub(others), at_most: moved.min(read) };
    let mut prefixes: BTreeMap<String, Bounds> =
        prefixes.into_iter().map(|(prefix, moved)| (prefix, bounds(moved, hidden))).collect();
    if uncovered > 0 {
        prefixes.insert(UNCOVERED.to_owned(), Bounds { at_least: 0, at_most: uncovered });
    }
    let local_keys = local.into_iter().map(|(name, moved)| (name, bounds(moved, hidden))).collect();
    Ok(Told { read, key_ids: key_ids(before, after, &prefixes, read), prefixes, local_keys, others })
}

/// Key ids are counted for all resources together: whatever of a provider's is not these objects' is others'.
fn key_ids(
    before: &Metrics,
    after: &Metrics,
    prefixes: &BTreeMap<String, Bounds>,
    read: u64,
) -> BTreeMap<(String, String), Bounds> {
    let decrypted = |metrics: &Metrics| -> BTreeMap<(String, String), u64> {
        metrics.key_ids().into_iter().map(|used| ((used.provider, used.hash), used.decrypted)).collect()
    };
    let moved = moved(&decrypted(before), &decrypted(after)).unwrap_or_default();
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for ((provider, _), moved) in &moved {
        *all.entry(provider).or_default() += moved;
    }
    let bounds = |((provider, hash), moved): (&(String, String), &u64)| {
        let of = prefixes.get(&format!("{KMS_V2}{provider}:")).copied().unwrap_or_default();
        let others = all.get(provider.as_str()).copied().unwrap_or_default().saturating_sub(of.at_least);
        let most = (*moved).min(of.at_most).min(read);
        ((provider.clone(), hash.clone()), Bounds { at_least: moved.saturating_sub(others), at_most: most })
    };
    moved.iter().map(bounds).collect()
}

/// What went up, and by how much; nothing at all if one went down, which no counter of one process does.
fn moved<K: Ord + Clone>(before: &BTreeMap<K, u64>, after: &BTreeMap<K, u64>) -> Option<BTreeMap<K, u64>> {
    let mut moved = BTreeMap::new();
    if before.keys().any(|key| !after.contains_key(key)) {
        return None;
    }
    for (key, after) in after {
        let by = after.checked_sub(before.get(key).copied().unwrap_or_default())?;
        if by > 0 {
            moved.insert(key.clone(), by);
        }
    }
    Some(moved)
}

impl Told {
    /// The same of these objects and of those.
    pub(super) fn add(&mut self, more: Told) {
        fn sum<K: Ord>(all: &mut BTreeMap<K, Bounds>, more: BTreeMap<K, Bounds>) {
            for (key, bounds) in more {
                let both = all.entry(key).or_default();
                both.at_least += bounds.at_least;
                both.at_most += bounds.at_most;
            }
        }
        self.read += more.read;
        self.others += more.others;
        sum(&mut self.prefixes, more.prefixes);
        sum(&mut self.local_keys, more.local_keys);
        sum(&mut self.key_ids, more.key_ids);
    }
}

#[cfg(test)]
mod tests;
