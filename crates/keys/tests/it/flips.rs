//! Every bit that is stored is bound: whatever single bit changes, whatever byte is missing or added, the
//! DEK source does not come back, with a cold and with a warm cache.

use crate::forge::{Reader, Stored, open_cold};
use crate::vectors::named;

/// Changes of one kind to one part, and how many were tried.
struct Attack<'a> {
    name: &'a str,
    original: Stored,
    warm: Reader<'a>,
    tried: usize,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Ciphertext,
    KeyId,
    Annotation,
}

const PARTS: [Part; 3] = [Part::Ciphertext, Part::KeyId, Part::Annotation];

impl Attack<'_> {
    fn bytes(&self, part: Part) -> &[u8] {
        match part {
            Part::Ciphertext => &self.original.ciphertext,
            Part::KeyId => self.original.key_id.as_bytes(),
            Part::Annotation => &self.original.annotation,
        }
    }

    fn refused(&mut self, part: Part, bytes: Vec<u8>, what: std::fmt::Arguments<'_>) {
        self.tried += 1;
        let mut changed = self.original.clone();
        match part {
            Part::Ciphertext => changed.ciphertext = bytes,
            Part::Annotation => changed.annotation = bytes,
            // What is not UTF-8 is refused by gRPC: a key id is a protobuf string.
            Part::KeyId => match String::from_utf8(bytes) {
                Ok(text) => changed.key_id = text,
                Err(_) => return,
            },
        }
        let cold = open_cold(self.warm.policy, self.warm.peers, &changed);
        assert!(cold.is_err(), "{}: {part:?}, {what}: opened cold", self.name);
        assert!(self.warm.open(&changed).is_err(), "{}: {part:?}, {what}: opened warm", self.name);
    }

    fn flip(&mut self, part: Part, byte: usize, bit: usize) {
        let mut bytes = self.bytes(part).to_vec();
        bytes[byte] ^= 1 << bit;
        self.refused(part, bytes, format_args!("bit {bit} of byte {byte}"));
    }
}

/// Runs `attack` with a warm cache, and shows before and after that unchanged bytes open.
fn attack(name: &str, attack: impl FnOnce(&mut Attack<'_>)) -> usize {
    let vector = named(name);
    let (policy, peers, original) = (vector.read_policy(), vector.peers(), vector.stored());
    let mut warm = Reader::new(&policy, &peers);
    assert_eq!(warm.open(&original).map(hex::encode), Ok(vector.dek_source.clone()));
    let mut running = Attack { name, original, warm, tried: 0 };
    attack(&mut running);
    let Attack { original, mut warm, tried, .. } = running;
    let calls = warm.calls;
    assert_eq!(warm.open(&original).map(hex::encode), Ok(vector.dek_source.clone()));
    assert_eq!(warm.calls, calls, "the cache was warm");
    assert_eq!(open_cold(&policy, &peers, &original).map(hex::encode), Ok(vector.dek_source));
    tried
}

fn every_bit(name: &str) -> usize {
    attack(name, |attack| {
        for part in PARTS {
            for byte in 0..attack.bytes(part).len() {
                (0..8).for_each(|bit| attack.flip(part, byte, bit));
            }
        }
    })
}

fn every_bit_of(names: [&str; 3]) {
    for name in names {
        let vector = named(name);
        let bytes = vector.annotation.len() / 2 + vector.ciphertext.len() / 2 + vector.key_id.len();
        assert_eq!(every_bit(name), 8 * bytes, "{name}: each bit once");
    }
}

#[test]
fn every_bit_of_symmetric_records() {
    every_bit_of(["file", "four-roots", "recovery"]);
}

#[test]
fn every_bit_of_signed_records() {
    every_bit_of(["file-and-rsa", "rsa-2048-ecdsa", "rsa-4096-pss"]);
}

#[test]
fn every_truncation_and_extension() {
    for name in ["file", "four-roots", "recovery", "file-and-rsa"] {
        let tried = attack(name, |attack| {
            for part in PARTS {
                let whole = attack.bytes(part).to_vec();
                for length in 0..whole.len() {
                    attack.refused(part, whole[..length].to_vec(), format_args!("first {length} bytes"));
                    attack.refused(part, whole[length + 1..].to_vec(), format_args!("after byte {length}"));
                    let without = [&whole[..length], &whole[length + 1..]].concat();
                    attack.refused(part, without, format_args!("without byte {length}"));
                }
                for byte in 0..=u8::MAX {
                    attack.refused(part, [&whole[..], &[byte]].concat(), format_args!("{byte:#x} behind"));
                    attack.refused(part, [&[byte], &whole[..]].concat(), format_args!("{byte:#x} in front"));
                }
                attack.refused(part, [&whole[..], &whole[..]].concat(), format_args!("twice"));
            }
        });
        assert!(tried > 3 * 512, "{name}: {tried}");
    }
}

/// Parts of two records that both open don't mix, whatever was opened before.
#[test]
fn parts_of_two_records_do_not_mix() {
    let vectors = ["file", "transit"].map(named);
    let peers: Vec<_> = vectors.iter().flat_map(|vector| vector.peers()).collect();
    let origin = vectors[0].read_policy().origin;
    let policy = crate::vector::read_policy(vectors[0].cluster(), &peers, origin);
    let [one, other] = vectors.each_ref().map(|vector| vector.stored());
    let mut warm = Reader::new(&policy, &peers);
    for choice in 0..8 {
        let pick = |bit: u8| if choice >> bit & 1 == 0 { &one } else { &other };
        let mixed = Stored {
            ciphertext: pick(0).ciphertext.clone(),
            key_id: pick(1).key_id.clone(),
            annotation: pick(2).annotation.clone(),
        };
        let whole = choice == 0 || choice == 7;
        assert_eq!(open_cold(&policy, &peers, &mixed).is_ok(), whole, "{choice:03b}");
        assert_eq!(warm.open(&mixed).is_ok(), whole, "{choice:03b}");
    }
}
