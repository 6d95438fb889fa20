//! What can be wrong with etcd's data. None of it holds bytes of a value.
use crate::bolt;

/// Why etcd's data can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database itself is damaged, or none.
    #[error(transparent)]
    Bolt(#[from] bolt::Error),
    /// A database of another program.
    #[error(
        "this is a bbolt database of another program: it has no bucket `key`, where etcd keeps its revisions"
    )]
    NoKeys,
    /// From a newer etcd.
    #[error(
        "it is of etcd's storage version {found}, newer than {newest}, the newest that is known here; upgrade, or read it all the same and trust the result less"
    )]
    Newer {
        /// What it says.
        found: String,
        /// [`super::NEWEST_STORAGE`].
        newest: &'static str,
    },
    /// An entry of bucket `meta` or `members` is not of its form.
    #[error("bucket {bucket}, entry {entry}: {what}")]
    Facts {
        /// The bucket.
        bucket: &'static str,
        /// Its key.
        entry: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A revision can't be read.
    #[error("page {page}, element {index}: {fault}")]
    Revision {
        /// The page that it stands in.
        page: u64,
        /// Its number there.
        index: u16,
        /// What is wrong.
        fault: ValueFault,
    },
    /// The system gives no randomness.
    #[error("the system gives no random bytes")]
    Random,
}

/// What is wrong with a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueFault {
    /// A bucket among revisions.
    #[error("a bucket stands where a revision should")]
    Bucket,
    /// A key that is no revision.
    #[error(
        "its key is no revision: 8 bytes, `_`, 8 bytes, and `t` if it is a deletion, each number below 2^63; it has {length} bytes"
    )]
    Number {
        /// Bytes of the key.
        length: usize,
    },
    /// No protobuf of `mvccpb.KeyValue`.
    #[error("its value breaks at byte {at}: it is no mvccpb.KeyValue")]
    Protobuf {
        /// Offset in the value.
        at: usize,
    },
    /// Without a key.
    #[error("it is of no key")]
    NoKey,
    /// Another revision in the value than in the key.
    #[error("its value says that it is of revision {found}, and its key that it is of {expected}")]
    Mismatch {
        /// What the value says.
        found: i64,
        /// What the key says.
        expected: u64,
    },
}
