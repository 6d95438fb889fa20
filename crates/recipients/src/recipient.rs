//! The public half: wraps.

use std::fmt;
use std::io::Write;
use std::iter;
use std::str::FromStr;

use age::x25519;
use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use bech32::primitives::decode::CheckedHrpstring;
use casemate_keys::{Fingerprint, payload};

use crate::shape::Shape;

/// The longest wrap that is made. With its fingerprint and the lengths around both, a recipient adds at most 500 bytes
/// to a record. The library adds a stanza of random length that readers ignore (age calls it grease): 277 to 454 bytes
/// come of it.
pub const MAX_WRAP_LEN: usize = 460;

/// The kind in a fingerprint.
const KIND: &str = "age-x25519";

/// An age recipient of kind X25519: `age1…`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Recipient(x25519::Recipient);

/// Text that is no recipient that may be used. Never quotes what may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipientError {
    /// A private key stands where a public one belongs.
    #[error(
        "this is an age identity, a secret: take it out of here, and use its recipient, the age1… text that \
         `casemate recovery new` printed. Whoever has read this file can open every recovery wrap: make a new identity"
    )]
    Secret,
    /// Of a kind that recovery wraps don't have.
    #[error(
        "found {found:?}, an age recipient of another kind; accepted is X25519: age1 and 58 more characters"
    )]
    OtherKind {
        /// The text, shortened.
        found: String,
    },
    /// Not an age recipient, or mistyped: its checksum is wrong.
    #[error(
        "found {found:?}, no age recipient or one with a mistyped character; accepted is what `casemate recovery new` \
         or `age-keygen -y` prints: age1 and 58 more characters, in lower case"
    )]
    Malformed {
        /// The text, shortened.
        found: String,
    },
    /// A point of low order: anybody could open what is encrypted to it.
    #[error("found {found:?}, a public key that nobody has the private key of and that protects nothing")]
    LowOrder {
        /// The text.
        found: String,
    },
}

/// A wrap that was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrapError {
    /// The age library failed.
    #[error("the age library made no wrap for recipient {recipient}")]
    Library {
        /// Whom it was for.
        recipient: Recipient,
    },
    /// What it made is not a wrap as records have them.
    #[error(
        "the age library made a wrap of another form than records have for recipient {recipient}: {reason}"
    )]
    Form {
        /// Whom it was for.
        recipient: Recipient,
        /// What is wrong.
        reason: String,
    },
}

impl Recipient {
    pub(crate) fn of(identity: &x25519::Identity) -> Self {
        Self(identity.to_public())
    }

    /// The name in records and key ids: SHA-256(list(`age-x25519`, `age1…`)).
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(KIND, &self.to_string())
    }

    /// A new recovery wrap of `payload`: an age file in binary form with exactly one X25519 stanza, at most
    /// [`MAX_WRAP_LEN`] bytes.
    ///
    /// # Errors
    /// [`WrapError`], if the library does something else than this promises.
    pub fn wrap(&self, payload: &[u8; payload::LEN]) -> Result<Vec<u8>, WrapError> {
        let wrap = self.encrypt(payload).ok_or_else(|| WrapError::Library { recipient: self.clone() })?;
        let form = |reason: String| WrapError::Form { recipient: self.clone(), reason };
        if wrap.len() > MAX_WRAP_LEN {
            return Err(form(format!("it has {} bytes, at most {MAX_WRAP_LEN} are planned for", wrap.len())));
        }
        let shape = Shape::of(&wrap).ok_or_else(|| form("it is no age file".into()))?;
        if !shape.is_as_written() {
            return Err(form(format!("it has {shape}")));
        }
        Ok(wrap)
    }

    fn encrypt(&self, payload: &[u8; payload::LEN]) -> Option<Vec<u8>> {
        let to = iter::once(&self.0 as &dyn age::Recipient);
        let mut wrap = Vec::with_capacity(MAX_WRAP_LEN);
        let mut inside = age::Encryptor::with_recipients(to).ok()?.wrap_output(&mut wrap).ok()?;
        inside.write_all(payload).ok()?;
        inside.finish().ok()?;
        Some(wrap)
    }
}

impl FromStr for Recipient {
    type Err = RecipientError;

