//! What root keys share: the processes that hold foreign code, which have to be there before they can be asked, and
//! logins.

use std::io;
use std::path::Path;
use std::sync::Arc;

use casemate_keys::origin::SignatureAlgorithm;
use casemate_keyservice::pkcs11::{CkaId, HeldHosts, HostConfig, Pkcs11Config, Pkcs11Key, Pkcs11Signer};
use casemate_keyservice::transit;

use crate::config::Config;
use crate::pkcs11::{Hosts, NeedsRestart};

/// Starts what root keys need, before the process confines itself. Cheap to share.
#[derive(Clone, Debug, Default)]
pub struct KeyServices {
    hosts: Option<Arc<Hosts>>,
    /// Those of the root keys of a changed configuration too.
    sessions: transit::Sessions,
    held: HeldHosts,
}

/// A root key that can't be asked from here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotHere {
    /// Its module is none of those of the start.
    #[error(transparent)]
    Module(#[from] NeedsRestart),
    /// What is configured can't be.
    #[error(transparent)]
    Transit(#[from] transit::ConfigError),
}

impl KeyServices {
    /// What `config` needs, by processes of `program`: the path of a `casemate-kms`. From a thread that lives as long as
    /// the process does.
    ///
    /// # Errors
    /// As of starting a program.
    pub fn start(config: &Config, program: &Path) -> io::Result<Self> {
        let hosts: Vec<HostConfig> = config.hosts().collect();
        let hosts = if hosts.is_empty() { None } else { Some(Hosts::start(program, hosts)?) };
        Ok(Self { hosts, ..Self::default() })
    }

    /// For the root keys of this provider.
    #[must_use]
    pub(crate) fn of(&self, provider: &str) -> Self {
        Self { held: self.held.of(provider), ..self.clone() }
    }

    pub(crate) fn pkcs11(&self, config: Pkcs11Config) -> Result<Pkcs11Key, NeedsRestart> {
        let launcher = self.hosts.as_ref().ok_or(NeedsRestart)?.launcher(&config.host)?;
        Ok(Pkcs11Key::sharing(config, launcher, &self.held))
    }

    pub(crate) fn transit(
        &self,
        config: transit::TransitConfig,
    ) -> Result<transit::TransitKey, transit::ConfigError> {
        transit::TransitKey::sharing(config, &self.sessions)
    }

    /// See [`transit::Sessions::try_again`].
    pub(crate) fn try_again(&self) {
        self.sessions.try_again();
    }

    /// See [`transit::Sessions::log_out`]: for commands that end. A daemon keeps its tokens.
    pub async fn log_out(&self) {
        self.sessions.log_out().await;
    }

    pub(crate) fn signer(
        &self,
        host: &HostConfig,
        key: CkaId,
        algorithm: SignatureAlgorithm,
    ) -> Result<Pkcs11Signer, NeedsRestart> {
        let launcher = self.hosts.as_ref().ok_or(NeedsRestart)?.launcher(host)?;
        Ok(Pkcs11Signer::sharing(key, algorithm, host, launcher, &self.held))
    }
}
