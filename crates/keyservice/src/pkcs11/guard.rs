//! The guard against a token that locks itself after a few wrong PINs: what was tried is remembered, over restarts.
//!
//! A PIN is noted *before* it is tried, so that neither a crash nor a power cut makes one forget. What the login then
//! tells decides what becomes of the note. One that tells nothing may have counted as a wrong PIN: so a PIN is tried
//! twice without a clear answer, and then only if it is known to be good, now and then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{pbkdf2, rand};
use casemate_keys::names::sha256;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::pin::{Identity, Pin};
use crate::{Class, Failure};

/// As often a PIN is tried without a clear answer. Not once: a power cut in a login would then need a person.
const UNCLEAR: u32 = 2;

/// So long after that, a PIN that the token accepted before is tried again, each time once: an outage in which logins
/// fail without a clear answer must end by itself.
const BETWEEN_TRIES: Duration = Duration::from_secs(60 * 60);

/// As many PINs are remembered.
const MOST: usize = 8;

/// So that a guess at the PIN that was wrong costs something.
const ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");

/// What was tried at one token, by all processes on this host.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    file: PathBuf,
    token: String,
}

/// What is remembered.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notes {
    version: u32,
    /// Its serial number, for whoever reads this.
    token: String,
    /// The newest is last.
    tried: Vec<Tried>,
}

/// A PIN that was tried. Not the PIN: a slow, salted digest of the *file*, since a changed file is what ends it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tried {
    salt: String,
    digest: String,
    /// The token said that it is wrong.
    refused: bool,
    /// How often nothing was clear, one that is under way included.
    unclear: u32,
    /// In seconds since 1970.
    last: u64,
}

/// A login that is tried. Dropped, it was without a clear answer: the note stays.
pub(super) struct Attempt {
    turn: Turn,
    guard: Guard,
    pin: Identity,
    before: Notes,
    /// With the PIN as the last.
    during: Notes,
}

/// One login at a time of all processes: what one learns spares the others a wrong PIN.
struct Turn {
    /// Locked. In it is which PIN file the token accepted last, which tells nothing of the PIN.
    file: File,
    accepted: Option<Identity>,
}

impl Guard {
    /// Of the token with this serial number, whatever names it in the configuration.
    pub(super) fn of(folder: &Path, token: &str) -> Self {
        let name = hex::encode(&sha256(token.as_bytes())[..8]);
        Self { file: folder.join(format!("{name}.pin")), token: token.into() }
    }

    /// Before a login with `pin`.
    ///
    /// # Errors
    /// It was refused before, or may have been, or that could not be remembered.
    pub(super) fn allow(&self, pin: &Pin, now: SystemTime) -> Result<Attempt, Failure> {
        let unwritten = |error: io::Error| {
            let what = format!(
                "a PIN is not tried while that could not be remembered: {}: {error}",
                self.file.display()
            );
            Failure::new(Class::Credential, what, "make room, or the folder writable, for this file")
        };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let turn = Turn::take(self).map_err(unwritten)?;
        let before = self.remembered()?;
        let mut during = before.clone();
        let known = during.tried.iter().position(|tried| tried.is_of(pin, &self.token));
        let mut tried = match known {
            Some(place) => during.tried.remove(place),
            None => Tried::new(pin, &self.token),
        };
        self.may(pin, &tried, turn.accepted.as_ref() == Some(&pin.file), now)?;
        tried.unclear += 1;
        tried.last = now;
        during.tried.push(tried);
        let surplus = during.tried.len().saturating_sub(MOST);
        during.tried.drain(..surplus);
        self.write(&during).map_err(unwritten)?;
        Ok(Attempt { turn, guard: self.clone(), pin: pin.file.clone(), before, during })
    }

    fn may(&self, pin: &Pin, tried: &Tried, accepted_before: bool, now: u64) -> Result<(), Failure> {
        // A clock that was set back must not make it wait for years.
        let waited = now.checked_sub(tried.last).unwrap_or(u64::MAX);
        let left = BETWEEN_TRIES.as_secs().saturating_sub(waited).div_ceil(60);
        let (why, then) = match tried {
            Tried { refused: true, .. } => {
                ("refused the PIN in the PIN file before; it is not tried again".into(), String::new())
            }
            Tried { unclear: ..UNCLEAR, .. } => return Ok(()),
            Tried { unclear, .. } if accepted_before => {
                if left == 0 {
                    return Ok(());
                }
                (
                    format!(
                        "was asked {unclear} times with the PIN in the PIN file, and gave no clear answer"
                    ),
                    format!("; it accepted that PIN before, and is asked again in {left} minutes"),
                )
            }
            Tried { unclear, .. } => (
                format!(
                    "was asked {unclear} times with the PIN in the PIN file, and gave no clear answer; it is not tried again"
                ),
                String::new(),
            ),
        };
        let what = format!(
            "the token with serial number {} {why}, since a few wrong ones lock the token{then}",
            self.token
        );
        let remedy = format!(
            "write the right PIN into {}{}. If the PIN is right all the same, since it was changed on the token or the \
             module failed at login: delete {}",
            pin.path.display(),
            pin.oddity(),
            self.file.display()
        );
        Err(Failure::new(Class::Credential, what, remedy))
    }

