//! An EncryptionConfiguration: any bytes. What is accepted is written and read back the same; what is not says why.
#![no_main]

use casemate_encryption_config::{EncryptionConfiguration, GroupResource, ServerFlags};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let flags = ServerFlags { automatic_reload: false, kms_v1: true };
    match EncryptionConfiguration::read(bytes, flags) {
        Ok(config) => {
            let written = config.to_yaml();
            let again = EncryptionConfiguration::read(written.as_bytes(), flags);
            assert_eq!(again.as_ref(), Ok(&config));
            assert_eq!(again.map(|again| again.to_yaml()), Ok(written));
            let coverage = config.coverage(&GroupResource::parse("secrets"));
            let stored = format!("{}{{}}", coverage.writer().write_prefix());
            assert_eq!(coverage.readers(stored.as_bytes())[0].transformer, coverage.writer());
        }
        Err(refused) => assert!(!refused.problems().is_empty()),
    }
});
