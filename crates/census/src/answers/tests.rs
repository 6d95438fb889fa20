use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};

use super::*;
use crate::survey::tests::{
    AESCBC, AESGCM, KMS_V1, KMS_V2, PROTOBUF, SECRETBOX, local, sample, survey_below, survey_of,
};
use crate::survey::{Key, Tally};

const ROOT: &str = "root:transit:/transit/k8s/3/1764500000";

fn config(entries: &[(&str, &str)]) -> EncryptionConfiguration {
    let mut text =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n".to_owned();
    for (resources, providers) in entries {
        text += &format!("- resources: [{resources}]\n  providers: [{providers}]\n");
    }
    let flags = ServerFlags { kms_v1: true, ..ServerFlags::default() };
    EncryptionConfiguration::read(text.as_bytes(), flags)
        .unwrap_or_else(|refused| panic!("{refused}\n{text}"))
}

fn keys(cipher: &str, names: &[&str]) -> String {
    let secret = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    let keys: Vec<String> =
        names.iter().map(|name| format!("{{name: '{name}', secret: {secret}}}")).collect();
    format!("{cipher}: {{keys: [{}]}}", keys.join(", "))
}

const KMS: &str = "kms: {apiVersion: v2, name: casemate, endpoint: 'unix:///a'}";

#[test]
fn every_state_of_a_value_against_a_configuration() {
    use State::*;
    let aescbc = |names: &[&str]| keys("aescbc", names);
    let after = |first: &str, more: &str| format!("{first}, {more}");
    // What stands in etcd, the providers of secrets, how it stands to them.
    let cases = [
        (sample(PROTOBUF), "identity: {}".to_owned(), Current, "plaintext"),
        (sample(PROTOBUF), after(KMS, "identity: {}"), Unencrypted, "kms:v2:casemate"),
        (sample(PROTOBUF), aescbc(&["key1"]), Unencrypted, "aescbc:key1"),
        (sample(AESCBC), aescbc(&["key1"]), Current, "aescbc:key1"),
        (sample(AESCBC), aescbc(&["key2", "key1"]), Stale, "aescbc:key2"),
        (sample(AESCBC), aescbc(&["key2"]), Unreadable, "aescbc:key2"),
        (sample(AESCBC), after(KMS, &aescbc(&["key1"])), Stale, "kms:v2:casemate"),
        (sample(AESCBC), after("identity: {}", &aescbc(&["key1"])), Stale, "plaintext"),
        (sample(AESCBC), "identity: {}".to_owned(), Unreadable, "plaintext"),
        (sample(AESGCM), aescbc(&["key1"]), Unreadable, "aescbc:key1"),
        (sample(SECRETBOX), keys("secretbox", &["key1"]), Current, "secretbox:key1"),
        (sample(KMS_V2), KMS.to_owned(), Current, "kms:v2:casemate"),
        (sample(KMS_V2), KMS.replace("casemate", "other"), Unreadable, "kms:v2:other"),
        (sample(KMS_V1), KMS.to_owned(), Unreadable, "kms:v2:casemate"),
        (sample(KMS_V1), "kms: {name: old, endpoint: 'unix:///a'}".to_owned(), Current, "kms:v1:old"),
        (local("aescbc:v1:a:"), aescbc(&["a:b"]), Undecided, "aescbc:a:b"),
        (Some(b"k8s:enc:kms:v2:casemate:\x0a\x7f".to_vec()), KMS.to_owned(), Unreadable, "kms:v2:casemate"),
    ];
    for (value, providers, state, expected) in cases {
        let survey = survey_of(&[("/registry/secrets/a/one", value)]);
        let judged = against(&config(&[("secrets", &providers)]), &survey);
        let found: Vec<_> = judged.iter().map(|one| (one.state, one.expected.as_str())).collect();
        assert_eq!(found, [(state, expected)], "{providers}: {}", judged[0].group.encryption);
        assert_eq!(judged[0].is_finding(), !matches!(state, Current | Undecided));
    }
}

