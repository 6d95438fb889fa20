//! A root key in the Transit engine of OpenBao or Vault.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use casemate_daemon::confine::Folders;
use casemate_keys::{Algorithm, LineagePrefix};
use casemate_keyservice::http::{Address, ClientCertificate, Tls};
use casemate_keyservice::transit::{self, Auth, RoleId, Selection, TransitKey};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{Identity, VersionSelection};
use crate::config::{AbsolutePath, Parsed};

/// A key in the Transit engine of OpenBao or Vault.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TransitConfig {
    /// Where the service answers: `https://HOST:PORT`, or `http://127.0.0.1:PORT` if it is on this machine. Several are
    /// those of one cluster: the one that answered last is asked first.
    #[serde(deserialize_with = "crate::config::at_least_one")]
    #[schemars(length(min = 1))]
    pub addresses: Vec<Parsed<AddressText>>,
    /// The namespace of the engine, if it is not the root namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Where the engine is mounted; `transit` if left out.
    #[serde(default = "default_mount")]
    pub mount: String,
    /// The name of the key.
    pub key: Parsed<Text>,
    /// How to log in.
    pub auth: AuthConfig,
    /// The namespace to log in to, if it is not the engine's; `""` is the root namespace.
    #[serde(default)]
    pub auth_namespace: Option<String>,
    /// How connections are protected.
    #[serde(default)]
    pub tls: TlsConfig,
}

/// How to log in. Every file is read at each login, so that what is in it can be replaced at any time.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum AuthConfig {
    /// A token that somebody else keeps fresh in a file.
    #[serde(rename_all = "camelCase")]
    TokenFile {
        /// The file.
        path: AbsolutePath,
    },
    /// A role id and a secret id.
    #[serde(rename_all = "camelCase")]
    AppRole {
        /// Where the method is mounted; `approle` if left out.
        #[serde(default = "default_approle")]
        mount: String,
        /// The role id. Either this or `roleIdFile`.
        #[serde(default)]
        #[schemars(with = "String")]
        role_id: Option<String>,
        /// A file that holds the role id.
        #[serde(default)]
        #[schemars(with = "AbsolutePath")]
        role_id_file: Option<AbsolutePath>,
        /// The file that holds the secret id.
        secret_id_file: AbsolutePath,
        /// Whether `secretIdFile` holds a token that wraps the secret id and opens once.
        #[serde(default)]
        wrapped: bool,
    },
    /// A JSON web token that somebody else keeps fresh in a file.
    #[serde(rename_all = "camelCase")]
    Jwt {
        /// Where the method is mounted; `jwt` if left out.
        #[serde(default = "default_jwt")]
        mount: String,
        /// The role to log in to.
        role: String,
        /// The file.
        jwt_file: AbsolutePath,
    },
    /// The token of a service account.
    #[serde(rename_all = "camelCase")]
    Kubernetes {
        /// Where the method is mounted; `kubernetes` if left out.
        #[serde(default = "default_kubernetes")]
        mount: String,
        /// The role to log in to.
        role: String,
        /// The file.
        token_file: AbsolutePath,
    },
    /// The client certificate of `tls`.
    #[serde(rename_all = "camelCase")]
    Certificate {
        /// Where the method is mounted; `cert` if left out.
        #[serde(default = "default_cert")]
        mount: String,
        /// The role to log in to; the service tries all if left out.
        #[serde(default)]
        #[schemars(with = "String")]
        role: Option<String>,
    },
}

/// How connections to a key service are protected. Files are read again when they change.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file with the authorities that are trusted, and no others; those of the system if left out.
    #[serde(default)]
    #[schemars(with = "AbsolutePath")]
    pub ca_file: Option<AbsolutePath>,
    /// The name in the server's certificate, if it is not the host in the address.
    #[serde(default)]
    #[schemars(with = "String")]
    pub server_name: Option<String>,
    /// PEM file with a certificate of ours.
    #[serde(default)]
    #[schemars(with = "AbsolutePath")]
    pub client_certificate_file: Option<AbsolutePath>,
    /// PEM file with its private key.
    #[serde(default)]
    #[schemars(with = "AbsolutePath")]
    pub client_key_file: Option<AbsolutePath>,
}

/// A key in Transit that is not read any more.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovedTransitConfig {
    /// Its namespace, if it was not in the root namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Where the engine is mounted; `transit` if left out.
    #[serde(default = "default_mount")]
    pub mount: String,
    /// Its name.
    pub key: Parsed<Text>,
}

/// Where a key service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressText(Address);

/// A text, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct Text(String);

impl TransitConfig {
    pub(super) const ALGORITHM: Algorithm = Algorithm::TRANSIT;

