//! Which key, where, and who asks.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::http::{Address, Tls};

/// How long namespace, mount and name may be together: a lineage stands in every record.
const MAX_NAMES: usize = 256;

/// A key in Transit: which, where, and who asks.
#[derive(Clone, Debug)]
pub struct TransitConfig {
    /// Where the service answers. The one that answered last is asked first; the next one, if it does not.
    pub addresses: Vec<Address>,
    /// How the connections are protected.
    pub tls: Tls,
    /// The namespace of the mount; none is the root namespace.
    pub namespace: Option<String>,
    /// Where the engine is mounted, as `bao secrets list` shows it: `transit`.
    pub mount: String,
    /// The name of the key.
    pub key: String,
    /// Which version writes.
    pub selection: Selection,
    /// Who asks.
    pub auth: Auth,
    /// The namespace to log in to, if it is not that of the mount. The empty one is the root namespace.
    pub auth_namespace: Option<String>,
}

/// Which version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// The one that the service calls latest.
    Latest,
    /// This one, whatever the service says.
    Pinned(u32),
}

impl From<Selection> for crate::selection::Selection {
    fn from(selection: Selection) -> Self {
        match selection {
            Selection::Latest => Self::Latest,
            Selection::Pinned(number) => Self::Pinned(number.to_string()),
        }
    }
}

/// How to log in. Files are read at each login.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Auth {
    /// A token that somebody else puts into a file and replaces before it ends.
    TokenFile {
        /// The file with the token.
        path: PathBuf,
    },
    /// Role id and secret id.
    AppRole {
        /// Where the method is mounted: `approle`.
        mount: String,
        /// Who.
        role_id: RoleId,
        /// The file with the secret id, or with a token that wraps it.
        secret_id_file: PathBuf,
        /// Whether the file holds a response-wrapping token. It opens once: the secret id is then kept in memory, and
        /// a restarted process needs a new one.
        wrapped: bool,
    },
    /// A JSON web token that somebody else keeps fresh in a file.
    Jwt {
        /// Where the method is mounted: `jwt`.
        mount: String,
        /// The role to log in to.
        role: String,
        /// The file with the token.
        jwt_file: PathBuf,
    },
    /// The token of a service account.
    Kubernetes {
        /// Where the method is mounted: `kubernetes`.
        mount: String,
        /// The role to log in to.
        role: String,
        /// The file with the token, as the kubelet projects it.
        token_file: PathBuf,
    },
    /// The client certificate of the connection.
    Certificate {
        /// Where the method is mounted: `cert`.
        mount: String,
        /// The certificate role; without it the service tries all.
        role: Option<String>,
    },
}

/// An AppRole's role id.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum RoleId {
    /// In the configuration.
    Text(String),
    /// In a file.
    File(PathBuf),
}

impl fmt::Debug for RoleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// A configuration that can't be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {found:?}: {reason}")]
pub struct ConfigError {
    /// Which field of [`TransitConfig`].
    pub field: &'static str,
    /// What was found.
    pub found: String,
    /// What is wrong, and what is accepted.
    pub reason: String,
}

impl ConfigError {
    pub(super) fn new(field: &'static str, found: &str, reason: impl Into<String>) -> Self {
        Self { field, found: found.chars().take(200).collect(), reason: reason.into() }
    }
}

impl Auth {
    /// What it is called in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::TokenFile { .. } => "token file",
            Self::AppRole { .. } => "AppRole",
            Self::Jwt { .. } => "JWT",
            Self::Kubernetes { .. } => "Kubernetes",
            Self::Certificate { .. } => "certificate",
        }
    }

    /// Every file that is read to log in.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::TokenFile { path } => vec![path],
            Self::AppRole { role_id: RoleId::File(role_id), secret_id_file, .. } => {
                vec![role_id, secret_id_file]
            }
            Self::AppRole { secret_id_file, .. } => vec![secret_id_file],
            Self::Jwt { jwt_file, .. } => vec![jwt_file],
            Self::Kubernetes { token_file, .. } => vec![token_file],
            Self::Certificate { .. } => vec![],
        }
    }
}

impl TransitConfig {
    /// With names spelled in the one way that goes into lineages, if nothing is wrong with them.
    pub(super) fn checked(self) -> Result<Self, ConfigError> {
        let namespace = self.namespace.as_deref().map(|name| namespace("namespace", name)).transpose()?;
        let auth_namespace =
            self.auth_namespace.as_deref().map(|name| self::namespace("authNamespace", name)).transpose()?;
        let mount = path("mount", &self.mount)?;
        let key = path("key", &self.key)?;
        if key.contains('/') || key != self.key {
            return Err(ConfigError::new(
                "key",
                &self.key,
                "a key's name has no '/'; what is before it is the mount",
            ));
        }
        let length = namespace.as_ref().map_or(0, String::len) + mount.len() + key.len();
        if length > MAX_NAMES {
            let reason = format!(
                "namespace, mount and name have {length} characters, at most {MAX_NAMES} are accepted: they stand in \
                 every encrypted object"
            );
            return Err(ConfigError::new("key", &self.key, reason));
        }
        if self.addresses.is_empty() {
            return Err(ConfigError::new("addresses", "", "at least one address is needed"));
        }
        if let Some(name) = &self.tls.server_name
            && !is_host_name(name)
        {
            let reason = "it must be a host name of a certificate, not an IP address or URL";
            return Err(ConfigError::new("tls.serverName", name, reason));
        }
        if self.selection == Selection::Pinned(0) {
            return Err(ConfigError::new("version", "0", "versions count from 1"));
        }
        let mut auth = self.auth;
        if let Auth::AppRole { mount, .. }
        | Auth::Jwt { mount, .. }
        | Auth::Kubernetes { mount, .. }
        | Auth::Certificate { mount, .. } = &mut auth
        {
            let name = mount.strip_prefix("auth/").unwrap_or(mount);
            *mount = path("auth.mount", name)?;
        }
        if matches!(auth, Auth::Certificate { .. }) {
            if self.tls.client.is_none() {
                let reason = "to log in by certificate, `tls` must have a client certificate and its key";
                return Err(ConfigError::new("auth", "certificate", reason));
            }
            if let Some(address) = self.addresses.iter().find(|address| !address.is_protected()) {
                let reason = "to log in by certificate, every address must be https";
                return Err(ConfigError::new("addresses", &address.to_string(), reason));
            }
        }
        Ok(Self { namespace, auth_namespace, mount, key, auth, ..self })
    }
}

/// `root` and the empty one are the same.
fn namespace(field: &'static str, name: &str) -> Result<String, ConfigError> {
    match name.trim_matches('/') {
        "" | "root" => Ok(String::new()),
        _ => path(field, name),
    }
}

/// Without slashes at its ends, each segment a name.
fn path(field: &'static str, found: &str) -> Result<String, ConfigError> {
    let path = found.trim_matches('/');
    let is_name = |segment: &str| {
        !segment.is_empty()
            && !matches!(segment, "." | "..")
            && !segment.starts_with(' ')
            && !segment.ends_with(' ')
            && segment.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
    };
    if !path.split('/').all(is_name) {
        let reason = "it must be a name, or names joined by '/', of printable ASCII characters";
        return Err(ConfigError::new(field, found, reason));
    }
    Ok(path.to_owned())
}

fn is_host_name(name: &str) -> bool {
    name.len() <= 253
        && name.parse::<std::net::IpAddr>().is_err()
        // A URL takes a last label of digits for an IP address.
        && name.rsplit('.').next().is_some_and(|last| last.bytes().any(|b| b.is_ascii_alphabetic()))
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}
