//! The committed code is what the published `.proto` generates.

use std::path::Path;

#[test]
fn record_proto_and_committed_code_agree() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = crate_dir.join("../../proto");
    let descriptors = protox::compile(["record.proto"], [&protos]).unwrap();
    let out = tempfile::tempdir().unwrap();
    prost_build::Config::new().out_dir(out.path()).compile_fds(descriptors).unwrap();
    let fresh = std::fs::read_to_string(out.path().join("casemate.v1.rs")).unwrap();
    let committed = crate_dir.join("src/record/generated.rs");
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(committed).unwrap_or_default();
    assert!(
        fresh == committed,
        "proto/record.proto changed: CASEMATE_REGENERATE=1 cargo test -p casemate-keys, then review the difference"
    );
}
