//! The published schema, and tables of whole plans.

use casemate_census::survey::{Encryption, Entry, Group, Resource, Survey, Tally};
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags, file_hash};
use schemars::schema_for;

use super::answer::Kind as Step;
use super::*;
use crate::census::api::Told;
use crate::cluster::expected::{Expected, Found};
use crate::cluster::look::{FileOf, FileSeen, Looked};
use crate::schemas::assert_published;

#[test]
fn the_published_schema_is_that_of_the_code() {
    assert_published("plan", &schema_for!(Answer));
}

const PLAIN: &str = "  - identity: {}\n";
const LOCAL: &str = "  - secretbox: {keys: [{name: a, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}\n  - identity: {}\n";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn local() -> Encryption {
    Encryption::Local { cipher: "secretbox".into(), key: "a".into() }
}

/// Two servers that run with a file for secrets, and 700 objects; so many servers are absent.
fn sight(providers: &str, stored: Option<Encryption>, absent: usize) -> Sight {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n{providers}"
    );
    let hash = file_hash(text.as_bytes());
    let told = Told { configurations: vec![hash.clone()], ..Told::default() };
    let server = |number: usize| Found {
        name: format!("cp-{number}"),
        url: None,
        is_expected: true,
        told: if number < absent { Err("can't be reached".to_owned()) } else { Ok(told.clone()) },
    };
    let survey = stored.map(|encryption| {
        let mut survey = Survey::default();
        (survey.prefix, survey.live, survey.revision) = ("/registry/".into(), 700, Some(7));
        let resource = Resource { name: "secrets".into(), group: Some(String::new()) };
        let live = Tally { values: 700, bytes: 7000, ..Tally::default() };
        survey.groups.push(Entry { group: Group { resource, encryption }, live, past: Tally::default() });
        survey
    });
    let says = EncryptionConfiguration::read(
        text.as_bytes(),
        ServerFlags { kms_v1: true, ..ServerFlags::default() },
    );
    let of = FileOf { server: None, path: "/a".into() };
    let files = vec![FileSeen { of, hash: Some(hash), says: says.map_err(|error| error.to_string()) }];
    let servers = (0..2).map(server).collect();
    Sight::of(Looked { at: 1, expected: Expected::Named, servers, files, survey }, Duration::ZERO)
}

fn plan(sight: &Sight, wish: &Wish) -> Answer {
    let answer = Answer::of(sight, course(sight, wish), Some(1_000_000), 1_003_000);
    let page = answer.page();
    assert!(!page.contains(KEY), "a key is shown: {page}");
    for step in &answer.steps {
        assert_eq!(step.strands, Vec::<String>::new(), "{page}");
    }
    answer
}

fn kinds(answer: &Answer) -> Vec<Step> {
    answer.steps.iter().map(|step| step.kind).collect()
}

fn kms() -> Wish {
    let endpoint = "unix:///run/kms.sock";
    Wish {
        wanted: Some(Wanted::KmsV2(ServiceName(endpoint.into()))),
        endpoint: Some(Endpoint::parse(endpoint).unwrap()),
        ..Wish::default()
    }
}

/// What is added and removed on the first server by each file that is written.
fn changes(answer: &Answer) -> Vec<String> {
    let of = |diff: &str| {
        let changed = diff.lines().skip(2).filter(|line| line.starts_with(['+', '-']));
        changed.map(str::trim_end).collect::<Vec<_>>().join("\n")
    };
    let diffs = answer.steps.iter().filter_map(|step| step.diffs.first());
    diffs.map(|diff| of(&diff.diff)).collect()
}

#[test]
fn to_a_plugin_everybody_reads_before_anybody_writes() {
    let answer = plan(&sight(PLAIN, Some(Encryption::PlainProtobuf), 0), &kms());
    assert_eq!(
        kinds(&answer),
        [Step::NewKey, Step::Write, Step::Write, Step::Migrate, Step::Prove],
        "{}",
        answer.page()
    );
    assert!(answer.arrives && answer.left.is_empty());
    let (read, write) = (&changes(&answer)[0], &changes(&answer)[1]);
    assert!(read.starts_with("+  - kms:") && !read.contains("\n-"), "{read}");
    assert_eq!(write, "-  - identity: {}\n+  - identity: {}", "plaintext goes behind");
    assert!(
        answer.steps[1].says.contains("key 1 (KMS v2 plugin at unix:///run/kms.sock)"),
        "{}",
        answer.page()
    );
    let migrate = &answer.steps[3];
    assert_eq!((migrate.objects, migrate.growth_bytes, migrate.minutes), (Some(700), Some(7000), Some(1)));
    assert_eq!(migrate.remote_calls, Some(2), "one for each of two servers");
    assert_eq!(answer.exceeds_quota, Some(true));
    assert_eq!(answer.exit(), Exit::No, "etcd would be full");
}

