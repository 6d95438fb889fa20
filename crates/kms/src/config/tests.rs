#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use casemate_daemon::confine::{Folders, Lacking};
use casemate_keys::crypto_module::FIPS_BUILD;
use casemate_keys::origin::OriginPolicy;
use casemate_recipients::Identity;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

mod key_services;
mod schema;

/// Everything that can stand in a configuration.
const WHOLE: &str = "\
apiVersion: casemate.dev/v1alpha1
kind: KmsConfiguration
clusterId: prod-eu.1
stateDirectory: /var/lib/casemate-kms
providers:
  - name: casemate
    endpoint: unix:///run/casemate/kms.sock
    socketMode: \"0660\"
    epoch: 3
    rootKeys:
      - name: main
        version: latest
        minReadVersion: 2
        file:
          path: /etc/casemate/main.key
          id: 0123456789abcdef0123456789abcdef
      - name: second
        version: 7
        file:
          path: /etc/casemate/second.key
          id: \"11111111111111111111111111111111\"
    readKeys:
      - name: old
        minReadVersion: 1
        file: {path: /etc/casemate/old.key, id: \"22222222222222222222222222222222\"}
    alsoAccept:
      - clusterId: staging
        until: 2027-01-01T00:00:00Z
    recoveryRecipients:
      - name: safe
        age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2
      - name: second-safe
        age: age14w2g4gmmvj3sunzrcaw4nxufpkuhvskjs9qt4jdsj75fs0kh9v0s5pxk66
  - name: other
    endpoint: unix:///run/casemate/other.sock
    rootKeys:
      - name: main
        file:
          path: /etc/casemate/main.key
          id: 0123456789abcdef0123456789abcdef
";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/kms.yaml")).map_err(|error| error.to_string())
}

#[test]
fn everything_that_can_be_configured_is_parsed() {
    let config = parse(WHOLE).unwrap();
    assert_eq!(config.cluster_id.as_str(), "prod-eu.1");
    let [first, second] = &config.providers[..] else { panic!("two providers") };
    assert_eq!(first.endpoint.path(), Some(Path::new("/run/casemate/kms.sock")));
    assert_eq!((first.socket_mode.0.0, first.epoch), (0o660, 3));
    assert_eq!(first.root_keys[0].version.0, VersionSelection::Latest);
    assert_eq!(first.root_keys[1].version.0, VersionSelection::Pinned(7));
    assert_eq!((second.socket_mode.0.0, second.epoch), (0o600, 0));
    assert!(second.also_accept.is_empty() && second.read_keys.is_empty());

    let policy = first.read_policy(&config.cluster_id);
    let minimums: Vec<_> = policy.rules.iter().map(|rule| rule.min_version).collect();
    assert_eq!(minimums, [Some(2), None, Some(1)]);
    assert_eq!(policy.also_accept[0].until, 1_798_761_600);
    assert_eq!(policy.origin, OriginPolicy::Signed(Vec::new()));

    let recipients: Vec<_> = first.recipients().iter().map(ToString::to_string).collect();
    assert!(recipients[0].starts_with("age1urng") && recipients[1].starts_with("age14w2g"));
    assert!(second.recipients().is_empty());
}

#[test]
fn who_may_connect_is_parsed() {
    let text = WHOLE.replace(
        "    epoch: 3",
        "    socketOwner: 0\n    socketGroup: 4294967294\n    allowedPeers: {uids: [0, 5], gids: [7]}\n    maxConnections: 9",
    );
    let config = parse(&text).unwrap();
    let admission = config.providers[0].admission();
    let access = admission.access;
    assert_eq!((access.mode.0, access.owner, access.group), (0o660, Some(0), Some(4_294_967_294)));
    assert_eq!(admission.peers, Some(AllowedPeers { uids: vec![0, 5], gids: vec![7] }));
    assert_eq!(admission.max_connections, 9);

    let admission = config.providers[1].admission();
    assert_eq!((admission.access.owner, admission.access.group, admission.peers), (None, None, None));
    assert_eq!(admission.max_connections, 128);

    let named =
        WHOLE.replace("unix:///run/casemate/other.sock", "unix:///@a/b@c\n    allowedPeers: {gids: [7]}");
    let endpoint = &parse(&named).unwrap().providers[1].endpoint;
    assert_eq!((endpoint.abstract_name(), endpoint.path()), (Some("a/b@c"), None));
    assert_eq!(endpoint.to_string(), "unix:///@a/b@c");
}

