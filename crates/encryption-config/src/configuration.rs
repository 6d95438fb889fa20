//! What an `EncryptionConfiguration` says, as values to build, compare and edit.
//!
//! A value need not keep kube-apiserver's rules while it is edited: [`EncryptionConfiguration::check`] says whether it
//! does. What was read does.

use std::{fmt, time::Duration};

use aws_lc_rs::constant_time;
use zeroize::Zeroizing;

use crate::{Endpoint, ResourcePattern};

/// Which resources are stored through which providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionConfiguration {
    /// In the order of the file, which matters: an earlier wildcard forbids what it would mask.
    pub entries: Vec<Entry>,
}

/// Some resources and their providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Whom it is about.
    pub resources: Vec<ResourcePattern>,
    /// The first one writes, all of them read, in this order.
    pub providers: Vec<Provider>,
}

/// A way of storing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provider {
    /// As it is, in plaintext.
    Identity,
    /// AES in CBC mode, which does not authenticate. The first key writes, all of them read.
    AesCbc(Vec<LocalKey>),
    /// AES-GCM with random nonces. The first key writes, all of them read.
    AesGcm(Vec<LocalKey>),
    /// XSalsa20 and Poly1305. The first key writes, all of them read.
    Secretbox(Vec<LocalKey>),
    /// A plugin that speaks KMS v1, which API servers serve behind their feature gate `KMSv1` only.
    KmsV1(KmsV1),
    /// A plugin that speaks KMS v2.
    KmsV2(KmsV2),
}

/// A plugin that speaks KMS v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsV1 {
    /// Part of what is written to etcd.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// How long an API server waits for each answer.
    pub timeout: Duration,
    /// How many opened keys an API server keeps; below zero: none.
    pub cache_size: i32,
}

/// A plugin that speaks KMS v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsV2 {
    /// Part of what is written to etcd. Has no colon.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// How long an API server waits for each answer.
    pub timeout: Duration,
}

/// A key that stands in the configuration itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalKey {
    /// Part of what is written to etcd. Any characters; another key may have the same.
    pub name: String,
    /// The key.
    pub secret: KeyBytes,
}

/// The bytes of a key: wiped when dropped, never shown.
#[derive(Clone)]
pub struct KeyBytes(Zeroizing<Vec<u8>>);

impl KmsV1 {
    /// What an API server takes where the file says nothing.
    pub const DEFAULT_CACHE_SIZE: i32 = 1000;
}

impl Provider {
    /// What an API server waits for a plugin where the file says nothing.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

    /// Its field in the file.
    pub fn field(&self) -> &'static str {
        match self {
            Provider::Identity => "identity",
            Provider::AesCbc(_) => "aescbc",
            Provider::AesGcm(_) => "aesgcm",
            Provider::Secretbox(_) => "secretbox",
            Provider::KmsV1(_) | Provider::KmsV2(_) => "kms",
        }
    }

    /// The keys that stand in the file; none for plugins and plaintext.
    pub fn local_keys(&self) -> &[LocalKey] {
        match self {
            Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys) => keys,
            Provider::Identity | Provider::KmsV1(_) | Provider::KmsV2(_) => &[],
        }
    }

    /// The plugin's name.
    pub fn kms_name(&self) -> Option<&str> {
        match self {
            Provider::KmsV1(kms) => Some(&kms.name),
            Provider::KmsV2(kms) => Some(&kms.name),
            _ => None,
        }
    }
}

impl KeyBytes {
    /// Takes over `bytes`, of any length: the provider decides which are accepted.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }

    /// The key in the clear.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBytes({} bytes, not shown)", self.0.len())
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for KeyBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_compared_and_not_shown() {
        let key =
            |byte| LocalKey { name: "key1".into(), secret: KeyBytes::new(Zeroizing::new(vec![byte; 32])) };
        assert_eq!(key(7), key(7));
        assert_ne!(key(7), key(8));
        assert_ne!(key(7).secret, KeyBytes::new(Zeroizing::new(vec![7; 16])));
        let shown = format!("{:#?}", Provider::AesCbc(vec![key(0xA5)]));
        assert!(shown.contains("32 bytes, not shown"), "{shown}");
        for form in ["165", "a5", "A5", "paWl"] {
            assert!(!shown.contains(form), "{shown}");
        }
    }
}
