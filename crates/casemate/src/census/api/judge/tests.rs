//! A table: what was seen, and what follows.
use super::super::answer::{Class, KeyIdClass};
use super::super::metrics::{Instance, KeyIdUse};
use super::*;

const KMS: &str = "k8s:enc:kms:v2:ours:";

fn server(configuration: &str, key_ids: Vec<KeyIdUse>) -> ServerAnswer {
    ServerAnswer {
        server: "https://a".into(),
        instance: Some(Instance { started: Some(1.0), id_hash: None }),
        error: None,
        configurations: [configuration]
            .iter()
            .filter(|hash| !hash.is_empty())
            .map(|hash| (*hash).into())
            .collect(),
        configuration_matches: None,
        limits: of_server(true),
        key_ids,
        dek_sources: Default::default(),
        operations: Vec::new(),
    }
}

fn key_id(id: &str, status: f64) -> KeyIdUse {
    KeyIdUse {
        provider: "ours".into(),
        hash: file_hash(id.as_bytes()),
        last_status: Some(status),
        ..KeyIdUse::default()
    }
}

fn secrets(stored: &[(&str, u64, u64)], expected: Option<&str>) -> ResourceAnswer {
    let class = |(name, at_least, at_most): &(&str, u64, u64)| Class {
        name: (*name).into(),
        bounds: Bounds { at_least: *at_least, at_most: *at_most },
    };
    let local =
        |(name, ..): &&(&str, u64, u64)| !name.starts_with("k8s:") && *name != IDENTITY && *name != UNCOVERED;
    ResourceAnswer {
        resource: "secrets".into(),
        error: None,
        limits: of_objects(10, 10),
        server: "https://a".into(),
        objects: 10,
        listed: 10,
        read: 10,
        untold: 0,
        silences: Vec::new(),
        gone: 0,
        unreadable: Vec::new(),
        others: 0,
        expected: expected.map(Into::into),
        stored: stored.iter().filter(|one| !local(one)).map(class).collect(),
        local_keys: stored.iter().filter(local).map(class).collect(),
        key_ids: Vec::new(),
    }
}

fn verdict_of(
    mut servers: Vec<ServerAnswer>,
    resources: &[ResourceAnswer],
    given: &Given<'_>,
) -> (Verdict, String) {
    let judged = judge(&mut servers, resources, given);
    let verdict = verdict(&judged, &servers, resources, !resources.is_empty());
    let told = [judged.findings, judged.open].concat();
    (verdict, told.into_iter().map(|statement| statement.text).collect::<Vec<_>>().join("\n"))
}

#[test]
fn objects_are_judged_by_their_bounds() {
    let aescbc = "k8s:enc:aescbc:v1:";
    let writes_key2 = Some("k8s:enc:aescbc:v1:key2:");
    for (stored, expected, verdict, says) in [
        (vec![(KMS, 10, 10)], None, Verdict::NothingAgainst, ""),
        (
            vec![(KMS, 7, 7), (IDENTITY, 3, 3)],
            None,
            Verdict::Finding,
            "at least 3 of the 10 objects that were read are in plaintext",
        ),
        (vec![(KMS, 7, 10), (IDENTITY, 0, 3)], None, Verdict::Partly, "at most 3 of the 10"),
        (vec![(UNCOVERED, 10, 10)], None, Verdict::Finding, "encrypts nothing of this resource"),
        (vec![(UNCOVERED, 10, 10)], Some(""), Verdict::NothingAgainst, ""),
        (vec![(IDENTITY, 10, 10)], Some(""), Verdict::NothingAgainst, ""),
        (vec![(IDENTITY, 1, 1), (KMS, 9, 9)], Some(KMS), Verdict::Finding, "in plaintext"),
        (
            vec![(KMS, 10, 10)],
            Some("k8s:enc:kms:v2:others:"),
            Verdict::Finding,
            "not what a write would store",
        ),
        (vec![(aescbc, 10, 10), ("key2:", 10, 10)], writes_key2, Verdict::NothingAgainst, ""),
        (vec![(aescbc, 10, 10), ("key1:", 1, 1)], writes_key2, Verdict::Finding, "local key key1"),
        (vec![(aescbc, 10, 10), ("key1:", 0, 2)], writes_key2, Verdict::Partly, "local key key1"),
    ] {
        let (found, said) =
            verdict_of(vec![server("", vec![])], &[secrets(&stored, expected)], &Given::default());
        assert_eq!(found, verdict, "{stored:?}: {said}");
        assert!(said.contains(says), "{stored:?}: {said}");
    }
}

