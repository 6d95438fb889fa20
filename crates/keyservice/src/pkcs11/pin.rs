//! The PIN, and the guard against a token that locks itself after wrong ones.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{pbkdf2, rand};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{Class, Failure};

/// Longer files hold no PIN.
const LONGEST: u64 = 4096;

const BOM: &str = "\u{feff}";

/// So that a guess at the PIN that was wrong costs something.
const ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");

/// What a PIN file holds.
pub(super) struct Pin {
    pin: Zeroizing<String>,
    content: Zeroizing<Vec<u8>>,
    /// What was in the file besides.
    pub(super) left_out: Vec<&'static str>,
}

impl Pin {
    /// Reads the file anew: a delivered PIN counts at the next login.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |class, what: String, remedy: &str| {
            Failure::new(class, format!("PIN file {}: {what}", path.display()), remedy)
        };
        let credential = |what: &str, remedy: &str| failed(Class::Credential, what.into(), remedy);
        let unread = |error: io::Error| {
            failed(
                Class::Credential,
                error.to_string(),
                "deliver the file with the token's user PIN to this node",
            )
        };
        let file = File::open(path).map_err(unread)?;
        let metadata = file.metadata().map_err(unread)?;
        if !metadata.is_file() {
            return Err(credential("it is not a regular file", "correct the path in the configuration"));
        }
        let ours = metadata.uid() == 0 || metadata.uid() == geteuid().as_raw();
        if metadata.mode() & 0o077 != 0 || !ours {
            return Err(credential(
                "others than its owner can use it, or its owner is somebody else",
                "only root or the user that runs this program may own it, with mode 0600 or 0400",
            ));
        }
        let mut content = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 1));
        file.take(LONGEST + 1).read_to_end(&mut content).map_err(unread)?;
        let only_pin = "it is to hold the PIN and nothing else";
        if content.len() as u64 > LONGEST {
            return Err(credential("it is too long for a PIN", only_pin));
        }
        let text = std::str::from_utf8(&content).map_err(|_| credential("it is not UTF-8", only_pin))?;
        let mut left_out = Vec::new();
        let mut pin = text;
        if let Some(rest) = pin.strip_prefix(BOM) {
            (pin, left_out) = (rest, vec!["a byte order mark"]);
        }
        if let Some(rest) = pin.strip_suffix("\r\n") {
            pin = rest;
            left_out.push("the end of line (CR LF)");
        } else if let Some(rest) = pin.strip_suffix('\n') {
            pin = rest;
            left_out.push("the end of line");
        }
        if pin.is_empty() {
            return Err(credential("it is empty", "write the token's user PIN into it"));
        }
        if pin.contains(['\r', '\n', '\0']) {
            return Err(credential("it has more than one line", only_pin));
        }
        let pin = Zeroizing::new(pin.to_owned());
        Ok(Self { pin, content, left_out })
    }

    pub(super) fn expose(&self) -> &str {
        &self.pin
    }
}

/// Remembers a PIN that a token refused, over restarts: until the file holds something else, it is not tried again.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    file: PathBuf,
}

/// What is remembered. Not the PIN: a slow, salted digest of the *file*, since a changed file is what ends it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    version: u32,
    token: String,
    salt: String,
    digest: String,
}

/// A note that lies ready before a login is tried, so that a full disk does not make one forget.
pub(super) struct Attempt {
    /// One login at a time of all processes: what one learns spares the others a wrong PIN.
    _turn: File,
    written: PathBuf,
    file: PathBuf,
}

impl Guard {
    pub(super) fn at(file: &Path) -> Self {
        Self { file: file.to_owned() }
    }

    /// Before a login with `pin` at the token with this serial number.
    ///
    /// # Errors
    /// It was refused before, or that could not be remembered.
    pub(super) fn allow(&self, pin: &Pin, token: &str) -> Result<Attempt, Failure> {
        let unwritten = |error: io::Error| {
            let what = format!(
                "a PIN is not tried while a refusal could not be remembered: {}: {error}",
                self.file.display()
            );
            Failure::new(Class::Credential, what, "make room, or the folder writable, for this file")
        };
        let turn = self.turn().map_err(unwritten)?;
        if let Some(refused) = self.remembered()?
            && refused.is_of(pin, token)
        {
            let what = format!(
                "the token with serial number {token} refused the PIN in the PIN file before; it is not tried again, since \
                 a few wrong ones lock the token"
            );
            let remedy = format!(
                "write the right PIN into the file. If the PIN was right all along, since it was changed on the token: \
                 delete {}",
                self.file.display()
            );
            return Err(Failure::new(Class::Credential, what, remedy));
        }
        let written = self.write(&Refused::new(pin, token)).map_err(unwritten)?;
        Ok(Attempt { _turn: turn, written, file: self.file.clone() })
    }

    fn turn(&self) -> io::Result<File> {
        let turn = self.create(&self.beside(".turn"))?;
        flock(&turn, FlockOperation::LockExclusive)?;
        Ok(turn)
    }

    fn remembered(&self) -> Result<Option<Refused>, Failure> {
        let unusable = |why: String| {
            let what = format!("which PIN was refused can't be read: {}: {why}", self.file.display());
            let remedy = "make sure that the PIN file is right, then delete that file";
            Failure::new(Class::Credential, what, remedy)
        };
        match fs::read(&self.file) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|error| unusable(error.to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    fn write(&self, refused: &Refused) -> io::Result<PathBuf> {
        let written = self.beside(".new");
        let mut file = self.create(&written)?;
        file.write_all(&serde_json::to_vec(refused)?)?;
        file.sync_all()?;
        Ok(written)
    }

    /// A file that the folder's owner can use, too, if root makes it: who looks after a daemon may be another user.
    fn create(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let (ours, folder) = (file.metadata()?, fs::metadata(folder.unwrap_or(Path::new(".")))?);
        if geteuid().is_root() && ours.uid() != folder.uid() {
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
        }
        Ok(file)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(ending);
        name.into()
    }
}

impl Attempt {
    /// The token refused it.
    pub(super) fn refused(self) -> io::Result<()> {
        fs::rename(&self.written, &self.file)?;
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// The token accepted it: what was refused before is of the past.
    pub(super) fn accepted(self) {
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.written);
    }

    /// Neither: something else failed.
    pub(super) fn dropped(self) {
        let _ = fs::remove_file(&self.written);
    }
}

impl Refused {
    fn new(pin: &Pin, token: &str) -> Self {
        let mut salt = [0; 16];
        rand::fill(&mut salt).expect("the system gives random bytes");
        let digest = hex::encode(&digest(&salt, pin, token)[..]);
        Self { version: 1, token: token.into(), salt: hex::encode(salt), digest }
    }

    fn is_of(&self, pin: &Pin, token: &str) -> bool {
        let (Ok(salt), Ok(known)) = (hex::decode(&self.salt), hex::decode(&self.digest)) else { return true };
        self.token == token && verify_slices_are_equal(&digest(&salt, pin, token)[..], &known).is_ok()
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
