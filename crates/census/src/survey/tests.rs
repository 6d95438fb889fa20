use std::sync::Arc;

use super::*;
use crate::bolt::{CACHE_BYTES, Database};
use crate::classify::tests::samples;
use crate::mvcc::Revision;
use crate::mvcc::tests::{Change, store_file};

/// Places in [`samples`].
pub(crate) const PROTOBUF: usize = 0;
pub(crate) const KMS_V1: usize = 3;
pub(crate) const KMS_V2: usize = 4;
pub(crate) const AESCBC: usize = 5;
pub(crate) const AESGCM: usize = 6;
pub(crate) const SECRETBOX: usize = 7;

/// A survey of these values, written one after another from revision 2 on; `None` deletes.
pub(crate) fn survey_of(values: &[(&str, Option<Vec<u8>>)]) -> Survey {
    survey_below("/registry", values)
}

pub(crate) fn survey_below(prefix: &str, values: &[(&str, Option<Vec<u8>>)]) -> Survey {
    let changes: Vec<Change> = (2..)
        .zip(values)
        .map(|(main, (key, value))| (Revision { main, sub: 0 }, key.as_bytes().to_vec(), value.clone()))
        .collect();
    let file = store_file(4096, &changes, &[]);
    let length = file.len() as u64;
    let database = Database::open(Arc::new(file), length, CACHE_BYTES).unwrap();
    let store = Store::open(&database, false).unwrap();
    let mut told = 0;
    let survey = survey(&store, prefix, |_| told += 1).unwrap();
    let counted: u64 = survey.groups.iter().map(Entry::values).sum();
    assert_eq!(told, counted + survey.ungrouped);
    survey
}

/// A sample's value.
pub(crate) fn sample(place: usize) -> Option<Vec<u8>> {
    Some(samples()[place].clone())
}

/// A value of a local key.
pub(crate) fn local(mark: &str) -> Option<Vec<u8>> {
    Some([format!("k8s:enc:{mark}").as_bytes(), &[7; 48]].concat())
}

#[test]
fn values_are_counted_by_what_they_need() {
    let survey = survey_of(&[
        ("/registry/secrets/a/one", sample(PROTOBUF)),
        ("/registry/secrets/a/two", sample(AESCBC)),
        ("/registry/secrets/a/one", sample(KMS_V2)),
        ("/registry/configmaps/a/one", sample(KMS_V2)),
        ("/registry/secrets/a/three", sample(SECRETBOX)),
        ("/registry/secrets/a/three", None),
        ("/registry/secrets/a/four", sample(KMS_V2)),
        ("/other/a", sample(AESGCM)),
    ]);
    assert_eq!((survey.live, survey.past, survey.deleted, survey.outside), (4, 2, 1, 1));
    assert_eq!((survey.revision, survey.ungrouped), (Some(9), 0));
    let counted: Vec<(String, String, u64, u64)> = survey
        .groups
        .iter()
        .map(|Entry { group, live, past }| {
            (group.resource.to_string(), group.encryption.to_string(), live.values, past.values)
        })
        .collect();
    let row = |resource: &str, encryption: &str, live, past| (resource.into(), encryption.into(), live, past);
    assert_eq!(
        counted,
        [
            row("configmaps", "kms:v2:casemate", 1, 0),
            row("secrets", "plaintext (protobuf)", 0, 1),
            row("secrets", "aescbc:key1", 1, 0),
            row("secrets", "secretbox:key1", 0, 1),
            row("secrets", "kms:v2:casemate", 2, 0),
        ]
    );
    let ours = &survey.groups[4].live;
    assert_eq!((ours.oldest, ours.newest), (Some(4), Some(8)));
    assert_eq!(ours.examples, ["/registry/secrets/a/four", "/registry/secrets/a/one"]);
    let value = samples()[KMS_V2].len() as u64;
    assert_eq!(ours.bytes, 2 * value);
    assert!(ours.annotation_bytes > 0 && ours.annotation_bytes < ours.bytes);
    let keys = survey.keys();
    let count = |key: &str| keys.get(&key.parse().unwrap()).copied();
    assert_eq!(count("kms:v2:casemate"), Some((3, 0)));
    assert_eq!(count("root:transit:/transit/k8s/3/1764500000"), Some((3, 0)));
    assert_eq!(count(&format!("recovery:{}", "09".repeat(32))), Some((3, 0)));
    assert_eq!(count("secretbox:key1"), Some((0, 1)));
    assert_eq!(count("aesgcm:key1"), None);
    // One local KEK, one record, however many values.
    let [record] = &survey.records[..] else { panic!("{:?}", survey.records) };
    assert_eq!((record.digest.len(), record.created), (64, 1_764_500_000));
    assert!(keys.contains_key(&format!("local-kek:{}", record.local_kek).parse().unwrap()));
}

#[test]
fn what_was_kept_as_json_is_the_same_survey_and_holds_no_value() {
    let keys: Vec<String> =
        (0..samples().len()).map(|place| format!("/registry/secrets/a/{place}")).collect();
    let mut values: Vec<(&str, Option<Vec<u8>>)> =
        keys.iter().enumerate().map(|(place, key)| (key.as_str(), sample(place))).collect();
    values.push(("/registry/secrets/a/cut", Some(b"k8s:enc:kms:v2:casemate:\x0a\x7fMARKofASecret".to_vec())));
    let survey = survey_of(&values);
    let kept = serde_json::to_string(&survey).unwrap();
    assert_eq!(serde_json::from_str::<Survey>(&kept).unwrap(), survey);
    assert!(!kept.contains("MARKofASecret") && !format!("{survey:?}").contains("MARKofASecret"), "{kept}");
    assert_eq!(survey.malformed.len(), 1);
    let cut = &survey.malformed[0];
    assert_eq!((cut.key.as_str(), cut.live), ("/registry/secrets/a/cut", true));
    assert!(!cut.reasons.is_empty());
}

#[test]
fn a_hostile_file_has_no_more_groups_than_are_told_apart() {
    let names: Vec<String> = (0..MAX_GROUPS + 40).map(|number| format!("aescbc:v1:key{number}:")).collect();
    let values: Vec<_> = names.iter().map(|name| ("/registry/secrets/a/one", local(name))).collect();
    let survey = survey_of(&values);
    assert_eq!((survey.groups.len(), survey.ungrouped), (MAX_GROUPS, 40));
    let malformed: Vec<_> = (0..MAX_MALFORMED + 40)
        .map(|_| ("/registry/secrets/a/one", Some(b"k8s:enc:kms:v2:".to_vec())))
        .collect();
    let survey = survey_of(&malformed);
    assert_eq!((survey.malformed.len(), survey.groups.len()), (MAX_MALFORMED, 1));
    assert_eq!(survey.groups[0].past.examples.len(), MAX_EXAMPLES);
    // Names that are none are not kept.
    let long = format!("/registry/{}/a/one", "x".repeat(3000));
    let survey = survey_of(&[(&long, sample(PROTOBUF)), ("/registry/a\nb/c/d", sample(PROTOBUF))]);
    assert!(survey.groups.iter().all(|entry| entry.group.resource.to_string() == "(no object)"));
    assert!(serde_json::to_string(&survey).unwrap().len() < 2000);
}

#[test]
fn another_prefix_is_noticed() {
    let value = [("/kubernetes/secrets/a/one", sample(PROTOBUF))];
    assert!(survey_of(&value).looked_elsewhere());
    let survey = survey_below("/kubernetes", &value);
    assert!(!survey.looked_elsewhere() && survey.live == 1);
    assert!(!survey_of(&[]).looked_elsewhere());
}
