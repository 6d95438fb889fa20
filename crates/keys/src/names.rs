//! The names of keys and of what surrounds them. Each parses once; invalid ones do not exist.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};

use crate::list;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A name that is not of the accepted form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {found:?} is not accepted; it is {accepted}")]
pub struct NameError {
    /// Which name.
    pub what: &'static str,
    /// What was found, shortened.
    pub found: String,
    /// What is accepted.
    pub accepted: &'static str,
}

impl NameError {
    fn new(what: &'static str, found: &str, accepted: &'static str) -> Self {
        let found = found.chars().take(80).collect();
        Self { what, found, accepted }
    }
}

/// Which cluster a ciphertext belongs to: configured, the same on all nodes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(String);

impl ClusterId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let inner = |b: u8| edge(b) || b == b'.' || b == b'-';
        let bytes = text.as_bytes();
        let accepted = match bytes {
            [] => false,
            [only] => edge(*only),
            [first, middle @ .., last] => {
                bytes.len() <= 63 && edge(*first) && edge(*last) && middle.iter().copied().all(inner)
            }
        };
        if !accepted {
            return Err(NameError::new(
                "cluster id",
                text,
                "1 to 63 of a-z, 0-9, '.', '-', with a letter or digit at both ends",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A configured number, the same on all nodes; raised to make a used write policy a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which set of algorithms seals DEK sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Suite {
    /// KBKDF-HMAC-SHA256 and AES-256-GCM.
    One,
    /// Exists in tests only, to show that suites can't be confused.
    #[cfg(test)]
    Two,
}

impl Suite {
    /// The number in records, ciphertexts and key ids.
    pub fn number(self) -> u8 {
        match self {
            Self::One => 1,
            #[cfg(test)]
            Self::Two => 2,
        }
    }

    /// The suite of this number, if this version knows it.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            #[cfg(test)]
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// How a root key wraps a local KEK. Numbers of later versions are kept, never used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithm(u32);

macro_rules! algorithms {
    ($($number:literal $constant:ident $name:literal $doc:literal;)*) => {
        impl Algorithm {
            $(#[doc = $doc] pub const $constant: Self = Self($number);)*

            /// The name in configuration and output; `None` for a number of a later version.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some($name),)* _ => None }
            }
        }
    };
}

algorithms! {
    1 FILE_AES256_GCM "file-aes256-gcm" "A root key in a file.";
    2 TRANSIT "transit" "The Transit engine of OpenBao or Vault.";
    3 PKCS11_AES256_GCM "pkcs11-aes256-gcm" "AES-256-GCM in an HSM.";
    4 PKCS11_AES_KWP "pkcs11-aes-kwp" "AES key wrap with padding in an HSM.";
    5 RSA_OAEP_SHA256 "rsa-oaep-sha256" "RSA-OAEP, SHA-256 and MGF1-SHA-256, wherever the key lives.";
    6 AWS_SYMMETRIC "aws-symmetric" "A symmetric key of AWS KMS.";
    7 GOOGLE_SYMMETRIC "google-symmetric" "A symmetric key of Google Cloud KMS.";
    8 AZURE_AES_KW "azure-aes-kw" "AES key wrap in Azure Managed HSM.";
    9 TPM_SEALED "tpm-sealed" "A key sealed to a TPM 2.0.";
    10 EXEC "exec" "An external program.";
}

impl Algorithm {
    /// The algorithm of this number; `None` for 0 and numbers beyond protobuf's enums.
    pub fn from_number(number: i32) -> Option<Self> {
        u32::try_from(number).ok().filter(|n| *n != 0).map(Self)
    }

    /// The number in records and key ids.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether anybody who knows the public key could have made the wrap.
    pub fn is_asymmetric(self) -> bool {
        self == Self::RSA_OAEP_SHA256
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "algorithm-{}", self.0),
        }
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The public name of a write policy: `key_id` of KMS v2. Never used again for another policy.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(String);

impl KeyId {
    pub(crate) fn new(cluster: &ClusterId, digest: &Digest) -> Self {
        Self(format!("{}:{}", cluster.as_str(), hex::encode(&digest[..16])))
    }

    /// The key id as it stands in Status and in etcd.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cluster whose data it names.
    pub fn cluster_id(&self) -> &str {
        self.0.split_once(':').map_or("", |(cluster, _)| cluster)
    }
}

impl FromStr for KeyId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let accepted = text.split_once(':').is_some_and(|(cluster, policy)| {
            cluster.parse::<ClusterId>().is_ok() && policy.len() == 32 && policy.bytes().all(lower_hex)
        });
        if !accepted {
            return Err(NameError::new("key id", text, "a cluster id, ':' and 32 lower-case hex digits"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The identity of a local KEK: derived from the key, so that it commits to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KekId(pub [u8; 32]);

impl fmt::Display for KekId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// The fingerprint of a recovery recipient.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// SHA-256(list(kind, recipient)), for example of `age-x25519` and an `age1…` string.
    pub fn of(kind: &str, recipient: &str) -> Self {
        Self(sha256(&list::encode([kind, recipient])))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Which program made a record: `program/version`, readable in etcd with `strings`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Writer(String);

impl Writer {
    /// The text as it stands in records.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Writer {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let accepted = (1..=32).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic())
            && text
                .split_once('/')
                .is_some_and(|(program, version)| !program.is_empty() && !version.is_empty());
        if !accepted {
            return Err(NameError::new(
                "writer",
                text,
                "program/version in at most 32 printable ASCII characters",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

macro_rules! text_form {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.as_str())
            }
        }
    )*};
}
text_form!(ClusterId KeyId Writer);

macro_rules! hex_debug {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
hex_debug!(KekId Fingerprint);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_ids() {
        for good in ["a", "0", "prod", "prod-1.eu", &"a".repeat(63), "a--b", "a..b"] {
            assert_eq!(good.parse::<ClusterId>().map(|id| id.0), Ok(good.to_owned()));
        }
        for bad in ["", "-", ".a", "a-", "A", "a_b", "a:b", "ä", "a\n", &"a".repeat(64)] {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn key_ids() {
        let hex = "0123456789abcdef0123456789abcdef";
        assert!(format!("prod:{hex}").parse::<KeyId>().is_ok());
        for bad in
            [hex.to_owned(), format!(":{hex}"), format!("prod:{hex}0"), format!("p:{}", hex.to_uppercase())]
        {
            assert!(bad.parse::<KeyId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn writers() {
        assert!("casemate-kms/0.1.0".parse::<Writer>().is_ok());
        for bad in ["", "casemate", "/1", "a/", "a/ b", "a/\u{e4}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/1"] {
            assert!(bad.parse::<Writer>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn algorithms_keep_their_numbers_and_names() {
        for number in 1..=10 {
            assert!(Algorithm::from_number(number).is_some_and(|a| a.name().is_some()));
        }
        assert_eq!(Algorithm::from_number(0), None);
        assert_eq!(Algorithm::from_number(-1), None);
        assert_eq!(Algorithm::from_number(99).map(|a| a.to_string()).as_deref(), Some("algorithm-99"));
    }
}
