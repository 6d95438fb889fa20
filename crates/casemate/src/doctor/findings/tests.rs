#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use casemate_keyservice::{Class, Failure};
use casemate_kms::admin::status::Document;
use casemate_kms_state::outage::Rules;
use serde_json::json;

use super::*;
use crate::doctor::facts::{
    Access, Answer, ClockFacts, FileFacts, Foreseen, KeyFacts, LedgerFacts, Limits, NoAnswer, ProviderFacts,
    RecordFacts, Role, SealedFacts, SignerFacts, User,
};

const NOW: u64 = 1_800_000_000;
const REGENERATE: &str = "CASEMATE_REGENERATE=1 cargo test -p casemate doctor";

/// What a host shows on which all is well.
pub(in crate::doctor) fn healthy() -> Facts {
    let access = |mode| Access { uid: 0, gid: 0, mode };
    let file = |path: &str, role, mode| FileFacts {
        path: path.into(),
        role,
        needs: if mode & 0o100 != 0 { 7 } else { 4 },
        found: Ok(access(mode)),
        folders: vec![("/etc/casemate-kms".into(), access(0o755)), ("/".into(), access(0o755))],
    };
    Facts {
        now: NOW,
        user: User { uid: 0, gid: 0 },
        files: vec![
            file("/etc/casemate-kms/config.yaml", Role::Configuration, 0o644),
            file("/etc/casemate-kms/ca.pem", Role::Public, 0o644),
            file("/etc/casemate-kms/root.key", Role::Secret, 0o600),
            file("/var/lib/casemate-kms", Role::State, 0o700),
            file("/var/lib/casemate-kms/casemate/ledger", Role::Kept, 0o600),
            file("/run/casemate-kms", Role::Sockets, 0o755),
            file("/var/log/casemate-kms", Role::Log, 0o750),
        ],
        limits: Some(Limits {
            open_files: Some(1024),
            needed_files: 224,
            locked_memory: Some(8 << 20),
            memory: Some(512 << 20),
        }),
        clocks: vec![ClockFacts { whose: "https://bao:8200".into(), ahead: -60 }],
        newest: Some(("/var/lib/casemate-kms/casemate/ledger".into(), NOW)),
        sha256: "00".into(),
        status: Some(Ok(serde_json::from_value(document()).unwrap())),
        admin: Some("unix:///run/admin.sock".into()),
        no_services: None,
        refused_pins: Vec::new(),
        providers: vec![ProviderFacts {
            name: "casemate".into(),
            endpoint: "unix:///run/kms.sock".into(),
            socket: Some(Ok(access(0o600))),
            socket_mode: 0o600,
            barred: None,
            answer: Ok(Answer { key_id: "prod:22".into(), unready: None, problems: Vec::new() }),
            keys: vec![KeyFacts {
                name: "main".into(),
                writes: true,
                observed: Some(Ok("file:aa/2/00".into())),
                opens_once: false,
                wrapped: Some(Ok(())),
                opened: Some(Ok(())),
                is_true: Some(true),
                opens_record: Some(Ok(())),
                absent: Vec::new(),
                running: None,
                failing_since: None,
            }],
            signer: Some(SignerFacts { lineage: "pkcs11:0a".into(), signs: Ok(()) }),
            accepts_unproven: false,
            foreseen: Some(Foreseen { key_id: "prod:22".into(), ..Foreseen::default() }),
            refused: None,
            record: RecordFacts { is_there: true, is_whole: true, created: Some(NOW - 7) },
            ledger: LedgerFacts { last: Some(NOW - 7), ..LedgerFacts::default() },
            recipients: Some(2),
            sealed: Some(SealedFacts { found: Ok(Some((3, 0))), is_beside_its_secret: false }),
            rules: Rules::default(),
        }],
    }
}

fn document() -> serde_json::Value {
    json!({
        "version": "0.1.0", "time": "2027-01-15T08:00:00Z", "audit": null,
        "configuration": {
            "path": "/c.yaml", "sha256": "00", "since": "2027-01-15T08:00:00Z", "reloads": 0, "refused": null,
            "refused_since": null, "not_started": [],
        },
        "providers": [{
            "name": "casemate", "cluster_id": "prod", "epoch": 0, "writing": true, "not_writing_because": null,
            "next_write": null, "candidate": null, "refused_reuse": null, "trouble": null,
            "last_look": "2027-01-15T08:00:00Z", "last_observation": null, "root_keys": [],
            "readable": {"rules": [], "clusters": []}, "ledger": {"entries": 1, "saved": true, "last": []},
            "opened_keks": {"hits": 0, "opened": 0, "joined": 0, "failed": 0, "evicted": 0, "held": 1},
            "requests": [], "connections": {"open": 1, "accepted": 2, "refused_peers": 0, "refused_excess": 0},
        }],
    })
}

