//! What a serving process can't do any more, and that it serves all the same.

mod refused;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use casemate_keyservice::file::{Haste, KeyFile, Secret, StoreError};
use casemate_wire::kms_v2::StatusRequest;
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use crate::node::connect;
use crate::process::{Host, program, until};

/// What `casemate-kms probe` says of one attempt.
#[derive(Debug, serde::Deserialize)]
struct Attempt {
    attempt: String,
    held: bool,
    outcome: String,
    logged: String,
}

fn probe(host: &Host, arguments: &[&str]) -> (Option<i32>, Vec<Attempt>) {
    let output = host.run(&[&["probe", "--output", "json"], arguments].concat());
    let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), serde_json::from_value(answer["attempts"].take()).unwrap())
}

#[test]
fn a_confined_process_can_do_none_of_what_one_who_broke_in_would_try() {
    let host = Host::new();
    let (code, attempts) = probe(&host, &[]);
    assert!(attempts.iter().all(|one| one.held), "{attempts:#?}");
    assert_eq!((code, attempts.len()), (Some(0), 14));
    for fatal in FATAL {
        let one = attempts.iter().find(|one| one.attempt == fatal).unwrap();
        assert_eq!(one.outcome, "ended by the kernel");
    }
}

/// What ends the process: another program, another process's debugger, a network.
const FATAL: [&str; 7] = [
    "execute",
    "trace",
    "take-descriptor",
    "internet-socket",
    "udp-socket",
    "fast-open",
    "fast-open-message",
];

/// With a key service on a network: its port and no other way there; UDP only to ask for its name.
#[test]
fn a_process_with_a_key_service_on_a_network_can_do_nothing_else_there() {
    let host = Host::new();
    for (address, asked_for) in
        [("192.0.2.1", ["internet-socket"].as_slice()), ("bao.example", &["internet-socket", "udp-socket"])]
    {
        let config = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nstateDirectory: {}\nproviders:\n- \
             name: main\n  endpoint: unix://{}\n  rootKeys:\n  - name: bao\n    transit: {{addresses: \
             ['https://{address}:8200'], key: k8s, auth: {{tokenFile: {{path: /run/token}}}}}}\n",
            host.state().display(),
            host.socket().display(),
        );
        fs::write(host.config(), config).unwrap();
        let (code, attempts) = probe(&host, &[]);
        assert!(code == Some(0) && attempts.iter().all(|one| one.held), "{address}: {attempts:#?}");
        let words: Vec<_> = attempts.iter().map(|one| &*one.attempt).collect();
        assert_eq!(words.len(), 14 - asked_for.len(), "{words:?}");
        assert!(!asked_for.iter().any(|word| words.contains(word)), "{words:?}");
        for fatal in ["fast-open", "fast-open-message"] {
            let one = attempts.iter().find(|one| one.attempt == fatal).unwrap();
            assert_eq!(one.outcome, "ended by the kernel", "{fatal}");
        }
    }
}

/// Or else the test above would show nothing.
#[test]
fn a_process_that_is_not_confined_can_do_all_of_it() {
    let host = Host::new();
    let (code, attempts) = probe(&host, &["--no-confinement"]);
    assert!(attempts.iter().all(|one| !one.held && one.outcome == "succeeded"), "{attempts:#?}");
    assert_eq!(code, Some(1));
}

#[tokio::test]
async fn every_thread_of_a_serving_process_is_confined_and_its_log_says_how() {
    let host = Host::new();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let process = PathBuf::from(format!("/proc/{}", daemon.pid()));
    let threads: Vec<_> = fs::read_dir(process.join("task")).unwrap().collect();
    assert!(threads.len() > 1, "it has workers");
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
            assert!(status.contains(line), "{line:?} is not in\n{status}");
        }
    }
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"]);

    daemon.signal(Signal::TERM);
    let (ended, log) = daemon.end();
    assert!(ended.success(), "{log}");
    for said in ["confined, process", "confined, files: Landlock", "confined, system calls"] {
        assert!(log.contains(said), "{said:?} is not in\n{log}");
    }
    assert!(log.contains(&*host.state().to_string_lossy()), "{log}");
}

