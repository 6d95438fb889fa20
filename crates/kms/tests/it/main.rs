//! `casemate-kms` from outside: over its socket, as a process, against bad input and faults.
#![allow(clippy::unwrap_used, clippy::panic)]

mod admin;
mod audit;
mod cache;
mod check;
mod confinement;
mod double;
mod faults;
mod flips;
mod grpc;
mod isolation;
mod memory;
mod node;
mod other_key;
mod outages;
mod process;
mod redundant;
mod reload;
mod restart;
mod rotation;
mod sealed_cache;
mod sockets;
mod status;
mod succession;
mod upgrade;
mod version;
