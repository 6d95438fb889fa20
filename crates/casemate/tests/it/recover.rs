//! `casemate recover`: command lines, key files and folders that are wrong. What is opened of right ones is compared with a
//! real cluster in the lab.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::program::casemate;

#[test]
fn what_is_wrong_is_told_before_anything_is_opened_and_no_key_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let secret = "c2VjcmV0LXRoYXQtaXMtbmV2ZXItcXVvdGVkLTAwMDE=";
    fs::write(at("broken.yaml"), format!("kind: EncryptionConfiguration\nresources: {secret}\n")).unwrap();
    fs::write(at("records.json"), r#"{"files": [{"survey": {"records": [{"digest": "0f"}]}}]}"#).unwrap();
    fs::write(at("kms.yaml"), "kind: KmsConfiguration\n").unwrap();
    fs::write(at("full"), "").unwrap();
    fs::create_dir(at("used")).unwrap();
    fs::write(at("used/a"), "").unwrap();
    let out = at("out");
    for (arguments, says) in [
        ("recover snapshot".to_owned(), "<FILE>"),
        ("recover snapshot a.db".to_owned(), "--out"),
        (format!("recover snapshot a.db --out {out} --show-secrets"), "cannot be used with"),
        ("recover snapshot a.db --show-secrets --output json".to_owned(), "--show-secrets"),
        (format!("recover snapshot a.db --out {}", at("full")), "is no folder"),
        (format!("recover snapshot a.db --out {}", at("used")), "0755"),
        (format!("recover object a.db default --out {out}"), "NAMESPACE/NAME"),
        ("recover drill a.db --kms unix:///run/a.sock".to_owned(), "NAME=unix://"),
        ("recover drill a.db --provider a".to_owned(), "--config"),
        (format!("recover drill a.db --config {}", at("kms.yaml")), "kms.yaml"),
        (format!("recover drill a.db --encryption-config {}", at("broken.yaml")), "broken.yaml"),
        (format!("recover drill a.db --records {}", at("records.json")), "records[0]"),
    ] {
        let done = casemate(&arguments).assert().code(2);
        let output = done.get_output();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(says), "{arguments}: {said}");
        assert!(!said.contains(secret), "{said}");
        assert!(!folder.path().join("out").exists(), "{arguments}");
    }
}

#[test]
fn what_is_no_file_of_etcd_leaves_it_open() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("notes.txt"), "no database").unwrap();
    for arguments in [
        format!("recover drill {}", at("notes.txt")),
        format!("recover drill {}", at("absent.db")),
        format!("recover snapshot {} --out {}", at("notes.txt"), at("out")),
        format!("recover object {} default/a --show-secrets", at("notes.txt")),
    ] {
        casemate(&arguments).assert().code(3);
    }
}
