//! What `casemate-keys` promises, tested from outside.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

// What tests are made with.
mod forge;
mod peers;
mod protobuf;
mod sample;
#[allow(dead_code)] // examples/make_vectors.rs uses the rest
mod vector;

// What is tested.
mod canonical;
mod flips;
mod generated;
mod limits;
mod origin;
mod properties;
mod read;
mod secrets;
mod sizes;
mod vectors;
