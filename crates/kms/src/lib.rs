//! `casemate-kms`: the KMS v2 plugin of Kubernetes, with a local key hierarchy over any key service.
//!
//! What it promises kube-apiserver:
//! * Status never waits for a key service, and names only a key id under which Encrypt writes.
//! * Encrypt and Decrypt work from local KEKs in memory; a key service is asked once for each local KEK.
//! * A reply beyond the limits of the contract is never sent; an error says which key, why, and what to do.
//! * kill -9 at any moment leaves nothing that a new start trips over.
//!
//! The data's way: [`socket`] accepts, [`grpc`] speaks KMS v2, [`provider`] answers from one atomic state.
//! Beside it, one task a provider ([`provider::Observer`]) watches root keys, asks
//! [`casemate_kms_state::Machine`] what follows, and swaps that state.
//!
//! Beside both, [`admin`] shows on a socket of its own what goes on, and touches none of it.
//!
//! [`audit`] writes down each call, in a file that shows when it was changed; [`rejected`] sees the calls that are none.
//!
//! [`reload`] takes over a changed configuration while it serves; [`hosted`] is what a provider's callers hold on to.
//!
//! Map: [`config`] (one YAML file), [`check`] (what can be validated without serving), [`serve`] (start to stop),
//! [`traffic`] (what was served, counted), [`cli`] (the command line),
//! [`version`] (what was built).

pub mod admin;
pub mod audit;
pub mod check;
pub mod cli;
pub mod config;
pub mod grpc;
pub mod hosted;
pub mod key_services;
pub mod pkcs11;
pub mod provider;
pub mod rejected;
pub mod reload;
pub mod serve;
pub mod socket;
pub mod traffic;
pub mod version;
