//! Why a file of kine could not be read. None of it holds bytes of a value.
use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::{mvcc, snapshot};

/// A fault, and the file that has it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file of SQLite.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It does not open as a file, or changed.
    #[error(transparent)]
    File(snapshot::Fault),
    /// Not of SQLite.
    #[error("is no database of SQLite: accepted is k3s' server/db/state.db, or a copy of it")]
    NotSqlite,
    /// Shorter than its first page says.
    #[error("is cut off: it has {found} bytes, and its first page speaks of {needed}")]
    Truncated {
        /// Its length.
        found: u64,
        /// What it should have.
        needed: u64,
    },
    /// Of another program.
    #[error(
        "is a database of SQLite, and not kine's: it has no table `kine` that is a plain one. Accepted is k3s' \
         server/db/state.db"
    )]
    NotKine,
    /// A table of that name with other columns.
    #[error(
        "its table `kine` has not the columns id (the primary key), name, deleted, create_revision, prev_revision, value and \
         old_value as kine makes them: it is of a kine that is not known here, or of another program"
    )]
    Columns,
    /// A write was broken off.
    #[error(
        "has a journal beside it ({}): a write was broken off. Start k3s and stop it, then read it again",
        journal.display()
    )]
    Journal {
        /// Where it is.
        journal: PathBuf,
    },
    /// A log that can't be read without making a file.
    #[error(
        "has a log beside it ({}) and no index of that (-shm), without which SQLite does not read it: values are missing \
         else. Stop k3s, which empties the log, and copy the file then; or copy all three files of it",
        log.display()
    )]
    LogWithoutIndex {
        /// Where the log is.
        log: PathBuf,
    },
    /// Somebody writes to it.
    #[error("is locked by a program that writes to it: read it again later, or stop k3s")]
    Locked,
    /// Damaged.
    #[error("is damaged: SQLite finds pages that contradict each other (code {code}). Take another copy")]
    Damaged {
        /// SQLite's extended code.
        code: i32,
    },
    /// A value of kine's that is of another type.
    #[error("revision {id}: its {column} is not of kine's form")]
    Row {
        /// Which row.
        id: i64,
        /// Which column.
        column: &'static str,
    },
    /// A row that is too long.
    #[error("has a value of more than {} MiB, which is none of an API server's", super::MAX_VALUE >> 20)]
    TooLong,
    /// Anything else that SQLite says.
    #[error("can't be read: SQLite's code {code}, {}", rusqlite::ffi::code_to_str(*code))]
    Sqlite {
        /// Its extended code.
        code: i32,
    },
    /// No randomness.
    #[error(transparent)]
    Store(mvcc::Error),
}

impl Fault {
    /// By SQLite's code. Its texts are not passed on: they can hold what stands in the file.
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        let Some(failure) = error.sqlite_error() else {
            // A column of another type than it was asked for.
            return Self::Columns;
        };
        let code = failure.extended_code;
        match failure.code {
            ErrorCode::NotADatabase => Self::NotSqlite,
            ErrorCode::DatabaseCorrupt => Self::Damaged { code },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Locked,
            ErrorCode::TooBig => Self::TooLong,
            _ => Self::Sqlite { code },
        }
    }
}
