#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
/// 2026-12-01.
const NOW: u64 = 1_796_083_200;

/// A configuration of one provider; `more` are further lines of it, `top` of the file.
fn config(top: &str, root_key: &str, more: &str) -> Config {
    let text = format!(
        "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\n{top}\nproviders:\n- name: main\n  endpoint: \
         unix:///run/c/kms.sock\n  rootKeys:\n  - name: first\n    file: {{path: /k/a, id: {root_key}}}\n{more}\n"
    );
    Config::parse(&text, Path::new("c.yaml")).unwrap()
}

fn of_prod(root_key: &str, more: &str) -> Config {
    config("clusterId: prod", root_key, more)
}

fn refused(before: &Config, after: &Config) -> String {
    may_take_over(before, after, NOW).unwrap_err().to_string()
}

#[test]
fn a_reader_may_move_and_may_go_only_if_it_is_said() {
    let read_b = format!("  readKeys:\n  - name: old\n    file: {{path: /k/b, id: {B}}}");
    let read_a = format!("  readKeys:\n  - name: old\n    file: {{path: /k/a, id: {A}}}");
    let both = of_prod(A, &read_b);
    // What wrote is read, and what was read writes; a reader comes.
    assert_eq!(may_take_over(&both, &of_prod(B, &read_a), NOW), Ok(()));
    assert_eq!(may_take_over(&of_prod(A, ""), &both, NOW), Ok(()));

    let why = refused(&both, &of_prod(A, ""));
    assert!(why.contains(B) && why.contains("old") && why.contains("removedReadKeys"), "{why}");
    assert!(
        why.contains("misspelled before and never was a key, restart") && !why.contains("token"),
        "{why}"
    );
    let why = refused(&both, &of_prod(B, ""));
    assert!(why.contains(A) && why.contains("first"), "{why}");

    let gone = |id: &str| format!("  removedReadKeys:\n  - file: {{id: {id}}}");
    assert_eq!(may_take_over(&both, &of_prod(A, &gone(B)), NOW), Ok(()));
    assert!(may_take_over(&both, &of_prod(A, &gone("cccccccccccccccccccccccccccccccc")), NOW).is_err());
}

#[test]
fn another_sealed_cache_needs_a_restart() {
    let with = |path: &str| of_prod(A, &format!("  sealedCache: {{credential: {path}}}"));
    for (before, after) in
        [(of_prod(A, ""), with("/r/a")), (with("/r/a"), of_prod(A, "")), (with("/r/a"), with("/r/b"))]
    {
        let why = refused(&before, &after);
        assert!(why.contains("sealedCache changed from") && why.contains("needs a restart"), "{why}");
    }
    assert_eq!(may_take_over(&with("/r/a"), &with("/r/a"), NOW), Ok(()));
}

#[test]
fn a_provider_may_go_only_if_it_is_said() {
    let second = format!(
        "- name: second\n  endpoint: unix:///run/c/2.sock\n  rootKeys:\n  - name: b\n    file: {{path: /k/b, id: {B}}}"
    );
    let (one, two) = (of_prod(A, ""), of_prod(A, &second));
    assert_eq!(may_take_over(&one, &two, NOW), Ok(()));
    assert!(refused(&two, &one).contains("provider second is missing"));
    let said = config("clusterId: prod\nremovedProviders: [second]", A, "");
    assert_eq!(may_take_over(&two, &said, NOW), Ok(()));
}