#[test]
fn configurations_are_compared_with_the_file_or_with_each_other() {
    let file = Given { configuration: Some("sha256:a"), ..Given::default() };
    for (servers, given, verdict, says) in [
        (vec!["sha256:a"], &file, Verdict::NothingAgainst, ""),
        (vec!["sha256:a", "sha256:b"], &file, Verdict::Finding, "sha256:b instead of sha256:a"),
        (vec!["sha256:a", ""], &file, Verdict::Partly, "shows no hash"),
        (vec!["sha256:a", "sha256:a"], &Given::default(), Verdict::NothingAgainst, ""),
        (vec!["sha256:a", "sha256:b"], &Given::default(), Verdict::Finding, "2 EncryptionConfigurations"),
    ] {
        let process = |place: usize| Some(Instance { started: Some(place as f64), id_hash: None });
        let servers = servers.iter().enumerate();
        let servers =
            servers.map(|(place, hash)| ServerAnswer { instance: process(place), ..server(hash, vec![]) });
        let (found, said) = verdict_of(servers.collect(), &[], given);
        assert_eq!(found, verdict, "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn key_ids_are_compared_by_their_hashes() {
    for (seen, given, verdict, says) in [
        (vec![key_id("new", 2.0), key_id("old", 1.0)], "new", Verdict::NothingAgainst, ""),
        (vec![key_id("new", 2.0), key_id("old", 1.0)], "ours=new", Verdict::NothingAgainst, ""),
        (vec![key_id("new=", 2.0)], "new=", Verdict::NothingAgainst, ""),
        (vec![key_id("new", 1.0), key_id("old", 2.0)], "new", Verdict::Finding, "has not switched"),
        (vec![key_id("new", 1.0)], "ours=other", Verdict::Finding, "none of those that were given"),
        (vec![], "new", Verdict::Partly, "no key id of KMS v2"),
    ] {
        let key_ids = [given.to_owned()];
        let (found, said) =
            verdict_of(vec![server("", seen)], &[], &Given { key_ids: &key_ids, ..Given::default() });
        assert_eq!(found, verdict, "{given}: {said}");
        assert!(said.contains(says), "{given}: {said}");
    }
}

#[test]
fn objects_under_a_key_id_of_the_past_are_told() {
    let mut resource = secrets(&[(KMS, 10, 10)], None);
    let exactly = |number| Bounds { at_least: number, at_most: number };
    resource.key_ids = ["new", "old"]
        .map(|id| KeyIdClass { provider: "ours".into(), hash: file_hash(id.as_bytes()), bounds: exactly(5) })
        .into();
    let servers = vec![server("", vec![key_id("new", 2.0), key_id("old", 1.0)])];
    let (found, said) = verdict_of(servers, &[resource], &Given::default());
    assert_eq!(found, Verdict::Finding);
    assert!(
        said.contains("at least 5")
            && said.contains(&file_hash(b"old"))
            && !said.contains(&file_hash(b"new")),
        "{said}"
    );
}

#[test]
fn what_was_not_seen_is_not_judged() {
    let silent =
        ServerAnswer { instance: None, error: Some("does not allow it".into()), ..server("", vec![]) };
    assert_eq!(verdict_of(vec![silent], &[], &Given::default()).0, Verdict::Unknown);
    let untold = ResourceAnswer { read: 0, untold: 10, ..secrets(&[], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[untold], &Given::default()).0, Verdict::Unknown);
    let some = ResourceAnswer { untold: 5, ..secrets(&[(KMS, 5, 5)], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[some], &Given::default()).0, Verdict::Partly);
    let refused = ResourceAnswer { error: Some("403".into()), read: 0, objects: 0, ..secrets(&[], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[refused], &Given::default()).0, Verdict::Unknown);
    let cut = ResourceAnswer { error: Some("answered 429".into()), ..secrets(&[(KMS, 5, 5)], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[cut], &Given::default()).0, Verdict::Partly);
    let ill = ResourceAnswer { unreadable: vec!["default/a".into()], ..secrets(&[(KMS, 10, 10)], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[ill], &Given::default()).0, Verdict::Finding);
    let empty = ResourceAnswer { read: 0, objects: 0, ..secrets(&[], None) };
    assert_eq!(verdict_of(vec![server("", vec![])], &[empty], &Given::default()).0, Verdict::NothingAgainst);
}

#[test]
fn servers_that_differ_are_named() {
    let at = |name: &str, started: f64, key: &str| ServerAnswer {
        server: format!("https://{name}"),
        instance: Some(Instance { started: Some(started), id_hash: None }),
        ..server("sha256:a", vec![key_id(key, 1.0)])
    };
    let judged = |servers: Vec<ServerAnswer>| verdict_of(servers, &[], &Given::default());
    assert_eq!(judged(vec![at("a", 1.0, "one"), at("b", 2.0, "one")]).0, Verdict::NothingAgainst);
    let (found, said) = judged(vec![at("a", 1.0, "one"), at("b", 2.0, "two")]);
    assert_eq!(found, Verdict::Finding);
    assert!(said.contains("ours gives the API servers 2 key ids"), "{said}");
    assert!(said.contains(&format!("https://b has {}", file_hash(b"two"))), "{said}");
    let (found, said) = judged(vec![at("a", 1.0, "one"), at("b", 1.0, "one")]);
    assert_eq!(found, Verdict::Partly);
    assert!(said.contains("https://b is the same process as https://a"), "{said}");
    let silent = ServerAnswer { configurations: Vec::new(), ..at("b", 2.0, "one") };
    assert_eq!(judged(vec![at("a", 1.0, "one"), silent]).0, Verdict::Partly);
}

#[test]
fn every_statement_but_a_failure_to_ask_says_what_it_leaves_open() {
    let mut servers = vec![server("sha256:a", vec![key_id("old", 1.0)]), server("sha256:b", Vec::new())];
    servers[1].instance = Some(Instance { started: Some(2.0), id_hash: None });
    let resource = secrets(&[(KMS, 5, 10), (IDENTITY, 0, 5), (UNCOVERED, 1, 1)], None);
    let given = Given { configuration: Some("sha256:c"), key_ids: &["new".to_owned()] };
    let Judged { findings, open } = judge(&mut servers, &[resource], &given);
    assert!(findings.len() >= 4 && !open.is_empty(), "{findings:?} {open:?}");
    for statement in findings.iter().chain(&open) {
        assert!(!statement.limits.is_empty(), "{statement:?}");
    }
    assert!(of_objects(10, 5).contains(&Limit::Unread) && !of_objects(10, 10).contains(&Limit::Unread));
}
