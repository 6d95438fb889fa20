#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use base64::Engine as _;
use casemate_keys::{Algorithm, Core, Epoch, LocalKek, RECORD_ANNOTATION, Record, Root, Suite, WritePolicy};
use casemate_keyservice::file::{FileKeyId, Keyring, Secret, text as key_file_text};
use casemate_wire::kms_v2::EncryptResponse;
use casemate_wire::kms_v2::stored::{EncryptedObject, StoredValue};
use proptest::prelude::*;

use super::*;
use crate::kms::reply::Reply;
use crate::output::to_json;

/// Stands wherever something must not be shown; no name holds it.
const MARK: &str = "MARKofASecret";

fn now() -> Timestamp {
    Timestamp::from_second(1_764_500_000 + 86_400 * 3).unwrap()
}

fn record() -> Record {
    let root = Root { lineage: "exec:a/1".parse().unwrap(), algorithm: Algorithm::EXEC };
    let cluster = "prod".parse().unwrap();
    let core = Core {
        policy: WritePolicy::new(Suite::One, cluster, Epoch(0), vec![root], vec![], None).unwrap(),
        kek_id: LocalKek::from_bytes(&[7; 32]).unwrap().id(),
        created: 1_764_500_000,
        writer: "test/1".parse().unwrap(),
    };
    Record::new(core, vec![MARK.into()], vec![], None).unwrap()
}

fn ciphertext() -> Vec<u8> {
    let mut bytes = vec![1; 93];
    bytes[20..20 + MARK.len()].copy_from_slice(MARK.as_bytes());
    bytes
}

fn object() -> EncryptedObject {
    let record = record();
    EncryptedObject {
        encrypted_data: MARK.repeat(9).into_bytes().into(),
        key_id: record.core().policy.key_id().to_string(),
        encrypted_dek_source: ciphertext().into(),
        annotations: BTreeMap::from([(RECORD_ANNOTATION.to_owned(), record.encode().into())]),
        encrypted_dek_source_type: 1,
    }
}

fn stored(object: EncryptedObject) -> Vec<u8> {
    StoredValue { provider: "casemate", object }.encode()
}

fn reply() -> String {
    let EncryptedObject { key_id, encrypted_dek_source: ciphertext, annotations, .. } = object();
    to_json(&Reply::from(&EncryptResponse { ciphertext, key_id, annotations })).unwrap()
}

fn key_file() -> String {
    let id: FileKeyId = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
    key_file_text::render(&Keyring::new(id, None, Secret::generate(), now())).to_string()
}

/// Secrets of the key file, as it spells them.
fn secrets_of(key_file: &str) -> Vec<String> {
    key_file.split("secret: \"").skip(1).map(|rest| rest[..44].to_owned()).collect()
}

fn protobuf() -> Vec<u8> {
    let mut value = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x0d".to_vec();
    value.extend(MARK.as_bytes());
    value.extend(b"\x1a\x00\x22\x00");
    value
}

fn local(provider: &str, bytes: usize) -> Vec<u8> {
    let mut value = format!("k8s:enc:{provider}:v1:key1:").into_bytes();
    value.extend(MARK.bytes().cycle().take(bytes));
    value
}

fn kms_v1() -> Vec<u8> {
    [b"k8s:enc:kms:v1:old:\0\x0d", MARK.as_bytes(), MARK.as_bytes()].concat()
}

/// One of each kind, with the kind's name in JSON.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let json = format!(r#"{{"apiVersion":"v1","kind":"Secret","data":{{"a":"{MARK}"}}}}"#);
    vec![
        ("age_file", format!("age-encryption.org/v1\n-> X25519 {MARK}\n").into()),
        ("ciphertext", ciphertext()),
        ("encrypt_reply", reply().into()),
        ("etcd_kms_v1", kms_v1()),
        ("etcd_kms_v2", stored(object())),
        ("etcd_local", local("aescbc", 48)),
        ("etcd_local", local("aesgcm", 41)),
        ("etcd_local", local("secretbox", 41)),
        ("key_file", key_file().into()),
        ("pem", format!("-----BEGIN CERTIFICATE-----\n{MARK}\n-----END CERTIFICATE-----\n").into()),
        ("plain_json", json.into()),
        ("plain_protobuf", protobuf()),
        ("record", record().encode()),
        ("secret", format!("# created\nAGE-SECRET-KEY-1{MARK}\n").into()),
        ("secret", format!("-----BEGIN EC PRIVATE KEY-----\n{MARK}\n").into()),
        ("secret", format!("kind: EncryptionConfiguration\nsecret: {MARK}\n").into()),
        ("unknown", MARK.into()),
    ]
}

