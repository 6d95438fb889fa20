use std::collections::BTreeMap;

use proptest::prelude::*;

use super::messages::{ConfigMap, ObjectMeta, OwnerReference, Secret, Time, TypeMeta, Unknown};
use super::*;

fn stored(api_version: &str, kind: &str, message: &impl Message) -> Zeroizing<Vec<u8>> {
    let type_meta = TypeMeta { api_version: Some(api_version.into()), kind: Some(kind.into()) };
    let unknown = Unknown {
        type_meta: Some(type_meta),
        raw: Some(message.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    };
    Zeroizing::new([PROTOBUF, &unknown.encode_to_vec()].concat())
}

fn text(manifest: &Manifest) -> &str {
    std::str::from_utf8(&manifest.bytes).unwrap()
}

#[test]
fn a_secret_is_yaml_with_all_that_it_had() {
    let owner = OwnerReference {
        kind: Some("Pod".into()),
        name: Some("p".into()),
        uid: Some("u2".into()),
        api_version: Some("v1".into()),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let secret = Secret {
        metadata: Some(ObjectMeta {
            name: Some("db".into()),
            generate_name: Some(String::new()),
            namespace: Some("prod".into()),
            uid: Some("u1".into()),
            generation: Some(0),
            creation_timestamp: Some(Time { seconds: Some(1_764_549_025), nanos: Some(0) }),
            labels: BTreeMap::from([("on".into(), "yes".into()), ("number".into(), "1e3".into())]),
            annotations: BTreeMap::from([("a/b".into(), "line\n\u{85}\u{2028}\"\\ü\u{1F512}\u{7f}".into())]),
            owner_references: vec![owner],
            finalizers: vec!["keep".into()],
            ..ObjectMeta::default()
        }),
        data: BTreeMap::from([("password".into(), b"hunter2".to_vec()), ("empty".into(), vec![])]),
        r#type: Some("Opaque".into()),
        immutable: Some(true),
    };
    let manifest = Manifest::of(stored("v1", "Secret", &secret));
    assert_eq!(manifest.extension, "yaml");
    assert_eq!(
        text(&manifest),
        r#"apiVersion: v1
kind: Secret
metadata:
  name: "db"
  namespace: "prod"
  uid: "u1"
  creationTimestamp: "2025-12-01T00:30:25Z"
  labels:
    "number": "1e3"
    "on": "yes"
  annotations:
    "a/b": "line\n\u0085\u2028\"\\ü🔒\u007F"
  ownerReferences:
  - kind: "Pod"
    apiVersion: "v1"
    name: "p"
    uid: "u2"
    controller: true
  finalizers:
  - "keep"
data:
  "empty": ""
  "password": "aHVudGVyMg=="
type: "Opaque"
immutable: true
"#
    );
}

/// A field of a later version: number, then two bytes.
fn later(number: u32) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut field);
    [&field[..], &[2, b'h', b'i']].concat()
}

/// A field that holds a message.
fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[test]
fn an_object_with_fields_of_a_later_version_is_told_as_it_was_stored_too() {
    let stored_as = |kind: &str, raw: Vec<u8>| {
        let type_meta = TypeMeta { api_version: Some("v1".into()), kind: Some(kind.into()) };
        let unknown = Unknown { type_meta: Some(type_meta), raw: Some(raw), ..Unknown::default() };
        Zeroizing::new([PROTOBUF, &unknown.encode_to_vec()].concat())
    };
    let name = [&[0x0a, 1][..], b"n"].concat();
    let metadata = |more: Vec<u8>| message(1, &[&name[..], &more].concat());
    let owner = |more: Vec<u8>| message(13, &[&message(3, b"o")[..], &more].concat());
    let data = message(2, &[message(1, b"k"), message(2, b"v")].concat());
    // `selfLink`, `resourceVersion`, `managedFields`: nobody misses these.
    let left_out = [message(4, b"/a"), message(6, b"7"), [&[0x8a, 1, 3][..], b"abc"].concat()].concat();
    for (raw, is_all) in [
        ([metadata(vec![]), data.clone()].concat(), true),
        ([metadata(left_out), data.clone()].concat(), true),
        ([metadata(owner(vec![])), data.clone()].concat(), true),
        ([metadata(vec![]), data.clone(), later(6)].concat(), false),
        ([metadata(later(18)), data.clone()].concat(), false),
        ([metadata(owner(later(8))), data.clone()].concat(), false),
        ([metadata(message(8, &later(3))), data.clone()].concat(), false),
        ([metadata(vec![]), message(2, &[message(1, b"k"), later(3)].concat())].concat(), false),
        ([metadata(message(11, &later(3))), data.clone()].concat(), false),
        // `stringData`, which no API server stores.
        ([metadata(vec![]), later(4)].concat(), false),
    ] {
        let object = stored_as("Secret", raw.clone());
        let manifest = Manifest::of(object.clone());
        assert_eq!(manifest.extension, "yaml", "{raw:?}");
        assert_eq!(manifest.stored, (!is_all).then_some(object), "{raw:?}");
        assert!(text(&manifest).contains("name: \"n\""));
    }
    let around = Zeroizing::new([&stored_as("Secret", metadata(vec![]))[..], &later(5)].concat());
    assert!(Manifest::of(around).stored.is_some());
    let map = stored_as("ConfigMap", [metadata(vec![]), later(5)].concat());
    assert!(Manifest::of(map).stored.is_some());
    let map =
        stored_as("ConfigMap", [metadata(vec![]), message(3, &message(1, b"k")), vec![4 << 3, 1]].concat());
    assert!(Manifest::of(map).stored.is_none());
}