fn said(change: impl FnOnce(&mut serde_json::Value)) -> Option<Result<Document, String>> {
    let mut document = document();
    change(&mut document);
    Some(Ok(serde_json::from_value(document).unwrap()))
}

fn failing(class: Class) -> Failure {
    Failure::new(class, "it fails", "mend it")
}

#[test]
fn a_healthy_host_is_no_reason_to_speak() {
    assert_eq!(findings(&healthy()), []);
    // Nor is one without an admin socket, sealed cache or record, or whose limits can't be seen.
    let mut facts = healthy();
    (facts.status, facts.limits, facts.newest) = (None, None, None);
    (facts.providers[0].sealed, facts.providers[0].record) = (None, RecordFacts::default());
    facts.providers[0].keys[0].opens_record = None;
    facts.files[3].found = Err("no such folder: it is made at the first start".into());
    // A FIPS build can't have what it does not ask for.
    facts.providers[0].recipients = None;
    assert_eq!(findings(&facts), []);
}

type Plant = (&'static str, &'static str, fn(&mut Facts));

/// One planted fault each: what is found, what is to be done, and how it is planted.
const PLANTED: &[Plant] = &[
    ("file-missing", "deliver it to this node", |facts| facts.files[2].found = Err("No such file".into())),
    ("file-writable", "chmod go-w /etc/casemate-kms/config.yaml", |facts| mode(facts, 0, 0o664)),
    ("file-writable", "chmod go-w /etc/casemate-kms/ca.pem", |facts| mode(facts, 1, 0o646)),
    ("secret-open", "chmod go-rwx /etc/casemate-kms/root.key", |facts| mode(facts, 2, 0o640)),
    ("state-open", "chmod go-w /var/lib/casemate-kms", |facts| mode(facts, 3, 0o770)),
    ("file-owner", "chown root", |facts| facts.files[0].found = Ok(Access { uid: 7, gid: 7, mode: 0o644 })),
    ("folder-open", "chmod go-w /etc/casemate-kms", |facts| facts.files[0].folders[0].1.mode = 0o777),
    ("file-unreadable", "chown 990 /etc/casemate-kms/root.key", |facts| as_990(facts, &[2])),
    ("file-unreadable", "so that user 990 can enter it", |facts| {
        as_990(facts, &[]);
        facts.files[2].folders[0].1.mode = 0o700;
    }),
    ("state-unwritable", "chown 990 /var/lib/casemate-kms", |facts| as_990(facts, &[3])),
    // Root ran a command there.
    ("state-unwritable", "chown 990 /var/lib/casemate-kms/casemate/ledger", |facts| as_990(facts, &[4])),
    ("state-open", "chmod go-w /var/lib/casemate-kms/casemate/ledger", |facts| mode(facts, 4, 0o666)),
    ("socket-folder", "chown 990 /run/casemate-kms", |facts| as_990(facts, &[5])),
    ("socket-folder", "RuntimeDirectory=", |facts| facts.files[5].found = Err("No such folder".into())),
    ("socket-folder", "so that group 7 can enter it", |facts| {
        let closed = Access { uid: 0, gid: 0, mode: 0o700 };
        facts.providers[0].barred =
            Some((User { uid: u32::MAX, gid: 7 }, "/run/casemate-kms".into(), closed));
    }),
    ("folder-open", "chmod go-w /run/casemate-kms", |facts| mode(facts, 5, 0o775)),
    ("folder-open", "chmod go-w /var/log/casemate-kms", |facts| mode(facts, 6, 0o777)),
    ("audit", "chown 990 /var/log/casemate-kms", |facts| as_990(facts, &[6])),
    ("audit", "audit.path", |facts| facts.files[6].found = Err("No such folder".into())),
    ("limit-files", "raise LimitNOFILE=", |facts| facts.limits.as_mut().unwrap().open_files = Some(100)),
    ("limit-memory", "raise LimitMEMLOCK=", |facts| {
        facts.limits.as_mut().unwrap().locked_memory = Some(65_536)
    }),
    ("limit-cgroup", "raise MemoryMax=", |facts| facts.limits.as_mut().unwrap().memory = Some(16 << 20)),
    ("admin-silent", "start the plugin", |facts| facts.status = Some(Err("nobody listens".into()))),
    ("configuration-refused", "correct the file", |facts| {
        facts.status = said(|document| document["configuration"]["refused"] = "line 3".into());
    }),
    ("configuration-refused", "nothing in the file is to be corrected", |facts| {
        facts.status = said(|document| {
            document["configuration"]["refused"] = "sealedCache changed, which needs a restart".into();
            document["configuration"]["needs_restart"] = true.into();
        });
    }),
    ("configuration-differs", "--config names the file", |facts| facts.sha256 = "11".into()),
    ("provider-not-started", "do what it says", |facts| {
        facts.status =
            said(|document| document["configuration"]["not_started"] = json!([{"name": "b", "why": "no"}]));
    }),
    ("audit", "make room", |facts| {
        facts.status = said(|document| {
            document["audit"] =
                json!({"head": {"seq": 0, "hash": "", "anchor": ""}, "missed": 3, "problem": "a full disk"});
        });
    }),
    ("pkcs11-not-asked", "--plugin", |facts| facts.no_services = Some("there is no program".into())),
    ("pin-refused", "write the right PIN", |facts| facts.refused_pins = vec!["/var/lib/c/pkcs11/a".into()]),
    ("not-served", "start the plugin", |facts| {
        (facts.providers[0].answer, facts.status) = (Err(silence(false)), None);
    }),
    ("not-served", "nobody is let in here", |facts| facts.providers[0].answer = Err(silence(false))),
    ("not-served", "it runs: do what its answer says", |facts| {
        facts.providers[0].answer = Err(silence(true))
    }),
    ("not-served", "see its log", |facts| {
        let answer =
            Answer { key_id: String::new(), unready: None, problems: vec!["the key id is empty".into()] };
        facts.providers[0].answer = Ok(answer);
    }),
    ("unready", "mend what is found of its root keys", |facts| {
        facts.providers[0].answer.as_mut().unwrap().unready = Some("not ok".into());
    }),
    ("not-writing", "casemate kms refresh --wait --admin unix:///run/admin.sock", |facts| {
        facts.status = said(|document| document["providers"][0]["not_writing_because"] = "starting".into());
    }),
    ("socket-open", "chmod 0600 /run/kms.sock", |facts| socket(facts, 0o666)),
    ("socket-mode", "chmod 0600 /run/kms.sock", |facts| socket(facts, 0o660)),
    ("clock", "timedatectl", |facts| facts.providers[0].record.created = Some(NOW + 3600)),
    ("clock", "timedatectl", |facts| facts.providers[0].ledger.last = Some(NOW + 3600)),
    ("clock", "sealed is of a time 3600 s from now", |facts| {
        facts.newest = Some(("/var/lib/casemate-kms/sealed".into(), NOW + 3600));
    }),
    ("clock", "61 s behind that of https://bao:8200", |facts| facts.clocks[0].ahead = 61),
    ("clock", "61 s ahead of that of https://bao:8200", |facts| facts.clocks[0].ahead = -61),
    ("key-unreachable", "mend it", |facts| key(facts).observed = Some(Err(failing(Class::Unreachable)))),
    ("key-unreachable", "asked whether it is there to read with", |facts| {
        (key(facts).writes, key(facts).observed) = (false, Some(Err(failing(Class::Unreachable))));
    }),
    ("key-throttled", "mend it", |facts| key(facts).observed = Some(Err(failing(Class::Throttled)))),
    ("key-credential", "mend it", |facts| key(facts).observed = Some(Err(failing(Class::Credential)))),
    ("key-undecided", "mend it", |facts| key(facts).observed = Some(Err(failing(Class::Undecided)))),
    // One direction alone.
    ("key-refused", "mend it", |facts| key(facts).wrapped = Some(Err(failing(Class::Refused)))),
    ("key-refused", "mend it", |facts| key(facts).opened = Some(Err(failing(Class::Refused)))),
    ("key-corrupt", "mend it", |facts| key(facts).opened = Some(Err(failing(Class::NotOpened)))),
    ("key-corrupt", "do not write with it", |facts| key(facts).is_true = Some(false)),
    ("other-key", "raise `epoch`", |facts| key(facts).opens_record = Some(Err(failing(Class::NotOpened)))),
    ("key-unreachable", "mend it", |facts| key(facts).opens_record = Some(Err(failing(Class::Unreachable)))),
    ("key-differs", "--admin unix:///run/admin.sock` has the plugin look again", |facts| {
        key(facts).running = Some(("refused".into(), "no".into()))
    }),
    ("key-absent", "root key main: keys lists 0a", |facts| key(facts).absent = vec!["0a".into()]),
    ("key-absent", "bring 0a to this node's token", |facts| {
        facts.status = said(|document| {
            document["providers"][0]["root_keys"] = json!([{
                "name": "other", "use": "read", "prefix": "pkcs11:0a", "state": "ok", "version": null, "absent": ["0a"],
                "last_good": null, "failing_since": null, "last_error": null,
            }]);
        });
    }),
    // It was not asked from here.
    ("key-throttled", "as the running plugin sees it: slow down", |facts| {
        (key(facts).observed, key(facts).running) = (None, Some(("throttled".into(), "slow down".into())));
    }),
    ("signer", "mend it", |facts| {
        facts.providers[0].signer.as_mut().unwrap().signs = Err(failing(Class::Credential));
    }),
    ("unproven-origin", "migrate storage", |facts| facts.providers[0].accepts_unproven = true),
    ("rotation-pending", "signer: none before, pkcs11:0a now", |facts| {
        facts.providers[0].foreseen = Some(Foreseen {
            key_id: "prod:33".into(),
            because: vec!["signer: none before, pkcs11:0a now".into()],
            when: Some("60 seconds from now at the latest".into()),
        });
    }),
    ("rotation-pending", "the plugin at this socket", |facts| {
        facts.providers[0].answer =
            Ok(Answer { key_id: "other:1".into(), unready: None, problems: Vec::new() });
    }),
    ("reused", "raise epoch", |facts| facts.providers[0].refused = refused("reuse")),
    ("selection", "raise epoch", |facts| facts.providers[0].refused = refused("not_readable")),
    ("reused", "raise `epoch`", |facts| {
        facts.status = said(|document| {
            document["providers"][0]["refused_reuse"] =
                json!({"key_id": "prod:11", "key_id_hash": "sha256:1"});
        });
    }),
    ("record-damaged", "a restart replaces it", |facts| facts.providers[0].record.is_whole = false),
    ("ledger-damaged", "no older key file", |facts| facts.providers[0].ledger.damaged = vec![2]),
    ("ledger-damaged", "permissions", |facts| facts.providers[0].ledger.unreadable = Some("denied".into())),
    ("ledger-unsaved", "make room", |facts| {
        facts.status = said(|document| document["providers"][0]["ledger"]["saved"] = false.into());
    }),
    ("other-cluster", "alsoAccept", |facts| facts.providers[0].ledger.other_cluster = Some("old".into())),
    ("no-recovery", "casemate recovery new", |facts| facts.providers[0].recipients = Some(0)),
    ("sealed-cache", "start-in-an-outage", |facts| sealed(facts).found = Err("another secret".into())),
    ("sealed-cache", "look at the disk", |facts| sealed(facts).found = Ok(Some((1, 2)))),
    ("sealed-cache", "start-in-an-outage", |facts| {
        facts.status = said(|document| {
            document["providers"][0]["sealed_cache"] =
                json!({"entries": 0, "saved": false, "damaged": 0, "problem": "a full disk"});
        });
    }),
    ("sealed-beside", "LoadCredentialEncrypted=", |facts| sealed(facts).is_beside_its_secret = true),
];

