use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::file::{FileKeyId, Secret};

fn now() -> Timestamp {
    Timestamp::from_second(1_764_500_000).unwrap()
}

fn keyring() -> Keyring {
    Keyring::new(FileKeyId::generate(), None, Secret::generate(), now())
}

fn made() -> (TempDir, KeyFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = KeyFile::at(folder.path().join("root.key"));
    file.create(&keyring()).unwrap();
    (folder, file)
}

fn stage(file: &KeyFile) -> Result<u32, StoreError> {
    file.update(|keyring| Ok::<_, StoreError>(keyring.stage(Secret::generate(), now()).unwrap()))
}

fn set_mode(file: &KeyFile, mode: u32) {
    fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
}

fn mode(file: &KeyFile) -> u32 {
    fs::metadata(file.path()).unwrap().mode() & 0o7777
}

fn names(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_new_file_is_closed_to_others_and_never_replaces() {
    let folder = tempfile::tempdir().unwrap();
    let file = KeyFile::at(folder.path().join("root.key"));
    let keyring = keyring();
    file.create(&keyring).unwrap();
    assert_eq!((mode(&file), file.read().unwrap()), (0o600, keyring.clone()));

    let other = Keyring::new(FileKeyId::generate(), None, Secret::generate(), now());
    assert!(matches!(file.create(&other), Err(StoreError::Exists { .. })));
    let dangling = KeyFile::at(folder.path().join("link"));
    symlink(folder.path().join("nowhere"), dangling.path()).unwrap();
    assert!(matches!(dangling.create(&other), Err(StoreError::Exists { .. })));
    assert_eq!(file.read().unwrap(), keyring);
    assert_eq!(names(&folder), ["link", "root.key"]);
}

#[test]
fn a_file_open_to_others_is_not_read() {
    let (_folder, file) = made();
    for bad in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o610, 0o601, 0o777] {
        set_mode(&file, bad);
        let error = file.read().unwrap_err();
        assert!(matches!(error, StoreError::Mode { mode, .. } if mode == bad), "{bad:o}: {error}");
        assert!(error.to_string().contains(&format!("{bad:04o}")), "{error}");
        assert!(matches!(stage(&file), Err(StoreError::Mode { .. })), "{bad:o}");
    }
    for good in [0o600, 0o400] {
        set_mode(&file, good);
        assert!(file.read().is_ok(), "{good:o}");
        stage(&file).unwrap();
        assert_eq!(mode(&file), good, "a change keeps the mode");
    }
}

/// Before a byte is read: the file's content is no key file, and that is not what is said.
#[test]
fn mode_is_judged_before_content() {
    let (_folder, file) = made();
    fs::write(file.path(), "nothing of the kind").unwrap();
    set_mode(&file, 0o644);
    assert!(matches!(file.read(), Err(StoreError::Mode { .. })));
    set_mode(&file, 0o600);
    assert!(matches!(file.read(), Err(StoreError::Content { error: KeyFileError::Truncated, .. })));
}

#[test]
fn a_stranger_may_not_own_it() {
    // The rule itself, for every user that may run the tests.
    assert!(owner_is_accepted(0, 0) && owner_is_accepted(0, 7) && owner_is_accepted(7, 7));
    assert!(!owner_is_accepted(8, 7) && !owner_is_accepted(8, 0));
    // The file, where the user can give one away.
    if rustix::process::geteuid().is_root() {
        let (_folder, file) = made();
        std::os::unix::fs::chown(file.path(), Some(12_345), None).unwrap();
        assert!(matches!(file.read(), Err(StoreError::Owner { owner: 12_345, euid: 0, .. })));
        assert!(matches!(stage(&file), Err(StoreError::Owner { .. })));
    }
}

#[test]
fn only_a_regular_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| KeyFile::at(folder.path().join(name));
    fs::create_dir(at("folder").path()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe").path(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for name in ["folder", "pipe"] {
        assert!(matches!(at(name).read(), Err(StoreError::NotAFile { .. })), "{name}");
    }
    assert!(matches!(at("absent").read(), Err(StoreError::Absent { .. })));
    assert!(matches!(stage(&at("absent")), Err(StoreError::Absent { .. })));
    assert!(matches!(KeyFile::at("/").create(&keyring()), Err(StoreError::NotAFile { .. })));
}

/// Kubernetes swaps `..data`; an admin may link to a mounted disk.
#[test]
fn a_symbolic_link_is_followed_and_stays() {
    let (folder, file) = made();
    let link = KeyFile::at(folder.path().join("link"));
    symlink("root.key", link.path()).unwrap();
    assert_eq!(stage(&link).unwrap(), 2);
    assert!(fs::symlink_metadata(link.path()).unwrap().is_symlink());
    assert_eq!(file.read().unwrap().highest(), 2);
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let (_folder, file) = made();
    let inode = || fs::metadata(file.path()).unwrap().ino();
    let before = inode();
    file.update(|_| Ok::<_, StoreError>(())).unwrap();
    let refused = file.update(|keyring| {
        keyring.stage(Secret::generate(), now()).unwrap();
        Err::<(), _>(StoreError::Busy { folder: PathBuf::new() })
    });
    assert!(refused.is_err());
    assert_eq!((inode(), file.read().unwrap().highest()), (before, 1));
    stage(&file).unwrap();
    assert_ne!(inode(), before, "replaced, not written into");
}

#[test]
fn writers_take_turns_and_a_reader_sees_whole_files_only() {
    const EACH: u32 = 40;
    let (folder, file) = made();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| (0..EACH).map(|_| stage(&file).unwrap()).collect::<Vec<_>>()))
            .collect();
        let reader = scope.spawn(|| {
            let mut highest = Vec::new();
            while !done.load(Ordering::Relaxed) {
                highest.push(file.read().unwrap().highest());
            }
            highest
        });
        // The reader is let go before a writer's panic ends the test.
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        let mut numbers: Vec<u32> = written.into_iter().flat_map(Result::unwrap).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (2..2 + 2 * EACH).collect::<Vec<_>>(), "no version was lost or given twice");
        assert!(reader.join().unwrap().is_sorted());
    });
    assert_eq!(file.read().unwrap().highest(), 1 + 2 * EACH);
    assert_eq!(names(&folder), ["root.key"]);
}

#[test]
fn what_a_killed_writer_left_is_removed() {
    let (folder, file) = made();
    fs::write(folder.path().join(".root.key.new"), "half").unwrap();
    stage(&file).unwrap();
    assert_eq!(names(&folder), ["root.key"]);
}
