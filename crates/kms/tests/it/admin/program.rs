//! The real program with an admin socket.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use casemate_kms::admin::MAX_CONNECTIONS;
use casemate_kms::admin::status::Document;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::{DEK, get, value};
use crate::node::connect;
use crate::process::{Host, deliver, encrypt, opens, refusal, until};

fn admin(host: &Host) -> PathBuf {
    host.folder().join("admin.sock")
}

fn other(host: &Host, file: &str) -> PathBuf {
    host.folder().join(file)
}

/// Adds a provider whose key file is elsewhere, and the admin socket.
fn with_a_second_provider(host: &Host, id: &str) {
    let more = format!(
        "  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - name: absent\n        file: {{path: {}, \
         id: \"{id}\"}}\nadmin: {{endpoint: unix://{}}}\n",
        other(host, "second.sock").display(),
        other(host, "second.key").display(),
        admin(host).display(),
    );
    fs::write(host.config(), fs::read_to_string(host.config()).unwrap() + &more).unwrap();
}

#[tokio::test]
async fn a_broken_provider_does_not_colour_another() {
    let host = Host::new();
    // Its key file is not delivered yet.
    let late = Host::new();
    let id = fs::read_to_string(late.config()).unwrap().split('"').nth(1).unwrap().to_owned();
    with_a_second_provider(&host, &id);
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;

    let mut second = connect(&other(&host, "second.sock")).await.unwrap();
    let refused = refusal(&mut second).await;
    assert!(refused.message().contains("there is no key file"), "{refused}");
    let stored = encrypt(&mut client, &DEK).await.unwrap();
    opens(&mut client, &stored, &DEK).await;

    assert_eq!(get(&admin(&host), "/livez").await, (200, "ok\n".into()));
    let (code, body) = get(&admin(&host), "/readyz?verbose").await;
    assert_eq!(code, 503);
    assert!(body.contains("[+] provider casemate: ok\n"), "{body}");
    assert!(body.contains("[-] provider second: does not write: there is no key file"), "{body}");
    let (_, body) = get(&admin(&host), "/status").await;
    let document: Document = serde_json::from_str(&body).unwrap();
    let [well, broken] = &document.providers[..] else { panic!("{body}") };
    assert_eq!((well.writing, broken.writing), (true, false));
    assert_eq!(well.next_write.as_ref().unwrap().key_id, stored.key_id);
    assert!(well.trouble.is_none() && well.root_keys.iter().all(|key| key.last_error.is_none()));
    assert_eq!(broken.root_keys[0].last_error.as_ref().unwrap().class, "unreachable");
    let (_, metrics) = get(&admin(&host), "/metrics").await;
    for (provider, writing) in [("casemate", 1.0), ("second", 0.0)] {
        let series = format!(r#"casemate_kms_writing{{provider="{provider}"}}"#);
        assert_eq!(value(&metrics, &series), Some(writing));
    }
    // Each counts for itself.
    assert!(well.requests.iter().any(|calls| calls.method == "Encrypt" && calls.code == "OK"));
    assert!(broken.requests.iter().all(|calls| calls.code == "Unavailable"), "{:?}", broken.requests);
    assert_eq!(broken.connections.accepted, 1);

    deliver(&fs::read(late.key()).unwrap(), &other(&host, "second.key"));
    until("both are ready", async || get(&admin(&host), "/readyz").await.0 == 200).await;

    // Who can read this sees no secret.
    let key_file = fs::read_to_string(host.key()).unwrap();
    let secrets: Vec<&str> = key_file
        .split(|c: char| !(c.is_ascii_alphanumeric() || "+/=_-".contains(c)))
        .filter(|word| word.len() > 40)
        .collect();
    assert!(!secrets.is_empty(), "the key file holds one");
    let (_, status) = get(&admin(&host), "/status").await;
    let (_, metrics) = get(&admin(&host), "/metrics").await;
    for secret in secrets {
        assert!(!status.contains(secret) && !metrics.contains(secret));
    }

    daemon.signal(Signal::TERM);
    assert!(daemon.end().0.success());
    assert!(!admin(&host).exists(), "it is removed at the end");
}

#[tokio::test]
async fn the_admin_socket_has_its_mode_and_is_there_only_if_configured() {
    let host = Host::new();
    let mut daemon = host.serve();
    daemon.healthy().await;
    assert!(!admin(&host).exists());
    daemon.kill();

    let config = fs::read_to_string(host.config()).unwrap();
    let more = format!("admin: {{endpoint: unix://{}, socketMode: \"0640\"}}\n", admin(&host).display());
    fs::write(host.config(), config.clone() + &more).unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let found = fs::metadata(admin(&host)).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o640);
    // A file that goes comes back.
    fs::remove_file(admin(&host)).unwrap();
    until("the admin socket is back", async || admin(&host).exists()).await;
    assert_eq!(get(&admin(&host), "/livez").await.0, 200);
    // What a killed process leaves is no obstacle.
    daemon.kill();
    let mut daemon = host.serve();
    daemon.healthy().await;
    assert_eq!(get(&admin(&host), "/readyz?verbose").await, (200, "[+] provider casemate: ok\nok\n".into()));
    daemon.kill();

    let same = format!("admin: {{endpoint: unix://{}}}\n", host.socket().display());
    fs::write(host.config(), config + &same).unwrap();
    let output = host.run(&["check"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(told.contains("endpoint: ") && told.contains("stands in line"), "{told}");
}

#[tokio::test]
async fn who_looks_from_outside_does_not_hurt_those_who_are_served() {
    let host = Host::new();
    with_a_second_provider(&host, "000102030405060708090a0b0c0d0e0f");
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;

    // Many that never read, many that never ask, and they come again.
    let mut crowd = Vec::new();
    for number in 0..40 * MAX_CONNECTIONS {
        // A full queue of those who wait is no answer either.
        let Ok(mut stream) = UnixStream::connect(admin(&host)).await else { continue };
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET /status HTTP/1.1\r\nhost: a\r\n\r\n").await;
        } else {
            let _ = stream.write_all(b"GET /st").await;
        }
        crowd.push(stream);
        if number % 16 == 0 {
            let stored = encrypt(&mut client, &DEK).await.unwrap();
            opens(&mut client, &stored, &DEK).await;
        }
    }
    // The descriptors of those who were refused are closed again: KMS needs them.
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    until("the excess is closed", async || descriptors() < 5 * MAX_CONNECTIONS).await;
    let mut another = connect(&host.socket()).await.unwrap();
    let stored = encrypt(&mut another, &DEK).await.unwrap();
    opens(&mut another, &stored, &DEK).await;

    drop(crowd);
    until("the admin socket answers again", async || get(&admin(&host), "/livez").await.0 == 200).await;
    assert!(daemon.is_running());
}