fn silence(is_running: bool) -> NoAnswer {
    NoAnswer { why: "no Status".into(), is_running }
}

fn mode(facts: &mut Facts, file: usize, mode: u32) {
    facts.files[file].found = Ok(Access { uid: 0, gid: 0, mode });
}

fn socket(facts: &mut Facts, mode: u32) {
    facts.providers[0].socket = Some(Ok(Access { uid: 0, gid: 0, mode }));
}

fn key(facts: &mut Facts) -> &mut KeyFacts {
    &mut facts.providers[0].keys[0]
}

fn sealed(facts: &mut Facts) -> &mut SealedFacts {
    facts.providers[0].sealed.as_mut().unwrap()
}

fn refused(class: &str) -> Option<(String, String, String)> {
    Some((class.into(), "it was active before".into(), "raise epoch".into()))
}

/// The plugin runs as user 990, to whom all that it uses belongs but these.
fn as_990(facts: &mut Facts, but: &[usize]) {
    facts.user = User { uid: 990, gid: 990 };
    for place in (2..facts.files.len()).filter(|place| !but.contains(place)) {
        if let Ok(access) = &mut facts.files[place].found {
            (access.uid, access.gid) = (990, 990);
        }
    }
    for place in but {
        facts.files[*place].found.as_mut().unwrap().mode &= 0o755;
    }
}

