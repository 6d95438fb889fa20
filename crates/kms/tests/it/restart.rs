//! What a killed, stopped, doubled or badly housed process leaves behind.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use casemate_keyservice::file::KeyFile;
use casemate_wire::kms_v2::StatusRequest;
use rustix::process::Signal;

use crate::node::connect;
use crate::process::{Host, deliver, encrypt, opens, program, refusal, set_mode, until};

const DEK: [u8; 32] = *b"<the one DEK source of the test>";

/// Who reads the log from the top is told what begins before what comes of it.
#[tokio::test]
async fn a_start_tells_that_nothing_is_active_before_it_tells_what_writes() {
    let host = Host::new();
    for start in ["the first", "one with a record"] {
        let mut daemon = host.serve();
        daemon.healthy().await;
        daemon.signal(Signal::TERM);
        let log = daemon.end().1;
        let told =
            ["nothing is active yet", "this key id writes from now on", "root keys are as they should be"];
        let places: Vec<_> =
            told.iter().map(|text| log.match_indices(text).map(|(at, _)| at).collect()).collect();
        let [starting, writes, well] = <[Vec<usize>; 3]>::try_from(places).unwrap();
        assert_eq!((starting.len(), writes.len(), well.len()), (1, 1, 1), "{start}: {log}");
        assert!(starting[0] < writes[0] && writes[0] < well[0], "{start}: {log}");
    }
}

/// Field complaint 1: the socket that a killed plugin leaves behind blocks its start
/// (kubernetes-sigs/aws-encryption-provider#26, #74; FalcoSuessgott/vault-kubernetes-kms#134).
#[tokio::test]
async fn killed_at_any_moment_it_starts_again_and_reads_everything_acknowledged() {
    let host = Host::new();
    let mut acknowledged = Vec::new();
    let mut rng = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % below
    };
    for round in 0..24 {
        let daemon = host.serve();
        // A new version that this start finds, and writes under.
        if round % 3 == 1 {
            host.rotate();
        }
        let moment = Duration::from_millis(random(30));
        let (socket, stored) = (host.socket(), Arc::new(Mutex::new(Vec::new())));
        let kept = stored.clone();
        let calls = tokio::spawn(async move {
            loop {
                if let Ok(mut client) = connect(&socket).await {
                    while let Ok(one) = encrypt(&mut client, &DEK).await {
                        kept.lock().unwrap().push(one);
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        if round % 2 == 1 {
            // Not before something was acknowledged, however slow the host is.
            until("acknowledged", async || !stored.lock().unwrap().is_empty()).await;
        }
        tokio::time::sleep(moment).await;
        daemon.kill();
        calls.abort();
        let stored = std::mem::take(&mut *stored.lock().unwrap());
        // Under each record the first and the last.
        acknowledged.extend(stored.first().cloned());
        acknowledged.extend(stored.last().cloned());
    }
    let mut last = host.serve();
    let mut client = last.healthy().await;
    acknowledged.push(encrypt(&mut client, &DEK).await.unwrap());
    for stored in &acknowledged {
        opens(&mut client, stored, &DEK).await;
    }
    let left: Vec<_> = host.state_files().into_iter().map(|(path, _)| path).collect();
    assert!(left.len() <= 4, "nothing piles up: {left:?}");
    assert!(!left.iter().any(|path| path.ends_with("ledger.damaged")), "{left:?}");
}

#[tokio::test]
async fn a_restart_goes_on_with_the_record_of_the_last_run() {
    let host = Host::new();
    let mut daemon = host.serve();
    let first = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    daemon.kill();
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let second = encrypt(&mut client, &DEK).await.unwrap();
    assert_eq!(first.annotation, second.annotation);
    opens(&mut client, &first, &DEK).await;
}

/// Field complaint 1, the other half: a live socket is not taken away.
#[tokio::test]
async fn two_copies_the_second_says_who_serves_and_changes_nothing() {
    let host = Host::new();
    let mut first = host.serve();
    let mut client = first.healthy().await;
    let before = host.state_files();
    host.rotate();
    let (status, log) = host.serve().end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains(&format!("process {}", first.pid())) && log.contains("stop it"), "{log}");
    assert_eq!(host.state_files(), before);
    assert!(encrypt(&mut client, &DEK).await.is_ok());
    assert!(encrypt(&mut first.healthy().await, &DEK).await.is_ok(), "its socket is still there");

    // Another socket, the same state directory.
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text.replace("kms.sock", "other.sock")).unwrap();
    let (status, log) = host.serve().end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("stateDirectory"), "{log}");
    assert_eq!(host.state_files(), before);
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let host = Host::new();
    fs::write(host.socket(), "somebody's").unwrap();
    let (status, log) = host.serve().end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("kms.sock") && log.contains("left alone"), "{log}");
    assert_eq!(fs::read_to_string(host.socket()).unwrap(), "somebody's");

    // A link is no socket either, whatever it points to.
    fs::remove_file(host.socket()).unwrap();
    let elsewhere = host.socket().with_extension("real");
    drop(UnixListener::bind(&elsewhere).unwrap());
    std::os::unix::fs::symlink(&elsewhere, host.socket()).unwrap();
    let (status, log) = host.serve().end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(fs::symlink_metadata(host.socket()).unwrap().is_symlink() && elsewhere.exists());
}

