//! `casemate key`: the life of a root key in a file, and what is refused on the way.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use assert_cmd::assert::Assert;
use casemate_keyservice::file::{FileKeyId, KeyFile, Keyring, Secret};
use jiff::{Timestamp, ToSpan};
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{self, casemate};

/// A folder with a key file, and all that was ever printed about it.
struct Bench {
    folder: TempDir,
    printed: String,
}

impl Bench {
    /// No file yet.
    fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), printed: String::new() }
    }

    fn new() -> Self {
        let mut bench = Self::empty();
        bench.run("new", 0);
        bench
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("root.key")
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn run(&mut self, verb: &str, code: i32) -> Assert {
        let done = casemate(&format!("key {verb} --file")).arg(self.path()).assert();
        let output = done.get_output();
        for printed in [&output.stdout, &output.stderr] {
            self.printed += &String::from_utf8_lossy(printed);
        }
        done.code(code)
    }

    fn json(&mut self, verb: &str) -> Value {
        let done = self.run(&format!("{verb} --output json"), 0);
        serde_json::from_slice(&done.get_output().stdout).unwrap()
    }

    fn states(&mut self) -> Vec<String> {
        let list = self.json("list");
        let versions = list["versions"].as_array().unwrap();
        versions.iter().map(|version| version["state"].as_str().unwrap().to_owned()).collect()
    }

    fn secrets(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path()).unwrap();
        text.split("secret: \"").skip(1).map(|rest| rest[..44].to_owned()).collect()
    }
}

fn stderr(done: &Assert) -> String {
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

#[test]
fn the_life_of_a_key() {
    let mut bench = Bench::new();
    let mut secrets = bench.secrets();
    assert_eq!(bench.states(), ["active"]);

    let added = bench.json("add-version");
    assert_eq!((&added["version"], &added["state"]), (&2.into(), &"staged".into()));
    assert!(stderr(&bench.run("add-version --dry-run", 0)).contains("Version 2 was staged before"));
    secrets.extend(bench.secrets());

    let before = bench.bytes();
    let refused = stderr(&bench.run("activate", 1));
    for part in ["wait ", "Every control plane node needs the file with version 2", "--now"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(bench.bytes(), before);
    assert_eq!(bench.states(), ["active", "staged"]);

    assert_eq!(bench.json("activate --now")["changed"], true);
    for again in ["activate", "activate 2", "activate 2 --now"] {
        let answer = bench.json(again);
        assert_eq!((&answer["version"], &answer["changed"]), (&2.into(), &false.into()), "{again}");
    }
    assert_eq!(bench.states(), ["superseded", "active"]);

    let before = bench.bytes();
    let asked = stderr(&bench.run("retire 1", 2));
    for part in ["unreadable for good", "Prove first", "--yes", added["id"].as_str().unwrap()] {
        assert!(asked.contains(part), "{asked}");
    }
    assert_eq!(bench.bytes(), before);
    let done = bench.run("retire 1 --yes", 0);
    assert!(stderr(&done).contains("unreadable"), "{}", stderr(&done));
    assert_eq!(bench.json("retire 1 --yes")["changed"], false);
    assert_eq!(bench.json("retire 1")["changed"], false);
    assert_eq!(bench.states(), ["retired", "active"]);
    assert_eq!(bench.secrets().len(), 1, "the secret is gone");

    let table = bench.run("list", 0);
    let table = String::from_utf8_lossy(&table.get_output().stdout).into_owned();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("VERSION  STATE"), "{table}");
    assert_eq!(secrets.len(), 3);
    for secret in secrets {
        assert!(!bench.printed.contains(&secret[..8]), "a secret was printed");
    }
}

#[test]
fn what_can_not_be_is_refused_and_changes_nothing() {
    let mut bench = Bench::new();
    bench.run("add-version", 0);
    bench.run("add-version", 0);
    bench.run("activate 3 --now", 0);
    let before = bench.bytes();
    for (verb, code, part) in [
        ("new", 2, "never overwritten"),
        ("new --dry-run", 2, "never overwritten"),
        ("activate 1 --now", 1, "only moves forward"),
        ("activate 2 --now", 1, "only moves forward"),
        ("activate 4 --now", 2, "the highest is 3"),
        ("activate 0", 2, "no version 0"),
        ("activate x", 2, "invalid value"),
        ("retire 3 --yes", 1, "version 3 is active"),
        ("retire 3", 1, "version 3 is active"),
        ("retire 3 --dry-run", 1, "version 3 is active"),
        ("retire 9 --yes", 2, "no version 9"),
        ("retire", 2, "<VERSION>"),
    ] {
        let text = stderr(&bench.run(verb, code));
        assert!(text.contains(part), "{verb}: {text}");
        assert_eq!(bench.bytes(), before, "{verb}");
    }
}

#[test]
fn a_dry_run_says_what_would_be_and_does_nothing() {
    let mut bench = Bench::empty();
    let answer = bench.json("new --dry-run");
    assert_eq!((&answer["dry_run"], &answer["id"]), (&true.into(), &Value::Null));
    assert!(!bench.path().exists());

    bench.run("new", 0);
    bench.run("add-version", 0);
    let before = bench.bytes();
    for (verb, version, state) in [
        ("add-version --dry-run", 3, "staged"),
        ("activate --dry-run --now", 2, "active"),
        ("retire 2 --dry-run", 2, "retired"),
    ] {
        let answer = bench.json(verb);
        assert_eq!((&answer["version"], &answer["state"]), (&version.into(), &state.into()), "{verb}");
        assert_eq!(answer["dry_run"], true, "{verb}");
        assert_eq!(bench.bytes(), before, "{verb}");
    }
    bench.run("activate --dry-run", 1);
}

#[test]
fn after_ten_minutes_no_haste_is_needed() {
    let mut bench = Bench::empty();
    let long_ago = Timestamp::now() - 11.minutes();
    let mut keyring = Keyring::new(FileKeyId::generate(), None, Secret::generate(), long_ago);
    keyring.stage(Secret::generate(), long_ago).unwrap();
    KeyFile::at(bench.path()).create(&keyring).unwrap();
    assert_eq!(bench.json("activate")["version"], 2);
    assert_eq!(bench.states(), ["superseded", "active"]);
}

#[test]
fn a_new_key_prints_the_configuration_that_uses_it() {
    let mut bench = Bench::empty();
    let path = bench.path().to_str().unwrap().to_owned();
    let answer = bench.json("new --comment rack-3");
    let id = answer["id"].as_str().unwrap().to_owned();
    assert_eq!(
        answer["configuration"],
        serde_json::json!({"rootKeys": [{"name": "main", "file": {"path": path, "id": id}}]})
    );
    assert_eq!(answer["lineage"], bench.json("list")["versions"][0]["lineage"]);
    assert_eq!(bench.json("list")["comment"], "rack-3");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);

    fs::remove_file(&path).unwrap();
    let done = bench.run("new", 0);
    let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let id = bench.json("list")["id"].as_str().unwrap().to_owned();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let (path, id) = (format!("          path: \"{path}\""), format!("          id: \"{id}\""));
    assert_eq!(lines, ["    rootKeys:", "      - name: main", "        file:", &path, &id]);
}