#[test]
fn what_is_wrong_with_a_folder_of_many_files_is_told_once_and_so_is_a_clock() {
    let mut facts = healthy();
    for file in &mut facts.files[..3] {
        file.folders[0].1.mode = 0o777;
    }
    facts.clocks[0].ahead = 3600;
    facts.providers[0].record.created = Some(NOW + 3600);
    let ids: Vec<&str> = findings(&facts).iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["clock", "folder-open"]);
}

#[test]
fn a_text_that_is_not_taken_over_foretells_no_rotation() {
    let mut facts = healthy();
    facts.providers[0].foreseen = Some(Foreseen { key_id: "prod:33".into(), ..Foreseen::default() });
    facts.sha256 = "11".into();
    let ids = |facts: &Facts| findings(facts).iter().map(|finding| finding.id).collect::<Vec<_>>();
    assert_eq!(ids(&facts), ["configuration-differs"]);
    facts.status = said(|document| document["configuration"]["refused"] = "line 3".into());
    assert_eq!(ids(&facts), ["configuration-refused"]);
}

#[test]
fn each_planted_fault_is_found_alone_with_its_remedy() {
    for (id, remedy, plant) in PLANTED {
        let mut facts = healthy();
        plant(&mut facts);
        let found = findings(&facts);
        let [finding] = &found[..] else { panic!("{id}: {found:?}") };
        let all = format!("{} {}", finding.evidence, finding.remedy);
        assert!(finding.id == *id && all.contains(remedy), "{id}, {remedy}: {finding:?}");
        assert!(!finding.evidence.is_empty() && finding.docs[0].ends_with(&format!("doctor.md#{id}")));
    }
}

