//! Clusters that have never heard of Casemate: another plugin, keys in a file, a KMS v1 plugin. The same questions, and
//! answers that are true of what the lab wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::{Apiserver, Encryption, Lab, Plugin, Process, Tool};

use super::{
    ground_truth::{GroundTruth, Transaction},
    program::{census, secrets, text},
};

/// A plugin of somebody else, on its socket.
fn plugin(lab: &Lab, tool: Tool, more: &[&str]) -> (Process, PathBuf) {
    let socket = lab.dir().join(format!("{}.sock", tool.name()));
    let mut command = Command::new(tool.path().unwrap());
    command.arg("-listen").arg(&socket).args(more);
    let process = lab.spawn(tool.name(), &command).unwrap();
    process.wait_until("its socket was there", || socket.exists()).unwrap();
    (process, socket)
}

/// Providers in this order: `peer` is KMS v2, `old` is KMS v1.
fn encryption(providers: &[&str], peer: &Path, old: &Path) -> Encryption {
    let key = STANDARD.encode([7; 32]);
    let entries: String = providers
        .iter()
        .map(|provider| match *provider {
            "identity" => "  - identity: {}\n".to_owned(),
            "peer" => {
                format!("  - kms: {{apiVersion: v2, name: peer, endpoint: 'unix://{}'}}\n", peer.display())
            }
            "old" => {
                let endpoint = format!("unix://{}", old.display());
                format!("  - kms: {{apiVersion: v1, name: old, endpoint: '{endpoint}', cachesize: 100}}\n")
            }
            local => format!("  - {local}: {{keys: [{{name: key1, secret: {key}}}]}}\n"),
        })
        .collect();
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n{entries}"
    ))
}

struct Cluster<'a> {
    lab: &'a Lab,
    server: &'a Apiserver,
}

impl Cluster<'_> {
    fn create(&self, name: &str) {
        self.server.kubectl(&["create", "secret", "generic", name, "--from-literal=word=hidden"]).unwrap();
    }

    /// Writes every Secret anew under another configuration.
    fn move_to(&self, encryption: Encryption) {
        self.server.set_encryption(encryption).unwrap();
        self.server.restart().unwrap();
        let every = self.server.kubectl(&["get", "secrets", "--all-namespaces", "--output=json"]).unwrap();
        self.server.kubectl_with_input(&["replace", "-f", "-"], every.as_bytes()).unwrap();
    }

    fn snapshot(&self, name: &str) -> PathBuf {
        let path = self.lab.dir().join(name);
        self.lab.etcd().snapshot(&path).unwrap();
        path
    }

    fn compact(&self, file: &Path) {
        let (_, answer) = census(&["snapshot", text(file)]);
        let latest = answer["files"][0]["survey"]["revision"].as_u64().unwrap();
        GroundTruth::of(self.lab.etcd()).compact(latest);
    }
}

fn row(kind: &str, live: u64, past: u64) -> (String, u64, u64) {
    (kind.to_owned(), live, past)
}

/// May it go, by the program.
fn may_go(file: &Path, key: &str, config: &Path) -> (i32, String) {
    let arguments = ["snapshot", text(file), "--may-go", key, "--encryption-config", text(config)];
    let (code, answer) = census(&arguments);
    (code, answer["may_go"]["verdict"].as_str().unwrap().to_owned())
}

