//! The lab against its own promises, with the real servers.
#![allow(clippy::panic, clippy::unwrap_used)]

mod admin;
mod census;
mod doctor;
mod encryption_config;
mod failing;
mod fault_proxy;
mod faults;
mod key_faults;
mod key_services;
mod kms_client;
mod leftovers;
mod load;
mod migrate;
mod misbehaving;
mod openbao;
mod opener;
mod outage;
mod over;
mod pkcs11;
mod recover;
mod recovery;
mod rolling;
mod servers;
mod softhsm;
mod status;
mod story;
mod tools;
mod transit;
mod upgrade;

// How `casemate-keys` opens vectors in its own tests.
#[allow(dead_code)]
#[path = "../../../crates/keys/tests/it/peers.rs"]
mod peers;
#[allow(dead_code)]
#[path = "../../../crates/keys/tests/it/vector.rs"]
mod vector;

/// The program `casemate-lab`: the one that this run was told of, or the one that cargo built.
fn program() -> std::ffi::OsString {
    const BUILT: &str = env!("CARGO_BIN_EXE_casemate-lab");
    std::env::var_os("CARGO_BIN_EXE_casemate-lab").unwrap_or_else(|| BUILT.into())
}
