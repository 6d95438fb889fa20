//! What things are called here. Each name is of one thing.

use std::{collections::BTreeSet, fmt};

use casemate_encryption_config::ResourcePattern;

/// The number of a key: N in `kms-N.sock`, in the name of its record and of its provider. Not a key id.
///
/// The first is 1; a number is never given twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(pub u64);

impl ProviderId {
    /// The one after it, if numbers are left.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Resources that stand in one entry of the configuration and go their way together. A pattern stands in one entry at most,
/// and what a wildcard covers in none beside: then no entry takes objects from another one.
///
/// They share an entry because API servers refuse two plugins of one name: what a hand-written file encrypts through one
/// plugin can't be taken apart before it is migrated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources(pub BTreeSet<ResourcePattern>);

impl From<ResourcePattern> for Resources {
    fn from(one: ResourcePattern) -> Self {
        Self([one].into())
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, pattern) in self.0.iter().enumerate() {
            write!(f, "{}{pattern}", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// An API server, by whatever tells it from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(pub String);

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts how often it was decided what writes, so that a proof of an earlier time is not taken for one of now: from A to
/// B and back to A are two turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Turn(pub u64);

impl Turn {
    pub(crate) fn next(self) -> Self {
        // Round and round, so that it is another one even after one that can only have been damaged.
        Self(self.0.wrapping_add(1))
    }
}

/// A key id as any plugin reports it: the `key_id` of KMS v2. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginKeyId(String);

impl PluginKeyId {
    /// As kube-apiserver takes it: 1 to 1024 bytes. Of an empty one there is no value: a plugin that reports it has not
    /// reported.
    pub fn new(text: &str) -> Option<Self> {
        (1..=1024).contains(&text.len()).then(|| Self(text.to_owned()))
    }

    /// As it was reported.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PluginKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What names a root key behind a plugin: key service, namespace, path. Two that are equal name the same root key; the way
/// to it (addresses of the same service, credentials, the plugin's image) is none of it, but of [`Settings`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(pub String);

/// A digest of what can change about a provider without making it another one: endpoint, timeout, image, credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Settings(pub u64);

/// Seconds since 1970 of whoever observes. It is written into history and never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);
