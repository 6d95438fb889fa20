//! A root key in a token that is reached by a PKCS#11 module.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use casemate_keys::LineagePrefix;
use casemate_keyservice::pkcs11::{self, CkaId, HostConfig, TokenSelector, Wrapping, Writes};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::Identity;
use crate::config::{AbsolutePath, Parsed};

/// Keys in a token, by its PKCS#11 module. The module runs in a process of its own.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pkcs11Config {
    /// The module: a shared library.
    pub module: Parsed<AbsolutePath>,
    /// Which token: exactly one must fit.
    pub token: TokenConfig,
    /// The file with the user PIN, and nothing else.
    pub pin_file: Parsed<AbsolutePath>,
    /// How the keys wrap: `aes-gcm`, `aes-kwp`, or `rsa-oaep`, which needs a `signer` to write and one of those that are
    /// pinned to read.
    #[serde(default)]
    pub mechanism: Parsed<Mechanism>,
    /// All versions of this root key, by CKA_ID in lower-case hex, 16 to 64 bytes each; of an RSA key, the first 16 bytes
    /// of SHA-256 of its SubjectPublicKeyInfo. PKCS#11 knows no versions: they
    /// are keys of their own, and the list gets one more at each rotation. What is not listed is not read.
    #[schemars(with = "Vec<KeyId>", length(min = 1))]
    pub keys: TokenKeys,
    /// Which of them writes; the only one, if left out.
    #[serde(default)]
    #[schemars(with = "WritesConfig")]
    pub writes: Option<WritesConfig>,
    /// Folders and devices that the module reads and writes, such as the token folder of SoftHSM.
    #[serde(default)]
    pub folders: Vec<AbsolutePath>,
    /// Whether the module speaks to its device over a network.
    #[serde(default)]
    pub network: bool,
    /// What the module reads from its environment, such as `SOFTHSM2_CONF`; there is nothing else in it.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// A key in a token that signs. It signs nothing else, and wraps nothing.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenSignerConfig {
    /// The module: a shared library.
    pub module: Parsed<AbsolutePath>,
    /// Which token: exactly one must fit.
    pub token: TokenConfig,
    /// The file with the user PIN, and nothing else.
    pub pin_file: Parsed<AbsolutePath>,
    /// Which key: by CKA_ID in lower-case hex, 16 to 64 bytes; an RSA key by the first 16 bytes of SHA-256 of its
    /// SubjectPublicKeyInfo.
    pub key: Parsed<KeyId>,
    /// Folders and devices that the module reads and writes.
    #[serde(default)]
    pub folders: Vec<AbsolutePath>,
    /// Whether the module speaks to its device over a network.
    #[serde(default)]
    pub network: bool,
    /// What the module reads from its environment; there is nothing else in it.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// Which token.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum TokenConfig {
    /// By label: a clone of an HSM has the same.
    Label(String),
    /// By serial number.
    Serial(String),
}

/// Which key writes.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum WritesConfig {
    /// The one with this CKA_LABEL: who sets the label decides, for all nodes at once.
    Label(String),
    /// The one with this CKA_ID.
    #[schemars(with = "KeyId")]
    Id(Parsed<KeyId>),
}

/// Keys in a token that are not read any more.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovedPkcs11Config {
    /// By CKA_ID.
    #[schemars(with = "Vec<KeyId>", length(min = 1))]
    pub keys: TokenKeys,
}

/// Keys of a token: one at least. In another order they are the same.
#[derive(Debug)]
pub struct TokenKeys {
    first: Parsed<KeyId>,
    more: Vec<Parsed<KeyId>>,
}

/// How keys in a token wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanism(pub Wrapping);

/// A CKA_ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyId(pub CkaId);

impl Pkcs11Config {
    /// What the keeper of its module is to be told, and the key behind it.
    pub(super) fn config(&self, state_directory: &Path, writes: bool) -> pkcs11::Pkcs11Config {
        let writes = match &self.writes {
            _ if !writes => Writes::Never,
            Some(WritesConfig::Label(label)) => Writes::Label(label.clone()),
            Some(WritesConfig::Id(id)) => Writes::Pinned(id.0.0.clone()),
            // There is one: that several need `writes` is checked.
            None => Writes::Pinned(self.keys.first.0.0.clone()),
        };
        pkcs11::Pkcs11Config {
            host: self.host(state_directory),
            wrapping: self.mechanism.0.0,
            keys: self.keys.iter().map(|key| key.0.0.clone()).collect(),
            writes,
        }
    }

    /// The process that holds its module.
    pub(crate) fn host(&self, state_directory: &Path) -> HostConfig {
        let Self { module, token, pin_file, folders, network, environment, .. } = self;
        host(state_directory, (module, token), pin_file, folders, *network, environment)
    }