    fn remembered(&self) -> Result<Notes, Failure> {
        let unusable = |why: String| {
            let what = format!("which PINs were tried can't be read: {}: {why}", self.file.display());
            let remedy = "make sure that the PIN file is right, then delete that file";
            Failure::new(Class::Credential, what, remedy)
        };
        match fs::read(&self.file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Notes { version: 2, token: self.token.clone(), tried: Vec::new() })
            }
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// All or nothing, and to stay.
    fn write(&self, notes: &Notes) -> io::Result<()> {
        let written = self.beside(".new");
        let mut file = self.create(&written, OpenOptions::new().write(true).truncate(true))?;
        file.write_all(&serde_json::to_vec(notes)?)?;
        file.sync_all()?;
        fs::rename(&written, &self.file)?;
        File::open(self.folder())?.sync_all()
    }

    /// Whether it stays does not matter: what is noted too much costs a try at most.
    fn restore(&self, notes: &Notes) {
        let _ = if notes.tried.is_empty() { fs::remove_file(&self.file) } else { self.write(notes) };
    }

    /// A file that the folder's owner can use, too, if root makes it: who looks after a daemon may be another user.
    fn create(&self, path: &Path, how: &mut OpenOptions) -> io::Result<File> {
        let file = how.create(true).mode(0o600).open(path)?;
        let (ours, folder) = (file.metadata()?, fs::metadata(self.folder())?);
        if geteuid().is_root() && ours.uid() != folder.uid() {
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
        }
        Ok(file)
    }

    fn folder(&self) -> &Path {
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(ending);
        name.into()
    }
}

impl Turn {
    fn take(guard: &Guard) -> io::Result<Self> {
        let mut file = guard.create(&guard.beside(".turn"), OpenOptions::new().read(true).write(true))?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A torn one is none: then the PIN is not known to be good.
        Ok(Self { accepted: serde_json::from_slice(&text).ok(), file })
    }

    /// If it can't be written, it is not known.
    fn set_accepted(&mut self, pin: Option<Identity>) {
        if self.accepted == pin {
            return;
        }
        let written = self.file.set_len(0).and_then(|()| self.file.rewind());
        if let (Ok(()), Some(pin)) = (written, &pin) {
            let text = serde_json::to_vec(pin).map_err(io::Error::from);
            let _ = text.and_then(|text| self.file.write_all(&text));
        }
        self.accepted = pin;
    }
}

impl Attempt {
    /// The token accepted it: what it refused before is of the past.
    pub(super) fn accepted(mut self) {
        self.turn.set_accepted(Some(self.pin));
        let _ = fs::remove_file(&self.guard.file);
    }

    /// The token refused it.
    ///
    /// # Errors
    /// That can't be written; that it was tried is.
    pub(super) fn refused(mut self) -> io::Result<()> {
        self.turn.set_accepted(None);
        if let Some(tried) = self.during.tried.last_mut() {
            tried.refused = true;
        }
        self.guard.write(&self.during)
    }

    /// The token did not come to look at it.
    pub(super) fn dropped(self) {
        self.guard.restore(&self.before);
    }
}

impl Tried {
    fn new(pin: &Pin, token: &str) -> Self {
        let mut salt = [0; 16];
        rand::fill(&mut salt).expect("the system gives random bytes");
        let digest = hex::encode(&digest(&salt, pin, token)[..]);
        Self { salt: hex::encode(salt), digest, refused: false, unclear: 0, last: 0 }
    }

    fn is_of(&self, pin: &Pin, token: &str) -> bool {
        let (Ok(salt), Ok(known)) = (hex::decode(&self.salt), hex::decode(&self.digest)) else { return true };
        verify_slices_are_equal(&digest(&salt, pin, token)[..], &known).is_ok()
    }
}

fn digest(salt: &[u8], pin: &Pin, token: &str) -> Zeroizing<[u8; 32]> {
    let salt = [salt, token.as_bytes()].concat();
    let mut out = Zeroizing::new([0; 32]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, &salt, &pin.content, &mut out[..]);
    out
}

#[cfg(test)]
mod tests;
