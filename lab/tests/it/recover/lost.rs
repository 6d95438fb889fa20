//! A cluster is lost, with its etcd, its plugin's host and its key service, and comes back.

use std::{collections::BTreeSet, fs, path::Path};

use casemate_lab::plugin::TransitRoot;
use casemate_lab::{Encryption, KeyService, Lab, OpenBao, Plugin};
use serde_json::json;

use super::written::Written;
use super::{encryption, identity, recover, snapshot, text};

/// What is left of a cluster: a snapshot and an identity in `safe`; and what the lab wrote.
fn lost_cluster(safe: &Path) -> Written {
    let lab = Lab::builder("recover lost").apiservers(0).start().unwrap();
    let bao = OpenBao::start(&lab).unwrap();
    let root = TransitRoot::create(&bao, "casemate", &json!({"token_ttl": "1h"})).unwrap();
    let recipients = identity(&safe.join("identity"));
    let plugin = Plugin::start_on(&lab, "ours", KeyService::Transit(&root)).unwrap();
    plugin.restart_with(|config| config["providers"][0]["recoveryRecipients"] = recipients).unwrap();

    let mut written = Written::default();
    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    Written::define_things(&server);
    written.write(&server, "from-before-encryption");
    server.set_encryption(encryption(&["ours", "identity"], Some(&plugin))).unwrap();
    server.restart().unwrap();
    for name in ["one", "two", "three"] {
        written.write(&server, name);
    }
    // Several DEK sources: one for each start of an API server.
    server.restart().unwrap();
    written.write(&server, "after-a-restart");
    server.kubectl(&["delete", "secret", "two"]).unwrap();
    let event = br#"{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "seen", "namespace": "default"}, "reason": "Seen",
        "type": "Normal", "involvedObject": {"kind": "Secret", "namespace": "default", "name": "one"}}"#;
    server.kubectl_with_input(&["create", "-f", "-"], event).unwrap();
    written.forget("secrets", "two");
    fs::copy(snapshot(&lab, "last.db"), safe.join("last.db")).unwrap();
    written
}

/// Keys of etcd, and how their values begin.
fn marks(lab: &Lab, below: &str) -> BTreeSet<String> {
    let mark = |value: &[u8]| match value.strip_prefix(b"k8s:enc:") {
        Some(rest) => rest
            .split(|byte| *byte == b':')
            .take(3)
            .fold(String::new(), |mark, part| format!("{mark}{}:", String::from_utf8_lossy(part))),
        None => "plaintext".to_owned(),
    };
    lab.etcd().list(below).unwrap().iter().map(|(_, value)| mark(value)).collect()
}

#[test]
fn a_lost_cluster_comes_back_from_a_snapshot_and_an_identity_alone() {
    let safe = tempfile::tempdir().unwrap();
    let written = lost_cluster(safe.path());
    let (file, identity) = (safe.path().join("last.db"), safe.path().join("identity"));
    let (file, identity) = (text(&file), text(&identity));

    // In the clear, for an API server that encrypts nothing yet.
    let lab = Lab::builder("recover back").apiservers(0).start().unwrap();
    let endpoint = lab.etcd().endpoint();
    let words = ["restore", file, "--identity", identity, "--endpoints", &endpoint, "--output", "json"];
    let said = recover(words).expect(2).said;
    assert!(said.contains("--dry-run first"), "{said}");
    let planned = recover(words.into_iter().chain(["--dry-run"])).expect(0).json();
    assert_eq!((&planned["outcome"], &planned["written"]), (&json!("dry_run"), &json!(0)));
    assert!(lab.etcd().list("/registry/").unwrap().is_empty(), "a dry run wrote");
    // Without the identity nothing is written: not the part that opens, either.
    let without = ["restore", file, "--endpoints", &endpoint, "--yes", "--output", "json"];
    let refused = recover(without).expect(1).json();
    assert_eq!(refused["outcome"], "refused");
    assert!(lab.etcd().list("/registry/").unwrap().is_empty(), "something was written");

    let restored = recover(words.into_iter().chain(["--yes"])).expect(0).json();
    let keys = lab.etcd().list("/registry/").unwrap().len();
    assert_eq!((&restored["written"], &restored["recovery"]["opened"]), (&json!(keys), &json!(keys)));
    assert!(restored["without_lease"].as_u64().unwrap() > 0, "{restored:#}");
    assert_eq!(marks(&lab, "/registry/"), BTreeSet::from(["plaintext".to_owned()]));
    let again = recover(words.into_iter().chain(["--yes"])).expect(1).said;
    assert!(again.contains("only an empty etcd is restored to"), "{again}");

    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    assert_eq!(written.served(&server), written);
    assert!(server.kubectl(&["get", "secret", "two"]).is_err(), "a deleted Secret came back");
    // It is a cluster: it takes what is new, and encrypts it with a new plugin.
    let plugin = Plugin::start(&lab, "new").unwrap();
    server.set_encryption(encryption(&["ours", "identity"], Some(&plugin))).unwrap();
    server.restart().unwrap();
    let mut more = written.clone();
    more.write(&server, "of-the-new-time");
    assert_eq!(more.served(&server), more);
}

#[test]
fn it_is_encrypted_anew_on_its_way_as_a_configuration_says() {
    let safe = tempfile::tempdir().unwrap();
    let written = lost_cluster(safe.path());
    let (file, identity) = (safe.path().join("last.db"), safe.path().join("identity"));
    for (provider, mark) in [
        ("ours", "kms:v2:ours:"),
        ("secretbox", "secretbox:v1:key-of-secretbox:"),
        ("aesgcm", "aesgcm:v1:key-of-aesgcm:"),
        ("aescbc", "aescbc:v1:key-of-aescbc:"),
    ] {
        let lab = Lab::builder("recover anew").apiservers(0).start().unwrap();
        let plugin = Plugin::start(&lab, "new").unwrap();
        // Nothing in the clear is read for these resources: that it is served proves that it was encrypted rightly.
        let config = encryption(&[provider], Some(&plugin));
        let path = lab.dir().join("encrypt-with.yaml");
        let Encryption::Verbatim(yaml) = &config else { panic!("{config:?}") };
        fs::write(&path, yaml).unwrap();
        let endpoint = lab.etcd().endpoint();
        let words = [
            "restore",
            text(&file),
            "--identity",
            text(&identity),
            "--endpoints",
            &endpoint,
            "--encrypt-with",
            text(&path),
            "--yes",
            "--output",
            "json",
        ];
        let restored = recover(words).expect(0).json();
        for resource in ["secrets", "configmaps", "recover.example/things"] {
            assert_eq!(marks(&lab, &format!("/registry/{resource}/")), BTreeSet::from([mark.to_owned()]));
        }
        assert_eq!(marks(&lab, "/registry/namespaces/"), BTreeSet::from(["plaintext".to_owned()]));
        let stored: BTreeSet<&str> =
            restored["plan"].as_array().unwrap().iter().map(|one| one["stored"].as_str().unwrap()).collect();
        assert_eq!(stored.len(), 2, "{stored:?}");
        let server = lab.add_apiserver(config).unwrap();
        assert_eq!(written.served(&server), written, "{provider}");
    }
}
