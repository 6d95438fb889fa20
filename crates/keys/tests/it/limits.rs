//! Limits of a record, at the edge and one beyond, as written and as read.

use casemate_keys::{
    Algorithm, Core, Epoch, Fingerprint, LocalKek, MAX_CORE_LEN, MAX_RECORD_LEN, MAX_WRAP_LEN, PolicyError,
    RECORD_ANNOTATION, Record, RecordError, Refusal, Root, Sealed, Suite, WritePolicy,
};

use crate::forge::{NOW, around_core, key_id_of};
use crate::peers::{Peer, SigningPeer};
use crate::protobuf::{self, Field};
use crate::read::{file, pss, reads};
use crate::sample;

#[test]
fn a_suite_of_a_later_version_is_refused() {
    let (peer, kek) = (file(1), LocalKek::generate());
    let core = |suite| {
        let root = protobuf::encode(&[Field::bytes(1, peer.root.lineage.as_str()), Field::varint(2, 1)]);
        let fields = [
            Field::varint(1, suite),
            Field::bytes(2, "vectors.example"),
            Field::bytes(4, root),
            Field::bytes(6, kek.id().0),
            Field::bytes(8, "test/1"),
        ];
        (protobuf::encode(&fields), key_id_of(&fields))
    };
    let peers = [peer.clone()];
    let policy = reads(&peers, vec![]);
    let check = |suite: u64| {
        let (core, key_id) = core(suite);
        let mut stored = around_core(&core, &key_id, &kek, &peers, &[]);
        stored.ciphertext[0] = suite as u8;
        let annotations = [(RECORD_ANNOTATION, stored.annotation.as_slice())];
        let sealed = Sealed { ciphertext: &stored.ciphertext, key_id: &key_id, annotations: &annotations };
        policy.check(&sealed, NOW).map(drop)
    };
    assert_eq!(check(1), Ok(()));
    for found in [2, 3, 255, 256, 257, u32::MAX] {
        assert_eq!(check(found.into()), Err(Refusal::Record(RecordError::Suite { found })));
    }
}

