//! The file of a configuration, as it was read: to be parsed, and compared with what is there later.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use casemate_keys::crypto_module::FIPS_BUILD;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde_json::Value;

use super::writers::only_ours;
use super::{Config, ConfigError, MAX_LEN};

/// A text, and the file that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Reads the file at `path`, or what it links to.
    ///
    /// # Errors
    /// [`ConfigError`] if it is no file, too large, or no text.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
        // To open a pipe could wait for ever: it must not, and what is looked at is what is read.
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() {
            let what = if found.is_dir() { "it is a folder" } else { "it is no file" };
            return Err(unreadable(io::Error::new(ErrorKind::InvalidInput, what)));
        }
        let mut bytes = Vec::new();
        file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_LEN {
            return Err(ConfigError::TooLarge {
                path: path.to_owned(),
                length: found.len().max(MAX_LEN + 1),
            });
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            ConfigError::not_text(path, &error.as_bytes()[..error.utf8_error().valid_up_to()])
        })?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// Reads the file at `path`, as [`Source::read`] does, if only root and this user could change it.
    ///
    /// # Errors
    /// [`ConfigError`], with what is to be done.
    pub fn read_ours(path: &Path) -> Result<Self, ConfigError> {
        only_ours(path, None)?;
        Self::read(path)
    }

    /// The same for root, who looks at what another user's program reads: the owner of the file could change it too.
    ///
    /// # Errors
    /// As [`Source::read_ours`].
    pub fn read_for_owner(path: &Path) -> Result<Self, ConfigError> {
        let owner = fs::metadata(path).ok().filter(|_| geteuid().is_root()).map(|found| found.uid());
        only_ours(path, owner)?;
        Self::read(path)
    }

    /// The configuration that it is.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line, what was found and what is accepted.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let config = Config::parse(&self.text, &self.path)?;
        config.check_build(&self.path, FIPS_BUILD)?;
        Ok(config)
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was read.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its fields as they stand there, for comparing; empty if it is no configuration.
    pub fn fields(&self) -> Value {
        serde_saphyr::from_str(&self.text).unwrap_or_default()
    }
}
