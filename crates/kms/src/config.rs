//! The configuration: one YAML file, parsed once into final types.

use std::path::{Path, PathBuf};

use casemate_keys::{AcceptedCluster, ClusterId, ReadPolicy};
use casemate_keyservice::RootKey;
use casemate_keyservice::pkcs11::HostConfig;
use casemate_kms_state::outage::Rules;
use casemate_recipients::Recipient;
use schemars::{JsonSchema, Schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::key_services::{KeyServices, NotHere};
use crate::socket::{Admission, AllowedPeers, FileAccess};

mod audit;
mod checks;
mod error;
mod folders;
mod misplaced;
mod origin;
mod outage;
mod parsed;
mod root_keys;
mod sealed_cache;
mod source;
mod values;
mod writers;

pub use audit::{AuditConfig, CheckpointKeyConfig, Keep, MaxBytes, OnFailure};
pub use error::ConfigError;
pub use origin::{PinnedSignerConfig, PublicKey, SignerConfig};
pub use outage::{OnRefusedName, OutageConfig, PolicyName, Time};
pub use parsed::Parsed;
pub use root_keys::{
    AuthConfig, FileConfig, Mechanism, Pkcs11Config, Place, ReadKeyConfig, RemovedFileConfig,
    RemovedKeyConfig, RemovedPkcs11Config, RemovedTransitConfig, TlsConfig, TokenConfig, TokenKeys,
    TokenSignerConfig, TransitConfig, VersionSelection, WriteKeyConfig, WritesConfig,
};
pub use sealed_cache::SealedCacheConfig;
pub use source::Source;
pub use values::{AbsolutePath, ApiVersion, Endpoint, Id, Kind, MaxConnections, Mode, Name, Until};

/// The accepted `apiVersion`.
pub const API_VERSION: &str = "casemate.dev/v1alpha1";
/// The accepted `kind`.
pub const KIND: &str = "KmsConfiguration";
/// The form of a cluster id, for the schema.
const CLUSTER_ID: &str = "^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$";
/// The form of an age recipient, for the schema.
const AGE_RECIPIENT: &str = "^age1[02-9ac-hj-np-z]{58}$";
/// The largest file that is read.
const MAX_LEN: u64 = 1024 * 1024;

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// `casemate.dev/v1alpha1`.
    pub api_version: Parsed<ApiVersion>,
    /// `KmsConfiguration`.
    pub kind: Parsed<Kind>,
    /// The name of the cluster, the same on all its nodes. Data of another cluster is refused.
    #[schemars(with = "String", regex(pattern = CLUSTER_ID))]
    pub cluster_id: Parsed<ClusterId>,
    /// Folder for what outlives a restart: the current record and the ledger of each provider. Neither is secret.
    #[serde(default = "default_state_directory")]
    pub state_directory: Parsed<AbsolutePath>,
    /// A second socket, where people and programs look at what goes on; without it there is none.
    #[serde(default)]
    #[schemars(with = "AdminConfig")]
    pub admin: Option<AdminConfig>,
    /// A file with one line a call; without it there is none.
    #[serde(default)]
    #[schemars(with = "AuditConfig")]
    pub audit: Option<AuditConfig>,
    /// Names of providers that were served before and are not any more: without it, a configuration that lacks one is
    /// not taken over by a running process. Nothing can be read with a provider that is gone.
    #[serde(default)]
    pub removed_providers: Vec<Parsed<Name>>,
    /// KMS providers to serve, each on its own socket.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(length(min = 1))]
    pub providers: Vec<ProviderConfig>,
    /// Whether the file says where it ends, by a last line `...`: YAML's own mark, which half a file does not have.
    #[serde(skip)]
    pub has_end: bool,
}

/// The admin socket: `/livez`, `/readyz`, `/metrics` and `/status` over HTTP. Who connects sees names of keys and
/// counts, and can change nothing but when root keys are looked at.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdminConfig {
    /// Where it listens: `unix:///path/to.sock`, or `unix:///@name`, which needs `allowedPeers`.
    pub endpoint: Parsed<Endpoint>,
    /// Permissions of the socket, octal in quotes; `"0600"` if left out.
    #[serde(default)]
    pub socket_mode: Parsed<Mode>,
    /// Number of the user that owns the socket.
    pub socket_owner: Option<Id>,
    /// Number of the socket's group.
    pub socket_group: Option<Id>,
    /// Who is served; whoever else connects is refused.
    #[serde(default)]
    #[schemars(with = "PeersConfig")]
    pub allowed_peers: Option<PeersConfig>,
}

