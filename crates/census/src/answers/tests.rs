use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};
use casemate_wire::kms_v2::stored::{self, EncryptedObject, StoredValue};

use super::*;
use crate::survey::tests::{
    AESCBC, AESGCM, KMS_V1, KMS_V2, PROTOBUF, SECRETBOX, local, sample, survey_below, survey_of,
};
use crate::survey::{Key, Tally, Unseen};

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
        names.iter().map(|name| format!("{{name: {name:?}, secret: {secret}}}")).collect();
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
        ("root:transit:/transit/k8s/2/1764500000", &foreign, Verdict::Unknown, "which key"),
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

/// Whether `key` may go, by what is below `prefix`, and all that is said.
fn asked(key: &str, prefix: &str, values: &[(&str, Option<Vec<u8>>)]) -> (Verdict, String) {
    let survey = survey_below(prefix, values);
    let answer = may_go(&key.parse().unwrap(), &[Source { name: "file", survey: &survey }], None);
    (answer.verdict, [answer.unclear, answer.notes].concat().join("\n"))
}

#[test]
fn what_is_below_another_prefix_holds_every_key_back() {
    let route = "/openshift.io/routes/a/one";
    let secret = ("/kubernetes.io/secrets/a/one", sample(SECRETBOX));
    for value in [sample(AESCBC), sample(KMS_V2), Some(b"k8s:enc:later:v9:".to_vec())] {
        let values = [secret.clone(), (route, value)];
        let (verdict, said) = asked("aescbc:other", "/kubernetes.io", &values);
        assert_eq!(verdict, Verdict::Unknown, "{said}");
        assert!(said.contains("1 encrypted values are not below /kubernetes.io"), "{said}");
        // A part of the prefix is none either, and all is all.
        assert_eq!(asked("aescbc:other", "/kubernetes.io/secrets", &values).0, Verdict::Unknown);
    }
    let values = [secret.clone(), (route, sample(AESCBC))];
    assert_eq!(asked("aescbc:key1", "/", &values).0, Verdict::No);
    assert_eq!(asked("aescbc:other", "/", &values).0, Verdict::Yes);
    // Overwritten there, and deleted.
    let past = [secret.clone(), (route, sample(AESCBC)), (route, None)];
    assert_eq!(asked("aescbc:other", "/kubernetes.io", &past).0, Verdict::Unknown);
    // What kube-apiserver and k3s keep beside their objects is under no key.
    let beside = [secret, ("compact_rev_key", Some(b"12".to_vec())), ("/bootstrap/0123", sample(PROTOBUF))];
    assert_eq!(asked("aescbc:other", "/kubernetes.io", &beside).0, Verdict::Yes);
}

#[test]
fn an_etcd_in_which_nothing_is_proves_nothing() {
    let (verdict, said) = asked("aescbc:key1", "/registry", &[]);
    assert!(verdict == Verdict::Unknown && said.contains("another etcd"), "{said}");
    let gone = [("/registry/secrets/a/one", sample(SECRETBOX)), ("/registry/secrets/a/one", None)];
    assert_eq!(asked("aescbc:key1", "/registry", &gone).0, Verdict::Yes);
}

#[test]
fn a_name_with_a_colon_is_not_missed_because_lengths_do_not_fit() {
    // What kube-apiserver writes under a key that is called a:b.
    for cipher in ["aescbc", "aesgcm", "secretbox"] {
        let values = [("/registry/secrets/a/one", local(&format!("{cipher}:v1:a:b:")))];
        let (verdict, said) = asked(&format!("{cipher}:a:b"), "/registry", &values);
        assert!(verdict == Verdict::Unknown && said.contains("up to its colon"), "{cipher}: {said}");
    }
    let values = [("/registry/secrets/a/one", Some(b"k8s:enc:kms:v1:a:b:\0\x02xx".to_vec()))];
    assert_eq!(asked("kms:v1:a:b", "/registry", &values).0, Verdict::Unknown);
}

