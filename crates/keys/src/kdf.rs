//! Key derivation: NIST SP 800-108r1 in counter mode with HMAC-SHA256, one block.
//!
//! `KDF(key, label, context) = HMAC-SHA256(key, 00000001 ‖ label ‖ 00 ‖ context ‖ 00000100)`

use aws_lc_rs::kdf::{KbkdfCtrHmacAlgorithmId, get_kbkdf_ctr_hmac_algorithm, kbkdf_ctr_hmac};
use zeroize::Zeroizing;

use crate::DOMAIN;

/// A 256-bit key, wiped when dropped.
pub type Key = Zeroizing<[u8; 32]>;

/// What a derived value is for; no two uses share a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Label {
    /// The key that wraps local KEKs under a version of a file root key.
    FileWrap,
    /// The identity of a local KEK.
    KekId,
    /// The check digits in the lineage of a file root key.
    RootId,
    /// The one-time key that seals one DEK source.
    Seal,
    /// The key that protects a sealing key, of a credential.
    SealingCredential,
    /// The key that protects a sealing key, of a passphrase.
    SealingPassphrase,
    /// [`Label::Seal`] of the suite that exists in tests only.
    #[cfg(test)]
    SealOfSecondSuite,
    /// The tag that authenticates a record on the disk of the node that made it.
    StateRecord,
}

impl Label {
    fn suffix(self) -> &'static str {
        match self {
            Self::FileWrap => "file-wrap",
            Self::KekId => "kek-id",
            Self::RootId => "root-id",
            Self::Seal => "seal",
            Self::SealingCredential => "sealing-credential",
            Self::SealingPassphrase => "sealing-passphrase",
            #[cfg(test)]
            Self::SealOfSecondSuite => "second-suite-seal",
            Self::StateRecord => "state-record",
        }
    }
}

/// Derives 256 bits from `key` for the use that `label` names; `context` tells values of one use apart.
pub fn derive(key: &[u8; 32], label: Label, context: &[u8]) -> Key {
    const OUTPUT_BITS: [u8; 4] = 256u32.to_be_bytes();
    let mut info = Vec::with_capacity(DOMAIN.len() + 16 + context.len());
    info.extend_from_slice(DOMAIN.as_bytes());
    info.extend_from_slice(label.suffix().as_bytes());
    info.push(0);
    info.extend_from_slice(context);
    info.extend_from_slice(&OUTPUT_BITS);

    let mut out = Key::default();
    get_kbkdf_ctr_hmac_algorithm(KbkdfCtrHmacAlgorithmId::Sha256)
        .and_then(|hmac| kbkdf_ctr_hmac(hmac, key, &info, &mut *out).ok())
        .expect("one block of HMAC-SHA256 under a 256-bit key has no failing input");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `cryptography` (`KBKDFHMAC`, rlen = llen = 4).
    #[test]
    fn agrees_with_an_independent_implementation() {
        assert_eq!(
            hex::encode(*derive(&[9; 32], Label::Seal, &[7; 64])),
            "7bbb87ef1a3bd1b084ac32b310ed55b38378376a15a34ed879880bf17d22ae21"
        );
    }
}