/// Users and groups whose connections are served, by number. One that is of either is: as the system knows the
/// process that connects (`SO_PEERCRED`), so supplementary groups do not count.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeersConfig {
    /// Users: `0` is root, as which kubeadm's kube-apiserver runs.
    #[serde(default)]
    pub uids: Vec<Id>,
    /// Groups.
    #[serde(default)]
    pub gids: Vec<Id>,
}

/// One provider: one socket, one key id at a time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderConfig {
    /// Its name in logs and in the state directory; best the one in the EncryptionConfiguration.
    pub name: Parsed<Name>,
    /// Where kube-apiserver connects, as in the EncryptionConfiguration: `unix:///path/to.sock`, or `unix:///@name`
    /// for an abstract socket, which has no mode and therefore needs `allowedPeers`.
    pub endpoint: Parsed<Endpoint>,
    /// Permissions of the socket, octal in quotes; `"0600"` if left out.
    #[serde(default)]
    pub socket_mode: Parsed<Mode>,
    /// Number of the user that owns the socket, if it is not the one of this program; only root can give it away.
    pub socket_owner: Option<Id>,
    /// Number of the socket's group, if it is not the one of this program.
    pub socket_group: Option<Id>,
    /// Who is served; whoever else connects is refused. Without it, whom the mode lets connect.
    #[serde(default)]
    #[schemars(with = "PeersConfig")]
    pub allowed_peers: Option<PeersConfig>,
    /// Connections at a time; those beyond are refused. A kube-apiserver has one or two.
    #[serde(default)]
    pub max_connections: MaxConnections,
    /// Raised, on all nodes, to make a used write policy a new one or to force new data keys.
    #[serde(default)]
    pub epoch: u64,
    /// What it does while a root key that writes is out.
    #[serde(default)]
    pub outage: OutageConfig,
    /// Once a root key that writes says no for good: `keepReads` goes on to read with the local KEKs in memory, `wipe`
    /// wipes them.
    #[serde(default)]
    pub on_refused: Parsed<OnRefusedName>,
    /// Opened local KEKs on disk, sealed; without it they are in memory alone.
    #[serde(default)]
    #[schemars(with = "SealedCacheConfig")]
    pub sealed_cache: Option<SealedCacheConfig>,
    /// Root keys that new data is wrapped under: all of them, each alone opens it.
    #[serde(deserialize_with = "one_to_four")]
    #[schemars(length(min = 1, max = 4))]
    pub root_keys: Vec<WriteKeyConfig>,
    /// Root keys that are only read with.
    #[serde(default)]
    pub read_keys: Vec<ReadKeyConfig>,
    /// Root keys that were read with before and are not any more: without it, a configuration that lacks one is not
    /// taken over by a running process. What is wrapped under them alone can't be read any more.
    #[serde(default)]
    pub removed_read_keys: Vec<RemovedKeyConfig>,
    /// What signs records: needed by root keys that wrap by RSA, for a wrap under a public key proves nothing about who made
    /// it. To add it, or to change it, is a new key id.
    #[serde(default)]
    #[schemars(with = "SignerConfig")]
    pub signer: Option<SignerConfig>,
    /// Other keys whose signatures are believed: who signed before, and who signs on nodes that have changed over.
    #[serde(default)]
    pub signers: Vec<PinnedSignerConfig>,
    /// Whether what is wrapped by RSA is read although nothing proves who wrote it: then whoever writes etcd can plant
    /// data. For the time that it takes to rewrite what has no signature.
    #[serde(default)]
    pub accept_unproven_origin: bool,
    /// Offline public keys under which every local KEK is wrapped too (`casemate recovery new`): who has one of their
    /// identities can read what is written, without any key service.
    #[serde(default, deserialize_with = "at_most_four")]
    #[schemars(length(max = 4))]
    pub recovery_recipients: Vec<RecoveryRecipientConfig>,
    /// Other clusters whose data is read until a date, for moving.
    #[serde(default)]
    pub also_accept: Vec<AlsoAccept>,
}

