//! Root keys: which key service, which key there, and which of its versions writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use casemate_daemon::confine::Folders;
use casemate_keys::{LineagePrefix, ReadRule};
use casemate_keyservice::RootKey;
use casemate_keyservice::pkcs11::HostConfig;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{ConfigError, Name, Parsed};
use crate::key_services::{KeyServices, NotHere};

mod file;
mod pkcs11;
mod transit;

pub use file::{FileConfig, RemovedFileConfig};
pub(super) use pkcs11::guard_folder;
pub use pkcs11::{
    Mechanism, Pkcs11Config, RemovedPkcs11Config, TokenConfig, TokenKeys, TokenSignerConfig, WritesConfig,
};
pub use transit::{AuthConfig, RemovedTransitConfig, TlsConfig, TransitConfig};

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
    /// The key is in the Transit engine of OpenBao or Vault.
    #[serde(default)]
    #[schemars(with = "TransitConfig")]
    pub transit: Option<TransitConfig>,
    /// The keys are in an HSM, or another token that has a PKCS#11 module.
    #[serde(default)]
    #[schemars(with = "Pkcs11Config")]
    pub pkcs11: Option<Pkcs11Config>,
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
    /// The key is in the Transit engine of OpenBao or Vault.
    #[serde(default)]
    #[schemars(with = "TransitConfig")]
    pub transit: Option<TransitConfig>,
    /// The keys are in an HSM, or another token that has a PKCS#11 module.
    #[serde(default)]
    #[schemars(with = "Pkcs11Config")]
    pub pkcs11: Option<Pkcs11Config>,
}

/// A root key that is not read with any more. It was in exactly one key service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovedKeyConfig {
    /// The key was in a file.
    #[serde(default)]
    #[schemars(with = "RemovedFileConfig")]
    pub file: Option<RemovedFileConfig>,
    /// The key was in the Transit engine of OpenBao or Vault.
    #[serde(default)]
    #[schemars(with = "RemovedTransitConfig")]
    pub transit: Option<RemovedTransitConfig>,
    /// The keys were in a token.
    #[serde(default)]
    #[schemars(with = "RemovedPkcs11Config")]
    pub pkcs11: Option<RemovedPkcs11Config>,
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
    /// In a token.
    Pkcs11(&'a Pkcs11Config),
    /// In Transit.
    Transit(&'a TransitConfig),
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
    pub(crate) const FIELDS: [&'static str; 3] = ["id", "key", "keys"];
}

impl WriteKeyConfig {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        self.places().into_iter().next().expect("a parsed configuration names one place")
    }

    fn places(&self) -> Vec<Place<'_>> {
        places(self.file.as_ref(), self.transit.as_ref(), self.pkcs11.as_ref())
    }
}

impl ReadKeyConfig {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        self.places().into_iter().next().expect("a parsed configuration names one place")
    }

    fn places(&self) -> Vec<Place<'_>> {
        places(self.file.as_ref(), self.transit.as_ref(), self.pkcs11.as_ref())
    }
}

impl RemovedKeyConfig {
    /// The root keys that it says are gone.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        let (file, transit) = (&self.file, &self.transit);
        let one = file.iter().map(RemovedFileConfig::identity);
        let one = one.chain(transit.iter().map(RemovedTransitConfig::identity));
        one.chain(self.pkcs11.iter().flat_map(RemovedPkcs11Config::identities)).collect()
    }
}

fn places<'a>(
    file: Option<&'a FileConfig>,
    transit: Option<&'a TransitConfig>,
    pkcs11: Option<&'a Pkcs11Config>,
) -> Vec<Place<'a>> {
    let named = [file.map(Place::File), transit.map(Place::Transit), pkcs11.map(Place::Pkcs11)];
    named.into_iter().flatten().collect()
}

impl<'a> Place<'a> {
    /// The root key, and which `version` of it writes; `None` for one that never does.
    ///
    /// # Errors
    /// [`NotHere`].
    pub(crate) fn key(
        self,
        version: Option<VersionSelection>,
        services: &KeyServices,
        state_directory: &Path,
    ) -> Result<Box<dyn RootKey>, NotHere> {
        Ok(match self {
            Self::File(file) => file.key(version.unwrap_or_default()),
            Self::Transit(transit) => {
                Box::new(services.transit(transit.config(version.unwrap_or_default()))?)
            }
            Self::Pkcs11(token) => {
                Box::new(services.pkcs11(token.config(state_directory, version.is_some()))?)
            }
        })
    }

    /// Whether a process that asks it uses up what another one needs: a wrapped secret id.
    pub fn opens_once(self) -> bool {
        match self {
            Self::Transit(transit) => transit.auth.opens_once(),
            Self::File(_) | Self::Pkcs11(_) => false,
        }
    }

