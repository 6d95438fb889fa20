//! The audit log of a real daemon: every call one line, whatever comes between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_kms::audit::Head;
use casemate_kms::audit::chain::{Report, Verifier};
use casemate_kms::audit::key::CheckpointKey;
use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use regex::Regex;
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;

use crate::admin::{get, value};
use crate::node::Client;
use crate::process::{Host, encrypt, opens, program, set_mode, until};

const DEK_SOURCE: [u8; 32] = [0x5a; 32];

/// A host whose configuration has an audit log.
struct Audited {
    host: Host,
}

impl Audited {
    fn new(more: &str) -> Self {
        let host = Host::new();
        let audited = Self { host };
        fs::create_dir(audited.folder()).unwrap();
        let key = audited.host.folder().join("audit.key");
        fs::write(&key, "0d".repeat(32)).unwrap();
        set_mode(&key, 0o600);
        let config = format!(
            "{}audit:\n  path: {}\n  checkpointKey: {{path: {}}}\n{more}",
            fs::read_to_string(audited.host.config()).unwrap(),
            audited.path().display(),
            key.display(),
        );
        fs::write(audited.host.config(), config).unwrap();
        audited
    }

    fn folder(&self) -> PathBuf {
        self.host.folder().join("audit")
    }

    fn path(&self) -> PathBuf {
        self.folder().join("audit.log")
    }

    /// Oldest first: by the number of the first line.
    fn files(&self) -> Vec<PathBuf> {
        let first_seq = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap();
            // One that was begun a moment ago is the newest.
            let Some(line) = text.lines().next() else { return u64::MAX };
            let first: Value = serde_json::from_str(line).unwrap();
            first["seq"].as_u64().unwrap()
        };
        let entries = fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("audit.log");
        let mut files: Vec<_> = entries.filter(ours).collect();
        files.sort_by_key(first_seq);
        files
    }

    fn lines(&self) -> Vec<Value> {
        let text: String = self.files().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn calls(&self, method: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["method"] == method).collect()
    }

    fn verify(&self, head: Option<Head>) -> Report {
        let key = CheckpointKey::read(&self.host.folder().join("audit.key")).unwrap();
        let mut verifier = Verifier::new(head, Some(key));
        for path in self.files() {
            verifier.file(&path.display().to_string());
            for line in fs::read(path).unwrap().split_inclusive(|byte| *byte == b'\n') {
                match line.strip_suffix(b"\n") {
                    Some(line) => verifier.line(line),
                    None => verifier.torn_line(),
                }
            }
        }
        verifier.finish()
    }

    /// Starts to serve with no file allowed to grow beyond `bytes`, as on a disk with so much room.
    fn serve_with_room(&self, bytes: u64) -> crate::process::Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap "" XFSZ; exec prlimit --fsize="$2": "$0" serve --config "$1""#]);
        command.arg(program()).arg(self.host.config()).arg(bytes.to_string());
        self.host.serve_by(command)
    }

    /// Adds the admin socket.
    fn admin(&self) -> PathBuf {
        let socket = self.host.folder().join("admin.sock");
        let config = fs::read_to_string(self.host.config()).unwrap();
        let admin = format!("admin: {{endpoint: unix://{}}}\n", socket.display());
        fs::write(self.host.config(), config + &admin).unwrap();
        socket
    }

    /// Runs it once, so that nothing but the log has to be written later.
    async fn prepare(&self) {
        let mut daemon = self.host.serve();
        daemon.healthy().await;
        daemon.signal(Signal::TERM);
        assert!(daemon.end().0.success());
    }
}

/// What the journal shows last.
fn journalled(log: &str) -> Head {
    let head = Regex::new(r"head=(\d+:[0-9a-f]{64})").unwrap();
    head.captures_iter(log).last().unwrap()[1].parse().unwrap()
}

