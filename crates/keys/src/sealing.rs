//! Local KEKs on the disk of one node, so that it starts while no root key answers.
//!
//! ```text
//! credential or passphrase ──KDF──► protector ──AES-256-GCM──► sealing key ──AES-256-GCM──► local KEKs
//! ```
//!
//! The sealing key is random, so that one act destroys all it has sealed. What is sealed is bound to cluster and
//! provider ([`CacheOf`]), and a local KEK to the digest of its annotation and to its core besides: nothing can be put in
//! another's place, or carried to another provider. AES-GCM commits to no key; the id of the local KEK, which does, is
//! compared with the core's.

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::{pbkdf2, rand};
use zeroize::Zeroize;

use crate::kdf::{Label, derive};
use crate::names::sha256;
use crate::secret_memory::{KeyBytes, with_wiped_stack};
use crate::{ClusterId, Core, DOMAIN, Digest, LocalKek, gcm, list};

/// Length of a key that is sealed.
pub const SEALED_LEN: usize = 32 + gcm::OVERHEAD;
/// Length of the salt of a passphrase.
pub const SALT_LEN: usize = 16;
/// The fewest iterations of PBKDF2 that a passphrase is stretched by.
pub const MIN_ITERATIONS: u32 = 600_000;
/// The most: some seconds.
pub const MAX_ITERATIONS: u32 = 10_000_000;
/// Bytes of a passphrase. Below 14, FIPS 140-3 does not approve of PBKDF2.
pub const PASSPHRASE_LEN: std::ops::RangeInclusive<usize> = 14..=1024;

/// Bytes of a credential.
const CREDENTIAL_LEN: std::ops::RangeInclusive<usize> = 32..=4096;
/// Random bytes have more different ones, in whatever encoding; those of a mistake (a zeroed file) don't.
const DIFFERENT_BYTES: usize = 8;
/// See `kek.rs`.
const STACK: usize = 8 * 1024;

/// A sealed key: nonce(12) ‖ ciphertext(32) ‖ tag(16).
pub type SealedKek = [u8; SEALED_LEN];

/// Seals local KEKs. It stands in [`secret_memory`](crate::secret_memory).
pub struct SealingKey(KeyBytes);

/// Seals a sealing key: derived from what the admin delivers.
pub struct Protector(KeyBytes);

/// Whose local KEKs are sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOf {
    /// The cluster.
    pub cluster: ClusterId,
    /// The provider's name.
    pub provider: String,
}

/// What protects nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeakSecret {
    /// Too short, or more than anybody needs.
    #[error("it has {found} bytes; from {least} to {most} are accepted")]
    Length {
        /// Its length.
        found: usize,
        /// At least.
        least: usize,
        /// At most.
        most: usize,
    },
    /// A credential is random.
    #[error("it has {found} different bytes; random ones, as `openssl rand 32` makes them, have more")]
    NotRandom {
        /// How many.
        found: usize,
    },
    /// Outside what is accepted.
    #[error("{found} iterations; from {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted")]
    Iterations {
        /// How many.
        found: u32,
    },
}

impl Protector {
    /// Of random bytes that the host delivers. All of them count.
    ///
    /// # Errors
    /// [`WeakSecret`].
    pub fn of_credential(credential: &[u8]) -> Result<Self, WeakSecret> {
        length(credential, CREDENTIAL_LEN)?;
        let mut seen = [false; 256];
        credential.iter().for_each(|byte| seen[usize::from(*byte)] = true);
        let found = seen.iter().filter(|seen| **seen).count();
        seen.zeroize();
        if found < DIFFERENT_BYTES {
            return Err(WeakSecret::NotRandom { found });
        }
        Ok(Self::derived(Label::SealingCredential, || sha256(credential)))
    }

