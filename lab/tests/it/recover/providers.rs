//! Objects under every provider come back, each with its own key only.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

use casemate_lab::{Encryption, Lab, Plugin};
use serde_json::{Value, json};

use super::written::Written;
use super::{encryption, files, identity, recover, snapshot, text};

const LOCAL: [&str; 3] = ["aescbc", "aesgcm", "secretbox"];

/// Keys in etcd of what does not open, with reason and keys that would open it.
fn closed(answer: &Value) -> BTreeMap<String, (String, Vec<String>)> {
    let closed = answer["closed"].as_array().unwrap().iter().map(|one| {
        let keys = one["opened_by"].as_array().unwrap();
        let keys = keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect();
        let field = |name: &str| one[name].as_str().unwrap().to_owned();
        (field("key"), (field("reason"), keys))
    });
    closed.collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_kube_apiserver_wrote_under_every_provider_comes_back_as_it_was_written() {
    let lab = Lab::builder("recover providers").apiservers(0).start().unwrap();
    let [safe, other, local, records] =
        ["safe", "other", "local.yaml", "records.json"].map(|name| lab.dir().join(name));
    let (recipients, _) = (identity(&safe), identity(&other));
    let plugin = Plugin::start(&lab, "ours").unwrap();
    plugin.restart_with(|config| config["providers"][0]["recoveryRecipients"] = recipients).unwrap();
    let order = |first: &'static str| {
        let mut all = vec!["identity", "aescbc", "aesgcm", "secretbox", "ours"];
        all.sort_by_key(|provider| *provider != first);
        encryption(&all, Some(&plugin))
    };
    let server = lab.add_apiserver(order("identity")).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    for provider in ["identity", "aescbc", "aesgcm", "secretbox", "ours"] {
        server.set_encryption(order(provider)).unwrap();
        server.restart().unwrap();
        written.write(&server, &format!("under-{provider}"));
    }
    assert_eq!(written.len(), 15);
    assert_eq!(written.served(&server), written, "the lab does not know what it wrote");
    let file = snapshot(&lab, "all.db");
    fs::copy(server.encryption_file(), &local).unwrap();
    let (file, safe, other, local) = (text(&file), text(&safe), text(&other), text(&local));

    // Whoever had the keys is gone: what is left is the snapshot, the identity and a file with the local keys.
    plugin.kill9();
    fs::remove_file(plugin.key_file()).unwrap();
    let out = |name: &str| lab.dir().join(name);
    let all = out("all");
    let words = ["snapshot", file, "--identity", safe, "--encryption-config", local, "--output", "json"];
    let run = recover(words.iter().copied().chain(["--out", text(&all)])).expect(0);
    let answer = run.json();
    assert_eq!(Written::read(&all, &server), written);
    assert_eq!((&answer["closed"], &answer["strange"], &answer["calls"]), (&json!([]), &json!(0), &json!(0)));
    assert_eq!(answer["opened"], files(&all).len(), "each object is a file");
    assert!(answer["unproven"].as_u64().unwrap() >= 3);
    assert_eq!((mode(&all), mode(&all.join("default/secrets"))), (0o700, 0o700));
    assert_eq!(mode(&all.join("default/secrets/under-ours.yaml")), 0o600);
    // Nothing of what is in it is in what was said.
    assert!(!format!("{}{}", run.out, run.said).contains("under-ours yes"));
    // A second time into the same folder is refused.
    recover(words.iter().copied().chain(["--out", text(&all)])).expect(2);

    // Other kinds are the bytes that etcd has.
    let stored = lab.etcd().get("/registry/namespaces/default").unwrap().unwrap();
    assert_eq!(fs::read(all.join("_cluster/namespaces/default.pb")).unwrap(), stored);

    // Each key opens its own and nothing else; the rest is told, with what would open it.
    for (given, is_open) in [
        (vec!["--identity", safe], &["identity", "ours"][..]),
        (vec!["--identity", other], &["identity"]),
        (vec!["--encryption-config", local], &["identity", "aescbc", "aesgcm", "secretbox"]),
        (vec![], &["identity"]),
    ] {
        let folder = out(&format!("some-{}", is_open.len()));
        let _ = fs::remove_dir_all(&folder);
        let words = ["snapshot", file, "--out", text(&folder), "--output", "json"];
        let answer = recover(words.into_iter().chain(given.iter().copied())).expect(4).json();
        let is_open = |name: &str| is_open.iter().any(|provider| name == format!("under-{provider}"));
        assert_eq!(Written::read(&folder, &server), written.only(is_open), "{given:?}");
        for (key, (reason, keys)) in closed(&answer) {
            let Some((_, provider)) = key.split_once("/under-") else { continue };
            assert!(!is_open(&format!("under-{provider}")), "{key}");
            assert_eq!(reason, "no_key", "{key}");
            if LOCAL.contains(&provider) {
                assert_eq!(keys, [format!("{provider}:key-of-{provider}")]);
            } else {
                assert!(keys.iter().any(|key| key.starts_with("recovery:")), "{keys:?}");
                assert!(keys.iter().any(|key| key.starts_with("root:file:")), "{keys:?}");
            }
        }
    }

    // A drill writes and shows nothing, and finds what is planted.
    let drill = |file: &str| recover(["drill", file, "--identity", safe, "--encryption-config", local]);
    let before = files(lab.dir()).len();
    assert!(drill(file).expect(0).out.contains("0 do not"));
    assert_eq!(files(lab.dir()).len(), before);
    recover(["drill", file, "--identity", safe]).expect(1);
    recover(["drill", file, "--identity", safe, "--namespace", "nowhere"]).expect(3);
    recover(["drill", file, "--identity", safe, "--resource", "namespaces"]).expect(0);

    // One object, to standard output, only when that is asked for.
    let one =
        ["object", file, "default/under-secretbox", "--resource", "secrets", "--encryption-config", local];
    recover(one).expect(2);
    let shown = recover(one.into_iter().chain(["--show-secrets"])).expect(0);
    assert!(shown.out.contains("kind: Secret") && shown.out.contains("\"tricky\": \""), "{}", shown.out);
    let again = server
        .kubectl_with_input(&["create", "--dry-run=client", "--output=name", "-f", "-"], shown.out.as_bytes())
        .unwrap();
    assert_eq!(again.trim(), "secret/under-secretbox");
    recover(["object", file, "default/nothing", "--show-secrets"]).expect(1);

    // What a census saw while etcd was trusted proves where records come from.
    let seen = casemate_lab::plugin::casemate(&["census", "snapshot", file, "--output", "json"]).unwrap();
    fs::write(&records, seen).unwrap();
    let words = ["drill", file, "--identity", safe, "--encryption-config", local, "--output", "json"];
    let answer = recover(words.into_iter().chain(["--records", text(&records)])).expect(0).json();
    assert_eq!(answer["unproven"], 0);

    planted(&lab, file, safe, local);
}

