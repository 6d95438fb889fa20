//! What somebody wrote to a real etcd who wishes nobody well: names for a terminal, objects where nobody looks, a file that
//! changes under the reader.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use casemate_lab::{EtcdCluster, Lab, plugin::product};

use super::{
    ground_truth::{GroundTruth, Transaction},
    program::{census, text},
};
use crate::over::Over;

/// A terminal's commands, a line's end, what turns letters round, and what nobody sees.
const ODD: &str =
    "a\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\n\u{202e}txt.\u{2066}\u{200b}\u{feff}\u{2028}<script>\"'&{}";

fn local(name: &str) -> Vec<u8> {
    [format!("k8s:enc:aescbc:v1:{name}:").as_bytes(), &[7; 48]].concat()
}

fn kms_v2(provider: &str, key_id: &str) -> Vec<u8> {
    let mut message = vec![0x0a, 64];
    message.extend([7; 64]);
    for (field, bytes) in [(0x12, key_id.as_bytes()), (0x1a, &[9; 40])] {
        message.extend([field, bytes.len() as u8]);
        message.extend(bytes);
    }
    message.extend([0x28, 1]);
    [format!("k8s:enc:kms:v2:{provider}:").as_bytes(), &message].concat()
}

fn snapshot(lab: &Lab, name: &str) -> String {
    let path = lab.dir().join(name);
    lab.etcd().snapshot(&path).unwrap();
    text(&path).to_owned()
}

