//! The PIN, as its file delivers it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{Class, Failure};

/// Longer files hold no PIN.
const LONGEST: u64 = 4096;

const BOM: &str = "\u{feff}";

/// What a PIN file holds.
pub(super) struct Pin {
    /// Where it stands.
    pub(super) path: PathBuf,
    pin: Zeroizing<String>,
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) file: Identity,
    /// What was in the file besides.
    pub(super) left_out: Vec<&'static str>,
}

/// Which file it was, and as of when: as long as that is the same, its content is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds: nobody can set this time.
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        let changed = (file.ctime(), file.ctime_nsec());
        Self { device: file.dev(), inode: file.ino(), length: file.len(), changed }
    }
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
        Ok(Self { path: path.to_owned(), pin, content, file: Identity::of(&metadata), left_out })
    }

    /// What is likely wrong with a PIN that a token refuses, if that can be seen.
    pub(super) fn oddity(&self) -> &'static str {
        let bare = self.pin.trim().len() == self.pin.len();
        if bare { "" } else { " (it begins or ends with a space, which is taken as a part of the PIN)" }
    }

    pub(super) fn expose(&self) -> &str {
        &self.pin
    }
}

#[cfg(test)]
pub(super) mod tests;
