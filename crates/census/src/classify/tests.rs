use std::collections::BTreeMap;

use casemate_keys::names::sha256;
use casemate_keys::{
    Algorithm, Core, Epoch, Fingerprint, LocalKek, RECORD_ANNOTATION, Record, Root, Suite, WritePolicy,
};
use casemate_wire::kms_v2::stored::{EncryptedObject, StoredError, StoredFault, StoredValue};
use proptest::prelude::*;
use prost::bytes::Bytes;

use super::*;

/// Stands wherever something must not be shown; no name holds it.
const MARK: &str = "MARKofASecret";

fn record() -> Record {
    let root =
        Root { lineage: "transit:/transit/k8s/3/1764500000".parse().unwrap(), algorithm: Algorithm::TRANSIT };
    let (cluster, recipient) = ("prod".parse().unwrap(), Fingerprint([9; 32]));
    let core = Core {
        policy: WritePolicy::new(Suite::One, cluster, Epoch(0), vec![root], vec![recipient], None).unwrap(),
        kek_id: LocalKek::from_bytes(&[7; 32]).unwrap().id(),
        created: 1_764_500_000,
        writer: "test/1".parse().unwrap(),
    };
    Record::new(core, vec![MARK.into()], vec![MARK.into()], None).unwrap()
}

fn ours() -> EncryptedObject {
    let record = record();
    let mut sealed = vec![1; 93];
    sealed[20..20 + MARK.len()].copy_from_slice(MARK.as_bytes());
    EncryptedObject {
        encrypted_data: MARK.repeat(9).into_bytes().into(),
        key_id: record.core().policy.key_id().to_string(),
        encrypted_dek_source: sealed.into(),
        annotations: BTreeMap::from([(RECORD_ANNOTATION.to_owned(), record.encode().into())]),
        encrypted_dek_source_type: 1,
    }
}

fn stored(object: EncryptedObject) -> Vec<u8> {
    StoredValue { provider: "casemate", object }.encode()
}

fn with(change: impl Fn(&mut EncryptedObject)) -> Vec<u8> {
    let mut object = ours();
    change(&mut object);
    stored(object)
}

fn kms_v2(value: &[u8]) -> Arc<KmsV2> {
    match classify(value) {
        Class::KmsV2(found) => found,
        other => panic!("{other:?}"),
    }
}

fn malformed(value: &[u8]) -> Malformed {
    match classify(value) {
        Class::Malformed(found) => *found,
        other => panic!("{other:?}"),
    }
}

fn local(cipher: Cipher, bytes: usize) -> Vec<u8> {
    let mut value = format!("k8s:enc:{cipher}:v1:key1:").into_bytes();
    value.extend(MARK.bytes().cycle().take(bytes));
    value
}

fn protobuf() -> Vec<u8> {
    let mut value = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x0d".to_vec();
    value.extend(MARK.as_bytes());
    value.extend(b"\x1a\x00\x22\x00");
    value
}

fn kms_v1() -> Vec<u8> {
    [b"k8s:enc:kms:v1:old:\0\x0d", MARK.as_bytes(), MARK.as_bytes()].concat()
}

/// One of each class.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let mut samples = vec![
        protobuf(),
        format!(r#"{{"kind":"Secret","data":"{MARK}"}}"#).into(),
        MARK.into(),
        kms_v1(),
        stored(ours()),
    ];
    samples.extend(
        [(Cipher::AesCbc, 48), (Cipher::AesGcm, 41), (Cipher::SecretBox, 41)].map(|(c, n)| local(c, n)),
    );
    samples
}

fn assert_hidden(class: &Class) {
    let shown = format!("{class:?}");
    assert!(!shown.contains(MARK) && !shown.contains(&format!("{:?}", MARK.as_bytes())), "{shown}");
}

