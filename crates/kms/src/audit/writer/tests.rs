use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc::channel;

use tempfile::TempDir;

use super::super::chain::{Kind, Report, Verifier};
use super::super::format::{PeerIds, Shortened};
use super::*;

struct Place {
    folder: TempDir,
    key_folder: TempDir,
    max_bytes: u64,
    keep: u32,
}

impl Place {
    fn new() -> Self {
        let [folder, key_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let place = Self { folder, key_folder, max_bytes: 1 << 20, keep: 3 };
        place.deliver_key(KEY);
        place
    }

    /// Whole, as a delivery is.
    fn deliver_key(&self, hex: &str) {
        let (path, aside) = (self.key_path(), self.key_folder.path().join("aside"));
        fs::write(&aside, hex.repeat(32)).unwrap();
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(aside, path).unwrap();
    }

    fn key_path(&self) -> PathBuf {
        self.key_folder.path().join("audit.key")
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn open(&self) -> Writer {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<Writer, FileError> {
        let key = Some(DeliveredKey::read(&self.key_path()).unwrap());
        let layout = Layout { path: self.path(), max_bytes: self.max_bytes, keep: self.keep, key };
        Writer::open(layout, Arc::default())
    }

    /// All files named, oldest first.
    fn verify(&self, names: &[&str], head: Option<Head>) -> Report {
        self.verify_with(&[KEY], names, head)
    }

    fn verify_with(&self, keys: &[&str], names: &[&str], head: Option<Head>) -> Report {
        let mut verifier = Verifier::new(head, keys.iter().map(|hex| key(hex)));
        for name in names {
            verifier.file(name);
            feed(&mut verifier, &self.folder.path().join(name));
        }
        verifier.finish()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn feed(verifier: &mut Verifier, path: &Path) {
    for line in fs::read(path).unwrap().split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => verifier.line(line),
            None => verifier.torn_line(),
        }
    }
}

const KEY: &str = "0b";

fn key(hex: &str) -> CheckpointKey {
    CheckpointKey::of_text(hex.repeat(32).as_bytes()).unwrap()
}

fn calls(count: usize) -> Vec<Call> {
    let call = Call {
        time: Timestamp::now(),
        provider: "casemate".into(),
        method: "Status",
        uid: Some(Shortened::new("7c9e6679-7425-40de-944b-e07fc1f90ae7", 64)),
        peer: PeerIds::default(),
        key_id: None,
        outcome: "OK",
        duration_us: 3,
        root_key_asked: None,
    };
    vec![call; count]
}

fn head(writer: &Writer) -> Option<Head> {
    Some(**writer.shared.head.load())
}

#[test]
fn what_was_written_verifies_over_restarts() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(3)).unwrap();
    writer.stop();
    let mut writer = place.open();
    writer.write(&calls(2500)).unwrap();
    let head = head(&writer);
    // As kill -9 would: no last words.
    drop(writer);
    let report = place.verify(&["audit.log"], head);
    assert_eq!((report.finding_count, report.calls), (0, 2503), "{report:?}");
    assert_eq!(report.anchored_to, head.map(|head| head.seq));
    assert!(report.authenticated_to > Some(2000));
}

#[test]
fn the_journal_gets_a_new_head_each_hour() {
    let place = Place::new();
    let mut writer = place.open();
    let at_start = writer.journalled.0;
    writer.write(&calls(3)).unwrap();
    assert_eq!(writer.journalled.0, at_start, "not with each line");
    writer.journalled.1 = Instant::now().checked_sub(JOURNAL_EVERY).unwrap();
    writer.write(&calls(1)).unwrap();
    assert_eq!(Some(writer.journalled.0), head(&writer));
    writer.write(&calls(1)).unwrap();
    assert_ne!(Some(writer.journalled.0), head(&writer));
}

#[test]
fn one_process_writes_at_a_time() {
    let place = Place::new();
    let _writer = place.open();
    assert!(matches!(place.try_open(), Err(FileError::InUse { .. })));
}

#[test]
fn what_is_no_file_is_left_alone() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    assert!(matches!(place.try_open(), Err(FileError::NotAFile { .. })));
    fs::remove_dir(place.path()).unwrap();
    symlink("nowhere/at/all", place.path()).unwrap();
    assert!(matches!(place.try_open(), Err(FileError::System { .. })));
}

/// Every length at which a kill can cut the last line.
#[test]
fn a_torn_line_is_set_aside_and_the_chain_goes_on() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(2)).unwrap();
    drop(writer);
    let whole = fs::read(place.path()).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for (round, length) in (last + 1..whole.len()).enumerate() {
        fs::write(place.path(), &whole[..length]).unwrap();
        let mut writer = place.open();
        writer.write(&calls(1)).unwrap();
        let report = place.verify(&["audit.log"], head(&writer));
        assert_eq!((report.finding_count, report.calls, report.notes.len()), (0, 2, 1), "{report:?}");
        let aside = place.folder.path().join(format!("torn-{}-audit.log", round + 1));
        assert_eq!(fs::read(aside).unwrap(), &whole[last..length]);
    }
}

