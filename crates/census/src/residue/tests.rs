use std::sync::Arc;

use casemate_encryption_config::{GroupResource, ResourcePattern};
use proptest::prelude::*;

use super::header::{Header, read};
use super::*;
use crate::bolt::writer::{Element, LEAF, Writer};
use crate::bolt::{CACHE_BYTES, Database};
use crate::mvcc::tests::{change, element};

fn search() -> Search {
    let one = |name| ResourcePattern::One(GroupResource::parse(name));
    Search::new(vec![one("secrets"), one("configmaps"), one("things.example.com")], "/registry")
}

/// As kube-apiserver stores it, with `object` in place of the object.
fn protobuf(api_version: &str, kind: &str, object: &str) -> String {
    let field = |tag: char, text: &str| {
        let (low, high) = (text.len() % 128, text.len() / 128);
        let length = match high {
            0 => String::from(low as u8 as char),
            // Tests have no longer ones, and no text of theirs may hold a byte above 127.
            _ => unreachable!(),
        };
        format!("{tag}{length}{text}")
    };
    let header = field('\n', api_version) + &field('\x12', kind);
    format!("k8s\0{}\x12{}{object}", field('\n', &header), object.len() as u8 as char)
}

fn secret() -> String {
    protobuf("v1", "Secret", "HIDDEN")
}

fn resource(bytes: &[u8]) -> Option<String> {
    read(bytes).object().map(|object| name(&object.resource()))
}

