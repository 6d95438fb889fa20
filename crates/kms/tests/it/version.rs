//! What the program says of itself, and what a FIPS build refuses.

use std::process::{Command, Output};

use casemate_keys::crypto_module::{CryptoModule, FIPS_BUILD};
use serde_json::{Value, json};

use crate::process::{Host, program};

fn version(arguments: &[&str]) -> Output {
    Command::new(program()).arg("version").args(arguments).output().unwrap()
}

#[test]
fn programs_read_commit_features_and_cryptographic_module() {
    let said: Value = serde_json::from_slice(&version(&["--output", "json"]).stdout).unwrap();
    let module = CryptoModule::linked();
    // What the build was told, the test is told too.
    let commit = std::env::var("CASEMATE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let features: &[&str] = if FIPS_BUILD { &["fips"] } else { &[] };
    assert_eq!(
        said,
        json!({
            "program": "casemate-kms",
            "version": env!("CARGO_PKG_VERSION"),
            "commit": commit.as_deref().unwrap_or("unknown"),
            "features": features,
            "crypto_module": {"name": module.name, "version": module.version, "fips": FIPS_BUILD},
            "configuration": "casemate.dev/v1alpha1",
            "kms": "v2",
            "record_format": 1,
            "key_services": ["file", "transit", "pkcs11"],
        })
    );
}

#[test]
fn people_read_the_same() {
    let said = String::from_utf8(version(&[]).stdout).unwrap();
    assert!(said.starts_with(concat!("casemate-kms   ", env!("CARGO_PKG_VERSION"), "\n")), "{said}");
    let mode = if FIPS_BUILD { "AWS-LC-FIPS" } else { "not FIPS" };
    let module = said.lines().find(|line| line.starts_with("crypto module  ")).unwrap();
    assert!(module.contains(mode), "{said}");
}

#[test]
fn age_recipients_are_refused_by_a_fips_build_alone() {
    let host = Host::new();
    host.set(
        "recoveryRecipients: [{name: safe, age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2}]",
    );
    let checked = host.run(&["check"]);
    let said = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code() == Some(2), FIPS_BUILD, "{said}");
    assert_eq!(said.contains("not available in a FIPS build"), FIPS_BUILD, "{said}");
}

/// What decision 0013 is about; cargo takes it from `.cargo/config.toml`.
#[test]
fn builds_in_the_repository_have_no_jitter_entropy() {
    assert_eq!(option_env!("AWS_LC_SYS_NO_JITTER_ENTROPY"), Some("1"));
    assert_eq!(option_env!("AWS_LC_FIPS_SYS_NO_JITTER_ENTROPY"), None, "FIPS builds keep theirs");
}
