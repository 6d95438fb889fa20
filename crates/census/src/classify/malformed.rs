//! Values that are not what they are marked as.
use casemate_wire::kms_v2::stored::{StoredError, StoredFault};

use super::{Cipher, Name};

/// A value that contradicts its own mark. Who reads it gets an error, whatever keys there are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Malformed {
    /// What it is marked as.
    pub claims: Claim,
    /// The name of key or provider, as far as it is there.
    pub name: Option<Name>,
    /// The key id, as far as it is there.
    pub key_id: Option<Name>,
    /// What is wrong: at least one.
    pub reasons: Vec<Malformation>,
}

/// What a value is marked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Claim {
    /// JSON in the clear.
    Json,
    /// By a KMS v1 plugin.
    KmsV1,
    /// By a KMS v2 plugin.
    KmsV2,
    /// With a key of the EncryptionConfiguration.
    Local(Cipher),
    /// Protobuf in the clear.
    Protobuf,
    /// By a provider that is not known here.
    UnknownProvider,
}

/// What is wrong with a value. Holds none of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformation {
    /// Begins as an encrypted value of no known kind.
    #[error(
        "byte 8: after `k8s:enc:` stand `aescbc:v1:`, `aesgcm:v1:`, `secretbox:v1:`, `kms:v1:` or `kms:v2:`; it is cut off, \
         or of a later Kubernetes"
    )]
    Provider,
    /// No name where one has to stand.
    #[error("byte {at}: no name that ends with `:` stands here")]
    Name {
        /// Where.
        at: usize,
    },
    /// Too few bytes, or not a multiple of a block.
    #[error("byte {at}: {found} bytes follow; {cipher} makes at least {least}, in multiples of {unit}")]
    Length {
        /// Where the ciphertext begins.
        at: usize,
        /// Its bytes.
        found: usize,
        /// Of which provider.
        cipher: Cipher,
        /// What it makes at least.
        least: usize,
        /// Of what its length is a multiple.
        unit: usize,
    },
    /// KMS v1 without DEK or object.
    #[error(
        "byte {at}: here stand the length of the encrypted DEK in two bytes, the encrypted DEK and the object; they are \
         cut off"
    )]
    Dek {
        /// Where.
        at: usize,
    },
    /// No message of KMS v2.
    #[error("byte {}: {_0}", _0.at())]
    Stored(StoredError),
    /// What kube-apiserver refuses before it asks a plugin.
    #[error("kube-apiserver refuses it: {0}")]
    Refused(StoredFault),
    /// Protobuf in the clear that breaks.
    #[error("behind byte 4: runtime.Unknown breaks")]
    Protobuf,
    /// JSON in the clear that breaks.
    #[error("line {line}, column {column}: it begins as JSON and is none, or has something behind it")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
}

impl Malformed {
    pub(super) fn new(claims: Claim, reason: Malformation) -> Box<Self> {
        Box::new(Self { claims, name: None, key_id: None, reasons: vec![reason] })
    }

    pub(super) fn of(mut self: Box<Self>, name: Name) -> Box<Self> {
        self.name = Some(name);
        self
    }
}