#[test]
fn a_file_that_can_not_be_used_is_named_with_the_reason() {
    let mut bench = Bench::new();
    let whole = bench.bytes();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let mode = |path: PathBuf, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    for (content, bits, part) in [
        (&b""[..], 0o600, "it is empty"),
        (&whole[..whole.len() - 1], 0o600, "it was cut off"),
        (&[whole.as_slice(), b"\n"].concat(), 0o600, "or bytes were added"),
        (&changed, 0o600, "backup"),
        (&whole, 0o644, "mode 0644"),
        (&whole, 0o640, "mode 0640"),
    ] {
        fs::write(bench.path(), content).unwrap();
        mode(bench.path(), bits);
        for verb in ["list", "add-version", "activate", "retire 1 --yes", "add-version --dry-run"] {
            let text = stderr(&bench.run(verb, 2));
            assert!(text.contains(part) && text.contains("root.key"), "{verb}: {text}");
            assert_eq!(bench.bytes(), content, "{verb}");
        }
        mode(bench.path(), 0o600);
    }
    fs::remove_file(bench.path()).unwrap();
    assert!(stderr(&bench.run("list", 2)).contains("there is no key file"));
    assert!(!bench.path().exists());
    let absent = bench.folder.path().join("absent");
    let refused = casemate("key new --file").arg(absent.join("root.key")).assert().code(2);
    assert!(
        stderr(&refused).contains(&format!("mkdir -m 0700 {}", absent.display())),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn commands_at_the_same_time_take_turns() {
    let mut bench = Bench::new();
    let children: Vec<_> = (0..12)
        .map(|_| {
            let mut command = Command::new(program::path());
            command.args(["key", "add-version", "--quiet", "--file"]).arg(bench.path());
            command.stderr(Stdio::inherit()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(bench.states().len(), 13, "no version was lost");
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 1);
}

/// A limit on file sizes ends writes as a full disk does, for every user and file system.
#[test]
fn a_full_disk_leaves_the_old_file_and_says_so() {
    let mut bench = Bench::new();
    bench.run("add-version", 0);
    let before = bench.bytes();
    for verb in [&["add-version"][..], &["activate", "--now"], &["retire", "2", "--yes"]] {
        let output = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" key \"$@\""])
            .arg(program::path())
            .args(verb)
            .arg("--file")
            .arg(bench.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {text}");
        assert!(text.contains("can't write"), "{text}");
        assert_eq!(bench.bytes(), before, "{verb:?}");
        assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 1, "{verb:?}: nothing is left over");
    }
    bench.run("activate --now", 0);
}