/// Values that were moved, cut or flipped in etcd are found by a drill, each by its name.
fn planted(lab: &Lab, file: &str, safe: &str, local: &str) {
    let etcd = lab.etcd();
    let key = |provider: &str| format!("/registry/secrets/default/under-{provider}");
    let value = |provider: &str| etcd.get(&key(provider)).unwrap().unwrap();
    let swapped = [("aesgcm", "moved-aesgcm"), ("ours", "moved-ours")];
    for (provider, name) in swapped {
        etcd.put(&format!("/registry/secrets/default/{name}"), &value(provider)).unwrap();
    }
    for provider in ["aescbc", "aesgcm", "secretbox", "ours"] {
        let whole = value(provider);
        for (name, changed) in [
            ("cut", whole[..whole.len() - 16].to_vec()),
            ("flipped", {
                let mut flipped = whole.clone();
                // Of the last block: what the object ends with, or its padding.
                let at = flipped.len() - 20;
                flipped[at] ^= 1;
                flipped
            }),
        ] {
            etcd.put(&format!("/registry/secrets/default/{name}-{provider}"), &changed).unwrap();
        }
    }
    let after = snapshot(lab, "planted.db");
    let words = ["drill", text(&after), "--identity", safe, "--encryption-config", local, "--output", "json"];
    let found = closed(&recover(words).expect(1).json());
    for name in ["moved-aesgcm", "moved-ours", "cut-aesgcm", "cut-secretbox", "cut-ours", "flipped-aesgcm"] {
        assert!(found.contains_key(&format!("/registry/secrets/default/{name}")), "{name}: {found:#?}");
    }
    // AES-CBC authenticates nothing: what was cut at a block may look whole, and that is why nobody should use it.
    let told: Vec<&String> = found.keys().filter(|key| !key.ends_with("-aescbc")).collect();
    assert_eq!(told.len(), 8, "{told:#?}");
    // The snapshot of before is as it was.
    recover(["drill", file, "--identity", safe, "--encryption-config", local]).expect(0);
}

#[test]
fn what_was_deleted_yesterday_is_had_at_the_revision_before() {
    let lab = Lab::builder("recover deleted").apiservers(0).start().unwrap();
    let server = lab.add_apiserver(encryption(&["secretbox", "identity"], None)).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    written.write(&server, "kept");
    written.write(&server, "gone");
    let before = snapshot(&lab, "before.db");
    let census = ["census", "snapshot", text(&before)];
    let revision =
        casemate_lab::plugin::casemate_json(&census).unwrap()["files"][0]["survey"]["revision"].to_string();
    server.kubectl(&["delete", "secret,configmap,things.recover.example", "gone"]).unwrap();
    server.set_encryption(Encryption::Identity).unwrap();
    let file = snapshot(&lab, "after.db");

    let local = lab.dir().join("local.yaml");
    fs::write(&local, encryption_text()).unwrap();
    let [now, then] = ["now", "then"].map(|name| lab.dir().join(name));
    let words =
        ["snapshot", text(&file), "--encryption-config", text(&local), "--namespace", "default", "--out"];
    recover(words.into_iter().chain([text(&now)])).expect(0);
    assert_eq!(Written::read(&now, &server), written.only(|name| name == "kept"));
    recover(words.into_iter().chain([text(&then), "--revision", &revision])).expect(0);
    assert_eq!(Written::read(&then, &server), written);
    let far =
        recover(words.into_iter().chain([text(&lab.dir().join("far")), "--revision", "1000000"])).expect(2);
    assert!(far.said.contains("the file has revisions"), "{}", far.said);
}

fn encryption_text() -> String {
    match encryption(&["secretbox", "identity"], None) {
        Encryption::Verbatim(text) => text,
        other => panic!("{other:?}"),
    }
}
