use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use rusqlite::params;
use tempfile::TempDir;

use super::*;

/// As kine 0.17 makes it.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, \
    deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB); \
    CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision)";

struct Writer {
    folder: TempDir,
    connection: Connection,
}

impl Writer {
    fn new(prepare: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let connection = Connection::open(folder.path().join("state ?#%.db")).unwrap();
        connection.execute_batch(prepare).unwrap();
        Self { folder, connection }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("state ?#%.db")
    }

    /// One row; `before` is the row whose value it replaces.
    fn row(&self, id: i64, name: &str, deleted: bool, before: i64, value: Option<&str>, old: Option<&str>) {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        self.connection
            .execute(
                "INSERT INTO kine VALUES (?1, ?2, ?3, ?4, ?1, ?5, 0, ?6, ?7)",
                params![id, name, before == 0, deleted, before, bytes(value), bytes(old)],
            )
            .unwrap();
    }

    fn run(&self, sql: &str) {
        self.connection.execute_batch(sql).unwrap();
    }
}

/// A key written, replaced, deleted and made again, one that is replaced, and what kine keeps for itself.
fn written() -> Writer {
    let writer = Writer::new(TABLE);
    writer.row(1, "compact_rev_key", false, 0, Some(""), None);
    writer.row(2, "/registry/secrets/a/b", false, 0, Some("first"), None);
    writer.row(3, "/registry/secrets/a/b", false, 2, Some("second"), Some("first"));
    writer.row(4, "/registry/secrets/a/c", false, 0, Some("k8s:enc:aescbc:v1:key1:0123456789abcdef"), None);
    writer.row(5, "/registry/secrets/a/b", true, 3, None, Some("second"));
    writer.row(6, "/registry/secrets/a/d", false, 0, Some("plain"), None);
    writer.row(7, "/registry2/secrets/a", false, 0, Some("outside"), None);
    writer.row(
        8,
        "/registry/secrets/a/d",
        false,
        6,
        Some("k8s:enc:aescbc:v1:key1:0123456789abcdef"),
        Some("plain"),
    );
    writer.row(10, "/registry/secrets/a/b", false, 5, Some("again"), None);
    writer
}

type Value = (u64, String, String, Standing);

fn values(path: &Path) -> Result<(Vec<Value>, Counts), Error> {
    let file = StateDb::open(path)?;
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let passed = file.values("/registry/", |item, standing, _| {
        found.push((item.revision.main, text(item.pair.key), text(item.pair.value), standing));
        true
    })?;
    Ok((found, passed.counts))
}

fn short(path: &Path) -> Vec<(u64, String, bool)> {
    let found = values(path).unwrap().0.into_iter();
    found.map(|(revision, _, value, standing)| (revision, value, standing == Standing::Live)).collect()
}

fn entry(revision: u64, value: &str, live: bool) -> (u64, String, bool) {
    (revision, value.to_owned(), live)
}

#[test]
fn live_and_past_values_are_those_that_were_written() {
    let writer = written();
    let encrypted = "k8s:enc:aescbc:v1:key1:0123456789abcdef";
    let expected = [
        entry(10, "again", true),
        entry(8, encrypted, true),
        entry(6, "plain", false),
        entry(4, encrypted, true),
        entry(3, "second", false),
        entry(2, "first", false),
    ];
    assert_eq!(short(&writer.path()), expected);
    let counts = values(&writer.path()).unwrap().1;
    assert_eq!(counts, Counts { live: 3, deleted: 0, past: 3, outside: 1, outside_encrypted: 0 });

    // As kine compacts: rows that were replaced and deletions go, and so do not the values that others carry.
    writer.run("DELETE FROM kine WHERE id IN (2, 3, 5, 6); UPDATE kine SET prev_revision = 8 WHERE id = 1");
    let expected = [
        entry(10, "again", true),
        entry(8, encrypted, true),
        entry(6, "plain", false),
        entry(4, encrypted, true),
    ];
    assert_eq!(short(&writer.path()), expected);
    let file = StateDb::open(&writer.path()).unwrap();
    let main = |revision: Option<Revision>| revision.map(|revision| revision.main);
    assert_eq!((main(file.facts().latest), main(file.facts().compacted)), (Some(10), Some(8)));
    let survey = survey(&file, "/registry", |_| ()).unwrap();
    let plain = survey.groups.iter().find(|entry| entry.group.encryption.is_plain()).unwrap();
    assert_eq!((plain.live.values, plain.past.values), (1, 1), "{survey:?}");
    assert_eq!((survey.revision, survey.compacted, survey.outside), (Some(10), Some(8), 1));

    // What is elsewhere needs a key, too; what a row carries of the one before counts.
    let encrypted = Some("k8s:enc:aescbc:v1:key1:0123456789abcdef");
    writer.row(11, "/openshift.io/routes/a", false, 0, encrypted, None);
    writer.row(12, "/openshift.io/routes/a", true, 11, None, encrypted);
    writer.run("DELETE FROM kine WHERE id = 11");
    let counts = values(&writer.path()).unwrap().1;
    assert_eq!((counts.outside, counts.outside_encrypted), (2, 1));
    writer.run("DELETE FROM kine WHERE id = 12");

    // A deletion, and what older versions of kine wrote for one.
    writer.row(11, "/registry/secrets/a/c", true, 4, None, Some("old c"));
    writer.row(12, "/registry/secrets/a/d", true, 8, Some("old d"), None);
    writer.run("DELETE FROM kine WHERE id IN (4, 8)");
    let expected = [entry(8, "old d", false), entry(4, "old c", false), entry(10, "again", true)];
    assert_eq!(short(&writer.path()), expected);
    // Enough is enough.
    let file = StateDb::open(&writer.path()).unwrap();
    let mut count = 0;
    file.values("", |_, _, _| {
        count += 1;
        count < 2
    })
    .unwrap();
    assert_eq!(count, 2);
}