#[test]
fn limits_of_a_record_are_met_exactly() {
    let peers: Vec<Peer> = (1..=4).map(file).collect();
    let kek = LocalKek::generate();
    let core = |roots: usize, recipients: u8, signer: Option<&SigningPeer>| {
        let recipients = (0..recipients).map(|n| Fingerprint([n; 32])).collect();
        sample::core(Suite::One, &peers[..roots], recipients, signer, &kek)
    };
    let decoded = |record: Result<Record, RecordError>| {
        record.inspect(|record| assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(record)))
    };
    let too_long = |what, found, most| Err(RecordError::TooLong { what, found, most });

    // Wraps, of both kinds; written and read. `raw` is what a careless writer would make.
    let raw = |core: &Core, wrap: &[u8], recovery: &[u8]| {
        let fields = [Field::bytes(1, core.encode()), Field::bytes(2, wrap), Field::bytes(3, recovery)];
        Record::decode(&protobuf::encode(&fields))
    };
    for (length, expected) in [
        (0, Err(RecordError::EmptyWrap)),
        (1, Ok(())),
        (MAX_WRAP_LEN, Ok(())),
        (2049, too_long("a wrap", 2049, 2048)),
    ] {
        let wrap = vec![1; length];
        for (wrap, recovery) in [(wrap.clone(), vec![1]), (vec![1], wrap)] {
            let core = core(1, 1, None);
            assert_eq!(raw(&core, &wrap, &recovery).map(drop), expected);
            let record = Record::new(core, vec![wrap], vec![recovery], None);
            assert_eq!(decoded(record).map(drop), expected);
        }
    }
    // Counts.
    for (wraps, recovery) in [(0, 0), (1, 0), (3, 0), (2, 1)] {
        let record = Record::new(core(2, 0, None), vec![vec![1]; wraps], vec![vec![1]; recovery], None);
        assert!(matches!(record, Err(RecordError::WrapCount { .. })));
    }
    let root = |n: u32| file(n).root;
    for (roots, recipients, expected) in [
        (0, 0, Some(PolicyError::RootCount { found: 0 })),
        (4, 4, None),
        (5, 0, Some(PolicyError::RootCount { found: 5 })),
        (1, 5, Some(PolicyError::RecipientCount { found: 5 })),
    ] {
        let recipients: Vec<_> = (0..recipients).map(|n| Fingerprint([n; 32])).collect();
        let roots: Vec<_> = (1..=roots).map(root).collect();
        let policy = WritePolicy::new(
            Suite::One,
            sample::cluster(),
            Epoch(0),
            roots.clone(),
            recipients.clone(),
            None,
        );
        assert_eq!(policy.err(), expected);
        // The same in a record, sorted as the format wants it.
        let mut fields = vec![Field::varint(1, 1), Field::bytes(2, "vectors.example")];
        fields.extend(roots.iter().map(|root| {
            let number = u64::from(root.algorithm.number());
            Field::bytes(
                4,
                protobuf::encode(&[Field::bytes(1, root.lineage.as_str()), Field::varint(2, number)]),
            )
        }));
        fields.extend(recipients.iter().map(|fingerprint| Field::bytes(5, fingerprint.0)));
        fields.extend([Field::bytes(6, kek.id().0), Field::bytes(8, "test/1")]);
        let mut record = vec![Field::bytes(1, protobuf::encode(&fields))];
        record.extend(roots.iter().map(|_| Field::bytes(2, [1])));
        record.extend(recipients.iter().map(|_| Field::bytes(3, [1])));
        let read = Record::decode(&protobuf::encode(&record)).map(drop);
        assert_eq!(read, expected.map_or(Ok(()), |error| Err(RecordError::Policy(error))));
    }
    // The signature.
    let signer = pss();
    for (length, expected) in [
        (0, Err(RecordError::Signature)),
        (1, Ok(())),
        (384, Ok(())),
        (385, too_long("the origin signature", 385, 384)),
    ] {
        let record = Record::new(core(1, 0, Some(&signer)), vec![vec![1]], vec![], Some(vec![1; length]));
        assert_eq!(decoded(record).map(drop), expected);
    }
    assert_eq!(
        Record::new(core(1, 0, Some(&signer)), vec![vec![1]], vec![], None),
        Err(RecordError::Signature)
    );
    let unnamed = Record::new(core(1, 0, None), vec![vec![1]], vec![], Some(vec![1; 64]));
    assert_eq!(unnamed, Err(RecordError::Signature));
    // The core: a lineage that fills it.
    let filled = |length: usize| {
        let lineage = format!("exec:{}", "a".repeat(length)).parse().unwrap();
        let roots = vec![Root { lineage, algorithm: Algorithm::EXEC }];
        let policy = WritePolicy::new(Suite::One, sample::cluster(), Epoch(0), roots, vec![], None).unwrap();
        Core { policy, ..core(1, 0, None) }
    };
    let room = MAX_CORE_LEN - filled(1000).encode().len() + 1000;
    assert_eq!(filled(room).encode().len(), MAX_CORE_LEN);
    assert!(decoded(Record::new(filled(room), vec![vec![1]], vec![], None)).is_ok());
    let long = filled(room + 1);
    let fields = [Field::bytes(1, long.encode()), Field::bytes(2, [1])];
    let expected = too_long("core", MAX_CORE_LEN + 1, MAX_CORE_LEN);
    assert_eq!(Record::decode(&protobuf::encode(&fields)).map(drop), expected);
    assert_eq!(Record::new(long, vec![vec![1]], vec![], None).map(drop), expected);
    // The record.
    let wraps = |last: usize| vec![vec![1; 2048], vec![1; 2048], vec![1; 2048], vec![1; last]];
    let core = core(4, 0, None);
    let length = Record::new(core.clone(), wraps(1000), vec![], None).unwrap().encode().len();
    let last = MAX_RECORD_LEN - length + 1000;
    let full = decoded(Record::new(core.clone(), wraps(last), vec![], None)).unwrap();
    assert_eq!(full.encode().len(), MAX_RECORD_LEN);
    let expected = too_long("record", MAX_RECORD_LEN + 1, MAX_RECORD_LEN);
    assert_eq!(Record::new(core.clone(), wraps(last + 1), vec![], None).map(drop), expected);
    let mut fields = vec![Field::bytes(1, core.encode())];
    fields.extend(wraps(last + 1).iter().map(|wrap| Field::bytes(2, wrap)));
    assert_eq!(Record::decode(&protobuf::encode(&fields)).map(drop), expected);
    // Too long comes first: nothing of it is parsed.
    assert_eq!(Record::decode(&vec![0; MAX_RECORD_LEN + 1]).map(drop), expected);
    let garbage = protobuf::encode(&[Field::bytes(1, vec![0; MAX_CORE_LEN + 1]), Field::bytes(2, [1])]);
    let expected = too_long("core", MAX_CORE_LEN + 1, MAX_CORE_LEN);
    assert_eq!(Record::decode(&garbage).map(drop), expected);
}
