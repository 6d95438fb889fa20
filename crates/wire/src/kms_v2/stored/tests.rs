#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use super::*;

fn sample() -> StoredValue<'static> {
    StoredValue {
        provider: "casemate",
        object: EncryptedObject {
            encrypted_data: vec![0xAA; 80].into(),
            key_id: "prod:1".into(),
            encrypted_dek_source: b"DEKDEKDEK".to_vec().into(),
            annotations: BTreeMap::from([("record.casemate.dev".into(), b"abc".to_vec().into())]),
            encrypted_dek_source_type: 1,
        },
    }
}

/// Written by hand from the contract: field numbers and types are not those of our own encoder.
fn by_hand() -> Vec<u8> {
    let mut value = b"k8s:enc:kms:v2:casemate:\x0a\x50".to_vec();
    value.extend([0xAA; 80]);
    value.extend(b"\x12\x06prod:1\x1a\x09DEKDEKDEK\x22\x1a\x0a\x13record.casemate.dev\x12\x03abc\x28\x01");
    value
}

#[test]
fn a_value_is_read_as_the_contract_says() {
    let value = by_hand();
    let parsed = parse(&value).unwrap();
    assert_eq!(parsed, sample());
    assert_eq!(parsed.encode(), value);
    assert_eq!(parsed.plaintext_len(), Some(20));
    assert_eq!(parsed.faults(), []);
    let shown = format!("{parsed:?}");
    assert!(!shown.contains("DEKDEK") && !shown.contains("abc"), "{shown}");
}

#[test]
fn errors_say_where() {
    let value = by_hand();
    let message = value.len() - parse(&value).unwrap().object.encoded_len();
    for (bytes, at) in [(&b"k8s:enc:kms:v1:a:"[..], 0), (b"k8s:enc:kms:v2:", 15), (b"k8s:enc:kms:v2::", 15)] {
        assert_eq!(parse(bytes).unwrap_err().at(), at, "{bytes:?}");
    }
    assert_eq!(parse(b"k8s:enc:kms:v2:\xff:"), Err(StoredError::Provider));
    let cut = parse(&value[..message + 40]).unwrap_err();
    assert_eq!(cut.at(), message);
    assert!(cut.to_string().contains("field 1 says that it has 80 bytes, and 38 follow"), "{cut}");
    let cut = parse(&value[..value.len() - 1]).unwrap_err();
    assert_eq!(cut.at(), value.len() - 2);
    // A line break at the end is the start of another field.
    let cut = parse(&[&value[..], b"\n"].concat()).unwrap_err();
    assert_eq!((cut.at(), cut.to_string().contains("ends in its length")), (value.len(), true), "{cut}");
    let mut not_text = value;
    not_text[message + 84] = 0xff;
    assert!(matches!(parse(&not_text), Err(StoredError::Protobuf { .. })));
}

#[test]
fn every_prefix_and_every_flip_is_an_answer() {
    let value = by_hand();
    for end in 0..value.len() {
        if let Err(error) = parse(&value[..end]) {
            assert!(error.at() <= end, "{end}: {error}");
        }
    }
    for bit in 0..value.len() * 8 {
        let mut flipped = value.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match parse(&flipped) {
            Ok(parsed) => assert_ne!(parsed, sample(), "bit {bit}"),
            Err(error) => assert!(error.at() < flipped.len(), "bit {bit}: {error}"),
        }
    }
}

#[test]
fn faults_are_those_that_kube_apiserver_finds() {
    let with = |change: fn(&mut EncryptedObject)| {
        let mut value = sample();
        change(&mut value.object);
        value
    };
    let one = |change| {
        let faults = with(change).faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap()
    };
    assert_eq!(one(|object| object.key_id.clear()), Violation::KeyId { found: 0 }.into());
    assert_eq!(one(|object| object.encrypted_dek_source.clear()), Violation::Ciphertext { found: 0 }.into());
    assert_eq!(
        one(|object| object.encrypted_data.truncate(59)),
        StoredFault::DataTooShort { found: 59, least: 60 }
    );
    assert_eq!(one(|object| object.encrypted_dek_source_type = 7), StoredFault::SourceType { found: 7 });
    assert_eq!(with(|object| object.encrypted_dek_source_type = 7).plaintext_len(), None);
    let key = with(|object| object.encrypted_dek_source_type = 0);
    assert_eq!((key.plaintext_len(), key.faults()), (Some(52), vec![]));
}
