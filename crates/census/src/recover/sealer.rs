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

/// Why an object was not encrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The configuration writes such objects through a plugin of KMS v1.
    #[error(
        "{resource}: the EncryptionConfiguration writes them by kms:v1:{name}, and nothing is written by KMS v1 here: put \
         another provider first"
    )]
    KmsV1 {
        /// Whose.
        resource: String,
        /// The plugin.
        name: String,
    },
    /// No key, or one of a length that its provider does not take.
    #[error(
        "{resource}: {provider} does not encrypt: its first key has no length that it takes, or there is no randomness"
    )]
    Local {
        /// Whose.
        resource: String,
        /// The provider's field in the file.
        provider: &'static str,
    },
    /// Nobody asked the plugin for a DEK source.
    #[error("{resource}: the plugin kms:v2:{name} was not asked")]
    NoSource {
        /// Whose.
        resource: String,
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
    pub fn new(config: &'a EncryptionConfiguration) -> Self {
        Self { config: Some(config), sources: BTreeMap::new() }
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

    /// What etcd is to keep for `object` under `path`, which is below `prefix`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, prefix: &str, path: &[u8], object: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let Some(config) = self.config else { return Ok(Zeroizing::new(object.to_vec())) };
        // API servers keep a few things of their own beside objects: wildcards cover them, too.
        let resource = match ObjectPath::parse(prefix, path) {
            Some(path) => GroupResource {
                group: path.group.unwrap_or_default().to_owned(),
                resource: path.resource.to_owned(),
            },
            None => GroupResource { group: String::new(), resource: String::new() },
        };
        let coverage = config.coverage(&resource);
        let provider = coverage.writer().provider;
        let named = || resource.to_string();
        let value = match provider {
            Provider::Identity => object.to_vec(),
            Provider::KmsV1(plugin) => {
                return Err(SealError::KmsV1 { resource: named(), name: plugin.name.clone() });
            }
            Provider::KmsV2(plugin) => {
                let error = || SealError::NoSource { resource: named(), name: plugin.name.clone() };
                let source = self.sources.get(&plugin.name).ok_or_else(error)?;
                source.seal(&plugin.name, path, object).ok_or_else(error)?
            }
            Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys) => {
                let sealed = keys.first().zip(cipher_of(provider)).and_then(|(key, cipher)| {
                    let sealed = cipher::seal(cipher, key.secret.expose(), path, object)?;
                    Some([cipher.mark(), key.name.as_bytes(), b":", &sealed].concat())
                });
                let error = || SealError::Local { resource: named(), provider: provider.field() };
                sealed.ok_or_else(error)?
            }
        };
        Ok(Zeroizing::new(value))
    }
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
