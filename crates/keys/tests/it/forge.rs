//! Opens as the plugin does, and forges what an attacker with all root keys but one goal would write:
//! records whose wraps, key id and ciphertext fit, so that nothing but the rule under test refuses.

use std::collections::HashMap;

use casemate_keys::{
    Digest, LocalKek, RECORD_ANNOTATION, ReadPolicy, Readable, Sealed, Suite, list, payload,
};

use crate::peers::Peer;
use crate::protobuf::{self, Field, Value};
use crate::sample::{SEED, sha256};

pub const NOW: u64 = 1_797_000_000;

/// What stands in etcd.
#[derive(Clone)]
pub struct Stored {
    pub ciphertext: Vec<u8>,
    pub key_id: String,
    pub annotation: Vec<u8>,
}

/// Opens as a plugin that keeps the local KEKs that it has opened. New, it is cold.
pub struct Reader<'a> {
    pub policy: &'a ReadPolicy,
    pub peers: &'a [Peer],
    pub opened: HashMap<Digest, LocalKek>,
    /// Calls to key services.
    pub calls: usize,
}

impl<'a> Reader<'a> {
    pub fn new(policy: &'a ReadPolicy, peers: &'a [Peer]) -> Self {
        Self { policy, peers, opened: HashMap::new(), calls: 0 }
    }

    pub fn open(&mut self, stored: &Stored) -> Result<Vec<u8>, String> {
        let annotations = [(RECORD_ANNOTATION, stored.annotation.as_slice())];
        let sealed =
            Sealed { ciphertext: &stored.ciphertext, key_id: &stored.key_id, annotations: &annotations };
        let readable = self.policy.check(&sealed, NOW).map_err(|refusal| refusal.to_string())?;
        let kek = match self.opened.get(readable.annotation()) {
            Some(kek) => kek.clone(),
            None => {
                let kek = self.unwrap(&readable).ok_or("no wrap opens")?;
                self.opened.insert(*readable.annotation(), kek.clone());
                kek
            }
        };
        readable.open(&kek, &stored.ciphertext).map(|seed| seed.to_vec()).map_err(|error| error.to_string())
    }

    fn unwrap(&mut self, readable: &Readable) -> Option<LocalKek> {
        readable.attempts().iter().find_map(|attempt| {
            let peer = self.peers.iter().find(|peer| peer.root == attempt.root)?;
            self.calls += 1;
            readable.local_kek(&peer.unwrap(readable.core(), &attempt.wrap)?)
        })
    }
}

pub fn open_cold(policy: &ReadPolicy, peers: &[Peer], stored: &Stored) -> Result<Vec<u8>, String> {
    Reader::new(policy, peers).open(stored)
}

/// A record of these core bytes, wrapped under `peers` in their order, with fields 3 and 4 as given: sound
/// but for what the core says.
pub fn around_core(core: &[u8], key_id: &str, kek: &LocalKek, peers: &[Peer], tail: &[Field]) -> Stored {
    let digest = sha256(core);
    let payload = payload::encode(kek, &digest);
    let wraps = peers.iter().map(|peer| Field::bytes(2, peer.wrap(&digest, &*payload)));
    let fields: Vec<Field> =
        [Field::bytes(1, core)].into_iter().chain(wraps).chain(tail.iter().cloned()).collect();
    around_record(protobuf::encode(&fields), key_id, kek)
}

/// What is stored with this annotation: its ciphertext binds it.
pub fn around_record(annotation: Vec<u8>, key_id: &str, kek: &LocalKek) -> Stored {
    let ciphertext = kek.seal(Suite::One, &sha256(&annotation), &SEED).unwrap();
    Stored { ciphertext, key_id: key_id.to_owned(), annotation }
}

/// The key id of these fields of a core as the format defines it, without the crate's own types: of a
/// doubled field the last counts, and roots and recipients stay in their order.
pub fn key_id_of(core: &[Field]) -> String {
    let roots = core.iter().filter(|field| field.number == 4).map(|root| {
        let root = protobuf::parse(bytes_of(Some(&root.value))).unwrap();
        list::encode([bytes_of(last(&root, 1)).to_vec(), decimal(last(&root, 2))])
    });
    let recipients = core.iter().filter(|field| field.number == 5).map(|field| bytes_of(Some(&field.value)));
    let digest = sha256(&list::encode([
        b"casemate.dev/v1/key-id".to_vec(),
        decimal(last(core, 1)),
        bytes_of(last(core, 2)).to_vec(),
        decimal(last(core, 3)),
        list::encode(roots),
        list::encode(recipients),
        bytes_of(last(core, 9)).to_vec(),
    ]));
    format!("{}:{}", String::from_utf8_lossy(bytes_of(last(core, 2))), hex::encode(&digest[..16]))
}

fn last(fields: &[Field], number: u64) -> Option<&Value> {
    fields.iter().rfind(|field| field.number == number).map(|field| &field.value)
}

fn bytes_of(value: Option<&Value>) -> &[u8] {
    match value {
        Some(Value::Bytes(value)) => value,
        _ => &[],
    }
}

fn decimal(value: Option<&Value>) -> Vec<u8> {
    match value {
        Some(Value::Varint(value)) => value.to_string().into_bytes(),
        _ => b"0".to_vec(),
    }
}
