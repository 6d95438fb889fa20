//! What a key file holds, and how it may change. Pure: time and secrets come in as arguments.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::rand;
use casemate_keys::kdf::{self, Label};
use casemate_keys::{Lineage, LineagePrefix};
use jiff::Timestamp;
use zeroize::Zeroizing;

/// How long a staged version waits before it is activated without [`Haste::Now`]: long enough to deliver a
/// file to a few control plane nodes, and to notice that one was skipped.
pub const STAGING_TIME: Duration = Duration::from_secs(600);

/// The most versions of a key file, retired ones included.
pub const MAX_VERSIONS: usize = 256;

/// The random identity of a file root key: 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKeyId([u8; 16]);

/// A text that is no [`FileKeyId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not the id of a key file; it is 32 lower-case hex digits, as `casemate key list` prints them"
)]
pub struct FileKeyIdError {
    /// What was found, shortened.
    pub found: String,
}

impl FileKeyId {
    /// A new random identity.
    ///
    /// # Panics
    /// If the system has no randomness.
    pub fn generate() -> Self {
        let mut id = [0; 16];
        rand::fill(&mut id).expect("the system has randomness");
        Self(id)
    }

    /// What the lineages of all versions begin with.
    pub fn prefix(&self) -> LineagePrefix {
        LineagePrefix::new("file", [self.to_string()]).expect("hex digits are a field")
    }
}

impl FromStr for FileKeyId {
    type Err = FileKeyIdError;

    fn from_str(text: &str) -> Result<Self, FileKeyIdError> {
        let mut id = [0; 16];
        match hex::decode_to_slice(text, &mut id) {
            Ok(()) if hex::encode(id) == text => Ok(Self(id)),
            _ => Err(FileKeyIdError { found: text.chars().take(80).collect() }),
        }
    }
}

impl fmt::Display for FileKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for FileKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The 256-bit secret of one version; wiped when dropped, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<Zeroizing<[u8; 32]>>);

impl Secret {
    /// A new random secret.
    ///
    /// # Panics
    /// If the system has no randomness.
    pub fn generate() -> Self {
        let mut secret = Self(Box::new(Zeroizing::new([0; 32])));
        rand::fill(&mut **secret.0).expect("the system has randomness");
        secret
    }

    /// The secret of these bytes; `None` unless 32.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut secret = Box::new(Zeroizing::new([0; 32]));
        (bytes.len() == secret.len()).then(|| {
            secret.copy_from_slice(bytes);
            Self(secret)
        })
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(super) fn wrap_key(&self) -> kdf::Key {
        kdf::derive(self.bytes(), Label::FileWrap, &[])
    }

    /// The digits that stand in the lineage: another secret has others.
    pub(super) fn check(&self) -> String {
        hex::encode(&kdf::derive(self.bytes(), Label::RootId, &[])[..8])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A remark for people: up to 200 letters, digits, spaces and ASCII punctuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment(String);

/// A text that is no [`Comment`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a comment is one line of 1 to 200 letters, digits, spaces and ASCII punctuation")]
pub struct CommentError;

impl Comment {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Comment {
    type Err = CommentError;

    fn from_str(text: &str) -> Result<Self, CommentError> {
        let accepted = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
        ((1..=200).contains(&text.chars().count()) && text.chars().all(accepted))
            .then(|| Self(text.to_owned()))
            .ok_or(CommentError)
    }
}

/// A file root key in all its versions: what one key file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    pub(super) id: FileKeyId,
    pub(super) comment: Option<Comment>,
    pub(super) active: u32,
    /// Version n stands at n - 1; none is ever taken out.
    pub(super) versions: Vec<Version>,
}

/// One version of a file root key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub(super) staged: Timestamp,
    pub(super) activated: Option<Timestamp>,
    pub(super) check: String,
    pub(super) life: Life,
}

/// Whether a version can still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Usable(Secret),
    Retired(Timestamp),
}