/// The new socket is open before the old one goes.
#[test]
fn an_endpoint_of_another_one_is_free_only_when_that_one_has_gone() {
    let doors = |admin: &str, main: &str, second: &str, top: &str| {
        let provider = |name: &str, endpoint: &str, id: &str| match endpoint {
            "" => String::new(),
            _ => format!(
                "- name: {name}\n  endpoint: unix:///run/c/{endpoint}\n  rootKeys:\n  - name: a\n    file: {{path: /k, id: \
                 {id}}}\n"
            ),
        };
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\n{top}admin: {{endpoint: \
             unix:///run/c/{admin}}}\nproviders:\n{}{}",
            provider("main", main, A),
            provider("second", second, B)
        );
        Config::parse(&text, Path::new("c.yaml")).unwrap()
    };
    let before = doors("x", "m", "s", "");
    for (after, said) in [
        (
            doors("x", "s", "m", ""),
            "provider main: endpoint unix:///run/c/s is that of provider second until now",
        ),
        (
            doors("y", "m", "x", ""),
            "provider second: endpoint unix:///run/c/x is that of the admin socket until now",
        ),
        (
            doors("m", "n", "s", ""),
            "the admin socket: endpoint unix:///run/c/m is that of provider main until now",
        ),
        (
            doors("x", "s", "", "removedProviders: [second]\n"),
            "provider main: endpoint unix:///run/c/s is that of",
        ),
    ] {
        let why = refused(&before, &after);
        assert!(why.starts_with(said) && why.ends_with("or restart"), "{why}");
    }
    assert_eq!(may_take_over(&before, &doors("x", "n", "s", ""), NOW), Ok(()));
    assert_eq!(may_take_over(&before, &before, NOW), Ok(()));
}

#[test]
fn another_cluster_is_read_until_its_date() {
    let until = |date: &str| of_prod(A, &format!("  alsoAccept:\n  - {{clusterId: old, until: {date}}}"));
    let (over, soon, later) =
        (until("2026-11-30T00:00:00Z"), until("2027-01-01T00:00:00Z"), until("2027-02-01T00:00:00Z"));
    assert_eq!(may_take_over(&over, &of_prod(A, ""), NOW), Ok(()));
    assert_eq!(may_take_over(&soon, &later, NOW), Ok(()));
    assert!(refused(&soon, &of_prod(A, "")).contains("alsoAccept lacks cluster old"));
    assert!(refused(&later, &soon).contains("ends sooner"));
}

#[test]
fn what_holds_from_start_to_end_needs_a_restart() {
    let prod = of_prod(A, "");
    let why = refused(&prod, &config("clusterId: other", A, ""));
    assert_eq!(why, "clusterId changed from prod to other, which needs a restart");
    let why = refused(&prod, &config("clusterId: prod\nstateDirectory: /s", A, ""));
    assert!(why.contains("stateDirectory changed from /var/lib/casemate-kms to /s"), "{why}");
}

#[test]
fn what_is_said_to_be_gone_must_not_be_there() {
    let parse = |top: &str, more: &str| {
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\n{top}providers:\n- name: main\n  \
             endpoint: unix:///run/c/kms.sock\n  rootKeys:\n  - name: first\n    file: {{path: /k/a, id: {A}}}\n{more}"
        );
        Config::parse(&text, Path::new("c.yaml")).unwrap_err().to_string()
    };
    let why = parse("removedProviders: [main]\n", "");
    assert_eq!(why, "c.yaml:4: removedProviders: main is in use in line 6; take it out there, or here");
    let why = parse("", &format!("  removedReadKeys:\n  - file: {{id: {A}}}\n"));
    assert!(why.starts_with("c.yaml:11: removedReadKeys: file:aaaa"), "{why}");
}

#[test]
fn a_key_in_a_token_goes_on_to_be_read_as_it_wraps() {
    let with = |mechanism: &str| {
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nproviders:\n- name: main\n  \
             endpoint: unix:///run/c/kms.sock\n  rootKeys:\n  - name: hsm\n    pkcs11: {{module: /m.so, token: {{label: t}}, \
             pinFile: /p, mechanism: {mechanism}, keys: [{A}]}}\n"
        );
        Config::parse(&text, Path::new("c.yaml")).unwrap()
    };
    assert!(may_take_over(&with("aes-gcm"), &with("aes-gcm"), 0).is_ok());
    let why = may_take_over(&with("aes-gcm"), &with("aes-kwp"), 0).unwrap_err().to_string();
    assert!(why.contains("root key hsm") && why.contains("pkcs11-aes256-gcm"), "{why}");
}

/// Half a file that ends with a line is sound, and lacks what stands below.
#[test]
fn what_protects_goes_only_from_a_file_that_has_its_end() {
    const AUDIT: &str = "clusterId: prod\naudit:\n  path: /l/audit\n  checkpointKey: {path: /k/c}";
    const RECIPIENT: &str = "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2";
    let peers = "  allowedPeers: {uids: [0]}";
    let recipients = format!("  recoveryRecipients:\n  - {{name: safe, age: {RECIPIENT}}}");
    for (before, after, said) in [
        (config(AUDIT, A, ""), of_prod(A, ""), "audit is missing"),
        (
            config(AUDIT, A, ""),
            config("clusterId: prod\naudit: {path: /l/audit}", A, ""),
            "audit.checkpointKey is missing",
        ),
        (
            config("clusterId: prod\nadmin: {endpoint: 'unix:///run/c/a', allowedPeers: {uids: [0]}}", A, ""),
            config("clusterId: prod\nadmin: {endpoint: 'unix:///run/c/a'}", A, ""),
            "admin.allowedPeers is missing",
        ),
        (of_prod(A, peers), of_prod(A, ""), "allowedPeers of provider main is missing"),
        (of_prod(A, &recipients), of_prod(A, ""), "recoveryRecipients of provider main is missing"),
    ] {
        let why = refused(&before, &after);
        assert!(why.starts_with(said) && why.contains("the line `...`"), "{why}");
        assert_eq!(may_take_over(&after, &before, NOW), Ok(()), "it may come");
        assert_eq!(may_take_over(&before, &Config { has_end: true, ..after }, NOW), Ok(()));
    }
}

#[test]
fn a_file_that_has_its_end_keeps_it() {
    let whole = of_prod(A, "  maxConnections: 7\n...");
    assert!(whole.has_end, "YAML's mark is none of its fields");
    let half = of_prod(A, "");
    assert_eq!(may_take_over(&half, &whole, NOW), Ok(()));
    assert!(refused(&whole, &half).starts_with("the last line is not `...` any more"));
    assert_eq!(may_take_over(&whole, &of_prod(A, "..."), NOW), Ok(()));
}
