use std::collections::BTreeMap;

use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};
use casemate_keys::{Algorithm, Core, Epoch, Fingerprint, LocalKek, Root, Suite, WritePolicy};
use casemate_wire::kms_v2::EncryptResponse;
use casemate_wire::kms_v2::stored::StoredValue;
use proptest::prelude::*;

use super::*;
use crate::classify::classify;
use crate::recover::{NewSource, Sealer};

const PATH: &[u8] = b"/registry/secrets/a/one";
const OBJECT: &[u8] = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x08\x1a\x06MARKER\x1a\x00\x22\x00";
const KEYS: [(&str, &[u8]); 5] = [
    ("aescbc", &[1; 32]),
    ("aescbc", &[2; 16]),
    ("aesgcm", &[3; 32]),
    ("aesgcm", &[4; 16]),
    ("secretbox", &[5; 32]),
];

/// Answers what it was told to, and counts.
#[derive(Default)]
struct Double {
    kek: Option<LocalKek>,
    seed: Option<[u8; 32]>,
    v1: Option<Vec<u8>>,
    asked: BTreeMap<&'static str, usize>,
}

impl Double {
    fn ask(&mut self, what: &'static str) {
        *self.asked.entry(what).or_default() += 1;
    }
}

impl Unwrapper for Double {
    fn local_kek(&mut self, _: &Record, _: &Sealed<'_>) -> Result<Unwrapped, NotOpened> {
        self.ask("local_kek");
        let by = "recovery:".to_owned() + &"09".repeat(32);
        let (by, origin) = (by.parse().unwrap(), Origin::Unproven);
        self.kek.clone().map(|kek| Unwrapped { kek, by, origin }).ok_or(NotOpened::NoKey)
    }

    fn dek_source(&mut self, _: &str, _: &EncryptedObject) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        self.ask("dek_source");
        self.seed.map(|seed| Zeroizing::new(seed.to_vec())).ok_or(NotOpened::NoKey)
    }

    fn kms_v1_key(&mut self, _: &str, _: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        self.ask("kms_v1_key");
        self.v1.clone().map(Zeroizing::new).ok_or(NotOpened::NoKey)
    }
}

fn config(provider: &str, name: &str, key: &[u8]) -> EncryptionConfiguration {
    use base64::Engine as _;
    let secret = base64::engine::general_purpose::STANDARD.encode(key);
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers:\n  - {provider}: {{keys: [{{name: '{name}', secret: {secret}}}]}}\n"
    );
    EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap()
}

fn keys(configs: &[EncryptionConfiguration]) -> LocalKeys {
    let mut keys = LocalKeys::default();
    configs.iter().for_each(|config| keys.add(config));
    keys
}

fn local(provider: &str, name: &str, key: &[u8]) -> Vec<u8> {
    Sealer::new(&config(provider, name, key)).unwrap().seal("/registry", PATH, OBJECT).unwrap().to_vec()
}

fn open(opener: &mut Opener<Double>, path: &[u8], value: &[u8]) -> Result<Opened, Closed> {
    let class = opener.classify(value);
    assert_eq!(class, classify(value));
    opener.open(path, value, &class)
}

fn why(opened: Result<Opened, Closed>) -> NotOpened {
    opened.map(drop).unwrap_err().why
}

/// A value of `casemate-kms`, and its local KEK.
fn ours() -> (Vec<u8>, LocalKek) {
    let kek = LocalKek::generate();
    let root =
        Root { lineage: "transit:/transit/k8s/3/1764500000".parse().unwrap(), algorithm: Algorithm::TRANSIT };
    let (cluster, recipient) = ("prod".parse().unwrap(), Fingerprint([9; 32]));
    let core = Core {
        policy: WritePolicy::new(Suite::One, cluster, Epoch(0), vec![root], vec![recipient], None).unwrap(),
        kek_id: kek.id(),
        created: 1_764_500_000,
        writer: "test/1".parse().unwrap(),
    };
    let record = Record::new(core, vec![vec![1]], vec![vec![2]], None).unwrap();
    let annotation = record.encode();
    let ciphertext = kek.seal(Suite::One, &sha256(&annotation), &[6; 32]).unwrap();
    let sealed = EncryptResponse {
        ciphertext: ciphertext.into(),
        key_id: record.core().policy.key_id().to_string(),
        annotations: BTreeMap::from([(RECORD_ANNOTATION.to_owned(), annotation.into())]),
    };
    (under(sealed), kek)
}

