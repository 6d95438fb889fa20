//! Encrypts objects anew, as a kube-apiserver with some configuration would.
use std::collections::BTreeMap;

use casemate_encryption_config::{EncryptionConfiguration, GroupResource, KmsV2, Provider};
use casemate_wire::kms_v2::EncryptResponse;
use casemate_wire::kms_v2::stored::{EncryptedDekSourceType, EncryptedObject, StoredValue};
use prost::bytes::Bytes;
use zeroize::Zeroizing;

use super::cipher;
use super::local::cipher_of;
use crate::classify::ObjectPath;
use crate::survey::Key;

/// Encrypts objects for their keys in etcd.
pub struct Sealer<'a> {
    config: Option<&'a EncryptionConfiguration>,
    sources: BTreeMap<String, NewSource>,
}

/// A seed, and what a plugin made of it.
pub struct NewSource {
    /// The seed in the clear.
    pub seed: Zeroizing<[u8; 32]>,
    /// What the plugin answered to Encrypt.
    pub sealed: EncryptResponse,
}

/// Why nothing is encrypted by a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It writes something through a plugin of KMS v1.
    #[error("it writes by kms:v1:{name}, and nothing is written by KMS v1 here: put another provider first")]
    KmsV1 {
        /// The plugin.
        name: String,
    },
    /// No key, or one of a length that its provider does not take here.
    #[error(
        "its first key of {provider} can't be written with: aescbc takes 16, 24 or 32 bytes, aesgcm here 16 or 32, secretbox 32"
    )]
    Local {
        /// The provider's field in the file.
        provider: &'static str,
    },
    /// Nobody asked the plugin for a DEK source.
    #[error("the plugin kms:v2:{name} was not asked")]
    NoSource {
        /// The plugin.
        name: String,
    },
}

impl<'a> Sealer<'a> {
    /// Leaves all in the clear.
    pub fn plain() -> Self {
        Self { config: None, sources: BTreeMap::new() }
    }

    /// Encrypts with the first provider that each object falls under.
    ///
    /// # Errors
    /// If one of them can't be written with.
    pub fn new(config: &'a EncryptionConfiguration) -> Result<Self, SealError> {
        for provider in config.entries.iter().filter_map(|entry| entry.providers.first()) {
            match provider {
                Provider::KmsV1(plugin) => return Err(SealError::KmsV1 { name: plugin.name.clone() }),
                Provider::Identity | Provider::KmsV2(_) => {}
                local => drop(seal_local(local, b"", b"")?),
            }
        }
        Ok(Self { config: Some(config), sources: BTreeMap::new() })
    }

    /// Plugins of KMS v2 that write something, each once: [`Self::give`] has to give each a DEK source.
    pub fn plugins(&self) -> Vec<&'a KmsV2> {
        let entries = self.config.into_iter().flat_map(|config| &config.entries);
        let mut plugins: Vec<&KmsV2> = Vec::new();
        for entry in entries {
            if let Some(Provider::KmsV2(plugin)) = entry.providers.first()
                && !plugins.iter().any(|known| known.name == plugin.name)
            {
                plugins.push(plugin);
            }
        }
        plugins
    }

    /// Gives a plugin the DEK source that everything will be under which it encrypts.
    pub fn give(&mut self, plugin: &str, source: NewSource) {
        self.sources.insert(plugin.to_owned(), source);
    }

    /// With which key an object is written under `path`, which is below `prefix`; `None` if it stays in the clear.
    pub fn writes(&self, prefix: &str, path: &[u8]) -> Option<Key> {
        let provider = self.provider(prefix, path)?;
        Some(match provider {
            Provider::KmsV2(plugin) => Key::KmsV2(plugin.name.clone()),
            local => Key::Local { cipher: cipher_of(local)?, name: local.local_keys().first()?.name.clone() },
        })
    }

    /// What etcd is to keep for `object` under `path`, which is below `prefix`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, prefix: &str, path: &[u8], object: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let value = match self.provider(prefix, path) {
            None => object.to_vec(),
            Some(Provider::KmsV2(plugin)) => {
                let source = self.sources.get(&plugin.name);
                let sealed = source.and_then(|source| source.seal(&plugin.name, path, object));
                sealed.ok_or_else(|| SealError::NoSource { name: plugin.name.clone() })?
            }
            Some(local) => seal_local(local, path, object)?,
        };
        Ok(Zeroizing::new(value))
    }

    /// `None` for what stays in the clear.
    fn provider(&self, prefix: &str, path: &[u8]) -> Option<&'a Provider> {
        // API servers keep a few things of their own beside objects: wildcards cover them, too.
        let (group, resource) = ObjectPath::parse(prefix, path)
            .map_or(("", ""), |path| (path.group.unwrap_or_default(), path.resource));
        let resource = GroupResource { group: group.to_owned(), resource: resource.to_owned() };
        let provider = self.config?.coverage(&resource).writer().provider;
        (*provider != Provider::Identity).then_some(provider)
    }
}

fn seal_local(provider: &Provider, path: &[u8], object: &[u8]) -> Result<Vec<u8>, SealError> {
    let sealed = provider.local_keys().first().zip(cipher_of(provider)).and_then(|(key, cipher)| {
        let sealed = cipher::seal(cipher, key.secret.expose(), path, object)?;
        Some([cipher.mark(), key.name.as_bytes(), b":", &sealed].concat())
    });
    sealed.ok_or(SealError::Local { provider: provider.field() })
}

impl NewSource {
    fn seal(&self, provider: &str, path: &[u8], object: &[u8]) -> Option<Vec<u8>> {
        let EncryptResponse { ciphertext, key_id, annotations } = &self.sealed;
        let object = EncryptedObject {
            encrypted_data: Bytes::from(cipher::seal_under_seed(&*self.seed, path, object)?),
            key_id: key_id.clone(),
            encrypted_dek_source: ciphertext.clone(),
            annotations: annotations.clone(),
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        Some(StoredValue { provider, object }.encode())
    }
}
