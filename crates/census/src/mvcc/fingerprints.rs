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
/// It takes 27 to 29 bytes a key, however many there are. A table doubles when it is full, and has 20 bytes a key before and
/// 39 after. So the set is split into tables of unequal shares, each 2^(1/256) times that of the one before: whenever one
/// doubles, all others are elsewhere between the two, and little stands twice while it does.
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
        self.insert_fingerprint(hasher.finish128().as_u128())
    }

    /// The upper bits choose the shard, the lower ones the place in it.
    fn insert_fingerprint(&mut self, fingerprint: u128) -> bool {
        self.shards[shard_of((fingerprint >> 96) as u32)].insert(fingerprint)
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

/// `upper` as a share of one: x. What falls to shard i has i = ⌊256 · log₂(1 + x)⌋, so that its share of all is
/// 2^((i + 1)/256) - 2^(i/256).
fn shard_of(upper: u32) -> usize {
    let x = f64::from(upper) / 2_f64.powi(32);
    // Less than 256 in any case, since 1 + x is less than 2 by 2^-32.
    ((1.0 + x).log2() * SHARDS as f64) as usize
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
    fn each_key_is_new_once() {
        let mut seen = Fingerprints::new().unwrap();
        let key = |number: usize| format!("/registry/secrets/namespace-{}/secret-{number}", number % 50);
        for number in 0..50_000 {
            assert!(seen.insert(key(number).as_bytes()));
        }
        for number in (0..50_000).step_by(97) {
            assert!(!seen.insert(key(number).as_bytes()));
        }
        assert_eq!(seen.len(), 50_000);
    }

    #[test]
    fn each_of_ten_million_keys_takes_at_most_30_bytes_at_any_time() {
        let mut seen = Fingerprints::new().unwrap();
        // What a keyed hash gives is as good as random. This is, too, and takes a debug build less time.
        let mut random = 1_u128;
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for number in 1..=10_000_000 {
            random =
                random.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(2 * number + 1);
            assert!(seen.insert_fingerprint(random.rotate_right(64)));
            if number >= 50_000 && number % 4096 == 0 {
                let each = seen.bytes() as f64 / seen.len() as f64;
                (least, most) = (least.min(each), most.max(each));
            }
        }
        // What the largest table has twice while it grows comes on top.
        let twice = seen.shards.iter().map(HashSet::capacity).max().unwrap() * 17;
        assert!(twice * 100 < seen.bytes(), "{twice} bytes in one table");
        assert!(
            (26.0..=30.0).contains(&least) && (26.0..=30.0).contains(&most),
            "{least} to {most} bytes a key"
        );
    }

    #[test]
    fn every_beginning_has_a_shard() {
        assert_eq!((shard_of(0), shard_of(u32::MAX)), (0, SHARDS - 1));
        assert!((0..u32::MAX).step_by(1 << 12).is_sorted_by_key(shard_of));
    }

    #[test]
    fn two_sets_have_two_keys() {
        let [one, other] = [(); 2].map(|()| Fingerprints::new().unwrap().key);
        assert_ne!(one, other);
    }
}
