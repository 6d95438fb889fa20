//! k3s without etcd: what a real kube-apiserver wrote through the real kine, from its file of SQLite.

use std::fs;

use casemate_lab::{Kine, Lab};
use serde_json::json;

use super::written::Written;
use super::{encryption, recover, text};

#[test]
fn the_file_of_kine_comes_back_as_manifests_and_as_a_cluster_on_etcd() {
    let lab = Lab::builder("recover kine").apiservers(0).start().unwrap();
    let kine = Kine::start(&lab, "one").unwrap();
    let server = lab.add_apiserver_on(&kine.endpoint(), encryption(&["identity"], None)).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    written.write(&server, "plain");
    server.set_encryption(encryption(&["aescbc", "secretbox", "identity"], None)).unwrap();
    server.restart().unwrap();
    written.write(&server, "one");
    written.write(&server, "gone");
    let before = written.clone();
    let revision: u64 = {
        let metadata = "--output=jsonpath={.metadata.resourceVersion}";
        server.kubectl(&["get", "things", "gone", metadata]).unwrap().parse().unwrap()
    };
    server.kubectl(&["delete", "secret,configmap,thing", "gone"]).unwrap();
    for resource in ["secrets", "configmaps", "things.recover.example"] {
        written.forget(resource, "gone");
    }
    server.set_encryption(encryption(&["secretbox", "aescbc", "identity"], None)).unwrap();
    server.restart().unwrap();
    written.write(&server, "two");

    // While k3s runs: what is in the log counts.
    let file = kine.file();
    let keys = text(&server.encryption_file()).to_owned();
    let drill = |file: &str| recover(["drill", file, "--encryption-config", &keys, "--output", "json"]);
    drill(text(&file)).expect(0);
    server.stop().unwrap();
    kine.kill9();
    let killed = drill(text(&file)).expect(0).json();

    // Stopped: the file alone is all of it.
    kine.restart().unwrap();
    kine.stop().unwrap();
    let copy = lab.dir().join("state.db");
    fs::copy(&file, &copy).unwrap();
    let stopped = drill(text(&copy)).expect(0).json();
    assert_eq!(stopped["opened"], killed["opened"]);
    let without = recover(["drill", text(&copy), "--output", "json"]).expect(1);
    assert!(without.out.contains("secretbox:key-of-secretbox"), "{}", without.out);

    // From SQLite to etcd, encrypted on its way.
    let encrypted = ["--encryption-config", &keys, "--encrypt-with", &keys, "--output", "json", "--yes"];
    let endpoint = lab.etcd().endpoint();
    let words = ["restore", text(&copy), "--endpoints", &endpoint];
    let answer = recover(words.into_iter().chain(encrypted)).expect(0).json();
    assert_eq!(answer["outcome"], json!("restored"));
    let fresh = lab.add_apiserver(server.encryption()).unwrap();
    assert_eq!(written.served(&fresh), written);
    let stored = lab.etcd().get("/registry/secrets/default/plain").unwrap().unwrap();
    assert!(stored.starts_with(b"k8s:enc:secretbox:v1:key-of-secretbox:"));

    let out = lab.dir().join("now");
    recover(["snapshot", text(&copy), "--encryption-config", &keys, "--out", text(&out)]).expect(0);
    assert_eq!(Written::read(&out, &fresh), written);
    // As it was before something was deleted, and what nobody can have.
    let out = lab.dir().join("then");
    let then = |revision: u64, out: &str| {
        let revision = revision.to_string();
        let words = ["--encryption-config", &keys, "--out", out, "--revision", &revision];
        recover(["snapshot", text(&copy)].into_iter().chain(words))
    };
    then(revision, text(&out)).expect(0);
    assert_eq!(Written::read(&out, &fresh), before);
    let later = then(1 << 40, text(&lab.dir().join("later"))).expect(2);
    assert!(later.said.contains("has revisions"), "{}", later.said);
}
