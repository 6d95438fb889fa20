//! The contracts that Casemate speaks: generated stubs and messages, and their limits as code.
//!
//! A contract is written down in `proto/` of the repository. The code generated from it is committed, so
//! that a build needs no protobuf compiler and a reader sees what is called; a test generates it again and
//! fails on any difference. This crate does no I/O: whoever serves or calls brings the transport.
//!
//! Promises:
//! * bytes that are secret by contract (a DEK source) appear in no `Debug` output;
//! * a limit of a contract is one constant and one pure check here, used by server and client alike.
//!
//! Map:
//! * [`kms_v2`] (feature `kms-v2`): the Kubernetes KMS v2 provider interface
//!   * [`kms_v2::limits`]: what kube-apiserver accepts
//!   * [`kms_v2::stored`]: what kube-apiserver keeps in etcd
//! * [`kms_v1`] (feature `kms-v1`): what a plugin of version 1 is asked to get at what it encrypted
//! * [`etcd`] (feature `etcd`): what a running etcd is asked; nothing of it writes
//! * [`etcd_write`] (feature `etcd-write`): what writes to one
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd-write")]
pub mod etcd_write;
#[cfg(any(feature = "kms-v1", feature = "kms-v2", feature = "etcd", feature = "etcd-write"))]
mod hidden;
#[cfg(feature = "kms-v1")]
pub mod kms_v1;
#[cfg(feature = "kms-v2")]
pub mod kms_v2;
