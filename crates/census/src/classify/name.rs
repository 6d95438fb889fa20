//! Names as values carry them.
use std::fmt;

use casemate_keys::names::sha256;
use casemate_wire::kms_v2::limits;

/// A name of a key or a provider, or what stands in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// What can be a name: text without control characters, of at most 1024 bytes.
    Shown(Box<str>),
    /// What can be none, and so may be anything, plaintext too.
    Hidden {
        /// Its length.
        bytes: usize,
        /// Its SHA-256.
        digest: [u8; 32],
    },
}

impl Name {
    /// The name that `bytes` are.
    pub fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() <= limits::KEY_ID_MAX && !text.contains(char::is_control) => {
                Self::Shown(text.into())
            }
            _ => Self::Hidden { bytes: bytes.len(), digest: sha256(bytes) },
        }
    }

    /// Whether it is `name`, shown or not.
    pub fn is(&self, name: &str) -> bool {
        *self == Self::new(name.as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown(name) => f.write_str(name),
            Self::Hidden { bytes, digest } => {
                write!(f, "({bytes} bytes that are no name, sha256:")?;
                digest[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str("…)")
            }
        }
    }
}
