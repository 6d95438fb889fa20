//! What etcd keeps, read from its files or from itself, and how each value is encrypted.
//!
//! It is made for files that nobody vouches for: backups, disks of lost hosts, what somebody sent.
//!
//! Promises:
//! * **Read-only.** Files are opened for reading; nothing is ever written, and no memory is mapped.
//! * **No surprise from a file.** A torn, truncated, flipped or hostile one is an error that names the page, or is read
//!   as the unharmed one is. No page is visited twice, so that a walk ends after as many pages as the file has; memory
//!   is bounded, whatever the file says: see [`bolt`].
//! * **No value is kept.** What is told of a value holds names, sizes and digests; plaintext is in no type that has
//!   `Debug`, in no error and in no answer.
//!
//! Map, from the disk upwards:
//! * [`snapshot`]: a file: how it is opened, its lock, its checksum
//! * [`bolt`]: pages, trees and buckets of bbolt, the format of etcd's files
//! * [`mvcc`]: revisions, keys and what etcd says of itself
//! * [`classify`]: how one value is encrypted, and which key it needs
//! * `etcd` (feature of this name): a running etcd
//! * [`survey`]: all values of a file or of an etcd, counted by what they need
//! * [`answers`]: what surveys say of a key, a configuration, each other; pure
//! * [`policy`]: what somebody wants of a survey; pure
//! * `recover`: opens values with keys that are given (feature `recover`); the one module that holds plaintext
//! * `kine`, a feature: k3s' `state.db`, through SQLite, which is read where no etcd is
//! * [`residue`]: plaintext that encryption left behind, in any bytes
#[cfg(test)]
mod corpus;

pub mod answers;
pub mod bolt;
pub mod classify;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "kine")]
pub mod kine;
pub mod mvcc;
pub mod policy;
#[cfg(feature = "recover")]
pub mod recover;
pub mod residue;
pub mod snapshot;
pub mod survey;
