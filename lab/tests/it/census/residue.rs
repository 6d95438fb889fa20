//! Plaintext that encryption leaves behind, step by step until it is gone, against a search of the raw bytes for the words
//! that the lab hid in it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::{Apiserver, Encryption, Lab, plugin::product};
use serde_json::{Value, json};

use super::ground_truth::GroundTruth;

pub(super) const SECRETS: usize = 40;
/// Once in each Secret.
const WORD: &[u8] = b"casemate-lab-hid-this-";

pub(super) fn aescbc() -> Encryption {
    let key = STANDARD.encode([7; 32]);
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers:\n  - aescbc: {{keys: [{{name: key1, secret: {key}}}]}}\n  - identity: {{}}\n"
    ))
}

/// Each within a page of any store.
pub(super) fn write_small_secrets(server: &Apiserver) {
    write(server, |_| 10);
}

fn write_secrets(server: &Apiserver) {
    write(server, |number| number * 40);
}

fn write(server: &Apiserver, more: impl Fn(usize) -> usize) {
    let secret = |number: usize| {
        let hidden = format!("{}{number}", String::from_utf8_lossy(WORD));
        let data = json!({ "hidden": hidden, "more": "m".repeat(more(number)) });
        let metadata = json!({ "name": format!("secret-{number}"), "namespace": "default" });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data })
    };
    let items: Vec<Value> = (0..SECRETS).map(secret).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    server.kubectl_with_input(&["create", "-f", "-"], list.to_string().as_bytes()).unwrap();
}

/// What the program tells of a path: its exit code, and copies by place.
pub(super) fn residue(path: &Path) -> (i32, BTreeMap<String, u64>) {
    let mut command = Command::new(product("casemate").unwrap());
    command.args(["census", "residue", "--resource", "secrets", "--output", "json"]).arg(path);
    let done = command.output().unwrap();
    for said in [&done.stdout, &done.stderr] {
        assert_eq!(occurrences(said), 0, "it was printed");
    }
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let mut copies = BTreeMap::new();
    for place in
        answer["files"].as_array().unwrap().iter().flat_map(|file| file["places"].as_array().unwrap())
    {
        let (name, count) = (place["place"].as_str().unwrap(), place["copies"].as_u64().unwrap());
        *copies.entry(name.to_owned()).or_default() += count;
    }
    assert_eq!(answer["copies"].as_u64().unwrap(), copies.values().sum::<u64>());
    for remedy in answer["remedies"].as_array().unwrap() {
        assert!(copies[remedy["place"].as_str().unwrap()] > 0, "{answer:#}");
    }
    (done.status.code().unwrap(), copies)
}

pub(super) fn occurrences(bytes: &[u8]) -> u64 {
    bytes.windows(WORD.len()).filter(|window| *window == WORD).count() as u64
}

/// How often the words stand in the files of a folder.
fn raw(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| occurrences(&fs::read(path).unwrap())).sum()
}

/// The member at rest: what the program tells, by place, after it was compared with the raw bytes.
fn at_rest(lab: &Lab) -> BTreeMap<String, u64> {
    lab.etcd().stop().unwrap();
    let folder = lab.etcd().data_dir();
    let (code, copies) = residue(folder);
    let of_log = copies["write_ahead_log"];
    assert_eq!(of_log, raw(&folder.join("member/wal")), "{copies:?}");
    assert_eq!(copies.values().sum::<u64>() - of_log, raw(&folder.join("member/snap")), "{copies:?}");
    assert_eq!(code, i32::from(copies.values().any(|count| *count > 0)));
    copies
}

fn revision(lab: &Lab, name: &str) -> (PathBuf, u64) {
    let path = lab.dir().join(name);
    lab.etcd().snapshot(&path).unwrap();
    let snapshot = casemate_census::snapshot::Snapshot::open(&path, Default::default()).unwrap();
    let latest = snapshot.store().unwrap().facts().latest.unwrap();
    (path.clone(), latest.main)
}

#[test]
fn each_step_removes_what_it_says_and_no_more() {
    let lab = Lab::builder("census residue").apiservers(0).start().unwrap();
    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    let all = SECRETS as u64;
    write_secrets(&server);

    // A member that runs is refused.
    let (code, nothing) = residue(lab.etcd().data_dir());
    assert_eq!((code, nothing.len()), (3, 0));

    server.stop().unwrap();
    let plain = at_rest(&lab);
    assert_eq!((plain["objects"], plain["old_revisions"], plain["write_ahead_log"]), (all, 0, all));

    // Encrypted and written anew: no object is plaintext, and nothing is gone.
    lab.etcd().start().unwrap();
    server.set_encryption(aescbc()).unwrap();
    server.start().unwrap();
    let every = server.kubectl(&["get", "secrets", "--all-namespaces", "--output=json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], every.as_bytes()).unwrap();
    server.stop().unwrap();
    let migrated = at_rest(&lab);
    assert_eq!((migrated["objects"], migrated["old_revisions"]), (0, all));
    assert_eq!(migrated["write_ahead_log"], all);

    // Compacted: no revision has it, and pages that are free do. A backup takes them along.
    lab.etcd().start().unwrap();
    let (_, latest) = revision(&lab, "before.db");
    GroundTruth::of(lab.etcd()).compact(latest);
    let (backup, _) = revision(&lab, "after.db");
    let (code, of_backup) = residue(&backup);
    assert_eq!((code, of_backup["objects"], of_backup["old_revisions"]), (1, 0, 0));
    assert_eq!(of_backup["free_pages"], occurrences(&fs::read(&backup).unwrap()));
    let compacted = at_rest(&lab);
    assert_eq!((compacted["objects"], compacted["old_revisions"]), (0, 0));
    assert!(compacted["free_pages"] > 0 && compacted["write_ahead_log"] == all, "{compacted:?}");

    // Defragmented: the log is what is left.
    lab.etcd().start().unwrap();
    lab.etcd().defragment().unwrap();
    let (backup, _) = revision(&lab, "clean.db");
    assert_eq!(residue(&backup).0, 0);
    let defragmented = at_rest(&lab);
    assert_eq!(defragmented.values().sum::<u64>(), all, "{defragmented:?}");
    assert_eq!(defragmented["write_ahead_log"], all);

    // The log rotates: after snapshots of Raft, and as many writes as fill files of 64 MiB.
    lab.etcd().start_with(&["--snapshot-count=20", "--max-wals=1", "--max-snapshots=1"]).unwrap();
    for round in 0..200 {
        lab.etcd().put(&format!("/filler/{}", round % 10), &[b'f'; 1 << 20]).unwrap();
    }
    // etcd looks for files that it no longer needs every 30 seconds.
    let log = lab.etcd().data_dir().join("member/wal");
    let begun = Instant::now();
    while raw(&log) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(300), "the log was not rotated");
        std::thread::sleep(Duration::from_secs(1));
    }
    let rotated = at_rest(&lab);
    assert!(rotated.values().all(|count| *count == 0), "{rotated:?}");
}
