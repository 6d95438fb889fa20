//! What kube-apiserver accepts in a KMS v2 exchange, as constants and pure checks.
//!
//! A plugin applies them to requests and to its own replies before it sends them: kube-apiserver marks a
//! plugin unhealthy for one reply beyond a limit. The limits are inclusive and are those of Kubernetes 1.37
//! (`k8s.io/apiserver` v0.37.2, package `kmsv2`); they have been the same since 1.29.
use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, HEALTHZ_OK, StatusResponse, VERSION,
    VERSION_BETA,
};

/// Most bytes of a key id; the fewest are 1.
pub const KEY_ID_MAX: usize = 1024;

/// Most bytes of a ciphertext; the fewest are 1.
pub const CIPHERTEXT_MAX: usize = 1024;

/// Most bytes of all annotation keys and values of one reply together.
pub const ANNOTATIONS_MAX: usize = 32 * 1024;

/// Most bytes of an annotation key, a final dot aside (RFC 1123).
pub const ANNOTATION_KEY_MAX: usize = 253;

/// Most bytes of one label of an annotation key (RFC 1123).
pub const ANNOTATION_LABEL_MAX: usize = 63;

/// Bytes of the seed that Kubernetes 1.29 and later hand to Encrypt; longer ones are legal.
pub const SEED_MIN: usize = 32;

/// Bytes of an AES key, the DEK source of Kubernetes 1.27 and 1.28.
pub const AES_KEYS: [usize; 3] = [16, 24, 32];

/// How an exchange breaks the contract. The text says what was found and what is accepted, and never
/// holds a ciphertext, an annotation's value or a DEK source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// An annotation key is no domain name.
    #[error(
        "annotation key {key:?} {fault}; accepted is a lower-case domain name of at least two labels, \
         such as `record.example.com`"
    )]
    AnnotationKey {
        /// The key, cut after [`ANNOTATION_KEY_MAX`] characters.
        key: String,
        /// What is wrong with it.
        fault: AnnotationKeyFault,
    },
    /// Annotations are too many or too long.
    #[error("annotations hold {found} bytes (keys and values); accepted are at most {ANNOTATIONS_MAX}")]
    Annotations {
        /// Bytes of all keys and values.
        found: usize,
    },
    /// The ciphertext is empty or too long.
    #[error("the ciphertext has {found} bytes; accepted are 1 to {CIPHERTEXT_MAX}")]
    Ciphertext {
        /// Its bytes.
        found: usize,
    },
    /// The plaintext can be no DEK source.
    #[error("the plaintext has {found} bytes; a DEK source has 16, 24, 32 or more than 32")]
    DekSource {
        /// Its bytes.
        found: usize,
    },
    /// The plugin says that it is not healthy.
    #[error("healthz is {found:?}; healthy is exactly `ok`")]
    Healthz {
        /// What Status said, cut after 1024 characters.
        found: String,
    },
    /// The key id is empty or too long.
    #[error("the key id has {found} bytes; accepted are 1 to {KEY_ID_MAX}")]
    KeyId {
        /// Its bytes.
        found: usize,
    },
    /// Status names another version of the contract.
    #[error("version is {found:?}; accepted are `v2` and `v2beta1`")]
    Version {
        /// What Status said, cut after 64 characters.
        found: String,
    },
}

/// What is wrong with an annotation key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationKeyFault {
    /// A character other than a-z, 0-9, `-` and `.`; `/` is one of them.
    #[error("has the character {0:?}")]
    Character(char),
    /// Nothing at all.
    #[error("is empty")]
    Empty,
    /// Two dots with nothing between, or a dot at the start.
    #[error("has an empty label")]
    EmptyLabel,
    /// A label that starts or ends with `-`.
    #[error("has a label that starts or ends with `-`")]
    Hyphen,
    /// One label only.
    #[error("has one label only")]
    OneLabel,
    /// A label beyond [`ANNOTATION_LABEL_MAX`].
    #[error("has a label of {0} bytes, more than {ANNOTATION_LABEL_MAX}")]
    LabelTooLong(usize),
    /// Beyond [`ANNOTATION_KEY_MAX`].
    #[error("has {0} bytes, more than {ANNOTATION_KEY_MAX}")]
    TooLong(usize),
}

