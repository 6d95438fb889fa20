use super::*;
use crate::survey::tests::{AESCBC, KMS_V2, PROTOBUF, sample, survey_below, survey_of};

const HEAD: &str = "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\n";
/// When the local KEK of the sample was made.
const CREATED: u64 = 1_764_500_000;
const DAY: u64 = 24 * 3600;

fn rules(rules: &str) -> Policy {
    Policy::parse(&format!("{HEAD}{rules}")).unwrap()
}

fn found(policy: &Policy, survey: &Survey, now: u64) -> Vec<(Option<usize>, String)> {
    policy.judge(survey, now).violations.into_iter().map(|one| (one.rule, one.what)).collect()
}

#[test]
fn what_a_policy_finds() {
    let survey = survey_of(&[
        ("/registry/secrets/a/plain", sample(PROTOBUF)),
        ("/registry/secrets/a/local", sample(AESCBC)),
        ("/registry/secrets/a/ours", sample(KMS_V2)),
        ("/registry/configmaps/a/plain", sample(PROTOBUF)),
        // What API servers never encrypt is no violation.
        ("/registry/ranges/servicenodeports", sample(PROTOBUF)),
    ]);
    let count = |text: &str| found(&rules(text), &survey, CREATED + 100 * DAY).len();
    for (rule, violations) in [
        ("rules: [{resources: [secrets], allow: [kms:v2:casemate]}]", 2),
        ("rules: [{resources: [secrets], allow: ['kms:v2', plaintext]}]", 1),
        ("rules: [{resources: [secrets], allow: [aescbc, 'kms:v2', plaintext]}]", 0),
        ("rules: [{resources: [secrets], allow: ['aescbc:key2', 'kms:v2', plaintext]}]", 1),
        ("rules: [{resources: [secrets], allow: ['root:transit:/transit/k8s/3/1764500000']}]", 2),
        ("rules: [{resources: [configmaps], allow: [kms:v2:casemate]}]", 1),
        ("rules: [{resources: ['*.'], allow: [kms:v2:casemate]}]", 3),
        ("rules: [{resources: ['*.*'], allow: [kms:v2:casemate]}]", 3),
        ("rules: [{resources: [deployments.apps], allow: [kms:v2:casemate]}]", 0),
        // The record's KEK is 100 days old, and aescbc does not tell.
        ("rules: [{resources: [secrets], allow: [aescbc, 'kms:v2', plaintext], maxKeyAge: 90d}]", 2),
        ("rules: [{resources: [secrets], allow: [aescbc, 'kms:v2', plaintext], maxKeyAge: 101d}]", 1),
        // Each rule holds.
        ("rules: [{resources: [secrets], allow: ['kms:v2']}, {resources: [secrets], allow: [aescbc]}]", 4),
    ] {
        assert_eq!(count(rule), violations, "{rule}");
    }
}

#[test]
fn old_revisions_count_if_the_policy_says_so() {
    let survey = survey_of(&[
        ("/registry/secrets/a/one", sample(PROTOBUF)),
        ("/registry/secrets/a/one", sample(KMS_V2)),
    ]);
    let rule = "resources: [secrets], allow: ['kms:v2']";
    assert_eq!(found(&rules(&format!("rules: [{{{rule}}}]")), &survey, CREATED), []);
    let strict = rules(&format!("rules: [{{{rule}, includePast: true}}]"));
    let found = found(&strict, &survey, CREATED);
    assert_eq!(found, [(Some(0), "plaintext (protobuf); allowed is kms:v2".to_owned())]);
}

#[test]
fn malformed_values_are_refused_unless_they_are_allowed() {
    let survey = survey_of(&[("/registry/pods/a/one", Some(b"k8s:enc:kms:v2:".to_vec()))]);
    let rule = "rules: [{resources: [secrets], allow: ['kms:v2']}]";
    assert_eq!(found(&rules(rule), &survey, 0), [(None, "malformed: nobody can read it".to_owned())]);
    assert_eq!(found(&rules(&format!("{rule}\nmalformed: allow")), &survey, 0), []);
}

