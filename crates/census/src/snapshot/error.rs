//! Why a file could not be read.
use std::io;
use std::path::PathBuf;

use crate::{bolt, mvcc};

/// A fault, and the file that has it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system does not open it.
    #[error("can't be opened: {0}")]
    Open(#[source] io::Error),
    /// Anything but a regular file.
    #[error("is {what}, and a snapshot or a member/snap/db is a regular file")]
    NotRegular {
        /// What it is.
        what: &'static str,
    },
    /// A running etcd has it.
    #[error(
        "is in use: a running etcd holds its lock, and what is read while it writes is of no one moment. Take a \
         snapshot (etcdctl snapshot save), or stop that member"
    )]
    Locked,
    /// Written to while it was read.
    #[error("changed while it was read: nothing of what was read counts. Copy it first, then read the copy")]
    Changed,
    /// No database, or a damaged one.
    #[error(transparent)]
    Bolt(#[from] bolt::Error),
    /// No database of etcd, or damaged in what etcd keeps there.
    #[error(transparent)]
    Store(#[from] mvcc::Error),
}