/// Everything that kube-apiserver would find wrong with a Status reply, in the order of its fields.
pub fn check_status(reply: &StatusResponse) -> Vec<Violation> {
    [
        check_version(&reply.version).err(),
        check_healthz(&reply.healthz).err(),
        check_key_id(&reply.key_id).err(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An Encrypt request that kube-apiserver could have sent.
pub fn check_encrypt_request(request: &EncryptRequest) -> Result<(), Violation> {
    check_dek_source(&request.plaintext)
}

/// An Encrypt reply that kube-apiserver would take. That its key id equals the one of Status is a second
/// condition, which only the caller can see.
pub fn check_encrypt_response(reply: &EncryptResponse) -> Result<(), Violation> {
    check_ciphertext(&reply.ciphertext)?;
    check_key_id(&reply.key_id)?;
    check_annotations(&reply.annotations)
}

/// A Decrypt request that can stem from a lawful Encrypt reply.
pub fn check_decrypt_request(request: &DecryptRequest) -> Result<(), Violation> {
    check_ciphertext(&request.ciphertext)?;
    check_key_id(&request.key_id)?;
    check_annotations(&request.annotations)
}

/// A Decrypt reply that kube-apiserver can use.
pub fn check_decrypt_response(reply: &DecryptResponse) -> Result<(), Violation> {
    check_dek_source(&reply.plaintext)
}

/// `v2` or `v2beta1`.
pub fn check_version(version: &str) -> Result<(), Violation> {
    if version == VERSION || version == VERSION_BETA {
        return Ok(());
    }
    Err(Violation::Version { found: version.chars().take(64).collect() })
}

/// Exactly `ok`.
pub fn check_healthz(healthz: &str) -> Result<(), Violation> {
    if healthz == HEALTHZ_OK {
        return Ok(());
    }
    Err(Violation::Healthz { found: healthz.chars().take(1024).collect() })
}

/// 1 to [`KEY_ID_MAX`] bytes.
pub fn check_key_id(key_id: &str) -> Result<(), Violation> {
    match key_id.len() {
        1..=KEY_ID_MAX => Ok(()),
        found => Err(Violation::KeyId { found }),
    }
}

/// 1 to [`CIPHERTEXT_MAX`] bytes.
pub fn check_ciphertext(ciphertext: &[u8]) -> Result<(), Violation> {
    match ciphertext.len() {
        1..=CIPHERTEXT_MAX => Ok(()),
        found => Err(Violation::Ciphertext { found }),
    }
}

/// Keys are domain names; keys and values together have at most [`ANNOTATIONS_MAX`] bytes.
pub fn check_annotations(annotations: &BTreeMap<String, Bytes>) -> Result<(), Violation> {
    let found = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if found > ANNOTATIONS_MAX {
        return Err(Violation::Annotations { found });
    }
    annotations.keys().try_for_each(|key| check_annotation_key(key))
}

/// A fully qualified domain name as Kubernetes reads it: at least two labels of RFC 1123, in lower case; one
/// final dot is allowed.
pub fn check_annotation_key(key: &str) -> Result<(), Violation> {
    annotation_key_fault(key).map_or(Ok(()), |fault| {
        Err(Violation::AnnotationKey { key: key.chars().take(ANNOTATION_KEY_MAX).collect(), fault })
    })
}

/// A seed of at least [`SEED_MIN`] bytes, or an AES key.
pub fn check_dek_source(plaintext: &[u8]) -> Result<(), Violation> {
    let found = plaintext.len();
    if found >= SEED_MIN || AES_KEYS.contains(&found) {
        return Ok(());
    }
    Err(Violation::DekSource { found })
}

fn annotation_key_fault(key: &str) -> Option<AnnotationKeyFault> {
    if key.is_empty() {
        return Some(AnnotationKeyFault::Empty);
    }
    let name = key.strip_suffix('.').unwrap_or(key);
    if name.len() > ANNOTATION_KEY_MAX {
        return Some(AnnotationKeyFault::TooLong(name.len()));
    }
    if let Some(other) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '.')) {
        return Some(AnnotationKeyFault::Character(other));
    }
    if let Some(fault) = name.split('.').find_map(label_fault) {
        return Some(fault);
    }
    (!name.contains('.')).then_some(AnnotationKeyFault::OneLabel)
}

fn label_fault(label: &str) -> Option<AnnotationKeyFault> {
    if label.is_empty() {
        Some(AnnotationKeyFault::EmptyLabel)
    } else if label.starts_with('-') || label.ends_with('-') {
        Some(AnnotationKeyFault::Hyphen)
    } else {
        (label.len() > ANNOTATION_LABEL_MAX).then_some(AnnotationKeyFault::LabelTooLong(label.len()))
    }
}

#[cfg(test)]
mod tests;
