//! The local KEK: made by a plugin process, kept in memory, seals DEK sources.

use std::fmt;

use aws_lc_rs::rand;
use zeroize::Zeroizing;

use crate::kdf::{Label, derive};
use crate::secret_memory::{KeyBytes, with_wiped_stack};
use crate::{Digest, KekId, Suite, gcm};

/// DEK sources that may be sealed: an AES-128 key of the oldest servers up to what a later
/// kube-apiserver may choose.
pub const DEK_SOURCE_LEN: std::ops::RangeInclusive<usize> = 16..=512;

const RANDOM_LEN: usize = 32;
const HEADER_LEN: usize = 1 + RANDOM_LEN;
/// What sealing adds to a DEK source: suite, random, nonce and tag.
pub const CIPHERTEXT_OVERHEAD: usize = HEADER_LEN + gcm::OVERHEAD;

/// What a derivation and AES-GCM use of the stack, and more: unoptimised they use some 5 kB.
const STACK: usize = 8 * 1024;

/// A 256-bit key that is wiped when dropped and never shown. It stands in [`secret_memory`](crate::secret_memory).
#[derive(Clone)]
pub struct LocalKek(KeyBytes);

/// Why a local KEK did not seal or open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KekError {
    /// Outside [`DEK_SOURCE_LEN`].
    #[error("a DEK source has {} to {} bytes, found {found}", DEK_SOURCE_LEN.start(), DEK_SOURCE_LEN.end())]
    DekSourceLength {
        /// Its length.
        found: usize,
    },
    /// Outside what sealing a DEK source makes.
    #[error("a ciphertext has {} to {} bytes, found {found}", DEK_SOURCE_LEN.start() + CIPHERTEXT_OVERHEAD, DEK_SOURCE_LEN.end() + CIPHERTEXT_OVERHEAD)]
    CiphertextLength {
        /// Its length.
        found: usize,
    },
    /// The first byte of the ciphertext is not the suite of its record.
    #[error("the ciphertext is of suite {found}, its record of suite {}", .record.number())]
    Suite {
        /// The first byte of the ciphertext.
        found: u8,
        /// The suite of the record.
        record: Suite,
    },
    /// The ciphertext or the record was changed, or they don't belong together.
    #[error("the ciphertext does not belong to its record, or bytes of either were changed")]
    Unauthentic,
}

impl LocalKek {
    /// A new random local KEK.
    ///
    /// # Panics
    /// If the system has no randomness; there is nothing safe to do then.
    pub fn generate() -> Self {
        let mut key = KeyBytes::zero();
        rand::fill(key.bytes_mut()).expect("the system has randomness");
        Self(key)
    }

    /// The local KEK of these bytes, as a vector or an opened wrap holds them; `None` unless 32.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        // Straight into its place: what is moved leaves a copy behind on the stack.
        let mut key = KeyBytes::zero();
        key.bytes_mut().copy_from_slice(bytes);
        Some(Self(key))
    }

    /// Where it was opened to.
    pub(crate) fn standing_at(key: KeyBytes) -> Self {
        Self(key)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }

    /// The identity of this key. It commits to the key, which AES-GCM does not.
    pub fn id(&self) -> KekId {
        with_wiped_stack::<STACK, _>(|| KekId(*derive(self.bytes(), Label::KekId, &[])))
    }

    /// Seals a DEK source: suite(1) ‖ random(32) ‖ nonce(12) ‖ AES-256-GCM(one-time key, DEK source).
    ///
    /// `annotation` is SHA-256 of the record's annotation value, so that each ciphertext binds every
    /// bit of its record. Each call has its own key: there is no limit on how many a local KEK seals.
    ///
    /// # Errors
    /// [`KekError::DekSourceLength`].
    pub fn seal(&self, suite: Suite, annotation: &Digest, dek_source: &[u8]) -> Result<Vec<u8>, KekError> {
        if !DEK_SOURCE_LEN.contains(&dek_source.len()) {
            return Err(KekError::DekSourceLength { found: dek_source.len() });
        }
        let mut out = Vec::with_capacity(dek_source.len() + CIPHERTEXT_OVERHEAD);
        out.push(suite.number());
        out.resize(HEADER_LEN, 0);
        rand::fill(&mut out[1..]).expect("the system has randomness");
        with_wiped_stack::<STACK, _>(|| {
            let key = self.seal_key(suite, annotation, &out[1..]);
            gcm::append_sealed(&key, &[], dek_source, &mut out);
        });
        Ok(out)
    }

    /// Opens what [`LocalKek::seal`] made with the same record.
    ///
    /// # Errors
    /// Any [`KekError`] but the first.
    pub fn open(
        &self,
        suite: Suite,
        annotation: &Digest,
        ciphertext: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, KekError> {
        check_ciphertext(suite, ciphertext)?;
        let (header, sealed) = ciphertext.split_at(HEADER_LEN);
        with_wiped_stack::<STACK, _>(|| {
            let key = self.seal_key(suite, annotation, &header[1..]);
            gcm::open(&key, &[], sealed).map_err(|_| KekError::Unauthentic)
        })
    }

    /// Authenticates a record that is kept for writing again: only who holds this local KEK can make the tag.
    /// Opening a record proves its core and the wraps that were opened, not the wraps that nobody here can open.
    ///
    /// `annotation` is SHA-256 of the record's annotation value.
    pub fn record_tag(&self, annotation: &Digest) -> Digest {
        with_wiped_stack::<STACK, _>(|| *derive(self.bytes(), Label::StateRecord, annotation))
    }

    fn seal_key(&self, suite: Suite, annotation: &Digest, random: &[u8]) -> crate::kdf::Key {
        let label = match suite {
            Suite::One => Label::Seal,
            #[cfg(test)]
            Suite::Two => Label::SealOfSecondSuite,
        };
        let mut context = [0; 32 + RANDOM_LEN];
        context[..32].copy_from_slice(annotation);
        context[32..].copy_from_slice(random);
        derive(self.bytes(), label, &context)
    }
}

