//! Who issues JSON Web Tokens, as a cluster does for its service accounts.

use std::fmt;

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::{Error, Result};

/// A key pair that signs tokens with ES256.
pub struct JwtIssuer {
    public: String,
    pair: EcdsaKeyPair,
}

impl JwtIssuer {
    /// One with a new key.
    pub fn create() -> Result<Self> {
        let key = KeyPair::generate().map_err(|_| refused())?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der());
        Ok(Self { public: key.public_key_pem(), pair: pair.map_err(|_| refused())? })
    }

    /// The public key, in PEM: what `jwt_validation_pubkeys` takes.
    pub fn public_key(&self) -> &str {
        &self.public
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let header = json!({"alg": "ES256", "typ": "JWT"});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|_| refused())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl fmt::Debug for JwtIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtIssuer").field("public", &self.public).finish_non_exhaustive()
    }
}

fn refused() -> Error {
    Error::Crypto { what: "a signed token" }
}