#[test]
fn what_is_damaged_holds_the_key_back_that_it_claims() {
    let cut = |value: Option<Vec<u8>>, bytes: usize| {
        let mut value = value.unwrap();
        value.truncate(value.len() - bytes);
        Some(value)
    };
    let root = "root:file:4f/2/9a";
    for (value, held, free) in [
        (cut(sample(AESCBC), 1), "aescbc:key1", "aescbc:other"),
        (cut(sample(AESGCM), 20), "aesgcm:key1", "aescbc:key1"),
        (Some(b"k8s:enc:secretbox:v1:ke".to_vec()), "secretbox:any", "aescbc:key1"),
        (Some(b"k8s:enc:kms:v1:old:\0".to_vec()), "kms:v1:old", "kms:v1:other"),
        (Some(b"k8s:enc:kms:v2:".to_vec()), "kms:v2:any", "kms:v1:any"),
        (Some(b"k8s:enc:kms:v2:casemate:\x0a\x7f".to_vec()), "kms:v2:casemate", "kms:v2:other"),
        (Some(b"k8s:enc:kms:v2:casemate:\x0a\x7f".to_vec()), "key-id:any", "kms:v2:other"),
        (Some(b"k8s:enc:kms:v2:casemate:\x0a\x7f".to_vec()), root, "aescbc:key1"),
    ] {
        let values = [("/registry/secrets/a/one", value)];
        let (verdict, said) = asked(held, "/registry", &values);
        assert!(verdict == Verdict::Unknown && said.contains("are damaged"), "{held}: {said}");
        let (verdict, said) = asked(free, "/registry", &values);
        assert!(verdict == Verdict::Yes && said.contains("nobody can read"), "{free}: {said}");
    }
}

#[test]
fn a_slip_in_a_name_is_no_yes() {
    let values = [
        ("/registry/secrets/a/one", local("aescbc:v1:Key1:")),
        ("/registry/secrets/a/two", local("secretbox:v1:caf\u{e9}:")),
        ("/registry/secrets/a/three", local("aesgcm:v1:a\u{200b}\nb:")),
        ("/registry/secrets/a/four", sample(KMS_V1)),
    ];
    let survey = survey_of(&values);
    let may = |key: &str, config: Option<&EncryptionConfiguration>| {
        may_go(&key.parse().unwrap(), &[Source { name: "file", survey: &survey }], config)
    };
    for (key, verdict) in [
        ("aescbc:Key1", Verdict::No),
        ("aescbc:key1", Verdict::Unknown),
        ("aescbc: Key1", Verdict::Unknown),
        ("aescbc:Key1\n", Verdict::Unknown),
        ("aescbc:K\u{200b}ey1", Verdict::Unknown),
        // Cyrillic.
        ("aescbc:K\u{435}y1", Verdict::Unknown),
        ("secretbox:caf\u{e9}", Verdict::No),
        ("secretbox:cafe\u{301}", Verdict::Unknown),
        ("secretbox:cafe", Verdict::Unknown),
        // What can't be shown is found all the same.
        ("aesgcm:a\u{200b}\nb", Verdict::No),
        ("kms:v1:OLD", Verdict::Unknown),
        ("aescbc:key2", Verdict::Yes),
        ("aescbc:key-1", Verdict::Yes),
        ("aesgcm:Key1", Verdict::Unknown),
        ("secretbox:Key1", Verdict::Yes),
        ("kms:v2:old", Verdict::Yes),
    ] {
        let answer = may(key, None);
        assert_eq!(answer.verdict, verdict, "{key:?}: {answer:?}");
        let similar = answer.unclear.iter().any(|text| text.contains("looks like this key"));
        assert_eq!(similar, verdict == Verdict::Unknown, "{key:?}: {answer:?}");
    }
    // Where the configuration has a key of this very name, there are two.
    let config = config(&[("secrets", &keys("aescbc", &["Key1", "key1"]))]);
    assert_eq!(may("aescbc:key1", Some(&config)).verdict, Verdict::Yes);
}

