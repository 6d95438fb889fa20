//! A root key in a token, and one that signs, as the daemon sees them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use casemate_keys::origin::SignatureAlgorithm;
use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, Root, payload};
use zeroize::Zeroizing;

use super::client::{Host, Reply};
use super::frame::{Ask, Outcome};
use super::sign::Signing;
use super::{CkaId, HeldHosts, HostConfig, Launch, Patience, Pkcs11Config, Wrapping};
use crate::selection::Candidate;
use crate::{Answer, Class, Failure, RecordSigner, RootKey, lists_absent};

/// A root key in a token.
#[derive(Debug)]
pub struct Pkcs11Key {
    config: Pkcs11Config,
    prefix: LineagePrefix,
    host: Arc<Host>,
    /// Of `keys`, those that the token did not have when it was last observed.
    absent: Mutex<BTreeSet<CkaId>>,
}

impl Pkcs11Key {
    /// The key that `config` names. Nothing is started before it is asked something.
    pub fn new(config: Pkcs11Config, launcher: Arc<dyn Launch>) -> Self {
        Self::with_patience(config, launcher, Patience::default())
    }

    /// The same, with other bounds on how long the module may take.
    pub fn with_patience(config: Pkcs11Config, launcher: Arc<dyn Launch>, patience: Patience) -> Self {
        Self::on(Arc::new(Host::new(launcher, patience)), config)
    }

    /// The same, on the host that it has already, under another configuration, if it has one.
    pub fn sharing(config: Pkcs11Config, launcher: Arc<dyn Launch>, hosts: &HeldHosts) -> Self {
        Self::on(hosts.host(&config.host, config.keys.clone(), launcher), config)
    }

    fn on(host: Arc<Host>, config: Pkcs11Config) -> Self {
        Self { prefix: config.prefix(), config, host, absent: Mutex::default() }
    }

    /// The listed key of `root`, and how the root says that it wraps.
    fn key(&self, root: &Root) -> Result<(CkaId, Wrapping), Failure> {
        let key = self.config.keys.iter().find(|key| key.lineage() == root.lineage);
        let key = key.ok_or_else(|| {
            let what = format!("{} is not one of the keys of {}", root.lineage, self.prefix);
            Failure::new(Class::Refused, what, "list its id in the configuration")
        })?;
        let wrapping = Wrapping::of(root.algorithm).ok_or_else(|| {
            let what = format!("a key in a token does not wrap with {}", root.algorithm);
            Failure::new(Class::Refused, what, "correct the algorithms of this key in the configuration")
        })?;
        Ok((key.clone(), wrapping))
    }

    /// Said once, until others are.
    fn note_absent(&self, absent: BTreeSet<CkaId>) {
        let mut known = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        if !absent.is_empty() && *known != absent {
            let ids: Vec<String> = absent.iter().map(ToString::to_string).collect();
            tracing::warn!("root key {}: {}", self.prefix, lists_absent(&ids));
        }
        *known = absent;
    }

    /// A key that is missing on a token that is gone is not missing: whoever looks for all keys sees that.
    async fn present(&self, answered: Result<Reply, Failure>) -> Result<Reply, Failure> {
        match answered {
            Err(failure) if failure.missing.is_some() => match self.observe().await {
                Err(gone) if gone.class.could_not_be_asked() => Err(gone),
                _ => Err(failure),
            },
            answered => answered,
        }
    }
}

/// A key in a token that signs records.
#[derive(Debug)]
pub struct Pkcs11Signer {
    key: CkaId,
    lineage: Lineage,
    algorithm: SignatureAlgorithm,
    host: Arc<Host>,
}

impl Pkcs11Signer {
    /// The key `key`: by CKA_ID for [`SignatureAlgorithm::EcdsaP256`], by its public half for RSA.
    pub fn new(
        key: CkaId,
        algorithm: SignatureAlgorithm,
        launcher: Arc<dyn Launch>,
        patience: Patience,
    ) -> Self {
        let host = Arc::new(Host::new(launcher, patience));
        Self { lineage: key.lineage(), key, algorithm, host }
    }

    /// The same, as [`Pkcs11Key::sharing`].
    pub fn sharing(
        key: CkaId,
        algorithm: SignatureAlgorithm,
        config: &HostConfig,
        launcher: Arc<dyn Launch>,
        hosts: &HeldHosts,
    ) -> Self {
        let host = hosts.host(config, [key.clone()].into(), launcher);
        Self { lineage: key.lineage(), key, algorithm, host }
    }
}

impl RecordSigner for Pkcs11Signer {
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    fn sign<'a>(&'a self, message: &'a [u8]) -> Answer<'a, Vec<u8>> {
        Box::pin(async move {
            let signing = Signing::of(self.algorithm).ok_or_else(|| {
                let what = format!("a key in a token does not sign by {:?}", self.algorithm);
                Failure::new(Class::Refused, what, "use ECDSA on P-256 or RSA-PSS with 3072 bits")
            })?;
            let (_, signature) =
                call(&self.host, Ask::Sign { key: self.key.clone(), signing }, message).await?;
            Ok(signature.to_vec())
        })
    }
}

async fn call(host: &Host, ask: Ask, bytes: &[u8]) -> Result<Reply, Failure> {
    let (outcome, bytes) = host.call(&ask, bytes).await?;
    match outcome {
        Outcome::Failed { class, what, remedy, missing } => {
            let missing = missing.map(|key| key.lineage());
            Err(Failure { missing, ..Failure::new(class, what, remedy) })
        }
        outcome => Ok((outcome, bytes)),
    }
}

impl RootKey for Pkcs11Key {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(async {
            let Pkcs11Config { wrapping, keys, writes, .. } = &self.config;
            let ask = Ask::Observe { wrapping: *wrapping, keys: keys.clone(), writes: writes.clone() };
            match call(&self.host, ask, &[]).await? {
                (Outcome::Writes { key, absent }, _) if keys.contains(&key) && absent.is_subset(keys) => {
                    self.note_absent(absent);
                    Ok(Root { lineage: key.lineage(), algorithm: wrapping.algorithm() })
                }
                _ => Err(senseless()),
            }
        })
    }

    fn absent(&self) -> Vec<String> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner).iter().map(ToString::to_string).collect()
    }

    fn versions(&self) -> Answer<'_, Vec<Candidate>> {
        Box::pin(async {
            let ask = Ask::Versions { wrapping: self.config.wrapping, keys: self.config.keys.clone() };
            match call(&self.host, ask, &[]).await? {
                (Outcome::Versions(candidates), _) => Ok(candidates),
                _ => Err(senseless()),
            }
        })
    }

    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        Box::pin(async move {
            let (key, wrapping) = self.key(root)?;
            let ask = Ask::Wrap { wrapping, key, associated: payload::associated_data(core) };
            let (_, wrap) = self.present(call(&self.host, ask, payload).await).await?;
            if wrap.is_empty() { Err(senseless()) } else { Ok(wrap.to_vec()) }
        })
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(async move {
            let (key, wrapping) = self.key(root)?;
            let associated = payload::associated_data(core);
            let ask = Ask::Unwrap { wrapping, key, associated, thorough: true };
            let (_, payload) = self.present(call(&self.host, ask, wrap).await).await?;
            Ok(payload)
        })
    }

    fn binds_associated_data(&self, root: &Root) -> bool {
        root.algorithm == Algorithm::PKCS11_AES256_GCM
    }
}

fn senseless() -> Failure {
    let what = "the process that holds the PKCS#11 module answers another question";
    Failure::new(Class::Corrupt, what, "this is a fault of the program")
}
