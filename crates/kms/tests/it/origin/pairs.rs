//! An RSA root key and a key that signs, by the crypto library alone: SoftHSM can't unwrap by OAEP with SHA-256.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey, PrivateDecryptingKey,
};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use casemate_keys::names::sha256;
use casemate_keys::origin::{SignatureAlgorithm, Signer};
use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, ReadRule, Root, payload};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Answer, Class, Failure, RecordSigner, RootKey};
use casemate_kms::provider::Signing;
use zeroize::Zeroizing;

use crate::double::{CAUSE, REMEDY};

/// An RSA key of 2048 bits. Anybody can [wrap](RsaPair::wrap_of) under it.
#[derive(Clone, Debug)]
pub(crate) struct RsaPair(Arc<Pair>);

struct Pair {
    root: Root,
    prefix: LineagePrefix,
    private: OaepPrivateDecryptingKey,
    public: OaepPublicEncryptingKey,
    unwraps: AtomicU64,
}

impl RsaPair {
    pub(crate) fn new() -> Self {
        let private = PrivateDecryptingKey::generate(KeySize::Rsa2048).unwrap();
        let public = private.public_key();
        let id = hex::encode(&sha256(public.as_der().unwrap().as_ref())[..16]);
        let lineage = Lineage::new("pkcs11", [id]).unwrap();
        Self(Arc::new(Pair {
            prefix: LineagePrefix::exactly(&lineage),
            root: Root { lineage, algorithm: Algorithm::RSA_OAEP_SHA256 },
            private: OaepPrivateDecryptingKey::new(private).unwrap(),
            public: OaepPublicEncryptingKey::new(public).unwrap(),
            unwraps: AtomicU64::new(0),
        }))
    }

    pub(crate) fn guarded(&self) -> Arc<Guarded> {
        Guarded::around(Box::new(self.clone()))
    }

    pub(crate) fn root(&self) -> Root {
        self.0.root.clone()
    }

    pub(crate) fn rule(&self) -> ReadRule {
        let algorithms = [Algorithm::RSA_OAEP_SHA256].into();
        ReadRule { key: self.0.prefix.clone(), algorithms, min_version: None }
    }

    /// Calls that only the private half can serve.
    pub(crate) fn unwraps(&self) -> u64 {
        self.0.unwraps.load(Ordering::SeqCst)
    }

    pub(crate) fn wrap_of(&self, payload: &[u8]) -> Vec<u8> {
        let mut wrap = vec![0; self.0.public.ciphertext_size()];
        self.0.public.encrypt(&OAEP_SHA256_MGF1SHA256, payload, &mut wrap, None).unwrap().to_vec()
    }
}

impl RootKey for RsaPair {
    fn prefix(&self) -> &LineagePrefix {
        &self.0.prefix
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(async { Ok(self.root()) })
    }

    fn wrap<'a>(
        &'a self,
        _: &'a Root,
        _: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        Box::pin(async { Ok(self.wrap_of(payload)) })
    }

    fn unwrap<'a>(&'a self, _: &'a Root, _: &'a Digest, wrap: &'a [u8]) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(async move {
            self.0.unwraps.fetch_add(1, Ordering::SeqCst);
            let mut payload = Zeroizing::new(vec![0; self.0.private.min_output_size()]);
            let opened = self.0.private.decrypt(&OAEP_SHA256_MGF1SHA256, wrap, &mut payload, None);
            let length =
                opened.map_err(|_| Failure::new(Class::NotOpened, "it does not open", REMEDY))?.len();
            payload.truncate(length);
            Ok(payload)
        })
    }

    fn binds_associated_data(&self, _: &Root) -> bool {
        false
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("root", &self.root).finish_non_exhaustive()
    }
}

/// A key on P-256 that signs, or does what it is told to.
#[derive(Clone, Debug)]
pub(crate) struct SignerPair(Arc<SigningPair>);

#[derive(Debug)]
struct SigningPair {
    lineage: Lineage,
    pair: EcdsaKeyPair,
    fails: Mutex<Option<Class>>,
    hangs: AtomicBool,
    signed: AtomicU64,
}

impl SignerPair {
    /// A new key of this name.
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(SigningPair {
            lineage: Lineage::new("pkcs11", [hex::encode(&sha256(name.as_bytes())[..16])]).unwrap(),
            pair: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap(),
            fails: Mutex::default(),
            hangs: AtomicBool::new(false),
            signed: AtomicU64::new(0),
        }))
    }

    /// What is pinned of it.
    pub(crate) fn pinned(&self) -> Signer {
        Signer {
            lineage: self.0.lineage.clone(),
            algorithm: SignatureAlgorithm::EcdsaP256,
            public_key: self.0.pair.public_key().as_der().unwrap().as_ref().to_vec(),
        }
    }

    /// As a provider holds it.
    pub(crate) fn signing(&self) -> Arc<Signing> {
        self.signing_as(&self.pinned())
    }

    /// The same, with the public half that stands in the configuration.
    pub(crate) fn signing_as(&self, pinned: &Signer) -> Arc<Signing> {
        Arc::new(Signing::new(Box::new(self.clone()), pinned.algorithm, pinned.public_key.clone()))
    }

    pub(crate) fn fails(&self, class: Option<Class>) {
        *self.0.fails.lock().unwrap() = class;
    }

    pub(crate) fn hangs(&self, hangs: bool) {
        self.0.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Signatures that it was asked for.
    pub(crate) fn signed(&self) -> u64 {
        self.0.signed.load(Ordering::SeqCst)
    }

    pub(crate) fn signature_of(&self, message: &[u8]) -> Vec<u8> {
        self.0.pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    }
}

impl RecordSigner for SignerPair {
    fn lineage(&self) -> &Lineage {
        &self.0.lineage
    }

    fn sign<'a>(&'a self, message: &'a [u8]) -> Answer<'a, Vec<u8>> {
        Box::pin(async move {
            self.0.signed.fetch_add(1, Ordering::SeqCst);
            if self.0.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            match *self.0.fails.lock().unwrap() {
                Some(class) => Err(Failure::new(class, CAUSE, REMEDY)),
                None => Ok(self.signature_of(message)),
            }
        })
    }
}
