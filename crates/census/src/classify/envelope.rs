//! The marks of kube-apiserver's providers, and what has to follow them.
use std::fmt;
use std::sync::Arc;

use casemate_wire::kms_v2::stored;
use lru::LruCache;
use prost::Message;
use serde::de::IgnoredAny;

use super::{Claim, Class, KmsV2, Malformation, Malformed, Name, kms_v2};

const ENCRYPTED: &[u8] = b"k8s:enc:";
const KMS_V1: &[u8] = b"k8s:enc:kms:v1:";
const PROTOBUF: &[u8] = b"k8s\0";

/// A provider whose key stands in the EncryptionConfiguration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Cipher {
    /// AES in CBC mode: a host that could read it can be made to decrypt by a padding oracle.
    AesCbc,
    /// AES in Galois/counter mode with random nonces: its key is to be changed every 200 000 writes.
    AesGcm,
    /// XSalsa20 and Poly1305.
    SecretBox,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AesCbc, Self::AesGcm, Self::SecretBox];

    /// As the EncryptionConfiguration and the mark have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AesCbc => "aescbc",
            Self::AesGcm => "aesgcm",
            Self::SecretBox => "secretbox",
        }
    }

    /// What each value begins with; the key's name and `:` follow.
    pub fn mark(self) -> &'static [u8] {
        match self {
            Self::AesCbc => b"k8s:enc:aescbc:v1:",
            Self::AesGcm => b"k8s:enc:aesgcm:v1:",
            Self::SecretBox => b"k8s:enc:secretbox:v1:",
        }
    }

    /// Bytes of the shortest ciphertext, and what the length of each is a multiple of: IV and a padded block; nonce and
    /// tag; nonce and tag.
    pub fn lengths(self) -> (usize, usize) {
        match self {
            Self::AesCbc => (32, 16),
            Self::AesGcm => (28, 1),
            Self::SecretBox => (40, 1),
        }
    }
}

/// Whether a value begins as what some provider encrypted.
pub(crate) fn is_encrypted(value: &[u8]) -> bool {
    value.starts_with(ENCRYPTED)
}

pub(super) fn classify(
    value: &[u8],
    known: &mut LruCache<[u8; 32], Arc<KmsV2>>,
) -> Result<Class, Box<Malformed>> {
    if let Some(message) = value.strip_prefix(PROTOBUF) {
        return match Envelope::decode(message) {
            Ok(_) => Ok(Class::PlainProtobuf),
            Err(_) => Err(Malformed::new(Claim::Protobuf, Malformation::Protobuf)),
        };
    }
    if !value.starts_with(ENCRYPTED) {
        return plain(value);
    }
    if value.starts_with(stored::PREFIX.as_bytes()) {
        return kms_v2::classify(value, known);
    }
    if let Some(rest) = value.strip_prefix(KMS_V1) {
        return kms_v1(rest, KMS_V1.len());
    }
    let local = Cipher::ALL.into_iter().find_map(|cipher| Some((cipher, value.strip_prefix(cipher.mark())?)));
    match local {
        Some((cipher, rest)) => self::local(cipher, rest),
        None => Err(Malformed::new(Claim::UnknownProvider, Malformation::Provider)),
    }
}

fn plain(value: &[u8]) -> Result<Class, Box<Malformed>> {
    if !value.trim_ascii_start().starts_with(b"{") {
        return Ok(Class::PlainOther);
    }
    match serde_json::from_slice::<IgnoredAny>(value) {
        Ok(_) => Ok(Class::PlainJson),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(Malformed::new(Claim::Json, Malformation::Json { line, column }))
        }
    }
}

fn local(cipher: Cipher, rest: &[u8]) -> Result<Class, Box<Malformed>> {
    let claims = Claim::Local(cipher);
    let at = cipher.mark().len();
    let (key, encrypted) = named(rest).ok_or(Malformed::new(claims, Malformation::Name { at }))?;
    let (least, unit) = cipher.lengths();
    let found = encrypted.len();
    if found < least || !found.is_multiple_of(unit) {
        let at = at + rest.len() - found;
        let reason = Malformation::Length { at, found, cipher, least, unit };
        return Err(Malformed::new(claims, reason).of(key));
    }
    Ok(Class::Local { cipher, key })
}

fn kms_v1(rest: &[u8], at: usize) -> Result<Class, Box<Malformed>> {
    let malformed = |reason| Malformed::new(Claim::KmsV1, reason);
    let (provider, body) = named(rest).ok_or(malformed(Malformation::Name { at }))?;
    let parts = body
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(usize::from(u16::from_be_bytes(*length))));
    match parts {
        Some((dek, encrypted)) if !dek.is_empty() && !encrypted.is_empty() => Ok(Class::KmsV1 { provider }),
        _ => Err(malformed(Malformation::Dek { at: at + rest.len() - body.len() }).of(provider)),
    }
}

/// A name that is not empty, and what stands behind its `:`.
fn named(rest: &[u8]) -> Option<(Name, &[u8])> {
    let end = rest.iter().position(|byte| *byte == b':').filter(|end| *end > 0)?;
    Some((Name::new(&rest[..end]), &rest[end + 1..]))
}

/// `runtime.Unknown` without its content, which the decoder steps over.
#[derive(Clone, PartialEq, Eq, Message)]
struct Envelope {}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
