//! `casemate census` on files of a cluster that goes from plaintext over local keys to a plugin and through a rotation,
//! each answer against what etcd itself says that it holds.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::{Apiserver, Encryption, Lab, Plugin};
use serde_json::Value;

use super::{
    ground_truth::GroundTruth,
    program::{census, text},
};

/// Providers in this order; all of them can be read.
fn encryption(resources: &str, providers: &[&str], plugin: &Plugin<'_>) -> Encryption {
    let key = STANDARD.encode([7; 32]);
    let endpoint = format!("unix://{}", plugin.socket().display());
    let entries: String = providers
        .iter()
        .map(|provider| match *provider {
            "identity" => "  - identity: {}\n".to_owned(),
            "ours" => {
                format!("  - kms: {{apiVersion: v2, name: ours, endpoint: '{endpoint}', timeout: 3s}}\n")
            }
            local => format!("  - {local}: {{keys: [{{name: old, secret: {key}}}]}}\n"),
        })
        .collect();
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [{resources}]\n  providers:\n{entries}"
    ))
}

fn snapshot(lab: &Lab, name: &str) -> PathBuf {
    let path = lab.dir().join(name);
    lab.etcd().snapshot(&path).unwrap();
    path
}

/// How many values of Secrets and ConfigMaps begin with which mark, as etcd serves them.
fn marks(lab: &Lab) -> BTreeMap<String, u64> {
    let mut marks = BTreeMap::new();
    for resource in ["secrets", "configmaps"] {
        for (_, value) in lab.etcd().list(&format!("/registry/{resource}/")).unwrap() {
            let begin = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            let mark = match begin.strip_prefix("k8s:enc:") {
                None => "plaintext (protobuf)".to_owned(),
                Some(rest) if rest.starts_with("kms:") => {
                    rest.splitn(4, ':').take(3).collect::<Vec<_>>().join(":")
                }
                Some(rest) => {
                    rest.split(':').take(3).filter(|part| *part != "v1").collect::<Vec<_>>().join(":")
                }
            };
            *marks.entry(format!("{resource} {mark}")).or_default() += 1;
        }
    }
    marks
}

/// The same, as the census tells it.
fn counted(answer: &Value) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for group in answer["files"][0]["survey"]["groups"].as_array().unwrap() {
        let resource = group["resource"]["name"].as_str().unwrap();
        let live = group["live"]["values"].as_u64().unwrap();
        if ["secrets", "configmaps"].contains(&resource) && live > 0 {
            *counted.entry(format!("{resource} {}", named(&group["encryption"]))).or_default() += live;
        }
    }
    counted
}

fn named(encryption: &Value) -> String {
    let field = |name: &str| encryption[name].as_str().unwrap();
    match field("kind") {
        "local" => format!("{}:{}", field("cipher"), field("key")),
        "kms_v2" => format!("kms:v2:{}", field("provider")),
        "plain_protobuf" => "plaintext (protobuf)".to_owned(),
        other => other.to_owned(),
    }
}

fn under(server: &Apiserver, encryption: Encryption, name: &str) {
    server.set_encryption(encryption).unwrap();
    server.restart().unwrap();
    server.kubectl(&["create", "secret", "generic", name, "--from-literal=word=hidden"]).unwrap();
}

