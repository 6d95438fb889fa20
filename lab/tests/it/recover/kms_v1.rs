//! What a plugin of KMS v1 encrypted, through its socket.

use std::process::Command;

use casemate_lab::{Encryption, Lab, Plugin, Tool};
use serde_json::json;

use super::written::Written;
use super::{RESOURCES, recover, snapshot, text};

#[test]
fn what_a_plugin_of_version_1_encrypted_is_opened_through_its_socket() {
    let lab = Lab::builder("recover kms v1").apiservers(0).start().unwrap();
    let socket = lab.dir().join("v1.sock");
    let mut command = Command::new(Tool::KmsV1.path().unwrap());
    let process = lab.spawn("kms-v1", command.arg("-listen").arg(&socket)).unwrap();
    process.wait_until("its socket was there", || socket.exists()).unwrap();
    // Beside one of version 2, as in a cluster that moves on.
    let ours = Plugin::start(&lab, "ours").unwrap();
    let with = |first: &str| {
        let endpoint = |socket: &std::path::Path| format!("endpoint: 'unix://{}'", socket.display());
        let [v1, v2] = [
            format!("  - kms: {{apiVersion: v1, name: plugin, {}, cachesize: 100}}\n", endpoint(&socket)),
            format!("  - kms: {{apiVersion: v2, name: plugin-2, {}}}\n", endpoint(&ours.socket())),
        ];
        let providers = if first == "v1" { v1 + &v2 } else { v2 + &v1 };
        Encryption::Verbatim(format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [{RESOURCES}]\n  providers:\n{providers}  - identity: {{}}\n"
        ))
    };
    let server = lab.add_apiserver(with("v1")).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    written.write(&server, "under-v1");
    server.set_encryption(with("v2")).unwrap();
    server.restart().unwrap();
    written.write(&server, "under-v2");
    let file = snapshot(&lab, "all.db");
    let named = |name: &str, socket: &std::path::Path| format!("{name}=unix://{}", socket.display());
    let (v1, v2) = (named("plugin", &socket), named("plugin-2", &ours.socket()));
    let drill = |more: &[&str]| {
        recover(["drill", text(&file), "--output", "json"].into_iter().chain(more.iter().copied()))
    };

    // With both plugins all of it, each object of version 1 by a call of its own.
    let out = lab.dir().join("out");
    let keys = ["--kms", &v1, "--kms", &v2, "--output", "json", "--out", text(&out)];
    let answer = recover(["snapshot", text(&file)].into_iter().chain(keys)).expect(0).json();
    assert_eq!(Written::read(&out, &server), written);
    assert!(answer["calls"].as_u64().unwrap() >= 4, "{answer:#}");

    // Without, which key would open it; with what speaks something else there, that.
    let without = drill(&["--kms", &v2]).expect(1);
    assert!(without.out.contains("kms:v1:plugin") && !without.out.contains("under-v2"), "{}", without.out);
    let other = drill(&["--kms", &v2, "--kms", &named("plugin", &ours.socket())]).expect(1);
    assert!(other.out.contains("decrypts nothing of KMS v1"), "{}", other.out);
    let other = drill(&["--kms", &v1, "--kms", &named("plugin-2", &socket)]).expect(1);
    assert!(other.out.contains("has no KMS v2 method Decrypt"), "{}", other.out);

    // Another key (a ConfigMap of the cluster is under it, too), as after a restart of this plugin; then nobody there, who is asked once.
    process.kill9();
    let away = drill(&["--kms", &v1, "--kms", &v2]).expect(3);
    assert!(away.out.contains("nobody listens"), "{}", away.out);
    std::fs::remove_file(&socket).unwrap();
    let process = lab.spawn("kms-v1", &command).unwrap();
    process.wait_until("its socket was there", || socket.exists()).unwrap();
    let foreign = drill(&["--kms", &v1, "--kms", &v2]).expect(1).json();
    assert_eq!(foreign["closed"].as_array().unwrap().len(), 4, "{foreign:#}");
    assert_eq!(foreign["closed"][0]["opened_by"], json!(["kms:v1:plugin"]));
}