    /// Of a passphrase, by PBKDF2 with HMAC-SHA256. It takes a good part of a second, as is its purpose.
    ///
    /// # Errors
    /// [`WeakSecret`].
    pub fn of_passphrase(
        passphrase: &[u8],
        salt: &[u8; SALT_LEN],
        iterations: u32,
    ) -> Result<Self, WeakSecret> {
        length(passphrase, PASSPHRASE_LEN)?;
        let rounds = NonZeroU32::new(iterations)
            .filter(|rounds| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&rounds.get()))
            .ok_or(WeakSecret::Iterations { found: iterations })?;
        Ok(Self::derived(Label::SealingPassphrase, || {
            let mut stretched = [0; 32];
            pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, passphrase, &mut stretched);
            stretched
        }))
    }

    fn derived(label: Label, secret: impl FnOnce() -> [u8; 32]) -> Self {
        let mut key = KeyBytes::zero();
        with_wiped_stack::<STACK, _>(|| {
            let mut secret = secret();
            *key.bytes_mut() = *derive(&secret, label, &[]);
            secret.zeroize();
        });
        Self(key)
    }
}

impl SealingKey {
    /// A new random one.
    ///
    /// # Panics
    /// If the system has no randomness; there is nothing safe to do then.
    pub fn generate() -> Self {
        let mut key = KeyBytes::zero();
        rand::fill(key.bytes_mut()).expect("the system has randomness");
        Self(key)
    }

    /// This key, for the disk. `header` says how the protector is made, and is bound.
    pub fn sealed_under(&self, protector: &Protector, of: &CacheOf, header: &[u8]) -> SealedKek {
        seal(&protector.0, &of.key_data(header), self.0.bytes())
    }

    /// What [`SealingKey::sealed_under`] sealed; `None` if anything is different.
    pub fn open_sealed(protector: &Protector, of: &CacheOf, header: &[u8], sealed: &[u8]) -> Option<Self> {
        open(&protector.0, &of.key_data(header), sealed).map(Self)
    }

    /// A local KEK, for the disk. `annotation` is SHA-256 of its record's annotation value.
    pub fn seal(&self, kek: &LocalKek, of: &CacheOf, annotation: &Digest, core: &Core) -> SealedKek {
        seal(&self.0, &of.kek_data(annotation, core), kek.bytes())
    }

    /// What [`SealingKey::seal`] sealed; `None` if anything is different, or if it is not the local KEK that `core`
    /// names.
    pub fn open(&self, sealed: &[u8], of: &CacheOf, annotation: &Digest, core: &Core) -> Option<LocalKek> {
        let key = open(&self.0, &of.kek_data(annotation, core), sealed)?;
        Some(LocalKek::standing_at(key)).filter(|kek| kek.id() == core.kek_id)
    }
}

impl CacheOf {
    fn key_data(&self, header: &[u8]) -> Vec<u8> {
        self.data("sealing-key", &[header])
    }

    fn kek_data(&self, annotation: &Digest, core: &Core) -> Vec<u8> {
        self.data("sealed-kek", &[annotation, &core.encode()])
    }

    fn data(&self, what: &str, bound: &[&[u8]]) -> Vec<u8> {
        let what = [DOMAIN, what].concat();
        let whose = [what.as_bytes(), self.cluster.as_str().as_bytes(), self.provider.as_bytes()];
        list::encode(whose.iter().chain(bound))
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

impl fmt::Debug for Protector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protector(…)")
    }
}

fn length(secret: &[u8], accepted: std::ops::RangeInclusive<usize>) -> Result<(), WeakSecret> {
    if accepted.contains(&secret.len()) {
        return Ok(());
    }
    Err(WeakSecret::Length { found: secret.len(), least: *accepted.start(), most: *accepted.end() })
}

fn seal(key: &KeyBytes, data: &[u8], plaintext: &[u8; 32]) -> SealedKek {
    with_wiped_stack::<STACK, _>(|| {
        gcm::seal(key.bytes(), data, plaintext).try_into().expect("sealing adds nonce and tag")
    })
}

fn open(key: &KeyBytes, data: &[u8], sealed: &[u8]) -> Option<KeyBytes> {
    with_wiped_stack::<STACK, _>(|| {
        let opened = gcm::open(key.bytes(), data, sealed).ok()?;
        let opened: &[u8; 32] = opened.as_slice().try_into().ok()?;
        let mut key = KeyBytes::zero();
        key.bytes_mut().copy_from_slice(opened);
        Some(key)
    })
}

#[cfg(test)]
mod tests;
