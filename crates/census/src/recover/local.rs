//! Keys that stand in an EncryptionConfiguration.
use casemate_encryption_config::{EncryptionConfiguration, KeyBytes, Provider};

use super::cipher::{self, Plain};
use super::object::Shape;
use crate::classify::Cipher;
use crate::survey::Key;

/// All local keys of some configurations, in their order. Which resources they were for does not matter.
#[derive(Debug, Default)]
pub struct LocalKeys(Vec<LocalKey>);

#[derive(Debug)]
struct LocalKey {
    cipher: Cipher,
    name: String,
    secret: KeyBytes,
}

impl LocalKeys {
    /// Adds those of `config`.
    pub fn add(&mut self, config: &EncryptionConfiguration) {
        for provider in config.entries.iter().flat_map(|entry| &entry.providers) {
            let Some(cipher) = cipher_of(provider) else { continue };
            for key in provider.local_keys() {
                let (name, secret) = (key.name.clone(), key.secret.clone());
                if !self.0.iter().any(|one| one.cipher == cipher && one.name == name && one.secret == secret)
                {
                    self.0.push(LocalKey { cipher, name, secret });
                }
            }
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each by its name.
    pub fn names(&self) -> impl Iterator<Item = Key> {
        self.0.iter().map(|key| Key::Local { cipher: key.cipher, name: key.name.clone() })
    }

    /// Opens a value for `path`. Several keys may have its name, and one with a colon may begin with another's.
    pub(super) fn open(&self, path: &[u8], value: &[u8]) -> Result<(Plain, Key), Missed> {
        let mut missed = Missed::NoKey;
        for LocalKey { cipher, name, secret } in &self.0 {
            let rest = value.strip_prefix(cipher.mark()).and_then(|rest| rest.strip_prefix(name.as_bytes()));
            let Some(sealed) = rest.and_then(|rest| rest.strip_prefix(b":")) else { continue };
            missed = Missed::WrongKey;
            let Some(plain) = cipher::open(*cipher, secret.expose(), path, sealed) else { continue };
            // Of 256 wrong keys one leaves what looks like a padding: only an object tells.
            if *cipher == Cipher::AesCbc && Shape::of(&plain) == Shape::Other {
                continue;
            }
            return Ok((plain, Key::Local { cipher: *cipher, name: name.clone() }));
        }
        Err(missed)
    }
}

/// Why no local key opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// None has its name.
    NoKey,
    /// Those that have do not open it.
    WrongKey,
}

pub(super) fn cipher_of(provider: &Provider) -> Option<Cipher> {
    match provider {
        Provider::AesCbc(_) => Some(Cipher::AesCbc),
        Provider::AesGcm(_) => Some(Cipher::AesGcm),
        Provider::Secretbox(_) => Some(Cipher::SecretBox),
        Provider::Identity | Provider::KmsV1(_) | Provider::KmsV2(_) => None,
    }
}
