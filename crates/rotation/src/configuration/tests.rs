#![allow(clippy::unwrap_used)]

use super::*;

const BY_HAND: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps]
  providers:
  - kms: {apiVersion: v2, name: casemate, endpoint: unix:///run/casemate/kms.sock}
  - aescbc: {keys: [{name: key2, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}, {name: key1, secret: HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}
  - identity: {}
- resources: [deployments.apps]
  providers:
  - identity: {}
  - aescbc: {keys: [{name: key1, secret: HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}
";

fn read(text: &str) -> EncryptionConfiguration {
    EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap()
}

fn plugin(socket: &str) -> Material {
    let endpoint = Endpoint::parse(&format!("unix:///run/{socket}.sock")).unwrap();
    let kms = KmsV2 { name: String::new(), endpoint, timeout: Provider::DEFAULT_TIMEOUT };
    Material { provider: Provider::KmsV2(kms), found: BTreeMap::new() }
}

fn names(configuration: &EncryptionConfiguration) -> Vec<Vec<String>> {
    configuration.entries.iter().map(|entry| entry.providers.iter().map(name).collect()).collect()
}

#[test]
fn what_was_written_by_hand_is_taken_up_and_keeps_its_names() {
    let by_hand = read(BY_HAND);
    let mut materials = Materials::default();
    assert!(matches!(materials.read(&by_hand), Err(NotReadable::Unknown { field: "kms", .. })));
    assert_eq!(materials.adopt(&by_hand, ProviderId(4)), [5, 6, 7].map(ProviderId));
    assert!(materials.adopt(&by_hand, ProviderId(7)).is_empty());

    let file = materials.read(&by_hand).unwrap();
    let orders: Vec<Vec<u64>> = file
        .0
        .values()
        .map(|layout| layout.order().iter().map(|slot| slot.key().map_or(0, |id| id.0)).collect())
        .collect();
    // Key 1 of both entries is one key; the newest is what writes.
    assert_eq!(orders, [vec![7, 6, 5, 0], vec![0, 5]]);
    let written = materials.write(&file).unwrap();
    assert_eq!(names(&written), [vec!["casemate", "key2", "key1", ""], vec!["", "key1"]]);
    assert_eq!(materials.read(&written), Ok(file.clone()));

    // The next key gets a name that is its own in each entry.
    materials.0.insert(ProviderId(8), plugin("kms-8"));
    let next = |layout: &Layout| {
        let mut keys = layout.keys().clone();
        keys.insert(ProviderId(8), materials.0[&ProviderId(8)].shape().unwrap());
        Layout::new(Slot::Key(ProviderId(8)), keys).unwrap()
    };
    let file = File(file.0.iter().map(|(resources, layout)| (resources.clone(), next(layout))).collect());
    let written = materials.write(&file).unwrap();
    assert_eq!(
        names(&written),
        [vec!["8_configmaps", "casemate", "key2", "key1", ""], vec!["8_deployments.apps", "key1", ""]]
    );
    let again = EncryptionConfiguration::read(written.to_yaml().as_bytes(), ServerFlags::default()).unwrap();
    assert_eq!(materials.read(&again), Ok(file));
}

#[test]
fn another_way_to_a_plugin_is_another_setting_of_the_same_key() {
    let mut materials = Materials([(ProviderId(1), plugin("old"))].into());
    let resources = Resources::from("secrets".parse::<ResourcePattern>().unwrap());
    let layout = |materials: &Materials| {
        let shape = materials.0[&ProviderId(1)].shape().unwrap();
        Layout::new(Slot::Key(ProviderId(1)), [(ProviderId(1), shape)].into()).unwrap()
    };
    let old = File([(resources.clone(), layout(&materials))].into());
    let written = materials.write(&old).unwrap();
    materials.0.insert(ProviderId(1), plugin("new"));
    assert_eq!(materials.read(&written), Ok(old), "it is still read as what it was");
    assert_ne!(materials.read(&written), Ok(File([(resources, layout(&materials))].into())));
}

#[test]
fn two_resources_of_one_name_and_wildcards_can_stand_together() {
    let materials = Materials([(ProviderId(3), plugin("kms-3"))].into());
    let shape = materials.0[&ProviderId(3)].shape().unwrap();
    let layout = Layout::new(Slot::Key(ProviderId(3)), [(ProviderId(3), shape)].into()).unwrap();
    let entries = ["*.*", "*.apps", "routes.a.example", "routes.b.example"]
        .map(|text| (Resources::from(text.parse::<ResourcePattern>().unwrap()), layout.clone()));
    let written = materials.write(&File(entries.into())).unwrap();
    let firsts: Vec<String> = names(&written).into_iter().map(|names| names[0].clone()).collect();
    assert_eq!(firsts, ["3_routes.a.example", "3_routes.b.example", "3_*.apps", "3_*.*"]);
}

#[test]
fn what_can_not_be_is_said() {
    let materials = Materials::default();
    let resources = Resources::from("secrets".parse::<ResourcePattern>().unwrap());
    let shape = plugin("x").shape().unwrap();
    let layout = Layout::new(Slot::Key(ProviderId(9)), [(ProviderId(9), shape)].into()).unwrap();
    let refused = materials.write(&File([(resources.clone(), layout)].into())).unwrap_err();
    assert!(refused.to_string().contains("key 9 of secrets"), "{refused}");

    let mut twice = read(BY_HAND);
    twice
        .entries
        .push(Entry { resources: vec!["secrets".parse().unwrap()], providers: vec![Provider::Identity] });
    let mut materials = Materials::default();
    materials.adopt(&twice, ProviderId(0));
    assert_eq!(materials.read(&twice), Err(NotReadable::Twice("secrets".parse().unwrap())));
    assert!(materials.write(&File::default()).unwrap().entries.is_empty());
}

#[test]
fn entries_grow_and_never_take_from_each_other() {
    let patterns = |text: &str| text.split_whitespace().map(|text| text.parse().unwrap()).collect();
    let sets = |texts: &[&str]| texts.iter().map(|text| Resources(patterns(text))).collect::<BTreeSet<_>>();
    for (wanted, found, expected) in [
        ("secrets configmaps", &[][..], &["secrets", "configmaps"][..]),
        ("secrets", &["secrets configmaps"], &["secrets configmaps"]),
        ("secrets configmaps pods", &["secrets configmaps"], &["secrets configmaps", "pods"]),
        ("configmaps", &["secrets"], &["configmaps"]),
        ("*.*", &["secrets"], &["secrets", "*.*"]),
        ("secrets", &["*.*"], &["*.*"]),
        ("secrets *.", &[], &["*."]),
        ("secrets deployments.apps", &["*."], &["*.", "deployments.apps"]),
        ("", &["secrets"], &[]),
    ] {
        assert_eq!(entries(&patterns(wanted), &sets(found)), sets(expected), "{wanted} of {found:?}");
    }
}