/// What can be refused of a ciphertext without any key.
pub(crate) fn check_ciphertext(suite: Suite, ciphertext: &[u8]) -> Result<(), KekError> {
    let found = ciphertext.len();
    match ciphertext.first() {
        Some(first)
            if found.checked_sub(CIPHERTEXT_OVERHEAD).is_some_and(|n| DEK_SOURCE_LEN.contains(&n)) =>
        {
            if *first == suite.number() {
                Ok(())
            } else {
                Err(KekError::Suite { found: *first, record: suite })
            }
        }
        _ => Err(KekError::CiphertextLength { found }),
    }
}

impl fmt::Debug for LocalKek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalKek(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_takes_93_bytes_and_comes_back() {
        let (kek, annotation) = (LocalKek::generate(), [3; 32]);
        let sealed = kek.seal(Suite::One, &annotation, &[5; 32]).unwrap();
        assert_eq!(sealed.len(), 93);
        assert_eq!(kek.open(Suite::One, &annotation, &sealed).unwrap().as_slice(), [5; 32]);
        assert_ne!(sealed, kek.seal(Suite::One, &annotation, &[5; 32]).unwrap());
        assert_eq!(kek.open(Suite::One, &[4; 32], &sealed), Err(KekError::Unauthentic));
        assert_eq!(LocalKek::generate().open(Suite::One, &annotation, &sealed), Err(KekError::Unauthentic));
    }

    #[test]
    fn lengths() {
        let kek = LocalKek::generate();
        for (length, accepted) in [(0, false), (15, false), (16, true), (512, true), (513, false)] {
            let sealed = kek.seal(Suite::One, &[0; 32], &vec![0; length]);
            assert_eq!(sealed.is_ok(), accepted, "{length}");
        }
        for length in [0, 1, CIPHERTEXT_OVERHEAD + 15, CIPHERTEXT_OVERHEAD + 513, 1024, 1025] {
            let opened = kek.open(Suite::One, &[0; 32], &vec![1; length]);
            assert_eq!(opened, Err(KekError::CiphertextLength { found: length }));
        }
    }

    #[test]
    fn suites_do_not_mix() {
        let kek = LocalKek::generate();
        let mut sealed = kek.seal(Suite::Two, &[0; 32], &[5; 32]).unwrap();
        assert!(kek.open(Suite::Two, &[0; 32], &sealed).is_ok());
        assert_eq!(
            kek.open(Suite::One, &[0; 32], &sealed),
            Err(KekError::Suite { found: 2, record: Suite::One })
        );
        sealed[0] = 1;
        assert_eq!(kek.open(Suite::One, &[0; 32], &sealed), Err(KekError::Unauthentic));
    }

    #[test]
    fn debug_shows_nothing() {
        let kek = LocalKek::from_bytes(&[0xab; 32]).unwrap();
        assert_eq!(format!("{kek:?}"), "LocalKek(…)");
    }
}
