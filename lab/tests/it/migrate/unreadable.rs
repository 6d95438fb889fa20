//! Objects that nobody can read hide no others.

use casemate_lab::Lab;
use serde_json::{Value, json};

use super::Scene;

/// One whose ciphertext was changed, and one whose provider nobody has any more.
fn damage(scene: &Scene<'_>) {
    let etcd = scene.lab.etcd();
    let key = "/registry/secrets/b/s-1";
    let mut value = etcd.get(key).unwrap().unwrap();
    *value.last_mut().unwrap() ^= 1;
    etcd.put(key, &value).unwrap();
    let other = etcd.get("/registry/secrets/b/s-4").unwrap().unwrap();
    let (_, rest) = other.split_at("k8s:enc:kms:v2:casemate:".len());
    etcd.put("/registry/secrets/b/s-4", &[b"k8s:enc:kms:v2:gone:", rest].concat()).unwrap();
    // API servers notice while they run; one that starts now does not become ready before it is repaired.
}

fn failed(answer: &Value) -> Vec<(String, Value)> {
    let mut failed: Vec<(String, Value)> = answer["report"]["failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failed| {
            let text = |field: &str| failed[field].as_str().unwrap();
            (format!("{}/{}/{}", text("resource"), text("namespace"), text("name")), failed["cause"].clone())
        })
        .collect();
    failed.sort_by(|one, other| one.0.cmp(&other.0));
    failed
}

#[test]
fn with_etcd_each_is_named_with_provider_and_key_and_all_others_are_written() {
    let lab = Lab::builder("migrate unreadable").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(120);
    let before = scene.plugin.key_id().unwrap();
    scene.rotate();
    damage(&scene);
    let all = scene.stale().objects();
    let (code, answer) = scene.migrate(&[0], true, &["--yes"]);
    assert_eq!((code, &answer["verdict"]), (4, &json!("partly")), "{answer:#}");
    let failed = failed(&answer);
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["secrets/b/s-1", "secrets/b/s-4"], "{answer:#}");
    for (_, cause) in &failed {
        assert_eq!(cause["kind"], "unreadable", "{answer:#}");
    }
    let stored = |index: usize| failed[index].1["stored"].as_str().unwrap();
    assert_eq!(stored(0), format!("kms:v2:casemate under key id {before}"));
    assert!(stored(1).starts_with("kms:v2:gone"), "{answer:#}");
    // An API server was asked about the first one only: of the other one the census knows.
    assert_eq!((&failed[0].1["code"], &failed[1].1["code"]), (&json!(500), &Value::Null), "{answer:#}");
    let tallies = answer["report"]["resources"].as_object().unwrap().values();
    let written: u64 = tallies.map(|tally| tally["written"].as_u64().unwrap()).sum();
    assert_eq!(written, all - 1, "{answer:#}");
    assert_eq!(scene.stale().stale.get("secrets"), Some(&1));
    assert_eq!(answer["proof"]["unreadable"][0]["objects"], 1, "{answer:#}");
}

#[test]
fn without_etcd_lists_go_on_behind_it() {
    let lab = Lab::builder("migrate unreadable lists").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(120);
    scene.rotate();
    damage(&scene);
    let all = scene.stale().objects();
    let (code, answer) = scene.migrate(&[0], false, &["--yes"]);
    assert_eq!((code, &answer["verdict"]), (4, &json!("partly")), "{answer:#}");
    let failed = failed(&answer);
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["secrets/b/s-1", "secrets/b/s-4"], "{answer:#}");
    let tallies = answer["report"]["resources"].as_object().unwrap().values();
    let written: u64 = tallies.map(|tally| tally["written"].as_u64().unwrap()).sum();
    assert_eq!(written, all - 1, "{answer:#}");
    assert_eq!(answer["report"]["skipped"], json!([]), "{answer:#}");
    eprintln!("{} requests in {} s", answer["report"]["requests"], answer["seconds"]);
}