/// All that may be printed of `bytes`.
fn printed(bytes: &[u8]) -> (Answer, String) {
    let answer = look(bytes, None, now()).unwrap();
    let text = to_json(&answer).unwrap() + &answer.rows().concat().concat();
    (answer, text)
}

/// The mark in every spelling that a secret could leave by.
fn assert_hidden(text: &str, of: &str) {
    use base64::engine::general_purpose::STANDARD;
    for spelled in [MARK.to_owned(), hex::encode(MARK), STANDARD.encode(&MARK[..12])] {
        assert!(!text.contains(&spelled), "{of}: {text}");
    }
}

fn kind(answer: &Answer) -> String {
    serde_json::to_value(answer).unwrap()["kind"].as_str().unwrap().to_owned()
}

#[test]
fn each_kind_is_recognised_and_nothing_of_it_is_shown() {
    for (name, bytes) in samples() {
        let (answer, text) = printed(&bytes);
        assert_eq!(kind(&answer), name, "{text}");
        let expected = if name == "unknown" { Verdict::Unknown } else { Verdict::Recognised };
        assert_eq!(answer.verdict, expected, "{text}");
        assert_hidden(&text, name);
        for secret in secrets_of(&String::from_utf8_lossy(&bytes)) {
            assert!(!text.contains(&secret), "{text}");
        }
    }
}

#[test]
fn the_reference_names_every_field_and_kind() {
    fn fields(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => map.iter().for_each(|(name, value)| {
                into.push(name.clone());
                fields(value, into);
            }),
            serde_json::Value::Array(list) => list.iter().for_each(|value| fields(value, into)),
            _ => {}
        }
    }
    let page = include_str!("../../../../docs/reference/inspect.md");
    for (_, bytes) in samples().into_iter().chain([("etcd_other", b"k8s:enc:a:".to_vec())]) {
        let answer = serde_json::to_value(printed(&bytes).0).unwrap();
        let mut names = ["kind", "verdict"].map(|field| answer[field].as_str().unwrap().to_owned()).to_vec();
        fields(&answer, &mut names);
        assert!(names.len() > 8, "{names:?}");
        for name in names {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/reference/inspect.md does not explain `{name}`"
            );
        }
    }
}

#[test]
fn text_of_the_bytes_is_the_bytes() {
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    for (name, bytes) in samples().into_iter().filter(|(name, _)| *name != "unknown") {
        let base64 = STANDARD.encode(&bytes);
        let lines: Vec<&str> =
            base64.as_bytes().chunks(64).map(|l| std::str::from_utf8(l).unwrap()).collect();
        for (encoding, text) in [
            (input::Encoding::Hex, hex::encode(&bytes)),
            (input::Encoding::Hex, format!("0x{}\n", hex::encode_upper(&bytes))),
            (
                input::Encoding::Hex,
                bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>() + "\n",
            ),
            (
                input::Encoding::EtcdctlJson,
                format!("{{\"header\":{{}},\"kvs\":[{{\"key\":\"a\",\"value\":\"{base64}\"}}]}}\n"),
            ),
            (input::Encoding::Base64, lines.join("\n")),
            (input::Encoding::Base64, STANDARD_NO_PAD.encode(&bytes)),
        ] {
            let (found_out, shown) = printed(text.as_bytes());
            assert_eq!(kind(&found_out), name, "{shown}");
            let told = look(text.as_bytes(), Some(encoding), now()).unwrap();
            assert_eq!(told.rows(), found_out.rows());
            assert_hidden(&shown, name);
        }
    }
    for (encoding, text) in
        [(input::Encoding::Hex, "0g"), (input::Encoding::Hex, "0"), (input::Encoding::Base64, "?")]
    {
        assert!(look(text.as_bytes(), Some(encoding), now()).is_err(), "{text}");
    }
}