#[test]
fn what_cant_be_told_is_no_yes() {
    let unclear = |rule: &str, survey: &Survey| rules(rule).judge(survey, 0).unclear.join("\n");
    let rule = "rules: [{resources: ['*.example.com'], allow: ['kms:v2']}]";
    let gadgets = survey_of(&[("/registry/gadgets/a/one", sample(PROTOBUF))]);
    assert!(unclear(rule, &gadgets).contains("API group"));
    let elsewhere = survey_below("/other", &[("/registry/secrets/a/one", sample(AESCBC))]);
    assert!(unclear(rule, &elsewhere).contains("nothing is below /other"));
    let rule = "resources: [secrets], allow: ['kms:v2']";
    assert_eq!(unclear(&format!("rules: [{{{rule}, mayBeAbsent: true}}]"), &gadgets), "");
}

#[test]
fn a_rule_that_judges_nothing_is_no_yes() {
    let unclear = |rule: &str, survey: &Survey| rules(rule).judge(survey, CREATED).unclear.join("\n");
    let survey = survey_of(&[
        ("/registry/secrets/a/one", sample(KMS_V2)),
        ("/registry/configmaps/a/gone", sample(KMS_V2)),
        ("/registry/configmaps/a/gone", None),
    ]);
    for (resources, says) in [
        ("secrets", ""),
        ("'*.*'", ""),
        ("'*.'", ""),
        ("secret", "stored of secret:"),
        ("secrets.example.com", "stored of secrets.example.com:"),
        ("'*.apps'", "stored of *.apps:"),
        ("secrets, cofigmaps", "stored of cofigmaps:"),
        // There was one.
        ("configmaps", "stored of configmaps:"),
    ] {
        let rule = format!("resources: [{resources}], allow: ['kms:v2']");
        let told = unclear(&format!("rules: [{{{rule}}}]"), &survey);
        assert!(told.is_empty() == says.is_empty() && told.contains(says), "{resources}: {told}");
        assert_eq!(unclear(&format!("rules: [{{{rule}, mayBeAbsent: true}}]"), &survey), "");
    }
    let past = "rules: [{resources: [configmaps], allow: ['kms:v2'], includePast: true}]";
    assert_eq!(unclear(past, &survey), "");
    // An etcd that was made anew keeps every policy.
    assert!(unclear("rules: [{resources: ['*.*'], allow: ['kms:v2']}]", &survey_of(&[])).contains("*.*"));
}

#[test]
fn a_key_that_is_of_the_future_is_not_young() {
    let survey = survey_of(&[("/registry/secrets/a/one", sample(KMS_V2))]);
    let policy = rules("rules: [{resources: [secrets], allow: ['kms:v2'], maxKeyAge: 90d}]");
    let at = |now: u64| found(&policy, &survey, now).into_iter().map(|(_, what)| what).collect::<String>();
    assert_eq!(at(CREATED + 90 * DAY), "");
    assert!(at(CREATED + 90 * DAY + 1).contains("90 days old"));
    // Clocks of two hosts are some minutes apart; a clock that stepped back by a day would keep a key young.
    assert_eq!(at(CREATED - 3600), "");
    for now in [CREATED - 3601, CREATED - DAY, 0] {
        assert!(at(now).contains("a clock is wrong"), "{now}: {}", at(now));
    }
}

#[test]
fn a_policy_that_would_be_kept_by_anything_is_refused() {
    for (text, says) in [
        ("", "end of input"),
        (
            "apiVersion: v1\nkind: CensusPolicy\nrules: [{resources: [a], allow: [aescbc]}]",
            "write `casemate.dev/v1alpha1`",
        ),
        (&format!("{HEAD}rules: []"), "rules is empty"),
        (&format!("{HEAD}rules: [{{resources: [], allow: [aescbc]}}]"), "rules[0].resources is empty"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: []}}]"), "rules[0].allow is empty"),
        (&format!("{HEAD}rules: [{{resources: [secrets]}}]"), "allow"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [kms]}}]"), "a kind alone"),
        (&format!("{HEAD}rules: [{{resources: ['*'], allow: [aescbc]}}]"), "for the core group"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc], maxKeyAge: 90}}]"), "age"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc], maxKeyAge: 0d}}]"), "no age"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc], maxAge: 9d}}]"), "maxAge"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc]}}]\nmalformed: maybe"), "maybe"),
        (&format!("{HEAD}rule: [{{resources: [secrets], allow: [aescbc]}}]"), "rule"),
        (&format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc]}}]\nrules: []"), "rules"),
        (
            &format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc], include_past: true}}]"),
            "include_past",
        ),
        (
            &format!("{HEAD}rules: [{{resources: [secrets], allow: [aescbc]}}]\n---\n{HEAD}rules: []"),
            "document",
        ),
        ("# nothing\n", ""),
        ("rules", ""),
    ] {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
