//! k3s without etcd: what the real kine keeps in SQLite, against what the lab wrote through it.

use std::{collections::BTreeMap, fs};

use casemate_lab::{Apiserver, Kine, Lab};
use serde_json::Value;

use super::program::{census, secrets, text};
use super::residue::{SECRETS, aescbc, occurrences, residue, write_small_secrets};

const CBC: &[u8] = b"k8s:enc:aescbc:v1:key1:0123456789abcdef0123456789abcdef";

/// As kube-apiserver writes: transactions that compare the revision.
trait Written {
    fn transact(&self, key: &str, action: &str);
    fn revision(&self, key: &str) -> u64;

    fn put(&self, key: &str, value: &[u8]) {
        self.transact(key, &format!("put {key} \"{}\"", std::str::from_utf8(value).unwrap()));
    }

    fn delete(&self, key: &str) {
        self.transact(key, &format!("del {key}"));
    }
}

impl Written for Kine<'_> {
    fn transact(&self, key: &str, action: &str) {
        let transaction = format!("mod(\"{key}\") = \"{}\"\n\n{action}\n\nget {key}\n\n", self.revision(key));
        let answer = self.etcdctl(&["txn"], transaction.as_bytes()).unwrap();
        assert!(answer.starts_with(b"SUCCESS"), "{}", String::from_utf8_lossy(&answer));
    }

    fn revision(&self, key: &str) -> u64 {
        let answer = self.etcdctl(&["get", key, "--write-out=json"], b"").unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        answer["kvs"][0]["mod_revision"].as_u64().unwrap_or(0)
    }
}

/// Compacts up to `revision`, and waits until all of it is done but for what `rest` says.
fn compact(kine: &Kine<'_>, revision: u64, rest: u64) {
    kine.etcdctl(&["compaction", &revision.to_string()], b"").unwrap();
    let compacted = || {
        let (_, answer) = census(&["snapshot", text(&kine.file())]);
        answer["files"][0]["survey"]["compacted"].as_u64()
    };
    let process = kine.process().unwrap();
    process.wait_until("it was compacted", || compacted() >= Some(revision - rest)).unwrap();
}

fn expected(plain: (u64, u64), local: (u64, u64)) -> Vec<(String, u64, u64)> {
    let rows = [("local", local), ("plain_other", plain)];
    let there = rows.into_iter().filter(|(_, count)| *count != (0, 0));
    there.map(|(kind, (live, past))| (kind.to_owned(), live, past)).collect()
}

#[test]
fn the_file_of_the_real_kine_holds_what_was_written_through_it() {
    let lab = Lab::builder("census kine").apiservers(0).start().unwrap();
    let kine = Kine::start(&lab, "one").unwrap();
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
    kine.kill9();
    assert!(fs::metadata(kine.file().with_extension("db-wal")).unwrap().len() > 0);
    assert_eq!(secrets(&kine.file()), expected((0, 10), (9, 1)));

    // Compacted: what was replaced is gone as a revision of its own, and stands in the row that replaced it.
    kine.restart().unwrap();
    let last = kine.revision("/other/key");
    compact(&kine, last, last - latest);
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
    compact(&kine, last, 1);
    let after = secrets(&kine.file());
    assert!(after.iter().all(|(kind, _, _)| kind == "local"), "{after:?}");

    // Stopped: the log is empty, and the file alone is all of it.
    kine.stop().unwrap();
    let copy = lab.dir().join("copy.db");
    fs::copy(kine.file(), &copy).unwrap();
    assert_eq!(secrets(&copy), after);
}

/// The store at rest: what the program tells, by place, after it was compared with the raw bytes.
fn at_rest(kine: &Kine<'_>, server: &Apiserver) -> BTreeMap<String, u64> {
    server.stop().unwrap();
    kine.stop().unwrap();
    let (code, copies) = residue(&kine.file());
    assert_eq!(code, i32::from(copies.values().any(|count| *count > 0)));
    let (told, raw) = (copies.values().sum::<u64>(), occurrences(&fs::read(kine.file()).unwrap()));
    // Of some rows that were deleted, either the object's beginning or the word in it is overwritten.
    let is_near = told.abs_diff(raw) <= copies["unused_parts"] / 4;
    assert!(is_near && (told > 0) == (raw > 0), "{copies:?}, {raw}");
    copies
}

#[test]
fn what_encryption_leaves_behind_in_kine_goes_step_by_step() {
    let lab = Lab::builder("kine residue").apiservers(0).start().unwrap();
    let kine = Kine::start(&lab, "one").unwrap();
    let server = lab.add_apiserver_on(&kine.endpoint(), casemate_lab::Encryption::Identity).unwrap();
    let all = SECRETS as u64;
    let again = || {
        kine.restart().unwrap();
        server.start().unwrap();
    };
    let count = |copies: &BTreeMap<String, u64>| (copies["objects"], copies["old_rows"]);
    let compact_all = || {
        kine.put("/other/key", b"x");
        compact(&kine, kine.revision("/other/key"), 1);
    };
    write_small_secrets(&server);

    // Killed: all of it is in the log, too.
    server.stop().unwrap();
    kine.kill9();
    let (_, killed) = residue(&kine.file());
    assert!(killed["objects"] == all && killed["sqlite_log"] >= all, "{killed:?}");
    again();
    assert_eq!(count(&at_rest(&kine, &server)), (all, 0));

    // Encrypted and written anew: the row that was, and its copy in the row that is.
    server.set_encryption(aescbc()).unwrap();
    again();
    let every = server.kubectl(&["get", "secrets", "--all-namespaces", "--output=json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], every.as_bytes()).unwrap();
    assert_eq!(count(&at_rest(&kine, &server)), (0, 2 * all));

    // Compacted: the copies stay; and so they do if nothing changes, since that is not written.
    again();
    compact_all();
    let every = server.kubectl(&["get", "secrets", "--all-namespaces", "--output=json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], every.as_bytes()).unwrap();
    compact_all();
    assert_eq!(count(&at_rest(&kine, &server)), (0, all));

    // Changed, and compacted: no row has it, parts of the file that are not used do.
    again();
    server.kubectl(&["annotate", "secrets", "--all", "encrypted=yes"]).unwrap();
    compact_all();
    let compacted = at_rest(&kine, &server);
    assert!(count(&compacted) == (0, 0) && compacted["unused_parts"] > 0, "{compacted:?}");

    // Started again, which is a VACUUM.
    again();
    let clean = at_rest(&kine, &server);
    assert!(clean.values().all(|count| *count == 0), "{clean:?}");
    again();
    let secret = server.kubectl(&["get", "secret", "secret-7", "--output=jsonpath={.data}"]).unwrap();
    assert!(secret.contains("hidden"), "{secret}");
}
