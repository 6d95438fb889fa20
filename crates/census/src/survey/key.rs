//! Names of keys, as one asks for them.
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use casemate_keys::Lineage;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::classify::{Cipher, Name};

/// Something that opens values: a key, or who has it.
///
/// ```
/// use casemate_census::survey::Key;
///
/// let key: Key = "aescbc:key1".parse().unwrap();
/// assert_eq!(key.to_string(), "aescbc:key1");
/// assert!("key1".parse::<Key>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Key {
    /// `aescbc:NAME`, `aesgcm:NAME`, `secretbox:NAME`: a key in the EncryptionConfiguration.
    Local {
        /// Its provider.
        cipher: Cipher,
        /// What the EncryptionConfiguration calls it.
        name: String,
    },
    /// `kms:v1:NAME`: the keys of a KMS v1 plugin.
    KmsV1(String),
    /// `kms:v2:NAME`: the keys of a KMS v2 plugin.
    KmsV2(String),
    /// `key-id:ID`: what a KMS v2 plugin calls its key.
    KeyId(String),
    /// `local-kek:ID`: a local KEK of `casemate-kms`.
    LocalKek(String),
    /// `root:LINEAGE`: a version of a root key of `casemate-kms`.
    Root(String),
    /// `recovery:FINGERPRINT`: a recovery recipient of `casemate-kms`.
    Recovery(String),
}

/// A text that names no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} names no key: {reason}. {ACCEPTED}")]
pub struct KeyError {
    found: String,
    reason: &'static str,
}

const ACCEPTED: &str = "Write aescbc:NAME, aesgcm:NAME, secretbox:NAME, kms:v1:NAME or kms:v2:NAME as the \
    EncryptionConfiguration has it, key-id:ID, local-kek:HEX, root:LINEAGE or recovery:FINGERPRINT; `casemate census \
    snapshot` lists those of a file";

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let fault = |reason| KeyError { found: text.to_owned(), reason };
        let (kind, name) = match text.strip_prefix("kms:").and_then(|rest| rest.split_once(':')) {
            Some((version, name)) => (&text[..4 + version.len()], name),
            None => text.split_once(':').ok_or(fault("it has no kind"))?,
        };
        if name.is_empty() {
            return Err(fault("there is nothing after its kind"));
        }
        let is_hex =
            || name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        // As values show it: one that can't be shown is found by its digest.
        let owned = || Name::new(name.as_bytes()).to_string();
        Ok(match kind {
            "kms:v1" => Self::KmsV1(owned()),
            "kms:v2" => Self::KmsV2(owned()),
            "key-id" => Self::KeyId(owned()),
            "local-kek" if is_hex() => Self::LocalKek(owned()),
            "recovery" if is_hex() => Self::Recovery(owned()),
            "local-kek" | "recovery" => return Err(fault("it has 64 hex digits in lower case")),
            "root" if name.parse::<Lineage>().is_ok() => Self::Root(owned()),
            "root" => {
                return Err(fault("what follows root: is no lineage, as in root:file:ID/VERSION/CHECK"));
            }
            kind => match Cipher::ALL.into_iter().find(|cipher| cipher.as_str() == kind) {
                Some(cipher) => Self::Local { cipher, name: owned() },
                None => return Err(fault("its kind is not known")),
            },
        })
    }
}

impl Key {
    /// What follows its kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Local { name, .. } => name,
            Self::KmsV1(name) | Self::KmsV2(name) | Self::KeyId(name) => name,
            Self::LocalKek(name) | Self::Root(name) | Self::Recovery(name) => name,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { cipher, name } => write!(f, "{cipher}:{name}"),
            Self::KmsV1(name) => write!(f, "kms:v1:{name}"),
            Self::KmsV2(name) => write!(f, "kms:v2:{name}"),
            Self::KeyId(id) => write!(f, "key-id:{id}"),
            Self::LocalKek(id) => write!(f, "local-kek:{id}"),
            Self::Root(lineage) => write!(f, "root:{lineage}"),
            Self::Recovery(fingerprint) => write!(f, "recovery:{fingerprint}"),
        }
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl JsonSchema for Key {
    fn schema_name() -> Cow<'static, str> {
        "Key".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": ACCEPTED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_and_nothing_else() {
        let hex = "0f".repeat(32);
        for text in [
            "aescbc:key1",
            "aesgcm:a:b",
            "secretbox:old key",
            "kms:v1:plugin",
            "kms:v2:plugin",
            "key-id:cluster:0011",
            "root:file:4f/2/9a",
            "root:transit:/transit/k8s/3/1764500000",
            &format!("local-kek:{hex}"),
            &format!("recovery:{hex}"),
        ] {
            assert_eq!(text.parse::<Key>().unwrap().to_string(), text);
        }
        for (text, reason) in [
            ("key1", "no kind"),
            ("aescbc:", "nothing after"),
            ("kms:v3:plugin", "not known"),
            ("kms:plugin", "not known"),
            ("identity:a", "not known"),
            ("local-kek:0f", "64 hex"),
            ("recovery:age1abc", "64 hex"),
            ("root:", "nothing after"),
            ("root:File", "no lineage"),
        ] {
            let error = text.parse::<Key>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("aescbc:NAME"), "{error}");
        }
    }
}
