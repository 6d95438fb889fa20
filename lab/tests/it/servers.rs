//! What the servers do for a test.

use std::thread;

use casemate_lab::{Encryption, Lab};

const KEY: &str = "/registry/secrets/default/mine";

fn create(lab: &Lab, server: usize, name: &str) -> casemate_lab::Result<String> {
    let word = format!("--from-literal=word=said-by-{name}");
    lab.kubectl(server, &["create", "secret", "generic", name, &word])
}

fn word(lab: &Lab, server: usize, name: &str) -> casemate_lab::Result<String> {
    let template = "{{.data.word | base64decode}}";
    lab.kubectl(server, &["get", "secret", name, "-o", &format!("go-template={template}")])
}

#[test]
fn two_servers_share_one_store_and_it_can_be_looked_into() {
    let lab = Lab::builder("two servers").apiservers(2).start().unwrap();

    create(&lab, 0, "mine").unwrap();
    assert_eq!(word(&lab, 1, "mine").unwrap(), "said-by-mine");

    let stored = lab.etcd().get(KEY).unwrap().unwrap();
    assert!(stored.starts_with(b"k8s\0"), "identity stores in clear");
    let listed = lab.etcd().list("/registry/secrets/default/").unwrap();
    assert_eq!(listed, [(KEY.as_bytes().to_vec(), stored.clone())]);
    assert_eq!(lab.etcd().get("/registry/secrets/default/other").unwrap(), None);

    // Bytes that are no text, put past the API server, are bytes that it stumbles over.
    let planted: Vec<u8> = (0..=255).collect();
    lab.etcd().put("/registry/secrets/default/planted", &planted).unwrap();
    let read = lab.etcd().get("/registry/secrets/default/planted").unwrap();
    assert_eq!(read, Some(planted));
    word(&lab, 0, "planted").unwrap_err();

    let snapshot = lab.dir().join("backup.db");
    lab.etcd().snapshot(&snapshot).unwrap();
    let bytes = std::fs::read(snapshot).unwrap();
    assert!(bytes.windows(stored.len()).any(|part| part == stored));

    // Input on standard input.
    let manifest = br#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "given"}}"#;
    lab.kubectl_with_input(1, &["create", "-f", "-"], manifest).unwrap();
    lab.kubectl(0, &["get", "configmap", "given"]).unwrap();
}

#[test]
fn every_server_comes_back_and_a_fresh_one_reads_what_was_acknowledged() {
    let lab = Lab::start("comes back").unwrap();
    create(&lab, 0, "mine").unwrap();
    let first = lab.apiserver(0).unwrap();
    let (url, pid) = (first.url(), first.process().pid());

    lab.etcd().process().kill9();
    lab.etcd().start().unwrap();
    first.kill9();
    assert!(!first.process().is_running());
    lab.kubectl(0, &["get", "secrets"]).unwrap_err();
    first.start().unwrap();
    assert_eq!(first.url(), url);
    assert_ne!(first.process().pid(), pid);
    assert_eq!(word(&lab, 0, "mine").unwrap(), "said-by-mine");

    let fresh = lab.start_fresh(0).unwrap();
    assert_ne!(fresh.url(), url);
    assert_eq!(word(&lab, 1, "mine").unwrap(), "said-by-mine");
    assert_eq!(lab.apiservers().len(), 2);
    let error = lab.apiserver(2).unwrap_err().to_string();
    assert_eq!(error, "the lab has no API server 2: it has 2, counted from 0");
}

#[test]
fn a_restart_takes_up_another_encryption() {
    let lab = Lab::start("encryption").unwrap();
    let server = lab.apiserver(0).unwrap();
    let key = "a".repeat(43) + "=";
    let encrypts = format!(
        "apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {{keys: [{{name: k, secret: {key}}}]}}
"
    );

    server.set_encryption(Encryption::Verbatim(encrypts)).unwrap();
    server.restart().unwrap();
    create(&lab, 0, "mine").unwrap();
    let stored = lab.etcd().get(KEY).unwrap().unwrap();
    assert!(stored.starts_with(b"k8s:enc:secretbox:v1:k:"));

    // A fresh one is configured alike. (One without the key would never become ready: it could not list
    // the Secrets.)
    lab.start_fresh(0).unwrap();
    assert_eq!(word(&lab, 1, "mine").unwrap(), "said-by-mine");
}

#[test]
fn two_labs_at_once_do_not_see_each_other() {
    let labs: Vec<Lab> = thread::scope(|scope| {
        let start = |name| scope.spawn(move || Lab::start(name).unwrap());
        let starting = [start("left"), start("right")];
        // The threads that started them are gone after this; the servers must not be.
        starting.map(|lab| lab.join().unwrap()).into()
    });
    let [left, right] = &labs[..] else { panic!("two labs were started") };
    assert_ne!(left.dir(), right.dir());
    assert_ne!(left.etcd().endpoint(), right.etcd().endpoint());

    create(left, 0, "mine").unwrap();
    assert!(left.etcd().get(KEY).unwrap().is_some());
    assert!(right.etcd().get(KEY).unwrap().is_none());
    word(right, 0, "mine").unwrap_err();

    // The token of one is nothing to the other.
    let server = left.apiserver(0).unwrap().url();
    let certificate = left.apiserver(0).unwrap().certificate();
    let asked = ["get", "secrets", "--server", &server, "--certificate-authority"];
    let asked = [&asked[..], &[certificate.to_str().unwrap()]].concat();
    let error = right.kubectl(0, &asked).unwrap_err().to_string();
    assert!(error.contains("Unauthorized") || error.contains("logged in"), "{error}");
}