#[test]
fn each_class_is_told_with_its_names() {
    assert_eq!(classify(&protobuf()), Class::PlainProtobuf);
    assert_eq!(classify(br#" {"kind":"Widget"}"#), Class::PlainJson);
    for other in [&b""[..], b"12345", b"[1]", b"k8s:", b"k8s", MARK.as_bytes()] {
        assert_eq!(classify(other), Class::PlainOther);
    }
    for (cipher, bytes) in [(Cipher::AesCbc, 32), (Cipher::AesGcm, 28), (Cipher::SecretBox, 40)] {
        let key = Name::Shown("key1".into());
        assert_eq!(classify(&local(cipher, bytes)), Class::Local { cipher, key });
    }
    assert_eq!(classify(&kms_v1()), Class::KmsV1 { provider: Name::Shown("old".into()) });
    for sample in samples() {
        assert_hidden(&classify(&sample));
    }
}

#[test]
fn of_our_records_everything_that_opens_them_is_told() {
    let KmsV2 { provider, key_id, dek_source, annotations, casemate } = &*kms_v2(&stored(ours()));
    let (object, record) = (ours(), record());
    assert!(provider.is("casemate") && key_id.is(&object.key_id));
    assert_eq!((dek_source.kind, dek_source.bytes), (DekSourceKind::Seed, 93));
    assert_eq!(dek_source.digest, sha256(&object.encrypted_dek_source));
    assert!(matches!(&annotations[..], [one] if one.name.is(RECORD_ANNOTATION) && one.says.is_none()));
    let casemate = casemate.as_ref().unwrap();
    assert_eq!(casemate.record.as_deref(), Some(&record));
    assert_eq!((casemate.bytes, &casemate.faults[..]), (record.encode().len(), &[][..]));
}

#[test]
fn what_casemate_kms_would_refuse_is_told() {
    let faults = |change: &dyn Fn(&mut EncryptedObject)| {
        let found = kms_v2(&with(change));
        assert_hidden(&Class::KmsV2(found.clone()));
        found.casemate.clone().unwrap().faults
    };
    let derived = record().core().policy.key_id();
    assert_eq!(faults(&|object| object.key_id.push('x')), [RecordFault::KeyId { derived }]);
    assert_eq!(faults(&|object| object.annotations.clear()), [RecordFault::Missing]);
    let other = |object: &mut EncryptedObject| {
        object.annotations.insert("b.example.com".into(), Bytes::from_static(b"x"));
    };
    assert_eq!(faults(&other), [RecordFault::Others { count: 1 }]);
    let short = |object: &mut EncryptedObject| object.encrypted_dek_source = vec![1; 76].into();
    assert!(matches!(faults(&short)[..], [RecordFault::Ciphertext(_)]));
    let no_record = |object: &mut EncryptedObject| {
        object.annotations.insert(RECORD_ANNOTATION.into(), Bytes::from_static(MARK.as_bytes()));
    };
    assert!(matches!(faults(&no_record)[..], [RecordFault::Record(_)]));
}

#[test]
fn what_other_plugins_reveal() {
    let found = kms_v2(&with(|object| {
        object.key_id = "1".into();
        object.encrypted_dek_source = Bytes::from_static(b"vault:v12:MARKofASecret");
        object.encrypted_dek_source_type = 0;
        object.annotations = [
            ("algorithm.azure.akv.io", "RSA-OAEP-256"),
            ("date.azure.akv.io", "\n"),
            ("mask.example.com", MARK),
        ]
        .map(|(name, value)| (name.to_owned(), Bytes::from_static(value.as_bytes())))
        .into();
    }));
    assert!(found.casemate.is_none() && found.key_id.is("1"));
    assert_eq!(
        (found.dek_source.kind, found.dek_source.transit_version),
        (DekSourceKind::AesGcmKey, Some(12))
    );
    let told: Vec<_> =
        found.annotations.iter().map(|one| one.says.as_ref().map(ToString::to_string)).collect();
    assert_eq!(told, [Some("RSA-OAEP-256".to_owned()), None, None]);
    assert_hidden(&Class::KmsV2(found));
}

#[test]
fn what_contradicts_its_mark_is_malformed_with_the_reason() {
    let whole = stored(ours());
    let local_of = |cipher| Claim::Local(cipher);
    let cases: [(&[u8], Claim, Option<&str>, &str); 12] = [
        (b"k8s:enc:", Claim::UnknownProvider, None, "byte 8: after `k8s:enc:` stand"),
        (b"k8s:enc:rot13:v1:key1:", Claim::UnknownProvider, None, "of a later Kubernetes"),
        (b"k8s:enc:kms:v2:", Claim::KmsV2, None, "byte 15: after `k8s:enc:kms:v2:` stands no provider name"),
        (b"k8s:enc:kms:v2:a", Claim::KmsV2, None, "no provider name"),
        (b"k8s:enc:kms:v2:a:", Claim::KmsV2, Some("a"), "the key id has 0 bytes"),
        (&whole[..60], Claim::KmsV2, Some("casemate"), "byte 24: the protobuf message breaks"),
        (b"k8s:enc:aescbc:v1:key1", local_of(Cipher::AesCbc), None, "byte 18: no name"),
        (b"k8s:enc:aescbc:v1::", local_of(Cipher::AesCbc), None, "byte 18: no name"),
        (
            &local(Cipher::AesCbc, 47),
            local_of(Cipher::AesCbc),
            Some("key1"),
            "byte 23: 47 bytes follow; aescbc",
        ),
        (&local(Cipher::SecretBox, 39), local_of(Cipher::SecretBox), Some("key1"), "at least 40"),
        (&kms_v1()[..22], Claim::KmsV1, Some("old"), "byte 19: here stand"),
        (br#"{"kind":"Secret""#, Claim::Json, None, "line 1, column 16"),
    ];
    for (value, claims, name, reason) in cases {
        let found = malformed(value);
        assert_eq!((found.claims, found.name.map(|name| name.to_string()).as_deref()), (claims, name));
        let told = found.reasons[0].to_string();
        assert!(told.contains(reason), "{told}");
    }
    assert_eq!(malformed(&protobuf()[..10]).claims, Claim::Protobuf);
    let short = malformed(&with(|object| object.encrypted_data = Bytes::from_static(b"too short")));
    assert!(short.key_id.unwrap().is(&ours().key_id));
    let refused = StoredFault::DataTooShort { found: 9, least: 60 };
    assert_eq!(short.reasons, [Malformation::Refused(refused)]);
}

#[test]
fn a_name_of_any_length_is_a_name_and_not_shown() {
    let long = "x".repeat(10_000);
    let value = StoredValue { provider: &long, object: ours() }.encode();
    let found = kms_v2(&value);
    assert!(found.provider.is(&long) && !found.provider.is("x"));
    assert!(found.provider.to_string().starts_with("(10000 bytes that are no name, sha256:"));
    let value = [b"k8s:enc:aescbc:v1:\n\xff:", &[0; 32][..]].concat();
    let Class::Local { key, .. } = classify(&value) else { panic!("no name is a name too") };
    assert!(matches!(key, Name::Hidden { bytes: 2, .. }));
}

#[test]
fn cut_off_at_each_byte_it_is_malformed_or_no_longer_marked() {
    let value = stored(ours());
    for end in 0..value.len() {
        let class = classify(&value[..end]);
        assert_hidden(&class);
        match &class {
            Class::PlainOther => assert!(end < 8, "{end}"),
            Class::Malformed(found) => {
                let whole = found.reasons.iter().all(|reason| match reason {
                    Malformation::Stored(error) => error.at() <= end,
                    Malformation::Refused(_) | Malformation::Provider => true,
                    _ => false,
                });
                assert!(whole && !found.reasons.is_empty(), "{end}: {found:?}");
            }
            // At the borders of the last two fields: as of an older kube-apiserver, or without our record.
            Class::KmsV2(found) => {
                let casemate = found.casemate.as_ref().unwrap();
                assert!(end + 2 == value.len() || casemate.faults == [RecordFault::Missing], "{end}");
            }
            other => panic!("{end}: {other:?}"),
        }
    }
    let prefix = malformed(b"k8s:enc:kms:v2:");
    assert_eq!(prefix.reasons, [Malformation::Stored(StoredError::Provider)]);
}

#[test]
fn values_of_one_dek_source_share_what_is_told_of_it() {
    let mut classifier = Classifier::new();
    let mut seen = |value: &[u8]| match classifier.classify(value) {
        Class::KmsV2(found) => found,
        other => panic!("{other:?}"),
    };
    let one = seen(&stored(ours()));
    let other_data = with(|object| object.encrypted_data = vec![5; 80].into());
    assert!(Arc::ptr_eq(&one, &seen(&other_data)));
    for other in [
        with(|object| object.key_id = "other".into()),
        with(|object| object.encrypted_dek_source = vec![1; 94].into()),
        with(|object| object.encrypted_dek_source_type = 0),
        with(|object| object.annotations.clear()),
        StoredValue { provider: "other", object: ours() }.encode(),
    ] {
        let found = seen(&other);
        assert!(!Arc::ptr_eq(&one, &found));
        assert_eq!(found, kms_v2(&other));
    }
}

proptest! {
    #[test]
    fn any_bytes_have_a_class(
        mark in "(k8s\0|\\{|k8s:enc:((aescbc|aesgcm|secretbox|kms):v[12]:([a-z:]{0,5})?)?)?",
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let value = [mark.as_bytes(), &bytes].concat();
        let class = classify(&value);
        let is_marked = value.starts_with(b"k8s:enc:");
        let is_plain = matches!(class, Class::PlainProtobuf | Class::PlainJson | Class::PlainOther);
        prop_assert!(!(is_marked && is_plain), "{class:?}");
        if let Class::Malformed(malformed) = &class {
            prop_assert!(!malformed.reasons.is_empty());
        }
    }

    #[test]
    fn any_change_gives_a_class_that_shows_nothing(
        sample in 0..8_usize, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut value = samples().swap_remove(sample);
        for (place, byte) in changes {
            *place.get_mut(&mut value) = byte;
        }
        value.extend(tail);
        let class = classify(&value);
        prop_assert_eq!(&class, &Classifier::new().classify(&value));
        if let Class::Malformed(malformed) = &class {
            prop_assert!(!malformed.reasons.is_empty());
        }
    }
}
