//! What the program says of itself.
#![allow(clippy::unwrap_used)]

use casemate_keys::crypto_module::{CryptoModule, FIPS_BUILD};
use serde_json::{Value, json};

use crate::program::casemate;

#[test]
fn programs_and_people_read_commit_features_and_cryptographic_module() {
    let module = CryptoModule::linked();
    // What the build was told, the test is told too.
    let commit = std::env::var("CASEMATE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.as_deref().unwrap_or("unknown");
    let features: &[&str] = if FIPS_BUILD { &["fips"] } else { &[] };

    let done = casemate("version --output json").assert().success();
    let said: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(
        said,
        json!({
            "program": "casemate",
            "version": env!("CARGO_PKG_VERSION"),
            "commit": commit,
            "features": features,
            "crypto_module": {"name": module.name, "version": module.version, "fips": FIPS_BUILD},
        })
    );

    let done = casemate("version").assert().success();
    let said = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    for part in [env!("CARGO_PKG_VERSION"), commit, module.version] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
