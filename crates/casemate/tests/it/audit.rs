//! `casemate audit verify`: what it finds, where, and what it says is not proved.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_kms::audit::Audit;
use casemate_kms::audit::format::PeerIds;
use casemate_kms::config::Config;
use casemate_kms::traffic::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::program;

const CALLS: usize = 600;

/// A log of three files, as the plugin writes it.
struct Log {
    folder: TempDir,
    head: String,
}

impl Log {
    fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("audit.log"), folder.path().join("audit.key"));
        fs::write(&key, "0d".repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let config = format!(
            "{{apiVersion: casemate.dev/v1alpha1, kind: KmsConfiguration, clusterId: a, audit: {{path: {}, \
             checkpointKey: {{path: {}}}}}, providers: [{{name: a, endpoint: unix:///a, rootKeys: [{{name: \
             a, file: {{path: /a, id: 00000000000000000000000000000000}}}}]}}]}}",
            path.display(),
            key.display(),
        );
        let config = Config::parse(&config, Path::new("config.yaml")).unwrap();
        let config = config.audit.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let run = || {
            runtime.block_on(async {
                let audit = Audit::start(&config).unwrap();
                let recorder = audit.recorder().clone();
                for number in 0..CALLS / 3 {
                    let mut recording = recorder.begin(&"a".into(), Method::Encrypt, PeerIds::default());
                    recording.uid(&format!("uid-{number}"));
                    recording.end(tonic::Code::Ok).await.unwrap();
                }
                audit.stop().await;
                recorder.head().to_string()
            })
        };
        // Rotated from outside, so that each file has the same lines whatever a machine's speed.
        run();
        fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        run();
        fs::rename(folder.path().join("audit.log.1"), folder.path().join("audit.log.2")).unwrap();
        fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        let head = run();
        let log = Self { folder, head };
        assert_eq!(log.names(), ["audit.key", "audit.log", "audit.log.1", "audit.log.2"]);
        log
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn change(&self, name: &str, change: impl FnOnce(String) -> String) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        fs::write(self.path(name), change(text)).unwrap();
    }

    /// Exit code and JSON.
    fn verify(&self, names: &[&str], more: &[&str]) -> (i32, Value) {
        let output = Command::new(program::path())
            .current_dir(self.folder.path())
            .args(["audit", "verify", "--output", "json"])
            .args(names)
            .args(more)
            .output()
            .unwrap();
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    fn all(&self, more: &[&str]) -> (i32, Value) {
        self.verify(&["audit.log", "audit.log.1", "audit.log.2"], more)
    }
}

fn findings(answer: &Value) -> Vec<(String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = answer["findings"].as_array().unwrap().iter();
    found.map(|one| (text(&one["kind"]), text(&one["file"]), one["line"].as_u64().unwrap())).collect()
}

#[test]
fn a_whole_log_is_proved_as_far_as_there_are_anchors() {
    let log = Log::write();
    let (code, answer) = log.all(&["--head", &log.head, "--key", "audit.key"]);
    assert_eq!((code, findings(&answer)), (0, Vec::new()), "{answer:#}");
    assert_eq!(answer["verdict"], "nothing-found");
    assert_eq!(answer["calls"], CALLS);
    assert_eq!(answer["files"], serde_json::json!(["audit.log.2", "audit.log.1", "audit.log"]));
    assert_eq!(
        (&answer["anchoredTo"], &answer["authenticatedTo"]),
        (&answer["last"]["seq"], &answer["lines"])
    );
    let (code, answer) = log.all(&[]);
    assert_eq!((code, answer["proof"].as_array().unwrap().len()), (0, 2));
    assert!(answer["proof"][0].as_str().unwrap().contains("not anchored"), "{answer:#}");
    let table = Command::new(program::path())
        .current_dir(log.folder.path())
        .args(["audit", "verify", "audit.log", "audit.log.1", "audit.log.2"])
        .output()
        .unwrap();
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.contains("nothing was found") && text.contains("the tail is not anchored"), "{text}");
    assert!(text.contains(&log.head), "the head to keep: {text}");
}

#[test]
fn a_change_is_found_in_its_file_and_line() {
    let log = Log::write();
    log.change("audit.log.1", |text| {
        let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
        lines[4] = lines[4].replace("\"OK\"", "\"NO\"");
        lines.remove(9);
        lines.concat()
    });
    let (code, answer) = log.all(&[]);
    assert_eq!(code, 1);
    let file = || "audit.log.1".to_owned();
    assert_eq!(findings(&answer), [("edited".into(), file(), 5), ("removed".into(), file(), 10)]);
}

#[test]
fn a_missing_file_a_cut_end_and_a_torn_line_are_found() {
    let log = Log::write();
    let (code, answer) = log.verify(&["audit.log", "audit.log.2"], &[]);
    assert_eq!((code, findings(&answer)), (1, vec![("removed".into(), "audit.log".into(), 1)]));
    let (code, answer) = log.verify(&["audit.log.1", "audit.log.2"], &["--head", &log.head]);
    assert_eq!((code, findings(&answer)[0].0.as_str()), (1, "truncated"));
    assert_eq!(log.verify(&["audit.log.1", "audit.log.2"], &[]).0, 0, "without an anchor nobody can tell");
    log.change("audit.log", |text| text[..text.len() - 10].to_owned());
    let (code, answer) = log.all(&[]);
    assert_eq!((code, findings(&answer)[0].0.as_str()), (1, "torn"));
}

#[test]
fn logs_of_two_nodes_do_not_go_together() {
    let (log, other) = (Log::write(), Log::write());
    fs::copy(other.path("audit.log"), log.path("audit.log")).unwrap();
    let (code, answer) = log.all(&["--head", &log.head]);
    let kinds: Vec<_> = findings(&answer).into_iter().map(|(kind, ..)| kind).collect();
    // Where the other node's file begins depends on how long its lines are: after a gap in the numbers it looks
    // like lines that were removed.
    let first_is_told = matches!(kinds.first().map(String::as_str), Some("spliced" | "removed"));
    assert!(code == 1 && first_is_told && kinds[1..] == ["another-head"], "{code} {kinds:?}");
}

#[test]
fn what_can_not_be_told_has_codes_of_its_own() {
    let log = Log::write();
    fs::write(log.path("empty"), "").unwrap();
    assert_eq!(log.verify(&["empty"], &[]).0, 3);
    assert_eq!(log.verify(&["nowhere"], &[]).0, 2);
    assert_eq!(log.verify(&["."], &[]).0, 2);
    assert_eq!(log.all(&["--head", "7"]).0, 2);
    assert_eq!(log.all(&["--key", "audit.log"]).0, 2);
    // Noise of any length takes no memory and no panic.
    fs::write(log.path("noise"), vec![0xff; 3 << 20]).unwrap();
    let (code, answer) = log.verify(&["noise"], &[]);
    assert_eq!((code, findings(&answer)), (1, vec![("torn".into(), "noise".into(), 1)]));
    let lines = [vec![b'x'; 100_000], vec![b'\n'], b"\x1b[31m\n".to_vec()].concat();
    fs::write(log.path("noise"), lines).unwrap();
    let (code, answer) = log.verify(&["noise"], &[]);
    assert_eq!((code, findings(&answer).len()), (1, 2));
}