impl Version {
    pub(super) fn staged(secret: Secret, now: Timestamp) -> Self {
        Self { staged: now, activated: None, check: secret.check(), life: Life::Usable(secret) }
    }

    /// When it was made.
    pub fn staged_at(&self) -> Timestamp {
        self.staged
    }

    /// When it became the active one, if it ever did.
    pub fn activated_at(&self) -> Option<Timestamp> {
        self.activated
    }

    /// When its secret was destroyed, if it was.
    pub fn retired_at(&self) -> Option<Timestamp> {
        match self.life {
            Life::Usable(_) => None,
            Life::Retired(at) => Some(at),
        }
    }

    /// The 16 hex digits that tell this secret from any other.
    pub fn check(&self) -> &str {
        &self.check
    }

    pub(super) fn secret(&self) -> Option<&Secret> {
        match &self.life {
            Life::Usable(secret) => Some(secret),
            Life::Retired(_) => None,
        }
    }
}

/// Where a version is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Made, not writing yet.
    Staged,
    /// Writes now.
    Active,
    /// Wrote once; reads.
    Superseded,
    /// Its secret is destroyed.
    Retired,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staged => "staged",
            Self::Active => "active",
            Self::Superseded => "superseded",
            Self::Retired => "retired",
        })
    }
}

/// Whether an activation may come before [`STAGING_TIME`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Keep to it.
    Wait,
    /// The operator says that every node has the file.
    Now,
}

/// Whether something had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was changed.
    Made,
    /// It was so already.
    AlreadySo,
}

/// Why a key file may not change so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeRefused {
    /// There is no such version.
    #[error("there is no version {number}; the highest is {highest}")]
    NoSuchVersion {
        /// What was asked for.
        number: u32,
        /// What there is.
        highest: u32,
    },
    /// No room for another version.
    #[error(
        "the key file has {MAX_VERSIONS} versions, the most it can hold; make a new key file and move to it"
    )]
    Full,
    /// A retired version can't write.
    #[error("version {number} was retired at {at} and its secret is destroyed; activate another")]
    Retired {
        /// Which version.
        number: u32,
        /// When.
        at: Timestamp,
    },
    /// The active version only moves forward: what a version wrote under is never a new key again.
    #[error(
        "version {active} is active, and activation only moves forward; to leave it, \
         run `casemate key add-version` and activate what that adds"
    )]
    Backwards {
        /// Which version writes.
        active: u32,
    },
    /// Staged too short a time ago.
    #[error(
        "version {number} was staged at {staged}: wait {} more. Every control plane node needs the file with version \
         {number} before any node writes with it, or the others can't read what it wrote. Deliver the file to all; \
         if they have it already, say so with --now",
        minutes(*.wait)
    )]
    TooFresh {
        /// Which version.
        number: u32,
        /// When it was staged.
        staged: Timestamp,
        /// How much longer to wait.
        wait: Duration,
    },
    /// The active version can't be retired.
    #[error("version {number} is active; activate another one first")]
    Active {
        /// Which version.
        number: u32,
    },
}

/// As a person would say it: `9m 05s`.
fn minutes(wait: Duration) -> String {
    format!("{}m {:02}s", wait.as_secs() / 60, wait.as_secs() % 60)
}

impl Keyring {
    /// A new key with `secret` as version 1, active.
    pub fn new(id: FileKeyId, comment: Option<Comment>, secret: Secret, now: Timestamp) -> Self {
        let mut first = Version::staged(secret, whole(now));
        first.activated = Some(first.staged);
        Self { id, comment, active: 1, versions: vec![first] }
    }

    /// Its identity.
    pub fn id(&self) -> FileKeyId {
        self.id
    }

    /// What people remarked.
    pub fn comment(&self) -> Option<&str> {
        self.comment.as_ref().map(Comment::as_str)
    }

