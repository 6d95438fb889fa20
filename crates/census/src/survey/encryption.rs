//! How values of a group are encrypted, as it can be kept.
use casemate_keys::Record;
use casemate_wire::kms_v2::stored::StoredFault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Key;
use crate::classify::{Casemate, Cipher, Claim, Class, DekSourceKind, KmsV2, Malformation};

/// How a value is encrypted, without what differs from one API server's start to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encryption {
    /// Not at all: protobuf.
    PlainProtobuf,
    /// Not at all: JSON.
    PlainJson,
    /// Not at all: something else.
    PlainOther,
    /// With a key that stands in the EncryptionConfiguration.
    Local {
        /// `aescbc`, `aesgcm` or `secretbox`.
        cipher: String,
        /// What the EncryptionConfiguration calls the key.
        key: String,
    },
    /// By a KMS v1 plugin.
    KmsV1 {
        /// What the EncryptionConfiguration calls the plugin.
        provider: String,
    },
    /// By a KMS v2 plugin.
    KmsV2 {
        /// What the EncryptionConfiguration calls the plugin.
        provider: String,
        /// The key id that the plugin gave.
        key_id: String,
        /// What kube-apiserver handed to the plugin: `seed`, or `aes_gcm_key` by Kubernetes 1.27 and 1.28.
        dek_source: String,
        /// What the record of `casemate-kms` says; absent for other plugins.
        record: Option<RecordKeys>,
        /// Why `casemate-kms` refuses the value: then no key opens it as it stands.
        faults: Vec<String>,
    },
    /// Marked as one of these, and none: nobody can read it.
    Malformed {
        /// What it is marked as.
        claims: String,
        /// The name of key or provider, as far as it is there.
        name: Option<String>,
    },
}

/// All that opens a local KEK.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordKeys {
    /// Whose it is.
    pub cluster: String,
    /// Which local KEK, as 64 hex digits.
    pub local_kek: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Lineages of the root keys, any one of which opens it.
    pub roots: Vec<String>,
    /// Fingerprints of the recovery recipients, any one of which opens it too.
    pub recovery: Vec<String>,
}

/// What [`Encryption::Malformed`] claims where the provider is of a later Kubernetes, or none.
const UNKNOWN_PROVIDER: &str = "unknown provider";

impl Encryption {
    /// Of a value's class.
    pub fn of(class: &Class) -> Self {
        match class {
            Class::PlainProtobuf => Self::PlainProtobuf,
            Class::PlainJson => Self::PlainJson,
            Class::PlainOther => Self::PlainOther,
            Class::Local { cipher, key } => Self::Local { cipher: cipher.to_string(), key: key.to_string() },
            Class::KmsV1 { provider } => Self::KmsV1 { provider: provider.to_string() },
            Class::KmsV2(kms) => Self::kms_v2(kms),
            Class::Malformed(malformed) => Self::Malformed {
                // A kind of DEK source that is not known here is one of a later Kubernetes, which can read it.
                claims: match malformed.reasons.iter().any(is_later) {
                    true => UNKNOWN_PROVIDER.to_owned(),
                    false => claimed(malformed.claims),
                },
                name: malformed.name.as_ref().map(ToString::to_string),
            },
        }
    }

    fn kms_v2(kms: &KmsV2) -> Self {
        let record = kms.casemate.as_ref().and_then(|casemate| casemate.record.as_deref());
        let faults = |casemate: &Casemate| casemate.faults.iter().map(ToString::to_string).collect();
        Self::KmsV2 {
            provider: kms.provider.to_string(),
            key_id: kms.key_id.to_string(),
            dek_source: match kms.dek_source.kind {
                DekSourceKind::AesGcmKey => "aes_gcm_key".to_owned(),
                DekSourceKind::Seed => "seed".to_owned(),
            },
            record: record.map(RecordKeys::of),
            faults: kms.casemate.as_ref().map(faults).unwrap_or_default(),
        }
    }

    /// Each key that opens it, or that its key is wrapped under.
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Self::PlainProtobuf | Self::PlainJson | Self::PlainOther | Self::Malformed { .. } => Vec::new(),
            Self::Local { cipher, key } => {
                let known = Cipher::ALL.into_iter().find(|known| known.as_str() == cipher);
                known.map(|cipher| Key::Local { cipher, name: key.clone() }).into_iter().collect()
            }
            Self::KmsV1 { provider } => vec![Key::KmsV1(provider.clone())],
            Self::KmsV2 { provider, key_id, record, .. } => {
                let mut keys = vec![Key::KmsV2(provider.clone()), Key::KeyId(key_id.clone())];
                if let Some(RecordKeys { local_kek, roots, recovery, .. }) = record {
                    keys.push(Key::LocalKek(local_kek.clone()));
                    keys.extend(roots.iter().cloned().map(Key::Root));
                    keys.extend(recovery.iter().cloned().map(Key::Recovery));
                }
                keys
            }
        }
    }

    /// Whether anybody who reads etcd reads it.
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::PlainProtobuf | Self::PlainJson | Self::PlainOther)
    }

    /// Whether nobody can read it, whatever keys there are.
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::KmsV2 { faults, .. } => !faults.is_empty(),
            _ => false,
        }
    }

    /// Whether it is of a provider that is not known here: it may need any key.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Malformed { claims, .. } if claims == UNKNOWN_PROVIDER)
    }
}

impl RecordKeys {
    fn of(record: &Record) -> Self {
        let core = record.core();
        Self {
            cluster: core.policy.cluster().to_string(),
            local_kek: core.kek_id.to_string(),
            created: core.created,
            roots: core.policy.roots().iter().map(|root| root.lineage.to_string()).collect(),
            recovery: core.policy.recipients().iter().map(ToString::to_string).collect(),
        }
    }
}

fn is_later(reason: &Malformation) -> bool {
    matches!(reason, Malformation::Refused(StoredFault::SourceType { .. }))
}

fn claimed(claim: Claim) -> String {
    match claim {
        Claim::Json => "JSON".to_owned(),
        Claim::KmsV1 => "kms:v1".to_owned(),
        Claim::KmsV2 => "kms:v2".to_owned(),
        Claim::Local(cipher) => cipher.to_string(),
        Claim::Protobuf => "protobuf".to_owned(),
        Claim::UnknownProvider => UNKNOWN_PROVIDER.to_owned(),
    }
}

impl std::fmt::Display for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PlainProtobuf => f.write_str("plaintext (protobuf)"),
            Self::PlainJson => f.write_str("plaintext (JSON)"),
            Self::PlainOther => f.write_str("plaintext (other)"),
            Self::Local { cipher, key } => write!(f, "{cipher}:{key}"),
            Self::KmsV1 { provider } => write!(f, "kms:v1:{provider}"),
            Self::KmsV2 { provider, .. } => write!(f, "kms:v2:{provider}"),
            Self::Malformed { claims, name: None } => write!(f, "malformed {claims}"),
            Self::Malformed { claims, name: Some(name) } => write!(f, "malformed {claims}:{name}"),
        }
    }
}