/// Field complaint 2: the socket's file goes away under a running plugin, and nobody gets in any more
/// (FalcoSuessgott/vault-kubernetes-kms#201).
#[tokio::test]
async fn a_removed_socket_is_served_again_and_a_live_one_is_not_stolen() {
    let host = Host::new();
    let mut daemon = host.serve();
    let mut old = daemon.healthy().await;
    let stored = encrypt(&mut old, &DEK).await.unwrap();
    let mode = fs::metadata(host.socket()).unwrap().permissions();
    fs::remove_file(host.socket()).unwrap();
    let mut client = daemon.healthy().await;
    opens(&mut client, &stored, &DEK).await;
    opens(&mut old, &stored, &DEK).await;
    assert_eq!(fs::metadata(host.socket()).unwrap().permissions(), mode);

    // A dead one in its place is replaced too.
    fs::remove_file(host.socket()).unwrap();
    let aside = host.socket().with_extension("dead");
    drop(UnixListener::bind(&aside).unwrap());
    fs::rename(&aside, host.socket()).unwrap();
    opens(&mut daemon.healthy().await, &stored, &DEK).await;

    // A live one is somebody's.
    fs::remove_file(host.socket()).unwrap();
    let others = UnixListener::bind(&aside).unwrap();
    fs::rename(&aside, host.socket()).unwrap();
    others.set_nonblocking(true).unwrap();
    // It looks every second: when it has connected to see who is there, it has decided.
    until("it looked", async || others.accept().is_ok()).await;
    until("it looked again", async || others.accept().is_ok()).await;
    assert!(std::os::unix::net::UnixStream::connect(host.socket()).is_ok());
    assert!(others.accept().is_ok(), "the socket is still the other's");
    opens(&mut client, &stored, &DEK).await;
    daemon.signal(Signal::TERM);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
    assert!(fs::symlink_metadata(host.socket()).unwrap().file_type().is_socket(), "not its own to remove");
    let lines = log.matches("is serving this socket").count();
    assert!(lines <= 1, "said {lines} times\n{log}");
}

#[tokio::test]
async fn sigterm_removes_the_socket_and_ends_well() {
    for signal in [Signal::TERM, Signal::INT] {
        let host = Host::new();
        let mut daemon = host.serve();
        // A connection that stays open, as kube-apiserver's does.
        let mut client = daemon.healthy().await;
        assert!(encrypt(&mut client, &DEK).await.is_ok());
        daemon.signal(signal);
        let (status, log) = daemon.end();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!host.socket().exists());
        assert!(log.contains("stopping"), "{log}");
    }
}

