//! The adversary: changes a log with and without computing the chain anew.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::audit::format::{Event, PeerIds, Reason, Shortened, render};

const LINES: u64 = 40;

fn key() -> CheckpointKey {
    CheckpointKey::of_text("0b".repeat(32).as_bytes()).unwrap()
}

fn call(seq: u64) -> Event {
    Event::Call(super::super::format::Call {
        time: Timestamp::UNIX_EPOCH,
        provider: "casemate".into(),
        method: "Encrypt",
        uid: Some(Shortened::new(&format!("uid-{seq}"), 64)),
        peer: PeerIds { pid: Some(1), uid: Some(0) },
        key_id: None,
        outcome: "OK",
        duration_us: seq,
        root_key_asked: None,
    })
}

fn checkpoint(key: Option<&CheckpointKey>) -> Event {
    Event::Checkpoint { reason: Reason::Count, mac_key: key.map(CheckpointKey::name) }
}

/// Lines with their ends, and the head. Every tenth is a checkpoint.
fn log_of(start: Head, lines: u64, salt: u64, key: Option<&CheckpointKey>) -> (Vec<Vec<u8>>, Head) {
    let mut head = start;
    let rendered = (1..=lines).map(|number| {
        let time = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(head.seq).unwrap());
        let event = if number % 10 == 0 { checkpoint(key) } else { call(number + salt) };
        let line = render(&head, time, &event, key);
        head = line.head;
        line.bytes
    });
    (rendered.collect(), head)
}

fn log() -> (Vec<Vec<u8>>, Head) {
    log_of(Head::EMPTY, LINES, 0, Some(&key()))
}

/// What anybody can do who writes the file: give each line the number, link and hash that the chain wants.
fn recompute(lines: &[Vec<u8>], keep_macs: bool) -> Vec<Vec<u8>> {
    let mut head = Head::EMPTY;
    let compute = |line: &Vec<u8>| {
        let mut value: serde_json::Value = serde_json::from_slice(line).unwrap();
        let object = value.as_object_mut().unwrap();
        object.remove("hash");
        let mac = object.remove("mac").filter(|_| keep_macs);
        object["seq"] = (head.seq + 1).into();
        object["prev"] = head.hash.to_string().into();
        let mut body = serde_json::to_string(&value).unwrap();
        if let Some(mac) = mac {
            body.truncate(body.len() - 1);
            body += &format!(",\"mac\":{mac}}}");
        }
        let hash = Hash(casemate_keys::names::sha256(body.as_bytes()));
        head = Head { seq: head.seq + 1, hash };
        body.truncate(body.len() - 1);
        format!("{body},\"hash\":\"{hash}\"}}\n").into_bytes()
    };
    lines.iter().map(compute).collect()
}

fn verify(files: &[Vec<Vec<u8>>], head: Option<Head>, key: Option<CheckpointKey>) -> Report {
    let mut verifier = Verifier::new(head, key);
    for (number, lines) in files.iter().enumerate() {
        verifier.file(&format!("file-{number}"));
        feed(&mut verifier, &lines.concat());
    }
    verifier.finish()
}

fn feed(verifier: &mut Verifier, bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => verifier.line(line),
            None => verifier.torn_line(),
        }
    }
}

fn kinds(report: &Report) -> Vec<(Kind, u64)> {
    report.findings.iter().map(|finding| (finding.kind, finding.line)).collect()
}

#[test]
fn a_log_as_it_was_written_is_whole() {
    let (lines, head) = log();
    let report = verify(&[lines[..15].to_vec(), lines[15..].to_vec()], Some(head), Some(key()));
    assert_eq!((report.finding_count, report.notes.len()), (0, 0), "{report:?}");
    assert_eq!((report.lines, report.calls), (LINES, LINES - LINES / 10));
    assert_eq!((report.anchored_to, report.authenticated_to), (Some(LINES), Some(LINES)));
    assert_eq!((report.first_seq, report.last), (Some(1), Some(head)));

    // Older heads stay good.
    let (longer, _) = log_of(head, 5, 0, Some(&key()));
    let report = verify(&[lines, longer], Some(head), None);
    assert_eq!((report.finding_count, report.anchored_to), (0, Some(LINES)));
    assert_eq!(report.authenticated_to, None);
}

