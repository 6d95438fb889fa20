//! `casemate kms status --admin` against admin sockets that answer anything at all.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::casemate;

/// Answers each connection with the same bytes, after it has read a request; `None` never answers.
pub(crate) struct AdminSocket {
    pub(crate) url: String,
    _folder: TempDir,
}

impl AdminSocket {
    fn answering(bytes: Option<Vec<u8>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(bytes) = &bytes else {
                    silent.push(stream);
                    continue;
                };
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(bytes);
            }
        });
        Self { url: url(&path), _folder: folder }
    }

    fn with(document: &Value) -> Self {
        Self::saying("200 OK", &document.to_string())
    }

    pub(crate) fn saying(status: &str, body: &str) -> Self {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
        Self::answering(Some((head + body).into_bytes()))
    }

    /// Exit code, stdout, stderr.
    fn asked(&self, more: &str) -> (i32, String, String) {
        let output =
            casemate(&format!("kms status --timeout 5s {more} --admin")).arg(&self.url).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

fn url(path: &Path) -> String {
    format!("unix://{}", path.display())
}

fn document() -> Value {
    let root = json!({"lineage": "file:aa/2/00", "algorithm": "file-aes256-gcm"});
    let error = json!({
        "class": "unreachable", "time": "2027-01-15T08:00:00Z",
        "message": "there is no key file /old.key; deliver the key file to this node",
    });
    json!({
        "version": "0.1.0",
        "time": "2027-01-15T08:00:00Z",
        "providers": [{
            "name": "casemate", "cluster_id": "prod", "epoch": 0, "writing": true, "not_writing_because": null,
            "next_write": {
                "key_id": "prod:2222", "key_id_hash": "sha256:22", "since": "2027-01-14T08:00:00Z",
                "local_kek": {"id": "0123456789abcdef0123456789abcdef", "created": "2027-01-14T07:59:58Z", "age_seconds": 86_402},
                "roots": [root], "recovery_recipients": ["fe11"],
            },
            "candidate": null, "refused_reuse": null, "trouble": null,
            "last_look": "2027-01-15T08:00:00Z", "last_observation": "2027-01-15T08:00:00Z",
            "root_keys": [
                {"name": "main", "use": "write", "prefix": "file:aa/", "state": "ok", "version": root,
                 "last_good": "2027-01-15T08:00:00Z", "failing_since": null, "last_error": null},
                {"name": "old", "use": "read", "prefix": "file:bb/", "state": "failing", "version": null,
                 "last_good": null, "failing_since": "2027-01-15T07:00:00Z", "last_error": error},
            ],
            "readable": {
                "rules": [
                    {"root_key": "main", "prefix": "file:aa/", "algorithms": ["file-aes256-gcm"], "min_version": 2},
                    {"root_key": "old", "prefix": "file:bb/", "algorithms": ["file-aes256-gcm"], "min_version": null},
                ],
                "clusters": [{"cluster_id": "prod-west", "until": "2027-03-31T00:00:00Z"}],
            },
            "ledger": {"entries": 1, "saved": true, "last": [
                {"key_id": "prod:2222", "key_id_hash": "sha256:22", "since": "2027-01-14T08:00:00Z"},
            ]},
            "opened_keks": {"hits": 0, "opened": 0, "joined": 0, "failed": 0, "evicted": 0, "held": 1},
            "requests": [{"method": "Status", "code": "OK", "count": 3}],
            "connections": {"open": 1, "accepted": 2, "refused_peers": 0, "refused_excess": 0},
        }],
    })
}

#[test]
fn people_read_what_the_next_write_uses_what_is_readable_and_what_is_wrong() {
    let (code, shown, _) = AdminSocket::with(&document()).asked("");
    assert_eq!(code, 0, "{shown}");
    let expected = "\
provider          casemate (cluster prod): writes
  next write      key id prod:2222, since 2027-01-14T08:00:00Z
  key id hash     sha256:22
  local KEK       0123456789abcdef…, made 2027-01-14T07:59:58Z (24 hours old)
  wrapped under   file:aa/2/00 (file-aes256-gcm)
  recoverable by  recipient with fingerprint fe11
  root key        main (writes, file:aa/2/00): ok at 2027-01-15T08:00:00Z
  root key        old (reads only): failing since 2027-01-15T07:00:00Z (unreachable); last good never
  readable        main (versions from 2; file-aes256-gcm)
  readable        old (all versions; file-aes256-gcm)
  readable        data of cluster prod-west until 2027-03-31T00:00:00Z
  wrong           there is no key file /old.key; deliver the key file to this node
";
    assert_eq!(shown, expected);
}

#[test]
fn an_outage_and_the_sealed_cache_are_told() {
    let mut document = document();
    let provider = &mut document["providers"][0];
    provider["sealed_cache"] = json!({"entries": 3, "saved": true, "damaged": 0, "problem": null});
    let (_, shown, _) = AdminSocket::with(&document).asked("");
    assert!(shown.contains("\n  sealed cache    local KEKs: 3, all that was opened\n"), "{shown}");
    assert!(!shown.contains("outage"), "one that only reads is none: {shown}");

    let provider = &mut document["providers"][0];
    let mut spare = provider["root_keys"][1].clone();
    (spare["name"], spare["use"]) = ("spare".into(), "write".into());
    provider["root_keys"].as_array_mut().unwrap().push(spare);
    let (code, shown, _) = AdminSocket::with(&document).asked("");
    let says = "  outage          since 2027-01-15T07:00:00Z, of spare: writes go on; local KEKs opened to read with: 1;";
    assert!(code == 0 && shown.contains(says), "{shown}");

    let provider = &mut document["providers"][0];
    provider["root_keys"][2]["last_error"]["class"] = "credential".into();
    provider["sealed_cache"] =
        json!({"entries": 0, "saved": false, "damaged": 2, "problem": "/s: no room; make room"});
    let (_, shown, _) = AdminSocket::with(&document).asked("");
    assert!(!shown.contains("outage"), "it coasts: {shown}");
    assert!(shown.contains("local KEKs: 0, not all that was opened; 2 entries were refused"), "{shown}");
    assert!(shown.contains("  wrong           /s: no room; make room\n"), "{shown}");
}

#[test]
fn people_read_of_the_audit_log_what_verify_takes() {
    let mut document = document();
    let anchor = format!("7:{}", "0b".repeat(32));
    let head = json!({"seq": 7, "hash": "0b".repeat(32), "anchor": anchor});
    document["audit"] = json!({"head": head, "missed": 0, "problem": null});
    let (code, shown, _) = AdminSocket::with(&document).asked("");
    let expected = format!("audit log         no call is missing\n  head            {anchor}\n");
    assert!(code == 0 && shown.ends_with(&expected), "{shown}");
    document["audit"]["missed"] = 3.into();
    document["audit"]["problem"] = "/a/audit.log: can't be written: no room; make room".into();
    let (code, shown, _) = AdminSocket::with(&document).asked("");
    assert!(code == 0 && shown.contains("audit log         3 calls are missing\n"), "{shown}");
    assert!(
        shown.ends_with("  wrong           /a/audit.log: can't be written: no room; make room\n"),
        "{shown}"
    );
}

#[test]
fn a_provider_that_does_not_write_is_exit_code_1() {
    let mut document = document();
    let mut other = document["providers"][0].clone();
    other["name"] = "second".into();
    other["writing"] = false.into();
    other["next_write"] = Value::Null;
    other["not_writing_because"] = "its root key has refused: disabled; enable it".into();
    other["trouble"] =
        json!({"kind": "refused", "message": "disabled; enable it", "since": "2027-01-15T08:00:00Z"});
    other["ledger"]["saved"] = false.into();
    other["candidate"] = json!({
        "key_id": "prod:3333", "key_id_hash": "sha256:33", "sightings": 1, "preparing": false,
        "roots": [{"lineage": "file:aa/3/00", "algorithm": "file-aes256-gcm"}],
    });
    document["providers"].as_array_mut().unwrap().push(other);
    let socket = AdminSocket::with(&document);
    let (code, shown, _) = socket.asked("");
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("provider          second (cluster prod): does not write\n"), "{shown}");
    assert!(
        shown
            .contains("  to write soon   key id prod:3333, under file:aa/3/00 (file-aes256-gcm): seen once;")
    );
    assert!(shown.contains("  wrong           its root key has refused: disabled; enable it\n"), "{shown}");
    assert_eq!(shown.matches("enable it").count(), 1, "each text once\n{shown}");
    assert!(shown.contains("  wrong           the ledger of active key ids could not be written; make room"));
    assert_eq!(socket.asked("--quiet"), (1, String::new(), String::new()));
}