#[test]
fn every_kind_is_planted_and_the_worst_come_first() {
    let planted: BTreeSet<&str> = PLANTED.iter().map(|(id, ..)| *id).collect();
    // That one is found before there are facts: tests/it/doctor.rs.
    let kinds: BTreeSet<&str> =
        KINDS.iter().map(|kind| kind.id).filter(|id| *id != "configuration").collect();
    assert_eq!(planted, kinds);
    let mut facts = healthy();
    for (.., plant) in PLANTED {
        plant(&mut facts);
    }
    let found = findings(&facts);
    assert!(found.len() > 10 && found.is_sorted_by_key(|finding| finding.severity), "{found:?}");
}

#[test]
fn the_page_is_what_the_table_says() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let mut page = format!(
        "# What `casemate doctor` finds\n\n<!-- Made from the code: {REGENERATE} -->\n\n\
         `casemate doctor` on a control plane node looks at all of this, says of what it finds what it saw and what to do, and \
         is silent if all is well; `--verbose` lists what is well and what was looked at, and what an outage of the root keys would \
         do now. Exit code 1 \
         if anything was found.\n"
    );
    for Kind { id, severity, means, see, .. } in KINDS {
        let severity = if *severity == Severity::Error { "Error" } else { "Warning" };
        write!(page, "\n## {id}\n\n{severity}. {means} [More]({see}).\n").unwrap();
        let file = docs.join(see.split('#').next().unwrap());
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if let Some((_, anchor)) = see.split_once('#') {
            let anchors = text.lines().filter(|line| line.starts_with('#')).map(anchor_of);
            assert!(anchors.into_iter().any(|found| found == anchor), "{id}: there is no {see}");
        }
    }
    let path = docs.join("doctor.md");
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/reference/doctor.md is not what the code says; run `{REGENERATE}`");
}

/// As GitHub makes them.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
