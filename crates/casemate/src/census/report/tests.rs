use std::fs;
use std::path::Path;

use casemate_census::answers::{self, Given, Source};
use casemate_census::policy::Policy;
use casemate_census::survey::{Key, Survey};
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};
use casemate_report::Tone;
use serde_json::{Value, json};

use super::super::answer::{Configuration, Failed, FileAnswer};
use super::super::scan::{Checksum, Scanned};
use super::*;

const DAY: u64 = 24 * 60 * 60;
const NOW: u64 = 1_796_100_000;
const LINEAGE: &str = "file:4f1c2a9be0d34876/2/9a7c31f0d2b84e55";

fn made() -> Made {
    let command = "casemate census snapshot 'to day.db' --html report.html".to_owned();
    Made { at: NOW, command, version: "0.1.0", needs: Some("aescbc:key1".to_owned()) }
}

fn group(resource: &str, group: &str, encryption: Value, live: u64, past: u64) -> Value {
    let annotations = if encryption["record"].is_null() { 0 } else { 271 };
    let tally = |values: u64| {
        json!({"values": values, "bytes": values * 900, "annotation_bytes": values * annotations, "oldest": 20,
            "newest": 90, "examples": [format!("/registry/{resource}/default/one")]})
    };
    json!({"resource": {"name": resource, "group": group}, "encryption": encryption, "live": tally(live),
        "past": tally(past)})
}

fn kms(provider: &str, key_id: &str, days: Option<u64>) -> Value {
    let record = days.map(|days| {
        json!({"cluster": "prod-east", "local_kek": format!("{days:064x}"), "created": NOW - days * DAY,
            "roots": [LINEAGE], "recovery": ["09".repeat(32)]})
    });
    json!({"kind": "kms_v2", "provider": provider, "key_id": key_id, "dek_source": "seed", "record": record,
        "faults": []})
}

fn local(cipher: &str, key: &str) -> Value {
    json!({"kind": "local", "cipher": cipher, "key": key})
}

fn survey(groups: &[Value]) -> Survey {
    let sum =
        |standing: &str| groups.iter().map(|group| group[standing]["values"].as_u64().unwrap()).sum::<u64>();
    let survey = json!({"prefix": "/registry", "revision": 184_223, "compacted": 183_000, "live": sum("live"), "deleted": 3,
        "past": sum("past"), "outside": 12, "outside_encrypted": 0, "groups": groups, "ungrouped": 0, "malformed": []});
    serde_json::from_value(survey).unwrap()
}

/// A cluster in the middle of a migration.
fn mixed() -> Survey {
    let plain = || json!({"kind": "plain_protobuf"});
    survey(&[
        group("secrets", "", plain(), 12, 0),
        group("secrets", "", local("aescbc", "key1"), 64, 9),
        group(
            "secrets",
            "",
            kms("casemate", "prod-east:f8d21c69392bf74b32fe4bb4186e80a1", Some(3)),
            1480,
            230,
        ),
        group("secrets", "", kms("casemate", "prod-east:1c40d5a7e5b18f3b7e09a3aab6b7d9f2", Some(75)), 212, 0),
        group("secrets", "", kms("casemate", "prod-east:1c40d5a7e5b18f3b7e09a3aab6b7d9f2", Some(410)), 18, 0),
        group(
            "configmaps",
            "",
            kms("casemate", "prod-east:f8d21c69392bf74b32fe4bb4186e80a1", Some(3)),
            420,
            12,
        ),
        group("configmaps", "", plain(), 61, 0),
        group("widgets", "example.com", kms("other-plugin", "1", None), 33, 0),
        group("events", "", plain(), 18_223, 911),
        group("pods", "", plain(), 1204, 310),
        group("leases", "coordination.k8s.io", plain(), 96, 4012),
        group("deployments", "apps", plain(), 318, 20),
    ])
}