#[test]
fn programs_get_the_document_as_it_came() {
    let mut document = document();
    document["of_a_later_version"] = json!({"any": ["thing"]});
    let (code, json, _) = AdminSocket::with(&document).asked("--output json");
    assert_eq!((code, serde_json::from_str::<Value>(&json).unwrap()), (0, document.clone()));
    let (code, shown, _) = AdminSocket::with(&document).asked("");
    assert!(code == 0 && shown.contains("prod:2222"), "what is new is passed over");

    // A field that people would be told is missing: programs may not need it.
    document["providers"][0].as_object_mut().unwrap().remove("root_keys");
    let socket = AdminSocket::with(&document);
    let (code, json, _) = socket.asked("--output json");
    assert_eq!((code, serde_json::from_str::<Value>(&json).unwrap()), (0, document));
    let (code, shown, told) = socket.asked("");
    assert_eq!((code, shown.as_str()), (3, ""));
    assert!(told.contains("use a casemate of the same version as the casemate-kms"), "{told}");
}

#[test]
fn what_comes_from_outside_does_not_reach_the_terminal() {
    let mut document = document();
    document["providers"][0]["name"] = "a\u{1b}[31mb".into();
    let (_, shown, _) = AdminSocket::with(&document).asked("");
    assert!(shown.contains("a\\u{1b}[31mb") && !shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn what_is_no_admin_socket_is_exit_code_3() {
    let other = "is not the admin socket of a casemate-kms";
    let cases = [
        (AdminSocket::answering(Some(b"\x00\x00\x12\x04\x00\x00".to_vec())), other),
        (AdminSocket::answering(Some(Vec::new())), other),
        (AdminSocket::saying("404 Not Found", ""), other),
        (AdminSocket::saying("200 OK", "{}"), other),
        (AdminSocket::saying("200 OK", r#"{"providers": []}"#), other),
        (AdminSocket::saying("200 OK", "ok\n"), "is not understood"),
        (AdminSocket::saying("503 Service Unavailable", ""), "is busy"),
        (AdminSocket::saying("200 OK", &" ".repeat(17 * 1024 * 1024)), other),
    ];
    for (socket, text) in cases {
        let (code, shown, told) = socket.asked("");
        assert!(code == 3 && shown.is_empty() && told.contains(text), "{text}: {code} {told}");
    }
}

#[test]
fn nobody_there_and_no_answer_are_exit_code_3() {
    let silent = AdminSocket::answering(None);
    let mut command = casemate("kms status --timeout 200ms --admin");
    let told = command.arg(&silent.url).assert().code(3).get_output().stderr.clone();
    let told = String::from_utf8(told).unwrap();
    assert!(
        told.contains("gave no answer within 200ms") && told.contains("--timeout gives it longer"),
        "{told}"
    );

    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("admin.sock");
    let ask = || {
        let done = casemate("kms status --admin").arg(url(&absent)).assert().code(3);
        String::from_utf8(done.get_output().stderr.clone()).unwrap()
    };
    let told = ask();
    let says = format!("needs `admin: {{endpoint: {}}}` at the top level", url(&absent));
    assert!(told.contains("does not exist") && told.contains(&says), "{told}");
    drop(UnixListener::bind(&absent).unwrap());
    assert!(ask().contains("nobody listens at"));
}

#[test]
fn one_of_the_two_sockets_is_named() {
    casemate("kms status --socket unix:///a --admin unix:///b").assert().code(2);
    casemate("kms status").assert().code(2);
    casemate("kms probe --admin unix:///b").assert().code(2);
}
