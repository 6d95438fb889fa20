//! `casemate key plan-rotation`: on a host with a root key in a file, with the plugin running and not.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::daemon::Host;
use crate::program::casemate;

/// Exit code, JSON of the one provider, what people read.
fn plan(host: &Host) -> (i32, Value, String) {
    let run = |more: &str| {
        let done =
            casemate(&format!("key plan-rotation {more} --config")).arg(host.config()).output().unwrap();
        let told = String::from_utf8(done.stderr).unwrap();
        assert!(told.is_empty(), "{told}");
        (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, json) = run("--output json");
    let (same, text) = run("");
    assert_eq!(code, same);
    (code, serde_json::from_str::<Value>(&json).unwrap()[0].take(), text)
}

/// All below a folder, with what is in it.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![(path.clone(), fs::read(&path).unwrap_or_default())],
        })
        .collect();
    found.sort();
    found
}

#[test]
fn each_step_of_a_rotation_is_foretold_and_nothing_is_changed_by_it() {
    let host = Host::new();
    let (code, json, text) = plan(&host);
    assert_eq!((code, &json["active"], &json["would"]["what"]), (1, &Value::Null, &"write".into()));
    assert!(text.contains("writes as soon as the plugin runs"), "{text}");
    assert!(!host.file("state").exists(), "nothing is made");
    let foretold = json["would"]["key_id"].as_str().unwrap().to_owned();

    let daemon = host.serve();
    let first = fs::read(host.file("main.key")).unwrap();
    assert!(host.status().unwrap().contains(&foretold), "the first key id is the one that was foretold");
    let (code, json, text) = plan(&host);
    assert_eq!(
        (code, &json["would"]["what"], &json["would"]["key_id"]),
        (0, &"nothing_changes".into(), &foretold.as_str().into())
    );
    assert_eq!(
        (&json["active"]["known_from"], &json["plugin_not_asked"]),
        (&"the running plugin".into(), &Value::Null)
    );
    assert!(text.contains(" 1, current\n"), "{text}");

    drop(daemon);
    let before = files(host.file("state").parent().unwrap());
    host.rotate();
    let second = fs::read(host.file("main.key")).unwrap();
    let (code, json, text) = plan(&host);
    assert_eq!(
        (code, &json["would"]["what"], &json["active"]["known_from"]),
        (1, &"write".into(), &"the ledger".into())
    );
    assert!(json["plugin_not_asked"].as_str().unwrap().contains("does not exist"), "{json}");
    assert!(
        text.contains("it changes: key id") && text.contains("60 seconds from now at the latest"),
        "{text}"
    );
    assert!(text.contains("1. see on every control plane node that its key file has file:"), "{text}");
    fs::write(host.file("main.key"), &first).unwrap();
    assert_eq!(files(host.file("state").parent().unwrap()), before, "nothing is changed");

    // It comes true.
    fs::write(host.file("main.key"), &second).unwrap();
    let foretold = json["would"]["key_id"].as_str().unwrap().to_owned();
    let daemon = host.serve();
    casemate("kms refresh --wait --admin").arg(host.admin()).assert().code(0);
    assert!(host.status().unwrap().contains(&foretold));
    assert_eq!(plan(&host).0, 0);

    // The old file comes back.
    fs::write(host.file("main.key"), &first).unwrap();
    let (code, json, text) = plan(&host);
    assert_eq!(
        (code, &json["would"]["what"], &json["would"]["class"]),
        (1, &"refused".into(), &"reuse".into())
    );
    assert!(text.contains("raise `epoch` from 0 to 1 on all nodes"), "{text}");

    fs::remove_file(host.file("main.key")).unwrap();
    let (code, json, text) = plan(&host);
    assert_eq!((code, &json["would"]["class"]), (3, &"unreachable".into()));
    assert!(text.contains("Nothing changes until it answers"), "{text}");
    drop(daemon);
}

#[test]
fn what_the_configuration_forbids_is_refused() {
    let host = Host::new();
    host.change("- name: main\n", "- name: main\n        minReadVersion: 2\n");
    let (code, json, text) = plan(&host);
    assert_eq!((code, &json["would"]["class"]), (1, &"not_readable".into()));
    assert!(text.contains("is below the configured minReadVersion 2"), "{text}");

    host.rotate();
    host.change("        minReadVersion: 2\n", "        version: 1\n");
    let (code, json, text) = plan(&host);
    assert_eq!((code, &json["root_keys"][0]["selection"]), (1, &"1".into()));
    assert!(json["root_keys"][0]["shows"].as_str().unwrap().contains("/1/"), "{json}");
    assert!(text.contains(" 2, current\n"), "{text}");

    let id = fs::read_to_string(host.config()).unwrap().split("id: \"").nth(1).unwrap()[..32].to_owned();
    host.change(&id, &"0".repeat(32));
    let (code, json, _) = plan(&host);
    assert_eq!((code, &json["would"]["class"]), (1, &"corrupt".into()));
}

#[test]
fn what_can_t_be_planned_is_a_wrong_command_line_or_configuration() {
    let host = Host::new();
    casemate("key plan-rotation --provider other --config").arg(host.config()).assert().code(2);
    casemate("key plan-rotation --config /nowhere/config.yaml").assert().code(2);
    host.change("kind: KmsConfiguration", "kind: Other");
    casemate("key plan-rotation --config").arg(host.config()).assert().code(2);
}
