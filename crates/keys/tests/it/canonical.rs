//! A record has one encoding. Each other spelling here is a record whose wraps, key id and ciphertext fit
//! the bytes as they stand: an attacker who may wrap made it, and nothing but the rule refuses it.

use std::mem::discriminant;

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{Algorithm, LocalKek, ReadPolicy, Record, list};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::forge::{Stored, around_core, around_record, key_id_of, open_cold};
use crate::peers::{Material, Peer};
use crate::protobuf::{self, Field, Value};
use crate::sample::{CREATED, SEED};
use crate::vector::read_policy;

/// A record with every field, in parts.
struct Base {
    kek: LocalKek,
    /// In the record's order.
    peers: Vec<Peer>,
    policy: ReadPolicy,
    core: Vec<Field>,
    /// Recovery wraps and signature; nobody opens them here.
    tail: Vec<Field>,
}

impl Base {
    fn full() -> Self {
        let mut base = Self::sparse();
        base.core.insert(2, Field::varint(3, 300));
        base.core.insert(5, Field::bytes(5, [1; 32]));
        base.core.insert(6, Field::bytes(5, [2; 32]));
        base.core.insert(8, Field::varint(7, CREATED));
        base.core.push(Field::bytes(9, "pkcs11:5167"));
        base.tail = vec![Field::bytes(3, b"one"), Field::bytes(3, b"two"), Field::bytes(4, [3; 64])];
        base
    }

    /// Every field that may be left out is.
    fn sparse() -> Self {
        let peers = vec![
            Peer::new("transit:/t/k/1/2", Algorithm::TRANSIT, Material::Key([4; 32])),
            Peer::file(&"4f".repeat(16), 1, [5; 32]),
        ];
        let kek = LocalKek::generate();
        let mut core = vec![Field::varint(1, 1), Field::bytes(2, "vectors.example")];
        core.extend(peers.iter().map(|peer| Field::bytes(4, protobuf::encode(&root(peer)))));
        core.extend([Field::bytes(6, kek.id().0), Field::bytes(8, "test/1")]);
        let origin = OriginPolicy::Signed(vec![]);
        let policy = read_policy("vectors.example".parse().unwrap(), &peers, origin);
        Self { kek, peers, policy, core, tail: vec![] }
    }

    fn key_id(&self) -> String {
        key_id_of(&self.core)
    }

    fn stored(&self, core: &[u8], key_id: &str) -> Stored {
        around_core(core, key_id, &self.kek, &self.peers, &self.tail)
    }

    fn record(&self) -> Vec<Field> {
        protobuf::parse(&self.stored(&protobuf::encode(&self.core), "").annotation).unwrap()
    }

    fn open(&self, stored: &Stored) -> Result<Vec<u8>, String> {
        open_cold(&self.policy, &self.peers, stored)
    }

    /// The same core with another encoding, re-wrapped.
    fn open_core(&self, core: &[u8]) -> Result<Vec<u8>, String> {
        self.open(&self.stored(core, &self.key_id()))
    }

    /// The same record with another encoding, re-sealed.
    fn open_record(&self, record: Vec<u8>) -> Result<Vec<u8>, String> {
        self.open(&around_record(record, &self.key_id(), &self.kek))
    }

    /// Another core, with the key id that it derives to.
    fn open_changed(&self, change: impl FnOnce(&mut Vec<Field>)) -> Result<Vec<u8>, String> {
        let mut core = self.core.clone();
        change(&mut core);
        self.open(&self.stored(&protobuf::encode(&core), &key_id_of(&core)))
    }
}

fn root(peer: &Peer) -> Vec<Field> {
    let number = u64::from(peer.root.algorithm.number());
    vec![Field::bytes(1, peer.root.lineage.as_str()), Field::varint(2, number)]
}