#[test]
fn other_kinds_stay_as_they_were_stored() {
    let map = ConfigMap { metadata: Some(ObjectMeta::default()), ..ConfigMap::default() };
    assert_eq!(
        text(&Manifest::of(stored("v1", "ConfigMap", &map))),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n"
    );
    let pod = stored("v1", "Pod", &map);
    for (object, extension) in [
        (pod.to_vec(), "pb"),
        (stored("example.com/v1", "Secret", &map).to_vec(), "pb"),
        (br#"{"apiVersion": "a/v1", "kind": "Thing", "n": 1.50}"#.to_vec(), "json"),
        (b"\xd9\xd9\xf7\xa1".to_vec(), "cbor"),
        (br#"{"kind": "Thing"}"#.to_vec(), "bin"),
        (br#"{"apiVersion": "a/v1", "kind": "Thing"} x"#.to_vec(), "bin"),
        (b"k8s\0".to_vec(), "bin"),
        (b"12345".to_vec(), "bin"),
        (pod[..pod.len() - 5].to_vec(), "bin"),
        (vec![], "bin"),
    ] {
        let manifest = Manifest::of(Zeroizing::new(object.clone()));
        assert_eq!((manifest.extension, &manifest.bytes[..]), (extension, &object[..]));
    }
    let shape = Shape::Protobuf { api_version: "v1".into(), kind: "Pod".into() };
    assert_eq!(Shape::of(&pod), shape);
}

proptest! {
    /// Whatever a ConfigMap holds, a reader of YAML reads the same.
    #[test]
    fn yaml_says_what_the_object_says(
        data in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..5),
        binary in proptest::collection::btree_map("[a-z]{1,3}", proptest::collection::vec(any::<u8>(), 0..20), 0..3),
        name in any::<String>(),
    ) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Read {
            kind: String,
            metadata: BTreeMap<String, String>,
            #[serde(default)]
            data: BTreeMap<String, String>,
            #[serde(default)]
            binary_data: BTreeMap<String, String>,
        }
        let metadata = Some(ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() });
        let map = ConfigMap { metadata, data: data.clone(), binary_data: binary.clone(), immutable: None };
        let manifest = Manifest::of(stored("v1", "ConfigMap", &map));
        let read: Read = serde_saphyr::from_str(text(&manifest)).unwrap();
        prop_assert_eq!((read.kind.as_str(), &read.data), ("ConfigMap", &data));
        prop_assert_eq!(read.metadata.get("name").cloned().unwrap_or_default(), name);
        prop_assert_eq!(read.binary_data.len(), binary.len());
        prop_assert!(manifest.stored.is_none());
    }

    #[test]
    fn no_bytes_are_too_strange(object in proptest::collection::vec(any::<u8>(), 0..100), proto in any::<bool>()) {
        let object = if proto { [PROTOBUF, &object[..]].concat() } else { object };
        let manifest = Manifest::of(Zeroizing::new(object.clone()));
        prop_assert!(manifest.extension == "yaml" || manifest.bytes[..] == object[..]);
    }
}