#[tokio::test]
async fn without_its_key_file_it_runs_says_so_and_heals_on_delivery() {
    let host = Host::new();
    let key = fs::read(host.key()).unwrap();
    fs::remove_file(host.key()).unwrap();
    let daemon = host.serve();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    let mut client = connect(&host.socket()).await.unwrap();
    let status = refusal(&mut client).await;
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("main.key") && status.message().contains("deliver"), "{status}");
    deliver(&key, &host.key());
    until("healthy", async || client.status(StatusRequest {}).await.is_ok()).await;
    assert!(encrypt(&mut client, &DEK).await.is_ok());
    let log = daemon.kill();
    assert!(log.contains("there is no key file"), "{log}");
}

#[tokio::test]
async fn on_a_full_disk_a_node_with_a_record_serves_and_one_without_says_why() {
    let host = Host::new();
    let mut daemon = host.serve_on_a_full_disk();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    let mut client = connect(&host.socket()).await.unwrap();
    let status = refusal(&mut client).await;
    assert!(status.message().contains("record") && status.message().contains("make room"), "{status}");
    assert!(daemon.is_running());
    daemon.kill();

    let mut daemon = host.serve();
    let first = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    daemon.kill();
    let files = host.state_files();
    let mut daemon = host.serve_on_a_full_disk();
    let mut client = daemon.healthy().await;
    opens(&mut client, &first, &DEK).await;
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, first.annotation);
    daemon.kill();
    assert_eq!(host.state_files(), files);

    // A rotation that it can't note does not take the old key id's data along.
    host.rotate();
    let daemon = host.serve_on_a_full_disk();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    opens(&mut connect(&host.socket()).await.unwrap(), &first, &DEK).await;
    daemon.kill();
    assert_eq!(host.state_files(), files, "old or new, never half");
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    opens(&mut client, &first, &DEK).await;
    assert_ne!(encrypt(&mut client, &DEK).await.unwrap().key_id, first.key_id);
}

#[tokio::test]
async fn a_state_directory_that_is_none_is_told() {
    let host = Host::new();
    fs::write(host.state(), "a file").unwrap();
    let (status, log) = host.serve().end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("state") && log.contains("correct its permissions"), "{log}");
    assert_eq!(fs::read_to_string(host.state()).unwrap(), "a file");
    assert!(!host.socket().exists(), "nothing is left of a start that failed");
}

#[tokio::test]
async fn damaged_state_costs_no_data() {
    let host = Host::new();
    let mut daemon = host.serve();
    let first = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    daemon.kill();
    let folder = host.state().join("casemate");
    let record = fs::read(folder.join("record")).unwrap();
    let mut flipped = record.clone();
    flipped[100] ^= 1;
    for damaged in [Vec::new(), record[..50].to_vec(), flipped, vec![0xff; 8192], vec![0; 100_000]] {
        let length = damaged.len();
        fs::write(folder.join("record"), damaged).unwrap();
        let mut daemon = host.serve();
        let mut client = daemon.healthy().await;
        opens(&mut client, &first, &DEK).await;
        let next = encrypt(&mut client, &DEK).await.unwrap();
        assert_eq!(next.key_id, first.key_id, "{length}");
        assert_ne!(next.annotation, first.annotation, "{length}");
        opens(&mut client, &next, &DEK).await;
        daemon.kill();
    }
    let ledger = fs::read(folder.join("ledger")).unwrap();
    for damaged in
        [ledger[..ledger.len() - 3].to_vec(), vec![0xff; 300], [b"1 prod:x 0\n", &*ledger].concat()]
    {
        fs::write(folder.join("ledger"), &damaged).unwrap();
        let mut daemon = host.serve();
        opens(&mut daemon.healthy().await, &first, &DEK).await;
        let log = daemon.kill();
        assert!(log.contains("ledger of active key ids is damaged"), "{log}");
        assert_eq!(fs::read(folder.join("ledger.damaged")).unwrap(), damaged);
        let healed = fs::read_to_string(folder.join("ledger")).unwrap();
        assert!(healed.lines().count() == 1 && healed.contains(&first.key_id), "{healed:?}");
    }
}

