//! kube-apiserver 1.31, the last that sends the socket's path as `:authority`: it starts, encrypts and reads
//! through the plugin, alone and beside a server of today on the same etcd.
#![allow(clippy::unwrap_used)]

use casemate_lab::{Apiserver, Lab, Plugin, Proof, Tool};

const SECRETS: &[&str] = &["/registry/secrets/"];

fn create(server: &Apiserver, name: &str) {
    let word = format!("--from-literal=word=word-of-{name}");
    server.kubectl(&["create", "secret", "generic", name, &word]).unwrap();
}

fn read(server: &Apiserver, name: &str) -> String {
    let template = "go-template={{.data.word | base64decode}}";
    server.kubectl(&["get", "secret", name, "-o", template]).unwrap()
}

#[test]
fn the_old_api_server_starts_encrypts_and_reads_through_the_plugin() {
    let lab = Lab::builder("old").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    // Ready includes the plugin's health: Status was answered.
    let old = lab.add_apiserver_of(Tool::KubeApiserver31, plugin.encryption()).unwrap();
    let version = old.kubectl(&["get", "--raw", "/version"]).unwrap();
    assert!(version.contains(&format!("v{}", Tool::KubeApiserver31.version())), "{version}");
    for number in 0..30 {
        create(&old, &format!("old-{number}"));
    }
    let first = plugin.key_id().unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(proof.all_under(&first), "{proof}");

    // Another root key version while it runs, and a server of today beside it.
    plugin.rotate().unwrap();
    let second = plugin.wait_for_switch(&first).unwrap();
    let new = lab.add_apiserver(plugin.encryption()).unwrap();
    create(&new, "new");
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert_eq!(proof.by_key_id.get(&second), Some(&1), "{proof}");

    // No cache helps: a restarted plugin, and servers that have never read anything.
    plugin.kill9();
    plugin.start_again().unwrap();
    let fresh = [lab.start_fresh(0).unwrap(), lab.start_fresh(1).unwrap()];
    assert_eq!(fresh[0].tool(), Tool::KubeApiserver31);
    for server in &fresh {
        for name in ["old-0", "old-29", "new"] {
            assert_eq!(read(server, name), format!("word-of-{name}"));
        }
    }
    // A fresh server encrypts under the new key from its start.
    create(&fresh[0], "late");
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert_eq!(proof.by_key_id.get(&second), Some(&2), "{proof}");
    assert!(proof.not_encrypted.is_empty() && proof.malformed.is_empty(), "{proof}");
}