#[test]
fn how_objects_begin() {
    for (bytes, expected) in [
        (secret(), "secrets"),
        (protobuf("v1", "Endpoints", "x"), "endpoints"),
        (protobuf("apps/v1", "Deployment", "x"), "deployments.apps"),
        (protobuf("networking.k8s.io/v1", "NetworkPolicy", "x"), "networkpolicies.networking.k8s.io"),
        (protobuf("networking.k8s.io/v1", "Ingress", "x"), "ingresses.networking.k8s.io"),
        (protobuf("events.k8s.io/v1", "Event", "x"), "events"),
        (r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata""#.into(), "things.example.com"),
        (r#"{"kind":"Secret","apiVersion":"v1""#.into(), "secrets"),
        ("{\n \"kind\" : \"Secret\",\n \"apiVersion\" : \"v1\"".into(), "secrets"),
        (
            r#"{"apiVersion":"gateway.networking.k8s.io/v1","data":{"a":["}\"",1]},"kind":"Gateway""#.into(),
            "gateways.gateway.networking.k8s.io",
        ),
    ] {
        assert_eq!(resource(bytes.as_bytes()).as_deref(), Some(expected));
        for end in 1..bytes.len() {
            let found = read(&bytes.as_bytes()[..end]);
            assert!(
                found == Header::Cut || resource(&bytes.as_bytes()[..end]).as_deref() == Some(expected),
                "{bytes:?} up to {end}: {found:?}"
            );
        }
    }
    for none in [
        protobuf("v1", "secret", "x"),
        protobuf("V1", "Secret", "x"),
        protobuf("v1", "Se\x1bret", "x"),
        protobuf("", "Secret", "x"),
        secret().replace('\x0c', "\x0d"),
        secret().replace("k8s\0", "k8s\x01"),
        "k8s:enc:kms:v2:".into(),
        r#"{"name":"a","apiVersion":"v1","kind":"Secret""#.into(),
        r#"{"apiVersion":"v1","metadata":{"kind":"Secret"}}"#.into(),
        "{\"apiVersion\":\"v1\n".into(),
        format!(r#"{{"apiVersion":"v1","data":"{}","kind":"Secret""#, "x".repeat(LOOKAHEAD)),
        "k8s\0\n\u{7f}\u{7f}".into(),
    ] {
        assert_eq!(read(none.as_bytes()), Header::None, "{none:?}");
    }
}

fn scan(parts: &[&[u8]], gap: u64) -> Found {
    let search = search();
    let (mut scanner, mut offset) = (search.scanner(Place::FreePages), 0);
    for part in parts {
        scanner.feed(offset, part);
        offset += part.len() as u64 + gap;
    }
    scanner.finish()
}

#[test]
fn an_object_is_found_wherever_parts_end() {
    let bytes = format!("xxk8s{}yy{{k{}", secret(), protobuf("v1", "ConfigMap", "HIDDEN"));
    let bytes = bytes.as_bytes();
    for at in 0..=bytes.len() {
        let found = scan(&[&bytes[..at], &bytes[at..]], 0);
        assert_eq!((found.copies, found.by_resource["secrets"], found.by_resource["configmaps"]), (2, 1, 1));
        assert_eq!(found.examples, ["byte 5", &format!("byte {}", bytes.len() - 29)]);
        assert!(scan(&[&bytes[..at], &bytes[at..]], 1).copies <= 2);
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(scan(&single, 0).copies, 2);
    // Where the piece ends, what waits for more is looked at once again.
    let cut = r#"{"apiVersion":"v1","data":{"kind":"Secret","apiVersion":"v1""#;
    assert_eq!(scan(&[cut.as_bytes()], 0).copies, 1);
    assert_eq!(scan(&[cut.as_bytes(), cut.as_bytes()], 7).copies, 2);
    // What was not asked for is not counted, and no text of it is told.
    let other = protobuf("v1", "Pod", "HIDDEN") + &protobuf("example.com/v1", "Other", "x");
    assert_eq!(scan(&[other.as_bytes()], 0).copies, 0);
    assert!(!format!("{:?}", scan(&[bytes], 0)).contains("HIDDEN"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn as_many_are_found_as_were_planted(
        noise in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9000), 1..12),
        part in 1_usize..100_000,
    ) {
        let mut bytes = Vec::new();
        for noise in &noise {
            bytes.extend(noise);
            bytes.extend(secret().as_bytes());
        }
        let parts: Vec<&[u8]> = bytes.chunks(part).collect();
        let found = scan(&parts, 0);
        prop_assert_eq!((found.copies, found.bytes), (noise.len() as u64, bytes.len() as u64));
        let whole = search().bytes(Place::OtherFile, &bytes, bytes.len() as u64, |_, _| ()).unwrap();
        prop_assert_eq!(whole.copies, found.copies);
    }

    #[test]
    fn any_bytes_are_no_object_or_one_with_names(bytes in "(k8s\0|\\{\"kind\":\"|[\n\x12\x02]|v1|Secret|[{}\",:]|\\PC){0,60}") {
        if let Some(resource) = resource(bytes.as_bytes()) {
            prop_assert!(!resource.contains(char::is_control));
        }
        scan(&[bytes.as_bytes()], 0);
    }
}

/// A file in which the same Secret stands once in each place, and one whose header is torn.
fn file() -> Vec<u8> {
    let plain = secret();
    let changes = [
        change(2, "/registry/secrets/a/old", Some(&plain)),
        change(3, "/registry/secrets/a/old", Some("k8s:enc:aescbc:v1:key1:0123456789abcdef")),
        change(4, "/registry/secrets/a/now", Some(&plain)),
        change(5, "/registry/secrets/a/odd", Some("neither protobuf nor JSON")),
        change(6, "/registry/pods/a/pod", Some(&protobuf("v1", "Pod", "HIDDEN"))),
        change(7, "/elsewhere/secrets/a/b", Some(&plain)),
        change(8, "/registry/secrets/a/broken", Some("k8s\0HIDDEN")),
    ];
    let mut writer = Writer::new(512);
    // Two free pages, and one object across their border.
    let mut free = vec![b'x'; 1024];
    free[500..500 + plain.len()].copy_from_slice(plain.as_bytes());
    writer.put(&free);
    let elements: Vec<Element> = changes.iter().map(element).collect();
    let keys = writer.tree(&elements);
    // And one that a page in use has cut off.
    writer.put(&[&[0; 400][..], &plain.as_bytes()[6..]].concat());
    let root = writer.tree(&[Element::bucket("key", keys)]);
    let mut file = writer.finish(root);
    let tail = keys as usize * 512 + 470;
    assert_eq!(file[tail..tail + plain.len()], vec![0; plain.len()]);
    file[tail..tail + plain.len()].copy_from_slice(plain.as_bytes());
    file.extend([&[0; 700], plain.as_bytes()].concat());
    file
}

#[test]
fn each_place_of_a_database_is_told() {
    let file = file();
    let database = Database::open(Arc::new(file.clone()), file.len() as u64, CACHE_BYTES).unwrap();
    let store = Store::open(&database, false).unwrap();
    let mut last = (0, 0);
    let found = search()
        .database(&store, |passed, all| {
            assert!(last.0 <= passed && passed <= all, "{passed} of {all} after {last:?}");
            last = (passed, all);
        })
        .unwrap();
    assert_eq!(last.0, last.1);
    let copies: Vec<_> = found.iter().map(|found| (found.place, found.copies)).collect();
    let expected = [
        (Place::Objects, 4),
        (Place::OldRevisions, 1),
        (Place::FreePages, 1),
        (Place::PageTails, 1),
        (Place::BeyondEnd, 1),
    ];
    assert_eq!(copies, expected);
    assert_eq!(found[1].examples, ["/registry/secrets/a/old at revision 2"]);
    assert_eq!(
        (found[2].bytes, found[2].written, &found[2].examples[0][..]),
        (3 * 512, 3 * 512, "byte 1524")
    );
    assert!(found[4].written < found[4].bytes, "{found:?}");
    assert!(!format!("{found:?}").contains("HIDDEN"));
    // Nothing of the file is left out.
    let all: u64 = found[2..].iter().map(|found| found.bytes).sum();
    let inventory = database.inventory().unwrap();
    let leftovers = inventory.leftovers().map(|one| one.unwrap().bytes.len() as u64).sum::<u64>();
    assert_eq!(all, leftovers);
}

#[test]
fn a_damaged_page_ends_the_search_with_its_number() {
    let mut file = file();
    // The number of the first leaf.
    let leaf = (2..).find(|page| file[page * 512 + 8] == LEAF as u8).unwrap();
    file[leaf * 512] ^= 0x40;
    let database = Database::open(Arc::new(file.clone()), file.len() as u64, CACHE_BYTES).unwrap();
    let error = Store::open(&database, false).and_then(|store| search().database(&store, |_, _| ()));
    assert!(error.unwrap_err().to_string().starts_with(&format!("page {leaf}: ")));
}

#[cfg(feature = "kine")]
#[test]
fn places_of_kine() {
    use crate::kine::StateDb;

    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("state.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    let table = "CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER, \
        create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)";
    connection.execute_batch(table).unwrap();
    let row = |id: i64, name: &str, before: i64, value: &str, old: &str| {
        let columns = rusqlite::params![id, name, before, value.as_bytes(), old.as_bytes()];
        connection.execute("INSERT INTO kine VALUES (?1, ?2, 0, 0, ?1, ?3, 0, ?4, ?5)", columns).unwrap();
    };
    let encrypted = "k8s:enc:aescbc:v1:key1:0123456789abcdef";
    row(1, "/registry/secrets/a/b", 0, &secret(), "");
    row(2, "/registry/secrets/a/b", 1, encrypted, &secret());
    row(3, "/registry/secrets/a/c", 0, &secret(), "");
    row(4, "/registry/pods/a/c", 0, &protobuf("v1", "Pod", "x"), "");
    let found = || {
        let state = StateDb::open(&path).unwrap();
        let mut passed = 0;
        let found = search().state_db(&state, |now, all| {
            assert!(now >= passed && now <= all);
            passed = now;
        });
        found
            .unwrap()
            .into_iter()
            .map(|found| (found.place, found.copies, found.examples))
            .collect::<Vec<_>>()
    };
    let of = |revision: u64, name: &str| format!("secrets/a/{name} in the row of revision {revision}");
    let now = found();
    assert_eq!(now[0].1, 1);
    assert!(now[0].2[0].ends_with(&of(3, "c")), "{now:?}");
    assert_eq!((now[1].0, now[1].1), (Place::OldRows, 2), "{now:?}");
    assert!(now[1].2[0].ends_with(&of(2, "b")) && now[1].2[1].ends_with(&of(1, "b")), "{now:?}");
    assert_eq!((now[2].0, now[2].1), (Place::UnusedParts, 0));
    connection.execute_batch("DELETE FROM kine WHERE id = 1").unwrap();
    assert_eq!(found().iter().map(|found| found.1).collect::<Vec<_>>(), [1, 1, 1]);
    connection.execute_batch("VACUUM").unwrap();
    assert_eq!(found().iter().map(|found| found.1).collect::<Vec<_>>(), [1, 1, 0]);
}
