//! A writer that is killed, or whose disk is full, leaves the old key file or the new one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use casemate_keyservice::file::{FileKeyId, Haste, KeyFile, Keyring, MAX_VERSIONS, Secret, StoreError};
use jiff::Timestamp;

const KEY_FILE: &str = "CASEMATE_TEST_KEY_FILE";

fn now() -> Timestamp {
    Timestamp::from_second(1_764_500_000).unwrap()
}

fn create(path: &Path) -> KeyFile {
    let file = KeyFile::at(path);
    file.create(&Keyring::new(FileKeyId::generate(), None, Secret::generate(), now())).unwrap();
    file
}

fn stage(file: &KeyFile) -> Result<u32, StoreError> {
    file.update(|keyring| Ok(keyring.stage(Secret::generate(), now()).unwrap()))
}

fn activate(file: &KeyFile, number: u32) {
    let activated = file.update(|keyring| {
        keyring.activate(number, now(), Haste::Now).unwrap();
        Ok::<_, StoreError>(())
    });
    activated.unwrap();
}

/// This program again, running one test of this file on `path`, after the shell did `setup`.
fn child(setup: &str, test: &str, path: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(KEY_FILE, path)
        .stdout(Stdio::null());
    command
}

/// Run by the next test, as a process that is killed. By itself it rotates once.
#[test]
fn rotating_writer() {
    let Some(path) = std::env::var_os(KEY_FILE) else {
        let folder = tempfile::tempdir().unwrap();
        let file = create(&folder.path().join("root.key"));
        let number = stage(&file).unwrap();
        activate(&file, number);
        assert_eq!(file.read().unwrap().active(), 2);
        return;
    };
    let file = KeyFile::at(path);
    while file.read().unwrap().highest() < u32::try_from(MAX_VERSIONS).unwrap() {
        let number = stage(&file).unwrap();
        activate(&file, number);
    }
}

#[test]
fn kill_at_any_moment_leaves_the_old_or_the_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("root.key");
    let mut killed_at_work = 0;
    for round in 0..40u64 {
        let file = create(&path);
        let id = file.read().unwrap().id();
        let mut child = child(":", "crash::rotating_writer", &path).spawn().unwrap();
        // It works once it has staged; then it is killed after a while that differs from round to round.
        while file.read().unwrap().highest() == 1 {
            assert_eq!(child.try_wait().unwrap(), None, "the writer ended early");
        }
        std::thread::sleep(Duration::from_micros(round * 331));
        child.kill().unwrap();
        child.wait().unwrap();

        let found = file.read().unwrap();
        assert_eq!(found.id(), id);
        let (active, highest) = (found.active(), found.highest());
        assert!(active == highest || active + 1 == highest, "{active} of {highest}");
        if highest < u32::try_from(MAX_VERSIONS).unwrap() {
            killed_at_work += 1;
            // Nothing that the next writer trips over.
            assert_eq!(stage(&file).unwrap(), highest + 1);
        }
        assert!(fs::read_dir(folder.path()).unwrap().count() <= 2, "only one name is ever left behind");
        fs::remove_file(&path).unwrap();
    }
    assert!(
        killed_at_work > 20,
        "killed at work {killed_at_work} times of 40: too few to have shown anything"
    );
}

/// Run by the next test under a limit on how large a file may be written. By itself it writes.
#[test]
fn writer_on_a_full_disk() {
    match std::env::var_os(KEY_FILE) {
        None => {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(stage(&create(&folder.path().join("root.key"))).unwrap(), 2);
        }
        Some(path) => match stage(&KeyFile::at(path)) {
            Err(error @ StoreError::Io { doing: "write", .. }) => {
                eprintln!("{error}");
                std::process::exit(42);
            }
            other => panic!("it was to fail while writing: {other:?}"),
        },
    }
}

/// A limit on file sizes ends writes as a full disk does, for every user and file system. With the signal
/// ignored the write fails; without, the writer dies in it.
#[test]
fn a_full_disk_leaves_the_old_file() {
    for (setup, code) in [
        ("trap '' XFSZ; ulimit -f 0", Some(42)),
        ("trap '' XFSZ; ulimit -f 1", Some(42)),
        ("ulimit -c 0; ulimit -f 1", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root.key");
        let file = create(&path);
        while fs::metadata(&path).unwrap().len() <= 2_048 {
            stage(&file).unwrap();
        }
        let before = fs::read(&path).unwrap();

        let output = child(setup, "crash::writer_on_a_full_disk", &path).output().unwrap();
        assert_eq!(output.status.code(), code, "{setup}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(&path).unwrap(), before, "{setup}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, if code.is_some() { 1 } else { 2 }, "{setup}: what it began is cleared away");

        stage(&file).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{setup}: with room again all is well");
    }
}