#[test]
fn whom_a_configuration_is_about() {
    let judged = |resources: &str, key: &str| {
        let survey = survey_of(&[(key, sample(PROTOBUF))]);
        against(&config(&[(resources, KMS)]), &survey)[0].state
    };
    for (resources, key, state) in [
        ("secrets", "/registry/secrets/a/one", State::Unencrypted),
        ("secrets", "/registry/configmaps/a/one", State::Current),
        ("secrets, configmaps", "/registry/configmaps/a/one", State::Unencrypted),
        ("'*.apps'", "/registry/deployments/a/one", State::Unencrypted),
        ("'*.apps'", "/registry/things.example.com/a/one", State::Current),
        ("things.example.com", "/registry/example.com/things/a/one", State::Unencrypted),
        ("'*.*'", "/registry/example.com/things/a/one", State::Unencrypted),
        // The key of etcd does not tell the group.
        ("'*.*'", "/registry/gadgets/a/one", State::Unencrypted),
        ("'*.example.com'", "/registry/gadgets/a/one", State::Undecided),
        ("gadgets.example.com", "/registry/gadgets/a/one", State::Undecided),
        ("secrets", "/registry/gadgets/a/one", State::Current),
        // API servers write it past their encryption.
        ("'*.*'", "/registry/ranges/servicenodeports", State::Current),
        ("'*.'", "/registry/masterleases/10.0.0.1", State::Current),
        ("'*.*'", "/registry/peerserverleases/apiserver-a", State::Current),
        ("'*.*'", "/registry/ranges.example.com/ranges/a", State::Unencrypted),
    ] {
        assert_eq!(judged(resources, key), state, "{resources} {key}");
    }
    let survey = survey_of(&[("/registry/ranges/servicenodeports", sample(KMS_V2))]);
    assert_eq!(against(&config(&[("'*.*'", KMS)]), &survey)[0].state, State::Unreadable);
}

#[test]
fn a_key_may_go_when_nothing_is_left_under_it() {
    let mixed = survey_of(&[
        ("/registry/secrets/a/one", sample(AESCBC)),
        ("/registry/secrets/a/two", sample(SECRETBOX)),
        ("/registry/secrets/a/two", sample(KMS_V2)),
    ]);
    let foreign = survey_of(&[("/registry/secrets/a/one", sample(KMS_V1))]);
    let later = survey_of(&[("/registry/secrets/a/one", Some(b"k8s:enc:quantum:v1:key1:x".to_vec()))]);
    let elsewhere = survey_below("/other", &[("/registry/secrets/a/one", sample(AESCBC))]);
    let colon = survey_of(&[("/registry/secrets/a/one", local("aescbc:v1:a:"))]);
    let many: Vec<String> = (0..5000).map(|number| format!("aesgcm:v1:key{number}:")).collect();
    let many: Vec<_> = many.iter().map(|name| ("/registry/secrets/a/one", local(name))).collect();
    let many = survey_of(&many);
    for (key, survey, verdict, says) in [
        ("aescbc:key1", &mixed, Verdict::No, ""),
        ("secretbox:key1", &mixed, Verdict::No, ""),
        ("aesgcm:key1", &mixed, Verdict::Yes, "spelling"),
        ("kms:v2:casemate", &mixed, Verdict::No, ""),
        ("kms:v2:other", &mixed, Verdict::Yes, "spelling"),
        (ROOT, &mixed, Verdict::No, ""),
        ("root:transit:/transit/k8s/2/1764500000", &mixed, Verdict::Yes, "spelling"),
        ("root:transit:/transit/k8s/2/1764500000", &foreign, Verdict::Unknown, "which root key"),
        ("root:file:4f/2/9a", &foreign, Verdict::Yes, "spelling"),
        ("aescbc:key1", &later, Verdict::Unknown, "not known here"),
        ("aescbc:key1", &elsewhere, Verdict::Unknown, "--prefix"),
        ("aescbc:a:b", &colon, Verdict::Unknown, "colon"),
        ("aescbc:key1", &many, Verdict::Unknown, "too many"),
    ] {
        let key: Key = key.parse().unwrap();
        let answer = may_go(&key, &[Source { name: "file", survey }], None);
        assert_eq!(answer.verdict, verdict, "{key}: {answer:?}");
        assert_eq!(answer.held_by.is_empty(), verdict != Verdict::No);
        let said = [answer.unclear, answer.notes].concat().join("\n");
        assert!(said.contains(says), "{key}: {said}");
    }
    assert_eq!(may_go(&"aescbc:a".parse().unwrap(), &[], None).verdict, Verdict::Unknown);
    let key: Key = "aesgcm:key1".parse().unwrap();
    let answer = may_go(&key, &[Source { name: "file", survey: &mixed }], None);
    assert_eq!(answer.with_doubts(["b.db: could not be read".to_owned()]).verdict, Verdict::Unknown);
}