#[test]
fn an_edit_is_found_where_it_is() {
    let (mut lines, head) = log();
    let text = String::from_utf8(lines[11].clone()).unwrap();
    lines[11] = text.replace("uid-12", "uid-99").into_bytes();
    let report = verify(&[lines[..10].to_vec(), lines[10..].to_vec()], Some(head), None);
    assert_eq!(kinds(&report), [(Kind::Edited, 2)]);
    assert_eq!((report.findings[0].file.as_str(), report.findings[0].seq), ("file-1", Some(12)));
    assert_eq!(report.anchored_to, None);
}

#[test]
fn an_edit_with_its_own_hash_made_new_breaks_the_link_behind_it() {
    let (lines, _) = log();
    let mut edited = lines.clone();
    let start = Line::parse(lines[10].trim_ascii_end()).unwrap().head().unwrap();
    edited[11] = render(&start, Timestamp::UNIX_EPOCH, &call(99), None).bytes;
    assert_eq!(kinds(&verify(&[edited], None, None)), [(Kind::Spliced, 13)]);
}

#[test]
fn removed_lines_and_files_are_found() {
    let (lines, head) = log();
    let report = verify(&[lines[..10].to_vec(), lines[13..].to_vec()], Some(head), None);
    assert_eq!(kinds(&report), [(Kind::Removed, 1)]);
    assert!(report.findings[0].detail.contains("lines 11 to 13"));
    // Of the beginning nobody can tell but that it is not there: that is how old files go.
    let report = verify(&[lines[13..].to_vec()], Some(head), Some(key()));
    assert_eq!((report.finding_count, report.notes.len(), report.anchored_to), (0, 1, Some(LINES)));
}

#[test]
fn reordered_and_doubled_lines_are_found() {
    let (mut lines, _) = log();
    lines.swap(20, 21);
    let found = kinds(&verify(&[lines.clone()], None, None));
    assert_eq!(found, [(Kind::Removed, 21), (Kind::Reordered, 22), (Kind::Removed, 23)]);
    let (mut lines, _) = log();
    lines.insert(5, lines[4].clone());
    assert_eq!(kinds(&verify(&[lines], None, None)), [(Kind::Reordered, 6)]);
}

#[test]
fn spliced_logs_are_found() {
    let (ours, head) = log();
    let (other, _) = log_of(Head::EMPTY, LINES, 1000, Some(&key()));
    let report = verify(&[ours[..20].to_vec(), other[20..].to_vec()], Some(head), Some(key()));
    assert_eq!(kinds(&report), [(Kind::Spliced, 1), (Kind::AnotherHead, 20)]);
    // Checkpoints of the other log are good, but prove nothing of ours.
    assert_eq!((report.authenticated_to, report.anchored_to), (Some(20), None));
    // Without an anchor too.
    assert_eq!(
        kinds(&verify(&[ours[..20].to_vec(), other[20..].to_vec()], None, None)),
        [(Kind::Spliced, 1)]
    );
    // Another log as a whole begins anew.
    assert_eq!(kinds(&verify(&[ours, other], None, None)), [(Kind::NewChain, 1)]);
}

#[test]
fn a_log_computed_anew_is_found_with_the_head_or_the_key_alone() {
    let (lines, head) = log();
    let mut without_one = lines.clone();
    without_one.remove(11);
    let forged = recompute(&without_one, true);
    assert_eq!(
        kinds(&verify(std::slice::from_ref(&forged), None, None)),
        [],
        "nothing can find this without an anchor"
    );
    assert_eq!(
        kinds(&verify(std::slice::from_ref(&forged), Some(head), None)),
        [(Kind::Truncated, LINES - 1)]
    );
    // A head of a line in the middle, too.
    let middle = Line::parse(lines[30].trim_ascii_end()).unwrap().head();
    assert_eq!(kinds(&verify(std::slice::from_ref(&forged), middle, None)), [(Kind::AnotherHead, 31)]);
    let found = verify(&[forged], None, Some(key()));
    assert!(found.findings.iter().all(|finding| finding.kind == Kind::Checkpoint));
    assert_eq!((found.finding_count, found.authenticated_to), (4, None));
    // Without its checkpoints' MACs, and with another key.
    assert_eq!(verify(&[recompute(&lines, false)], None, Some(key())).finding_count, 4);
    let other = CheckpointKey::of_text("0c".repeat(32).as_bytes()).unwrap();
    let report = verify(&[lines], None, Some(other));
    assert!(report.findings[0].detail.contains("another key"));
}

