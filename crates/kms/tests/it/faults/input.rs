//! What a client may send and no line may show.

use std::fs;
use std::process::Command;

use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use prost::Message;
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;

use super::Acknowledged;
use crate::process::{Host, program};

/// Ends lines in all ways that there are, moves the cursor, erases, sets the title, goes right to left, and looks like
/// the end of a JSON text.
const HOSTILE: &str = "one\n2030-01-01T00:00:00Z ERROR forged: two\r\x0b\x0c\u{85}\u{2028}\u{2029}\x1b[2J\x1b[1;1H\
                       \x1b]0;title\x07\x08\x7f\u{202e}\0\"},{\"level\":\"ERROR\"}\n";

/// As long as the rest of the message, which has none yet, lets it be.
fn longest_hostile_uid(rest: &impl Message) -> String {
    const TAG_AND_LENGTH: usize = 4;
    let room = 64 * 1024 - rest.encoded_len() - TAG_AND_LENGTH;
    let mut uid = HOSTILE.repeat(room / HOSTILE.len());
    uid.push_str(&"x".repeat(room - uid.len()));
    uid
}

fn with_audit(host: &Host) -> std::path::PathBuf {
    let folder = host.folder().join("audit");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("audit.log");
    let config = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), format!("{config}audit:\n  path: {}\n", path.display())).unwrap();
    path
}

#[tokio::test]
async fn a_uid_of_a_mebibyte_is_refused_and_hurts_nobody() {
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let stored = acknowledged.encrypt(&mut client).await.unwrap();
    let uid = "u".repeat(1 << 20);

    let request = EncryptRequest { plaintext: vec![7; 32].into(), uid: uid.clone() };
    let encrypted = client.encrypt(request).await.unwrap_err();
    let mut request = stored.request();
    request.uid = uid;
    let decrypted = client.decrypt(request).await.unwrap_err();
    for status in [encrypted, decrypted] {
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert!(status.message().contains("65536"), "the limit is named: {status}");
        assert!(status.message().len() < 200, "{status}");
    }
    // On the same connection.
    assert!(client.status(StatusRequest {}).await.is_ok());
    acknowledged.encrypt(&mut client).await.unwrap();
    acknowledged.read_by(&client).await;
    let log = daemon.kill();
    assert!(!log.contains("uuuu"), "{log}");
    acknowledged.read_after_a_restart(&host).await;
}

#[tokio::test]
async fn whatever_is_in_a_uid_each_entry_of_log_and_audit_is_one_line() {
    for form in ["text", "json"] {
        let (host, acknowledged) = (Host::new(), Acknowledged::default());
        let audit = with_audit(&host);
        let mut command = Command::new(program());
        command.args(["serve", "--log", form, "--config"]).arg(host.config()).env("CASEMATE_LOG", "debug");
        let mut daemon = host.serve_by(command);
        let mut client = daemon.healthy().await;
        let stored = acknowledged.encrypt(&mut client).await.unwrap();
        let mut calls = 1;
        for is_long in [false, true] {
            let mut request = EncryptRequest { plaintext: vec![7; 32].into(), uid: String::new() };
            request.uid = if is_long { longest_hostile_uid(&request) } else { HOSTILE.into() };
            client.encrypt(request.clone()).await.unwrap();
            request.uid.push('x');
            let refused = is_long.then_some(Code::OutOfRange);
            assert_eq!(client.encrypt(request).await.err().map(|status| status.code()), refused);

            // One that fails has a line of its own.
            for key_id in [stored.key_id.as_str(), HOSTILE] {
                let mut request = stored.request();
                (request.key_id, request.uid) = (key_id.into(), String::new());
                request.uid = if is_long { longest_hostile_uid(&request) } else { HOSTILE.into() };
                let refused = (key_id == HOSTILE).then_some(Code::InvalidArgument);
                assert_eq!(client.decrypt(request).await.err().map(|status| status.code()), refused);
            }
            calls += 4;
        }
        daemon.signal(Signal::TERM);
        let (ended, log) = daemon.end();
        assert!(ended.success(), "{log}");

        let harmless = |line: &str| !line.chars().any(|c| c.is_control() || is_separator(c));
        for line in log.lines() {
            assert!(harmless(line), "{form}: {line:?}");
            match form {
                "json" => drop(serde_json::from_str::<Value>(line).expect("each line is one JSON text")),
                // The time that the log itself puts in front.
                _ => assert!(line.starts_with("202") && !line.starts_with("2030"), "{line}"),
            }
        }
        for said in ["encrypted", "decrypted", "not served"] {
            assert!(log.contains(said), "{form}: {said} is not in\n{log}");
        }
        let text = fs::read_to_string(&audit).unwrap();
        assert!(text.lines().all(harmless), "{text}");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let audited =
            lines.iter().filter(|line| matches!(line["method"].as_str(), Some("Encrypt" | "Decrypt")));
        assert_eq!(audited.count(), calls, "{text}");
        acknowledged.read_after_a_restart(&host).await;
    }
}

/// What ends a line, or turns it round, for some who show it.
fn is_separator(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}')
}

/// Field complaint 8: an empty ciphertext ends the plugin (kubernetes-sigs/aws-encryption-provider#168).
#[tokio::test]
async fn an_empty_ciphertext_is_an_invalid_argument() {
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let mut request = acknowledged.encrypt(&mut client).await.unwrap().request();
    request.ciphertext.clear();
    let status = client.decrypt(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    acknowledged.read_by(&client).await;
    assert!(daemon.is_running());
}