    /// The number of the version that writes.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// All versions with their numbers, oldest first.
    pub fn versions(&self) -> impl Iterator<Item = (u32, &Version)> {
        (1..).zip(&self.versions)
    }

    /// The version of this number.
    pub fn version(&self, number: u32) -> Option<&Version> {
        self.versions.get(index(number)?)
    }

    /// The highest number.
    pub fn highest(&self) -> u32 {
        self.versions().last().map_or(0, |(number, _)| number)
    }

    /// The newest version that waits for its activation.
    pub fn newest_staged(&self) -> Option<u32> {
        self.versions()
            .filter(|(number, _)| *number > self.active && self.state(*number) == Some(State::Staged))
            .last()
            .map(|(number, _)| number)
    }

    /// Where a version is in its life.
    pub fn state(&self, number: u32) -> Option<State> {
        let version = self.version(number)?;
        Some(match (&version.life, version.activated) {
            (Life::Retired(_), _) => State::Retired,
            _ if number == self.active => State::Active,
            (_, Some(_)) => State::Superseded,
            (_, None) => State::Staged,
        })
    }

    /// The identity of a version.
    pub fn lineage(&self, number: u32) -> Option<Lineage> {
        let version = self.version(number)?;
        let fields = [self.id.to_string(), number.to_string(), version.check.clone()];
        Some(Lineage::new("file", fields).expect("digits are fields"))
    }

    /// Adds a version that does not write yet, and says its number.
    ///
    /// # Errors
    /// [`ChangeRefused::Full`].
    pub fn stage(&mut self, secret: Secret, now: Timestamp) -> Result<u32, ChangeRefused> {
        if self.versions.len() >= MAX_VERSIONS {
            return Err(ChangeRefused::Full);
        }
        self.versions.push(Version::staged(secret, whole(now)));
        Ok(self.highest())
    }

    /// Lets version `number` write.
    ///
    /// # Errors
    /// If there is no such version, it is retired, older than the active one, or too fresh.
    pub fn activate(&mut self, number: u32, now: Timestamp, haste: Haste) -> Result<Change, ChangeRefused> {
        let (active, now) = (self.active, whole(now));
        let version = self.version_mut(number)?;
        if number == active {
            return Ok(Change::AlreadySo);
        }
        if let Some(at) = version.retired_at() {
            return Err(ChangeRefused::Retired { number, at });
        }
        if number < active {
            return Err(ChangeRefused::Backwards { active });
        }
        // A clock that is behind the one that staged makes the wait longer, never shorter.
        let age = now.as_second().saturating_sub(version.staged.as_second());
        let wait = i64::try_from(STAGING_TIME.as_secs()).unwrap_or(i64::MAX).saturating_sub(age);
        if haste == Haste::Wait && wait > 0 {
            let (staged, wait) = (version.staged, Duration::from_secs(wait.unsigned_abs()));
            return Err(ChangeRefused::TooFresh { number, staged, wait });
        }
        version.activated = Some(now);
        self.active = number;
        Ok(Change::Made)
    }

    /// Destroys the secret of version `number`. What was written under it can't be read with this key again.
    ///
    /// # Errors
    /// If there is no such version, or it is active.
    pub fn retire(&mut self, number: u32, now: Timestamp) -> Result<Change, ChangeRefused> {
        let active = self.active;
        let version = self.version_mut(number)?;
        if number == active {
            return Err(ChangeRefused::Active { number });
        }
        if version.retired_at().is_some() {
            return Ok(Change::AlreadySo);
        }
        version.life = Life::Retired(whole(now));
        Ok(Change::Made)
    }

    fn version_mut(&mut self, number: u32) -> Result<&mut Version, ChangeRefused> {
        let highest = self.highest();
        index(number)
            .and_then(|index| self.versions.get_mut(index))
            .ok_or(ChangeRefused::NoSuchVersion { number, highest })
    }
}

fn index(number: u32) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1)
}

/// Key files hold whole seconds.
fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
