//! What holds for all values.

use casemate_keys::{
    Algorithm, ClusterId, Core, DEK_SOURCE_LEN, Epoch, Fingerprint, KekId, KeyId, Lineage, LineagePrefix,
    LocalKek, Record, Root, Suite, WritePolicy, Writer, list,
};
use percent_encoding::percent_decode_str;
use proptest::prelude::*;

fn fields() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Few different bytes, so that fields meet, and all that matter: separators, percent, empty, not ASCII.
    let byte = prop_oneof![4 => prop::sample::select(b"ab/%:~ 1".to_vec()), 1 => any::<u8>()];
    prop::collection::vec(prop::collection::vec(byte, 0..4), 1..4)
}

fn kind() -> impl Strategy<Value = String> {
    prop_oneof![Just("file".to_owned()), Just("f".to_owned()), "[a-z0-9]{1,16}"]
}

fn lineage() -> impl Strategy<Value = Lineage> {
    (kind(), fields()).prop_filter_map("a field", |(kind, fields)| Lineage::new(&kind, fields).ok())
}

fn roots() -> impl Strategy<Value = Vec<Root>> {
    let root = (lineage(), 1..12i32)
        .prop_map(|(lineage, n)| Root { lineage, algorithm: Algorithm::from_number(n).unwrap() });
    prop::collection::vec(root, 1..=4)
}

fn policy() -> impl Strategy<Value = WritePolicy> {
    let cluster = "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?".prop_map(|text| text.parse::<ClusterId>().unwrap());
    let recipients = prop::collection::btree_set(any::<[u8; 32]>(), 0..=4)
        .prop_map(|set| set.into_iter().map(Fingerprint).collect::<Vec<_>>());
    let epoch = prop_oneof![0..3u64, any::<u64>()];
    (cluster, epoch, roots(), recipients, prop::option::of(lineage())).prop_filter_map(
        "each root once",
        |(cluster, epoch, roots, recipients, signer)| {
            WritePolicy::new(Suite::One, cluster, Epoch(epoch), roots, recipients, signer).ok()
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let writer = "[!-.0-~]{1,15}/[!-~]{1,16}".prop_map(|text| text.parse::<Writer>().unwrap());
    let wraps = prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 8);
    let signature = prop::collection::vec(any::<u8>(), 1..=384);
    (policy(), any::<[u8; 32]>(), any::<u64>(), writer, wraps, signature).prop_map(
        |(policy, kek_id, created, writer, wraps, signature)| {
            let (roots, recipients) = (policy.roots().len(), policy.recipients().len());
            let signature = policy.signer().map(|_| signature);
            let core = Core { policy, kek_id: KekId(kek_id), created, writer };
            Record::new(core, wraps[..roots].to_vec(), wraps[4..4 + recipients].to_vec(), signature).unwrap()
        },
    )
}

/// The items of a list, if it is one.
fn items(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk()?;
        let (item, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        items.push(item.to_vec());
        bytes = rest;
    }
    Some(items)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_sealed_opens(
        source in prop::collection::vec(any::<u8>(), 0..600),
        annotation in any::<[u8; 32]>(),
        other in any::<[u8; 32]>(),
    ) {
        let kek = LocalKek::generate();
        match kek.seal(Suite::One, &annotation, &source) {
            Ok(sealed) => {
                prop_assert_eq!(&*kek.open(Suite::One, &annotation, &sealed).unwrap(), &source);
                prop_assert_eq!(kek.open(Suite::One, &other, &sealed).is_ok(), other == annotation);
                prop_assert!(LocalKek::generate().open(Suite::One, &annotation, &sealed).is_err());
            }
            Err(_) => prop_assert!(!DEK_SOURCE_LEN.contains(&source.len())),
        }
    }

    /// What can be read back from the encoding alone is encoded by nothing else.
    #[test]
    fn lists_are_injective(list in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9)) {
        prop_assert_eq!(items(&list::encode(&list)), Some(list));
    }

    #[test]
    fn fields_of_a_lineage_come_back(kind in kind(), fields in fields()) {
        let empty = fields.iter().all(Vec::is_empty) && fields.len() == 1;
        match Lineage::new(&kind, &fields) {
            Ok(lineage) => {
                let decoded: Vec<Vec<u8>> = lineage.fields().map(|f| percent_decode_str(f).collect()).collect();
                prop_assert_eq!(lineage.kind(), kind);
                prop_assert_eq!(decoded, fields);
                prop_assert_eq!(lineage.as_str().parse(), Ok(lineage));
            }
            Err(_) => prop_assert!(empty),
        }
    }

    /// A text that parses is the one that encoding makes.
    #[test]
    fn a_lineage_has_one_spelling(text in "[a-c]{0,2}:?([a/~ :]|%[0-9A-Fa-f]{1,2}|%2F|%20){0,6}") {
        if let Ok(lineage) = text.parse::<Lineage>() {
            let fields = lineage.fields().map(|field| percent_decode_str(field).collect::<Vec<u8>>());
            let again = Lineage::new(lineage.kind(), fields).unwrap();
            prop_assert_eq!(again.as_str(), text);
        }
    }

    /// A prefix covers what has its kind and fields, and more fields; a whole lineage itself alone.
    #[test]
    fn prefixes_end_where_fields_do(a in (kind(), fields()), b in (kind(), fields())) {
        let (Ok(one), Ok(other)) = (Lineage::new(&a.0, &a.1), Lineage::new(&b.0, &b.1)) else { return Ok(()) };
        let covers = a.0 == b.0 && b.1.len() > a.1.len() && b.1.starts_with(&a.1);
        let prefix = LineagePrefix::new(&a.0, &a.1).unwrap();
        prop_assert_eq!(prefix.rest(&other).is_some(), covers);
        if let Some(rest) = prefix.rest(&other) {
            prop_assert_eq!(format!("{one}/{rest}"), other.to_string());
        }
        prop_assert_eq!(LineagePrefix::exactly(&one).rest(&other).is_some(), one == other);
    }

    #[test]
    fn records_come_back(record in record()) {
        let bytes = record.encode();
        let again = Record::decode(&bytes).unwrap();
        prop_assert_eq!(again.encode(), bytes);
        prop_assert_eq!(again.origin_message(), record.origin_message());
        prop_assert_eq!(again.core().policy.key_id(), record.core().policy.key_id());
        prop_assert!(again == record);
    }

    /// The order in which keys are configured does not matter.
    #[test]
    fn a_policy_has_one_key_id(policy in policy(), turn in 0..4usize, other in policy()) {
        let mut roots = policy.roots().to_vec();
        roots.rotate_left(turn % policy.roots().len());
        let recipients = policy.recipients().iter().rev().copied().collect();
        let (cluster, signer) = (policy.cluster().clone(), policy.signer().cloned());
        let again =
            WritePolicy::new(policy.suite(), cluster, policy.epoch(), roots, recipients, signer).unwrap();
        prop_assert_eq!(again.key_id(), policy.key_id());
        prop_assert_eq!(policy.key_id().as_str().parse::<KeyId>(), Ok(policy.key_id()));
        prop_assert!(policy.key_id().as_str().len() <= 1024, "kube-apiserver's limit");
        prop_assert_eq!(other.key_id() == policy.key_id(), other == policy);
    }
}