#[test]
fn zeros_that_a_power_failure_left_are_set_aside() {
    let place = Place::new();
    drop(place.open());
    let mut bytes = fs::read(place.path()).unwrap();
    bytes.extend(vec![0; 200_000]);
    fs::write(place.path(), &bytes).unwrap();
    let mut writer = place.open();
    writer.write(&calls(1)).unwrap();
    assert_eq!(place.verify(&["audit.log"], head(&writer)).finding_count, 0);
}

#[test]
fn a_damaged_last_line_moves_the_file_aside_and_verify_says_so() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(2)).unwrap();
    drop(writer);
    let text = fs::read_to_string(place.path()).unwrap();
    let at = text.rfind("OK").unwrap();
    fs::write(place.path(), format!("{}ok{}", &text[..at], &text[at + 2..])).unwrap();
    let writer = place.open();
    assert_eq!(place.names(), ["audit.log", "damaged-1-audit.log"]);
    let report = place.verify(&["damaged-1-audit.log", "audit.log"], head(&writer));
    let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::Edited, Kind::NewChain]);
    assert_eq!(place.verify(&["audit.log"], None).findings[0].kind, Kind::NewChain);
}

#[test]
fn the_chain_goes_on_over_rotated_files() {
    let mut place = Place::new();
    place.max_bytes = 20_000;
    let mut writer = place.open();
    for _ in 0..40 {
        writer.write(&calls(10)).unwrap();
    }
    let names = ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"];
    assert_eq!(place.names(), names, "older ones are removed");
    for name in &names[1..] {
        let length = fs::metadata(place.folder.path().join(name)).unwrap().len();
        assert!(length < 22_000, "{name} has {length}");
    }
    let order = ["audit.log.3", "audit.log.2", "audit.log.1", "audit.log"];
    let report = place.verify(&order, head(&writer));
    assert_eq!(report.finding_count, 0, "{report:?}");
    assert_eq!(report.notes.len(), 1, "that it does not begin at the beginning: {report:?}");
    // A start goes on in the middle of a rotation too.
    drop(writer);
    fs::rename(place.path(), place.folder.path().join("away")).unwrap();
    for number in (1..=2).rev() {
        let name = |number: u32| place.folder.path().join(format!("audit.log.{number}"));
        fs::rename(name(number), name(number + 1)).unwrap();
    }
    fs::rename(place.folder.path().join("away"), place.folder.path().join("audit.log.1")).unwrap();
    let writer = place.open();
    assert_eq!(place.verify(&order, head(&writer)).finding_count, 0);
}

#[test]
fn a_log_that_can_not_be_rotated_grows_on() {
    let mut place = Place::new();
    place.max_bytes = 20_000;
    fs::create_dir_all(place.folder.path().join("audit.log.3/in/the/way")).unwrap();
    let mut writer = place.open();
    for _ in 0..20 {
        writer.write(&calls(10)).unwrap();
    }
    let report = place.verify(&["audit.log"], head(&writer));
    assert_eq!((report.finding_count, report.calls), (0, 200));
}

#[test]
fn others_may_move_the_file_away_or_empty_it() {
    let place = Place::new();
    let moved = place.folder.path().join("moved");
    let mut writer = place.open();
    writer.write(&calls(1)).unwrap();
    fs::rename(place.path(), &moved).unwrap();
    writer.write(&calls(1)).unwrap();
    let report = place.verify(&["moved", "audit.log"], head(&writer));
    assert_eq!((report.finding_count, report.calls, report.notes.len()), (0, 2, 1), "{report:?}");

    fs::copy(place.path(), place.folder.path().join("copied")).unwrap();
    fs::write(place.path(), "").unwrap();
    writer.write(&calls(1)).unwrap();
    let report = place.verify(&["moved", "copied", "audit.log"], head(&writer));
    assert_eq!((report.finding_count, report.calls, report.notes.len()), (0, 3, 2), "{report:?}");

    // What others write into it is found, and ours is still on lines of its own.
    let foreign = [fs::read(place.path()).unwrap(), b"not ours".to_vec()].concat();
    fs::write(place.path(), foreign).unwrap();
    writer.write(&calls(1)).unwrap();
    let report = place.verify(&["moved", "copied", "audit.log"], head(&writer));
    assert_eq!((report.finding_count, report.calls), (1, 4), "{report:?}");
    assert_eq!(report.findings[0].kind, Kind::Malformed);

    // Deleted: what was in it is gone, and the head tells.
    fs::remove_file(place.path()).unwrap();
    writer.write(&calls(1)).unwrap();
    let report = place.verify(&["moved", "copied", "audit.log"], head(&writer));
    assert_eq!(report.findings[0].kind, Kind::Removed);
}