/// Other encodings that a lenient decoder takes for the same message.
fn same_to_a_lenient_decoder(fields: &[Field]) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    let mut add = |what: String, changed: &[Field]| out.push((what, protobuf::encode(changed)));
    let with = |index: usize, field: Field| {
        let mut changed = fields.to_vec();
        changed.insert(index, field);
        changed
    };

    let unknown = [
        Value::Varint(0),
        Value::Varint(1),
        Value::Fixed64([0; 8]),
        Value::Bytes(vec![]),
        Value::Bytes(b"x".to_vec()),
        Value::Group(vec![]),
        Value::Group(vec![Field::varint(1, 1)]),
        Value::Fixed32([0; 4]),
    ];
    for number in [10, 15, 16, 2047, 2048, (1 << 29) - 1] {
        for value in &unknown {
            for index in [0, 1, fields.len()] {
                let field = Field::new(number, value.clone());
                add(format!("unknown field {field:?} at {index}"), &with(index, field));
            }
        }
    }
    for (index, field) in fields.iter().enumerate() {
        for padding in [1, 2, 3, 4] {
            let mut changed = fields.to_vec();
            changed[index].padded_tag = padding;
            add(format!("tag of field {} padded by {padding}", field.number), &changed);
        }
        for padding in [1, 2, 4] {
            let mut changed = fields.to_vec();
            changed[index].padded_value = padding;
            add(format!("value or length of field {} padded by {padding}", field.number), &changed);
        }
        let repeated = fields.iter().filter(|other| other.number == field.number).count() > 1;
        if !repeated {
            add(format!("field {} doubled", field.number), &with(index, field.clone()));
            add(format!("field {} again at the end", field.number), &with(fields.len(), field.clone()));
            let empty = match field.value {
                Value::Varint(_) => Field::varint(field.number, 0),
                _ => Field::bytes(field.number, []),
            };
            add(format!("field {}, first empty", field.number), &with(index, empty));
        }
        for other in index + 1..fields.len() {
            // Two of one repeated field change places elsewhere: that's another message.
            if fields[index..=other].windows(2).all(|pair| pair[0].number != pair[1].number) {
                let mut changed = fields.to_vec();
                changed.swap(index, other);
                add(format!("fields {} and {} swapped", field.number, fields[other].number), &changed);
            }
        }
    }
    out
}

/// Refused, and by the rule for the message itself.
fn not_canonical(message: &str, what: &str, opened: Result<Vec<u8>, String>) {
    let error = opened.expect_err(what);
    assert!(
        error.contains(&format!("{message} is not canonical")),
        "{what}: refused by another rule: {error}"
    );
}

fn refused(what: &str, opened: Result<Vec<u8>, String>) {
    assert!(opened.is_err(), "{what}: opened");
}

#[test]
fn the_bases_open() {
    for base in [Base::full(), Base::sparse()] {
        assert_eq!(base.open_core(&protobuf::encode(&base.core)).as_deref(), Ok(&SEED[..]));
        assert_eq!(base.open_record(protobuf::encode(&base.record())).as_deref(), Ok(&SEED[..]));
    }
}

#[test]
fn other_spellings_of_a_record() {
    for base in [Base::full(), Base::sparse()] {
        for (what, bytes) in same_to_a_lenient_decoder(&base.record()) {
            not_canonical("record", &what, base.open_record(bytes));
        }
    }
}

#[test]
fn other_spellings_of_a_core() {
    for base in [Base::full(), Base::sparse()] {
        for (what, bytes) in same_to_a_lenient_decoder(&base.core) {
            not_canonical("core", &what, base.open_core(&bytes));
        }
    }
}

#[test]
fn other_spellings_of_a_root() {
    let base = Base::full();
    let index = base.core.iter().position(|field| field.number == 4).unwrap();
    for (what, bytes) in same_to_a_lenient_decoder(&root(&base.peers[0])) {
        let mut core = base.core.clone();
        core[index] = Field::bytes(4, bytes);
        not_canonical("core", &what, base.open_core(&protobuf::encode(&core)));
    }
}