#[test]
fn values_are_had_as_they_were_at_a_revision() {
    let writer = written();
    let file = StateDb::open(&writer.path()).unwrap();
    let live_at = |revision| {
        let mut live = BTreeSet::new();
        file.values_at("/registry", revision, |item, standing, _| {
            let [key, value] =
                [item.pair.key, item.pair.value].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            if standing == Standing::Live {
                live.insert((key, value));
            }
            true
        })
        .unwrap();
        live
    };
    let of = |pairs: &[(&str, &str)]| {
        let pair =
            |(name, value): &(&str, &str)| (format!("/registry/secrets/a/{name}"), (*value).to_owned());
        pairs.iter().map(pair).collect::<BTreeSet<_>>()
    };
    let encrypted = "k8s:enc:aescbc:v1:key1:0123456789abcdef";
    for (revision, expected) in [
        (1, of(&[])),
        (2, of(&[("b", "first")])),
        (3, of(&[("b", "second")])),
        (4, of(&[("b", "second"), ("c", encrypted)])),
        (5, of(&[("c", encrypted)])),
        (7, of(&[("c", encrypted), ("d", "plain")])),
        (9, of(&[("c", encrypted), ("d", encrypted)])),
        (10, of(&[("b", "again"), ("c", encrypted), ("d", encrypted)])),
        (u64::MAX, of(&[("b", "again"), ("c", encrypted), ("d", encrypted)])),
    ] {
        assert_eq!(live_at(revision), expected, "{revision}");
    }
}

#[test]
fn columns_are_all_that_rows_hold() {
    let writer = written();
    let mut found = Vec::new();
    let file = StateDb::open(&writer.path()).unwrap();
    file.columns(|item, standing| {
        if !item.pair.value.starts_with(b"k8s") {
            let text = String::from_utf8_lossy(item.pair.value).into_owned();
            found.push((item.revision.main, text, standing == Standing::Live));
        }
    })
    .unwrap();
    let expected = [
        entry(10, "again", true),
        entry(8, "plain", false),
        entry(7, "outside", true),
        entry(6, "plain", false),
        entry(5, "second", false),
        entry(3, "second", false),
        entry(3, "first", false),
        entry(2, "first", false),
    ];
    assert_eq!(found, expected);
}

/// How often `word` stands in `bytes`.
fn occurrences(bytes: &[u8], word: &str) -> usize {
    bytes.windows(word.len()).filter(|window| *window == word.as_bytes()).count()
}

