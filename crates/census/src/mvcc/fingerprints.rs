//! Which keys were seen, in few bytes each.
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::Error;

/// A set of keys, of which a fingerprint of 128 bits is kept each.
///
/// Two keys with the same fingerprint would hide an object from a census. So it is SipHash-2-4 with 128 bits under a
/// random key of this set: whoever can name objects does not know the key and can't look for a collision, and by chance
/// 10 million keys have one with a probability of 10^-25. A cryptographic hash would add nothing to that, and take longer
/// than reading the value.
///
/// It takes 20 to 40 bytes a key. It is split, so that growing, for which old and new stand side by side, takes a small
/// part at a time.
pub struct Fingerprints {
    key: [u8; 16],
    shards: Vec<HashSet<u128, BuildHasherDefault<LowBits>>>,
}

const SHARDS: usize = 256;

impl Fingerprints {
    /// An empty set under a fresh key.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn new() -> Result<Self, Error> {
        let mut key = [0; 16];
        aws_lc_rs::rand::fill(&mut key).map_err(|_| Error::Random)?;
        Ok(Self { key, shards: (0..SHARDS).map(|_| HashSet::default()).collect() })
    }

    /// Whether `key` was new.
    pub fn insert(&mut self, key: &[u8]) -> bool {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(key);
        let fingerprint = hasher.finish128().as_u128();
        // The upper bits choose the shard, the lower ones the place in it.
        self.shards[(fingerprint >> 120) as usize].insert(fingerprint)
    }

    /// How many keys are in it.
    pub fn len(&self) -> usize {
        self.shards.iter().map(HashSet::len).sum()
    }

    /// Whether no key is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        // A table is at most 7/8 full; a place has one byte beside the fingerprint.
        let places: usize = self.shards.iter().map(|shard| shard.capacity().div_ceil(7) * 8).sum();
        places * (size_of::<u128>() + 1) + self.shards.len() * size_of::<HashSet<u128>>()
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct LowBits(u64);

impl Hasher for LowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }
}

impl fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprints").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_new_once_and_takes_at_most_40_bytes() {
        let mut seen = Fingerprints::new().unwrap();
        let key = |number: usize| format!("/registry/secrets/namespace-{}/secret-{number}", number % 50);
        let mut most = 0.0_f64;
        for number in 0..400_000 {
            assert!(seen.insert(key(number).as_bytes()));
            if number >= 50_000 && number % 1000 == 0 {
                most = most.max(seen.bytes() as f64 / seen.len() as f64);
            }
        }
        assert!((20.0..=40.0).contains(&most), "{most}");
        for number in (0..400_000).step_by(997) {
            assert!(!seen.insert(key(number).as_bytes()));
        }
        assert_eq!(seen.len(), 400_000);
    }

    #[test]
    fn two_sets_have_two_keys() {
        let [one, other] = [(); 2].map(|()| Fingerprints::new().unwrap().key);
        assert_ne!(one, other);
    }
}