#[tokio::test]
async fn confinement_is_left_out_only_when_asked_and_that_is_a_warning() {
    let host = Host::new();
    let mut command = Command::new(program());
    command.args(["serve", "--no-confinement", "--config"]).arg(host.config());
    let mut daemon = host.serve_by(command);
    daemon.healthy().await;
    let log = daemon.kill();
    assert!(log.contains("WARN not confined"), "{log}");

    let output = host.run(&["check", "--no-confinement"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("switched off by --no-confinement"));
    let output = host.run(&["check"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("confinement, files: Landlock"));
}

#[test]
fn what_can_t_be_confined_does_not_start() {
    let (host, elsewhere) = (Host::new(), tempfile::tempdir().unwrap());
    let folder = elsewhere.path().join("loop");
    symlink(&folder, &folder).unwrap();
    let config = fs::read_to_string(host.config()).unwrap();
    let key = host.key().display().to_string();
    fs::write(host.config(), config.replace(&key, &folder.join("main.key").display().to_string())).unwrap();
    let (ended, log) = host.serve().end();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("files can't be confined") && log.contains("loop"), "{log}");
    assert!(!host.socket().exists());
}

/// Each kind of file in a folder of its own, so that nothing is readable for another reason; the key as the kubelet
/// delivers Secrets: `main.key` is a link to `..data/main.key`, and `..data` one to the folder of the day.
#[tokio::test]
async fn deliveries_and_lost_sockets_are_seen_from_inside() {
    let host = Host::new();
    let [etc, keys, run, state] = ["etc", "keys", "run", "lib"].map(|name| host.folder().join(name));
    for folder in [&etc, &keys, &run, &keys.join("..v1"), &keys.join("..v2")] {
        fs::create_dir(folder).unwrap();
    }
    fs::copy(host.key(), keys.join("..v1/main.key")).unwrap();
    symlink("..v1", keys.join("..data")).unwrap();
    symlink("..data/main.key", keys.join("main.key")).unwrap();
    let config =
        [(host.key(), keys.join("main.key")), (host.socket(), run.join("kms.sock")), (host.state(), state)]
            .iter()
            .fold(fs::read_to_string(host.config()).unwrap(), |config, (from, to)| {
                config.replace(&*from.to_string_lossy(), &to.to_string_lossy())
            });
    fs::write(etc.join("config.yaml"), config).unwrap();

    let mut command = Command::new(program());
    command.args(["serve", "--config"]).arg(etc.join("config.yaml"));
    let daemon = host.serve_by(command);
    let socket = run.join("kms.sock");
    let key_id = async || -> Option<String> {
        Some(connect(&socket).await.ok()?.status(StatusRequest {}).await.ok()?.into_inner().key_id)
    };
    until("it serves", async || key_id().await.is_some()).await;
    let first = key_id().await.unwrap();

    fs::remove_file(&socket).unwrap();
    until("the socket is bound again", async || key_id().await.is_some()).await;

    fs::copy(keys.join("..v1/main.key"), keys.join("..v2/main.key")).unwrap();
    KeyFile::at(keys.join("..v2/main.key"))
        .update(|keyring| {
            let number = keyring.stage(Secret::generate(), Timestamp::now()).unwrap();
            keyring.activate(number, Timestamp::now(), Haste::Now).unwrap();
            Ok::<_, StoreError>(())
        })
        .unwrap();
    symlink("..v2", keys.join("..data_tmp")).unwrap();
    fs::rename(keys.join("..data_tmp"), keys.join("..data")).unwrap();
    fs::remove_dir_all(keys.join("..v1")).unwrap();
    until("the new version writes", async || key_id().await.is_some_and(|now| now != first)).await;
    drop(daemon);
}

#[test]
fn systemd_is_told_that_it_is_ready_that_it_lives_and_that_it_stops() {
    let host = Host::new();
    let path = host.folder().join("notify");
    let told = UnixDatagram::bind(&path).unwrap();
    // Only so that a test that fails ends.
    told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let next = || {
        let mut buffer = [0; 4096];
        let length = told.recv(&mut buffer).expect("nothing more was told");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let all_until = |last: &str| {
        let mut all = Vec::new();
        while all.last().is_none_or(|told: &String| !told.lines().any(|line| line == last)) {
            all.push(next());
        }
        all.concat()
    };

    let mut command = Command::new(program());
    command.args(["serve", "--config"]).arg(host.config());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").env_remove("WATCHDOG_PID");
    let daemon = host.serve_by(command);
    all_until("READY=1");
    assert!(host.socket().exists(), "ready means bound");
    all_until("WATCHDOG=1");
    all_until("WATCHDOG=1");
    daemon.signal(Signal::STOP);
    // What was under way; a process that stands still tells nothing.
    told.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    until_stopped(&daemon);
    while told.recv(&mut buffer).is_ok() {}
    std::thread::sleep(Duration::from_millis(300));
    assert!(told.recv(&mut buffer).is_err(), "it says that it lives, and does not");
    told.set_nonblocking(false).unwrap();
    daemon.signal(Signal::CONT);
    all_until("WATCHDOG=1");
    daemon.signal(Signal::TERM);
    all_until("STOPPING=1");
    let (ended, log) = daemon.end();
    assert!(ended.success(), "{log}");
}

fn until_stopped(daemon: &crate::process::Daemon) {
    let status = format!("/proc/{}/stat", daemon.pid());
    while !fs::read_to_string(&status).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
}
