//! Why a call was not served.

use casemate_keys::{KekError, KeyId, Refusal};

use super::OpenError;

/// Why a call was not served. The text names the key, the cause and the remedy, never a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing may be written now.
    #[error("provider {provider} does not write now: {reason}")]
    NotWriting {
        /// Which provider.
        provider: String,
        /// Cause and remedy.
        reason: String,
    },
    /// The request itself can't be served.
    #[error("{0}")]
    Invalid(#[from] KekError),
    /// Refused before any key service or cache was asked.
    #[error("key id {key_id:?}: {refusal}{}", remedy(refusal))]
    Refused {
        /// The key id of the request, shortened.
        key_id: String,
        /// Why.
        refusal: Refusal,
    },
    /// No root key opened the record.
    #[error("key id {key_id}: {source}")]
    NotOpened {
        /// The key id of the request.
        key_id: KeyId,
        /// Why, root by root where that is no secret.
        source: OpenError,
    },
    /// The record opened, the ciphertext did not.
    #[error("key id {key_id}: {source}; restore the object from a backup")]
    Damaged {
        /// The key id of the request.
        key_id: KeyId,
        /// What is known.
        source: KekError,
    },
}

/// For refusals whose text has none.
fn remedy(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Record(_) | Refusal::OtherKeyId { .. } | Refusal::Ciphertext(_) => {
            "; what stands in etcd was changed: restore the object from a backup"
        }
        _ => "",
    }
}
