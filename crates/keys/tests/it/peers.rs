//! Root keys with their bytes at hand: what key services do, done by the crypto library alone.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrapPadded};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{
    OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey, PrivateDecryptingKey,
};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, RSA_PSS_SHA256, RsaKeyPair,
};
use casemate_keys::kdf::{Label, derive};
use casemate_keys::origin::{SignatureAlgorithm, Signer};
use casemate_keys::{Algorithm, Digest, Root, gcm, payload};

/// The material of one root key version.
#[derive(Clone)]
pub enum Material {
    /// The secret of a file key version.
    Secret([u8; 32]),
    /// A raw AES-256 key.
    Key([u8; 32]),
    /// An RSA key, PKCS#8.
    Private(Vec<u8>),
    /// What a service that can't run here would answer.
    Payload(Vec<u8>),
}

/// A root key with its bytes at hand.
#[derive(Clone)]
pub struct Peer {
    pub root: Root,
    pub material: Material,
}

impl Peer {
    pub fn new(lineage: &str, algorithm: Algorithm, material: Material) -> Self {
        Self { root: Root { lineage: lineage.parse().unwrap(), algorithm }, material }
    }

    /// A file key version of this secret.
    pub fn file(id: &str, version: u32, secret: [u8; 32]) -> Self {
        let check = hex::encode(&derive(&secret, Label::RootId, &[])[..8]);
        let lineage = format!("file:{id}/{version}/{check}");
        Self::new(&lineage, Algorithm::FILE_AES256_GCM, Material::Secret(secret))
    }

    pub fn wrap(&self, core: &Digest, payload: &[u8]) -> Vec<u8> {
        match (&self.material, self.root.algorithm) {
            (Material::Secret(secret), _) => {
                gcm::seal(&derive(secret, Label::FileWrap, &[]), &payload::associated_data(core), payload)
            }
            (Material::Key(key), Algorithm::PKCS11_AES_KWP) => {
                let mut out = vec![0; payload.len() + 15];
                let kek = AesKek::new(&AES_256, key).unwrap();
                kek.wrap_with_padding(payload, &mut out).unwrap().to_vec()
            }
            (Material::Key(key), _) => gcm::seal(key, &payload::associated_data(core), payload),
            (Material::Private(pkcs8), _) => {
                let public = PrivateDecryptingKey::from_pkcs8(pkcs8).unwrap().public_key();
                let public = OaepPublicEncryptingKey::new(public).unwrap();
                let mut out = vec![0; public.ciphertext_size()];
                public.encrypt(&OAEP_SHA256_MGF1SHA256, payload, &mut out, None).unwrap().to_vec()
            }
            (Material::Payload(_), _) => b"as the service would return it".to_vec(),
        }
    }

    pub fn unwrap(&self, core: &Digest, wrap: &[u8]) -> Option<Vec<u8>> {
        let aad = payload::associated_data(core);
        match (&self.material, self.root.algorithm) {
            (Material::Secret(secret), _) => {
                gcm::open(&derive(secret, Label::FileWrap, &[]), &aad, wrap).ok().map(|p| p.to_vec())
            }
            (Material::Key(key), Algorithm::PKCS11_AES_KWP) => {
                let mut out = vec![0; wrap.len() + 8];
                let kek = AesKek::new(&AES_256, key).unwrap();
                kek.unwrap_with_padding(wrap, &mut out).ok().map(|p| p.to_vec())
            }
            (Material::Key(key), _) => gcm::open(key, &aad, wrap).ok().map(|p| p.to_vec()),
            (Material::Private(pkcs8), _) => {
                let key = PrivateDecryptingKey::from_pkcs8(pkcs8).unwrap();
                let key = OaepPrivateDecryptingKey::new(key).unwrap();
                let mut out = vec![0; key.min_output_size()];
                key.decrypt(&OAEP_SHA256_MGF1SHA256, wrap, &mut out, None).ok().map(|p| p.to_vec())
            }
            (Material::Payload(payload), _) => Some(payload.clone()),
        }
    }
}

/// A key that proves origins, with its private part.
pub struct SigningPeer {
    pub signer: Signer,
    pub pkcs8: Vec<u8>,
}

impl SigningPeer {
    pub fn new(lineage: &str, algorithm: SignatureAlgorithm, pkcs8: Vec<u8>) -> Self {
        let public_key = match algorithm {
            SignatureAlgorithm::EcdsaP256 => {
                let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pkcs8).unwrap();
                pair.public_key().as_der().unwrap().as_ref().to_vec()
            }
            _ => RsaKeyPair::from_pkcs8(&pkcs8).unwrap().public_key().as_der().unwrap().as_ref().to_vec(),
        };
        Self { signer: Signer { lineage: lineage.parse().unwrap(), algorithm, public_key }, pkcs8 }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self.signer.algorithm {
            SignatureAlgorithm::EcdsaP256 => {
                let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &self.pkcs8).unwrap();
                pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
            }
            _ => {
                let pair = RsaKeyPair::from_pkcs8(&self.pkcs8).unwrap();
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PSS_SHA256, &SystemRandom::new(), message, &mut out).unwrap();
                out
            }
        }
    }
}
