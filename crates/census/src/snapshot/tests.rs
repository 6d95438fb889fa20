use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

use super::*;
use crate::bolt::Direction;
use crate::mvcc::tests::{change, store_file};

/// A folder with a `db` and a snapshot of the same store.
fn folder() -> (TempDir, Vec<u8>) {
    let folder = TempDir::new().unwrap();
    let changes: Vec<_> = (2..40)
        .map(|main| change(main, &format!("/registry/secrets/{main}"), Some(&"v".repeat(900))))
        .collect();
    let file = store_file(4096, &changes, &[]);
    fs::write(folder.path().join("db"), &file).unwrap();
    let snapshot = [&file[..], digest(&SHA256, &file).as_ref()].concat();
    fs::write(folder.path().join("snapshot.db"), &snapshot).unwrap();
    (folder, snapshot)
}

fn open(path: &Path) -> Result<Snapshot, Error> {
    Snapshot::open(path, Options::default())
}

fn keys(snapshot: &Snapshot) -> usize {
    let store = snapshot.store().unwrap();
    let mut live = store.live(b"/registry").unwrap();
    let mut count = 0;
    while live.next_item().unwrap().is_some() {
        count += 1;
    }
    count
}

fn said(path: &Path) -> String {
    let error = open(path).unwrap_err();
    assert_eq!(error.path, path);
    let said = error.to_string();
    assert!(said.starts_with(&path.display().to_string()), "{said}");
    said
}

#[test]
fn the_checksum_of_a_snapshot_is_compared() {
    let (folder, bytes) = folder();
    let path = folder.path().join("snapshot.db");
    let db = open(&folder.path().join("db")).unwrap();
    assert_eq!((keys(&db), db.check_integrity(|_| ()).unwrap()), (38, Integrity::Absent));
    let snapshot = open(&path).unwrap();
    let mut progress = Vec::new();
    assert_eq!(snapshot.check_integrity(|read| progress.push(read)).unwrap(), Integrity::Verified);
    assert_eq!(progress.last(), Some(&(snapshot.len() - 32)));
    assert_eq!((keys(&snapshot), snapshot.len()), (38, bytes.len() as u64));
    // A bit of a value, of which the pages can't tell, and one of the checksum.
    for place in [bytes.len() - 5000, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[place] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert_eq!(open(&path).unwrap().check_integrity(|_| ()).unwrap(), Integrity::Mismatch);
    }
    // Cut off where another end looks like a checksum.
    fs::write(&path, &bytes[..3 * 4096 + 32]).unwrap();
    assert!(said(&path).contains("cut off"));
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
    let (folder, _) = folder();
    let at = |name: &str| folder.path().join(name);
    assert!(said(folder.path()).contains("is a folder"));
    assert!(said(Path::new("/dev/zero")).contains("is a device"));
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    assert!(said(&at("fifo")).contains("is a FIFO"));
    symlink("fifo", at("to-fifo")).unwrap();
    assert!(said(&at("to-fifo")).contains("is a FIFO"));
    symlink("nothing", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    for name in ["dangling", "loop", "missing"] {
        assert!(said(&at(name)).contains("can't be opened"), "{name}");
    }
    symlink("snapshot.db", at("latest")).unwrap();
    assert_eq!(keys(&open(&at("latest")).unwrap()), 38);
    fs::write(at("empty"), "").unwrap();
    assert!(said(&at("empty")).contains("is empty (0 bytes)"));
    fs::write(at("text"), "x".repeat(1 << 16)).unwrap();
    assert!(said(&at("text")).contains("no database of etcd"));
}

#[test]
fn a_file_that_a_running_etcd_holds_is_refused_and_one_that_is_read_is_held() {
    let (folder, _) = folder();
    let path = folder.path().join("db");
    let etcd = File::options().read(true).write(true).open(&path).unwrap();
    rustix::fs::flock(&etcd, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(said(&path).contains("a running etcd holds its lock"));
    rustix::fs::flock(&etcd, FlockOperation::Unlock).unwrap();
    let both = [(); 2].map(|()| open(&path).unwrap());
    assert!(both.iter().all(Snapshot::is_locked));
    assert!(rustix::fs::flock(&etcd, FlockOperation::NonBlockingLockExclusive).is_err());
    drop(both);
    rustix::fs::flock(&etcd, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn a_file_that_changes_while_it_is_read_is_told() {
    let (folder, bytes) = folder();
    let path = folder.path().join("copy");
    let large: Vec<_> = (2..400).map(|main| change(main, "/registry/a", Some(&"v".repeat(900)))).collect();
    fs::write(&path, store_file(4096, &large, &[])).unwrap();
    let snapshot = Snapshot::open(&path, Options { cache_bytes: 0, ..Options::default() }).unwrap();
    snapshot.ensure_unchanged().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let store = crate::mvcc::Store::open(snapshot.database(), false);
    assert!(store.map(|_| ()).unwrap_err().to_string().contains("got shorter while it was read"));
    assert!(matches!(snapshot.ensure_unchanged().unwrap_err().fault, Fault::Changed));

    // In place, with the same length.
    let path = folder.path().join("snapshot.db");
    let snapshot = open(&path).unwrap();
    let mut revisions = snapshot.store().unwrap().revisions(Direction::Ascending).unwrap();
    assert!(revisions.advance().unwrap());
    fs::write(&path, &bytes).unwrap();
    let later = snapshot.opened.modified().unwrap() + std::time::Duration::from_secs(1);
    File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    assert!(snapshot.ensure_unchanged().unwrap_err().to_string().contains("changed while it was read"));
}
