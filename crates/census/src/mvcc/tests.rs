use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use prost::encoding;

use super::*;
use crate::bolt::CACHE_BYTES;
use crate::bolt::writer::{Element, Writer};

/// One change: a value written, or a deletion.
pub(crate) type Change = (Revision, Vec<u8>, Option<Vec<u8>>);

pub(crate) fn change(main: u64, key: &str, value: Option<&str>) -> Change {
    (Revision { main, sub: 0 }, key.into(), value.map(|value| value.into()))
}

/// What etcd writes for a change.
pub(crate) fn element((revision, key, value): &Change) -> Element {
    let mut pair = Vec::new();
    encoding::bytes::encode(1, key, &mut pair);
    if let Some(value) = value {
        let main = revision.main as i64;
        for (tag, number) in [(2, main), (3, main), (4, 1)] {
            encoding::int64::encode(tag, &number, &mut pair);
        }
        encoding::bytes::encode(5, value, &mut pair);
    }
    Element::new(revision.encode(value.is_none()), pair)
}

/// A file of etcd with these changes, in order, and these entries of `meta`.
pub(crate) fn store_file(page_size: usize, changes: &[Change], meta: &[Element]) -> Vec<u8> {
    let elements: Vec<Element> = changes.iter().map(element).collect();
    file_of(page_size, &elements, meta)
}

fn file_of(page_size: usize, revisions: &[Element], meta: &[Element]) -> Vec<u8> {
    let mut writer = Writer::new(page_size);
    let keys = writer.tree(revisions);
    let member = br#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;
    let members = Element::inline("members", &[Element::new("8e9e05c52164694d", *member)]);
    let cluster = Element::inline("cluster", &[Element::new("clusterVersion", "3.6.0")]);
    let meta = Element::inline("meta", meta);
    let root = writer.tree(&[cluster, Element::bucket("key", keys), members, meta]);
    writer.finish(root)
}

fn database(file: &[u8]) -> Result<Database, Error> {
    Ok(Database::open(Arc::new(file.to_vec()), file.len() as u64, CACHE_BYTES)?)
}

type Found = (BTreeMap<Vec<u8>, (Revision, Vec<u8>)>, Counts);

fn live(file: &[u8], prefix: &str) -> Result<Found, Error> {
    let database = database(file)?;
    let store = Store::open(&database, false)?;
    let mut live = store.live(prefix.as_bytes())?;
    let (mut found, mut before) = (BTreeMap::new(), None);
    while let Some(Item { revision, deletes, pair, .. }) = live.next_item()? {
        assert!(!deletes && before.is_none_or(|before| revision < before));
        before = Some(revision);
        let again = found.insert(pair.key.to_vec(), (revision, pair.value.to_vec()));
        assert!(again.is_none(), "a key came twice");
    }
    assert!(live.pages_visited() <= database.meta().pages);
    let (counts, seen) = (live.counts(), live.seen().len() as u64);
    assert_eq!(seen, counts.live + counts.deleted);
    Ok((found, counts))
}

