//! Snapshots, and the `db` of a stopped member.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use casemate_census::{
    bolt::Direction,
    mvcc::{Counts, Revision},
    snapshot::{Error, Fault, Integrity, Options, Snapshot},
};
use casemate_lab::{Lab, Tool};

use super::ground_truth::{Change, GroundTruth, Transaction, sha256};

fn open(path: &Path) -> Result<Snapshot, Error> {
    Snapshot::open(path, Options::default())
}

fn db(lab: &Lab) -> PathBuf {
    lab.etcd().data_dir().join("member/snap/db")
}

fn name(number: usize) -> String {
    format!("/registry/secrets/namespace-{}/secret-{number}", number % 7)
}

/// A value of its own, of any length: none at all, and one that needs many pages, too.
fn value(number: usize, generation: usize) -> Vec<u8> {
    let length = match number {
        3 => 0,
        4 => 300_000,
        number => number * 37 % 3000,
    };
    format!("generation {generation} of {number};").bytes().cycle().take(length).collect()
}

/// Values written, overwritten, deleted, made again, leased and compacted.
fn write(lab: &Lab) -> GroundTruth {
    let mut truth = GroundTruth::of(lab.etcd());
    let lease = truth.lease();
    for part in (0..600).collect::<Vec<_>>().chunks(50) {
        let mut made = Transaction::default();
        for number in part {
            made.put(name(*number), &value(*number, 0), if number % 5 == 0 { lease } else { 0 });
        }
        truth.commit(made);
    }
    let mut gone = Transaction::default();
    (100..130).for_each(|number| gone.delete(name(number)));
    truth.commit(gone);
    let mut again = Transaction::default();
    (100..110).for_each(|number| again.put(name(number), &value(number, 1), 0));
    (300..330).for_each(|number| again.put(name(number), &value(number, 1), 0));
    let revision = truth.commit(again);
    truth.compact(revision);

    let mut later = Transaction::default();
    (310..350).for_each(|number| later.put(name(number), &value(number, 2), 0));
    (400..420).for_each(|number| later.delete(name(number)));
    for outside in ["/registry", "/registry2/secrets/a", "/other/secrets/a", "/registry-backup"] {
        later.put(outside, b"not below /registry/", 0);
    }
    truth.commit(later);
    let mut last = Transaction::default();
    (410..413).for_each(|number| last.put(name(number), &value(number, 3), 0));
    truth.commit(last);
    truth
}

fn read(snapshot: &Snapshot, prefix: &str) -> (BTreeMap<String, Change>, Counts) {
    let store = snapshot.store().unwrap();
    let mut live = store.live(prefix.as_bytes()).unwrap();
    let mut found = BTreeMap::new();
    while let Some(item) = live.next_item().unwrap() {
        let key = String::from_utf8(item.pair.key.to_vec()).unwrap();
        let value = Some(sha256(item.pair.value));
        let revision = (item.revision.main, item.revision.sub);
        let change = Change { revision, key: key.clone(), value, lease: item.pair.lease };
        assert!(found.insert(key, change).is_none(), "a key came twice");
    }
    (found, live.counts())
}

fn revisions(snapshot: &Snapshot) -> Vec<Change> {
    let mut revisions = snapshot.store().unwrap().revisions(Direction::Ascending).unwrap();
    let mut found = Vec::new();
    while let Some(item) = revisions.next_item().unwrap() {
        found.push(Change {
            revision: (item.revision.main, item.revision.sub),
            key: String::from_utf8(item.pair.key.to_vec()).unwrap(),
            value: (!item.deletes).then(|| sha256(item.pair.value)),
            lease: item.pair.lease,
        });
    }
    found
}

fn compare(snapshot: &Snapshot, truth: &GroundTruth) {
    compare_with(snapshot, truth, "3.6.0");
}

fn compare_with(snapshot: &Snapshot, truth: &GroundTruth, version: &str) {
    let (all, counts) = read(snapshot, "");
    let expected = truth.live();
    assert_eq!(all, expected);
    assert_eq!(counts.deleted, 17, "those that were deleted after the compaction, and not made again");

    let (registry, counts) = read(snapshot, "/registry");
    let below = |key: &str| key == "/registry" || key.starts_with("/registry/");
    let expected: BTreeMap<_, _> = expected.into_iter().filter(|(key, _)| below(key)).collect();
    assert_eq!((registry, counts.outside), (expected, 3));

    let uncompacted = truth.uncompacted();
    assert_eq!(revisions(snapshot), uncompacted);
    // A deletion that was overwritten is no value.
    let is_mark = |change: &&Change| {
        let again = |other: &Change| other.key == change.key && other.revision > change.revision;
        change.value.is_none() && below(&change.key) && uncompacted.iter().any(again)
    };
    let marks = uncompacted.iter().filter(is_mark).count() as u64;
    assert!(marks > 0);
    assert_eq!(counts.live + counts.deleted + counts.past + counts.outside + marks, uncompacted.len() as u64);

    let store = snapshot.store().unwrap();
    let facts = store.facts();
    let (main, sub) = truth.changes.last().unwrap().revision;
    assert_eq!(facts.latest, Some(Revision { main, sub }));
    let compacted = Some(Revision { main: truth.compacted, sub: 0 });
    assert_eq!((facts.compacted, facts.compacting), (compacted, compacted));
    assert!(facts.consistent_index > Some(0) && facts.term > Some(0), "{facts:?}");
    assert_eq!(facts.cluster_version.as_deref(), Some(version));
    assert_eq!(facts.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["lab"]);

    let inventory = snapshot.database().inventory().unwrap();
    // A compaction frees pages.
    assert!(inventory.free() > 0);
    assert_eq!(inventory.free_pages().map(Result::unwrap).count() as u64, inventory.free());
    snapshot.ensure_unchanged().unwrap();
}

