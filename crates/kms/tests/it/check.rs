//! `casemate-kms check` and the other verbs: what they print and how they exit.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use casemate_keyservice::file::{FileKeyId, KeyFile, Keyring, Secret};
use jiff::Timestamp;

use crate::node::connect;
use crate::process::{Host, deliver, encrypt, opens, program, refusal, set_mode, until};

fn check(host: &Host) -> (Option<i32>, String) {
    let output = host.run(&["check"]);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn all_files(host: &Host) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_good_configuration_exits_0_and_changes_nothing() {
    let host = Host::new();
    let before = all_files(&host);
    let (code, text) = check(&host);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("rootKeys main: writes as file:") && text.contains("under prod:"), "{text}");
    assert!(!text.contains("FAIL"), "{text}");
    assert_eq!(all_files(&host), before);

    let output = host.run(&["check", "--output", "json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = findings["findings"].as_array().unwrap();
    assert!(findings.len() >= 4 && findings.iter().all(|finding| finding["good"] == true), "{findings:?}");
}

#[test]
fn what_will_do_and_is_probably_not_wanted_is_a_warning() {
    let host = Host::new();
    host.set("alsoAccept:\n      - {clusterId: west, until: 2020-01-01T00:00:00Z}\n      - {clusterId: east, until: 2999-01-01T00:00:00Z}");
    let (code, text) = check(&host);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("alsoAccept west: warning: its data is not read any more since 2020-"), "{text}");
    assert!(text.contains("alsoAccept east: its data is read until 2999-"), "{text}");
    assert!(text.contains("file descriptors: there are enough for 128 connections"), "{text}");
    let state = host.state().display().to_string();
    assert!(text.contains(&format!("stateDirectory: {state} will be made: folder ")), "{text}");

    let few = Command::new("prlimit")
        .arg("--nofile=200:200")
        .arg(program())
        .args(["check", "--config"])
        .arg(host.config())
        .output()
        .unwrap();
    let text = String::from_utf8(few.stdout).unwrap();
    assert!(few.status.success(), "the service may have other limits\n{text}");
    assert!(text.contains("file descriptors: warning: started with the limits of this process"), "{text}");
    assert!(text.contains("224 file descriptors") && text.contains("LimitNOFILE="), "{text}");

    fs::create_dir(host.state()).unwrap();
    let (_, text) = check(&host);
    assert!(!text.contains("will be made"), "{text}");
}

/// What is broken, how, and what the answer must say.
type Broken = (&'static str, fn(&Host), &'static [&'static str]);

const BROKEN: &[Broken] = &[
    ("no key file", |host| fs::remove_file(host.key()).unwrap(), &["there is no key file", "deliver"]),
    ("an empty one", |host| fs::write(host.key(), "").unwrap(), &["it is empty", "deliver"]),
    (
        "a truncated one",
        |host| {
            let whole = fs::read(host.key()).unwrap();
            fs::write(host.key(), &whole[..whole.len() - 10]).unwrap();
        },
        &["cut off", "deliver"],
    ),
    (
        "a changed one",
        |host| {
            let mut whole = fs::read(host.key()).unwrap();
            whole[300] ^= 1;
            fs::write(host.key(), whole).unwrap();
        },
        &["it was changed", "deliver"],
    ),
    ("a readable one", |host| set_mode(&host.key(), 0o644), &["mode 0644", "chmod 600"]),
    (
        "another cluster's",
        |host| {
            let other = Keyring::new(FileKeyId::generate(), None, Secret::generate(), Timestamp::now());
            fs::remove_file(host.key()).unwrap();
            KeyFile::at(host.key()).create(&other).unwrap();
        },
        &["the configuration names", "correct `path` and `id`"],
    ),
    (
        "a folder",
        |host| {
            fs::remove_file(host.key()).unwrap();
            fs::create_dir(host.key()).unwrap();
        },
        &["not a regular file"],
    ),
    (
        "a pinned version that is not there",
        |host| {
            let text = fs::read_to_string(host.config()).unwrap();
            fs::write(host.config(), text.replace("- name: main", "- name: main\n        version: 9"))
                .unwrap();
        },
        &["version 9 is not in key file", "deliver"],
    ),
    (
        "state that is a file",
        |host| fs::write(host.state(), "x").unwrap(),
        &["stateDirectory", "move it away"],
    ),
    (
        "no folder for the socket",
        |host| {
            let text = fs::read_to_string(host.config()).unwrap();
            fs::write(host.config(), text.replace("kms.sock", "absent/kms.sock")).unwrap();
        },
        &["endpoint", "absent", "make it"],
    ),
    (
        "a version that may not be read back",
        |host| unreadable_version(host),
        &["key id", "below the configured minReadVersion 2", "deliver the current key file"],
    ),
    (
        "a file in the socket's place",
        |host| fs::write(host.socket(), "x").unwrap(),
        &["endpoint", "kms.sock", "move it away"],
    ),
];

#[test]
fn every_broken_thing_exits_1_and_is_told() {
    for (what, break_it, told) in BROKEN {
        let host = Host::new();
        break_it(&host);
        let before = all_files(&host);
        let (code, text) = check(&host);
        assert_eq!(code, Some(1), "{what}: {text}");
        let failures: Vec<_> = text.lines().filter(|line| line.starts_with("FAIL")).collect();
        assert!(!failures.is_empty(), "{what}: {text}");
        for word in *told {
            assert!(failures.concat().contains(word), "{what}: {word:?} is missing\n{text}");
        }
        assert_eq!(all_files(&host), before, "{what}");
    }
}

fn unreadable_version(host: &Host) {
    let text = fs::read_to_string(host.config()).unwrap();
    let text = text.replace("        file: {path", "        minReadVersion: 2\n        file: {path");
    fs::write(host.config(), text).unwrap();
}

#[tokio::test]
async fn what_may_not_be_read_back_is_not_written() {
    let host = Host::new();
    unreadable_version(&host);
    let mut daemon = host.serve();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    let status = refusal(&mut connect(&host.socket()).await.unwrap()).await;
    assert!(status.message().contains("below the configured minReadVersion 2"), "{status}");
    // It heals with the version that may.
    host.rotate();
    let mut client = daemon.healthy().await;
    let stored = encrypt(&mut client, &[7; 32]).await.unwrap();
    opens(&mut client, &stored, &[7; 32]).await;
}

#[tokio::test]
async fn another_cluster_id_on_a_node_that_wrote_is_told() {
    let host = Host::new();
    host.serve().healthy().await;
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text.replace("clusterId: prod", "clusterId: prdo")).unwrap();
    let (code, told) = check(&host);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("FAIL") && told.contains("wrote as cluster prod before"), "{told}");
    let mut daemon = host.serve();
    daemon.healthy().await;
    let log = daemon.kill();
    assert!(log.contains("WARN") && log.contains("wrote as cluster prod before"), "{log}");

    let moving = "    alsoAccept:\n      - {clusterId: prod, until: 2099-01-01T00:00:00Z}\n    rootKeys:";
    let text = text.replace("clusterId: prod", "clusterId: prdo").replace("    rootKeys:", moving);
    fs::write(host.config(), text).unwrap();
    let (code, told) = check(&host);
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn a_secret_id_that_opens_once_is_left_to_the_plugin() {
    let host = Host::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (address, secret_id) = (listener.local_addr().unwrap(), host.folder().join("secret-id"));
    fs::write(&secret_id, "s.wrapping").unwrap();
    let transit = |wrapped| {
        let file = secret_id.display();
        let auth = format!("{{appRole: {{roleId: r, secretIdFile: {file}, wrapped: {wrapped}}}}}");
        format!("transit: {{addresses: [\"http://{address}\"], key: k, auth: {auth}}}")
    };
    let own = fs::read_to_string(host.config()).unwrap();
    let bao = |wrapped| format!("{own}      - name: bao\n        {}\n", transit(wrapped));
    let old = |wrapped| format!("    readKeys:\n      - name: old\n        {}\n", transit(wrapped));
    let not_asked = "warning: not asked: its wrapped secret id opens once";

    for (text, subject) in [(bao(true), "rootKeys bao"), (format!("{own}{}", old(true)), "readKeys old")] {
        fs::write(host.config(), text).unwrap();
        let (code, text) = check(&host);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(&format!("{subject}: {not_asked}")), "{text}");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    // One that is not wrapped is tried. Nobody answers.
    listener.set_nonblocking(false).unwrap();
    let called = thread::spawn(move || drop(listener.accept().unwrap()));
    fs::write(host.config(), bao(false)).unwrap();
    let (code, text) = check(&host);
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains(not_asked), "{text}");
    called.join().unwrap();
}

#[test]
fn a_credential_that_others_can_use_is_a_warning() {
    let host = Host::new();
    let secret_id = host.folder().join("secret-id");
    fs::write(&secret_id, "s.wrapping").unwrap();
    let auth = format!("{{appRole: {{roleId: r, secretIdFile: {}, wrapped: true}}}}", secret_id.display());
    let own = fs::read_to_string(host.config()).unwrap();
    // Nobody is asked: whether it is that is another question.
    let bao = format!(
        "      - name: bao\n        transit: {{addresses: [\"http://127.0.0.1:1\"], key: k, auth: {auth}}}\n"
    );
    fs::write(host.config(), own + &bao).unwrap();
    for (mode, is_told) in [(0o644, true), (0o640, true), (0o600, false), (0o400, false)] {
        set_mode(&secret_id, mode);
        let (code, text) = check(&host);
        let shown = secret_id.display();
        let said = format!(
            "credential: warning: {shown} has mode {mode:04o}: others than its owner can use it; chmod go-rwx"
        );
        assert_eq!((code, text.contains(&said)), (Some(0), is_told), "{mode:o}: {text}");
    }
}

#[tokio::test]
async fn an_older_key_file_and_a_damaged_ledger_are_told_before_a_start() {
    let host = Host::new();
    let old = fs::read(host.key()).unwrap();
    host.serve().healthy().await;
    host.rotate();
    host.serve().healthy().await;
    let new = fs::read(host.key()).unwrap();
    assert_eq!(check(&host).0, Some(0));

    deliver(&old, &host.key());
    let before = host.state_files();
    let (code, text) = check(&host);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("deliver the current one"), "{text}");

    deliver(&new, &host.key());
    let ledger = host.state().join("casemate/ledger");
    let whole = fs::read(&ledger).unwrap();
    fs::write(&ledger, &whole[..whole.len() - 3]).unwrap();
    let (code, text) = check(&host);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("damaged"), "{text}");
    fs::write(&ledger, whole).unwrap();
    assert_eq!(host.state_files(), before, "check changes nothing");
}

