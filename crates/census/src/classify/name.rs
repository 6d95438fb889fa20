//! Names as values carry them.
use std::fmt;

use casemate_keys::names::sha256;
use casemate_wire::kms_v2::limits;

/// Stands in place of a name.
const NO_NAME: &str = " bytes that are no name, sha256:";

/// A name of a key or a provider, or what stands in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// What can be a name: text of at most 1024 bytes, without characters that a terminal obeys, that turn letters round
    /// or that nobody sees.
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
            Ok(text) if bytes.len() <= limits::KEY_ID_MAX && is_plain(text) => Self::Shown(text.into()),
            _ => Self::Hidden { bytes: bytes.len(), digest: sha256(bytes) },
        }
    }

    /// Whether `shown` is what is shown in place of a name.
    pub(crate) fn is_hidden(shown: &str) -> bool {
        shown.starts_with('(') && shown.contains(NO_NAME)
    }

    /// Whether it is `name`, shown or not.
    pub fn is(&self, name: &str) -> bool {
        *self == Self::new(name.as_bytes())
    }
}

/// Whether `text` looks like what it is, wherever it is printed.
pub(crate) fn is_plain(text: &str) -> bool {
    let is_odd = |character: char| {
        character.is_control()
            || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    !text.contains(is_odd)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown(name) => f.write_str(name),
            Self::Hidden { bytes, digest } => {
                write!(f, "({bytes}{NO_NAME}")?;
                digest[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str("…)")
            }
        }
    }
}