/// A recovery recipient.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecoveryRecipientConfig {
    /// For people: best the place where its identity is kept.
    pub name: Parsed<Name>,
    /// An age recipient of kind X25519, as `casemate recovery new` prints it. Never an identity.
    #[schemars(with = "String", regex(pattern = AGE_RECIPIENT))]
    pub age: Parsed<Recipient>,
}

/// Another cluster whose data is read.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlsoAccept {
    /// Its name.
    #[schemars(with = "String", regex(pattern = CLUSTER_ID))]
    pub cluster_id: Parsed<ClusterId>,
    /// Until when, RFC 3339.
    pub until: Parsed<Until>,
}

impl Config {
    /// Reads and parses the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line, what was found and what is accepted.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Source::read(path)?.config()
    }

    /// Parses the text of a configuration; `path` is for errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_anchors: 0,
                max_aliases: 0,
                max_depth: 16,
                max_documents: 1,
                max_nodes: 10_000,
                max_total_scalar_bytes: MAX_LEN as usize,
            },
            with_snippet: false,
        };
        let mut config: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| ConfigError::of_yaml(path, text, &error))?;
        config.has_end = text.ends_with("\n...\n");
        config.check(path)?;
        Ok(config)
    }

    /// The modules that are to be loaded, each in a process of its own.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostConfig> {
        let places = self.providers.iter().flat_map(ProviderConfig::places);
        let signers = self.providers.iter().filter_map(|provider| provider.signer.as_ref());
        let signers = signers.map(|signer| signer.host(&self.state_directory));
        places.filter_map(|place| place.host(&self.state_directory)).chain(signers)
    }

    /// Whether one of its root keys is in a key service.
    pub(crate) fn asks_key_services(&self) -> bool {
        self.providers.iter().flat_map(ProviderConfig::places).any(Place::is_service)
    }

    /// Where it is remembered which PINs of tokens were refused, if there are tokens.
    pub fn guard_folder(&self) -> Option<PathBuf> {
        self.hosts().next().map(|_| root_keys::guard_folder(&self.state_directory))
    }

    /// The JSON Schema of the file, for editors and CI.
    pub fn schema() -> Schema {
        schemars::schema_for!(Self)
    }
}

impl ProviderConfig {
    /// The root keys that write, in the file's order.
    ///
    /// # Errors
    /// [`NotHere`], for the first that can't be asked from here.
    pub fn write_keys(&self, services: &KeyServices, state: &Path) -> Result<Vec<Box<dyn RootKey>>, NotHere> {
        self.root_keys.iter().map(|key| key.place().key(Some(key.version.0), services, state)).collect()
    }

    /// The root keys that only read, in the file's order.
    ///
    /// # Errors
    /// As [`ProviderConfig::write_keys`].
    pub fn read_only_keys(
        &self,
        services: &KeyServices,
        state: &Path,
    ) -> Result<Vec<Box<dyn RootKey>>, NotHere> {
        self.read_keys.iter().map(|key| key.place().key(None, services, state)).collect()
    }