/// Names of the objects by which a group is told, without their folder.
fn examples(holders: &Value, standing: &str) -> Vec<String> {
    let all = holders
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|holder| holder[standing]["examples"].as_array().unwrap());
    let mut names: Vec<String> =
        all.map(|key| key.as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_answer_is_what_the_lab_wrote() {
    let lab = Lab::builder("census answers").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "ours").unwrap();
    let all = "secrets, configmaps";
    let with = |providers: &[&str]| encryption(all, providers, &plugin);
    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    server.kubectl(&["create", "secret", "generic", "plain", "--from-literal=word=hidden"]).unwrap();
    under(&server, with(&["aescbc", "identity"]), "cbc");
    let old = snapshot(&lab, "1-old.db");
    under(&server, with(&["secretbox", "aescbc", "identity"]), "box");
    under(&server, with(&["ours", "secretbox", "aescbc", "identity"]), "first");
    let first_id = plugin.key_id().unwrap();
    plugin.rotate().unwrap();
    let second_id = plugin.wait_for_switch(&first_id).unwrap();
    server.restart().unwrap();
    server.kubectl(&["create", "secret", "generic", "second", "--from-literal=word=hidden"]).unwrap();

    let mixed = snapshot(&lab, "2-mixed.db");
    let config = server.encryption_file();
    let (code, answer) = census(&["snapshot", text(&mixed), "--encryption-config", text(&config)]);
    assert_eq!(counted(&answer), marks(&lab));
    assert_eq!((code, answer["files"][0]["checksum"].as_str()), (1, Some("verified")));
    let judged = answer["files"][0]["against"].as_array().unwrap();
    let state = |state: &str| -> Vec<Value> {
        judged.iter().filter(|one| one["state"] == state && one["live"]["values"] != 0).cloned().collect()
    };
    assert!(examples(&Value::from(state("unencrypted")), "live").contains(&"plain".to_owned()), "{answer:#}");
    let stale: Vec<String> = state("stale").iter().map(|one| named(&one["encryption"])).collect();
    assert!(stale.iter().all(|one| ["aescbc:old", "secretbox:old"].contains(&one.as_str())), "{stale:?}");
    let stale = examples(&Value::from(state("stale")), "live");
    assert!(stale.contains(&"cbc".to_owned()) && stale.contains(&"box".to_owned()), "{stale:?}");
    assert_eq!((state("unreadable").len(), state("undecided").len()), (0, 0), "{answer:#}");

    // One key, by each of its names.
    let key = |id: &str| format!("key-id:{id}");
    for (key, name) in
        [("aescbc:old".to_owned(), "cbc"), (key(&first_id), "first"), (key(&second_id), "second")]
    {
        let (code, answer) = census(&["snapshot", text(&mixed), "--needs", &key]);
        let found = examples(&answer["needs"], "live");
        assert_eq!((code, found.contains(&name.to_owned())), (1, true), "{key}: {answer:#}");
        let (code, object) =
            census(&["object", text(&mixed), &format!("default/{name}"), "--resource", "secrets"]);
        assert_eq!(code, 0);
        assert!(
            object["values"][0]["keys"].as_array().unwrap().iter().any(|found| *found == *key.as_str()),
            "{object:#}"
        );
    }
    assert_eq!(census(&["object", text(&mixed), "default/absent"]).0, 1);
    assert_eq!(census(&["object", text(&mixed), "/registry/secrets/default/plain"]).0, 0);
    let (code, answer) =
        census(&["snapshot", text(&mixed), "--have", &key(&second_id), "--have", "aescbc:old"]);
    let closed: Vec<String> = answer["files"][0]["closed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| named(&one["encryption"]))
        .collect();
    assert_eq!(code, 1);
    assert!(
        closed.contains(&"secretbox:old".to_owned()) && closed.contains(&"kms:v2:ours".to_owned()),
        "{closed:?}"
    );
    assert!(!closed.contains(&"aescbc:old".to_owned()));

    let policy = lab.dir().join("policy.yaml");
    std::fs::write(
        &policy,
        "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n\
         - {resources: [secrets, configmaps], allow: [kms:v2:ours], maxKeyAge: 1d}\n",
    )
    .unwrap();
    let judge = |file: &Path| census(&["snapshot", text(file), "--policy", text(&policy)]);
    assert_eq!(judge(&mixed).0, 1);

    // Migrated: nothing live is under the old keys, but old revisions are.
    for resource in ["secrets", "configmaps"] {
        let every = server.kubectl(&["get", resource, "--all-namespaces", "--output=json"]).unwrap();
        server.kubectl_with_input(&["replace", "-f", "-"], every.as_bytes()).unwrap();
    }
    let migrated = snapshot(&lab, "3-migrated.db");
    let (code, answer) = census(&["snapshot", text(&migrated), "--encryption-config", text(&config)]);
    assert_eq!(counted(&answer), marks(&lab));
    assert_eq!(code, 0, "{answer:#}");
    assert_eq!(judge(&migrated).0, 0);
    let (code, answer) = census(&["snapshot", text(&migrated), "--may-go", "aescbc:old"]);
    assert_eq!((code, answer["may_go"]["verdict"].as_str()), (1, Some("no")));
    assert_eq!(examples(&answer["may_go"]["held_by"], "live"), Vec::<String>::new());
    assert!(examples(&answer["may_go"]["held_by"], "past").contains(&"cbc".to_owned()));

    // Compacted: it may, as far as this file goes; not with the backup, nor while it is written with.
    let revision = answer["files"][0]["survey"]["revision"].as_u64().unwrap();
    GroundTruth::of(lab.etcd()).compact(revision);
    let compacted = snapshot(&lab, "4-compacted.db");
    for (files, key, expected) in [
        (vec![&compacted], "aescbc:old", 0),
        (vec![&compacted], &key(&first_id), 0),
        (vec![&compacted], &key(&second_id), 1),
        (vec![&compacted, &old], "aescbc:old", 1),
        (vec![&compacted, &old], "secretbox:old", 0),
        (vec![&compacted, &config], "aescbc:old", 3),
    ] {
        let mut arguments = vec!["snapshot", "--may-go", key];
        arguments.extend(files.iter().map(|file| text(file)));
        let (code, answer) = census(&arguments);
        assert_eq!(code, expected, "{arguments:?}: {:#}", answer["may_go"]);
    }

    // A folder: which snapshot needs which keys.
    let folder = lab.dir().join("backups");
    std::fs::create_dir(&folder).unwrap();
    for file in [&old, &compacted] {
        std::fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
    }
    let (code, answer) = census(&["snapshot", text(&folder)]);
    let of = |place: usize| -> Vec<&str> {
        answer["files"][place]["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["key"].as_str().unwrap())
            .collect()
    };
    assert_eq!((code, of(0)), (0, vec!["aescbc:old"]));
    assert!(of(1).contains(&"kms:v2:ours") && of(1).contains(&key(&second_id).as_str()), "{:?}", of(1));
    assert!(!of(1).contains(&key(&first_id).as_str()) && !of(1).contains(&"aescbc:old"), "{:?}", of(1));
    std::fs::write(folder.join("notes.txt"), "no database").unwrap();
    assert_eq!(census(&["snapshot", text(&folder)]).0, 4);

    // Two times, one of them kept as JSON.
    let saved = lab.dir().join("old.json");
    let (_, answer) = census(&["snapshot", text(&old)]);
    std::fs::write(&saved, answer.to_string()).unwrap();
    assert_eq!(census(&["diff", text(&saved), text(&old)]).0, 0);
    let (code, answer) = census(&["diff", text(&saved), text(&compacted)]);
    let gone =
        answer["changes"].as_array().unwrap().iter().filter(|one| named(&one["encryption"]) == "aescbc:old");
    assert!(gone.clone().count() > 0 && gone.clone().all(|one| one["after"]["live"] == 0), "{answer:#}");
    assert_eq!(code, 1);

    // Every resource: what kube-apiserver writes for itself is judged, too.
    server.set_encryption(encryption("'*.*'", &["ours", "identity"], &plugin)).unwrap();
    server.restart().unwrap();
    server.kubectl(&["create", "service", "nodeport", "one", "--tcp=80"]).unwrap();
    let every = snapshot(&lab, "5-all.db");
    let (_, answer) =
        census(&["snapshot", text(&every), "--encryption-config", text(&server.encryption_file())]);
    let judged = answer["files"][0]["against"].as_array().unwrap();
    let allocations: Vec<&str> = judged
        .iter()
        .filter(|one| one["resource"]["name"] == "ranges" && one["live"]["values"] != 0)
        .map(|one| one["state"].as_str().unwrap())
        .collect();
    // Written under `*.*`, and in the clear: which node ports are taken goes past the encryption.
    assert!(!allocations.is_empty() && allocations.iter().all(|state| *state == "current"), "{judged:#?}");
    let taken = lab.etcd().get("/registry/ranges/servicenodeports").unwrap().unwrap();
    assert!(taken.starts_with(b"k8s\0"));
    let services =
        judged.iter().find(|one| one["resource"]["name"] == "services" && one["state"] == "current");
    assert!(services.is_some_and(|one| named(&one["encryption"]) == "kms:v2:ours"), "{answer:#}");
    for (resource, state) in judged.iter().map(|one| (&one["resource"]["name"], &one["state"])) {
        assert!(state == "current" || state == "unencrypted", "{resource} {state}");
    }
}
