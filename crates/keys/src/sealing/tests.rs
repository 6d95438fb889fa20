use super::*;
use crate::{Algorithm, Epoch, Root, Suite, WritePolicy};

const HEADER: &[u8] = b"header";

fn of(cluster: &str, provider: &str) -> CacheOf {
    CacheOf { cluster: cluster.parse().unwrap(), provider: provider.into() }
}

fn core(kek: &LocalKek) -> Core {
    let root = Root { lineage: "exec:a/1".parse().unwrap(), algorithm: Algorithm::EXEC };
    let policy =
        WritePolicy::new(Suite::One, "prod".parse().unwrap(), Epoch(0), vec![root], Vec::new(), None);
    Core { policy: policy.unwrap(), kek_id: kek.id(), created: 1, writer: "test/1".parse().unwrap() }
}

fn flips(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..bytes.len() * 8).map(|bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    })
}

#[test]
fn only_its_own_protector_place_and_header_open_a_sealing_key() {
    let (key, ours) = (SealingKey::generate(), of("prod", "a"));
    let protector = Protector::of_credential(b"0123456789abcdef0123456789abcdef").unwrap();
    let sealed = key.sealed_under(&protector, &ours, HEADER);
    let opened = SealingKey::open_sealed(&protector, &ours, HEADER, &sealed).unwrap();
    assert_eq!(opened.0.bytes(), key.0.bytes());

    let other = Protector::of_credential(b"0123456789abcdef0123456789abcdeF").unwrap();
    assert!(SealingKey::open_sealed(&other, &ours, HEADER, &sealed).is_none());
    for not_ours in [of("prod", "b"), of("proda", ""), of("test", "a")] {
        assert!(SealingKey::open_sealed(&protector, &not_ours, HEADER, &sealed).is_none(), "{not_ours:?}");
    }
    assert!(SealingKey::open_sealed(&protector, &ours, b"heade", &sealed).is_none());
    for flipped in flips(&sealed) {
        assert!(SealingKey::open_sealed(&protector, &ours, HEADER, &flipped).is_none());
    }
    for length in 0..sealed.len() {
        assert!(SealingKey::open_sealed(&protector, &ours, HEADER, &sealed[..length]).is_none());
    }
}

#[test]
fn a_local_kek_opens_in_its_place_alone() {
    let (key, kek, ours) = (SealingKey::generate(), LocalKek::generate(), of("prod", "a"));
    let (core, annotation) = (core(&kek), [7; 32]);
    let sealed = key.seal(&kek, &ours, &annotation, &core);
    assert_eq!(key.open(&sealed, &ours, &annotation, &core).unwrap().bytes(), kek.bytes());
    assert!(SealingKey::generate().open(&sealed, &ours, &annotation, &core).is_none());
    assert!(key.open(&sealed, &ours, &[8; 32], &core).is_none());
    assert!(key.open(&sealed, &of("prod", "b"), &annotation, &core).is_none());
    assert!(key.open(&sealed, &ours, &annotation, &Core { created: 2, ..core.clone() }).is_none());
    for flipped in flips(&sealed) {
        assert!(key.open(&flipped, &ours, &annotation, &core).is_none());
    }
    // A sealing key is no local KEK, though both are sealed alike.
    let protector = Protector::of_credential(b"0123456789abcdef0123456789abcdef").unwrap();
    let sealed_key = key.sealed_under(&protector, &ours, HEADER);
    assert!(key.open(&sealed_key, &ours, &annotation, &core).is_none());
}

#[test]
fn what_was_sealed_under_anothers_core_is_not_opened() {
    let (key, kek, ours) = (SealingKey::generate(), LocalKek::generate(), of("prod", "a"));
    let core = core(&LocalKek::generate());
    let sealed = key.seal(&kek, &ours, &[7; 32], &core);
    assert!(key.open(&sealed, &ours, &[7; 32], &core).is_none(), "its id is not the one in the core");
}

#[test]
fn weak_secrets_protect_nothing() {
    let length = |found, least, most| Err(WeakSecret::Length { found, least, most });
    let credential = |bytes: &[u8]| Protector::of_credential(bytes).map(|_| ());
    assert_eq!(credential(&[1; 31]), length(31, 32, 4096));
    assert_eq!(credential(&[0; 32]), Err(WeakSecret::NotRandom { found: 1 }));
    assert_eq!(credential(b"0123456701234567012345670123456"), length(31, 32, 4096));
    assert_eq!(credential(b"01234567012345670123456701234567"), Ok(()));
    assert_eq!(credential(&[7; 4097]), length(4097, 32, 4096));

    let passphrase =
        |text: &[u8], iterations| Protector::of_passphrase(text, &[1; 16], iterations).map(|_| ());
    assert_eq!(passphrase(b"thirteen long", MIN_ITERATIONS), length(13, 14, 1024));
    for found in [0, 1, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1] {
        assert_eq!(passphrase(b"long as needed", found), Err(WeakSecret::Iterations { found }));
    }
}

/// Computed with Python: `hashlib.pbkdf2_hmac` and `hashlib.sha256`, then HMAC-SHA256 over
/// `00000001 ‖ label ‖ 00 ‖ 00000100`.
#[test]
fn protectors_agree_with_an_independent_implementation() {
    let credential = Protector::of_credential(b"0123456789abcdef0123456789abcdef").unwrap();
    assert_eq!(
        hex::encode(credential.0.bytes()),
        "54f4606230b0e279ea71d091bf075a06ba7d6e42c5344f479a3f8c9e6326f5b5"
    );
    let passphrase =
        Protector::of_passphrase(b"correct horse battery", b"0123456789abcdef", MIN_ITERATIONS).unwrap();
    assert_eq!(
        hex::encode(passphrase.0.bytes()),
        "8827b40517c2dd657ddaef2dfd8e284ce5560f963953d5b63dcc43cb18a26192"
    );
}

#[test]
fn debug_shows_nothing() {
    let protector = Protector::of_credential(b"0123456789abcdef0123456789abcdef").unwrap();
    assert_eq!(format!("{protector:?} {:?}", SealingKey::generate()), "Protector(…) SealingKey(…)");
}
