//! Root keys: which key service, which key there, and which of its versions writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use casemate_keys::{LineagePrefix, ReadRule};
use casemate_keyservice::RootKey;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{ConfigError, Name, Parsed};

mod file;

pub use file::{FileConfig, RemovedFileConfig};

/// A root key to write with. All its versions are read. It is in exactly one key service.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteKeyConfig {
    /// For logs and errors.
    pub name: Parsed<Name>,
    /// Which version writes: `latest` (the one that the key service calls current), a number, or `label` (the one that
    /// carries the write label). Not every key service has all three.
    #[serde(default)]
    pub version: Parsed<VersionSelection>,
    /// Versions below this are not read, for example after a leak.
    pub min_read_version: Option<u64>,
    /// The key is in a file.
    #[serde(default)]
    #[schemars(with = "FileConfig")]
    pub file: Option<FileConfig>,
}

/// A root key to read with. It is in exactly one key service.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadKeyConfig {
    /// For logs and errors.
    pub name: Parsed<Name>,
    /// Versions below this are not read, for example after a leak.
    pub min_read_version: Option<u64>,
    /// The key is in a file.
    #[serde(default)]
    #[schemars(with = "FileConfig")]
    pub file: Option<FileConfig>,
}

/// A root key that is not read with any more. It was in exactly one key service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovedKeyConfig {
    /// The key was in a file.
    #[serde(default)]
    #[schemars(with = "RemovedFileConfig")]
    pub file: Option<RemovedFileConfig>,
}

/// Which version of a root key writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionSelection {
    /// What the key service calls current.
    #[default]
    Latest,
    /// The one that carries the write label.
    Label,
    /// This one.
    Pinned(u32),
}

/// Where a root key is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In a file.
    File(&'a FileConfig),
}

/// What names a root key in all its versions, and where that stands.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: LineagePrefix,
    pub(crate) field: &'static str,
    pub(crate) line: u64,
}

impl Identity {
    /// The fields that name one.
    pub(crate) const FIELDS: [&'static str; 1] = ["id"];
}

impl WriteKeyConfig {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        place(self.file.as_ref()).expect("a parsed configuration names one place")
    }

    /// The root key, as it writes.
    pub(super) fn key(&self) -> Box<dyn RootKey> {
        self.place().key(self.version.0)
    }
}

impl ReadKeyConfig {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        place(self.file.as_ref()).expect("a parsed configuration names one place")
    }

    /// The root key, which never writes: which version would is of no interest.
    pub(super) fn key(&self) -> Box<dyn RootKey> {
        let place = self.place();
        place.key(place.any_version())
    }
}

impl RemovedKeyConfig {
    /// The root keys that it says are gone.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        self.file.iter().map(RemovedFileConfig::identity).collect()
    }
}

/// The one place that is named, if it is one.
fn place(file: Option<&FileConfig>) -> Option<Place<'_>> {
    let named: Vec<_> = [file.map(Place::File)].into_iter().flatten().collect();
    match named[..] {
        [place] => Some(place),
        _ => None,
    }
}

impl<'a> Place<'a> {
    fn key(self, version: VersionSelection) -> Box<dyn RootKey> {
        match self {
            Self::File(file) => file.key(version),
        }
    }

    fn any_version(self) -> VersionSelection {
        match self {
            Self::File(_) => VersionSelection::Latest,
        }
    }

    /// What may be read of it.
    pub(super) fn rules(self, min_version: Option<u64>) -> Vec<ReadRule> {
        let algorithms = match self {
            Self::File(_) => [FileConfig::ALGORITHM].into(),
        };
        let rule =
            |Identity { key, .. }| ReadRule { key, algorithms: BTreeSet::clone(&algorithms), min_version };
        self.identities().into_iter().map(rule).collect()
    }

    /// What its lineages begin with, known from configuration alone.
    pub(crate) fn identities(self) -> Vec<Identity> {
        match self {
            Self::File(file) => vec![file.identity()],
        }
    }

    /// The files that are read to use it.
    pub(super) fn files(self) -> Vec<PathBuf> {
        match self {
            Self::File(file) => vec![file.path.to_path_buf()],
        }
    }

    fn check(self, version: Option<&Parsed<VersionSelection>>) -> Result<(), Unfit> {
        match (self, version) {
            (Self::File(_), Some(version)) if version.0 == VersionSelection::Label => Err(Unfit {
                line: version.line(),
                field: "version",
                message: "a key file has no labels; use `latest` (the version that `casemate key activate` activated) or \
                          a number"
                    .into(),
            }),
            _ => Ok(()),
        }
    }
}

/// What of a root key does not fit, and where it stands.
struct Unfit {
    line: u64,
    field: &'static str,
    message: String,
}

/// What of root keys no field can tell alone.
pub(super) fn check<'a>(
    path: &Path,
    write: impl Iterator<Item = &'a WriteKeyConfig>,
    read: impl Iterator<Item = &'a ReadKeyConfig>,
) -> Result<(), ConfigError> {
    let write = write.map(|key| (&key.name, Some(&key.version), place(key.file.as_ref())));
    let read = read.map(|key| (&key.name, None, place(key.file.as_ref())));
    for (name, version, place) in write.chain(read) {
        let checked = match place {
            Some(place) => place.check(version),
            None => Err(Unfit {
                line: name.line(),
                field: "name",
                message: "is in no key service, or in several; a root key has exactly one of `file`".into(),
            }),
        };
        checked.map_err(|Unfit { line, field, message }| {
            let message = format!("root key {name}: {message}");
            ConfigError::Unfit { path: path.to_owned(), line, field, message }
        })?;
    }
    Ok(())
}

impl FromStr for VersionSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self::Latest),
            "label" => Ok(Self::Label),
            number => match number.parse() {
                Ok(number @ 1..) => Ok(Self::Pinned(number)),
                _ => Err(format!(
                    "found {text:?}; accepted are `latest`, `label` and the number of a version, from 1"
                )),
            },
        }
    }
}

impl JsonSchema for VersionSelection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VersionSelection".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "oneOf": [{"const": "latest"}, {"const": "label"}, {"type": "integer", "minimum": 1, "maximum": u32::MAX}]
        })
    }
}