    pub(super) fn algorithm(&self) -> casemate_keys::Algorithm {
        self.mechanism.0.0.algorithm()
    }

    pub(super) fn identities(&self) -> Vec<Identity> {
        identities(&self.keys)
    }

    /// Where its keys are listed.
    pub(super) fn keys_line(&self) -> u64 {
        self.keys.first.line()
    }

    /// Where it is said how its keys wrap, if anywhere.
    pub(super) fn mechanism_line(&self) -> u64 {
        if self.mechanism.line() == 0 { self.module.line() } else { self.mechanism.line() }
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        vec![self.pin_file.to_path_buf()]
    }

    pub(super) fn check(&self, writes: bool) -> Result<(), (u64, &'static str, String)> {
        let line = self.module.line();
        match &self.writes {
            None if writes && !self.keys.more.is_empty() => Err((
                line,
                "writes",
                "lists several keys: add `writes: {id: …}` with the id of the one that writes now (after adding one for a \
                 rotation: the old one), or `writes: {label: …}`"
                    .into(),
            )),
            Some(WritesConfig::Id(id)) if !self.keys.iter().any(|key| key.0 == id.0) => {
                Err((id.line(), "id", "must list the key that writes among `keys`, so that it is read too".into()))
            }
            _ => Ok(()),
        }
    }
}

impl TokenSignerConfig {
    /// The process that holds its module: the same as that of a root key on the same terms.
    pub(crate) fn host(&self, state_directory: &Path) -> HostConfig {
        let Self { module, token, pin_file, folders, network, environment, .. } = self;
        host(state_directory, (module, token), pin_file, folders, *network, environment)
    }
}

fn host(
    state_directory: &Path,
    (module, token): (&Path, &TokenConfig),
    pin_file: &Path,
    folders: &[AbsolutePath],
    network: bool,
    environment: &BTreeMap<String, String>,
) -> HostConfig {
    let token = match token {
        TokenConfig::Label(label) => TokenSelector::Label(label.clone()),
        TokenConfig::Serial(serial) => TokenSelector::Serial(serial.clone()),
    };
    HostConfig {
        module: module.to_owned(),
        token,
        pin_file: pin_file.to_owned(),
        guard_folder: guard_folder(state_directory),
        folders: folders.iter().map(|folder| folder.0.clone()).collect(),
        network,
        environment: environment.clone(),
    }
}

/// Where it is remembered which PINs were tried. No provider has such a name: hosts of modules can write there.
pub(crate) fn guard_folder(state_directory: &Path) -> PathBuf {
    state_directory.join(".pkcs11")
}

impl RemovedPkcs11Config {
    pub(super) fn identities(&self) -> Vec<Identity> {
        identities(&self.keys)
    }
}

fn identities(keys: &TokenKeys) -> Vec<Identity> {
    let identity = |key: &Parsed<KeyId>| Identity {
        key: LineagePrefix::exactly(&key.0.0.lineage()),
        field: "keys",
        line: key.line(),
    };
    keys.iter().map(identity).collect()
}

impl TokenKeys {
    /// In the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &Parsed<KeyId>> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl PartialEq for TokenKeys {
    fn eq(&self, other: &Self) -> bool {
        let ids = |keys: &Self| keys.iter().map(|key| key.0.0.clone()).collect::<BTreeSet<_>>();
        ids(self) == ids(other)
    }
}

impl Eq for TokenKeys {}

impl<'de> Deserialize<'de> for TokenKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = crate::config::at_least_one(deserializer)?.into_iter();
        let first = keys.next().ok_or_else(|| D::Error::custom("the list is empty"))?;
        Ok(Self { first, more: keys.collect() })
    }
}

impl Default for Mechanism {
    fn default() -> Self {
        Self(Wrapping::AesGcm)
    }
}

impl FromStr for Mechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "aes-gcm" => Ok(Self(Wrapping::AesGcm)),
            "aes-kwp" => Ok(Self(Wrapping::AesKwp)),
            "rsa-oaep" => Ok(Self(Wrapping::RsaOaep)),
            _ => Err(format!("found {text:?}; accepted are aes-gcm, aes-kwp and rsa-oaep")),
        }
    }
}

impl FromStr for KeyId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: pkcs11::CkaIdError| error.to_string())
    }
}

impl JsonSchema for Mechanism {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Mechanism".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"oneOf": [{"const": "aes-gcm"}, {"const": "aes-kwp"}, {"const": "rsa-oaep"}]})
    }
}

impl JsonSchema for KeyId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KeyId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "pattern": "^([0-9a-f]{2}){16,64}$"})
    }
}