#[test]
fn what_could_not_be_written_is_told_once_it_can_be() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(1)).unwrap();
    // Its folder is gone: nothing can be written.
    let away = tempfile::tempdir().unwrap();
    let hidden = away.path().join("hidden");
    fs::rename(place.folder.path(), &hidden).unwrap();
    for _ in 0..3 {
        assert!(writer.write(&calls(2)).is_err());
    }
    assert!(writer.shared.problem.load().is_some());
    fs::rename(&hidden, place.folder.path()).unwrap();
    writer.shared.queue_full.fetch_add(5, Ordering::Relaxed);
    writer.write(&calls(1)).unwrap();
    assert!(writer.shared.problem.load().is_none());
    assert_eq!(writer.shared.missed.load(Ordering::Relaxed), 6);
    let report = place.verify(&["audit.log"], head(&writer));
    assert_eq!((report.finding_count, report.missed, report.calls), (1, 11, 2), "{report:?}");
    let text = fs::read_to_string(place.path()).unwrap();
    assert!(text.contains(r#""event":"gap","missed":11,"queueFull":5,"notWritten":6"#), "{text}");
    // Once.
    writer.write(&calls(1)).unwrap();
    assert_eq!(place.verify(&["audit.log"], None).missed, 11);
}

#[test]
fn a_key_that_is_replaced_authenticates_what_it_saw_and_no_more() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(3)).unwrap();
    // Damaged, it is no reason to end the proof.
    place.deliver_key("zz");
    writer.look_at_key();
    writer.write(&calls(1)).unwrap();
    place.deliver_key("0c");
    writer.look_at_key();
    writer.look_at_key();
    writer.write(&calls(2)).unwrap();
    let end = place.verify(&["audit.log"], None).last.unwrap().seq;
    writer.stop();

    let both = place.verify_with(&[KEY, "0c"], &["audit.log"], None);
    assert_eq!((both.finding_count, both.calls), (0, 6), "{both:?}");
    assert!(both.authenticated_to.unwrap() > end, "the stop has a checkpoint too");
    for one in [KEY, "0c"] {
        let report = place.verify_with(&[one], &["audit.log"], None);
        assert!(report.finding_count > 0, "{report:?}");
        assert!(report.findings.iter().all(|finding| finding.detail.contains("another key")), "{report:?}");
    }
    // As if the one who has the old key had gone on.
    let turned = place.verify_with(&["0c", KEY], &["audit.log"], None);
    assert!(turned.findings[0].detail.contains("that another one had followed"), "{turned:?}");
}

#[test]
fn a_key_file_at_another_path_is_the_one_that_is_looked_at() {
    let place = Place::new();
    let mut writer = place.open();
    writer.write(&calls(1)).unwrap();
    let moved = place.key_folder.path().join("moved.key");
    fs::rename(place.key_path(), &moved).unwrap();
    let key = Some(DeliveredKey::read(&moved).unwrap());
    writer.change(Layout { path: place.path(), max_bytes: place.max_bytes, keep: place.keep, key });
    place.deliver_key("0c");
    fs::rename(place.key_path(), &moved).unwrap();
    writer.look_at_key();
    writer.write(&calls(1)).unwrap();
    writer.stop();
    assert_eq!(place.verify_with(&[KEY, "0c"], &["audit.log"], None).finding_count, 0);
    assert!(place.verify(&["audit.log"], None).finding_count > 0, "another key made the last checkpoints");
}

#[test]
fn other_limits_hold_from_the_next_line_on() {
    let mut place = Place::new();
    place.max_bytes = 1 << 30;
    let mut writer = place.open();
    writer.write(&calls(40)).unwrap();
    let key = Some(DeliveredKey::read(&place.key_path()).unwrap());
    writer.change(Layout { path: place.path(), max_bytes: 4096, keep: 1, key });
    for _ in 0..60 {
        writer.write(&calls(1)).unwrap();
    }
    assert_eq!(place.names(), ["audit.log", "audit.log.1"]);
    let report = place.verify(&["audit.log.1", "audit.log"], None);
    assert_eq!(report.finding_count, 0, "{report:?}");
}

#[test]
fn the_thread_writes_all_that_came_before_the_stop() {
    let place = Place::new();
    let writer = place.open();
    let shared = writer.shared.clone();
    let (queue, messages) = channel();
    let places = Arc::new(tokio::sync::Semaphore::new(701));
    let taken = || places.clone().try_acquire_owned().unwrap();
    for call in calls(700) {
        queue.send(Message::Call(call, None, taken())).unwrap();
    }
    let (tell, written) = tokio::sync::oneshot::channel();
    queue.send(Message::Call(calls(1).remove(0), Some(tell), taken())).unwrap();
    queue.send(Message::Stop).unwrap();
    writer.run(&messages);
    assert_eq!(written.blocking_recv(), Ok(true));
    let head = **shared.head.load();
    let report = place.verify(&["audit.log"], Some(head));
    assert_eq!((report.finding_count, report.calls), (0, 701));
    assert_eq!(report.authenticated_to, Some(head.seq), "the stop is a checkpoint");
    assert_eq!(places.available_permits(), 701, "who has written gives the places back");
}
