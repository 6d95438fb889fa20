//! The value of the annotation: any bytes. What decodes is what would be encoded.
#![no_main]

use casemate_keys::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = Record::decode(bytes) else { return };
    assert_eq!(record.encode(), bytes, "a record has one encoding");
    let policy = &record.core().policy;
    assert_eq!(record.wraps().count(), policy.roots().len());
    assert_eq!(record.recovery_wraps().count(), policy.recipients().len());
    assert_eq!(record.origin_signature().is_some(), policy.signer().is_some());
    assert!(policy.key_id().as_str().starts_with(policy.cluster().as_str()));
});