/// Whether a terminal, a browser or a reader of lines could take it for something else.
fn is_odd(character: &char) -> bool {
    character.is_control() && *character != '\n'
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[test]
fn whatever_is_in_a_name_every_output_is_text() {
    let lab = Lab::builder("census hostile names").apiservers(0).start().unwrap();
    let mut truth = GroundTruth::of(lab.etcd());
    let mut written = Transaction::default();
    let keys = [
        format!("/registry/secrets/default/{ODD}"),
        format!("/registry/secrets/{ODD}/one"),
        format!("/registry/{ODD}/default/one"),
        format!("/registry/{ODD}.example.com/things/default/one"),
        "/registry/secrets/../../../etc/passwd".to_owned(),
        format!("/registry/secrets/default/{}", "x".repeat(5000)),
    ];
    for (place, key) in keys.iter().enumerate() {
        written.put(key.as_str(), &local(ODD), 0);
        written.put(format!("{key}.{place}"), &kms_v2(&ODD.replace(':', ""), ODD), 0);
    }
    written.put("/registry/secrets/default/cut", format!("k8s:enc:kms:v2:{ODD}").as_bytes(), 0);
    truth.commit(written);
    let file = snapshot(&lab, "hostile.db");
    let (html, gauges) = (lab.dir().join("page.html"), lab.dir().join("census.prom"));
    let policy = lab.dir().join("policy.yaml");
    fs::write(
        &policy,
        "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n- {resources: ['*.*'], allow: [kms:v2:ours]}\n",
    )
    .unwrap();
    let key = format!("aescbc:{ODD}");
    let asked = ["--policy", text(&policy), "--needs", &key, "--may-go", &key, "--have", "aescbc:other"];
    let reports = ["--html", text(&html), "--prometheus", text(&gauges)];
    let live = lab.etcd().endpoint();
    let mut runs = 0;
    for arguments in [
        [&["snapshot", file.as_str()][..], &asked, &reports].concat(),
        [&["etcd", "--endpoints", &live][..], &asked].concat(),
        vec!["object", &file, &keys[0]],
        vec!["object", &file, &format!("{ODD}/one")],
        vec!["residue", &file],
        vec!["diff", &file, &file],
    ] {
        for format in ["table", "json"] {
            let mut command = Command::new(product("casemate").unwrap());
            let done = command.arg("census").args(&arguments).args(["--output", format]).output().unwrap();
            for bytes in [&done.stdout, &done.stderr] {
                let said = std::str::from_utf8(bytes).unwrap();
                let odd: String = said.chars().filter(is_odd).collect();
                assert_eq!(odd, "", "{arguments:?} {format}: {said:?}");
            }
            if format == "json" {
                serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap();
            }
            runs += done.stdout.len().min(1);
        }
    }
    assert!(runs >= 11, "{runs}");
    // A key that can't be shown is found all the same.
    let (code, answer) = census(&["snapshot", &file, "--may-go", &key]);
    assert_eq!((code, answer["may_go"]["verdict"].as_str()), (1, Some("no")), "{answer:#}");
    for (file, forbidden) in [(&html, "<script"), (&gauges, "\"'&")] {
        let said = fs::read_to_string(file).unwrap();
        assert_eq!(said.chars().filter(is_odd).collect::<String>(), "", "{}", file.display());
        assert!(!said.contains(forbidden), "{}", file.display());
    }
    for line in fs::read_to_string(&gauges).unwrap().lines() {
        assert!(line.starts_with("# ") || line.starts_with("casemate_census_"), "{line}");
    }
}

/// OpenShift keeps what its API servers encrypt below two prefixes of one etcd.
#[test]
fn what_is_below_a_second_prefix_holds_a_key_back_in_files_and_in_a_running_etcd() {
    let lab = Lab::builder("census prefixes").apiservers(0).start().unwrap();
    let mut truth = GroundTruth::of(lab.etcd());
    let mut written = Transaction::default();
    written.put("/kubernetes.io/secrets/default/one", &local("2"), 0);
    written.put("/openshift.io/routes/default/one", &local("1"), 0);
    written.put("compact_rev_key", b"7", 0);
    truth.commit(written);
    let endpoint = lab.etcd().endpoint();
    let asks = |key: &str, prefix: &str, name: &str| {
        let file = snapshot(&lab, name);
        let verdicts =
            [&["snapshot", file.as_str()][..], &["etcd", "--endpoints", &endpoint]].map(|source| {
                let (code, answer) = census(&[source, &["--prefix", prefix, "--may-go", key]].concat());
                let verdict = answer["may_go"]["verdict"].as_str().unwrap().to_owned();
                let (needs, _) = census(&[source, &["--prefix", prefix, "--needs", key]].concat());
                assert_eq!(needs, code, "{answer:#}");
                verdict
            });
        assert_eq!(verdicts[0], verdicts[1]);
        verdicts[0].clone()
    };
    assert_eq!(asks("aescbc:1", "/kubernetes.io", "1.db"), "unknown");
    assert_eq!(asks("aescbc:2", "/kubernetes.io", "2.db"), "no");
    assert_eq!(asks("aescbc:1", "/", "3.db"), "no");
    assert_eq!(asks("aescbc:3", "/", "4.db"), "yes");
    // A prefix below which nothing is, and one that is a part of the right one.
    assert_eq!(asks("aescbc:1", "/registry", "5.db"), "unknown");
    assert_eq!(asks("aescbc:1", "/kubernetes.io/secrets", "6.db"), "unknown");
    // Deleted there, and not compacted away; then gone.
    let mut gone = Transaction::default();
    gone.delete("/openshift.io/routes/default/one");
    let revision = truth.commit(gone);
    assert_eq!(asks("aescbc:1", "/kubernetes.io", "7.db"), "unknown");
    truth.compact(revision);
    assert_eq!(asks("aescbc:1", "/kubernetes.io", "8.db"), "yes");
}

#[test]
fn an_etcd_that_was_made_anew_frees_no_key() {
    let lab = Lab::builder("census empty").apiservers(0).start().unwrap();
    let file = snapshot(&lab, "empty.db");
    let endpoint = lab.etcd().endpoint();
    for source in [&["snapshot", file.as_str()][..], &["etcd", "--endpoints", &endpoint]] {
        for question in ["--may-go", "--needs"] {
            let (code, answer) = census(&[source, &[question, "aescbc:one"]].concat());
            assert_eq!(code, 3, "{source:?} {question}: {answer:#}");
        }
    }
}

/// A `db` is read twice, for its SHA-256 and for what is in it.
#[test]
fn a_file_that_is_written_while_it_is_read_gives_no_answer() {
    let lab = Lab::builder("census changing").apiservers(0).start().unwrap();
    let mut truth = GroundTruth::of(lab.etcd());
    for batch in 0..20 {
        let mut written = Transaction::default();
        for number in 0..100 {
            let key = format!("/registry/secrets/default/object-{batch}-{number}");
            written.put(key, &local("one"), 0);
        }
        truth.commit(written);
    }
    // A copy on a disk without locks, of a member that runs.
    let copy = lab.dir().join("db");
    fs::copy(snapshot(&lab, "whole.db"), &copy).unwrap();
    let length = fs::metadata(&copy).unwrap().len() - 32;
    File::options().write(true).open(&copy).unwrap().set_len(length).unwrap();
    let still = census(&["snapshot", text(&copy), "--needs", "aescbc:two"]);
    assert_eq!(still.0, 0, "{:#}", still.1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| touch(&copy, &is_over));
        for question in ["--needs", "--may-go"] {
            let (code, answer) = census(&["snapshot", text(&copy), question, "aescbc:two"]);
            let error = answer["failed"][0]["error"].as_str().unwrap_or_default();
            assert!(code == 3 && error.contains("changed while it was read"), "{code} {answer:#}");
        }
    });
}

