//! Who made a record. A wrap under an asymmetric key proves nothing: whoever knows the public key
//! can make one. So such a wrap is tried only after a signature by a separate, pinned key.

use aws_lc_rs::rsa::PublicEncryptingKey;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ParsedPublicKey, RSA_PSS_2048_8192_SHA256, UnparsedPublicKey,
    VerificationAlgorithm,
};

use crate::{Lineage, Record};

/// How a signer signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignatureAlgorithm {
    /// ECDSA on P-256 with SHA-256, DER.
    EcdsaP256,
    /// RSASSA-PSS with a 3072-bit key and SHA-256, raw.
    RsaPss3072,
}

/// A key whose signature proves a record's origin, pinned in configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// The lineage of the key, as records name it.
    pub lineage: Lineage,
    /// How it signs.
    pub algorithm: SignatureAlgorithm,
    /// P-256: the uncompressed point (65 bytes) or SPKI; RSA: SPKI or PKCS#1. DER.
    pub public_key: Vec<u8>,
}

/// When a wrap under an asymmetric key may be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OriginPolicy {
    /// Only with a signature of one of these keys. An empty list tries none.
    Signed(Vec<Signer>),
    /// Always. Whoever writes etcd can then plant records; never a default.
    AcceptUnproven,
}

/// Why a record's origin is not proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// No signer in the record.
    #[error("it is not signed")]
    Unsigned,
    /// A signer that is not pinned here.
    #[error("its signer {signer} is not pinned in the configuration")]
    UnknownSigner {
        /// Who the record says signed it.
        signer: Lineage,
    },
    /// The signature is not the signer's.
    #[error("the signature of {signer} does not verify")]
    BadSignature {
        /// Who the record says signed it.
        signer: Lineage,
    },
}

/// Bytes of a signature by RSA with 3072 bits, and of its modulus.
const PSS_LEN: usize = 384;

impl SignatureAlgorithm {
    /// How a key with this public half (SPKI) signs records; `None` if it can't.
    pub fn of(public_key: &[u8]) -> Option<Self> {
        if ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, public_key).is_ok() {
            return Some(Self::EcdsaP256);
        }
        let rsa = PublicEncryptingKey::from_der(public_key).ok()?;
        (rsa.key_size_bytes() == PSS_LEN).then_some(Self::RsaPss3072)
    }
}

impl Signer {
    /// Whether `signature` is this key's, of `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
            SignatureAlgorithm::EcdsaP256 => &ECDSA_P256_SHA256_ASN1,
            // The library verifies from 2048 bits on; the format says 3072.
            SignatureAlgorithm::RsaPss3072 if signature.len() == PSS_LEN => &RSA_PSS_2048_8192_SHA256,
            SignatureAlgorithm::RsaPss3072 => return false,
        };
        UnparsedPublicKey::new(algorithm, &self.public_key).verify(message, signature).is_ok()
    }
}

impl OriginPolicy {
    /// Whether records that name `signer` can be proven, be they what they are.
    pub fn may_prove(&self, signer: Option<&Lineage>) -> bool {
        match self {
            Self::Signed(signers) => signers.iter().any(|known| Some(&known.lineage) == signer),
            Self::AcceptUnproven => true,
        }
    }

    /// Whether wraps of `record` under asymmetric keys may be tried.
    ///
    /// # Errors
    /// [`Unproven`], with the reason.
    pub fn check(&self, record: &Record) -> Result<(), Unproven> {
        let Self::Signed(signers) = self else {
            return Ok(());
        };
        let (Some(named), Some(signature)) = (record.core().policy.signer(), record.origin_signature())
        else {
            return Err(Unproven::Unsigned);
        };
        let signer = signers
            .iter()
            .find(|signer| signer.lineage == *named)
            .ok_or_else(|| Unproven::UnknownSigner { signer: named.clone() })?;
        if signer.verifies(&record.origin_message(), signature) {
            Ok(())
        } else {
            Err(Unproven::BadSignature { signer: named.clone() })
        }
    }
}