    /// Where its root keys are: those that write, then those that only read.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place<'_>> {
        let write = self.root_keys.iter().map(WriteKeyConfig::place);
        write.chain(self.read_keys.iter().map(ReadKeyConfig::place))
    }

    /// What it does while a root key that writes is out.
    pub fn outage(&self) -> Rules {
        Rules { policy: self.outage.policy(), on_refused: self.on_refused.0.0 }
    }

    /// Who may connect to its socket.
    pub fn admission(&self) -> Admission {
        Admission {
            access: file_access(self.socket_mode.0, self.socket_owner, self.socket_group),
            peers: self.allowed_peers.as_ref().map(PeersConfig::allowed),
            max_connections: self.max_connections.0,
        }
    }

    /// Whether both are the same, whoever comes in and where.
    pub fn is_same_behind_the_door(&self, other: &Self) -> bool {
        // All fields are named, so that none that is new is forgotten here.
        let Self {
            name,
            endpoint: _,
            socket_mode: _,
            socket_owner: _,
            socket_group: _,
            allowed_peers: _,
            max_connections: _,
            epoch,
            root_keys,
            read_keys,
            // What is not there reads nothing, whether it is said or not.
            removed_read_keys: _,
            signer,
            signers,
            accept_unproven_origin,
            recovery_recipients,
            also_accept,
            outage: _,
            on_refused: _,
            // It needs a restart.
            sealed_cache: _,
        } = self;
        let rules = self.outage();
        let origin = (signer, signers, accept_unproven_origin);
        if origin != (&other.signer, &other.signers, &other.accept_unproven_origin) {
            return false;
        }
        (name, epoch, root_keys, read_keys, recovery_recipients, also_accept, rules)
            == (
                &other.name,
                &other.epoch,
                &other.root_keys,
                &other.read_keys,
                &other.recovery_recipients,
                &other.also_accept,
                other.outage(),
            )
    }

    /// What people call its root keys: those that write, then those that only read.
    pub fn key_names(&self) -> Vec<String> {
        let write = self.root_keys.iter().map(|key| key.name.to_string());
        write.chain(self.read_keys.iter().map(|key| key.name.to_string())).collect()
    }

    /// Whom every local KEK is wrapped for too, in the file's order.
    pub fn recipients(&self) -> Vec<Recipient> {
        self.recovery_recipients.iter().map(|one| one.age.0.clone()).collect()
    }

    /// What may be read of data of `cluster` and of those in `alsoAccept`.
    pub fn read_policy(&self, cluster: &ClusterId) -> ReadPolicy {
        let write = self.root_keys.iter().flat_map(|key| key.place().rules(key.min_read_version));
        let read = self.read_keys.iter().flat_map(|key| key.place().rules(key.min_read_version));
        let also_accept = self.also_accept.iter().map(|other| AcceptedCluster {
            cluster: other.cluster_id.0.clone(),
            until: u64::try_from(other.until.0.0.as_second()).unwrap_or(0),
        });
        ReadPolicy {
            cluster: cluster.clone(),
            also_accept: also_accept.collect(),
            rules: write.chain(read).collect(),
            origin: self.origin(),
        }
    }
}

impl AdminConfig {
    /// Who may connect to it.
    pub fn admission(&self) -> Admission {
        Admission {
            access: file_access(self.socket_mode.0, self.socket_owner, self.socket_group),
            peers: self.allowed_peers.as_ref().map(PeersConfig::allowed),
            ..Admission::default()
        }
    }
}

impl PeersConfig {
    fn allowed(&self) -> AllowedPeers {
        let numbers = |ids: &[Id]| ids.iter().map(|id| id.0).collect();
        AllowedPeers { uids: numbers(&self.uids), gids: numbers(&self.gids) }
    }
}

fn file_access(mode: Mode, owner: Option<Id>, group: Option<Id>) -> FileAccess {
    FileAccess { mode, owner: owner.map(|id| id.0), group: group.map(|id| id.0) }
}

fn default_state_directory() -> Parsed<AbsolutePath> {
    Parsed::unwritten(AbsolutePath("/var/lib/casemate-kms".into()))
}

pub(crate) fn at_least_one<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let items = Vec::deserialize(deserializer)?;
    if items.is_empty() {
        Err(D::Error::custom("the list is empty; at least one item is needed"))
    } else {
        Ok(items)
    }
}

fn one_to_four<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    at_least_one(deserializer).and_then(no_more_than_four)
}

fn at_most_four<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Vec::deserialize(deserializer).and_then(no_more_than_four)
}

fn no_more_than_four<T, E: serde::de::Error>(items: Vec<T>) -> Result<Vec<T>, E> {
    const MOST: usize = casemate_keys::MAX_WRAPS_OF_A_KIND;
    if items.len() > MOST {
        Err(E::custom(format!("the list has {} items; at most {MOST} are accepted", items.len())))
    } else {
        Ok(items)
    }
}

#[cfg(test)]
mod tests;
