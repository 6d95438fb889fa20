//! Versioned root keys in one file, which the admin delivers to every control plane node.
//!
//! A version is *staged*, the file is delivered to all nodes, and then the version is *activated*. The file is
//! read at each call: what was delivered counts at once, and secrets are in memory for the call only.
//!
//! * [`FileKey`]: the key service. [`KeyFile`]: the file on disk.
//! * [`Keyring`]: what it says, and how that may change. [`text`]: how it is written down.

use std::fmt;
use std::path::{Path, PathBuf};

use casemate_keys::secret_memory::with_wiped_stack;
use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, Root, gcm, payload};
use zeroize::Zeroizing;

use crate::selection::Candidate;
use crate::{Answer, Class, Failure, Pace, RootKey};

mod keyring;
mod store;
pub mod text;

pub use keyring::{
    Change, ChangeRefused, Comment, CommentError, FileKeyId, FileKeyIdError, Haste, Keyring, MAX_VERSIONS,
    STAGING_TIME, Secret, State, Version,
};
pub use store::{KeyFile, StoreError};
pub use text::KeyFileError;

/// What reading a key file and using a key use of the stack, and more.
const STACK: usize = 64 * 1024;

/// Which version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// The one that the file says is active.
    Latest,
    /// This one, whatever the file says.
    Pinned(u32),
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Pinned(number) => write!(f, "pinned version {number}"),
        }
    }
}

/// A root key in a file.
#[derive(Clone, Debug)]
pub struct FileKey {
    source: Source,
    selection: Selection,
    prefix: LineagePrefix,
}

/// Which key, and where it is expected.
#[derive(Clone, Debug)]
struct Source {
    file: KeyFile,
    id: FileKeyId,
}

impl FileKey {
    /// The key `id`, read from `path` at each call.
    pub fn new(path: impl Into<PathBuf>, id: FileKeyId, selection: Selection) -> Self {
        Self { source: Source { file: KeyFile::at(path), id }, selection, prefix: id.prefix() }
    }

    /// Where it is read from.
    pub fn path(&self) -> &Path {
        self.source.file.path()
    }

    /// Off the threads that serve: a disk may hang.
    fn read<T: Send + 'static>(
        &self,
        then: impl FnOnce(&Source, Keyring) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'_, T> {
        let source = self.source.clone();
        Box::pin(async move {
            let call = tokio::task::spawn_blocking(move || {
                with_wiped_stack::<STACK, _>(|| {
                    let keyring = source.keyring()?;
                    then(&source, keyring)
                })
            });
            call.await.unwrap_or_else(|_| {
                let what = format!("reading key file {} was broken off", self.path().display());
                Err(Failure::new(Class::Unreachable, what, "try again; the program may be stopping"))
            })
        })
    }
}

impl RootKey for FileKey {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn pace(&self) -> Pace {
        Pace::Local
    }

    fn observe(&self) -> Answer<'_, Root> {
        let selection = self.selection;
        self.read(move |source, keyring| {
            let number = match selection {
                Selection::Latest => keyring.active(),
                Selection::Pinned(number) => number,
            };
            let lineage = keyring.lineage(number).ok_or_else(|| source.missing(&keyring, number, None))?;
            source.secret(&keyring, &lineage)?;
            Ok(Root { lineage, algorithm: Algorithm::FILE_AES256_GCM })
        })
    }

    fn versions(&self) -> Answer<'_, Vec<Candidate>> {
        self.read(|_, keyring| {
            let candidate = |(number, version): (u32, &Version)| Candidate {
                version: number.to_string(),
                labels: Vec::new(),
                current: number == keyring.active(),
                disabled: version.retired_at().map(|at| format!("retired at {at}")),
            };
            Ok(keyring.versions().map(candidate).collect())
        })
    }

    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        let (root, core) = (root.clone(), *core);
        let mut held = Box::new(Zeroizing::new([0; payload::LEN]));
        held.copy_from_slice(payload);
        self.read(move |source, keyring| {
            let key = source.wrap_key(&keyring, &root)?;
            Ok(gcm::seal(&key, &payload::associated_data(&core), &held[..]))
        })
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        let (root, core, wrap) = (root.clone(), *core, wrap.to_vec());
        self.read(move |source, keyring| {
            let key = source.wrap_key(&keyring, &root)?;
            gcm::open(&key, &payload::associated_data(&core), &wrap).map_err(|error| {
                let what =
                    format!("a wrap of {} bytes does not open under {}: {error}", wrap.len(), root.lineage);
                let remedy =
                    "the record was changed or belongs to another wrap; restore the object from a backup";
                Failure::new(Class::NotOpened, what, remedy)
            })
        })
    }

    fn binds_associated_data(&self, _root: &Root) -> bool {
        true
    }
}