#[test]
fn a_socket_in_its_place_is_what_a_running_one_has() {
    let host = Host::new();
    let _listener = UnixListener::bind(host.socket()).unwrap();
    assert_eq!(check(&host).0, Some(0));
}

#[test]
fn a_configuration_that_is_none_exits_2() {
    let host = Host::new();
    fs::write(host.config(), "kind: [").unwrap();
    for verb in ["check", "serve"] {
        let output = host.run(&[verb]);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("config.yaml:1:"), "{text}");
    }
    fs::remove_file(host.config()).unwrap();
    let (code, text) = check(&host);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("config.yaml") && text.contains("--config"), "{text}");
    assert_eq!(host.run(&["shred"]).status.code(), Some(2));
    assert_eq!(host.run(&["serve", "--accept-reuse", "no key id"]).status.code(), Some(2));
}

/// Whoever can write it decides which keys protect the cluster.
#[test]
fn a_configuration_that_others_can_write_is_not_used() {
    let host = Host::new();
    for (at, mode, safe) in [(host.config(), 0o666, 0o644), (host.folder().to_owned(), 0o775, 0o755)] {
        set_mode(&at, mode);
        let said = format!("{} has mode {mode:04o}", at.display());
        let checked = host.run(&["check"]);
        let told = String::from_utf8(checked.stderr).unwrap();
        assert!(told.contains(&said) && told.contains(&format!("chmod go-w {}", at.display())), "{told}");
        assert_eq!(checked.status.code(), Some(2));
        let (ended, log) = host.serve().end();
        assert!(ended.code() == Some(2) && log.contains(&said), "{log}");
        set_mode(&at, safe);
        assert_eq!(host.run(&["check"]).status.code(), Some(0));
    }
}

#[test]
fn who_stops_reading_makes_no_panic_and_a_full_disk_is_told() {
    for verb in [&["schema"][..], &["version"], &["version", "--output", "json"]] {
        let spawn = |stdout: Stdio| {
            Command::new(program()).args(verb).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut deaf = spawn(Stdio::piped());
        drop(deaf.stdout.take());
        let ended = deaf.wait_with_output().unwrap();
        assert_eq!(
            (ended.status.code(), String::from_utf8(ended.stderr).unwrap().as_str()),
            (Some(0), ""),
            "{verb:?}"
        );

        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = spawn(full.into()).wait_with_output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{verb:?}: {told}");
        assert!(told.starts_with("casemate-kms: can't write to stdout: No space left"), "{verb:?}: {told}");
    }
}