#[test]
fn another_local_key_takes_the_place_of_the_old_one() {
    let wish = Wish { new_key: true, ..Wish::default() };
    let answer = plan(&sight(LOCAL, Some(local()), 0), &wish);
    let all = [Step::NewKey, Step::Write, Step::Write, Step::Migrate, Step::Prove, Step::Write];
    assert_eq!(kinds(&answer), all, "{}", answer.page());
    assert!(answer.arrives && answer.left.is_empty(), "{}", answer.page());
    assert!(changes(&answer)[0].contains("+        secret: (not made yet)"), "{}", answer.page());
    let last = changes(&answer).pop().unwrap();
    assert!(
        last.contains("-        secret: (not shown, sha256 630dcd29)") && !last.contains("\n+"),
        "{last}"
    );
}

#[test]
fn back_to_plaintext_the_key_goes_last() {
    let wish = Wish { wanted: Some(Wanted::Identity), ..Wish::default() };
    let answer = plan(&sight(LOCAL, Some(local()), 0), &wish);
    assert_eq!(kinds(&answer), [Step::Write, Step::Migrate, Step::Prove, Step::Write], "{}", answer.page());
    assert!(answer.arrives && answer.left.is_empty(), "{}", answer.page());
}

#[test]
fn kms_v1_can_be_left_and_is_never_what_is_wanted() {
    let v1 = "  - kms: {apiVersion: v1, name: old, endpoint: unix:///old.sock}\n  - identity: {}\n";
    let seen = sight(v1, Some(Encryption::KmsV1 { provider: "old".into() }), 0);
    let answer = plan(&seen, &Wish::default());
    assert_eq!((kinds(&answer), answer.arrives), (vec![Step::Stop], false), "{}", answer.page());
    let answer = plan(&seen, &kms());
    let kinds = kinds(&answer);
    assert!(answer.arrives && kinds.first() == Some(&Step::NewKey), "{}", answer.page());
    assert_eq!(kinds.last(), Some(&Step::Write), "it leaves: {}", answer.page());
    let calls = answer.steps.iter().filter(|step| step.kind == Step::Migrate).map(|step| step.remote_calls);
    assert_eq!(calls.collect::<Vec<_>>(), [None], "what a KMS v1 plugin does is not known");
}

#[test]
fn without_a_census_the_old_key_stays() {
    let wish = Wish { new_key: true, ..Wish::default() };
    let answer = plan(&sight(LOCAL, None, 0), &wish);
    // Nobody knows whether all of it is under the old one.
    let all = [Step::Migrate, Step::NewKey, Step::Write, Step::Write, Step::Migrate];
    assert_eq!(kinds(&answer), all, "{}", answer.page());
    assert!(answer.arrives && answer.left.len() == 1, "{}", answer.page());
    assert_eq!(answer.steps[4].objects, None);
}

#[test]
fn what_is_absent_is_waited_for_before_anything_is_written_with() {
    let answer = plan(&sight(PLAIN, Some(Encryption::PlainProtobuf), 1), &kms());
    let kinds = kinds(&answer);
    let wait = kinds.iter().position(|kind| *kind == Step::Wait).unwrap();
    let migrate = kinds.iter().position(|kind| *kind == Step::Migrate).unwrap();
    assert!(
        wait < migrate && answer.steps[wait].says.contains("cp-0: is to be reached"),
        "{}",
        answer.page()
    );
    let writes = answer.steps.iter().position(|step| step.says.starts_with("every server writes")).unwrap();
    assert!(wait < writes, "{}", answer.page());
}

#[test]
fn as_it_is_there_is_nothing_to_do() {
    let answer = plan(&sight(LOCAL, Some(local()), 0), &Wish::default());
    assert_eq!((kinds(&answer), answer.arrives), (Vec::new(), true), "{}", answer.page());
    let answer = plan(&sight(LOCAL, Some(Encryption::PlainJson), 0), &Wish::default());
    assert_eq!(kinds(&answer)[0], Step::Migrate, "{}", answer.page());
}

#[test]
fn nothing_is_planned_for_servers_that_nobody_knows() {
    let mut seen = sight(PLAIN, None, 0);
    seen.observed.expected.clear();
    let answer = plan(&seen, &kms());
    assert_eq!((kinds(&answer), answer.arrives, answer.exit()), (vec![Step::Stop], false, Exit::Unknown));
}
