//! What a real kube-apiserver writes under each provider, and what the census tells of it.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_census::{
    classify::{Cipher, Claim, Class, Classifier, DekSourceKind, Name, ObjectPath},
    snapshot::{Options, Snapshot},
};
use casemate_lab::{Encryption, Lab, Plugin};

const PREFIX: &str = "/registry";
const LOCAL: [(&str, Cipher); 3] =
    [("aescbc", Cipher::AesCbc), ("aesgcm", Cipher::AesGcm), ("secretbox", Cipher::SecretBox)];

/// All providers, `first` before the others: new data goes through it, and what the others wrote can be read.
fn encryption(first: &str, plugin: &Plugin<'_>) -> Encryption {
    let key = STANDARD.encode([7; 32]);
    let mut providers: Vec<(String, String)> = LOCAL
        .iter()
        .map(|(name, _)| {
            let entry = format!("{name}: {{keys: [{{name: key-of-{name}, secret: {key}}}]}}");
            ((*name).to_owned(), entry)
        })
        .collect();
    let endpoint = format!("unix://{}", plugin.socket().display());
    let kms = format!("kms: {{apiVersion: v2, name: ours, endpoint: '{endpoint}', timeout: 3s}}");
    providers.extend([("kms".to_owned(), kms), ("identity".to_owned(), "identity: {}".to_owned())]);
    providers.sort_by_key(|(name, _)| name != first);
    let entries: String = providers.iter().map(|(_, entry)| format!("  - {entry}\n")).collect();
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets, configmaps]\n  providers:\n{entries}"
    ))
}

/// Each object that is live in a snapshot, by resource and name.
fn classes(lab: &Lab) -> BTreeMap<(String, String), Class> {
    let path = lab.dir().join("classes.db");
    lab.etcd().snapshot(&path).unwrap();
    let snapshot = Snapshot::open(&path, Options::default()).unwrap();
    let store = snapshot.store().unwrap();
    let (mut live, mut classifier) = (store.live(PREFIX.as_bytes()).unwrap(), Classifier::new());
    let mut found = BTreeMap::new();
    while let Some(item) = live.next_item().unwrap() {
        if let Some(path) = ObjectPath::parse(PREFIX, item.pair.key) {
            let name = (path.resource.to_owned(), path.name.to_owned());
            found.insert(name, classifier.classify(item.pair.value));
        }
    }
    found
}

#[test]
fn every_provider_is_told_from_what_kube_apiserver_wrote() {
    let lab = Lab::builder("census classes").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "ours").unwrap();
    let server = lab.add_apiserver(encryption("identity", &plugin)).unwrap();
    for provider in ["identity", "aescbc", "aesgcm", "secretbox", "kms"] {
        if provider != "identity" {
            server.set_encryption(encryption(provider, &plugin)).unwrap();
            server.restart().unwrap();
        }
        let (secret, map) = (format!("secret-{provider}"), format!("map-{provider}"));
        server.kubectl(&["create", "secret", "generic", &secret, "--from-literal=word=hidden"]).unwrap();
        server.kubectl(&["create", "configmap", &map, "--from-literal=word=hidden"]).unwrap();
    }
    // Custom resources are JSON.
    let definition = br#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.census.example"}, "spec": {"group": "census.example", "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"}, "versions": [{"name": "v1", "served": true,
        "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}"#;
    lab.kubectl_with_input(0, &["create", "-f", "-"], definition).unwrap();
    let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd/things.census.example"];
    server.kubectl(&established).unwrap();
    let thing = br#"{"apiVersion": "census.example/v1", "kind": "Thing", "metadata": {"name": "one"}}"#;
    lab.kubectl_with_input(0, &["create", "-f", "-"], thing).unwrap();
    // Of a provider's value its beginning only.
    let cut = b"k8s:enc:kms:v2:ours:\x0a\x7f";
    lab.etcd().put("/registry/secrets/default/cut", cut).unwrap();

    let found = classes(&lab);
    let of = |resource: &str, name: &str| found[&(resource.to_owned(), name.to_owned())].clone();
    assert_eq!(of("things", "one"), Class::PlainJson);
    assert_eq!(of("customresourcedefinitions", "things.census.example"), Class::PlainJson);
    assert_eq!(of("namespaces", "default"), Class::PlainProtobuf);
    for kind in ["secret", "map"] {
        let resource = if kind == "secret" { "secrets" } else { "configmaps" };
        assert_eq!(of(resource, &format!("{kind}-identity")), Class::PlainProtobuf);
        for (provider, cipher) in LOCAL {
            let key = Name::Shown(format!("key-of-{provider}").into());
            assert_eq!(of(resource, &format!("{kind}-{provider}")), Class::Local { cipher, key });
        }
        let Class::KmsV2(kms) = of(resource, &format!("{kind}-kms")) else { panic!("{kind}") };
        assert!(kms.provider.is("ours") && kms.key_id.is(&plugin.key_id().unwrap()));
        assert_eq!(kms.dek_source.kind, DekSourceKind::Seed);
        let casemate = kms.casemate.as_ref().unwrap();
        assert!(casemate.faults.is_empty(), "{casemate:?}");
        let record = casemate.record.as_ref().unwrap();
        let roots = record.core().policy.roots();
        assert!(matches!(roots, [root] if root.lineage.kind() == "file"), "{roots:?}");
    }
    let Class::Malformed(malformed) = of("secrets", "cut") else { panic!("it was cut off") };
    assert_eq!((malformed.claims, malformed.name), (Claim::KmsV2, Some(Name::Shown("ours".into()))));
    // Nothing else that a fresh cluster writes is taken for encrypted or broken.
    let odd: Vec<_> = found
        .iter()
        .filter(|((_, name), _)| {
            !["-aescbc", "-aesgcm", "-secretbox", "-kms"].iter().any(|end| name.ends_with(end))
        })
        .filter(|((_, name), class)| {
            name != "cut" && !matches!(class, Class::PlainProtobuf | Class::PlainJson | Class::PlainOther)
        })
        .collect();
    // kube-apiserver makes Secrets and ConfigMaps of its own, under whatever provider was first then.
    assert!(odd.iter().all(|(_, class)| !matches!(class, Class::Malformed(_))), "{odd:?}");
}
