#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn key_ids() {
    for (len, ok) in [(0, false), (1, true), (1023, true), (1024, true), (1025, false)] {
        let found = check_key_id(&"k".repeat(len));
        assert_eq!(found.is_ok(), ok, "{len}");
        if !ok {
            assert_eq!(found, Err(Violation::KeyId { found: len }));
        }
    }
    // Bytes count, not characters.
    assert_eq!(check_key_id(&"é".repeat(512)), Ok(()));
    assert_eq!(check_key_id(&"é".repeat(513)), Err(Violation::KeyId { found: 1026 }));
}

#[test]
fn ciphertexts() {
    for (len, ok) in [(0, false), (1, true), (1024, true), (1025, false)] {
        assert_eq!(check_ciphertext(&vec![7; len]).is_ok(), ok, "{len}");
    }
}

#[test]
fn dek_sources() {
    for (len, ok) in [
        (0, false),
        (1, false),
        (15, false),
        (16, true),
        (17, false),
        (24, true),
        (31, false),
        (32, true),
        (33, true),
        (4096, true),
    ] {
        assert_eq!(check_dek_source(&vec![7; len]).is_ok(), ok, "{len}");
    }
}

#[test]
fn versions_and_health() {
    for version in ["v2", "v2beta1"] {
        assert_eq!(check_version(version), Ok(()));
    }
    for version in ["", "v1", "V2", "v2 ", "v2beta2", "v3"] {
        assert!(check_version(version).is_err(), "{version:?}");
    }
    assert_eq!(check_healthz("ok"), Ok(()));
    for healthz in ["", "OK", "ok\n", "healthy"] {
        assert!(check_healthz(healthz).is_err(), "{healthz:?}");
    }
}

#[test]
fn annotation_sizes() {
    let key = "a.b";
    for (total, ok) in [(3, true), (32_767, true), (32_768, true), (32_769, false)] {
        let annotations = annotations(&[(key, total - key.len())]);
        assert_eq!(check_annotations(&annotations).is_ok(), ok, "{total}");
    }
    // Keys count too, and so does each annotation.
    let two = annotations(&[("a.b", 16_381), ("c.d", 16_381)]);
    assert_eq!(check_annotations(&two), Ok(()));
    let two = annotations(&[("a.b", 16_381), ("c.d", 16_382)]);
    assert_eq!(check_annotations(&two), Err(Violation::Annotations { found: 32_769 }));
    assert_eq!(check_annotations(&BTreeMap::new()), Ok(()));
}

#[test]
fn annotation_keys() {
    use AnnotationKeyFault::*;
    let label63 = "a".repeat(63);
    let label64 = "a".repeat(64);
    let name253 = [label63.as_str(), &label63, &label63, &"a".repeat(61)].join(".");
    let name254 = [label63.as_str(), &label63, &label63, &"a".repeat(62)].join(".");
    let accepted = [
        "a.b",
        "record.casemate.dev",
        "0.1",
        "a-b.c-d.e",
        "xn--bcher-kva.example",
        "record.casemate.dev.",
        &format!("{label63}.b"),
        &name253,
        &format!("{name253}."),
    ];
    for key in accepted {
        assert_eq!(annotation_key_fault(key), None, "{key:?}");
    }
    let refused = [
        ("", Empty),
        (".", EmptyLabel),
        ("a", OneLabel),
        ("a.", OneLabel),
        (".a.b", EmptyLabel),
        ("a..b", EmptyLabel),
        ("a.b..", EmptyLabel),
        ("-a.b", Hyphen),
        ("a-.b", Hyphen),
        ("a.b-", Hyphen),
        ("A.b", Character('A')),
        ("a_b.c", Character('_')),
        ("a.b/c", Character('/')),
        ("a.b c", Character(' ')),
        ("bücher.example", Character('ü')),
        ("a.b\0", Character('\0')),
        (&format!("{label64}.b"), LabelTooLong(64)),
        (&name254, TooLong(254)),
    ];
    for (key, fault) in refused {
        assert_eq!(annotation_key_fault(key), Some(fault), "{key:?}");
    }
}

#[test]
fn messages_are_checked_field_by_field() {
    let good = EncryptResponse {
        ciphertext: vec![1].into(),
        key_id: "k".into(),
        annotations: annotations(&[("a.b", 1)]),
    };
    assert_eq!(check_encrypt_response(&good), Ok(()));
    let bad = [
        (EncryptResponse { ciphertext: Bytes::new(), ..good.clone() }, Violation::Ciphertext { found: 0 }),
        (EncryptResponse { key_id: String::new(), ..good.clone() }, Violation::KeyId { found: 0 }),
        (
            EncryptResponse { annotations: annotations(&[("a.b", 32_766)]), ..good.clone() },
            Violation::Annotations { found: 32_769 },
        ),
    ];
    for (reply, violation) in bad {
        assert_eq!(check_encrypt_response(&reply), Err(violation.clone()));
        let stored = DecryptRequest {
            ciphertext: reply.ciphertext,
            uid: String::new(),
            key_id: reply.key_id,
            annotations: reply.annotations,
        };
        assert_eq!(check_decrypt_request(&stored), Err(violation));
    }
    let short = DecryptResponse { plaintext: vec![0; 31].into() };
    assert_eq!(check_decrypt_response(&short), Err(Violation::DekSource { found: 31 }));
    let short = EncryptRequest { plaintext: vec![0; 31].into(), uid: String::new() };
    assert_eq!(check_encrypt_request(&short), Err(Violation::DekSource { found: 31 }));
}

#[test]
fn a_status_is_told_everything_at_once() {
    let good = StatusResponse { version: "v2".into(), healthz: "ok".into(), key_id: "k".into() };
    assert_eq!(check_status(&good), []);
    let bad =
        StatusResponse { version: "v1".into(), healthz: "key service away".into(), key_id: String::new() };
    assert_eq!(
        check_status(&bad),
        [
            Violation::Version { found: "v1".into() },
            Violation::Healthz { found: "key service away".into() },
            Violation::KeyId { found: 0 },
        ]
    );
}

#[test]
fn texts_say_what_is_accepted_and_stay_short() {
    let text = check_key_id(&"k".repeat(2000)).unwrap_err().to_string();
    assert_eq!(text, "the key id has 2000 bytes; accepted are 1 to 1024");
    let text = check_annotation_key(&format!("{}/x", "a.".repeat(50_000))).unwrap_err().to_string();
    assert!(text.len() < 1024, "{} bytes", text.len());
    let text = check_annotation_key("a.b/c").unwrap_err().to_string();
    assert!(text.starts_with(r#"annotation key "a.b/c" has the character '/'; accepted is"#), "{text}");
}

fn annotations(pairs: &[(&str, usize)]) -> BTreeMap<String, Bytes> {
    pairs.iter().map(|(key, value)| (key.to_string(), Bytes::from(vec![0; *value]))).collect()
}