#[test]
fn a_snapshot_and_the_db_of_a_stopped_member_hold_what_was_written() {
    let lab = Lab::builder("census files").apiservers(0).start().unwrap();
    let truth = write(&lab);

    let path = lab.dir().join("backup.db");
    lab.etcd().snapshot(&path).unwrap();
    let snapshot = open(&path).unwrap();
    assert_eq!(snapshot.check_integrity(|_| ()).unwrap(), Integrity::Verified);
    compare(&snapshot, &truth);

    let error = open(&db(&lab)).unwrap_err();
    assert!(matches!(error.fault, Fault::Locked), "{error}");
    lab.etcd().stop().unwrap();
    let stopped = open(&db(&lab)).unwrap();
    assert_eq!(stopped.check_integrity(|_| ()).unwrap(), Integrity::Absent);
    compare(&stopped, &truth);
    drop(stopped);

    // It was only read: etcd goes on with it.
    lab.etcd().start().unwrap();
    let last = lab.etcd().get(&name(411)).unwrap().unwrap();
    assert_eq!(last, value(411, 3));
}

#[test]
fn files_of_the_line_before_are_read_as_todays() {
    let lab = Lab::builder("census etcd 3.5").etcd(Tool::Etcd35).apiservers(0).start().unwrap();
    let truth = write(&lab);
    let path = lab.dir().join("backup.db");
    lab.etcd().snapshot(&path).unwrap();
    let snapshot = open(&path).unwrap();
    assert_eq!(snapshot.check_integrity(|_| ()).unwrap(), Integrity::Verified);
    // It does not say which layout it has.
    assert_eq!(snapshot.store().unwrap().facts().storage_version, None);
    compare_with(&snapshot, &truth, "3.5.0");
    lab.etcd().stop().unwrap();
    compare_with(&open(&db(&lab)).unwrap(), &truth, "3.5.0");
}

#[test]
fn a_db_that_was_left_by_kill_9_holds_what_etcd_had_committed_to_it() {
    let lab = Lab::builder("census killed").apiservers(0).start().unwrap();
    let truth = write(&lab);
    lab.etcd().process().kill9();
    // What is in the log only, a restart puts into the file.
    let (found, _) = read(&open(&db(&lab)).unwrap(), "");
    let written: Vec<_> = truth.changes.iter().filter(|change| change.value.is_some()).collect();
    assert!(found.values().all(|change| written.contains(&change)));
    lab.etcd().start().unwrap();
    lab.etcd().stop().unwrap();
    compare(&open(&db(&lab)).unwrap(), &truth);
}

#[test]
fn a_real_snapshot_that_was_damaged_is_told_or_read_to_its_end() {
    let lab = Lab::builder("census damage").apiservers(0).start().unwrap();
    let truth = write(&lab);
    let path = lab.dir().join("backup.db");
    lab.etcd().snapshot(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let damaged = lab.dir().join("damaged.db");

    for page in 0..whole.len() / 4096 {
        fs::write(&damaged, &whole[..page * 4096]).unwrap();
        let error = open(&damaged).unwrap_err();
        assert!(matches!(error.fault, Fault::Bolt(_)), "{error}");
    }
    // One bit in each page: in its header, in an element, in what these lead to.
    let mut found = 0;
    for (page, at) in (2..whole.len() / 4096).zip([0, 8, 10, 20, 24, 37, 700].into_iter().cycle()) {
        let mut flipped = whole.clone();
        flipped[page * 4096 + at] ^= 1 << (page % 8);
        fs::write(&damaged, flipped).unwrap();
        let snapshot = open(&damaged).unwrap();
        assert_eq!(snapshot.check_integrity(|_| ()).unwrap(), Integrity::Mismatch, "page {page}, byte {at}");
        let Ok(store) = snapshot.store() else {
            found += 1;
            continue;
        };
        let mut revisions = store.revisions(Direction::Descending).unwrap();
        let mut count = 0;
        let ended = loop {
            match revisions.next_item() {
                Ok(Some(_)) => count += 1,
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        assert!(revisions.pages_visited() <= snapshot.database().meta().pages);
        // No revision is lost in silence. But a branch that leads to a page which etcd has left behind, an older copy of
        // the right one, looks sound: etcd keeps no list of free pages, and only the hash tells.
        let leads_elsewhere = at == 24 && whole[page * 4096 + 8] & 1 != 0;
        assert!(
            leads_elsewhere || !ended || count == truth.uncompacted().len(),
            "page {page}, byte {at}: {count}"
        );
        found += usize::from(!ended);
    }
    assert!(found > 100, "{found}");
}