impl Source {
    fn keyring(&self) -> Result<Keyring, Failure> {
        let keyring = self.file.read().map_err(|error| error.failure())?;
        if keyring.id() != self.id {
            let what = format!(
                "key file {} holds key {}, the configuration names {}",
                self.path(),
                keyring.id(),
                self.id
            );
            let remedy = format!(
                "deliver the file of key {} to this node, or correct `path` and `id` in the configuration",
                self.id
            );
            return Err(Failure::new(Class::Corrupt, what, remedy));
        }
        Ok(keyring)
    }

    fn wrap_key(&self, keyring: &Keyring, root: &Root) -> Result<casemate_keys::kdf::Key, Failure> {
        if root.algorithm != Algorithm::FILE_AES256_GCM {
            let what =
                format!("a key file wraps with {}, not {}", Algorithm::FILE_AES256_GCM, root.algorithm);
            let remedy = "correct the algorithms of this key in the configuration";
            return Err(Failure::new(Class::Refused, what, remedy));
        }
        self.secret(keyring, &root.lineage).map(Secret::wrap_key)
    }

    /// The secret of exactly this version.
    fn secret<'a>(&self, keyring: &'a Keyring, lineage: &Lineage) -> Result<&'a Secret, Failure> {
        let fields: Vec<&str> = lineage.fields().collect();
        let number = match fields[..] {
            [_, number, _] if self.id.prefix().rest(lineage).is_some() => number.parse().ok(),
            _ => None,
        };
        let Some(number) = number.filter(|number: &u32| fields[1] == number.to_string()) else {
            let what =
                format!("{lineage} is not a version of the key in {}, whose id is {}", self.path(), self.id);
            return Err(Failure::new(Class::Refused, what, "name its own key file in the configuration"));
        };
        let Some(version) = keyring.version(number) else {
            return Err(self.missing(keyring, number, Some(lineage)));
        };
        if fields[2] != version.check() {
            let what = format!(
                "version {number} in key file {} has check digits {}, not {}: two copies of the key file were \
                 changed apart",
                self.path(),
                version.check(),
                fields[2]
            );
            let remedy = format!(
                "deliver the key file whose version {number} is {lineage} to this node as {}, keep both copies, and \
                 change only one from now on",
                self.path()
            );
            let failure = Failure::new(Class::Refused, what, remedy);
            return Err(Failure { missing: Some(lineage.clone()), ..failure });
        }
        version.secret().ok_or_else(|| {
            let when = version.retired_at().map(|at| format!(" at {at}")).unwrap_or_default();
            let what = format!(
                "version {number} in key file {} was retired{when}: its secret is destroyed",
                self.path()
            );
            let remedy = format!(
                "what was written under {lineage} needs a copy of the key file from before that; \
                 restore one as {} to read it, and migrate what it wrote before retiring it again",
                self.path()
            );
            Failure::new(Class::Refused, what, remedy)
        })
    }

    fn missing(&self, keyring: &Keyring, number: u32, lineage: Option<&Lineage>) -> Failure {
        let what = format!(
            "version {number} is not in key file {}, whose highest is {}",
            self.path(),
            keyring.highest()
        );
        let remedy = format!(
            "deliver the current key file to this node: one with version {number} of key {} as {}",
            self.id,
            self.path()
        );
        Failure { missing: lineage.cloned(), ..Failure::new(Class::Refused, what, remedy) }
    }

    fn path(&self) -> std::path::Display<'_> {
        self.file.path().display()
    }
}

impl StoreError {
    /// What it says about the root key.
    pub fn class(&self) -> Class {
        match self {
            Self::Mode { .. } | Self::Owner { .. } => Class::Credential,
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Class::Credential
            }
            Self::Content { .. } | Self::NotAFile { .. } => Class::Corrupt,
            Self::Absent { .. }
            | Self::NoFolder { .. }
            | Self::Exists { .. }
            | Self::Busy { .. }
            | Self::Io { .. } => Class::Unreachable,
        }
    }

    fn failure(&self) -> Failure {
        let remedy = match self.class() {
            Class::Credential => {
                "only root or the user that runs this program may own it, with mode 0600 or 0400"
            }
            Class::Corrupt => "deliver the key file to this node again, whole, from another node or a backup",
            _ => "deliver the key file to this node, or correct `path` in the configuration",
        };
        Failure::new(self.class(), self.to_string(), remedy)
    }
}

#[cfg(test)]
mod tests;