fn under(sealed: EncryptResponse) -> Vec<u8> {
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
        providers:\n  - kms: {apiVersion: v2, name: casemate, endpoint: 'unix:///a'}\n";
    let config = EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap();
    let mut sealer = Sealer::new(&config).unwrap();
    assert!(matches!(
        sealer.seal("/registry", PATH, OBJECT),
        Err(crate::recover::SealError::NoSource { .. })
    ));
    sealer.give("casemate", NewSource { seed: Zeroizing::new([6; 32]), sealed });
    sealer.seal("/registry", PATH, OBJECT).unwrap().to_vec()
}

fn of_a_peer() -> Vec<u8> {
    under(EncryptResponse {
        ciphertext: vec![7; 48].into(),
        key_id: "peer-1".to_owned(),
        annotations: BTreeMap::new(),
    })
}

#[test]
fn each_local_key_opens_what_is_under_it_and_nothing_else() {
    for (provider, key) in KEYS {
        let value = local(provider, "key1", key);
        let mut opener = Opener::new(keys(&[config(provider, "key1", key)]), Double::default());
        let opened = open(&mut opener, PATH, &value).unwrap();
        assert_eq!((&opened.object[..], opened.origin), (OBJECT, None));
        assert_eq!(opened.by, Some(format!("{provider}:key1").parse().unwrap()));
        // Bound to its place, or not: that is the provider's.
        let elsewhere = open(&mut opener, b"/registry/secrets/a/two", &value);
        assert_eq!(elsewhere.is_err(), provider == "aesgcm", "{provider}");

        let other: Vec<u8> = key.iter().map(|byte| byte ^ 0x80).collect();
        let mut opener = Opener::new(keys(&[config(provider, "key1", &other)]), Double::default());
        assert!(matches!(why(open(&mut opener, PATH, &value)), NotOpened::Refused(_)));
        for name in ["key", "2", "key1:"] {
            let mut opener = Opener::new(keys(&[config(provider, name, key)]), Double::default());
            let closed = open(&mut opener, PATH, &value).map(drop).unwrap_err();
            assert_eq!(closed.why, NotOpened::NoKey);
            assert_eq!(closed.opened_by, [format!("{provider}:key1").parse().unwrap()]);
        }
        // A colon in a name, and a name that begins with another's.
        let value = local(provider, "key1:a", key);
        let configs = [config(provider, "key1", key), config(provider, "key1:a", key)];
        let opened = open(&mut Opener::new(keys(&configs), Double::default()), PATH, &value).unwrap();
        assert_eq!(opened.by, Some(format!("{provider}:key1:a").parse().unwrap()));
    }
}

#[test]
fn of_two_keys_with_one_name_the_right_one_opens() {
    let (one, other) = (config("secretbox", "key1", &[8; 32]), config("secretbox", "key1", &[9; 32]));
    for (first, second) in [(&one, &other), (&other, &one)] {
        let mut opener =
            Opener::new(keys(&[first.clone(), second.clone(), first.clone()]), Double::default());
        assert_eq!(opener.local.names().count(), 2);
        assert!(open(&mut opener, PATH, &local("secretbox", "key1", &[9; 32])).is_ok());
    }
}

#[test]
fn a_wrong_key_of_aescbc_opens_nothing_even_if_its_padding_is_one() {
    let value = local("aescbc", "key1", &[1; 32]);
    let (mut padded, mut opened) = (0, 0);
    for number in 0..2000_u16 {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        padded += usize::from(cipher::open_cbc(&key, &value[b"k8s:enc:aescbc:v1:key1:".len()..]).is_some());
        let mut opener = Opener::new(keys(&[config("aescbc", "key1", &key)]), Double::default());
        opened += usize::from(open(&mut opener, PATH, &value).is_ok());
    }
    // If none had looked like one, this would show nothing.
    assert!(padded > 0 && opened == 0, "{padded} {opened}");
}

