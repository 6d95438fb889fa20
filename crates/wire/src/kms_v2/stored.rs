//! What kube-apiserver keeps in etcd for an object that a KMS v2 provider protects.
//!
//! [`parse`] is pure and opens nothing. What it can't read it tells with the place, so that people can look.
use std::fmt;

use prost::Message;

use super::limits::{self, Violation};
use crate::hidden::Hidden;

#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod generated;
mod place;

pub use generated::{EncryptedDekSourceType, EncryptedObject};

/// What each value begins with; the provider's name and `:` follow.
pub const PREFIX: &str = "k8s:enc:kms:v2:";

/// Bytes that encryption under a seed adds to an object: info (32), nonce (12), tag (16).
const SEED_OVERHEAD: usize = 60;
/// Bytes that encryption under an AES key adds to an object: nonce (12), tag (16).
const KEY_OVERHEAD: usize = 28;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredValue<'a> {
    /// The name in the EncryptionConfiguration that wrote it.
    pub provider: &'a str,
    /// Everything behind the prefix.
    pub object: EncryptedObject,
}

/// Why bytes are no value of a KMS v2 provider. Holds none of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// Another beginning than [`PREFIX`].
    #[error("it does not begin with `{PREFIX}`")]
    Prefix,
    /// No `:` ends the provider's name, or the name is empty or no text.
    #[error("after `{PREFIX}` stands no provider name in UTF-8 that ends with `:`")]
    Provider,
    /// The rest is not the protobuf message.
    #[error("the protobuf message breaks: {reason}")]
    Protobuf {
        /// Offset in the value of the field that breaks.
        at: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// What kube-apiserver would refuse in a value that parses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredFault {
    /// Key id, encrypted DEK source or annotations beyond the limits of the contract.
    #[error(transparent)]
    Contract(#[from] Violation),
    /// Shorter than its cipher's overhead.
    #[error("encryptedData has {found} bytes; its kind adds {least} to the object")]
    DataTooShort {
        /// Its bytes.
        found: usize,
        /// What encryption alone adds.
        least: usize,
    },
    /// A number that no released kube-apiserver writes.
    #[error("encryptedDEKSourceType is {found}; known are 0 (AES key) and 1 (seed)")]
    SourceType {
        /// The number.
        found: i32,
    },
}

/// Reads a value as it stands in etcd.
///
/// # Errors
/// [`StoredError`], with the place.
pub fn parse(value: &[u8]) -> Result<StoredValue<'_>, StoredError> {
    let rest = value.strip_prefix(PREFIX.as_bytes()).ok_or(StoredError::Prefix)?;
    let end = rest.iter().position(|byte| *byte == b':').ok_or(StoredError::Provider)?;
    let (name, message) = (&rest[..end], &rest[end + 1..]);
    let provider =
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).ok_or(StoredError::Provider)?;
    let object = EncryptedObject::decode(message).map_err(|error| {
        let (at, reason) = place::of_the_break(message, &error);
        StoredError::Protobuf { at: value.len() - message.len() + at, reason }
    })?;
    Ok(StoredValue { provider, object })
}

impl StoredValue<'_> {
    /// The bytes that kube-apiserver reads from etcd.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = format!("{PREFIX}{}:", self.provider).into_bytes();
        value.extend(self.object.encode_to_vec());
        value
    }

    /// Bytes of the object in the clear; `None` if the kind is unknown or there are too few.
    pub fn plaintext_len(&self) -> Option<usize> {
        self.object.encrypted_data.len().checked_sub(self.data_overhead()?)
    }

    /// Everything that kube-apiserver would refuse before it asks the plugin or decrypts.
    pub fn faults(&self) -> Vec<StoredFault> {
        let object = &self.object;
        let contract = [
            limits::check_key_id(&object.key_id),
            limits::check_ciphertext(&object.encrypted_dek_source),
            limits::check_annotations(&object.annotations),
        ];
        let mut faults: Vec<StoredFault> =
            contract.into_iter().filter_map(Result::err).map(StoredFault::from).collect();
        let found = object.encrypted_data.len();
        match self.data_overhead() {
            None => faults.push(StoredFault::SourceType { found: object.encrypted_dek_source_type }),
            Some(least) if found < least => faults.push(StoredFault::DataTooShort { found, least }),
            Some(_) => {}
        }
        faults
    }

    fn data_overhead(&self) -> Option<usize> {
        match EncryptedDekSourceType::try_from(self.object.encrypted_dek_source_type).ok()? {
            EncryptedDekSourceType::AesGcmKey => Some(KEY_OVERHEAD),
            EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed => Some(SEED_OVERHEAD),
        }
    }
}

impl StoredError {
    /// Offset in the value where it breaks.
    pub fn at(&self) -> usize {
        match self {
            Self::Prefix => 0,
            Self::Provider => PREFIX.len(),
            Self::Protobuf { at, .. } => *at,
        }
    }
}

impl fmt::Debug for EncryptedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedObject")
            .field("encrypted_data", &Hidden(self.encrypted_data.len()))
            .field("key_id", &self.key_id)
            .field("encrypted_dek_source", &Hidden(self.encrypted_dek_source.len()))
            .field("annotations", &self.annotations.keys())
            .field("encrypted_dek_source_type", &self.encrypted_dek_source_type)
            .finish()
    }
}

#[cfg(test)]
mod tests;