#[test]
fn what_rows_and_unused_parts_hold_is_all_of_the_file() {
    // Values within a page, over one, and over many, of which some are deleted and others grow.
    for (size, most_on_two_pages) in [(512, 20), (4096, 2)] {
        let writer = Writer::new(&format!("PRAGMA page_size = {size}; {TABLE}"));
        let value = |id: i64| format!("WORD{}", "x".repeat((id * id % 97 * 30) as usize));
        for id in 1..200 {
            writer.row(
                id,
                &format!("/registry/secrets/a/{id}"),
                false,
                0,
                Some(&value(id)),
                Some(&value(id + 1)),
            );
        }
        writer.run("DELETE FROM kine WHERE id % 3 = 0; UPDATE kine SET value = NULL WHERE id % 7 = 0");
        for id in 200..230 {
            writer.row(id, &format!("/registry/secrets/b/{id}"), false, 0, Some(&value(id)), None);
        }
        let path = writer.path();
        let Writer { folder: _folder, connection } = writer;
        connection.close().unwrap();
        let file = StateDb::open(&path).unwrap();
        let (mut in_rows, mut unused) = (0, 0);
        file.columns(|item, _| in_rows += occurrences(item.pair.value, "WORD")).unwrap();
        let mut end = 0;
        file.unused(|offset, bytes| {
            assert!(offset >= end, "{offset} {end}");
            end = offset + bytes.len() as u64;
            unused += occurrences(bytes, "WORD");
        })
        .unwrap();
        let all = occurrences(&fs::read(&path).unwrap(), "WORD");
        assert!(in_rows > 200 && unused > 50, "{in_rows} {unused}");
        // Where the local part of a row ends, its word may go on on another page.
        let expected = all..=all + most_on_two_pages;
        assert!(expected.contains(&(in_rows + unused)), "{expected:?}: {in_rows} + {unused}");

        // Even then copies of rows that are there stand in parts that are not used.
        let sql = "UPDATE kine SET value = NULL, old_value = NULL; VACUUM";
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let file = StateDb::open(&path).unwrap();
        file.unused(|_, bytes| assert_eq!(occurrences(bytes, "WORD"), 0)).unwrap();
    }
}

fn listing(folder: &TempDir) -> BTreeSet<(PathBuf, u64)> {
    let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect()
}

#[test]
fn a_file_at_rest_is_read_without_a_trace() {
    let Writer { folder, connection } = written();
    connection.close().unwrap();
    let path = folder.path().join("state ?#%.db");
    let before = (listing(&folder), fs::read(&path).unwrap());
    assert!(is_sqlite(&path) && !StateDb::open(&path).unwrap().has_log());
    assert_eq!(short(&path).len(), 6);
    symlink(&path, folder.path().join("link")).unwrap();
    assert_eq!(short(&folder.path().join("link")).len(), 6);
    fs::remove_file(folder.path().join("link")).unwrap();
    assert_eq!((listing(&folder), fs::read(&path).unwrap()), before);

    // One that changes is told.
    let file = StateDb::open(&path).unwrap();
    let changed = file.values("", |_, _, _| {
        let later = file.opened.metadata.modified().unwrap() + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        true
    });
    assert!(changed.unwrap_err().to_string().contains("changed while it was read"));
}

#[test]
fn what_is_in_the_log_counts() {
    let writer = Writer::new("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0");
    writer.run(TABLE);
    writer.row(1, "/registry/secrets/a/b", false, 0, Some("in the log"), None);
    let before = listing(&writer.folder);
    let file = StateDb::open(&writer.path()).unwrap();
    assert!(file.has_log());
    drop(file);
    assert_eq!(short(&writer.path()), [entry(1, "in the log", true)]);
    // Somebody who writes meanwhile is not in the way.
    writer.run("BEGIN IMMEDIATE");
    writer.row(2, "/registry/secrets/a/c", false, 0, Some("not yet"), None);
    assert_eq!(short(&writer.path()), [entry(1, "in the log", true)]);
    writer.run("ROLLBACK");
    assert_eq!(listing(&writer.folder), before);

    // Copied without the index, and with a journal.
    let copies = TempDir::new().unwrap();
    let copy = copies.path().join("state.db");
    fs::copy(writer.path(), &copy).unwrap();
    fs::write(copies.path().join("state.db-wal"), "some log").unwrap();
    let before = listing(&copies);
    assert!(matches!(StateDb::open(&copy).unwrap_err().fault, Fault::LogWithoutIndex { .. }));
    assert_eq!(listing(&copies), before);
    fs::write(copies.path().join("state.db-journal"), "some journal").unwrap();
    assert!(matches!(StateDb::open(&copy).unwrap_err().fault, Fault::Journal { .. }));
}