#[test]
fn defaults_are_left_out() {
    let base = Base::sparse();
    for (index, field) in
        [(2, Field::varint(3, 0)), (5, Field::varint(7, 0)), (base.core.len(), Field::bytes(9, ""))]
    {
        let mut core = base.core.clone();
        core.insert(index, field.clone());
        not_canonical("core", &format!("{field:?}"), base.open_core(&protobuf::encode(&core)));
    }
    let mut record = base.record();
    record.push(Field::bytes(4, []));
    not_canonical("record", "an empty signature", base.open_record(protobuf::encode(&record)));
}

/// A decoder cuts 64 bits to the 32 of the field.
#[test]
fn numbers_do_not_overflow() {
    let base = Base::full();
    for high in [1 << 32, 1 << 63, u64::MAX << 32] {
        let mut core = base.core.clone();
        core[0] = Field::varint(1, 1 | high);
        not_canonical("core", "suite", base.open_core(&protobuf::encode(&core)));

        let mut algorithm = root(&base.peers[0]);
        let Value::Varint(number) = algorithm[1].value else { panic!() };
        algorithm[1] = Field::varint(2, number | high);
        let mut core = base.core.clone();
        let index = core.iter().position(|field| field.number == 4).unwrap();
        core[index] = Field::bytes(4, protobuf::encode(&algorithm));
        not_canonical("core", "algorithm", base.open_core(&protobuf::encode(&core)));
    }
    for suite in [0, 2, 255, 256, 257, u64::from(u32::MAX)] {
        refused("suite", base.open_changed(|core| core[0] = Field::varint(1, suite)));
    }
    for algorithm in [0, u64::from(u32::MAX), 1 << 31, u64::MAX] {
        let mut other = root(&base.peers[0]);
        other[1] = Field::varint(2, algorithm);
        let root = Field::bytes(4, protobuf::encode(&other));
        let error = base.open_changed(|core| core[3] = root).unwrap_err();
        assert!(error.contains("no algorithm") || error.contains("canonical"), "{algorithm}: {error}");
    }
}

#[test]
fn sets_are_sorted_and_hold_each_once() {
    let base = Base::full();
    let at = |number| base.core.iter().position(|field| field.number == number).unwrap();
    for number in [4, 5] {
        let mut core = base.core.clone();
        core.swap(at(number), at(number) + 1);
        // The key id of the sorted set, with the wraps in the sorted order: sound but for the spelling.
        not_canonical("core", "unsorted", base.open_core(&protobuf::encode(&core)));
        // And of the set as it stands, with the wraps in that order.
        let mut peers = base.peers.clone();
        peers.reverse();
        let bytes = protobuf::encode(&core);
        let stored = around_core(&bytes, &key_id_of(&core), &base.kek, &peers, &base.tail);
        refused("unsorted, wraps too", base.open(&stored));

        let doubled = base.open_changed(|core| core[at(number) + 1] = core[at(number)].clone());
        assert!(doubled.unwrap_err().contains("is named twice"), "{number}");
    }
    let other_algorithm = {
        let mut other = root(&base.peers[0]);
        other[1] = Field::varint(2, 10);
        Field::bytes(4, protobuf::encode(&other))
    };
    let doubled = base.open_changed(|core| core[at(4) + 1] = other_algorithm);
    assert!(doubled.unwrap_err().contains("is named twice"));
    // Sorted by the encoded list, whose length leads, and not by the text.
    let (first, second) = (&base.peers[0], &base.peers[1]);
    assert!(first.root.lineage.as_str() > second.root.lineage.as_str());
    let encoded =
        |peer: &Peer| list::encode([peer.root.lineage.as_str(), &peer.root.algorithm.number().to_string()]);
    assert!(encoded(first) < encoded(second));
}

