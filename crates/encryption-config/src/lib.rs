//! kube-apiserver's `EncryptionConfiguration`: what it says, which provider an object falls under, and a file that
//! says the same again.
//!
//! What this crate promises:
//! * [`EncryptionConfiguration::read`] accepts what kube-apiserver accepts and refuses what it refuses, under the
//!   [`ServerFlags`] that it runs with: YAML 1.1 as its library reads it, JSON, defaults, wildcards, what masks what.
//!   The lab compares both on a corpus and on thousands of mutations of it (kube-apiserver 1.37; the rules of 1.31
//!   are the same). Where the two differ, it is about syntax, and it is this crate that refuses: a file that is not UTF-8,
//!   tags that are none of YAML's own, line ends of YAML 1.1 only, half a surrogate pair in JSON, a comment right after a
//!   bracket, more than 64 levels or 100 000 values.
//! * A refusal lists every [`Problem`] that was found, each with line, field, what was found, what is accepted and what
//!   to do. No error, `Debug` or `Display` shows a key; keys are wiped when dropped. The text that a configuration is
//!   read from is its caller's to wipe.
//! * [`EncryptionConfiguration::to_yaml`] writes equal configurations as equal bytes, defaults spelled out, so that API
//!   servers that share one [`file_hash`] share one configuration. What is written is read back as the same value.
//! * [`EncryptionConfiguration::coverage`] says what kube-apiserver would do with an object of one resource: what it
//!   writes, and what it tries in which order to read a stored value.
//!
//! Pure: no I/O, no clock, no async.
//!
//! ```
//! use casemate_encryption_config::{EncryptionConfiguration, GroupResource, Provider, ServerFlags};
//!
//! let file = "
//! apiVersion: apiserver.config.k8s.io/v1
//! kind: EncryptionConfiguration
//! resources:
//! - resources: [secrets, '*.apps']
//!   providers:
//!   - kms: {apiVersion: v2, name: casemate, endpoint: unix:///run/casemate/kms.sock}
//!   - identity: {}
//! ";
//! let config = EncryptionConfiguration::read(file.as_bytes(), ServerFlags::default())?;
//! let secrets = config.coverage(&GroupResource::parse("secrets"));
//! assert_eq!(secrets.writer().write_prefix(), "k8s:enc:kms:v2:casemate:");
//! let pods = config.coverage(&GroupResource::parse("pods"));
//! assert_eq!(pods.writer().provider, &Provider::Identity);
//! # Ok::<(), casemate_encryption_config::Refused>(())
//! ```
//!
//! Map: `configuration` holds the types, public fields to build and edit; `check` the rules that they must keep; `read`
//! comes from YAML and JSON, `write` goes back; `coverage` answers for one resource; `stored` tells what a value in etcd
//! says of itself without any configuration; `problem` is what can be wrong.

mod check;
mod configuration;
mod coverage;
mod endpoint;
mod hash;
mod problem;
mod read;
mod resource;
mod stored;
mod write;

pub use check::ServerFlags;
pub use configuration::{EncryptionConfiguration, Entry, KeyBytes, KmsV1, KmsV2, LocalKey, Provider};
pub use coverage::{Coverage, Place, Reader, Transformer};
pub use endpoint::{Endpoint, EndpointFault, Socket};
pub use hash::file_hash;
pub use problem::{Fault, Position, Problem, Refused};
pub use resource::{GroupResource, PatternFault, ResourcePattern};
pub use stored::{Scheme, Stored};
