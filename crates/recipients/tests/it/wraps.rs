//! What is wrapped opens, fits, and does not open when it was changed.

use std::io::Write;

use casemate_keys::{
    Algorithm, Core, Epoch, LocalKek, MAX_WRAP_LEN as MAX_ROOT_WRAP, Record, Root, Suite, WritePolicy,
    payload,
};
use casemate_recipients::{Identity, MAX_WRAP_LEN, UnwrapError};
use proptest::prelude::*;

const PAYLOAD: [u8; payload::LEN] = [7; payload::LEN];

#[test]
fn wraps_differ_open_and_keep_to_their_budget() {
    let identity = Identity::generate();
    let recipient = identity.recipient();
    let mut lengths = Vec::new();
    for _ in 0..500 {
        let wrap = recipient.wrap(&PAYLOAD).unwrap();
        assert_eq!(*identity.unwrap(&wrap).unwrap(), PAYLOAD);
        assert_eq!(Identity::generate().unwrap(&wrap).unwrap_err(), UnwrapError::OtherIdentity);
        lengths.push(wrap.len());
    }
    lengths.sort_unstable();
    assert!(lengths[0] >= 277 && lengths[499] <= MAX_WRAP_LEN, "{lengths:?}");
    assert_ne!(recipient.wrap(&PAYLOAD).unwrap(), recipient.wrap(&PAYLOAD).unwrap());
}

/// A record under four of the largest roots that the format plans for, and `identities`.
fn record(identities: &[Identity]) -> Record {
    let root = |n: usize| Root {
        lineage: format!("pkcs11:{n:032x}").parse().unwrap(),
        algorithm: Algorithm::RSA_OAEP_SHA256,
    };
    let kek = LocalKek::generate();
    let recipients: Vec<_> = identities.iter().map(Identity::recipient).collect();
    let fingerprints = recipients.iter().map(|recipient| recipient.fingerprint()).collect();
    let policy = WritePolicy::new(
        Suite::One,
        "prod".parse().unwrap(),
        Epoch(0),
        (0..4).map(root).collect(),
        fingerprints,
        None,
    )
    .unwrap();
    let core = Core { policy, kek_id: kek.id(), created: 1, writer: "test/1".parse().unwrap() };
    let payload = payload::encode(&kek, &core.digest());
    let wraps = core.policy.recipients().iter().map(|fingerprint| {
        recipients
            .iter()
            .find(|recipient| recipient.fingerprint() == *fingerprint)
            .unwrap()
            .wrap(&payload)
            .unwrap()
    });
    let wraps = wraps.collect();
    Record::new(core, vec![vec![1; 512]; 4], wraps, None).unwrap()
}

#[test]
fn each_recipient_adds_at_most_500_bytes_and_four_fit_beside_four_roots() {
    const { assert!(MAX_WRAP_LEN < MAX_ROOT_WRAP) };
    for _ in 0..50 {
        let identities: Vec<Identity> = (0..4).map(|_| Identity::generate()).collect();
        let without = record(&[]).encode().len();
        for count in 1..=4 {
            let record = record(&identities[..count]);
            let added = record.encode().len() - without;
            assert!((count * 314..=count * 491).contains(&added), "{added} for {count}");
            assert_eq!(Record::decode(&record.encode()).unwrap(), record);
            for (fingerprint, wrap) in record.recovery_wraps() {
                let identity =
                    identities.iter().find(|one| one.recipient().fingerprint() == *fingerprint).unwrap();
                let payload = identity.unwrap(wrap).unwrap();
                assert_eq!(record.core().local_kek(&*payload).unwrap().id(), record.core().kek_id);
            }
        }
    }
}

