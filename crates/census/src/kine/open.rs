//! Opens a file so that nothing is written, and looks whether it is kine's.
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::{COMPACTED, Error, Fault, MAX_VALUE, StateDb};
use crate::bolt::read_exact;
use crate::mvcc::{Revision, StoreFacts};
use crate::snapshot::Opened;

/// What a file of SQLite begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: usize = 100;
/// How long a running k3s may hold its lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the file at `path` begins as one of SQLite. What can't be read is none.
pub fn is_sqlite(path: &Path) -> bool {
    Opened::open(path).is_ok_and(|opened| {
        let mut begin = [0; MAGIC.len()];
        read_exact(&opened.file, &mut begin, 0).is_ok() && begin == MAGIC
    })
}

pub(super) fn open(path: &Path) -> Result<StateDb, Error> {
    let at = |fault| Error { path: path.to_owned(), fault };
    let opened = Opened::open(path).map_err(|error| at(Fault::File(error.fault)))?;
    check_header(&opened).map_err(at)?;
    let has = |suffix| beside(path, suffix).metadata().is_ok_and(|metadata| metadata.len() > 0);
    if has("-journal") {
        return Err(at(Fault::Journal { journal: beside(path, "-journal") }));
    }
    let has_log = has("-wal");
    if has_log && !has("-shm") {
        return Err(at(Fault::LogWithoutIndex { log: beside(path, "-wal") }));
    }
    let connection = connect(path, has_log).map_err(|error| at(Fault::of(&error)))?;
    check_table(&connection).map_err(at)?;
    let (facts, rows) = facts(&connection).map_err(|error| at(Fault::of(&error)))?;
    Ok(StateDb { path: path.to_owned(), opened, connection, has_log, facts, rows })
}

/// One of SQLite's other files.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// SQLite reads a file that was cut off as far as it needs.
fn check_header(opened: &Opened) -> Result<(), Fault> {
    let found = opened.metadata.len();
    let mut header = [0; HEADER];
    if found < HEADER as u64 {
        return Err(Fault::NotSqlite);
    }
    read_exact(&opened.file, &mut header, 0).map_err(|error| Fault::File(error.into()))?;
    if !header.starts_with(MAGIC) {
        return Err(Fault::NotSqlite);
    }
    let number = |at: usize, length: usize| {
        header[at..at + length].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let page_size = match number(16, 2) {
        1 => 65536,
        size => size,
    };
    // The count of pages holds if it was written by the transaction that wrote the file last.
    let needed = number(28, 4) * page_size;
    if number(24, 4) == number(92, 4) && needed > found {
        return Err(Fault::Truncated { found, needed });
    }
    Ok(())
}

fn connect(path: &Path, has_log: bool) -> rusqlite::Result<Connection> {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(*byte as char),
            byte if byte.is_ascii_alphanumeric() => uri.push(*byte as char),
            byte => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri += if has_log { "?mode=ro" } else { "?mode=ro&immutable=1" };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
    // Nothing that stands in the file runs, nothing is mapped, and all is read at one moment.
    connection.execute_batch(
        "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON; BEGIN",
    )?;
    Ok(connection)
}

/// A plain table: no view, no virtual table, and no computed column, which could take any time.
fn check_table(connection: &Connection) -> Result<(), Fault> {
    const COLUMNS: [&str; 7] =
        ["id", "name", "deleted", "create_revision", "prev_revision", "value", "old_value"];

    let sqlite = |error| Fault::of(&error);
    let text = "SELECT type, coalesce(sql, '') FROM sqlite_schema WHERE name = 'kine' LIMIT 1";
    let found: Option<(String, String)> =
        connection.query_row(text, [], |row| Ok((row.get(0)?, row.get(1)?))).optional().map_err(sqlite)?;
    let (kind, sql) = found.ok_or(Fault::NotKine)?;
    let sql = sql.to_ascii_uppercase();
    if kind != "table" || !sql.starts_with("CREATE TABLE") || sql.contains("WITHOUT ROWID") {
        return Err(Fault::NotKine);
    }
    let mut statement = connection
        .prepare("SELECT name, type, pk, hidden FROM pragma_table_xinfo('kine')")
        .map_err(sqlite)?;
    let mut rows = statement.query([]).map_err(sqlite)?;
    let mut missing = COLUMNS.to_vec();
    while let Some(row) = rows.next().map_err(sqlite)? {
        let read = || -> rusqlite::Result<(String, String, i64, i64)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        };
        let (name, kind, primary, hidden) = read().map_err(sqlite)?;
        let is_row_id = primary == 1 && kind.eq_ignore_ascii_case("integer");
        if hidden != 0 || name == "id" && !is_row_id {
            return Err(Fault::Columns);
        }
        missing.retain(|column| *column != name);
    }
    if missing.is_empty() { Ok(()) } else { Err(Fault::Columns) }
}

/// What kine says of itself, and the newest revision.
fn facts(connection: &Connection) -> rusqlite::Result<(StoreFacts, u64)> {
    let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
    let revision = |number: Option<i64>| {
        let main = number.and_then(|number| u64::try_from(number).ok())?;
        (main > 0).then_some(Revision { main, sub: 0 })
    };
    let latest = revision(one("SELECT max(id) FROM kine NOT INDEXED")?);
    let compacted =
        connection.query_row("SELECT max(prev_revision) FROM kine WHERE name = ?1", [COMPACTED], |row| {
            row.get::<_, Option<i64>>(0)
        })?;
    let facts = StoreFacts { latest, compacted: revision(compacted), ..StoreFacts::default() };
    Ok((facts, latest.map_or(0, |latest| latest.main)))
}