    fn from_str(text: &str) -> Result<Self, RecipientError> {
        let start: String = text.trim_start().chars().take(11).collect();
        if start.eq_ignore_ascii_case("AGE-SECRET-") || start.eq_ignore_ascii_case("AGE-PLUGIN-") {
            return Err(RecipientError::Secret);
        }
        let found = || text.chars().take(80).collect::<String>();
        let malformed = || RecipientError::Malformed { found: found() };
        let Ok(recipient) = text.parse::<x25519::Recipient>() else {
            // Kinds of age's own are told by more characters, plugins by a name: age1pq1…, age1yubikey1….
            let other = text.starts_with("age1") && text.get(4..).is_some_and(|rest| rest.contains('1'));
            return Err(if other { RecipientError::OtherKind { found: found() } } else { malformed() });
        };
        // One text for one key, or two fingerprints would name it.
        if recipient.to_string() != text {
            return Err(malformed());
        }
        let point = CheckedHrpstring::new::<bech32::Bech32>(text).map_err(|_| malformed())?;
        let point: Vec<u8> = point.byte_iter().collect();
        if !contributes(&point) {
            return Err(RecipientError::LowOrder { found: text.to_owned() });
        }
        Ok(Self(recipient))
    }
}

/// Whether a shared secret with this X25519 point depends on our half. With a point of low order it is zero.
fn contributes(point: &[u8]) -> bool {
    let random = SystemRandom::new();
    EphemeralPrivateKey::generate(&X25519, &random)
        .and_then(|ours| {
            let theirs = UnparsedPublicKey::new(&X25519, point);
            agree_ephemeral(ours, theirs, aws_lc_rs::error::Unspecified, |shared| {
                Ok(shared.iter().any(|b| *b != 0))
            })
        })
        .unwrap_or(false)
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(hrp: &str, bytes: &[u8]) -> String {
        bech32::encode::<bech32::Bech32>(bech32::Hrp::parse(hrp).unwrap(), bytes).unwrap()
    }

    /// All points of low order of Curve25519, and encodings of them that are not reduced (RFC 7748 masks the top bit).
    #[test]
    fn points_of_low_order_are_refused() {
        let points = [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ];
        for point in points {
            let mut bytes = hex::decode(point).unwrap();
            for top in [0, 0x80] {
                bytes[31] = (bytes[31] & 0x7f) | top;
                let text = encode("age", &bytes);
                assert_eq!(
                    text.parse::<Recipient>(),
                    Err(RecipientError::LowOrder { found: text.clone() }),
                    "{point}"
                );
            }
        }
    }

    #[test]
    fn kinds_and_forms() {
        let good = "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2";
        assert_eq!(good.parse::<Recipient>().unwrap().to_string(), good);
        let last = format!("{}3", &good[..good.len() - 1]);
        for bad in [
            "",
            "age1",
            "age",
            &good[1..],
            &good[..40],
            &last,
            &good.to_uppercase(),
            &format!(" {good}"),
            "ssh-ed25519 AAAA",
        ] {
            assert!(matches!(bad.parse::<Recipient>(), Err(RecipientError::Malformed { .. })), "{bad:?}");
        }
        for length in [31, 33] {
            let text = encode("age", &vec![9; length]);
            assert!(matches!(text.parse::<Recipient>(), Err(RecipientError::Malformed { .. })), "{length}");
        }
        for other in [
            format!("age1pq1{}", "q".repeat(1952)),
            encode("age1yubikey", &[9; 33]),
            encode("age1tag", &[9; 33]),
        ] {
            let error = other.parse::<Recipient>().unwrap_err();
            assert!(matches!(error, RecipientError::OtherKind { .. }), "{error}");
            assert!(error.to_string().len() < 250);
        }
    }

    #[test]
    fn a_secret_in_its_place_is_told_and_not_quoted() {
        let secret = "AGE-SECRET-KEY-1ET0AKDGAEW5SKGVVUMXJKHXT3ET38HNRDEKDYDTGV5F54RRMREASPPUZW3";
        for text in [secret.to_owned(), secret.to_lowercase(), format!("  {secret}"), secret[..40].to_owned()]
        {
            let error = text.parse::<Recipient>().unwrap_err();
            assert_eq!(error, RecipientError::Secret);
            assert!(!format!("{error} {error:?}").to_uppercase().contains("ET0AK"), "{error}");
        }
    }
}