fn config() -> EncryptionConfiguration {
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
                - resources: [secrets, configmaps]\n  providers:\n  \
                - kms: {apiVersion: v2, name: casemate, endpoint: 'unix:///a'}\n  \
                - aescbc: {keys: [{name: key1, secret: BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=}]}\n  - identity: {}\n";
    EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap()
}

const POLICY: &str = "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n- resources: [secrets]\n  \
                      allow: [kms:v2]\n  maxKeyAge: 90d\n";

fn file(name: &str, survey: Survey) -> FileAnswer {
    let sha256 = Some("c0".repeat(32));
    Scanned { file: name.to_owned(), bytes: 48_779_296, checksum: Checksum::Verified, sha256, survey }.into()
}

fn answer(files: Vec<FileAnswer>) -> Answer {
    Answer {
        files,
        failed: Vec::new(),
        encryption_config: None,
        needs: None,
        needs_unclear: Vec::new(),
        may_go: None,
    }
}

/// With all questions asked.
fn asked(name: &str, survey: Survey, key: &str) -> Answer {
    let key: Key = key.parse().unwrap();
    let sources = [Source { name, survey: &survey }];
    let config = config();
    let given = [Key::KmsV2("casemate".to_owned())];
    let mut of_it = file(name, survey.clone());
    of_it.against = Some(answers::against(&config, &survey));
    of_it.closed = Some(answers::closed(Given { config: None, keys: &given }, &survey));
    of_it.policy = Some(Policy::parse(POLICY).unwrap().judge(&survey, NOW));
    Answer {
        encryption_config: Some(Configuration {
            file: "/etc/kubernetes/encryption.yaml".to_owned(),
            hash: "sha256:6b1c…".to_owned(),
        }),
        needs: Some(answers::needs(&key, &sources)),
        needs_unclear: answers::unclear(&key, &sources),
        may_go: Some(answers::may_go(&key, &sources, Some(&config))),
        ..answer(vec![of_it])
    }
}

#[test]
fn the_pages_and_gauges_are_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/census/report/examples");
    let mixed = asked("to day.db", mixed(), "aescbc:key1");
    for (name, made) in [
        ("asked.html", page(&mixed, &made()).html()),
        ("asked.prom", metrics::metrics(&mixed, &made()).text()),
    ] {
        let path = folder.join(name);
        if std::env::var_os("CASEMATE_REGENERATE").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &made).unwrap();
        }
        assert!(
            fs::read_to_string(&path).unwrap_or_default() == made,
            "{name} is another; look at it after `CASEMATE_REGENERATE=1 cargo test -p casemate --lib census::report`"
        );
    }
}

#[test]
fn the_verdict_is_the_worst_of_what_was_found_in_words() {
    let plain = || json!({"kind": "plain_protobuf"});
    let secrets = |encryption: Value, live| group("secrets", "", encryption, live, 0);
    let ours = |days| kms("casemate", "prod-east:1", Some(days));
    let bare = |groups: &[Value]| answer(vec![file("a.db", survey(groups))]);
    let verdict = |answer: &Answer| {
        let verdict = verdict::verdict(answer, &made());
        assert!(verdict.reasons.iter().all(|(tone, _)| *tone <= verdict.tone.max(Tone::Plain)));
        (verdict.tone, verdict.headline)
    };
    let unread = Answer {
        failed: vec![Failed { file: "b.db".to_owned(), error: "b.db: is empty".to_owned() }],
        ..bare(&[secrets(ours(3), 1)])
    };
    for (answer, tone, says) in [
        (
            bare(&[secrets(plain(), 1), secrets(ours(3), 1999)]),
            Tone::Bad,
            "1 of 2\u{202f}000 Secrets is stored in plaintext",
        ),
        (bare(&[secrets(ours(3), 3)]), Tone::Good, "All 3 Secrets are encrypted"),
        (bare(&[group("pods", "", plain(), 3, 0)]), Tone::Plain, "There is no Secret"),
        (
            answer(vec![file("a.db", survey(&[secrets(ours(3), 3)])), file("b.db", mixed())]),
            Tone::Bad,
            "1 of 2 files hold",
        ),
        (
            answer(["a.db", "b.db"].map(|name| file(name, survey(&[secrets(ours(3), 3)]))).into()),
            Tone::Good,
            "The Secrets of every file are encrypted",
        ),
        (answer(Vec::new()), Tone::Plain, "Nothing was read"),
        (unread, Tone::Open, "1 file could not be read"),
        (asked("a.db", survey(&[secrets(ours(3), 3)]), "aescbc:key1"), Tone::Good, "All that was asked"),
        (
            asked("a.db", survey(&[secrets(ours(3), 3)]), "kms:v2:casemate"),
            Tone::Bad,
            "must stay: 3 objects are under it",
        ),
        (
            asked("a.db", survey(&[secrets(ours(91), 1)]), "aescbc:key1"),
            Tone::Bad,
            "not kept: 1 object is not as it wants",
        ),
        (
            asked("a.db", survey(&[group("configmaps", "", plain(), 2, 0)]), "aescbc:key1"),
            Tone::Bad,
            "2 objects in plaintext",
        ),
    ] {
        let found = verdict(&answer);
        assert!(found.0 == tone && found.1.contains(says), "{says}: {found:?}");
    }
}