async fn encrypt_as(client: &mut Client, uid: &str) -> Result<(), tonic::Status> {
    let request = EncryptRequest { plaintext: DEK_SOURCE.to_vec().into(), uid: uid.into() };
    client.encrypt(request).await.map(drop)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_one_line() {
    let audited = Audited::new("");
    let mut daemon = audited.host.serve();
    let mut client = daemon.healthy().await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    encrypt_as(&mut client, "u").await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stored = encrypt(&mut client, &DEK_SOURCE).await.unwrap();
    opens(&mut client, &stored, &DEK_SOURCE).await;
    let mut damaged = stored.clone();
    damaged.ciphertext[20] ^= 1;
    client.decrypt(damaged.request()).await.unwrap_err();
    // Longer than any uid is, and less than a message may have.
    let hostile = format!("a\nb\u{1b}[31m\u{9b}\u{202e}{}", "x".repeat(50_000));
    encrypt_as(&mut client, &hostile).await.unwrap();
    daemon.signal(Signal::TERM);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");

    let report = audited.verify(Some(journalled(&log)));
    assert_eq!((report.finding_count, report.missed), (0, 0), "{report:?}");
    assert_eq!((report.anchored_to, report.authenticated_to), (Some(report.lines), Some(report.lines)));
    let encrypts = audited.calls("Encrypt");
    assert_eq!(encrypts.len(), 402);
    assert!(encrypts.iter().all(|line| line["outcome"] == "OK" && line["keyId"] == stored.key_id));
    let peer = (Value::from(std::process::id()), Value::from(rustix::process::getuid().as_raw()));
    assert!(encrypts.iter().all(|line| (&line["peer"]["pid"], &line["peer"]["uid"]) == (&peer.0, &peer.1)));
    let uid = encrypts.last().unwrap()["uid"].as_str().unwrap();
    assert!(uid.starts_with("a\nb\u{1b}[31m\u{9b}\u{202e}xx") && uid.chars().count() < 100, "{uid:?}");
    let decrypts = audited.calls("Decrypt");
    let seen: Vec<_> =
        decrypts.iter().map(|line| (line["outcome"].clone(), line["rootKeyAsked"].clone())).collect();
    assert_eq!(seen, [("OK".into(), false.into()), ("DataLoss".into(), false.into())]);
    assert!(!audited.calls("Status").is_empty());

    // Nothing secret: neither the DEK source nor what it became, in any writing that a line could have.
    let text = fs::read_to_string(audited.path()).unwrap();
    for secret in [&DEK_SOURCE[..], &stored.ciphertext] {
        let digest = casemate_keys::names::sha256(secret);
        for bytes in [secret, &digest[..]] {
            use base64::Engine as _;
            assert!(!text.contains(&hex::encode(bytes)));
            assert!(!text.contains(&base64::prelude::BASE64_STANDARD.encode(bytes)));
        }
    }
    assert!(text.is_ascii());
}

#[tokio::test]
async fn a_decrypt_says_whether_it_waited_for_a_root_key() {
    let audited = Audited::new("");
    let mut daemon = audited.host.serve();
    let mut client = daemon.healthy().await;
    let stored = encrypt(&mut client, &DEK_SOURCE).await.unwrap();
    audited.host.rotate();
    until("the new version writes", async || {
        encrypt(&mut client, &DEK_SOURCE).await.is_ok_and(|new| new.key_id != stored.key_id)
    })
    .await;
    daemon.kill();
    // A new process knows the local KEK that it writes with, and not the one before.
    let mut daemon = audited.host.serve();
    let mut client = daemon.healthy().await;
    opens(&mut client, &stored, &DEK_SOURCE).await;
    opens(&mut client, &stored, &DEK_SOURCE).await;
    daemon.signal(Signal::TERM);
    daemon.end();
    let asked: Vec<_> = audited.calls("Decrypt").iter().map(|line| line["rootKeyAsked"].clone()).collect();
    assert_eq!(asked, [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_any_moment_breaks_no_chain() {
    let audited = Audited::new("  maxBytes: 65536\n");
    let mut answered = 0;
    for _ in 0..6 {
        let mut daemon = audited.host.serve();
        let mut client = daemon.healthy().await;
        let calls = tokio::spawn(async move {
            let mut answered = 0;
            while encrypt_as(&mut client, "u").await.is_ok() {
                answered += 1;
            }
            answered
        });
        let before = length(&audited.path());
        until("calls are written", async || length(&audited.path()) != before).await;
        daemon.kill();
        answered += calls.await.unwrap();
    }
    let report = audited.verify(None);
    assert!(report.findings.iter().all(|finding| finding.kind == casemate_kms::audit::chain::Kind::Torn));
    // Once more, so that what the last kill left is looked at too.
    audited.prepare().await;
    let report = audited.verify(None);
    assert_eq!(report.finding_count, 0, "{report:?}");
    let starts = audited.lines().iter().filter(|line| line["event"] == "start").count();
    assert_eq!(starts, 7);
    // What waited in the queue is lost with the process, and no more.
    assert!(audited.calls("Encrypt").len() > answered / 2, "of {answered}");
}

#[tokio::test]
async fn rotated_files_are_one_chain() {
    let audited = Audited::new("  maxBytes: 65536\n  keep: 50\n");
    let mut daemon = audited.host.serve();
    let mut client = daemon.healthy().await;
    for _ in 0..600 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    fs::rename(audited.path(), audited.folder().join("audit.log.moved")).unwrap();
    for _ in 0..100 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    daemon.signal(Signal::TERM);
    let (_, log) = daemon.end();
    assert!(log.contains("is rotated") && log.contains("moved away"), "{log}");
    let report = audited.verify(Some(journalled(&log)));
    assert_eq!(audited.calls("Encrypt").len(), 700);
    assert_eq!((report.finding_count, report.anchored_to), (0, Some(report.lines)), "{report:?}");
}

#[tokio::test]
async fn a_full_disk_leaves_a_gap_that_is_told() {
    let audited = Audited::new("");
    audited.prepare().await;
    let mut daemon = audited.serve_with_room(length(&audited.path()) + 3000);
    let mut client = daemon.healthy().await;
    for _ in 0..40 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    let pid = daemon.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status().unwrap().success());
    encrypt_as(&mut client, "after").await.unwrap();
    daemon.signal(Signal::TERM);
    let (status, log) = daemon.end();
    assert!(status.success() && log.contains("is not written") && log.contains("written again"), "{log}");
    let report = audited.verify(Some(journalled(&log)));
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [casemate_kms::audit::chain::Kind::Gap], "{report:?}");
    assert_eq!(report.anchored_to, Some(report.lines));
    let all = 41 + audited.calls("Status").len() as u64;
    let written = report.calls;
    assert!(
        report.missed >= 20 && written + report.missed >= all - 2,
        "{written} + {} of {all}",
        report.missed
    );
    assert_eq!(audited.calls("Encrypt").last().unwrap()["uid"], "after");
}

/// What the admin socket says of it.
async fn shown(admin: &Path) -> Value {
    let (code, body) = get(admin, "/status").await;
    assert_eq!(code, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["audit"].take()
}

#[tokio::test]
async fn the_admin_socket_shows_the_head_that_verify_takes() {
    // So that what was answered is written.
    let audited = Audited::new("  onFailure: refuse\n");
    let admin = audited.admin();
    let mut daemon = audited.host.serve();
    let mut client = daemon.healthy().await;
    for _ in 0..3 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    let (seen, metrics) = (shown(&admin).await, get(&admin, "/metrics").await.1);
    let last = audited.lines().pop().unwrap();
    assert_eq!((&seen["head"]["seq"], &seen["head"]["hash"]), (&last["seq"], &last["hash"]));
    assert_eq!((seen["missed"].as_u64(), &seen["problem"]), (Some(0), &Value::Null));
    let begins = u64::from_str_radix(&last["hash"].as_str().unwrap()[..13], 16).unwrap();
    let head = |part: &str| value(&metrics, &format!(r#"casemate_kms_audit_head{{part="{part}"}}"#));
    assert_eq!(head("seq"), last["seq"].as_f64());
    assert_eq!(head("hash"), Some(begins as f64));
    assert_eq!(value(&metrics, "casemate_kms_audit_missed_total"), Some(0.0));
    assert_eq!(value(&metrics, "casemate_kms_audit_failing"), Some(0.0));

    for _ in 0..5 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    daemon.signal(Signal::TERM);
    assert!(daemon.end().0.success());
    let report = audited.verify(Some(seen["head"]["anchor"].as_str().unwrap().parse().unwrap()));
    assert_eq!((report.finding_count, report.anchored_to), (0, last["seq"].as_u64()), "{report:?}");
}

#[tokio::test]
async fn the_admin_socket_shows_what_is_missing() {
    let audited = Audited::new("");
    let admin = audited.admin();
    audited.prepare().await;
    let mut daemon = audited.serve_with_room(length(&audited.path()) + 3000);
    let mut client = daemon.healthy().await;
    for _ in 0..40 {
        encrypt_as(&mut client, "u").await.unwrap();
    }
    until("the problem is shown", async || shown(&admin).await["problem"].is_string()).await;
    let seen = shown(&admin).await;
    assert!(seen["problem"].as_str().unwrap().contains("audit.log"), "{seen}");
    let metrics = get(&admin, "/metrics").await.1;
    assert_eq!(value(&metrics, "casemate_kms_audit_failing"), Some(1.0));
    assert!(value(&metrics, "casemate_kms_audit_missed_total") >= Some(1.0), "{metrics}");
    let pid = daemon.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status().unwrap().success());
    encrypt_as(&mut client, "after").await.unwrap();
    until("it is written again", async || shown(&admin).await["problem"].is_null()).await;
    assert!(shown(&admin).await["missed"].as_u64() >= Some(20), "what is missing stays told");
}

#[tokio::test]
async fn who_wants_no_call_without_a_line_gets_none() {
    let audited = Audited::new("  onFailure: refuse\n");
    audited.prepare().await;
    let mut daemon = audited.serve_with_room(length(&audited.path()) + 6000);
    let mut client = daemon.healthy().await;
    let mut answered = 0;
    let refused = loop {
        match encrypt_as(&mut client, "u").await {
            Ok(()) => answered += 1,
            Err(status) => break status,
        }
        assert!(answered < 100, "the disk is never full");
    };
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("onFailure: refuse"), "{refused}");
    assert_eq!(client.status(StatusRequest {}).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(audited.calls("Encrypt").len(), answered, "what was answered is written");
    let pid = daemon.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status().unwrap().success());
    encrypt_as(&mut client, "after").await.unwrap();
    // No last words, and yet nothing that was answered is missing.
    daemon.kill();
    let report = audited.verify(None);
    assert_eq!((audited.calls("Encrypt").len(), report.missed), (answered + 1, 2), "{report:?}");
}

#[test]
fn what_can_not_be_written_to_or_read_is_told_at_the_start() {
    let audited = Audited::new("");
    set_mode(&audited.host.folder().join("audit.key"), 0o644);
    let output = audited.host.run(&["serve"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("checkpointKey"), "{said}");
    let checked = audited.host.run(&["check"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && said.contains("FAIL  -  audit") && said.contains("0644"), "{said}");
    set_mode(&audited.host.folder().join("audit.key"), 0o600);
    fs::create_dir(audited.path()).unwrap();
    let output = audited.host.run(&["serve"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("this is no file"), "{said}");
}
