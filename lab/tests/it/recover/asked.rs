//! Keys that live elsewhere: root keys of a configuration, and any plugin's socket. Each is asked as rarely as can be.

use std::{fs, path::Path, process::Command};

use casemate_lab::{Encryption, Lab, Plugin, Process, Tool, python};
use serde_json::{Value, json};

use super::written::Written;
use super::{RESOURCES, recover, snapshot, text};

/// The Go plugin of the benchmarks, as a plugin that is not ours.
fn peer(lab: &Lab) -> Process {
    let mut command = Command::new(Tool::KmsPeer.path().unwrap());
    let socket = lab.dir().join("peer.sock");
    command.arg("-listen").arg(&socket).arg("-key-file").arg(lab.dir().join("peer.key"));
    let process = lab.spawn("peer", &command).unwrap();
    process.wait_until("its socket was there", || socket.exists()).unwrap();
    process
}

fn encryption(lab: &Lab, plugin: &Plugin<'_>, first: &str) -> Encryption {
    let peer = lab.dir().join("peer.sock");
    let ours = plugin.socket();
    let mut plugins = [("ours", text(&ours)), ("peer", text(&peer))];
    plugins.sort_by_key(|(name, _)| *name != first);
    let entries: String = plugins
        .iter()
        .map(|(name, socket)| {
            format!("  - kms: {{apiVersion: v2, name: {name}, endpoint: 'unix://{socket}', timeout: 3s}}\n")
        })
        .collect();
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [{RESOURCES}]\n  providers:\n{entries}  - identity: {{}}\n"
    ))
}

/// What the independent reader opens with the plugin's key file.
fn opener(lab: &Lab, plugin: &Plugin<'_>, key: &str) -> Vec<u8> {
    let value = lab.dir().join("value");
    fs::write(&value, lab.etcd().get(key).unwrap().unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("opener/casemate_open.py");
    let mut command = Command::new(python().unwrap());
    command.arg("-B").arg(script).args(["etcd", "--cluster-id", "lab", "--key", key, "--value"]).arg(&value);
    let done = command.arg("--key-file").arg(plugin.key_file()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// How many local KEKs a plugin's values have.
fn local_keks(file: &str, provider: &str) -> usize {
    let answer = casemate_lab::plugin::casemate_json(&["census", "snapshot", file]).unwrap();
    let groups = answer["files"][0]["survey"]["groups"].as_array().unwrap();
    let keys = groups.iter().filter(|group| group["encryption"]["provider"] == provider);
    let mut keks: Vec<&Value> = keys.map(|group| &group["encryption"]["record"]["local_kek"]).collect();
    keks.sort_by_key(|kek| kek.to_string());
    keks.dedup();
    keks.len()
}

#[test]
fn root_keys_and_plugins_open_and_are_asked_once_for_each_key() {
    let lab = Lab::builder("recover asked").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "ours").unwrap();
    let peer = peer(&lab);
    let server = lab.add_apiserver(encryption(&lab, &plugin, "ours")).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    // A DEK source for each start of the API server.
    for round in 0..3 {
        written.write(&server, &format!("ours-{round}"));
        server.restart().unwrap();
    }
    server.set_encryption(encryption(&lab, &plugin, "peer")).unwrap();
    server.restart().unwrap();
    written.write(&server, "peer-0");
    let file = snapshot(&lab, "all.db");
    let file = text(&file);
    assert_eq!(local_keks(file, "ours"), 1);

    let ours = format!("ours=unix://{}", plugin.socket().display());
    let theirs = format!("peer=unix://{}", lab.dir().join("peer.sock").display());
    let drill = |keys: &[&str]| {
        let words = ["drill", file, "--namespace", "default", "--output", "json"];
        recover(words.into_iter().chain(keys.iter().copied()))
    };
    // By their sockets: one call a DEK source.
    let answer = drill(&["--kms", &ours, "--kms", &theirs]).expect(0).json();
    assert_eq!(answer["closed"], json!([]));
    let calls = answer["calls"].as_u64().unwrap();
    assert!((4..8).contains(&calls), "{calls} calls");

    // By the root key: one call a local KEK, whatever the number of DEK sources; and nobody runs but who is asked.
    plugin.kill9();
    let config = plugin.config();
    let out = lab.dir().join("by-the-root-key");
    let words = ["snapshot", file, "--config", text(&config), "--out", text(&out), "--output", "json"];
    let answer = recover(words).expect(4).json();
    assert_eq!(answer["calls"], 1, "{answer:#}");
    assert_eq!(Written::read(&out, &server), written.only(|name| name.starts_with("ours")));
    assert_eq!(answer["unproven"], 0, "who has a root key made the record");
    // Another reader, in another language and written from the page of the formats, comes to the same bytes.
    let opened = opener(&lab, &plugin, "/registry/recover.example/things/default/ours-1");
    assert_eq!(opened, fs::read(out.join("default/things.recover.example/ours-1.json")).unwrap());
    let closed = answer["closed"].as_array().unwrap();
    assert!(closed.iter().all(|one| one["opened_by"].as_array().unwrap().contains(&json!("kms:v2:peer"))));

    // A plugin that is away is told as that, and asked once.
    peer.kill9();
    let run = drill(&["--config", text(&config), "--kms", &theirs]).expect(3);
    let answer = run.json();
    assert!(answer["closed"].as_array().unwrap().iter().all(|one| one["reason"] == "unreachable"));
    assert_eq!(answer["calls"], 1, "{answer:#}");
    // Another key under the same name: no root key of this configuration is that of the records.
    let other = Plugin::start(&lab, "other").unwrap();
    let answer = drill(&["--config", text(&other.config()), "--provider", "casemate"]).expect(1).json();
    assert_eq!(
        answer["opened"],
        answer["objects"].as_u64().unwrap() - answer["closed"].as_array().unwrap().len() as u64
    );
    let ours = |one: &&Value| one["key"].as_str().unwrap().contains("/ours-");
    let mut closed = answer["closed"].as_array().unwrap().iter().filter(ours);
    assert!(closed.all(|one| one["reason"] == "no_key"), "{answer:#}");
    let wrong = format!("ours=unix://{}", other.socket().display());
    let answer = drill(&["--kms", &wrong]).expect(1).json();
    let reasons = answer["closed"].as_array().unwrap().iter().map(|one| one["reason"].as_str().unwrap());
    assert!(reasons.into_iter().any(|reason| reason == "refused"), "{answer:#}");
    drill(&["--config", text(&config), "--provider", "absent"]).expect(2);
}
