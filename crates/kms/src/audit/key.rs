//! The key that authenticates checkpoints.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use zeroize::Zeroizing;

use super::format::of_hex;

/// 64 digits and a line's end, with some room to tell what is there instead.
const MAX_LEN: u64 = 1024;

/// HMAC-SHA256 over checkpoints: who does not have the key can't make a log that was changed look whole.
pub struct CheckpointKey(Box<hmac::Key>);

/// A key, and the file that it is read from.
#[derive(Debug)]
pub(super) struct DeliveredKey {
    path: PathBuf,
    key: CheckpointKey,
    /// Why what is there now is not used.
    problem: Option<String>,
}

impl DeliveredKey {
    pub(super) fn read(path: &Path) -> Result<Self, KeyError> {
        let key = CheckpointKey::read(path)?;
        Ok(Self { path: path.to_owned(), key, problem: None })
    }

    pub(super) fn key(&self) -> &CheckpointKey {
        &self.key
    }

    /// Another key, if one is there now. While there is none that can be used, the last one is.
    pub(super) fn replacement(&mut self) -> Option<Self> {
        match Self::read(&self.path) {
            Ok(now) if now.key.name() != self.key.name() => return Some(now),
            Ok(_) => self.problem = None,
            Err(problem) => {
                let problem = Some(problem.to_string());
                if self.problem != problem {
                    tracing::warn!(
                        problem,
                        "the key of the audit log's checkpoints can't be read; the last one is used on"
                    );
                    self.problem = problem;
                }
            }
        }
        None
    }
}

/// A key that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No such file, or no permission.
    #[error("{}: can't be read: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may read it.
    #[error("{}: mode {mode:04o} lets others read or change the key; chmod 0600, and make a new key if they may have it", path.display())]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("{}: this is no key; a checkpoint key is 64 digits of lower-case hex, as `openssl rand -hex 32` makes it", path.display())]
    Form {
        /// Which file.
        path: PathBuf,
    },
}

impl CheckpointKey {
    /// Reads a key file: 64 digits of lower-case hex and nothing else, readable by its owner alone.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        // A pipe in its place must not hang the start.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(KeyError::Form { path: path.to_owned() });
        }
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Mode { path: path.to_owned(), mode });
        }
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_LEN as usize));
        file.take(MAX_LEN).read_to_end(&mut text).map_err(unreadable)?;
        Self::of_text(&text).ok_or_else(|| KeyError::Form { path: path.to_owned() })
    }

    /// The key in the text of its file.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let bytes = Zeroizing::new(of_hex(text.strip_suffix(b"\n").unwrap_or(text))?);
        Some(Self(Box::new(hmac::Key::new(hmac::HMAC_SHA256, &*bytes))))
    }

    /// A short name of it, which tells nothing about it: so that another key is told apart from a changed log.
    pub fn name(&self) -> String {
        hex::encode(&hmac::sign(&self.0, b"casemate audit: name of the key").as_ref()[..8])
    }

    /// Authenticates `message`.
    pub(super) fn mac(&self, message: &[u8]) -> [u8; 32] {
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(&self.0, message).as_ref());
        mac
    }

    /// Whether `mac` is of this key and `message`.
    pub(super) fn verifies(&self, message: &[u8], mac: &[u8; 32]) -> bool {
        hmac::verify(&self.0, message, mac).is_ok()
    }
}

impl std::fmt::Debug for CheckpointKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CheckpointKey")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_private_file_with_a_key_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.key");
        assert!(matches!(CheckpointKey::read(&path), Err(KeyError::Unreadable { .. })));
        assert!(matches!(CheckpointKey::read(folder.path()), Err(KeyError::Form { .. })));
        let good = format!("{}\n", "0a".repeat(32));
        for (text, mode, is_good) in [
            (good.as_str(), 0o600, true),
            (good.trim_end(), 0o400, true),
            (&good, 0o640, false),
            (&good, 0o604, false),
            (&good.to_uppercase(), 0o600, false),
            (&good[1..], 0o600, false),
            ("", 0o600, false),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = CheckpointKey::read(&path);
            assert_eq!(read.is_ok(), is_good, "{text:?} {mode:o} {read:?}");
            assert!(!format!("{read:?}").contains("0a0a"));
        }
    }
}