/// As each write does.
fn touch(path: &Path, is_over: &AtomicBool) {
    let file = File::options().write(true).open(path).unwrap();
    for turn in 1.. {
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(turn)).unwrap();
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// What a user of etcd may not read is never taken for nothing.
#[test]
fn who_may_read_a_part_only_gets_no_yes() {
    let lab = Lab::builder("census rights").apiservers(0).start().unwrap();
    let cluster = EtcdCluster::start(&lab, "guarded", 1).unwrap();
    let endpoint = cluster.endpoints().remove(0);
    let mut truth = GroundTruth::at(&endpoint);
    let mut written = Transaction::default();
    written.put("/registry/configmaps/default/one", &local("one"), 0);
    written.put("/registry/secrets/default/one", &local("two"), 0);
    written.put("/registry/secrets/kube-system/one", &local("three"), 0);
    truth.commit(written);
    let grants: [(&str, &[[&str; 2]]); 6] = [
        ("all", &[["/", "0"]]),
        ("registry", &[["/registry/", "/registry0"]]),
        (
            "parts",
            &[
                ["/registry/configmaps/", "/registry/configmaps0"],
                ["/registry/secrets/", "/registry/secrets0"],
            ],
        ),
        ("part", &[["/registry/secrets/", "/registry/secrets0"]]),
        ("hole", &[["/registry/", "/registry/secrets/k"], ["/registry/secrets/l", "/registry0"]]),
        ("nothing", &[]),
    ];
    cluster.etcdctl(&["user", "add", "root:rootword"]).unwrap();
    cluster.etcdctl(&["user", "grant-role", "root", "root"]).unwrap();
    for (user, ranges) in grants {
        cluster.etcdctl(&["role", "add", user]).unwrap();
        for [from, to] in ranges {
            cluster.etcdctl(&["role", "grant-permission", user, "read", from, to]).unwrap();
        }
        cluster.etcdctl(&["user", "add", &format!("{user}:word")]).unwrap();
        cluster.etcdctl(&["user", "grant-role", user, user]).unwrap();
    }
    cluster.etcdctl(&["auth", "enable"]).unwrap();
    let password = lab.dir().join("password");
    let ask = |user: &str, word: &str, question: &[&str]| {
        fs::write(&password, format!("{word}\n")).unwrap();
        let mut command = Command::new(product("casemate").unwrap());
        command.args(["census", "etcd", "--endpoints", &endpoint, "--user", user]);
        command.args(["--password-file", text(&password), "--output", "json"]).args(question);
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.code().unwrap(), said)
    };
    // Only one key is in what a user may read; whoever may not read all of it is told so, or gets what is known.
    for (user, word, three, absent) in [
        ("root", "rootword", 1, 0),
        ("all", "word", 1, 3),
        ("registry", "word", 1, 3),
        ("parts", "word", 3, 3),
        ("part", "word", 3, 3),
        ("hole", "word", 3, 3),
        ("nothing", "word", 3, 3),
    ] {
        for question in ["--may-go", "--needs"] {
            let (code, said) = ask(user, word, &[question, "aescbc:three"]);
            assert_eq!(code, three, "{user} {question}: {said}");
            let (code, said) = ask(user, word, &[question, "aescbc:four"]);
            assert_eq!(code, absent, "{user} {question}: {said}");
        }
    }
}