#[test]
fn what_is_no_message_of_the_schema() {
    let base = Base::full();
    let messages: [(&str, Vec<Field>); 2] = [("record", base.record()), ("core", base.core.clone())];
    for (message, fields) in messages {
        let open = |bytes: Vec<u8>| match message {
            "record" => base.open_record(bytes),
            _ => base.open_core(&bytes),
        };
        let whole = protobuf::encode(&fields);
        for garbage in [&[0][..], &[0x80], &[0x08], &[0x0a, 5], &[0x0b], &[0x0c], &[0x0f], &[0xff; 11]] {
            refused("garbage behind", open([&whole, garbage].concat()));
            refused("garbage in front", open([garbage, &whole].concat()));
        }
        for length in 0..whole.len() {
            refused("truncated", open(whole[..length].to_vec()));
        }
        for index in 0..fields.len() {
            let number = fields[index].number;
            let plain = match &fields[index].value {
                Value::Varint(value) => value.to_le_bytes()[..1].to_vec(),
                Value::Bytes(bytes) => bytes.clone(),
                _ => vec![],
            };
            // Another wire type; a number as if it were packed.
            for value in [
                Value::Varint(1),
                Value::Fixed64([1; 8]),
                Value::Fixed32([1; 4]),
                Value::Group(vec![]),
                Value::Group(protobuf::parse(&plain).unwrap_or_default()),
                Value::Bytes(plain),
            ] {
                if discriminant(&value) != discriminant(&fields[index].value) {
                    let mut changed = fields.clone();
                    changed[index] = Field::new(number, value);
                    refused("another wire type", open(protobuf::encode(&changed)));
                }
            }
            // Epoch and time may be left out: then it's another record, with another key id or core.
            let mut without = fields.clone();
            without.remove(index);
            if !(message == "core" && number == 7) {
                refused(&format!("{message} without field {number}"), open(protobuf::encode(&without)));
            }
        }
    }
}

#[test]
fn names_have_one_spelling() {
    let base = Base::full();
    let at = |number| base.core.iter().position(|field| field.number == number).unwrap();
    let not_utf8 = [&b"\xff"[..], b"a\xc3", b"\xc0\xafa", b"\xed\xa0\x80"];
    for bad in
        [&b""[..], b"Vectors.example", b"vectors.example.", b"vectors example", b"a:b", b"vect\xc3\xb6rs"]
            .iter()
            .chain(&not_utf8)
    {
        refused("cluster", base.open_changed(|core| core[at(2)] = Field::bytes(2, bad)));
        // A key id of the right cluster does not help.
        let mut core = base.core.clone();
        core[at(2)] = Field::bytes(2, bad);
        refused("cluster", base.open_core(&protobuf::encode(&core)));
    }
    for bad in [&b""[..], b"test", b"/1", b"test/", b"te st/1", b"test/1\n", b"t\xc3\xa9st/1", &[b'/'; 33]]
        .iter()
        .chain(&not_utf8)
    {
        refused("writer", base.open_changed(|core| core[at(8)] = Field::bytes(8, bad)));
    }
    let lineages = [
        &b""[..],
        b"file",
        b"file:",
        b":a",
        b"File:a",
        b"file:a b",
        b"file:%41",
        b"file:%2f",
        b"file:%2F%",
        b"file:%2",
        b"file:%zz",
        b"file:a:b",
        b"file:a+b",
        b"file:\xc3\xa9",
        b"file:%c3%a9",
        b"aaaaaaaaaaaaaaaaa:a",
    ];
    for bad in lineages.iter().chain(&not_utf8) {
        if !bad.is_empty() {
            refused("signer", base.open_changed(|core| core[at(9)] = Field::bytes(9, bad)));
        }
        let root = protobuf::encode(&[Field::bytes(1, bad), Field::varint(2, 1)]);
        for which in [at(4), at(4) + 1] {
            refused("root", base.open_changed(|core| core[which] = Field::bytes(4, &root)));
        }
    }
    for length in [0, 1, 31, 33, 64] {
        let digest = vec![9; length];
        refused("kek id", base.open_changed(|core| core[at(6)] = Field::bytes(6, &digest)));
        refused("fingerprint", base.open_changed(|core| core[at(5) + 1] = Field::bytes(5, &digest)));
    }
}

