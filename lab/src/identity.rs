//! What the API servers of one lab share: their administrator's token and the key of their service
//! account tokens.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    encoding::{AsDer, EcPrivateKeyRfc5915Der},
    rand,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{Error, Result};

/// Made new for each lab; worthless after it.
#[derive(Clone)]
pub(crate) struct Identity {
    dir: PathBuf,
    token: String,
}

impl Identity {
    /// Makes key and token, and writes them to `dir` in the forms that kube-apiserver reads.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        let mut random = [0; 32];
        rand::fill(&mut random).map_err(|_| Error::Crypto { what: "a token" })?;
        let identity = Self { dir: dir.to_owned(), token: hex::encode(random) };

        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .and_then(|pair| AsDer::<EcPrivateKeyRfc5915Der<'_>>::as_der(&pair.private_key()))
            .map_err(|_| Error::Crypto { what: "a key pair" })?;
        let base64 = STANDARD.encode(key.as_ref());
        // Not PKCS #8: only from this form does kube-apiserver take the public key too.
        let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{base64}\n-----END EC PRIVATE KEY-----\n");
        let users = format!("{},admin,admin,system:masters\n", identity.token);
        for (path, text) in [(identity.key_file(), pem), (identity.token_file(), users)] {
            fs::write(&path, text).map_err(Error::file("write", path))?;
        }
        Ok(identity)
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.join("tokens.csv")
    }

    /// The private key; kube-apiserver takes the public one from the same file.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.join("service-accounts.key")
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("dir", &self.dir).finish_non_exhaustive()
    }
}