#[test]
fn files_beside_each_other() {
    let files = (0..10).map(|number| file(&format!("{number}.db"), mixed())).collect();
    let html = page(&answer(files), &made()).html();
    for says in [
        "10 of 10 files hold Secrets in plaintext",
        "Which file needs which key",
        "What 7.db holds",
        "2 files are told of in the answers only",
    ] {
        assert!(html.contains(says), "{says}");
    }
    assert!(!html.contains("What 8.db holds"));
}

#[test]
fn however_many_names_there_are_a_report_is_bounded() {
    let groups: Vec<Value> = (0..4000)
        .map(|number| {
            let encryption = kms(&format!("plugin-{number}"), &format!("id-{number}"), Some(number));
            group(&format!("resource{number}"), "", encryption, 1 + number % 7, 1)
        })
        .collect();
    let answer = asked("a.db", survey(&groups), "kms:v2:plugin-1");
    let text = metrics::metrics(&answer, &made()).text();
    assert!(text.lines().count() < 1000, "{} lines", text.lines().count());
    let objects = text.lines().filter(|line| line.starts_with("casemate_census_objects{"));
    let sum: u64 = objects.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, answer.files[0].survey.live);
    assert!(text.contains("resource=\"(others)\""));
    let html = page(&answer, &made()).html();
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    assert!(html.contains("3\u{202f}981 other resources") && html.contains("other ways"));
}

#[test]
fn a_command_line_is_quoted_for_a_shell() {
    for (word, shown) in [
        ("--may-go", "--may-go"),
        ("aescbc:key1", "aescbc:key1"),
        ("to day.db", "'to day.db'"),
        ("it's", r"'it'\''s'"),
        ("", "''"),
        ("$(id)", "'$(id)'"),
    ] {
        assert_eq!(quoted(word), shown);
    }
}

#[test]
fn times_that_are_none_are_told() {
    assert_eq!(moment(NOW), "2026-12-01 04:40:00 UTC");
    assert_eq!(moment(u64::MAX), "18446744073709551615 s after 1970");
}

/// The table of the reference is that of the code.
#[test]
fn every_gauge_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/census-metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let mut table = "| gauge | labels | what it tells |\n|---|---|---|\n".to_owned();
    for (name, labels, help) in metrics::metrics(&answer(Vec::new()), &made()).described() {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        table += &format!("| `{name}` | {} | {help} |\n", labels.join(", "));
    }
    const BEGIN: &str = "<!-- made from the code -->\n";
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once("<!-- end -->").expect("the place ends");
    let made = format!("{before}{BEGIN}{table}<!-- end -->{after}");
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        made,
        "run `CASEMATE_REGENERATE=1 cargo test -p casemate --lib census::report`"
    );
}
