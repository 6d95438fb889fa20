//! No flipped bit of what stands in etcd is ever accepted, cold or warm.

use std::sync::Arc;

use casemate_keys::Algorithm;
use casemate_kms::provider::{Provider, Store};

use crate::double::RootKeyDouble;
use crate::node::{Node, Stored, settings};

const DEK: [u8; 32] = [0x5a; 32];

#[tokio::test]
async fn every_flipped_bit_is_refused() {
    let (a, b) = (key("a"), key("b"));
    let good = Node::start(settings(&[&a, &b])).await.seal(&DEK).await;
    let warm = Node::start(settings(&[&a, &b])).await;
    assert_eq!(**warm.open(&good).await.unwrap(), DEK);

    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "test").unwrap();
    let mut tried = 0;
    for flipped in flips(&good) {
        let cold = Provider::new(settings(&[&a, &b]), store.clone());
        for provider in [&cold, &*warm.provider] {
            let opened = flipped.open(provider).await;
            // A flipped wrap is survived by the other wrap, but the ciphertext binds it all the same.
            let error = opened.expect_err("a flipped bit").to_string();
            assert!(error.contains("key id"), "{error}");
            tried += 1;
        }
        assert_eq!(**warm.open(&good).await.unwrap(), DEK, "the good one stays good");
    }
    assert_eq!(
        tried,
        2 * 8 * (good.ciphertext.len() + good.annotation.len() + good.key_id.len()) - skipped(&good)
    );
}

fn key(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

fn flips(good: &Stored) -> impl Iterator<Item = Stored> {
    let bits = |length: usize| (0..length * 8).map(|bit| (bit / 8, 1 << (bit % 8)));
    let ciphertexts = bits(good.ciphertext.len()).map(|(at, bit)| {
        let mut flipped = good.clone();
        flipped.ciphertext[at] ^= bit;
        flipped
    });
    let annotations = bits(good.annotation.len()).map(|(at, bit)| {
        let mut flipped = good.clone();
        flipped.annotation[at] ^= bit;
        flipped
    });
    let key_ids = bits(good.key_id.len()).filter_map(|(at, bit)| {
        let mut bytes = good.key_id.clone().into_bytes();
        bytes[at] ^= bit;
        // What is no UTF-8 does not come through protobuf.
        Some(Stored { key_id: String::from_utf8(bytes).ok()?, ..good.clone() })
    });
    ciphertexts.chain(annotations).chain(key_ids).collect::<Vec<_>>().into_iter()
}

/// The high bit of each byte of a key id.
fn skipped(good: &Stored) -> usize {
    2 * good.key_id.len()
}