    /// Whether the service counts refused logins, and locks who logs in after some, for all nodes.
    pub fn locks_out(self) -> bool {
        match self {
            Self::Transit(transit) => transit.auth.locks_out(),
            Self::File(_) | Self::Pkcs11(_) => false,
        }
    }

    /// What may be read of it.
    pub(crate) fn rules(self, min_version: Option<u64>) -> Vec<ReadRule> {
        let algorithms = match self {
            Self::File(_) => [FileConfig::ALGORITHM].into(),
            Self::Transit(_) => [TransitConfig::ALGORITHM].into(),
            Self::Pkcs11(token) => [token.algorithm()].into(),
        };
        let rule =
            |Identity { key, .. }| ReadRule { key, algorithms: BTreeSet::clone(&algorithms), min_version };
        self.identities().into_iter().map(rule).collect()
    }

    /// Where it is said that it wraps so that a wrap proves nothing about who made it, if it does.
    pub(super) fn asymmetric(self) -> Option<u64> {
        match self {
            Self::Pkcs11(token) if token.algorithm().is_asymmetric() => Some(token.mechanism_line()),
            Self::File(_) | Self::Transit(_) | Self::Pkcs11(_) => None,
        }
    }

    /// What its lineages begin with, known from configuration alone.
    pub(crate) fn identities(self) -> Vec<Identity> {
        match self {
            Self::File(file) => vec![file.identity()],
            Self::Transit(transit) => vec![transit.identity()],
            Self::Pkcs11(token) => token.identities(),
        }
    }

    /// The files that are read to use it.
    pub(super) fn files(self) -> Vec<PathBuf> {
        match self {
            Self::File(file) => vec![file.path.to_path_buf()],
            Self::Transit(transit) => transit.files(),
            Self::Pkcs11(token) => token.files(),
        }
    }

    /// Of those, what logs in, whoever has it, and is used whatever its mode.
    pub(crate) fn credentials(self) -> Vec<PathBuf> {
        match self {
            Self::Transit(transit) => transit.credentials(),
            // One that others can use is refused.
            Self::File(_) | Self::Pkcs11(_) => Vec::new(),
        }
    }

    /// With what is needed beside files.
    pub(super) fn needs(self, folders: Folders) -> Folders {
        match self {
            Self::Transit(transit) => transit.needs(folders),
            Self::File(_) | Self::Pkcs11(_) => folders,
        }
    }

    /// Whether somebody pays for each call.
    pub(crate) fn is_service(self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// The module that is to be loaded, and what it may touch.
    pub(crate) fn host(self, state_directory: &Path) -> Option<HostConfig> {
        match self {
            Self::Pkcs11(token) => Some(token.host(state_directory)),
            Self::File(_) | Self::Transit(_) => None,
        }
    }

    /// `version`, if it is one that writes.
    fn check(
        self,
        version: Option<&Parsed<VersionSelection>>,
        min_version: Option<u64>,
    ) -> Result<(), Unfit> {
        let (line, selection) =
            version.map_or((0, VersionSelection::Latest), |version| (version.line(), version.0));
        let unfit = |line, field, message: String| Unfit { line, field, message };
        let no_labels = |instead: &str| unfit(line, "version", format!("has no labels; use {instead}"));
        let checked = match self {
            Self::File(_) if selection == VersionSelection::Label => {
                return Err(no_labels(
                    "`latest` (the version that `casemate key activate` activated) or a number",
                ));
            }
            Self::Transit(_) if selection == VersionSelection::Label => {
                return Err(no_labels("`latest` (the version that the service rotated to) or a number"));
            }
            Self::Pkcs11(_) if line != 0 => {
                let instead = ": keys in a token have no versions; leave `version` out, and say under `writes` which key writes";
                return Err(unfit(line, "version", instead.into()));
            }
            Self::Pkcs11(token) if min_version.is_some() => {
                let instead =
                    ": keys in a token have no versions; take out of `keys` what is not to be read any more";
                return Err(unfit(token.keys_line(), "minReadVersion", instead.into()));
            }
            Self::File(_) => Ok(()),
            Self::Transit(transit) => transit.check(selection),
            Self::Pkcs11(token) => token.check(version.is_some()),
        };
        checked.map_err(|(line, field, message)| unfit(line, field, message))
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
    let write = write.map(|key| (&key.name, Some(&key.version), key.min_read_version, key.places()));
    let read = read.map(|key| (&key.name, None, key.min_read_version, key.places()));
    for (name, version, min_version, places) in write.chain(read) {
        let checked = match places[..] {
            [place] => place.check(version, min_version),
            _ => Err(Unfit {
                line: name.line(),
                field: "name",
                message: "is in no key service, or in several; a root key has exactly one of `file`, `transit` and `pkcs11`"
                    .into(),
            }),
        };
        checked.map_err(|Unfit { line, field, message }| {
            let message = format!("root key {name} {message}");
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