#[test]
fn a_name_that_can_not_be_shown_is_the_same_in_a_configuration() {
    let survey = survey_of(&[("/registry/secrets/a/one", local("aescbc:v1:a\tb:"))]);
    let config = config(&[("secrets", &keys("aescbc", &["a\tb"]))]);
    let answer = may_go(&"aescbc:a\tb".parse().unwrap(), &[], Some(&config));
    assert_eq!((answer.verdict, answer.writes.join(",")), (Verdict::No, "secrets".into()));
    assert_eq!(against(&config, &survey)[0].state, State::Current);
}

#[test]
fn what_a_later_version_wrote_may_need_any_key() {
    let of = |change: &dyn Fn(&mut EncryptedObject)| {
        let value = sample(KMS_V2).unwrap();
        let mut object = stored::parse(&value).unwrap().object;
        change(&mut object);
        [("/registry/secrets/a/one", Some(StoredValue { provider: "casemate", object }.encode()))]
    };
    let keys = [
        ROOT,
        "root:file:4f/2/9a",
        &format!("recovery:{}", "09".repeat(32)),
        &format!("local-kek:{}", "00".repeat(32)),
    ];
    let record = |object: &mut EncryptedObject| {
        object.annotations.insert("record.casemate.dev".into(), b"\x2a\0".as_slice().into());
    };
    let lost = |object: &mut EncryptedObject| object.annotations.clear();
    for key in keys {
        for values in [of(&record), of(&lost)] {
            let (verdict, said) = asked(key, "/registry", &values);
            assert!(verdict == Verdict::Unknown && said.contains("can't be read here"), "{key}: {said}");
        }
    }
    // Another kind of DEK source.
    let values = of(&|object| object.encrypted_dek_source_type = 2);
    for key in [keys[0], "key-id:any", "kms:v2:casemate", "kms:v2:other", "aescbc:key1"] {
        let (verdict, said) = asked(key, "/registry", &values);
        assert!(verdict == Verdict::Unknown && said.contains("not known here"), "{key}: {said}");
    }
}