#[test]
fn what_is_no_file_of_kine_is_told_by_its_kind() {
    let columns = "name, deleted, create_revision, prev_revision, value, old_value";
    for (made, is_columns) in [
        ("CREATE TABLE other (a)".to_owned(), false),
        (format!("CREATE VIRTUAL TABLE kine USING fts5({columns})"), false),
        ("CREATE VIEW kine AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id FROM n) SELECT id FROM n".into(), false),
        (format!("CREATE TABLE kine (id INTEGER PRIMARY KEY, {columns}) WITHOUT ROWID"), false),
        (format!("CREATE TABLE kine (id INTEGER, {columns})"), true),
        (format!("CREATE TABLE kine (id TEXT PRIMARY KEY, {columns})"), true),
        (format!("CREATE TABLE kine (id INTEGER PRIMARY KEY, {})", columns.replace(", old_value", "")), true),
        (
            format!("CREATE TABLE kine (id INTEGER PRIMARY KEY, {columns} AS (zeroblob(1000000)))"),
            true,
        ),
    ] {
        let writer = Writer::new(&made);
        let fault = StateDb::open(&writer.path()).unwrap_err().fault;
        let expected = if is_columns { matches!(fault, Fault::Columns) } else { matches!(fault, Fault::NotKine) };
        assert!(expected, "{made}: {fault}");
    }
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("text"), "x".repeat(8192)).unwrap();
    for name in ["empty", "text"] {
        assert!(!is_sqlite(&at(name)));
        assert!(matches!(StateDb::open(&at(name)).unwrap_err().fault, Fault::NotSqlite), "{name}");
    }
    for name in ["absent", "."] {
        assert!(
            !is_sqlite(&at(name)) && matches!(StateDb::open(&at(name)).unwrap_err().fault, Fault::File(_))
        );
    }
}

#[test]
fn rows_that_kine_does_not_write_are_told_with_their_number() {
    for (column, value) in [
        ("name", "NULL"),
        ("name", "7"),
        ("name", "''"),
        ("deleted", "'yes'"),
        ("prev_revision", "-1"),
        ("value", "7.5"),
        ("old_value", "7"),
        ("id", "-3"),
    ] {
        let writer = Writer::new(&TABLE.replace("TEXT", ""));
        writer.row(3, "/registry/a/b", false, 0, Some("v"), None);
        writer.run(&format!("UPDATE kine SET {column} = {value}"));
        let error = values(&writer.path()).unwrap_err();
        let Fault::Row { id, column: found } = error.fault else { panic!("{error}") };
        assert_eq!((id.abs(), found), (3, column), "{column} {value}");
    }
    let writer = Writer::new(TABLE);
    writer.run(&format!("INSERT INTO kine (id, name, value) VALUES (1, 'a', zeroblob({}))", MAX_VALUE + 1));
    let error = values(&writer.path()).unwrap_err();
    assert!(matches!(error.fault, Fault::TooLong), "{error}");
}

/// Some pages, so that trees have branches and values reach over several.
fn large() -> Vec<u8> {
    let writer = Writer::new(&format!("PRAGMA page_size = 512; {TABLE}"));
    for id in 1..60 {
        writer.row(
            id,
            &format!("/registry/secrets/a/{id}"),
            false,
            0,
            Some(&"SECRET ".repeat(id as usize * 7)),
            None,
        );
    }
    let Writer { folder, connection } = writer;
    connection.close().unwrap();
    fs::read(folder.path().join("state ?#%.db")).unwrap()
}

#[test]
fn a_file_that_was_cut_off_or_changed_is_told_or_read_to_its_end() {
    let whole = large();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.db");
    for end in (0..whole.len()).step_by(256) {
        fs::write(&path, &whole[..end]).unwrap();
        let fault = values(&path).unwrap_err().fault;
        let is_told = match end {
            0 => matches!(fault, Fault::NotSqlite),
            _ => matches!(fault, Fault::Truncated { .. }),
        };
        assert!(is_told, "{end}: {fault}");
    }
    let mut found = 0;
    for (number, at) in (0..whole.len()).step_by(61).enumerate() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (number % 8);
        fs::write(&path, &flipped).unwrap();
        if let Ok(file) = StateDb::open(&path) {
            let _ = file.unused(|offset, bytes| assert!(offset + bytes.len() as u64 <= whole.len() as u64));
        }
        match values(&path) {
            // Of a value itself, only a checksum could tell.
            Ok((values, _)) => assert!(values.len() <= 60, "byte {at}"),
            Err(error) => {
                found += 1;
                assert!(!error.to_string().contains("SECRET"), "{error}");
            }
        }
    }
    assert!(found > 20, "{found}");
}