#[test]
fn a_value_of_ours_is_opened_by_its_record_and_each_key_is_asked_for_once() {
    let (value, kek) = ours();
    let mut opener = Opener::new(LocalKeys::default(), Double { kek: Some(kek), ..Double::default() });
    for _ in 0..3 {
        let opened = open(&mut opener, PATH, &value).unwrap();
        assert_eq!((&opened.object[..], opened.origin), (OBJECT, Some(Origin::Unproven)));
    }
    let moved = why(open(&mut opener, b"/registry/secrets/a/two", &value));
    assert!(matches!(&moved, NotOpened::Refused(why) if why.contains("another key in etcd")), "{moved:?}");
    assert_eq!(opener.into_unwrapper().asked, BTreeMap::from([("local_kek", 1)]));

    // No is an answer, too; then a plugin is asked, once.
    let mut opener = Opener::new(LocalKeys::default(), Double::default());
    for _ in 0..3 {
        let closed = open(&mut opener, PATH, &value).map(drop).unwrap_err();
        assert_eq!(closed.why, NotOpened::NoKey);
        let keys: Vec<String> = closed.opened_by.iter().map(ToString::to_string).collect();
        let recovery = format!("recovery:{}", "09".repeat(32));
        assert_eq!(keys, ["kms:v2:casemate", "root:transit:/transit/k8s/3/1764500000", &recovery]);
    }
    assert_eq!(opener.into_unwrapper().asked, BTreeMap::from([("local_kek", 1), ("dek_source", 1)]));

    // Another local KEK than the record's.
    let other = Double { kek: Some(LocalKek::generate()), ..Double::default() };
    let mut opener = Opener::new(LocalKeys::default(), other);
    assert!(matches!(why(open(&mut opener, PATH, &value)), NotOpened::Refused(_)));
}

#[test]
fn a_record_that_the_plugin_refuses_is_not_tried() {
    let (value, kek) = ours();
    let parsed = stored::parse(&value).unwrap();
    let changed = |change: &dyn Fn(&mut EncryptedObject)| {
        let mut object = parsed.object.clone();
        change(&mut object);
        StoredValue { provider: "casemate", object }.encode()
    };
    let with_tail = |object: &mut EncryptedObject| {
        let record = object.annotations.get_mut(RECORD_ANNOTATION).unwrap();
        // A field that no record has.
        *record = [&record[..], &[0x78, 1]].concat().into();
    };
    for broken in [
        changed(&|object| object.key_id.push('0')),
        changed(&|object| drop(object.annotations.insert("a.b".to_owned(), vec![1].into()))),
        changed(&|object| object.annotations.clear()),
        changed(&with_tail),
    ] {
        let mut opener =
            Opener::new(LocalKeys::default(), Double { kek: Some(kek.clone()), ..Double::default() });
        let closed = open(&mut opener, PATH, &broken).map(drop).unwrap_err();
        assert!(matches!(closed.why, NotOpened::Broken(_)) && closed.opened_by.is_empty(), "{closed:?}");
        assert!(!opener.into_unwrapper().asked.contains_key("local_kek"));
    }
}

#[test]
fn another_plugin_opens_its_seed_and_its_key() {
    let value = of_a_peer();
    let mut opener = Opener::new(LocalKeys::default(), Double { seed: Some([6; 32]), ..Double::default() });
    for _ in 0..3 {
        let opened = open(&mut opener, PATH, &value).unwrap();
        assert_eq!((&opened.object[..], opened.by), (OBJECT, Some("kms:v2:casemate".parse().unwrap())));
    }
    assert_eq!(opener.into_unwrapper().asked, BTreeMap::from([("dek_source", 1)]));

    // As Kubernetes 1.27 wrote it: the key itself.
    let sealed = cipher::seal(crate::classify::Cipher::AesGcm, &[6; 32], PATH, OBJECT).unwrap();
    let mut object = stored::parse(&value).unwrap().object;
    (object.encrypted_data, object.encrypted_dek_source_type) = (sealed.into(), 0);
    let old = StoredValue { provider: "casemate", object }.encode();
    let mut opener = Opener::new(LocalKeys::default(), Double { seed: Some([6; 32]), ..Double::default() });
    assert_eq!(&open(&mut opener, PATH, &old).unwrap().object[..], OBJECT);
    assert!(open(&mut opener, b"/registry/secrets/a/two", &old).is_err());
}

#[test]
fn kms_v1_is_opened_in_both_of_its_ways() {
    let v1 = |sealed: &[u8]| [b"k8s:enc:kms:v1:old:\0\x05wraps", sealed].concat();
    for cipher in [crate::classify::Cipher::AesGcm, crate::classify::Cipher::AesCbc] {
        let value = v1(&cipher::seal(cipher, &[4; 32], PATH, OBJECT).unwrap());
        let double = || Double { v1: Some(vec![4; 32]), ..Double::default() };
        let mut opener = Opener::new(LocalKeys::default(), double());
        for _ in 0..3 {
            assert_eq!(&open(&mut opener, PATH, &value).unwrap().object[..], OBJECT);
        }
        assert_eq!(opener.into_unwrapper().asked, BTreeMap::from([("kms_v1_key", 1)]));
        let mut opener =
            Opener::new(LocalKeys::default(), Double { v1: Some(vec![5; 32]), ..Double::default() });
        assert!(open(&mut opener, PATH, &value).is_err());
    }
}