fn any_changes() -> impl Strategy<Value = Vec<Change>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    let encrypted = "k8s:enc:[a-z]{0,9}".prop_map(String::into_bytes);
    let value = proptest::option::weighted(0.8, prop_oneof![3 => bytes, 1 => encrypted]);
    proptest::collection::vec(("/(registry|registry2|other)(/[ab]){0,3}", value, any::<bool>()), 0..120)
        .prop_map(|changes| {
            let mut revision = Revision { main: 1, sub: 0 };
            changes
                .into_iter()
                .map(|(key, value, same_transaction)| {
                    revision = match same_transaction {
                        true => Revision { sub: revision.sub + 1, ..revision },
                        false => Revision { main: revision.main + 1, sub: 0 },
                    };
                    (revision, key.into_bytes(), value)
                })
                .collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_live_is_what_replaying_all_changes_leaves(changes in any_changes()) {
        let file = store_file(512, &changes, &[]);
        let within = |key: &[u8]| key == b"/registry" || key.starts_with(b"/registry/");
        let (mut expected, mut keys, mut outside) = (BTreeMap::new(), BTreeSet::new(), 0);
        let mut outside_encrypted = 0;
        for (revision, key, value) in &changes {
            if !within(key) {
                outside += 1;
                let is_encrypted = value.as_ref().is_some_and(|value| value.starts_with(b"k8s:enc:"));
                outside_encrypted += u64::from(is_encrypted);
                continue;
            }
            keys.insert(key.clone());
            match value {
                Some(value) => expected.insert(key.clone(), (*revision, value.clone())),
                None => expected.remove(key),
            };
        }
        for prefix in ["/registry", "/registry/"] {
            let (found, counts) = live(&file, prefix).unwrap();
            prop_assert_eq!(&found, &expected);
            let live = expected.len() as u64;
            let deleted = keys.len() as u64 - live;
            let values = changes.iter().filter(|(_, key, value)| within(key) && value.is_some()).count() as u64;
            let past = values - live;
            prop_assert_eq!(counts, Counts { live, deleted, outside, past, outside_encrypted });
        }
        let database = database(&file).unwrap();
        let store = Store::open(&database, false).unwrap();
        prop_assert_eq!(store.facts().latest, changes.last().map(|(revision, ..)| *revision));
        let mut revisions = store.revisions(Direction::Ascending).unwrap();
        for (revision, key, value) in &changes {
            let item = revisions.next_item().unwrap().unwrap();
            prop_assert_eq!((item.revision, item.pair.key, item.deletes), (*revision, &key[..], value.is_none()));
            prop_assert_eq!(item.pair.value, value.as_deref().unwrap_or_default());
        }
        prop_assert!(revisions.next_item().unwrap().is_none());
    }

    #[test]
    fn what_was_live_at_a_revision_is_what_replaying_up_to_it_leaves(
        changes in any_changes(), until in 0_u64..130
    ) {
        let database = database(&store_file(512, &changes, &[])).unwrap();
        let mut live = Store::open(&database, false).unwrap().live_at(b"", until).unwrap();
        let mut expected = BTreeMap::new();
        for (revision, key, value) in changes.iter().filter(|(revision, ..)| revision.main <= until) {
            match value {
                Some(value) => expected.insert(key.clone(), (*revision, value.clone())),
                None => expected.remove(key),
            };
        }
        let mut found = BTreeMap::new();
        while let Some(item) = live.next_item().unwrap() {
            found.insert(item.pair.key.to_vec(), (item.revision, item.pair.value.to_vec()));
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn whatever_is_changed_it_ends(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut file = sample();
        for (place, byte) in changes {
            *place.get_mut(&mut file[1024..]) = byte;
        }
        let _ = live(&file, "");
    }
}

fn sample() -> Vec<u8> {
    let changes: Vec<Change> = (2..42)
        .map(|main| {
            change(
                main,
                &format!("/registry/secrets/{}", main % 30),
                Some("value of forty bytes or a few more"),
            )
        })
        .chain([change(42, "/registry/secrets/3", None)])
        .collect();
    store_file(512, &changes, &meta())
}

fn meta() -> Vec<Element> {
    vec![
        Element::new("confState", r#"{"voters":[10276657743932975437]}"#),
        Element::new("consistent_index", 77_u64.to_be_bytes()),
        Element::new("finishedCompactRev", Revision { main: 30, sub: 0 }.encode(false)),
        Element::new("scheduledCompactRev", Revision { main: 31, sub: 0 }.encode(false)),
        Element::new("storageVersion", "3.6.0"),
        Element::new("term", 3_u64.to_be_bytes()),
    ]
}

#[test]
fn every_flipped_bit_of_tree_and_revisions_is_found_or_harmless() {
    let file = sample();
    let whole = live(&file, "").unwrap();
    let mut found = 0;
    // Headers, elements and the keys of elements of each leaf: in an element stand flags, place and both lengths.
    for page in (1024..file.len()).step_by(512) {
        let count = usize::from(file[page + 10]);
        for place in page..page + 16 + 16 * count {
            for bit in 0..8 {
                let mut flipped = file.clone();
                flipped[place] ^= 1 << bit;
                match live(&flipped, "") {
                    Ok(same) => assert!(same == whole, "byte {place}, bit {bit}"),
                    Err(_) => found += 1,
                }
            }
        }
    }
    assert!(found > 7000, "{found}");
}

#[test]
fn what_etcd_says_of_itself() {
    let file = sample();
    let database = database(&file).unwrap();
    let store = Store::open(&database, false).unwrap();
    let facts = store.facts();
    let revision = |main| Some(Revision { main, sub: 0 });
    assert_eq!((facts.latest, facts.compacted, facts.compacting), (revision(42), revision(30), revision(31)));
    assert_eq!((facts.consistent_index, facts.term), (Some(77), Some(3)));
    assert_eq!(facts.storage_version.as_deref(), Some("3.6.0"));
    assert_eq!(facts.cluster_version.as_deref(), Some("3.6.0"));
    let [member] = &facts.members[..] else { panic!("{facts:?}") };
    assert_eq!((member.id, member.name.as_str()), (0x8e9e_05c5_2164_694d, "default"));
    assert_eq!(member.peer_urls, ["http://localhost:2380"]);
}

#[test]
fn what_is_no_store_of_a_known_etcd_is_told_by_its_kind() {
    let said = |meta: &[Element]| {
        let file = store_file(4096, &[], meta);
        Store::open(&database(&file).unwrap(), false).map(|_| ()).unwrap_err().to_string()
    };
    assert!(said(&[Element::new("term", [0; 7])]).contains("bucket meta, entry term: it is no number"));
    assert!(said(&[Element::new("finishedCompactRev", [0; 17])]).contains("it is no revision"));
    assert!(said(&[Element::new("storageVersion", "3.6\n")]).contains("it is no version"));
    assert!(said(&[Element::inline("term", &[])]).contains("it is a bucket"));
    let newer = [Element::new("storageVersion", "3.8.0")];
    assert!(said(&newer).contains("storage version 3.8.0, newer than 3.7"));
    let file = store_file(4096, &[], &newer);
    let newer = database(&file).unwrap();
    assert_eq!(Store::open(&newer, true).unwrap().facts().storage_version.as_deref(), Some("3.8.0"));

    let mut writer = Writer::new(4096);
    let root = writer.tree(&[Element::inline("buckets", &[])]);
    let other = writer.finish(root);
    let error = Store::open(&database(&other).unwrap(), false).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NoKeys), "{error}");
}

#[test]
fn each_fault_of_a_revision_is_told_with_its_place() {
    let good = element(&change(5, "/registry/a", Some("v")));
    let with = |change: &dyn Fn(&mut Element)| {
        let mut bad = element(&change_of_six());
        change(&mut bad);
        let file = file_of(4096, &[good.clone(), bad], &[]);
        match live(&file, "") {
            Err(Error::Revision { page: 2, index: 1, fault }) => fault,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(&|bad| bad.is_bucket = true), ValueFault::Bucket);
    assert_eq!(with(&|bad| bad.key.truncate(16)), ValueFault::Number { length: 16 });
    assert_eq!(with(&|bad| bad.key[8] = b'-'), ValueFault::Number { length: 17 });
    assert_eq!(with(&|bad| bad.key.push(b'x')), ValueFault::Number { length: 18 });
    assert_eq!(with(&|bad| bad.value.truncate(4)), ValueFault::Protobuf { at: 0 });
    assert_eq!(with(&|bad| bad.value.clear()), ValueFault::NoKey);
    assert_eq!(with(&|bad| bad.key[7] = 9), ValueFault::Mismatch { found: 6, expected: 9 });
}

fn change_of_six() -> Change {
    change(6, "/registry/b", Some("w"))
}