/// Ours at first, and theirs later, under the name that the EncryptionConfiguration always had.
#[test]
fn two_plugins_behind_one_name_are_told_apart() {
    let lab = Lab::builder("census one name").apiservers(0).start().unwrap();
    let ours = Plugin::start(&lab, "ours").unwrap();
    let root = lab.dir().join("root.hex");
    let (_theirs, peer) = plugin(&lab, Tool::KmsPeer, &["-cluster-id", "theirs", "-key-file", text(&root)]);
    let at = |socket: &Path| encryption(&["peer", "identity"], socket, socket);
    let server = lab.add_apiserver(at(&ours.socket())).unwrap();
    let cluster = Cluster { lab: &lab, server: &server };
    cluster.create("ours");
    let key = "/registry/secrets/default/ours";
    let kept = lab.etcd().get(key).unwrap().unwrap();
    let our_id = format!("key-id:{}", ours.key_id().unwrap());
    // No server that has the other plugin reads it: it stands aside until that one has written.
    server.kubectl(&["delete", "secret", "ours"]).unwrap();
    server.set_encryption(at(&peer)).unwrap();
    server.restart().unwrap();
    cluster.create("theirs");
    let mut back = Transaction::default();
    back.put(key, &kept, 0);
    let mut truth = GroundTruth::of(lab.etcd());
    let revision = truth.commit(back);
    truth.compact(revision);

    let file = cluster.snapshot("both.db");
    let (_, answer) = census(&["snapshot", text(&file)]);
    let keys: Vec<&str> = answer["files"][0]["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|used| used["key"].as_str().unwrap())
        .collect();
    let ids: Vec<&str> = keys.iter().copied().filter(|key| key.starts_with("key-id:")).collect();
    let their_id = *ids.iter().find(|id| **id != our_id).unwrap();
    assert!(ids.len() == 2 && ids.contains(&our_id.as_str()), "{keys:?}");
    let held = |key: &str| {
        let (code, answer) = census(&["snapshot", text(&file), "--needs", key]);
        let mut names: Vec<String> = answer["needs"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|holder| holder["live"]["examples"].as_array().unwrap())
            .map(|key| key.as_str().unwrap().rsplit('/').next().unwrap().to_owned())
            .collect();
        names.sort();
        (code, names.join(" "))
    };
    assert_eq!(held(&our_id), (1, "ours".to_owned()));
    assert_eq!(held(their_id), (1, "theirs".to_owned()));
    assert_eq!(held("kms:v2:peer"), (1, "ours theirs".to_owned()));
    // Only one of them left a record, which names one root key.
    let root = *keys.iter().find(|key| key.starts_with("root:")).unwrap();
    assert_eq!(held(root), (1, "ours".to_owned()));
    let (code, answer) = census(&["snapshot", text(&file), "--have", &our_id]);
    let closed = answer["files"][0]["closed"].as_array().unwrap();
    assert_eq!((code, closed.len()), (1, 1), "{answer:#}");
    assert_eq!(format!("key-id:{}", closed[0]["encryption"]["key_id"].as_str().unwrap()), their_id);
}

#[test]
fn the_cluster_of_another_plugin_moves_to_a_local_key_and_to_kms_v1() {
    let lab = Lab::builder("census others").apiservers(0).start().unwrap();
    let root = lab.dir().join("root.hex");
    let (_, peer) = plugin(&lab, Tool::KmsPeer, &["-cluster-id", "theirs", "-key-file", text(&root)]);
    let (_, old) = plugin(&lab, Tool::KmsV1, &[]);
    let with = |providers: &[&str]| encryption(providers, &peer, &old);
    let server = lab.add_apiserver(with(&["peer", "identity"])).unwrap();
    let cluster = Cluster { lab: &lab, server: &server };
    let config = server.encryption_file();
    (0..3).for_each(|number| cluster.create(&format!("secret-{number}")));

    // Under their plugin: what it leaves is told as theirs, and no record of ours is seen in it.
    let first = cluster.snapshot("first.db");
    assert_eq!(secrets(&first), [row("kms_v2", 3, 0)]);
    let (code, answer) = census(&["snapshot", text(&first), "--encryption-config", text(&config)]);
    assert_eq!(code, 0, "{answer:#}");
    let keys: Vec<&str> = answer["files"][0]["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|used| used["key"].as_str().unwrap())
        .collect();
    assert!(keys.contains(&"kms:v2:peer") && keys.len() == 2, "{keys:?}");
    let key_id = (*keys.iter().find(|key| key.starts_with("key-id:")).unwrap()).to_owned();
    let (_, object) = census(&["object", text(&first), "default/secret-1", "--resource", "secrets"]);
    let value = &object["values"][0];
    assert_eq!(value["annotations"], serde_json::json!(["record.peer.example"]), "{object:#}");
    assert!(value["encryption"]["record"].is_null() && value["faults"].as_array().unwrap().is_empty());
    let sealed = lab.etcd().get("/registry/secrets/default/secret-1").unwrap().unwrap();
    let named = key_id.strip_prefix("key-id:").unwrap();
    assert!(sealed.windows(named.len()).any(|window| window == named.as_bytes()), "{key_id}");
    for (asked, key, code) in [
        ("--needs", "kms:v2:peer", 1),
        ("--needs", "aescbc:key1", 0),
        ("--have", key_id.as_str(), 0),
        ("--have", "aescbc:key1", 1),
    ] {
        assert_eq!(census(&["snapshot", text(&first), asked, key]).0, code, "{asked} {key}");
    }
    assert_eq!(may_go(&first, "kms:v2:peer", &config), (1, "no".to_owned()));

    // To a key in a file, by which alone the cluster could be run.
    cluster.move_to(with(&["aescbc", "peer"]));
    let moved = cluster.snapshot("moved.db");
    assert_eq!(secrets(&moved), [row("kms_v2", 0, 3), row("local", 3, 0)]);
    assert_eq!(may_go(&moved, &key_id, &config), (1, "no".to_owned()));
    cluster.compact(&moved);
    server.set_encryption(with(&["aescbc"])).unwrap();
    server.restart().unwrap();
    let alone = cluster.snapshot("alone.db");
    assert_eq!(secrets(&alone), [row("local", 3, 0)]);
    assert_eq!(may_go(&alone, "kms:v2:peer", &config), (0, "yes".to_owned()));
    assert_eq!(may_go(&alone, "aescbc:key1", &config), (1, "no".to_owned()));
    assert_eq!(census(&["snapshot", text(&alone), "--encryption-config", text(&config)]).0, 0);

    // To a KMS v1 plugin, which leaves its name only.
    cluster.move_to(with(&["old", "aescbc"]));
    let policy = lab.dir().join("policy.yaml");
    fs::write(
        &policy,
        "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n- {resources: [secrets], allow: [kms:v1:old]}\n",
    )
    .unwrap();
    let v1 = cluster.snapshot("v1.db");
    assert_eq!(secrets(&v1), [row("kms_v1", 3, 0), row("local", 0, 3)]);
    assert_eq!(census(&["snapshot", text(&v1), "--policy", text(&policy)]).0, 0);
    assert_eq!(census(&["snapshot", text(&alone), "--policy", text(&policy)]).0, 1);
    let (code, answer) = census(&["snapshot", text(&v1), "--needs", "kms:v1:old"]);
    assert_eq!((code, answer["needs"][0]["live"]["values"].as_u64()), (1, Some(3)), "{answer:#}");
    assert_eq!(census(&["snapshot", text(&v1), "--encryption-config", text(&config)]).0, 0);
    assert_eq!(may_go(&v1, "aescbc:key1", &config), (1, "no".to_owned()));
}