#[test]
fn what_is_left_out_has_defaults() {
    let text = WHOLE.replace("stateDirectory: /var/lib/casemate-kms\n", "");
    assert_eq!(parse(&text).unwrap().state_directory.0.0, PathBuf::from("/var/lib/casemate-kms"));
    // YAML has no octal numbers that all readers agree on: with and without quotes it is this text.
    let bare = WHOLE.replace("\"0660\"", "0660");
    assert_eq!(parse(&bare).unwrap().providers[0].socket_mode.0.0, 0o660);
}

/// (what is replaced in [`WHOLE`], by what, the line of the error, what its text must hold)
#[rustfmt::skip]
const BROKEN: &[(&str, &str, u64, &[&str])] = &[
    // Fields
    ("kind:", "kinds:", 2, &["kinds", "unknown field", "expected one of", "kind,"]),
    ("    epoch: 3", "    epock: 3", 9, &["epock", "unknown field", "expected one of", "epoch,"]),
    ("          id: 0123", "          identity: 0123", 16, &["identity", "unknown field", "expected one of", "id"]),
    // Known elsewhere
    ("providers:", "recoveryRecipients: []\nproviders:", 5, &["unknown field `recoveryRecipients`", "belongs below `providers[]`"]),
    ("    epoch: 3", "    admin: {endpoint: unix:///a}", 9, &["unknown field `admin`", "`admin` belongs at the top level"]),
    ("    epoch: 3", "    minReadVersion: 3", 9, &["belongs below `providers[].readKeys[]` or below `providers[].rootKeys[]`"]),
    ("clusterId: prod-eu.1\n", "", 4, &["missing field", "clusterId"]),
    ("    endpoint: unix:///run/casemate/kms.sock\n", "", 28, &["missing field", "endpoint"]),
    ("          id: 0123456789abcdef0123456789abcdef\n", "", 15, &["missing field", "id"]),
    ("kind: KmsConfiguration", "kind: KmsConfiguration\nkind: KmsConfiguration", 3, &["kind", "twice"]),
    // Kinds of values
    ("epoch: 3", "epoch: three", 9, &["epoch:", "a whole number from 0"]),
    ("epoch: 3", "epoch: -1", 9, &["epoch:", "a whole number from 0"]),
    ("epoch: 3", "epoch: 18446744073709551616", 9, &["epoch:", "a whole number from 0"]),
    ("clusterId: prod-eu.1", "clusterId: [a]", 3, &["clusterId:", "string"]),
    ("clusterId: prod-eu.1", "clusterId: ~", 3, &["clusterId:"]),
    ("alsoAccept:\n      - clusterId: staging\n        until: 2027-01-01T00:00:00Z", "alsoAccept: no", 26, &["alsoAccept:", "a list", "`- `"]),
    ("minReadVersion: 2", "minReadVersion: two", 13, &["minReadVersion:", "two", "a whole number from 0"]),
    // Constants
    ("v1alpha1", "v1", 1, &["apiVersion:", "casemate.dev/v1\"", "casemate.dev/v1alpha1"]),
    ("KmsConfiguration", "EncryptionConfiguration", 2, &["kind:", "EncryptionConfiguration", "KmsConfiguration"]),
    // Names
    ("prod-eu.1", "Prod", 3, &["clusterId:", "Prod", "a-z"]),
    ("prod-eu.1", "\"\"", 3, &["clusterId:", "\"\"", "1 to 63"]),
    ("- name: casemate", "- name: Case_Mate", 6, &["name:", "Case_Mate", "a-z"]),
    ("- name: casemate", "- name: ../../etc", 6, &["name:", "../../etc", "a-z"]),
    ("- name: casemate", "- name: -a", 6, &["name:", "-a", "both ends"]),
    ("id: 0123456789abcdef0123456789abcdef", "id: 0123456789ABCDEF0123456789ABCDEF", 16, &["id:", "0123456789ABCDEF", "32 lower-case hex"]),
    ("id: 0123456789abcdef0123456789abcdef", "id: 0123", 16, &["id:", "0123", "32 lower-case hex"]),
    // Paths and endpoints
    ("stateDirectory: /var", "stateDirectory: var", 4, &["stateDirectory:", "var/lib", "absolute"]),
    ("stateDirectory: /var", "stateDirectory: \"/a\\nb\" #", 4, &["stateDirectory:", r"/a\nb", "no line ends"]),
    ("path: /etc/casemate/main", "path: main", 15, &["path:", "main.key", "absolute"]),
    ("path: /etc/casemate/main.key", "path: \"\"", 15, &["path:", "\"\"", "absolute"]),
    ("unix:///run/casemate/kms.sock", "unix://run/kms.sock", 7, &["endpoint:", "unix://run/kms.sock", "absolute"]),
    ("unix:///run/casemate/kms.sock", "/run/kms.sock", 7, &["endpoint:", "/run/kms.sock", "unix://"]),
    ("unix:///run/casemate/kms.sock", "tcp://127.0.0.1:1", 7, &["endpoint:", "tcp://127.0.0.1:1", "unix://"]),
    ("unix:///run/casemate/kms.sock", "unix:///run/casemate/", 7, &["endpoint:", "unix:///run/casemate/", "file"]),
    ("unix:///run/casemate/kms.sock", "unix:///@kms", 7, &["endpoint:", "abstract", "no mode", "allowedPeers"]),
    ("unix:///run/casemate/kms.sock", "unix:///@", 7, &["endpoint:", "unix:///@", "1 to 107"]),
    ("unix:///run/casemate/kms.sock", "unix://@kms", 7, &["endpoint:", "unix://@kms", "absolute"]),
    ("    endpoint: unix:///run/casemate/kms.sock", "    allowedPeers: {uids: [0]}\n    endpoint: unix:///@kms", 9, &["socketMode:", "abstract", "no file"]),
    ("    endpoint: unix:///run/casemate/kms.sock\n    socketMode: \"0660\"", "    allowedPeers: {uids: [0]}\n    socketGroup: 1\n    endpoint: unix:///@kms", 9, &["endpoint:", "abstract", "socketGroup"]),
    // Peers
    ("    epoch: 3", "    allowedPeers: {}", 7, &["allowedPeers:", "nobody", "uids or gids"]),
    ("    epoch: 3", "    allowedPeers: {uids: []}", 7, &["allowedPeers:", "nobody", "uids or gids"]),
    ("    epoch: 3", "    allowedPeers: {uids: [root]}", 9, &["allowedPeers:", "number of a user or group", "not its name"]),
    ("    epoch: 3", "    allowedPeers: {gids: [-1]}", 9, &["allowedPeers:", "-1", "number of a user or group"]),
    ("    epoch: 3", "    allowedPeers: {gids: [4294967295]}", 9, &["allowedPeers:", "4294967295", "number of a user or group"]),
    ("    epoch: 3", "    allowedPeers: {users: [1]}", 9, &["users", "unknown field", "uids"]),
    ("    epoch: 3", "    socketOwner: root", 9, &["socketOwner:", "number of a user or group", "not its name"]),
    ("    epoch: 3", "    socketGroup: \"kube\"", 9, &["socketGroup:", "kube", "not its name"]),
    ("    epoch: 3", "    maxConnections: 0", 9, &["maxConnections:", "`0`", "1 to 65536"]),
    ("    epoch: 3", "    maxConnections: 65537", 9, &["maxConnections:", "65537", "1 to 65536"]),
    ("    epoch: 3", "    maxConnections: many", 9, &["maxConnections:", "many", "1 to 65536"]),
    ("unix:///run/casemate/kms.sock", "unix:///run/casemate/a-very-long-name-of-a-folder-that-nobody-should-use-at-all/and-more/kms.sock", 7, &["endpoint:", "bytes", "80"]),
    // Modes
    ("\"0660\"", "\"0666\"", 8, &["socketMode:", "0666", "everybody", "0660"]),
    ("\"0660\"", "\"0604\"", 8, &["socketMode:", "0604", "everybody"]),
    ("\"0660\"", "\"660\"", 8, &["socketMode:", "660", "octal"]),
    ("\"0660\"", "\"04660\"", 8, &["socketMode:", "04660", "octal"]),
    ("\"0660\"", "\"0o660\"", 8, &["socketMode:", "0o660", "octal"]),
    ("\"0660\"", "432", 8, &["socketMode:", "432", "octal"]),
    ("\"0660\"", "rw", 8, &["socketMode:", "rw", "octal"]),
    ("\"0660\"", "\"0000660\"", 8, &["socketMode:", "0000660", "octal"]),
    // Versions
    ("version: latest", "version: label", 12, &["version:", "main", "labels", "`latest`"]),
    ("version: latest", "version: newest", 12, &["version:", "newest", "`latest`"]),
    ("version: latest", "version: 0", 12, &["version:", "\"0\"", "from 1"]),
    ("version: latest", "version: 4294967296", 12, &["version:", "4294967296", "from 1"]),
    ("version: latest", "version: -1", 12, &["version:", "-1", "from 1"]),
    ("version: latest", "version: 1.5", 12, &["version:", "1.5", "from 1"]),
    // Dates
    ("until: 2027-01-01T00:00:00Z", "until: tomorrow", 28, &["until:", "tomorrow", "RFC 3339"]),
    ("until: 2027-01-01T00:00:00Z", "until: 2027-01-01", 28, &["until:", "2027-01-01", "RFC 3339"]),
    // Recovery recipients
    ("age: age1urngnf", "age: age1urngnx", 31, &["age:", "age1urngnx", "mistyped", "lower case"]),
    ("age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "age: AGE1URNGNFSWVYWRDJE6G8EZ6AE3FPNWUAR92PQVRJJ2NUHDWUNXGACQSZJ6E2", 31, &["age:", "lower case"]),
    ("age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "age: age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqpdtwm0", 31, &["age:", "age1qqq"]),
    ("age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "age: AGE-SECRET-KEY-1ET0AKDGAEW5SKGVVUMXJKHXT3ET38HNRDEKDYDTGV5F54RRMREASPPUZW3", 31, &["age:", "secret", "new identity"]),
    ("age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "age: age1pq1qqqqqqqqqqqqqq", 31, &["age:", "another kind", "X25519"]),
    ("age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "identity: a", 31, &["identity", "unknown field", "age"]),
    ("      - name: safe\n        age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", "      - name: safe", 30, &["missing field", "age"]),
    ("age14w2g4gmmvj3sunzrcaw4nxufpkuhvskjs9qt4jdsj75fs0kh9v0s5pxk66", "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", 33, &["age:", "age1urng", "line 31", "own"]),
    ("- name: second-safe", "- name: safe", 32, &["name:", "safe", "line 30", "own"]),
    // Doubled
    ("- name: other", "- name: casemate", 34, &["name:", "casemate", "line 6", "own"]),
    ("other.sock", "kms.sock", 35, &["endpoint:", "kms.sock", "line 7", "own"]),
    ("- name: second", "- name: main", 17, &["name:", "main", "line 11", "own"]),
    ("- name: old", "- name: main", 23, &["name:", "main", "line 11", "own"]),
    ("11111111111111111111111111111111", "0123456789abcdef0123456789abcdef", 21, &["id:", "0123456789abcdef", "line 16", "own"]),
    ("22222222222222222222222222222222", "11111111111111111111111111111111", 25, &["id:", "1111", "line 21", "own"]),
    ("- clusterId: staging", "- clusterId: prod-eu.1", 27, &["clusterId:", "prod-eu.1", "line 3", "own"]),
    // YAML itself
    ("    epoch: 3", "\tepoch: 3", 9, &["tab", "line 9", "spaces"]),
    ("providers:\n  - name", "providers:\n    name", 6, &["a list", "`- `"]),
    ("    rootKeys:\n      - name: main\n        version", "   rootKeys:\n      - name: main\n        version", 9, &["missing field `rootKeys`", "line 10", "indented less"]),
    ("    rootKeys:\n      - name: main\n        version", "rootKeys:\n      - name: main\n        version", 9, &["missing field `rootKeys`", "line 10", "indented less"]),
    ("kind: KmsConfiguration", "kind: &k KmsConfiguration", 2, &["anchor"]),
    ("clusterId: prod-eu.1", "clusterId: *k", 3, &["alias"]),
    ("kind: KmsConfiguration", "kind: \"KmsConfiguration", 8, &[]),
    ("providers:", "providers", 5, &[]),
];

#[test]
fn an_error_names_file_line_field_found_and_accepted() {
    let mut missed = Vec::new();
    for (old, new, line, told) in BROKEN {
        assert!(WHOLE.contains(old), "{old:?} does not stand in the whole one");
        let Err(error) = parse(&WHOLE.replacen(old, new, 1)) else {
            missed.push(format!("{new:?} is accepted"));
            continue;
        };
        let place = format!("/etc/kms.yaml:{line}:");
        let untold: Vec<_> = told.iter().filter(|word| !error.contains(**word)).collect();
        if !error.starts_with(&place) || !untold.is_empty() || error.contains('\n') {
            missed.push(format!("{new:?} should be told at {place} and with {untold:?}\n    {error}"));
        }
    }
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
}

#[test]
fn lists_have_an_end_and_a_beginning() {
    let head = WHOLE.split("providers:").next().unwrap();
    let error = parse(&format!("{head}providers: []\n")).unwrap_err();
    assert!(error.starts_with("/etc/kms.yaml:5:") && error.contains("at least one"), "{error}");

    let key = |number: u8| format!("{{name: k{number}, file: {{path: /k, id: \"{number:032x}\"}}}}");
    let with = |count: u8| {
        let keys: Vec<_> = (0..count).map(key).collect();
        format!(
            "{head}providers:\n- name: a\n  endpoint: unix:///a.sock\n  rootKeys: [{}]\n",
            keys.join(", ")
        )
    };
    for (count, told) in [(0, "at least one"), (5, "at most 4"), (200, "at most 4")] {
        let error = parse(&with(count)).unwrap_err();
        assert!(error.starts_with("/etc/kms.yaml:8:") && error.contains("rootKeys:"), "{error}");
        assert!(error.contains(told), "{error}");
    }
    assert!(parse(&with(1)).is_ok() && parse(&with(4)).is_ok());

    let recipient = |name: usize| format!("{{name: r{name}, age: {}}}", Identity::generate().recipient());
    let with = |count: usize| {
        let recipients: Vec<_> = (0..count).map(recipient).collect();
        format!("{WHOLE}    recoveryRecipients: [{}]\n", recipients.join(", "))
    };
    let error = parse(&with(5)).unwrap_err();
    assert!(error.contains("recoveryRecipients:") && error.contains("at most 4"), "{error}");
    assert!(parse(&with(0)).is_ok() && parse(&with(4)).is_ok());
}

#[test]
fn a_fips_build_refuses_age_and_any_other_takes_it() {
    let config = parse(WHOLE).unwrap();
    let refused = config.check_build(Path::new("/etc/kms.yaml"), true).unwrap_err().to_string();
    assert!(refused.starts_with("/etc/kms.yaml:31: age: "), "{refused}");
    assert!(refused.contains("FIPS build") && refused.contains("leave out recoveryRecipients"), "{refused}");
    assert!(config.check_build(Path::new("/etc/kms.yaml"), false).is_ok());
    let bare = WHOLE.split("    recoveryRecipients:").next().unwrap();
    assert!(parse(bare).unwrap().check_build(Path::new("/etc/kms.yaml"), true).is_ok());
}

#[test]
fn an_identity_in_the_place_of_its_recipient_is_not_quoted() {
    let identity = "AGE-SECRET-KEY-1ET0AKDGAEW5SKGVVUMXJKHXT3ET38HNRDEKDYDTGV5F54RRMREASPPUZW3";
    let text = WHOLE.replace("age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2", identity);
    let error = Config::parse(&text, Path::new("/etc/kms.yaml")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("ET0AK"), "{error}");
}

#[test]
fn texts_that_are_no_configuration() {
    let nested = "[".repeat(10_000);
    let entries: String = (0..20_000).map(|n| format!("k{n}: 1\n")).collect();
    for (what, text) in [
        ("nothing", ""),
        ("a comment", "# nothing\n"),
        ("a list", "- a\n"),
        ("a word", "casemate"),
        ("two documents", &format!("{WHOLE}---\n{WHOLE}")),
        ("deep", &nested),
        ("wide", &entries),
        ("NUL", "a\0b: 1"),
        ("control characters", "apiVersion: \u{1b}[31m"),
    ] {
        let error = parse(text).expect_err(what);
        assert!(error.starts_with("/etc/kms.yaml:"), "{what}: {error}");
        assert!(!error.contains(['\u{1b}', '\n', '\0']) && error.len() < 1000, "{what}: {error:?}");
    }
}

#[test]
fn files_that_are_no_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str| Config::load(&folder.path().join(name)).unwrap_err().to_string();
    let error = load("absent.yaml");
    assert!(error.contains("absent.yaml") && error.contains("--config"), "{error}");

    fs::write(folder.path().join("latin.yaml"), b"# one\nkind: K\xf6nig\n").unwrap();
    let error = load("latin.yaml");
    assert!(error.contains("latin.yaml:2:8:") && error.contains("UTF-8"), "{error}");

    fs::write(folder.path().join("huge.yaml"), vec![b'#'; 1024 * 1024 + 1]).unwrap();
    let error = load("huge.yaml");
    assert!(error.contains("huge.yaml") && error.contains("1048577") && error.contains("1 MiB"), "{error}");

    fs::create_dir(folder.path().join("folder")).unwrap();
    assert!(load("folder").contains("folder"));

    fs::write(folder.path().join("whole.yaml"), WHOLE).unwrap();
    // It names recipients of kind age.
    assert_eq!(Config::load(&folder.path().join("whole.yaml")).is_err(), FIPS_BUILD);
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in ".{0,400}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_changed_configuration_never_panics(at in 0..WHOLE.len(), gone in 0..40_usize, put in "[ -~\t\n:\\-&*!|>{}\\[\\]]{0,20}") {
        let end = (at + gone).min(WHOLE.len());
        let text = format!("{}{put}{}", &WHOLE[..at], &WHOLE[end..]);
        if let Err(error) = parse(&text) {
            prop_assert!(error.starts_with("/etc/kms.yaml:"), "{}", error);
        }
    }
}
