//! Where records come from: who signs them, whose signatures are believed, and what is read without one.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa;
use casemate_keys::names::sha256;
use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm, Signer};
use casemate_keys::{Lineage, LineagePrefix};
use casemate_keyservice::pkcs11::HostConfig;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{
    ConfigError, Name, Parsed, Place, ProviderConfig, ReadKeyConfig, TokenSignerConfig, WriteKeyConfig,
};
use crate::key_services::{KeyServices, NotHere};
use crate::provider::Signing;

/// The key that signs records, so that nobody who knows the public half of a root key can make one.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignerConfig {
    /// Its public half in PEM: ECDSA on P-256, or RSA with 3072 bits. What it signs is believed by this alone.
    pub public_key: Parsed<PublicKey>,
    /// The key is in an HSM, or another token that has a PKCS#11 module.
    pub pkcs11: TokenSignerConfig,
}

/// A key that signed records before, or signs those of other nodes.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PinnedSignerConfig {
    /// For people.
    pub name: Parsed<Name>,
    /// How records name it: `pkcs11:` and the id of the key.
    #[schemars(with = "String")]
    pub lineage: Parsed<Lineage>,
    /// Its public half in PEM.
    pub public_key: Parsed<PublicKey>,
}

/// The public half of a key that signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// SubjectPublicKeyInfo.
    der: Vec<u8>,
    algorithm: SignatureAlgorithm,
}

impl SignerConfig {
    /// How records name it.
    pub fn lineage(&self) -> Lineage {
        self.pkcs11.key.0.0.lineage()
    }

    fn pinned(&self) -> Signer {
        self.public_key.signer(self.lineage())
    }

    /// The process that holds its module.
    pub(super) fn host(&self, state_directory: &Path) -> HostConfig {
        self.pkcs11.host(state_directory)
    }

    /// The files that are read to use it.
    pub(super) fn files(&self) -> [PathBuf; 1] {
        [self.pkcs11.pin_file.to_path_buf()]
    }
}

impl ProviderConfig {
    /// What signs what it writes.
    ///
    /// # Errors
    /// [`NotHere`].
    pub fn signing(&self, services: &KeyServices, state: &Path) -> Result<Option<Signing>, NotHere> {
        let Some(SignerConfig { public_key, pkcs11 }) = &self.signer else { return Ok(None) };
        let PublicKey { der, algorithm } = &public_key.0;
        let key = services.signer(&pkcs11.host(state), pkcs11.key.0.0.clone(), *algorithm)?;
        Ok(Some(Signing::new(Box::new(key), *algorithm, der.clone())))
    }

    /// What wraps under asymmetric keys need.
    pub fn origin(&self) -> OriginPolicy {
        if self.accept_unproven_origin {
            OriginPolicy::AcceptUnproven
        } else {
            OriginPolicy::Signed(self.pinned_signers().map(|(_, signer)| signer).collect())
        }
    }

    /// Whose signatures are believed, and where each is named.
    fn pinned_signers(&self) -> impl Iterator<Item = (u64, Signer)> {
        let own = self.signer.iter().map(|signer| (signer.pkcs11.key.line(), signer.pinned()));
        let others =
            self.signers.iter().map(|one| (one.lineage.line(), one.public_key.signer(one.lineage.0.clone())));
        own.chain(others)
    }

    /// What of signers and root keys does not go together.
    pub(super) fn check_origin(&self, path: &Path) -> Result<(), ConfigError> {
        let unfit =
            |line, field, message| Err(ConfigError::Unfit { path: path.to_owned(), line, field, message });
        let write = self.root_keys.iter().map(|key| (&key.name, WriteKeyConfig::place(key)));
        for (name, line) in write.filter_map(|(name, place)| Some((name, place.asymmetric()?))) {
            if self.signer.is_none() {
                let message = format!(
                    "root key {name}: whoever has the public half of an RSA key can make a record under it; add a `signer`, \
                     a key of its own that signs records, or use an AES key"
                );
                return unfit(line, "mechanism", message);
            }
        }
        let nobody_signs = self.signer.is_none() && self.signers.is_empty();
        let read = self.read_keys.iter().map(|key| (&key.name, ReadKeyConfig::place(key)));
        for (name, line) in read.filter_map(|(name, place)| Some((name, place.asymmetric()?))) {
            if nobody_signs && !self.accept_unproven_origin {
                let message = format!(
                    "root key {name}: nothing could be read with it, for whoever has the public half of an RSA key can make a \
                     record under it; add under `signers` the public key of who signed its records"
                );
                return unfit(line, "mechanism", message);
            }
        }
        let places = self.places().flat_map(Place::identities);
        let root_keys: Vec<LineagePrefix> = places.map(|one| one.key).collect();
        for (line, signer) in self.pinned_signers() {
            let lineage = &signer.lineage;
            if root_keys.contains(&LineagePrefix::exactly(lineage)) {
                let message =
                    format!("{lineage} is a root key too; a signer is a key of its own, that wraps nothing");
                return unfit(line, "signer", message);
            }
            let named = rsa_id(&signer).map(|id| format!("pkcs11:{id}"));
            if let Some(named) = named.filter(|named| named != lineage.as_str()) {
                let message =
                    format!("an RSA key is named by its public half: this one is {named}, not {lineage}");
                return unfit(line, "publicKey", message);
            }
        }
        Ok(())
    }

    /// Lineages of signers, and where each is named.
    pub(super) fn signer_names(&self) -> Vec<(Lineage, u64)> {
        self.pinned_signers().map(|(line, signer)| (signer.lineage, line)).collect()
    }
}

/// What a token's RSA key with this public half is known by.
fn rsa_id(signer: &Signer) -> Option<String> {
    if signer.algorithm != SignatureAlgorithm::RsaPss3072 {
        return None;
    }
    let key = rsa::PublicKey::from_der(&signer.public_key).ok()?;
    let spki = AsDer::<PublicKeyX509Der<'_>>::as_der(&key).ok()?;
    Some(hex::encode(&sha256(spki.as_ref())[..16]))
}

impl PublicKey {
    fn signer(&self, lineage: Lineage) -> Signer {
        Signer { lineage, algorithm: self.algorithm, public_key: self.der.clone() }
    }
}

impl FromStr for PublicKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        // Never quoted: it may be the other half.
        let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).map_err(|_| {
            "found no key under publicKey; accepted is PEM, all lines from -----BEGIN PUBLIC KEY----- to the end line, after `|`"
        })?;
        let der = der.as_ref().to_vec();
        match SignatureAlgorithm::of(&der) {
            Some(algorithm) => Ok(Self { der, algorithm }),
            None => Err(
                "found another kind of key under publicKey; accepted are EC keys on P-256 and RSA keys of 3072 bits",
            ),
        }
    }
}

impl JsonSchema for PublicKey {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PublicKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "pattern": "^-----BEGIN PUBLIC KEY-----"})
    }
}

#[cfg(test)]
mod tests;
