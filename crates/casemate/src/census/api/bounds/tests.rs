//! Bounds against what was there.
#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

/// A page with these counters of Secrets, by prefix.
fn page(started: u64, counts: &[(&str, u64)], gets: u64, key_ids: &[(&str, u64)]) -> Metrics {
    use std::fmt::Write as _;
    let mut text = format!(
        "process_start_time_seconds {started}\netcd_requests_total{{group=\"\",operation=\"get\",resource=\"secrets\"}} {gets}\n"
    );
    for (prefix, count) in counts {
        let _ = writeln!(
            text,
            "apiserver_storage_transformation_operations_total{{resource=\"secrets\",status=\"OK\",transformation_type=\"from_storage\",transformer_prefix=\"{prefix}\"}} {count}"
        );
    }
    for (hash, count) in key_ids {
        let _ = writeln!(
            text,
            "apiserver_envelope_encryption_key_id_hash_total{{key_id_hash=\"{hash}\",provider_name=\"ours\",transformation_type=\"from_storage\"}} {count}"
        );
    }
    Metrics::parse(&text).unwrap()
}

const OURS: &str = "k8s:enc:kms:v2:ours:";

fn exactly(number: u64) -> Bounds {
    Bounds { at_least: number, at_most: number }
}

#[test]
fn where_nobody_else_reads_the_bounds_meet() {
    let before = page(1, &[("identity", 10), (OURS, 20)], 5, &[("new", 20)]);
    let after = page(1, &[("identity", 12), (OURS, 23)], 10, &[("new", 21), ("old", 2)]);
    let told = told(&before, &after, "secrets", 5).unwrap();
    assert_eq!(told.prefixes, BTreeMap::from([("identity".into(), exactly(2)), (OURS.into(), exactly(3))]));
    let key = |hash: &str| ("ours".to_owned(), hash.to_owned());
    assert_eq!(told.key_ids, BTreeMap::from([(key("new"), exactly(1)), (key("old"), exactly(2))]));
    assert_eq!(told.others, 0);
}

#[test]
fn the_name_of_a_local_key_is_no_prefix_of_its_own() {
    let before = page(1, &[], 0, &[]);
    let after = page(1, &[("k8s:enc:aescbc:v1:", 3), ("k1:", 2), ("k2:", 1)], 3, &[]);
    let told = told(&before, &after, "secrets", 3).unwrap();
    assert_eq!(told.prefixes, BTreeMap::from([("k8s:enc:aescbc:v1:".into(), exactly(3))]));
    assert_eq!(told.local_keys, BTreeMap::from([("k1:".into(), exactly(2)), ("k2:".into(), exactly(1))]));
}

#[test]
fn counters_that_tell_nothing_are_not_believed() {
    let before = page(1, &[(OURS, 20)], 5, &[]);
    for (after, silence) in [
        (page(1, &[(OURS, 20)], 5, &[]), Silence::NotCounted),
        (page(1, &[(OURS, 22)], 8, &[]), Silence::NotCounted),
        (page(1, &[(OURS, 19)], 8, &[]), Silence::TwoServers),
        (page(1, &[], 8, &[]), Silence::TwoServers),
        (page(2, &[(OURS, 23)], 8, &[]), Silence::TwoServers),
    ] {
        assert_eq!(told(&before, &after, "secrets", 3), Err(silence), "{after:?}");
    }
}

#[test]
fn what_etcd_gave_without_a_provider_is_plaintext() {
    let told = told(&page(1, &[], 5, &[]), &page(1, &[], 9, &[]), "secrets", 4).unwrap();
    assert_eq!(told.prefixes, BTreeMap::from([(UNCOVERED.to_owned(), exactly(4))]));
}

#[test]
fn counters_of_all_resources_may_be_of_others_only() {
    let page = |count: u64| {
        let count = format!(
            "apiserver_storage_transformation_operations_total{{status=\"OK\",transformation_type=\"from_storage\",transformer_prefix=\"{OURS}\"}} {count}\n"
        );
        Metrics::parse(&count).unwrap()
    };
    let told = |moved: u64| told(&page(7), &page(7 + moved), "secrets", 5).unwrap().prefixes;
    assert_eq!(told(5), BTreeMap::from([(OURS.into(), exactly(5))]));
    let open = Bounds { at_least: 0, at_most: 5 };
    assert_eq!(told(6), BTreeMap::from([(OURS.into(), open), (UNCOVERED.into(), open)]));
}

proptest! {
    /// Whatever others do, what was there lies between the bounds.
    #[test]
    fn the_truth_lies_between(
        truth in prop::array::uniform3(0u64..50),
        others in prop::array::uniform3(0u64..50),
        start in prop::array::uniform3(0u64..50),
    ) {
        let names = ["identity", OURS, "k8s:enc:aesgcm:v1:"];
        let at = |numbers: [u64; 3]| -> Vec<(&str, u64)> { names.into_iter().zip(numbers).collect() };
        let end: Vec<u64> = (0..3).map(|n| start[n] + truth[n] + others[n]).collect();
        let read = truth.iter().sum();
        let told = told(&page(1, &at(start), 0, &[]), &page(1, &at([end[0], end[1], end[2]]), 0, &[]), "secrets", read);
        let told = told.unwrap_or_default();
        for (name, truth) in names.into_iter().zip(truth) {
            let bounds = told.prefixes.get(name).copied().unwrap_or_default();
            prop_assert!(read == 0 || bounds.at_least <= truth && truth <= bounds.at_most, "{name}: {truth} {bounds:?}");
        }
    }

    /// Key ids too, with reads of other resources between.
    #[test]
    fn the_truth_of_key_ids_lies_between(truth in prop::array::uniform2(0u64..50), others in prop::array::uniform2(0u64..50), plain in 0u64..50) {
        let after = page(1, &[("identity", plain), (OURS, truth[0] + truth[1])], 0,
            &[("new", truth[0] + others[0]), ("old", truth[1] + others[1])]);
        let read = plain + truth[0] + truth[1];
        let told = told(&page(1, &[], 0, &[]), &after, "secrets", read).unwrap_or_default();
        for (hash, truth) in ["new", "old"].into_iter().zip(truth) {
            let bounds = told.key_ids.get(&("ours".to_owned(), hash.to_owned())).copied().unwrap_or_default();
            prop_assert!(bounds.at_least <= truth && truth <= bounds.at_most, "{hash}: {truth} {bounds:?}");
        }
    }
}