/// One name in EncryptionConfigurations, and two plugins behind it, one after the other.
#[test]
fn plugins_of_one_name_are_told_apart_by_key_id() {
    let ours = sample(KMS_V2).unwrap();
    let object = stored::parse(&ours).unwrap().object;
    let id = object.key_id.clone();
    let other = |key_id: &str, annotation: Option<&str>| {
        let mut object = object.clone();
        object.key_id = key_id.to_owned();
        object.encrypted_dek_source = b"sealed by another".as_slice().into();
        object.annotations.clear();
        if let Some(text) = annotation {
            object.annotations.insert("version.example.com".into(), text.as_bytes().to_vec().into());
        }
        Some(StoredValue { provider: "casemate", object }.encode())
    };
    let survey = survey_of(&[
        ("/registry/secrets/a/ours", Some(ours.clone())),
        ("/registry/secrets/a/theirs", other("1", None)),
        // The same key id, and something else beside it: still that key id's.
        ("/registry/secrets/a/again", other("1", Some("2"))),
    ]);
    let held = |key: &str| {
        let holders = needs(&key.parse().unwrap(), &[Source { name: "file", survey: &survey }]);
        let mut examples: Vec<String> = holders.iter().flat_map(|one| one.live.examples.clone()).collect();
        examples.sort();
        examples.iter().map(|key| key.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(held(&format!("key-id:{id}")), "ours");
    assert_eq!(held("key-id:1"), "again theirs");
    assert_eq!(held("kms:v2:casemate"), "again ours theirs");
    assert_eq!(held(ROOT), "ours");
    let verdict =
        |key: &str| may_go(&key.parse().unwrap(), &[Source { name: "file", survey: &survey }], None).verdict;
    assert_eq!(verdict("key-id:2"), Verdict::Yes);
    // The other plugin may use any key of a key service, by whatever name.
    assert_eq!(verdict("root:transit:/transit/k8s/9/1"), Verdict::Unknown);
    assert_eq!(verdict("root:file:4f/2/9a"), Verdict::Yes);
}

#[test]
fn what_says_no_key_id_holds_every_key_id_back() {
    let values = [("/registry/secrets/a/one", sample(KMS_V1))];
    let (verdict, said) = asked("key-id:1", "/registry", &values);
    assert!(verdict == Verdict::Unknown && said.contains("don't say"), "{said}");
}

/// A secrets engine that was mounted elsewhere: the same key has another lineage.
#[test]
fn a_key_that_was_moved_is_not_free() {
    let values = [("/registry/secrets/a/one", sample(KMS_V2))];
    for (key, verdict) in [
        ("root:transit:/old/k8s/3/1764500000", Verdict::Unknown),
        ("root:transit:team/old/other/3/1764500000", Verdict::Unknown),
        ("root:transit:/transit/k8s/2/1764500000", Verdict::Yes),
        ("root:transit:/transit/k8s/3/1764500001", Verdict::Yes),
        ("root:file:4f/3/1764500000", Verdict::Yes),
    ] {
        let (found, said) = asked(key, "/registry", &values);
        assert_eq!((found, said.contains("moved")), (verdict, verdict == Verdict::Unknown), "{key}: {said}");
    }
}

#[test]
fn what_was_not_looked_at_is_no_yes() {
    let mut survey = survey_of(&[("/registry/secrets/a/one", sample(SECRETBOX))]);
    let ask = |survey: &Survey| {
        let source = [Source { name: "file", survey }];
        let key = "aescbc:key1".parse().unwrap();
        (may_go(&key, &source, None).verdict, unclear(&key, &source).len())
    };
    assert_eq!(ask(&survey), (Verdict::Yes, 0));
    for unseen in
        [Unseen::Past { since: None, why: "a reason".to_owned() }, Unseen::Moment { oldest: 3, newest: 9 }]
    {
        survey.unseen = vec![unseen];
        assert_eq!(ask(&survey), (Verdict::Unknown, 1));
    }
    survey.unseen.clear();
    survey.outside_encrypted = None;
    assert_eq!(ask(&survey), (Verdict::Unknown, 1));
}

/// A yes is of a moment, and of what was given.
#[test]
fn a_yes_says_what_it_stands_on() {
    let values = [("/registry/secrets/a/one", sample(KMS_V2))];
    let survey = survey_of(&values);
    let config = config(&[("secrets", KMS)]);
    let said = |key: &str, config| {
        let answer = may_go(&key.parse().unwrap(), &[Source { name: "a", survey: &survey }], config);
        assert_eq!(answer.verdict, Verdict::Yes, "{answer:?}");
        answer.notes.join("\n")
    };
    let local = said("aescbc:key1", None);
    for condition in ["spelling", "--etcd-servers-overrides", "until it has loaded", "--encryption-config"] {
        assert!(local.contains(condition), "{condition}: {local}");
    }
    assert!(!said("aescbc:key1", Some(&config)).contains("was not asked"));
    assert!(said("key-id:1", Some(&config)).contains("casemate kms status"));
    // Its key in the key service may be the one of the plugin that is there.
    assert!(said("kms:v2:old", Some(&config)).contains("kms:v2:casemate"));
}

#[test]
fn one_file_twice_is_no_more_than_one() {
    let survey = survey_of(&[("/registry/secrets/a/one", sample(AESCBC))]);
    let source = Source { name: "file", survey: &survey };
    for (key, verdict) in [("aescbc:key1", Verdict::No), ("aescbc:other", Verdict::Yes)] {
        for sources in [&[source][..], &[source, source]] {
            assert_eq!(may_go(&key.parse().unwrap(), sources, None).verdict, verdict);
        }
    }
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