#[test]
fn more_than_a_value_of_etcdctl_is_answered_with_how_to_get_one() {
    let both = br#"{"header":{},"kvs":[{"key":"YQ==","value":"YQ=="},{"key":"Yg==","value":"Yg=="}]}"#;
    for text in [&b"/registry/secrets/default/a\nk8s"[..], br"\x2f\x72", both] {
        let (answer, shown) = printed(text);
        assert_eq!(answer.verdict, Verdict::Unknown);
        assert!(shown.contains("etcdctl get --print-value-only KEY"), "{shown}");
    }
}

#[test]
fn a_line_break_of_etcdctl_is_left_out_and_told() {
    for (name, mut bytes) in samples() {
        let ended = ["ciphertext", "etcd_kms_v2", "etcd_local", "plain_protobuf", "record"];
        if !ended.contains(&name) {
            continue;
        }
        bytes.push(b'\n');
        let (answer, text) = printed(&bytes);
        assert_eq!((kind(&answer).as_str(), answer.verdict), (name, Verdict::Recognised), "{text}");
        assert!(text.contains("line break"), "{text}");
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_an_answer_that_shows_nothing() {
    for (name, bytes) in samples() {
        let secrets = secrets_of(&String::from_utf8_lossy(&bytes));
        let check = |bytes: &[u8], change: String| {
            let (answer, text) = printed(bytes);
            assert_hidden(&text, &change);
            assert!(!secrets.iter().any(|secret| text.contains(&secret[..16])), "{change}: {text}");
            answer
        };
        for end in 0..bytes.len() {
            let answer = check(&bytes[..end], format!("{name} cut at {end}"));
            let ours = ["encrypt_reply", "etcd_kms_v2", "key_file", "plain_json", "record"];
            // A reply's last line break may go; a value without its last field is one of an older kube-apiserver.
            let whole_too = end + if name == "etcd_kms_v2" { 2 } else { 1 } == bytes.len();
            if ours.contains(&name) && !whole_too {
                assert_ne!(answer.verdict, Verdict::Recognised, "{name} cut at {end}: {:?}", answer.rows());
            }
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let answer = check(&flipped, format!("{name} with bit {bit} flipped"));
            if name == "key_file" {
                assert_ne!(answer.verdict, Verdict::Recognised, "bit {bit}");
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_follows_a_known_beginning_is_an_answer(
        (begin, tail, cut) in (0..14_usize, proptest::collection::vec(any::<u8>(), 0..400), 0..64_usize)
    ) {
        let beginnings: [&[u8]; 14] = [
            b"", b"k8s\0", b"k8s:enc:", b"k8s:enc:kms:v2:", b"k8s:enc:kms:v2:a:", b"k8s:enc:kms:v1:a:",
            b"k8s:enc:aescbc:v1:a:", b"k8s:enc:secretbox:v1:", b"\x0a\x40\x08\x01\x12\x04prod", b"\x01",
            b"{\"key_id\":", b"{\"apiVersion\":\"v1\",", b"-----BEGIN ", b"# A root key of Casemate",
        ];
        let bytes = [beginnings[begin], &tail].concat();
        for bytes in [&bytes[..], &bytes[cut.min(bytes.len())..]] {
            let (answer, _) = printed(bytes);
            prop_assert!(answer.verdict == Verdict::Unknown || kind(&answer) != "unknown");
        }
    }

    #[test]
    fn several_changes_at_once_are_an_answer_that_shows_nothing(
        sample in 0..17_usize, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let (name, mut bytes) = samples().swap_remove(sample);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        assert_hidden(&printed(&bytes).1, name);
    }
}

#[test]
fn faults_are_told_with_their_place() {
    let with = |change: fn(&mut EncryptedObject)| {
        let mut object = object();
        change(&mut object);
        stored(object)
    };
    let whole = stored(object());
    let cases: [(Vec<u8>, &str, &str); 18] = [
        (with(|object| object.annotations.clear()), "annotations", "record.casemate.dev is missing"),
        (whole[..60].to_vec(), "byte 24", "field 1 says that it has 117 bytes"),
        (b"k8s:enc:kms:v2:casemate".to_vec(), "byte 15", "no provider name"),
        (b"k8s:enc:aescbc:v1:key1".to_vec(), "byte 18", "no name that ends with `:`"),
        (b"k8s:enc:rot13:v1:key1:".to_vec(), "byte 8", "later Kubernetes"),
        (local("aescbc", 47), "byte 23", "47 bytes follow; aescbc makes a multiple of 16"),
        (local("secretbox", 39), "byte 26", "39 bytes follow; secretbox makes at least 40"),
        (kms_v1()[..22].to_vec(), "byte 19", "they are cut off"),
        (protobuf()[..10].to_vec(), "behind byte 4", "runtime.Unknown breaks"),
        (
            with(|object| object.key_id.push('x')),
            "keyID",
            "it is not that of the record's write policy, prod:",
        ),
        (
            with(|object| object.encrypted_dek_source = vec![1; 76].into()),
            "encryptedDEKSource",
            "a ciphertext has 77 to 573 bytes, found 76",
        ),
        (
            with(|object| object.encrypted_dek_source = vec![2; 93].into()),
            "encryptedDEKSource",
            "is of suite 2",
        ),
        (
            with(|object| {
                object.annotations.insert("b.example.com".into(), vec![1].into());
            }),
            "annotations",
            "1 beside record.casemate.dev",
        ),
        (
            with(|object| {
                object.annotations.insert(RECORD_ANNOTATION.into(), vec![1].into());
            }),
            "annotation record.casemate.dev",
            "not a record",
        ),
        (with(|object| object.key_id.clear()), "kube-apiserver refuses it", "the key id has 0 bytes"),
        (record().encode()[..80].to_vec(), "record", "not a record"),
        (reply().replace("\"ciphertext\": \"", "\"ciphertext\": \"?").into(), "ciphertext", "is not base64"),
        (key_file().replace("active: 1", "active: 2").into(), "the file", "it was changed"),
    ];
    for (bytes, place, what) in cases {
        let (answer, text) = printed(&bytes);
        assert_eq!(answer.verdict, Verdict::Faulty, "{text}");
        let json = serde_json::to_value(&answer).unwrap();
        let problem = &json["problems"][0];
        assert_eq!(problem["where"], place, "{text}");
        assert!(problem["what"].as_str().unwrap().contains(what), "{text}");
    }
}

#[test]
fn words_of_the_libraries_which_quote_are_not_repeated() {
    let cases = [
        (format!(r#"{{"key_id":"k","ciphertext":"AA==","annotations":"{MARK}"}}"#), Verdict::Faulty),
        (format!(r#"{{"key_id":"k","ciphertext":"AA==","{MARK}":1}}"#), Verdict::Faulty),
        (format!(r#"{{"key_id":"k","ciphertext":"{MARK}"}}"#), Verdict::Faulty),
        (format!(r#"{{"apiVersion":"v1","kind":"Secret","data":{MARK}}}"#), Verdict::Faulty),
        (format!(r#"{{"apiVersion":"v1","kind":"Secret {MARK}"}}"#), Verdict::Faulty),
        (format!(r#"{{"apiVersion":"v1","kind":["{MARK}"]}}"#), Verdict::Unknown),
        (key_file().replace("active: 1", &format!("active: {MARK}")), Verdict::Faulty),
    ];
    for (text, verdict) in cases {
        let (answer, shown) = printed(text.as_bytes());
        assert_eq!(answer.verdict, verdict, "{shown}");
        assert_hidden(&shown, &text);
    }
}

#[test]
fn a_value_of_another_plugin_is_told_as_far_as_anybody_can() {
    let mut object = object();
    object.annotations = BTreeMap::from([("mask.example.com".to_owned(), MARK.as_bytes().to_vec().into())]);
    object.key_id = "1".to_owned();
    let (answer, text) = printed(&stored(object));
    assert_eq!(answer.verdict, Verdict::Recognised, "{text}");
    assert_hidden(&text, "another plugin");
    for part in [
        "mask.example.com",
        "sha256:6b86b273ff34fce19d6b804eff5a3f57",
        "EncryptionConfiguration names casemate",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_record_of_a_state_directory_has_a_tag_behind_it() {
    let (alone, _) = printed(&record().encode());
    let (tagged, text) = printed(&[&record().encode()[..], &[7; 32]].concat());
    assert_eq!(tagged.verdict, Verdict::Recognised, "{text}");
    assert!(text.contains("not verified here"), "{text}");
    let details = |answer: &Answer| serde_json::to_value(answer).unwrap()["details"].clone();
    assert_eq!(details(&tagged), details(&alone));
    for length in [31, 33] {
        let (other, _) = printed(&[record().encode(), vec![7; length]].concat());
        assert_ne!(other.verdict, Verdict::Recognised, "{length}");
    }
}