#[test]
fn what_holds_a_key_back_is_named() {
    let live = survey_of(&[("/registry/secrets/a/one", sample(KMS_V2))]);
    let old = survey_of(&[
        ("/registry/secrets/a/one", sample(AESCBC)),
        ("/registry/secrets/a/one", sample(KMS_V2)),
    ]);
    let sources = [Source { name: "live", survey: &live }, Source { name: "old", survey: &old }];
    let key: Key = "aescbc:key1".parse().unwrap();
    let holders = needs(&key, &sources);
    assert_eq!(holders.len(), 1);
    let Holder { source, live, past, alternatives, .. } = &holders[0];
    assert_eq!((source.as_str(), live, past.values, past.oldest), ("old", &Tally::default(), 1, Some(2)));
    assert_eq!(
        (past.examples.as_slice(), alternatives.as_slice()),
        (&["/registry/secrets/a/one".to_owned()][..], &[][..])
    );
    let holders = needs(&ROOT.parse().unwrap(), &sources);
    let recovery: Key = format!("recovery:{}", "09".repeat(32)).parse().unwrap();
    assert_eq!(holders.iter().map(|holder| holder.source.as_str()).collect::<Vec<_>>(), ["live", "old"]);
    assert!(holders.iter().all(|holder| holder.alternatives == [recovery.clone()]));
}

#[test]
fn a_key_that_is_written_with_may_not_go() {
    let survey = survey_of(&[("/registry/secrets/a/one", sample(PROTOBUF))]);
    let config = config(&[("secrets, configmaps", &keys("aescbc", &["new", "old"])), ("'*.apps'", KMS)]);
    let writes = |key: &str| {
        let answer = may_go(&key.parse().unwrap(), &[Source { name: "a", survey: &survey }], Some(&config));
        assert_eq!(answer.verdict == Verdict::No, !answer.writes.is_empty());
        answer.writes.join(",")
    };
    assert_eq!(writes("aescbc:new"), "secrets,configmaps");
    assert_eq!(writes("kms:v2:casemate"), "*.apps");
    for not in ["aescbc:old", "aesgcm:new", "kms:v1:casemate", "kms:v2:new"] {
        assert_eq!(writes(not), "", "{not}");
    }
}

#[test]
fn what_stays_closed() {
    let survey = survey_of(&[
        ("/registry/secrets/a/plain", sample(PROTOBUF)),
        ("/registry/secrets/a/local", sample(AESCBC)),
        ("/registry/secrets/a/ours", sample(KMS_V2)),
        ("/registry/secrets/a/cut", Some(b"k8s:enc:kms:v2:".to_vec())),
    ]);
    let config = config(&[("secrets", &format!("{}, {KMS}", keys("aescbc", &["key1"])))]);
    let recovery = format!("recovery:{}", "09".repeat(32));
    for (config, keys, expected) in [
        (None, vec![], vec!["aescbc:key1", "kms:v2:casemate", "malformed kms:v2"]),
        (None, vec!["aescbc:key1"], vec!["kms:v2:casemate", "malformed kms:v2"]),
        (None, vec![recovery.as_str()], vec!["aescbc:key1", "malformed kms:v2"]),
        (None, vec![ROOT, "aescbc:key1"], vec!["malformed kms:v2"]),
        (Some(&config), vec![], vec!["malformed kms:v2"]),
        // With a key given for plugins, the configuration counts for its own keys only.
        (Some(&config), vec!["root:file:4f/2/9a"], vec!["kms:v2:casemate", "malformed kms:v2"]),
        (Some(&config), vec![ROOT], vec!["malformed kms:v2"]),
    ] {
        let keys: Vec<Key> = keys.iter().map(|key| key.parse().unwrap()).collect();
        let closed = closed(Given { config, keys: &keys }, &survey);
        let found: Vec<String> = closed.iter().map(|one| one.group.encryption.to_string()).collect();
        assert_eq!(found, expected, "{keys:?}");
        for one in closed {
            assert_eq!(one.opened_by.is_empty(), one.group.encryption.is_broken());
        }
    }
}

#[test]
fn what_changed_is_told_and_nothing_else() {
    let before = survey_of(&[
        ("/registry/secrets/a/one", sample(AESCBC)),
        ("/registry/secrets/a/two", sample(AESCBC)),
        ("/registry/configmaps/a/one", sample(PROTOBUF)),
    ]);
    let after = survey_of(&[
        ("/registry/secrets/a/one", sample(AESCBC)),
        ("/registry/secrets/a/one", sample(KMS_V2)),
        ("/registry/secrets/a/two", sample(AESCBC)),
        ("/registry/configmaps/a/one", sample(PROTOBUF)),
    ]);
    assert_eq!(diff(&before, &before), []);
    let amounts = |before, after| {
        diff(before, after)
            .into_iter()
            .map(|one| {
                let amount = |amount: Amount| (amount.live, amount.past);
                (one.group.encryption.to_string(), amount(one.before), amount(one.after))
            })
            .collect::<Vec<_>>()
    };
    let expected =
        [("aescbc:key1".to_owned(), (2, 0), (1, 1)), ("kms:v2:casemate".to_owned(), (0, 0), (1, 0))];
    assert_eq!(amounts(&before, &after), expected);
    assert_eq!(
        amounts(&after, &before),
        expected.map(|(encryption, before, after)| (encryption, after, before))
    );
}