#[tokio::test]
async fn an_older_key_file_after_a_restart_does_not_bring_its_key_id_back() {
    let host = Host::new();
    let old = fs::read(host.key()).unwrap();
    let mut daemon = host.serve();
    let first = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    daemon.kill();
    host.rotate();
    let new = fs::read(host.key()).unwrap();
    let mut daemon = host.serve();
    let second = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    assert_ne!(first.key_id, second.key_id);
    daemon.kill();

    deliver(&old, &host.key());
    let daemon = host.serve();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    let mut client = connect(&host.socket()).await.unwrap();
    let status = refusal(&mut client).await;
    assert!(status.message().contains(&first.key_id) && status.message().contains("epoch"), "{status}");
    opens(&mut client, &first, &DEK).await;
    let status = client.decrypt(second.request()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("version 2 is not in key file"), "{status}");
    deliver(&new, &host.key());
    until("healed", async || client.status(StatusRequest {}).await.is_ok()).await;
    opens(&mut client, &second, &DEK).await;
    daemon.kill();

    // The admin may insist.
    deliver(&old, &host.key());
    let mut command = Command::new(program());
    command.args(["serve", "--accept-reuse", &first.key_id, "--config"]).arg(host.config());
    let mut daemon = host.serve_by(command);
    assert_eq!(encrypt(&mut daemon.healthy().await, &DEK).await.unwrap().key_id, first.key_id);
}

#[tokio::test]
async fn no_log_line_holds_a_secret() {
    let host = Host::new();
    let mut command = Command::new(program());
    command.arg("serve").arg("--config").arg(host.config()).env("CASEMATE_LOG", "trace");
    let mut daemon = host.serve_by(command);
    let mut client = daemon.healthy().await;
    let stored = encrypt(&mut client, &DEK).await.unwrap();
    opens(&mut client, &stored, &DEK).await;
    assert!(encrypt(&mut client, &DEK[..31]).await.is_err());
    let mut broken = stored.request();
    broken.ciphertext = [&[1], &DEK[..], &DEK, &[0; 28]].concat().into();
    broken.uid = "line one\n2030-01-01T00:00:00Z ERROR forged: line two".into();
    broken.key_id = format!("{}\n2030-01-01T00:00:00Z ERROR forged: line two", stored.key_id);
    assert!(client.decrypt(broken).await.is_err());
    let mut chatty = stored.request();
    chatty.uid = "line one\n2030-01-01T00:00:00Z ERROR forged: line two".into();
    assert!(client.decrypt(chatty).await.is_ok());
    host.rotate();
    set_mode(&host.key(), 0o644);
    daemon.signal(Signal::TERM);
    let (_, log) = daemon.end();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "the log is not at its loudest");
    assert!(!log.lines().any(|line| line.starts_with("2030")), "a client wrote a log line");

    let key = fs::read_to_string(host.key()).unwrap();
    set_mode(&host.key(), 0o600);
    assert!(KeyFile::at(host.key()).read().is_ok());
    let mut secrets: Vec<Vec<u8>> = key
        .lines()
        .filter_map(|line| line.trim().strip_prefix("secret: "))
        .map(|text| base64_of(text.trim_matches('"')))
        .collect();
    assert_eq!(secrets.len(), 2);
    secrets.push(DEK.to_vec());
    for secret in secrets {
        for form in forms(&secret) {
            assert!(!log.contains(&form), "the log holds a secret as {form:?}");
        }
    }
}

fn base64_of(text: &str) -> Vec<u8> {
    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap()
}

/// The forms in which somebody would look for it, each by a part long enough to be no accident.
fn forms(secret: &[u8]) -> Vec<String> {
    let part = &secret[3..15];
    let mut forms = vec![
        hex::encode(part),
        hex::encode_upper(part),
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, part),
        part.escape_ascii().to_string(),
        format!("{part:?}").trim_matches(['[', ']']).to_owned(),
        format!("{part:02x?}").trim_matches(['[', ']']).to_owned(),
    ];
    forms.extend(String::from_utf8(part.to_vec()));
    forms
}
