//! The text of a key file: YAML between a comment for people and a checksum for machines.
//!
//! `docs/reference/key-file.md` describes it for other implementations.

use std::fmt::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use casemate_keys::names::sha256;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use zeroize::Zeroizing;

use super::keyring::{Comment, FileKeyId, Keyring, Life, MAX_VERSIONS, Secret, Version};

/// The most bytes of a key file.
pub const MAX_LEN: usize = 64 * 1024;

/// What a key file says about its format.
pub const API_VERSION: &str = "casemate.dev/file-key/v1";

const HEADER: &str = "\
# A root key of Casemate, in all its versions. SECRET: who has this file can read everything encrypted under it.
# Keep it at mode 0600, the same on all control plane nodes, with a copy where the cluster can't lose it.
# Change it with `casemate key` only: the last line is a checksum of every byte before it.
";
const TRAILER: &str = "checksum: sha256:";
const TRAILER_LEN: usize = TRAILER.len() + 64 + 1;

/// Why bytes are no key file. Never holds any of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// No checksum line at its very end.
    #[error("it does not end with its line `{TRAILER}…`: it was cut off, or bytes were added after it")]
    Truncated,
    /// Larger than any key file.
    #[error("it is larger than {MAX_LEN} bytes, the most that a key file has")]
    TooLarge,
    /// The checksum at its end is that of other bytes.
    #[error("it was changed: its bytes are not those that its checksum was made of")]
    Changed,
    /// Whole, but of another format.
    #[error("its apiVersion is {found:?}, this program reads {API_VERSION:?}")]
    ApiVersion {
        /// What it says, shortened.
        found: String,
    },
    /// Whole, but not as the format says.
    #[error("it is whole, but line {line}, column {column} is not of the format {API_VERSION}")]
    Malformed {
        /// Where.
        line: u64,
        /// Where in the line.
        column: u64,
    },
    /// Whole, but what it says can't be.
    #[error("it is whole, but {what}")]
    Inconsistent {
        /// Which rule is broken.
        what: String,
    },
    /// The check digits of a version are not those of its secret.
    #[error("it is whole, but the secret of version {number} is not the one its check digits were made of")]
    WrongSecret {
        /// Which version.
        number: u32,
    },
}

/// Reads the bytes of a key file. A byte that is missing, added or changed is always found.
///
/// # Errors
/// [`KeyFileError`].
pub fn parse(bytes: &[u8]) -> Result<Keyring, KeyFileError> {
    let body = body(bytes)?;
    let text = std::str::from_utf8(body).map_err(|error| {
        let line = body[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        KeyFileError::Malformed { line: u64::try_from(line).unwrap_or(0), column: 1 }
    })?;
    // Before the fields: those of another format are not known.
    if let Some(found) = text.lines().find_map(|line| line.strip_prefix("apiVersion: "))
        && found != API_VERSION
    {
        return Err(KeyFileError::ApiVersion { found: found.chars().take(80).collect() });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: 0,
            max_aliases: 0,
            max_depth: 4,
            max_documents: 1,
            max_nodes: 16 * (MAX_VERSIONS + 2),
            max_total_scalar_bytes: MAX_LEN,
        },
        with_snippet: false,
    };
    // The library's own messages may quote what they found: only the place is taken from them.
    let document: Document = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((0, 0), |place| (place.line(), place.column()));
        KeyFileError::Malformed { line, column }
    })?;
    document.keyring()
}

/// The bytes before the checksum, if it is theirs.
fn body(bytes: &[u8]) -> Result<&[u8], KeyFileError> {
    if bytes.is_empty() {
        return Err(KeyFileError::Empty);
    }
    if bytes.len() > MAX_LEN {
        return Err(KeyFileError::TooLarge);
    }
    let (body, trailer) = bytes
        .len()
        .checked_sub(TRAILER_LEN)
        .and_then(|end| bytes.split_at_checked(end))
        .ok_or(KeyFileError::Truncated)?;
    let digest = trailer
        .strip_prefix(TRAILER.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"\n"))
        .filter(|_| body.last().is_none_or(|byte| *byte == b'\n'))
        .ok_or(KeyFileError::Truncated)?;
    if digest == hex::encode(sha256(body)).as_bytes() { Ok(body) } else { Err(KeyFileError::Changed) }
}

/// Writes what [`parse`] reads.
pub fn render(keyring: &Keyring) -> Zeroizing<String> {
    // As large as it can get, so that no copy of a secret is left behind by growing.
    let mut out = Zeroizing::new(String::with_capacity(MAX_LEN));
    render_body(&mut out, keyring).expect("writing to a string can't fail");
    let digest = hex::encode(sha256(out.as_bytes()));
    out.push_str(TRAILER);
    out.push_str(&digest);
    out.push('\n');
    out
}