#[test]
fn a_log_without_checkpoints_is_found_with_the_key() {
    let (lines, _) = log_of(Head::EMPTY, 4000, 0, Some(&key()));
    let is_call = |line: &&Vec<u8>| !String::from_utf8_lossy(line).contains("checkpoint");
    let calls: Vec<Vec<u8>> = lines.iter().filter(is_call).cloned().collect();
    assert_eq!(kinds(&verify(&[recompute(&calls, false)], None, Some(key()))), [(Kind::Checkpoint, 2000)]);
}

#[test]
fn truncation_is_found_with_the_head_alone() {
    let (lines, head) = log();
    assert_eq!(kinds(&verify(&[lines[..30].to_vec()], Some(head), None)), [(Kind::Truncated, 30)]);
    assert_eq!(kinds(&verify(&[Vec::new()], Some(head), None)), [(Kind::Truncated, 0)]);
    let report = verify(&[lines[..30].to_vec()], None, Some(key()));
    assert_eq!((report.finding_count, report.authenticated_to), (0, Some(30)));
    let early = Line::parse(lines[3].trim_ascii_end()).unwrap().head();
    assert_eq!(kinds(&verify(&[lines[10..].to_vec()], early, None)), [(Kind::HeadNotCovered, LINES - 10)]);
    assert_eq!(kinds(&verify(&[[&lines[..3], &lines[4..]].concat()], early, None)).len(), 2);
}

#[test]
fn a_torn_line_is_found() {
    let (mut lines, head) = log();
    let last = lines.last_mut().unwrap();
    last.truncate(last.len() - 1);
    assert_eq!(kinds(&verify(&[lines], Some(head), None)), [(Kind::Torn, 40), (Kind::Truncated, 40)]);
}

#[test]
fn gaps_count_and_clocks_that_go_back_do_not() {
    let mut head = Head::EMPTY;
    let mut lines = Vec::new();
    let gap = Event::Gap { missed: 7, queue_full: 3, not_written: 4 };
    for (second, event) in [(100, call(1)), (86_500, call(2)), (50, call(3)), (60, gap)] {
        let time = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        let line = render(&head, time, &event, None);
        head = line.head;
        lines.push(line.bytes);
    }
    let report = verify(&[lines], Some(head), None);
    assert_eq!((kinds(&report), report.missed), (vec![(Kind::Gap, 4)], 7));
    assert_eq!(report.anchored_to, Some(4), "a gap is no change");
    assert_eq!(report.notes.len(), 1);
    assert!(report.notes[0].detail.contains("set back"), "{}", report.notes[0].detail);
}

#[test]
fn findings_are_bounded() {
    let mut verifier = Verifier::new(None, None);
    verifier.file("noise");
    for _ in 0..MAX_FINDINGS + 5 {
        verifier.line(b"x");
    }
    let report = verifier.finish();
    assert_eq!((report.findings.len(), report.finding_count), (MAX_FINDINGS, 205));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_changed_byte_is_found_with_the_head(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let (lines, head) = log();
        let mut bytes = lines.concat();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        let mut verifier = Verifier::new(Some(head), None);
        verifier.file("changed");
        feed(&mut verifier, &bytes);
        let report = verifier.finish();
        prop_assert!(report.finding_count > 0);
        prop_assert_eq!(report.anchored_to, None);
    }

    #[test]
    fn any_line_left_out_and_any_end_cut_off_is_found_with_the_head(
        out in 0..LINES as usize,
        cut in 1_usize..2000,
        anew in any::<bool>(),
    ) {
        // Old files go from the beginning, and that is no finding.
        prop_assume!(anew || out > 0);
        let (mut lines, head) = log();
        lines.remove(out);
        let forged = if anew { recompute(&lines, true) } else { lines };
        prop_assert!(verify(&[forged], Some(head), None).finding_count > 0);

        let (lines, head) = log();
        let bytes = lines.concat();
        let mut verifier = Verifier::new(Some(head), None);
        verifier.file("cut");
        feed(&mut verifier, &bytes[..bytes.len() - cut.min(bytes.len())]);
        prop_assert!(verifier.finish().finding_count > 0);
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut verifier = Verifier::new(None, Some(key()));
        verifier.file("noise");
        feed(&mut verifier, &bytes);
        let _ = verifier.finish();
    }
}
