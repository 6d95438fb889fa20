//! All of a Decrypt request: key id, annotation and ciphertext, up to where a key service would be asked.
//!
//! Input: length of the key id (1 byte), key id, length of the annotation (2 bytes, big-endian),
//! annotation, ciphertext.
#![no_main]

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{
    LineagePrefix, LocalKek, RECORD_ANNOTATION, ReadPolicy, ReadRule, Record, Refusal, Sealed, payload,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((key_id, annotation, ciphertext)) = split(bytes) else { return };
    let annotations = [(RECORD_ANNOTATION, annotation)];
    let sealed = Sealed { ciphertext, key_id, annotations: &annotations };

    // A policy that reads every root of the record, so that the checks behind are reached.
    let record = Record::decode(annotation);
    let roots = record.as_ref().map(|record| record.core().policy.roots()).unwrap_or_default();
    let rule = |root: &casemate_keys::Root| ReadRule {
        key: LineagePrefix::exactly(&root.lineage),
        algorithms: [root.algorithm].into(),
        min_version: None,
    };
    let mut policy = ReadPolicy {
        cluster: "vectors.example".parse().expect("a cluster id"),
        also_accept: vec![],
        rules: roots.iter().map(rule).collect(),
        origin: OriginPolicy::AcceptUnproven,
    };
    match policy.check(&sealed, 0) {
        Ok(readable) => {
            assert_eq!(readable.record().encode(), annotation);
            assert_eq!(readable.record().core().policy.key_id().as_str(), key_id);
            assert_eq!(readable.attempts().len(), roots.len());
            let foreign = LocalKek::from_bytes(&[7; 32]).expect("32 bytes");
            assert!(readable.local_kek(&*payload::encode(&foreign, readable.core())).is_none());
            assert!(readable.open(&foreign, ciphertext).is_err());
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
    // Without a rule nothing is tried.
    policy.rules.clear();
    match policy.check(&sealed, 0) {
        Ok(_) => panic!("a root that no rule covers is readable"),
        Err(Refusal::NoReadableRoot { roots: named }) => assert_eq!(named.len(), roots.len()),
        Err(_) => {}
    }
});

fn split(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (key_id, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk()?;
    let (annotation, ciphertext) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((std::str::from_utf8(key_id).ok()?, annotation, ciphertext))
}
