//! What protects the sealing key: a file that the host delivers, and that is not stolen with the disk.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use casemate_keys::WeakSecret;
use zeroize::Zeroizing;

/// More than any secret has.
const MAX_LEN: usize = 8 * 1024;

/// Where the secret is that protects the sealing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    kind: SecretKind,
    path: PathBuf,
}

/// What kind of secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// Random bytes.
    Credential,
    /// Made up by somebody.
    Passphrase,
}

/// A secret that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// No such file, or no permission.
    #[error("{}: can't be read: {source}; deliver it, or correct its permissions", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, a pipe.
    #[error("{} is no regular file; the secret of a sealed cache is one", path.display())]
    NotAFile {
        /// What is none.
        path: PathBuf,
    },
    /// Others may read or change it.
    #[error("{}: mode {mode:04o} lets others read or change it; chmod 0600, and make a new one if they may have it", path.display())]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is on the disk that it should protect.
    #[error(
        "{} is on the same file system as {}: whoever takes the disk would have both; use a systemd credential, or a file \
         system of its own", path.display(), state.display()
    )]
    SameDisk {
        /// Which file.
        path: PathBuf,
        /// The folder of the cache.
        state: PathBuf,
    },
    /// A passphrase is one line.
    #[error("{}: a passphrase is one line; this has more", path.display())]
    Lines {
        /// Which file.
        path: PathBuf,
    },
    /// It protects nothing.
    #[error("{}: this protects nothing: {error}", path.display())]
    Weak {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        error: WeakSecret,
    },
}

impl Protection {
    /// Random bytes in the file at `path`.
    pub fn credential(path: impl Into<PathBuf>) -> Self {
        Self { kind: SecretKind::Credential, path: path.into() }
    }

    /// A passphrase in the file at `path`.
    pub fn passphrase(path: impl Into<PathBuf>) -> Self {
        Self { kind: SecretKind::Passphrase, path: path.into() }
    }

    /// Which file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What kind of secret.
    pub fn kind(&self) -> SecretKind {
        self.kind
    }

    /// The secret, if it is kept well enough and apart from `state`, or where that will be made.
    pub(super) fn read(&self, state: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let path = || self.path.clone();
        let unreadable = |source| SecretError::Unreadable { path: path(), source };
        // A pipe in its place must not hang anybody.
        let no_wait = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut file =
            File::options().read(true).custom_flags(no_wait).open(&self.path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() {
            return Err(SecretError::NotAFile { path: path() });
        }
        // systemd lets the service's user read by an access list, which shows as the group's permission.
        let mode = found.mode() & 0o7777;
        if mode & 0o027 != 0 {
            return Err(SecretError::Mode { path: path(), mode });
        }
        let there = state.ancestors().find_map(|folder| fs::metadata(folder).ok());
        if there.is_some_and(|there| there.dev() == found.dev()) {
            return Err(SecretError::SameDisk { path: path(), state: state.to_owned() });
        }
        // Never grown, so that no copy stays behind.
        let mut secret = Zeroizing::new(Vec::with_capacity(MAX_LEN));
        file.by_ref().take(MAX_LEN as u64).read_to_end(&mut secret).map_err(unreadable)?;
        if self.kind == SecretKind::Passphrase {
            if secret.ends_with(b"\n") {
                secret.pop();
                if secret.ends_with(b"\r") {
                    secret.pop();
                }
            }
            if secret.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
                return Err(SecretError::Lines { path: path() });
            }
        }
        Ok(secret)
    }
}

impl fmt::Display for SecretKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credential => "credential",
            Self::Passphrase => "passphrase",
        })
    }
}
