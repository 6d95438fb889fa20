//! What version 1 published opens.

use std::path::Path;

use casemate_keys::Record;
use casemate_keys::names::sha256;
use casemate_recipients::{Identity, Recipient};
use serde_json::Value;

fn vector() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/v1/recovery.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn each_identity_opens_its_wrap_down_to_the_dek_source_and_no_other() {
    let vector = vector();
    let bytes = |field: &str| hex::decode(vector[field].as_str().unwrap()).unwrap();
    let annotation = bytes("annotation");
    let record = Record::decode(&annotation).unwrap();
    let pairs = vector["recovery"].as_array().unwrap();
    assert_eq!(pairs.len(), 2);
    for pair in pairs {
        let identity = Identity::parse(pair["identity"].as_str().unwrap().as_bytes()).unwrap();
        let recipient: Recipient = pair["recipient"].as_str().unwrap().parse().unwrap();
        assert_eq!(identity.recipient(), recipient);
        let mut opened = 0;
        for (fingerprint, wrap) in record.recovery_wraps() {
            let unwrapped = identity.unwrap(wrap);
            assert_eq!(unwrapped.is_ok(), *fingerprint == recipient.fingerprint());
            let Ok(payload) = unwrapped else { continue };
            let kek = record.core().local_kek(&*payload).unwrap();
            assert_eq!(kek.id(), record.core().kek_id);
            let opens =
                kek.open(record.core().policy.suite(), &sha256(&annotation), &bytes("ciphertext")).unwrap();
            assert_eq!(*opens, bytes("dek_source"));
            opened += 1;
        }
        assert_eq!(opened, 1);
    }
}
