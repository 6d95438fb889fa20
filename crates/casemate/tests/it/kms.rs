//! `casemate kms` against plugins that behave, that misbehave, and that are not there.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use assert_cmd::assert::Assert;
use serde_json::Value;

use crate::plugin::{Fault, Plugin};
use crate::program::casemate;

const SEED: &[u8] = b"thirty-two bytes, as a seed has.";

#[test]
fn status_tells_a_healthy_plugin() {
    for plugin in [Plugin::start(Fault::None), Plugin::start_abstract()] {
        let done = casemate("kms status --output json --socket").arg(&plugin.url).assert().code(0);
        let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(answer["version"], "v2");
        assert_eq!(answer["healthz"], "ok");
        assert_eq!(answer["key_id"], "key-1");
        // printf key-1 | sha256sum
        assert_eq!(
            answer["key_id_hash"],
            "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44"
        );
        assert!(answer["latency_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(answer["problems"], Value::Array(Vec::new()));
    }
}

#[test]
fn status_is_a_table_for_people_and_silent_when_told() {
    let plugin = Plugin::start(Fault::None);
    let shown = stdout(&casemate("kms status --socket").arg(&plugin.url).assert().code(0));
    assert!(shown.contains("healthz      ok\n"), "{shown}");
    let shown = stdout(&casemate("kms status --quiet --socket").arg(&plugin.url).assert().code(0));
    assert_eq!(shown, "");
}

#[test]
fn status_finds_what_kube_apiserver_would() {
    let cases = [
        (Fault::Unhealthy, "healthz is \"\\u{1b}[31mkey service is away\""),
        (Fault::Version, "version is \"v1\""),
    ];
    for (fault, text) in cases {
        let plugin = Plugin::start(fault);
        let shown = stdout(&casemate("kms status --socket").arg(&plugin.url).assert().code(1));
        assert!(shown.contains(text), "{fault:?}: {shown}");
        assert!(!shown.contains('\x1b'), "{shown:?}");
    }
}

#[test]
fn what_was_encrypted_is_decrypted() {
    let plugin = Plugin::start(Fault::None);
    let [seed, reply, back] = ["seed", "reply.json", "back"].map(|name| plugin.file(name));
    fs::write(&seed, SEED).unwrap();
    let mut command = casemate("kms encrypt --socket");
    command.arg(&plugin.url).arg("--in").arg(&seed).arg("--out").arg(&reply).assert().code(0);
    let json: Value = serde_json::from_slice(&fs::read(&reply).unwrap()).unwrap();
    assert_eq!(json["key_id"], "key-1");
    assert_eq!(json["annotations"]["mask.example.com"], "AQID");

    let decrypt = |more: &[&str]| {
        let mut command = casemate("kms decrypt --socket");
        command.arg(&plugin.url).arg("--in").arg(&reply).arg("--out").arg(&back).args(more).assert()
    };
    decrypt(&[]).code(0);
    assert_eq!(fs::read(&back).unwrap(), SEED);
    assert_eq!(back.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(stderr(&decrypt(&[]).code(2)).contains("is there already"));
    decrypt(&["--yes"]).code(0);

    // By pipes, which are no terminal.
    let piped = casemate("kms encrypt --socket").arg(&plugin.url).write_stdin(SEED).assert().code(0);
    let piped = piped.get_output().stdout.clone();
    let done = casemate("kms decrypt --out - --socket").arg(&plugin.url).write_stdin(piped).assert().code(0);
    assert_eq!(done.get_output().stdout, SEED);
}

#[test]
fn a_folder_or_device_is_never_replaced() {
    let plugin = Plugin::start(Fault::None);
    let folder = plugin.file("folder");
    fs::create_dir(&folder).unwrap();
    let mut command = casemate("kms encrypt --yes --socket");
    command.arg(&plugin.url).arg("--out").arg(&folder).write_stdin(SEED).assert().code(2);
    assert!(folder.is_dir());
}

#[test]
fn refusals_and_broken_contracts_are_answers() {
    let cases = [
        (Fault::Unavailable, "Encrypt at ", "refused: key service is away (Unavailable)"),
        (Fault::CiphertextTooLong, "breaks the KMS v2 contract", "the ciphertext has 1025 bytes"),
        (Fault::AnnotationKey, "breaks the KMS v2 contract", "has the character '/'"),
    ];
    for (fault, first, second) in cases {
        let plugin = Plugin::start(fault);
        let done = casemate("kms encrypt --socket").arg(&plugin.url).write_stdin(SEED).assert().code(1);
        let text = stderr(&done);
        assert!(text.contains(first) && text.contains(second), "{fault:?}: {text}");
        assert_eq!(stdout(&done), "");
    }
}

#[test]
fn bad_reply_files_are_usage_errors() {
    let plugin = Plugin::start(Fault::None);
    let cases = [
        ("", "line 1"),
        ("{}", "missing field `key_id`"),
        (r#"{"key_id":"k","ciphertext":"!"}"#, "ciphertext is not base64"),
        (
            r#"{"key_id":"k","ciphertext":"AA==","annotations":{"a.b":"?"}}"#,
            "annotation \"a.b\" is not base64",
        ),
        (r#"{"key_id":"k","ciphertext":"AA==","more":1}"#, "unknown field `more`"),
    ];
    for (text, wanted) in cases {
        let mut command = casemate("kms decrypt --out - --socket");
        let found = stderr(&command.arg(&plugin.url).write_stdin(text).assert().code(2));
        assert!(found.contains(wanted), "{text}: {found}");
    }
}

#[test]
fn what_cannot_be_reached_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(UnixListener::bind(at("stale")).unwrap());
    fs::write(at("file"), "").unwrap();
    let deaf = UnixListener::bind(at("deaf")).unwrap();
    let cases = [
        ("absent", "does not exist: start the plugin"),
        ("stale", "nobody listens at"),
        ("file", "is not a socket"),
        ("deaf", "gave no answer within 200ms"),
    ];
    for (name, wanted) in cases {
        let url = format!("unix://{}", at(name).display());
        for verb in ["status", "probe"] {
            let mut command = casemate("kms --output table");
            command.args([verb, "--timeout", "200ms", "--socket", &url]);
            let done = command.assert().code(3);
            let said = stderr(&done) + &stdout(&done);
            assert!(said.contains(wanted), "{verb} {name}: {said}");
        }
    }
    drop(deaf);
    let done = casemate("kms status --socket unix:///@casemate-test-absent").assert().code(3);
    assert!(stderr(&done).contains("nobody listens at unix:///@casemate-test-absent"));
}

#[test]
fn a_silent_plugin_is_given_up_in_time() {
    let plugin = Plugin::start(Fault::Silent);
    let done = casemate("kms status --timeout 200ms --socket").arg(&plugin.url).assert().code(3);
    assert!(stderr(&done).contains("Status at unix:///"), "{}", stderr(&done));
}

#[test]
fn a_listener_that_speaks_no_grpc_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http1.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let url = format!("unix://{}", path.display());
    let text = stderr(&casemate("kms status --socket").arg(url).assert().code(3));
    server.join().unwrap();
    assert!(text.contains("speaks no gRPC"), "{text}");
}

#[test]
fn probe_passes_a_good_plugin() {
    let plugin = Plugin::start(Fault::None);
    let done = casemate("kms probe --socket").arg(&plugin.url).assert().code(0);
    let shown = stdout(&done);
    assert!(!shown.contains("FINDING") && !shown.contains("unknown"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("pass")).count(), 17, "{shown}");
}

#[test]
fn probe_names_each_fault() {
    let cases: [(Fault, i32, &[&str]); 11] = [
        (Fault::AnnotationKey, 1, &["encrypt"]),
        (Fault::ChangingKeyId, 1, &["key id"]),
        (Fault::CiphertextTooLong, 1, &["encrypt"]),
        (Fault::Clear, 1, &["encrypted"]),
        (Fault::IgnoresAnnotations, 1, &["annotations missing", "annotations flipped"]),
        (Fault::IgnoresKeyId, 1, &["key id empty", "key id of another key", "key id too long"]),
        (Fault::OtherPlaintext, 1, &["decrypt"]),
        (Fault::Unauthenticated, 1, &["first bit flipped", "last bit flipped"]),
        (Fault::Unavailable, 1, &["status", "encrypt", "alive"]),
        (Fault::Unhealthy, 1, &["status"]),
        (Fault::Version, 1, &["status"]),
    ];
    for (fault, code, wanted) in cases {
        let plugin = Plugin::start(fault);
        let done = casemate("kms probe --output json --socket").arg(&plugin.url).assert().code(code);
        let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let found: Vec<&str> = checks
            .iter()
            .filter(|check| check["verdict"] == "finding")
            .map(|check| check["check"].as_str().unwrap())
            .collect();
        for check in wanted {
            assert!(found.contains(check), "{fault:?}: {found:?}");
        }
    }
}

fn stdout(done: &Assert) -> String {
    String::from_utf8_lossy(&done.get_output().stdout).into_owned()
}

fn stderr(done: &Assert) -> String {
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}