#[test]
fn a_payload_of_another_record_is_not_its_local_kek() {
    let identity = Identity::generate();
    let one = record(std::slice::from_ref(&identity));
    let other = record(std::slice::from_ref(&identity));
    let payload = |record: &Record| identity.unwrap(record.recovery_wraps().next().unwrap().1).unwrap();
    assert!(one.core().local_kek(&*payload(&one)).is_some());
    assert!(one.core().local_kek(&*payload(&other)).is_none());
    // The digest right, the key wrong: its id tells.
    let mut mixed = payload(&one);
    mixed[..32].copy_from_slice(&payload(&other)[..32]);
    assert!(one.core().local_kek(&*mixed).is_none());
    for length in [0, 63] {
        assert!(one.core().local_kek(&payload(&one)[..length]).is_none());
    }
}

#[test]
fn no_changed_bit_and_no_cut_opens() {
    let identity = Identity::generate();
    let wrap = identity.recipient().wrap(&PAYLOAD).unwrap();
    for bit in 0..wrap.len() * 8 {
        let mut changed = wrap.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(identity.unwrap(&changed).is_err(), "bit {bit} of {}", wrap.len());
    }
    for length in 0..wrap.len() {
        assert!(identity.unwrap(&wrap[..length]).is_err(), "{length}");
    }
    assert_eq!(identity.unwrap(&[&wrap[..], b"a"].concat()).unwrap_err(), UnwrapError::PayloadLength);
}

#[test]
fn what_is_no_recovery_wrap_is_told() {
    let identity = Identity::generate();
    let mac = "A".repeat(43);
    let file = |stanzas: &str| {
        [format!("age-encryption.org/v1\n{stanzas}--- {mac}\n").as_bytes(), &[0; 96]].concat()
    };
    let share = "A".repeat(43);
    for (file, error) in [
        (Vec::new(), UnwrapError::NotAge),
        (b"-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n".to_vec(), UnwrapError::NotAge),
        (file(&format!("-> scrypt {} 30\n{share}\n", "A".repeat(22))), UnwrapError::Passphrase),
        (file(&format!("-> X25519 {share}\n{share}\n-> scrypt a 1\n{share}\n")), UnwrapError::Passphrase),
        (file(&format!("-> ssh-rsa abcd\n{share}\n")), UnwrapError::OtherIdentity),
        // A share of low order.
        (file(&format!("-> X25519 {share}\n{share}\n")), UnwrapError::Damaged),
        (vec![b'a'; 2049], UnwrapError::TooLong { found: 2049 }),
    ] {
        assert_eq!(identity.unwrap(&file).map(|_| ()), Err(error));
    }
}

/// As somebody might encrypt a payload by hand.
#[test]
fn each_x25519_stanza_is_tried() {
    let identities = [Identity::generate(), Identity::generate(), Identity::generate()];
    let recipients = identities
        .each_ref()
        .map(|one| one.recipient().to_string().parse::<age::x25519::Recipient>().unwrap());
    let to = recipients[..2].iter().map(|one| one as &dyn age::Recipient);
    let mut wrap = Vec::new();
    let mut inside = age::Encryptor::with_recipients(to).unwrap().wrap_output(&mut wrap).unwrap();
    inside.write_all(&PAYLOAD).unwrap();
    inside.finish().unwrap();
    for identity in &identities[..2] {
        assert_eq!(*identity.unwrap(&wrap).unwrap(), PAYLOAD);
    }
    assert_eq!(identities[2].unwrap(&wrap).unwrap_err(), UnwrapError::OtherIdentity);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let identity = Identity::generate();
        prop_assert!(identity.unwrap(&bytes).is_err());
        prop_assert!(Identity::parse(&bytes).is_err());
    }

    #[test]
    fn changed_headers_never_panic(at in 0_usize..260, gone in 0_usize..40, put in "[ -~\n]{0,40}") {
        let identity = Identity::generate();
        let wrap = identity.recipient().wrap(&PAYLOAD).unwrap();
        let changed = [&wrap[..at], put.as_bytes(), &wrap[(at + gone).min(wrap.len())..]].concat();
        prop_assert!(changed == wrap || identity.unwrap(&changed).is_err());
    }
}
