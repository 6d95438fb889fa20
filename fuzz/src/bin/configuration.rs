//! The configuration of casemate-kms: any text. What is accepted can be used; what is not has a line.
#![no_main]

use std::path::Path;

use casemate_kms::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = Path::new("/config.yaml");
    match Config::parse(text, file) {
        Ok(config) => {
            for provider in &config.providers {
                assert!(!provider.write_keys().is_empty());
                let policy = provider.read_policy(&config.cluster_id);
                assert!(policy.rules.len() >= provider.root_keys.len());
                assert!(provider.endpoint.path().is_absolute());
            }
        }
        Err(error) => assert!(error.to_string().starts_with("/config.yaml:")),
    }
});
