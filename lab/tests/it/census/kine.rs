//! k3s without etcd: what the real kine keeps in SQLite, against what the lab wrote through it.

use std::{fs, net::TcpListener, path::PathBuf, process::Command};

use casemate_lab::{Lab, Process, Tool};
use serde_json::Value;

use super::program::{census, secrets, text};

const CBC: &[u8] = b"k8s:enc:aescbc:v1:key1:0123456789abcdef0123456789abcdef";

/// A kine with its own state.db.
struct Kine<'a> {
    lab: &'a Lab,
    folder: PathBuf,
    address: String,
    process: Process,
}

impl<'a> Kine<'a> {
    fn start(lab: &'a Lab, name: &str) -> Self {
        let folder = lab.dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(Tool::Kine.path().unwrap());
        let journal = "_journal_mode=WAL&_busy_timeout=30000&_txlock=immediate&cache=shared";
        command
            .args(["--listen-address", &address, "--metrics-bind-address", "0"])
            // It compacts when it is asked to, and keeps no thousand revisions.
            .args(["--compact-min-retain", "0"])
            .args(["--endpoint", &format!("sqlite://{}?{journal}", folder.join("state.db").display())]);
        let process = lab.spawn(&format!("kine-{name}"), &command).unwrap();
        let kine = Self { lab, folder, address, process };
        kine.process.wait_until("it answered", || kine.etcdctl(&["get", "/"], b"").is_some()).unwrap();
        kine
    }

    fn etcdctl(&self, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
        let input_file = self.lab.dir().join("input");
        fs::write(&input_file, input).unwrap();
        let mut command = Command::new(Tool::Etcdctl.path().unwrap());
        command.args(["--endpoints", &self.address, "--command-timeout=30s"]).args(args);
        command.stdin(fs::File::open(&input_file).unwrap());
        let done = command.output().unwrap();
        done.status.success().then_some(done.stdout)
    }

    /// As kube-apiserver writes: a transaction that compares the revision.
    fn put(&self, key: &str, value: &[u8]) {
        let revision = self.revision(key);
        let text = String::from_utf8(value.to_vec()).unwrap();
        let transaction = format!("mod(\"{key}\") = \"{revision}\"\n\nput {key} \"{text}\"\n\nget {key}\n\n");
        let answer = self.etcdctl(&["txn"], transaction.as_bytes()).unwrap();
        assert!(answer.starts_with(b"SUCCESS"), "{}", String::from_utf8_lossy(&answer));
    }

    fn delete(&self, key: &str) {
        let revision = self.revision(key);
        let transaction = format!("mod(\"{key}\") = \"{revision}\"\n\ndel {key}\n\nget {key}\n\n");
        let answer = self.etcdctl(&["txn"], transaction.as_bytes()).unwrap();
        assert!(answer.starts_with(b"SUCCESS"), "{}", String::from_utf8_lossy(&answer));
    }

    fn revision(&self, key: &str) -> u64 {
        let answer = self.etcdctl(&["get", key, "--write-out=json"], b"").unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        answer["kvs"][0]["mod_revision"].as_u64().unwrap_or(0)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("state.db")
    }
}

fn expected(plain: (u64, u64), local: (u64, u64)) -> Vec<(String, u64, u64)> {
    let rows = [("local", local), ("plain_other", plain)];
    let there = rows.into_iter().filter(|(_, count)| *count != (0, 0));
    there.map(|(kind, (live, past))| (kind.to_owned(), live, past)).collect()
}

#[test]
fn the_file_of_the_real_kine_holds_what_was_written_through_it() {
    let lab = Lab::builder("census kine").apiservers(0).start().unwrap();
    let kine = Kine::start(&lab, "one");
    let name = |number: usize| format!("/registry/secrets/default/secret-{number}");
    let plain = b"in-the-clear";
    for number in 0..10 {
        kine.put(&name(number), plain);
    }
    // While it runs: what is in the log counts, and nothing is in its way.
    assert_eq!(secrets(&kine.file()), expected((10, 0), (0, 0)));
    for number in 0..10 {
        kine.put(&name(number), CBC);
    }
    kine.delete(&name(9));
    assert_eq!(secrets(&kine.file()), expected((0, 10), (9, 1)));
    let latest = kine.revision(&name(8));
    kine.put("/other/key", b"x");

    // Killed: the log stays.
    kine.process.kill9();
    assert!(fs::metadata(kine.folder.join("state.db-wal")).unwrap().len() > 0);
    assert_eq!(secrets(&kine.file()), expected((0, 10), (9, 1)));

    // Compacted: what was replaced is gone as a revision of its own, and stands in the row that replaced it.
    let kine = Kine::start(&lab, "one");
    let last = kine.revision("/other/key");
    let compaction = kine.etcdctl(&["compaction", &last.to_string()], b"");
    assert!(compaction.is_some());
    let compacted = || {
        let (_, answer) = census(&["snapshot", text(&kine.file())]);
        answer["files"][0]["survey"]["compacted"].as_u64()
    };
    kine.process.wait_until("it was compacted", || compacted() >= Some(latest)).unwrap();
    // The deleted one is gone, the others carry what they replaced.
    assert_eq!(secrets(&kine.file()), expected((0, 9), (9, 0)));
    let (code, answer) = census(&["snapshot", text(&kine.file()), "--may-go", "aescbc:key1"]);
    assert_eq!((code, answer["may_go"]["verdict"].as_str()), (1, Some("no")));
    let (code, object) = census(&["object", text(&kine.file()), "default/secret-3"]);
    let lives: Vec<bool> =
        object["values"].as_array().unwrap().iter().map(|value| value["live"].as_bool().unwrap()).collect();
    assert_eq!((code, lives), (0, vec![true, false]));

    // Written once more: nothing in the clear is left when that is compacted, too.
    for number in 0..9 {
        kine.put(&name(number), CBC);
        kine.put(&name(number), CBC);
    }
    let last = kine.revision(&name(8));
    assert!(kine.etcdctl(&["compaction", &last.to_string()], b"").is_some());
    kine.process.wait_until("it was compacted again", || compacted() >= Some(last - 1)).unwrap();
    let after = secrets(&kine.file());
    assert!(after.iter().all(|(kind, _, _)| kind == "local"), "{after:?}");

    // Stopped: the log is empty, and the file alone is all of it.
    kine.process.terminate().unwrap();
    let copy = lab.dir().join("copy.db");
    fs::copy(kine.file(), &copy).unwrap();
    assert_eq!(secrets(&copy), after);
}
