//! The main job on real servers, with faults, and its proof.

use std::fs;
use std::process::Command;

use casemate_lab::{Encryption, Lab, Plugin, Proof, demo};

use crate::load::Load;

const SECRETS: &[&str] = &["/registry/secrets/"];

#[test]
fn the_demo_tells_its_story() {
    let told = Command::new(crate::program()).args(["demo", "--once"]).output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{text}\n{}", String::from_utf8_lossy(&told.stderr));
    for said in [
        "0 Secrets and ConfigMaps in plaintext; ",
        "may the old key go? no: ",
        "may the old key go? yes",
        "it says: All that was asked is as it should be",
        "The story is told",
    ] {
        assert!(text.contains(said), "{said:?} is not told in {text}");
    }
    let page = text.lines().find_map(|line| line.split_once("it stays there after the demo: ")).unwrap().1;
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("may go: nothing here is under it") && page.contains("The policy is kept"),
        "{page}"
    );
}

#[test]
fn the_proof_fails_where_nothing_is_encrypted() {
    let lab = Lab::builder("proof").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let key_id = plugin.key_id().unwrap();
    assert!(!Proof::read(lab.etcd(), SECRETS).unwrap().all_under(&key_id), "nothing proves nothing");

    let plain = lab.add_apiserver(Encryption::Identity).unwrap();
    plain.kubectl(&["create", "secret", "generic", "one"]).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(!proof.all_under(&key_id), "{proof}");
    assert_eq!(proof.not_encrypted, ["/registry/secrets/default/one"]);

    // With the plugin, new data is encrypted and the old one still spoils the proof; then it is migrated.
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    server.kubectl(&["create", "secret", "generic", "two"]).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(!proof.all_under(&key_id), "{proof}");
    assert_eq!(proof.by_key_id.get(&key_id), Some(&1));
    let all = server.kubectl(&["get", "secrets", "-A", "-o", "json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], all.as_bytes()).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(proof.all_under(&key_id), "{proof}");

    // A value that is cut, and one that was written under another key id.
    lab.etcd().put("/registry/secrets/default/cut", b"k8s:enc:kms:v2:casemate:\x0a\xff").unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert_eq!((proof.malformed.len(), proof.all_under(&key_id)), (1, false), "{proof}");
}

/// Stage, deliver, activate on one node, deliver late to the other.
fn rotate([one, two]: &[Plugin<'_>; 2]) {
    let (before_one, before_two) = (one.key_id().unwrap(), two.key_id().unwrap());
    let version = one.stage().unwrap();
    one.deliver_to(two).unwrap();
    one.activate(version).unwrap();
    let after = one.wait_for_switch(&before_one).unwrap();
    one.deliver_to(two).unwrap();
    assert_eq!(two.wait_for_switch(&before_two).unwrap(), after, "both nodes come to the same key id");
}

/// Two API servers, each with a plugin of its own and its own copy of the key file, as two nodes.
#[test]
fn what_was_acknowledged_is_read_by_a_fresh_server_after_every_fault() {
    let lab = Lab::builder("faults").apiservers(0).start().unwrap();
    let one = Plugin::start(&lab, "node-1").unwrap();
    let two = Plugin::start_beside(&one, "node-2").unwrap();
    let plugins = [one, two];
    for plugin in &plugins {
        lab.add_apiserver(plugin.encryption()).unwrap();
    }
    let load = Load::on(&lab, 2);
    load.during(|| {
        for round in 0..5 {
            match round {
                1 | 3 => {
                    let plugin = &plugins[round / 2];
                    plugin.kill9();
                    plugin.start_again().unwrap();
                }
                2 => {
                    let socket = plugins[0].socket();
                    fs::remove_file(&socket).unwrap();
                    plugins[0].process().wait_until("its socket was back", || socket.exists()).unwrap();
                }
                _ => {}
            }
            rotate(&plugins);
        }
    });
    assert!(load.writes() > 50 && load.reads() > 50, "the story had too little load");
    for (node, plugin) in plugins.iter().enumerate() {
        load.is_read_by_fresh(node, plugin);
    }

    // Writes went on through the rotations: etcd holds several key ids, and nothing in clear.
    let last = plugins[0].key_id().unwrap();
    demo::adopted(&|args| Ok(lab.kubectl(0, args)?), &lab, &last).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(
        proof.by_key_id.len() > 1 && proof.not_encrypted.is_empty() && proof.malformed.is_empty(),
        "{proof}"
    );
    eprintln!("{} acknowledged, {} read while it happened; {proof}", load.writes(), load.reads());
}
