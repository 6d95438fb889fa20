//! How a value of etcd is encrypted, and which key it needs.
//!
//! A value alone says so: kube-apiserver marks what it encrypts with `k8s:enc:`, the kind of provider and the name that
//! the EncryptionConfiguration has for key or provider. [`ObjectPath`] says whose value it is, by its key in etcd.
//!
//! ```
//! use casemate_census::classify::{Cipher, Class, classify};
//!
//! let value = [b"k8s:enc:aescbc:v1:key1:", &[7; 48][..]].concat();
//! let Class::Local { cipher: Cipher::AesCbc, key } = classify(&value) else { unreachable!() };
//! assert_eq!(key.to_string(), "key1");
//! ```
//!
//! What is told is names, sizes and digests. Where a name should stand may stand anything in a damaged value: a [`Name`]
//! shows what can be one, and a digest of all else. A value that contradicts its own mark is [`Malformed`], with what it
//! claims to be: nobody can read it, and whether a key may go does not depend on it alone.
//!
//! Map: `envelope` is the marks and what follows them, `kms_v2` what a plugin left, `casemate` our record in it.
mod casemate;
mod envelope;
mod kms_v2;
mod malformed;
mod name;
mod path;

#[cfg(test)]
pub(crate) mod tests;

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

pub use casemate::{Casemate, RecordFault, suite_of};
pub use envelope::Cipher;
pub(crate) use envelope::is_encrypted;
#[cfg(feature = "recover")]
pub(crate) use kms_v2::source as source_of;
pub use kms_v2::{Annotation, DekSource, DekSourceKind, KmsV2};
pub use malformed::{Claim, Malformation, Malformed};
pub use name::Name;
pub(crate) use name::is_plain;
pub use path::ObjectPath;

/// How a value is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Not at all: protobuf, as kube-apiserver writes its own kinds.
    PlainProtobuf,
    /// Not at all: JSON, as custom resources are.
    PlainJson,
    /// Not at all: neither of these, and no mark of a provider.
    PlainOther,
    /// With a key that stands in the EncryptionConfiguration itself.
    Local {
        /// Its provider.
        cipher: Cipher,
        /// What the EncryptionConfiguration calls the key.
        key: Name,
    },
    /// By a KMS v1 plugin, which leaves no name of a key.
    KmsV1 {
        /// What the EncryptionConfiguration calls the plugin.
        provider: Name,
    },
    /// By a KMS v2 plugin. Values under one DEK source share it.
    KmsV2(Arc<KmsV2>),
    /// Marked as one of these, and none.
    Malformed(Box<Malformed>),
}

/// How many DEK sources a [`Classifier`] remembers. There is one for each start of an API server and key id until all is
/// written anew.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not 0");

/// Classifies many values, whose DEK sources repeat. What it answers is what [`classify`] answers.
#[derive(Debug)]
pub struct Classifier {
    known: LruCache<[u8; 32], Arc<KmsV2>>,
}

/// Classifies one value.
pub fn classify(value: &[u8]) -> Class {
    Classifier::new().classify(value)
}

impl Classifier {
    /// One that remembers nothing yet.
    pub fn new() -> Self {
        Self { known: LruCache::new(REMEMBERED) }
    }

    /// Classifies `value`. Nothing of it but names and digests is kept.
    pub fn classify(&mut self, value: &[u8]) -> Class {
        envelope::classify(value, &mut self.known).unwrap_or_else(Class::Malformed)
    }
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new()
    }
}