#[test]
fn nothing_that_was_cut_opens_and_nothing_is_shown() {
    let (ours, kek) = ours();
    let configs: Vec<_> = KEYS.iter().map(|(provider, key)| config(provider, "key1", key)).collect();
    let double = Double { kek: Some(kek), seed: Some([6; 32]), v1: Some(vec![4; 32]), ..Double::default() };
    let mut opener = Opener::new(keys(&configs), double);
    let v1 = cipher::seal(crate::classify::Cipher::AesGcm, &[4; 32], PATH, OBJECT).unwrap();
    let mut values = vec![ours, of_a_peer(), [b"k8s:enc:kms:v1:old:\0\x05wraps", &v1[..]].concat()];
    values.extend(KEYS.iter().map(|(provider, key)| local(provider, "key1", key)));
    for value in values {
        assert!(open(&mut opener, PATH, &value).is_ok());
        for length in b"k8s:enc:".len()..value.len() {
            let closed = open(&mut opener, PATH, &value[..length]).map(drop).unwrap_err();
            let shown = format!("{closed:?}");
            assert!(!shown.contains("MARKER") && !shown.contains("[7, 7"), "{shown}");
        }
    }
}

proptest! {
    #[test]
    fn what_is_sealed_opens_and_no_flipped_bit_does(
        object in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        use crate::classify::Cipher;
        let ciphers = [(Cipher::AesCbc, 32), (Cipher::AesGcm, 16), (Cipher::AesGcm, 32), (Cipher::SecretBox, 32)];
        for (cipher, length) in ciphers {
            let key = vec![3; length];
            let mut sealed = cipher::seal(cipher, &key, PATH, &object).unwrap();
            prop_assert_eq!(&cipher::open(cipher, &key, PATH, &sealed).unwrap()[..], &object[..]);
            *at.get_mut(&mut sealed) ^= 1 << bit;
            let opened = cipher::open(cipher, &key, PATH, &sealed);
            // CBC may open, to something else.
            match cipher {
                Cipher::AesCbc => prop_assert!(opened.is_none_or(|opened| opened[..] != object[..])),
                _ => prop_assert!(opened.is_none()),
            }
        }
        let mut sealed = cipher::seal_under_seed(&[3; 32], PATH, &object).unwrap();
        prop_assert_eq!(&cipher::open_under_seed(&[3; 32], PATH, &sealed).unwrap()[..], &object[..]);
        *at.get_mut(&mut sealed) ^= 1 << bit;
        prop_assert!(cipher::open_under_seed(&[3; 32], PATH, &sealed).is_none());
        prop_assert!(cipher::open_under_seed(&[3; 31], PATH, &sealed).is_none());
    }
}

/// What a real kube-apiserver wrote under keys of every kind and length: see `vectors/README.md`.
#[test]
fn the_committed_values_of_kube_apiserver_open_and_no_changed_byte_does() {
    #[derive(serde::Deserialize)]
    struct Vector {
        path: String,
        value: String,
        encryption_config: Option<String>,
        local_kek: Option<String>,
    }
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/recover");
    let mut opened = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let vector: Vector = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let configs = vector
            .encryption_config
            .iter()
            .map(|text| EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap());
        let kek = vector.local_kek.map(|kek| LocalKek::from_bytes(&bytes(&kek)).unwrap());
        let double = Double { kek, ..Double::default() };
        let mut opener = Opener::new(keys(&configs.collect::<Vec<_>>()), double);
        let (path, value) = (vector.path.as_bytes(), bytes(&vector.value));
        let object = open(&mut opener, path, &value).unwrap().object;
        let manifest = crate::recover::Manifest::of(object);
        // The word `recovered`.
        let yaml = String::from_utf8(manifest.bytes.to_vec()).unwrap();
        assert!(yaml.contains("\"word\": \"cmVjb3ZlcmVk\""), "{}: {yaml}", file.display());
        // A plugin's name is in no ciphertext: what opens the record opens it, whatever an EncryptionConfiguration calls it.
        let kms = b"k8s:enc:kms:v2:";
        let named = value.strip_prefix(kms).map(|rest| rest.iter().position(|byte| *byte == b':').unwrap());
        let name = named.map_or(0..0, |length| kms.len()..kms.len() + length);
        let is_authenticated = !value.starts_with(b"k8s:enc:aescbc:");
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 0x10;
            // What begins as no encrypted value is plaintext to whoever reads it.
            if changed.starts_with(b"k8s:enc:") && is_authenticated && !name.contains(&at) {
                assert!(open(&mut opener, path, &changed).is_err(), "{}: byte {at}", file.display());
            }
        }
        opened += 1;
    }
    assert_eq!(opened, 8);
}