/// Changes to fields that keep them looking like a record.
#[derive(Clone, Debug)]
enum Change {
    Double(Index, Index),
    Swap(Index, Index),
    Remove(Index),
    PadTag(Index, usize),
    PadValue(Index, usize),
    Set(Index, u64),
    Resize(Index, usize),
    Renumber(Index, u64),
    Insert(Index, u64, u64),
    InsertBytes(Index, u64, Vec<u8>),
    Byte(Index, Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    use Change::*;
    let index = any::<Index>;
    prop_oneof![
        (index(), index()).prop_map(|(i, j)| Double(i, j)),
        (index(), index()).prop_map(|(i, j)| Swap(i, j)),
        index().prop_map(Remove),
        (index(), 1..9usize).prop_map(|(i, n)| PadTag(i, n)),
        (index(), 1..9usize).prop_map(|(i, n)| PadValue(i, n)),
        (index(), prop_oneof![0..20u64, any::<u64>()]).prop_map(|(i, n)| Set(i, n)),
        (index(), 0..70usize).prop_map(|(i, n)| Resize(i, n)),
        (index(), 0..20u64).prop_map(|(i, n)| Renumber(i, n)),
        (index(), 0..20u64, any::<u64>()).prop_map(|(i, n, v)| Insert(i, n, v)),
        (index(), 0..20u64, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(i, n, v)| InsertBytes(i, n, v)),
        (index(), index(), any::<u8>()).prop_map(|(i, j, v)| Byte(i, j, v)),
    ]
}

fn apply(change: &Change, fields: &mut Vec<Field>) {
    if fields.is_empty() {
        return;
    }
    let length = fields.len();
    let at = |index: &Index| index.index(length);
    match change {
        Change::Double(i, j) => fields.insert(at(j), fields[at(i)].clone()),
        Change::Swap(i, j) => fields.swap(at(i), at(j)),
        Change::Remove(i) => drop(fields.remove(at(i))),
        Change::PadTag(i, n) => fields[at(i)].padded_tag = *n,
        Change::PadValue(i, n) => fields[at(i)].padded_value = *n,
        Change::Set(i, n) => fields[at(i)].value = Value::Varint(*n),
        Change::Renumber(i, n) => fields[at(i)].number = *n,
        Change::Insert(i, n, v) => fields.insert(at(i), Field::varint(*n, *v)),
        Change::InsertBytes(i, n, v) => fields.insert(at(i), Field::bytes(*n, v)),
        Change::Resize(i, n) => {
            if let Value::Bytes(bytes) = &mut fields[at(i)].value {
                bytes.resize(*n, b'a');
            }
        }
        Change::Byte(i, j, v) => {
            if let Value::Bytes(bytes) = &mut fields[at(i)].value
                && !bytes.is_empty()
            {
                let j = j.index(bytes.len());
                bytes[j] = *v;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    /// Whatever is accepted is what would be written.
    #[test]
    fn what_decodes_encodes_to_itself(
        of_record in prop::collection::vec(change(), 0..2),
        of_core in prop::collection::vec(change(), 0..3),
        of_root in prop::collection::vec(change(), 0..2),
        full in any::<bool>(),
    ) {
        let base = if full { Base::full() } else { Base::sparse() };
        let mut root = root(&base.peers[0]);
        of_root.iter().for_each(|change| apply(change, &mut root));
        let mut core = base.core.clone();
        let first = core.iter().position(|field| field.number == 4).unwrap();
        core[first] = Field::bytes(4, protobuf::encode(&root));
        of_core.iter().for_each(|change| apply(change, &mut core));
        let mut record = base.record();
        record[0] = Field::bytes(1, protobuf::encode(&core));
        of_record.iter().for_each(|change| apply(change, &mut record));
        let bytes = protobuf::encode(&record);
        match Record::decode(&bytes) {
            Ok(record) => prop_assert_eq!(record.encode(), bytes),
            Err(_) => prop_assert!(!(of_record.is_empty() && of_core.is_empty() && of_root.is_empty())),
        }
    }
}
