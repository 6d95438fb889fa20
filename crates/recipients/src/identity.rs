//! The secret half: unwraps. It lives in a safe; the plugin never sees one.

use std::fmt;
use std::io::Read;
use std::iter;

use age::secrecy::ExposeSecret;
use age::{DecryptError, x25519};
use casemate_keys::{MAX_WRAP_LEN, payload};
use zeroize::Zeroizing;

use crate::Recipient;
use crate::shape::Shape;

const MARK: &str = "AGE-SECRET-KEY-1";

/// An age identity of kind X25519: `AGE-SECRET-KEY-1…`. Wiped when dropped; has no `Debug` and no `Display`.
pub struct Identity(x25519::Identity);

/// Bytes that are no identity file that can be used. Quotes nothing of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file itself is encrypted.
    #[error(
        "the identity file is encrypted itself: open it with `age --decrypt` first, into a file in memory"
    )]
    Encrypted,
    /// A line that is neither comment nor identity.
    #[error(
        "line {line} is no identity: accepted are one AGE-SECRET-KEY-1… of 74 characters, empty lines, and comments \
         after `#`, as `casemate recovery new` and `age-keygen` write them"
    )]
    Malformed {
        /// From 1.
        line: usize,
    },
    /// Only comments, or nothing.
    #[error("there is no identity in it: a line that begins with AGE-SECRET-KEY-1 is one")]
    None,
    /// An identity of a kind that recovery wraps don't have.
    #[error("line {line} is an age identity of another kind; recovery wraps need X25519: AGE-SECRET-KEY-1…")]
    OtherKind {
        /// From 1.
        line: usize,
    },
    /// More than one.
    #[error(
        "line {line} is a second identity: give a file with one, so that it is clear which one opens what"
    )]
    Several {
        /// Of the second one, from 1.
        line: usize,
    },
}

/// A recovery wrap that did not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnwrapError {
    /// It was encrypted to this identity, and bytes of it were changed.
    #[error("bytes of it were changed")]
    Damaged,
    /// Not a binary age file.
    #[error("it is no age file in binary form")]
    NotAge,
    /// No stanza of it opens with this identity.
    #[error("it was made for another identity, or bytes of it were changed")]
    OtherIdentity,
    /// Another length than that of a payload.
    #[error("what is in it has another length than the payload of a wrap, {} bytes", payload::LEN)]
    PayloadLength,
    /// Encrypted with a passphrase: no recovery wrap is.
    #[error("it is encrypted with a passphrase, which recovery wraps are not")]
    Passphrase,
    /// More than a wrap can have.
    #[error("it has {found} bytes; a wrap has at most {MAX_WRAP_LEN}")]
    TooLong {
        /// Its length.
        found: usize,
    },
}

impl Identity {
    /// A new one.
    pub fn generate() -> Self {
        Self(x25519::Identity::generate())
    }

    /// The one identity in the text of an identity file.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn parse(file: &[u8]) -> Result<Self, IdentityError> {
        if file.starts_with(b"age-encryption.org/") || file.starts_with(b"-----BEGIN AGE ENCRYPTED FILE-----")
        {
            return Err(IdentityError::Encrypted);
        }
        let mut found = None;
        for (line, text) in iter::zip(1.., file.split(|byte| *byte == b'\n')) {
            let text = text.trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let text = std::str::from_utf8(text).map_err(|_| IdentityError::Malformed { line })?;
            let identity = text.parse::<x25519::Identity>().ok().filter(|_| text.starts_with(MARK));
            let Some(identity) = identity else {
                let other = text.starts_with("AGE-PLUGIN-") || text.starts_with("AGE-SECRET-KEY-PQ-1");
                return Err(if other {
                    IdentityError::OtherKind { line }
                } else {
                    IdentityError::Malformed { line }
                });
            };
            if found.replace(Self(identity)).is_some() {
                return Err(IdentityError::Several { line });
            }
        }
        found.ok_or(IdentityError::None)
    }

    /// The text of its identity file, which the `age` program takes too; `created` is for people.
    pub fn render(&self, created: impl fmt::Display) -> Zeroizing<String> {
        let secret = self.0.to_string();
        // With room for all, so that no copy is left behind by growing.
        let mut text = Zeroizing::new(String::with_capacity(512));
        for part in [
            "# A recovery identity of Casemate, an age identity too. Whoever has this file can open every local KEK that was\n\
             # wrapped for it. Keep it offline.\n# created: ",
            &created.to_string(),
            "\n# public key: ",
            &self.recipient().to_string(),
            "\n",
            secret.expose_secret(),
            "\n",
        ] {
            text.push_str(part);
        }
        text
    }

    /// The public half.
    pub fn recipient(&self) -> Recipient {
        Recipient::of(&self.0)
    }

    /// The payload of a recovery wrap. Each X25519 stanza is tried, others are ignored, a passphrase is refused. Whether
    /// the payload belongs to a record, [`casemate_keys::Core::local_kek`] tells.
    ///
    /// # Errors
    /// [`UnwrapError`].
    pub fn unwrap(&self, wrap: &[u8]) -> Result<Zeroizing<[u8; payload::LEN]>, UnwrapError> {
        if wrap.len() > MAX_WRAP_LEN {
            return Err(UnwrapError::TooLong { found: wrap.len() });
        }
        let shape = Shape::of(wrap).ok_or(UnwrapError::NotAge)?;
        if shape.has_passphrase() {
            return Err(UnwrapError::Passphrase);
        }
        if !shape.has_x25519() {
            return Err(UnwrapError::OtherIdentity);
        }
        if !shape.has_payload() {
            return Err(UnwrapError::PayloadLength);
        }
        let file = age::Decryptor::new_buffered(wrap).map_err(|_| UnwrapError::NotAge)?;
        let identity = iter::once(&self.0 as &dyn age::Identity);
        let mut inside = file.decrypt(identity).map_err(|error| match error {
            DecryptError::NoMatchingKeys => UnwrapError::OtherIdentity,
            _ => UnwrapError::Damaged,
        })?;
        let mut payload = Zeroizing::new([0; payload::LEN]);
        inside.read_exact(&mut *payload).map_err(|_| UnwrapError::Damaged)?;
        // Not before its end is what was read authentic.
        match inside.read(&mut [0]) {
            Ok(0) => Ok(payload),
            _ => Err(UnwrapError::Damaged),
        }
    }
}
