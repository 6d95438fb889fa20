//! The published schema, and how it looks.
use std::fs;
use std::path::Path;
use std::time::Duration;

use schemars::schema_for;

use super::answer::{Answer, EntryAnswer, HeldAnswer, KeyIdAnswer, Pace, Phase, ServerAnswer, StoredAnswer};
use super::page::page;
use crate::output::Exit;
use crate::schemas::assert_published;

#[test]
fn the_published_schema_is_that_of_the_code() {
    assert_published("status", &schema_for!(Answer));
}

fn server(name: &str, lag: Option<&str>) -> ServerAnswer {
    ServerAnswer {
        server: name.to_owned(),
        url: Some(format!("https://{name}:6443")),
        is_expected: true,
        loaded: Some(format!("sha256:4f2a91c3{}", "0".repeat(56))),
        file: Some("/etc/kubernetes/encryption.yaml".to_owned()),
        file_hash: None,
        key_ids: vec![KeyIdAnswer {
            provider: "2_secrets".to_owned(),
            hash: format!("sha256:ab12cd34{}", "0".repeat(56)),
            key_id: None,
            seconds: 720,
        }],
        lag: lag.map(str::to_owned),
    }
}

fn stored(under: &str, key_id: Option<&str>, is_current: bool, objects: u64) -> StoredAnswer {
    StoredAnswer {
        under: under.to_owned(),
        key_id: key_id.map(str::to_owned),
        is_current,
        objects,
        revisions: 0,
    }
}

/// Of 2000 objects, so many are stored as they are written now.
fn answer(current: u64) -> Answer {
    let (old, new) = ("key 1 (KMS v2 plugin casemate)", "key 2 (KMS v2 plugin 2_secrets)");
    let found =
        [stored(old, Some("v1:6f1c"), false, 2000 - current), stored(new, Some("v1:9b07"), true, current)];
    let is_done = current == 2000;
    let held = HeldAnswer {
        key: old.to_owned(),
        by: vec![format!("secrets, configmaps: {} objects", 2000 - current)],
    };
    Answer {
        phase: if is_done { Phase::Done } else { Phase::Migrate },
        says: match is_done {
            true => "everything is as it is wanted".to_owned(),
            false => "to be written anew: secrets, configmaps; casemate migrate does it".to_owned(),
        },
        write_key: Some(new.to_owned()),
        objects: Some(2000),
        current: Some(current),
        percent: Some(current / 20),
        rate: None,
        eta_seconds: (!is_done).then_some((2000 - current).div_ceil(300)),
        revision: Some(4711),
        entries: vec![EntryAnswer {
            resources: "secrets, configmaps".to_owned(),
            writer: new.to_owned(),
            stored: found.into_iter().filter(|stored| stored.objects > 0).collect(),
        }],
        servers_by: "leases".to_owned(),
        servers: vec![server("cp-1", None), server("cp-2", None), server("cp-3", None)],
        held: if is_done { Vec::new() } else { vec![held] },
        unreadable: Vec::new(),
        open: Vec::new(),
    }
}

fn shown(name: &str, answer: &Answer) {
    let page = page(answer);
    for line in page.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line.trim_end(), line);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/status/pages/{name}.txt"));
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        page,
        "{name}: look at it, then CASEMATE_REGENERATE=1"
    );
}

#[test]
fn it_looks_like_this_at_0_37_and_100_percent() {
    shown("0", &answer(0));
    shown("37", &answer(740).with_pace(Some(512)));
    shown("100", &answer(2000));
}

#[test]
fn what_holds_it_up_is_named() {
    let mut answer = answer(740);
    answer.phase = Phase::Wait;
    answer.says = "waits for cp-2, cp-3".to_owned();
    answer.servers[1] =
        server("cp-2", Some("has not loaded its file yet: it does within a minute, if it can"));
    answer.servers[2] = ServerAnswer {
        loaded: None,
        key_ids: Vec::new(),
        ..server(
            "cp-3",
            Some(
                "can't be reached (connection refused): check address and network; kubectl with the same flags fails alike",
            ),
        )
    };
    answer.unreadable = vec![stored("secrets: kms:v2:gone under key id x", None, false, 3)];
    answer.open = vec![
        "how objects are stored: a census of etcd tells, with --etcd-endpoints or --etcd-detect".to_owned(),
    ];
    shown("held", &answer);
    assert_eq!(answer.exit(), Exit::Unknown);
}

#[test]
fn only_all_of_it_proven_is_a_yes() {
    assert_eq!(answer(2000).exit(), Exit::Yes);
    assert_eq!(answer(1999).exit(), Exit::No);
    let open = Answer { open: vec!["something".to_owned()], ..answer(2000) };
    assert_eq!(open.exit(), Exit::Unknown);
    let uncounted = Answer { percent: None, ..answer(2000) };
    assert_eq!(uncounted.exit(), Exit::Unknown);
    let unreadable = Answer { unreadable: vec![stored("x", None, false, 1)], ..answer(2000) };
    assert_eq!(unreadable.exit(), Exit::No);
}

#[test]
fn a_rate_is_of_the_last_looks() {
    let mut pace = Pace::default();
    let mut at = |seconds: u64, current: u64| pace.add(&(current, 1000), Duration::from_secs(seconds));
    assert_eq!(at(0, 100), None);
    assert_eq!(at(10, 600), Some(50));
    assert_eq!(at(20, 600), Some(25));
    assert_eq!(at(30, 0), None, "it began anew");
    assert_eq!(at(40, 10), Some(1));
}