fn render_body(out: &mut String, keyring: &Keyring) -> fmt::Result {
    out.push_str(HEADER);
    writeln!(out, "apiVersion: {API_VERSION}")?;
    writeln!(out, "id: \"{}\"", keyring.id)?;
    if let Some(comment) = keyring.comment() {
        writeln!(out, "comment: \"{}\"", comment.replace('\\', "\\\\").replace('"', "\\\""))?;
    }
    writeln!(out, "active: {}", keyring.active)?;
    writeln!(out, "versions:")?;
    for (number, version) in keyring.versions() {
        writeln!(out, "  - number: {number}")?;
        writeln!(out, "    staged: {}", version.staged)?;
        if let Some(activated) = version.activated {
            writeln!(out, "    activated: {activated}")?;
        }
        // Quoted, or sixteen decimal digits would be a number to other readers.
        writeln!(out, "    check: \"{}\"", version.check)?;
        match &version.life {
            Life::Usable(secret) => {
                let mut encoded = Zeroizing::new([0; 44]);
                let length = STANDARD
                    .encode_slice(secret.bytes(), &mut *encoded)
                    .expect("32 bytes are 44 characters of base64");
                let encoded = std::str::from_utf8(&encoded[..length]).expect("base64 is ASCII");
                writeln!(out, "    secret: \"{encoded}\"")?;
            }
            Life::Retired(at) => writeln!(out, "    retired: {at}")?,
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(deserialize_with = "from_text")]
    id: FileKeyId,
    #[serde(default, deserialize_with = "some_from_text")]
    comment: Option<Comment>,
    active: u32,
    versions: Vec<Entry>,
}

#[derive(Deserialize)]
enum ApiVersion {
    #[serde(rename = "casemate.dev/file-key/v1")]
    V1,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    number: u32,
    #[serde(deserialize_with = "from_text")]
    staged: Timestamp,
    #[serde(default, deserialize_with = "some_from_text")]
    activated: Option<Timestamp>,
    #[serde(default, deserialize_with = "some_from_text")]
    retired: Option<Timestamp>,
    #[serde(deserialize_with = "from_text")]
    check: CheckDigits,
    #[serde(default, deserialize_with = "some_from_text")]
    secret: Option<Base64Secret>,
}

impl Document {
    fn keyring(self) -> Result<Keyring, KeyFileError> {
        let inconsistent = |what: String| Err(KeyFileError::Inconsistent { what });
        if !(1..=MAX_VERSIONS).contains(&self.versions.len()) {
            return inconsistent(format!("it has {} versions, not 1 to {MAX_VERSIONS}", self.versions.len()));
        }
        let mut versions = Vec::with_capacity(self.versions.len());
        for (expected, entry) in (1..).zip(self.versions) {
            if entry.number != expected {
                return inconsistent(format!(
                    "version {} stands where {expected} is due: they are numbered 1, 2, 3 without gaps",
                    entry.number
                ));
            }
            if entry.activated.is_some() && expected > self.active {
                return inconsistent(format!(
                    "version {expected} was activated after version {}, which is said to be active",
                    self.active
                ));
            }
            versions.push(entry.version()?);
        }
        let keyring = Keyring { id: self.id, comment: self.comment, active: self.active, versions };
        match keyring.version(self.active) {
            Some(version) if version.secret().is_some() && version.activated.is_some() => Ok(keyring),
            Some(_) => inconsistent(format!(
                "version {} is said to be active and was never activated, or is retired",
                self.active
            )),
            None => {
                inconsistent(format!("version {} is said to be active and does not stand in it", self.active))
            }
        }
    }
}

impl Entry {
    fn version(self) -> Result<Version, KeyFileError> {
        let number = self.number;
        let life = match (self.secret, self.retired) {
            (Some(Base64Secret(secret)), None) if secret.check() == self.check.0 => Life::Usable(secret),
            (Some(_), None) => return Err(KeyFileError::WrongSecret { number }),
            (None, Some(at)) => Life::Retired(at),
            _ => {
                let what = format!("version {number} has not exactly one of `secret` and `retired`");
                return Err(KeyFileError::Inconsistent { what });
            }
        };
        Ok(Version { staged: self.staged, activated: self.activated, check: self.check.0, life })
    }
}

struct CheckDigits(String);

impl std::str::FromStr for CheckDigits {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 16 && text.bytes().all(lower_hex)).then(|| Self(text.to_owned())).ok_or(())
    }
}

struct Base64Secret(Secret);

impl std::str::FromStr for Base64Secret {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // One byte more than a secret has, for the library's estimate of 44 characters.
        let mut bytes = Zeroizing::new([0; 33]);
        let length = STANDARD.decode_slice(text, &mut *bytes).map_err(|_| ())?;
        Secret::from_bytes(&bytes[..length]).map(Self).ok_or(())
    }
}

/// Text straight into its type: no `String` holds a secret on the way, and no error what it was.
struct FromText<T>(std::marker::PhantomData<T>);

impl<T: std::str::FromStr> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text of the accepted form")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::custom("not of the accepted form"))
    }
}

fn from_text<'de, T: std::str::FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_str(FromText(std::marker::PhantomData))
}

fn some_from_text<'de, T: std::str::FromStr, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    from_text(deserializer).map(Some)
}

#[cfg(test)]
mod tests;