    pub(super) fn config(&self, version: VersionSelection) -> transit::TransitConfig {
        let selection = match version {
            VersionSelection::Pinned(number) => Selection::Pinned(number),
            // A label is refused before.
            VersionSelection::Latest | VersionSelection::Label => Selection::Latest,
        };
        transit::TransitConfig {
            addresses: self.addresses.iter().map(|address| address.0.0.clone()).collect(),
            tls: self.tls.tls(),
            namespace: self.namespace.clone(),
            mount: self.mount.clone(),
            key: self.key.0.0.clone(),
            selection,
            auth: self.auth.auth(),
            auth_namespace: self.auth_namespace.clone(),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        identity(self.namespace.as_deref(), &self.mount, &self.key)
    }

    pub(super) fn check(&self, version: VersionSelection) -> Result<(), (u64, &'static str, String)> {
        let unfit = |field, message: String| Err((self.key.line(), field, message));
        match (&self.tls.client_certificate_file, &self.tls.client_key_file) {
            (Some(_), None) => {
                return unfit(
                    "clientKeyFile",
                    ": a client certificate needs its key: add clientKeyFile".into(),
                );
            }
            (None, Some(_)) => {
                return unfit(
                    "clientCertificateFile",
                    ": a client key needs its certificate: add clientCertificateFile".into(),
                );
            }
            _ => {}
        }
        if let AuthConfig::AppRole { role_id, role_id_file, .. } = &self.auth
            && role_id.is_some() == role_id_file.is_some()
        {
            return unfit("auth", ": an AppRole has either roleId or roleIdFile".into());
        }
        match TransitKey::new(self.config(version)) {
            Ok(_) => Ok(()),
            Err(error) => unfit(error.field, format!(": {:?}: {}", error.found, error.reason)),
        }
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls.tls();
        let auth = self.auth.auth();
        auth.files().into_iter().chain(tls.files()).map(PathBuf::from).collect()
    }

    /// Secret ids, tokens, and the key of our certificate.
    pub(super) fn credentials(&self) -> Vec<PathBuf> {
        let auth = self.auth.auth();
        let key = self.tls.client_key_file.iter().map(|file| file.0.clone());
        auth.files().into_iter().map(PathBuf::from).chain(key).collect()
    }

    /// Ports, and what is read to find hosts and to trust them.
    pub(super) fn needs(&self, folders: Folders) -> Folders {
        let mut folders = folders;
        for AddressText(address) in self.addresses.iter().map(|address| &address.0) {
            folders = folders.connect(address.port());
            if address.is_named() {
                folders = folders.look_up_names();
            }
            if address.is_protected() && self.tls.ca_file.is_none() {
                folders = AUTHORITIES.into_iter().fold(folders, Folders::read);
            }
        }
        folders
    }
}

/// Where systems keep the authorities that they trust.
const AUTHORITIES: [&str; 4] =
    ["/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"];

impl AuthConfig {
    pub(super) fn opens_once(&self) -> bool {
        matches!(self, Self::AppRole { wrapped: true, .. })
    }

    pub(super) fn locks_out(&self) -> bool {
        matches!(self, Self::AppRole { .. })
    }

    fn auth(&self) -> Auth {
        let path = |path: &AbsolutePath| path.0.clone();
        match self {
            Self::TokenFile { path } => Auth::TokenFile { path: path.0.clone() },
            Self::AppRole { mount, role_id, role_id_file, secret_id_file, wrapped } => Auth::AppRole {
                mount: mount.clone(),
                role_id: match role_id_file {
                    Some(file) => RoleId::File(path(file)),
                    None => RoleId::Text(role_id.clone().unwrap_or_default()),
                },
                secret_id_file: path(secret_id_file),
                wrapped: *wrapped,
            },
            Self::Jwt { mount, role, jwt_file } => {
                Auth::Jwt { mount: mount.clone(), role: role.clone(), jwt_file: path(jwt_file) }
            }
            Self::Kubernetes { mount, role, token_file } => {
                Auth::Kubernetes { mount: mount.clone(), role: role.clone(), token_file: path(token_file) }
            }
            Self::Certificate { mount, role } => {
                Auth::Certificate { mount: mount.clone(), role: role.clone() }
            }
        }
    }
}

impl TlsConfig {
    fn tls(&self) -> Tls {
        let client = self.client_certificate_file.as_ref().zip(self.client_key_file.as_ref());
        Tls {
            ca_file: self.ca_file.as_ref().map(|file| file.0.clone()),
            server_name: self.server_name.clone(),
            client: client.map(|(certificate, key)| ClientCertificate {
                cert_file: certificate.0.clone(),
                key_file: key.0.clone(),
            }),
        }
    }
}

impl RemovedTransitConfig {
    pub(super) fn identity(&self) -> Identity {
        identity(self.namespace.as_deref(), &self.mount, &self.key)
    }
}

fn identity(namespace: Option<&str>, mount: &str, key: &Parsed<Text>) -> Identity {
    let trimmed = |name: &str| name.trim_matches('/').to_owned();
    let namespace = namespace.map(trimmed).filter(|name| name != "root").unwrap_or_default();
    let fields = [namespace, trimmed(mount), key.0.0.clone()];
    let prefix = LineagePrefix::new("transit", fields).expect("any texts are fields of a lineage");
    Identity { key: prefix, field: "key", line: key.line() }
}

fn default_mount() -> String {
    "transit".into()
}

fn default_approle() -> String {
    "approle".into()
}

fn default_jwt() -> String {
    "jwt".into()
}

fn default_kubernetes() -> String {
    "kubernetes".into()
}

fn default_cert() -> String {
    "cert".into()
}

impl FromStr for AddressText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: casemate_keyservice::http::AddressError| error.to_string())
    }
}

impl JsonSchema for AddressText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "pattern": "^https?://"})
    }
}

impl FromStr for Text {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
