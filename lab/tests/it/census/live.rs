//! `casemate census etcd` on running etcds: what it tells is what a snapshot of the same etcd tells.

mod faults;

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use casemate_lab::{EtcdCluster, Lab, plugin::product};
use serde_json::Value;

use super::ground_truth::{GroundTruth, Transaction};

const MARKS: [&str; 4] = ["aescbc:v1:one", "aescbc:v1:two", "secretbox:v1:three", "aesgcm:v1:four"];

/// `casemate census` with these arguments.
fn census(arguments: &[&str]) -> Output {
    Command::new(product("casemate").unwrap()).arg("census").args(arguments).output().unwrap()
}

/// Exit code and JSON.
fn answer(arguments: &[&str]) -> (i32, Value) {
    let done = census(&[arguments, &["--output", "json"]].concat());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let json = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (done.status.code().unwrap(), json)
}

/// Exit code and what it says on stderr.
fn refusal(arguments: &[&str]) -> (i32, String) {
    let done = census(arguments);
    (done.status.code().unwrap(), String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Of the only source: each group with its tallies. Examples differ: a file is read newest first.
fn groups(answer: &Value) -> Vec<Value> {
    let mut groups = answer["files"][0]["survey"]["groups"].as_array().unwrap().clone();
    for group in &mut groups {
        for standing in ["live", "past"] {
            let tally = group[standing].as_object_mut().unwrap();
            let named = tally.remove("examples").unwrap().as_array().unwrap().len() as u64;
            assert_eq!(named, tally["values"].as_u64().unwrap().min(5), "{tally:?}");
        }
    }
    groups
}

fn value(mark: &str, length: usize) -> Vec<u8> {
    [format!("k8s:enc:{mark}:").into_bytes(), vec![7; 32 + length / 16 * 16]].concat()
}

fn key(prefix: &str, number: usize) -> String {
    let resource = ["secrets", "configmaps", "apps.example/things"][number % 3];
    format!("{prefix}/{resource}/namespace-{}/object-{number}", number % 7)
}

/// Objects under several keys, some of them overwritten, deleted and made again; others beside the prefix.
fn fill(truth: &mut GroundTruth, prefix: &str, objects: usize) -> u64 {
    for part in (0..objects).collect::<Vec<_>>().chunks(50) {
        let mut made = Transaction::default();
        for number in part {
            made.put(key(prefix, *number), &value(MARKS[number % 4], number * 37 % 3000), 0);
        }
        truth.commit(made);
    }
    for part in (0..objects / 5).collect::<Vec<_>>().chunks(100) {
        let mut later = Transaction::default();
        for number in part {
            match number {
                number if *number < objects / 10 => later.delete(key(prefix, *number)),
                number => later.put(key(prefix, *number), &value(MARKS[1], 5), 0),
            }
        }
        truth.commit(later);
    }
    let mut beside = Transaction::default();
    beside.put(format!("{prefix}2/secrets/default/beside"), &value(MARKS[0], 5), 0);
    beside.put("/elsewhere", b"word", 0);
    truth.commit(beside);
    write(truth, (0..objects / 20).map(|number| key(prefix, number)), MARKS[2])
}

/// Writes each of `keys` under `mark`; the last revision.
fn write(truth: &mut GroundTruth, keys: impl Iterator<Item = String>, mark: &str) -> u64 {
    let mut last = 0;
    for part in keys.collect::<Vec<_>>().chunks(100) {
        let mut written = Transaction::default();
        part.iter().for_each(|key| written.put(key, &value(mark, 9), 0));
        last = truth.commit(written);
    }
    last
}

/// Deletes all keys that begin so; the last revision.
fn clear(truth: &mut GroundTruth, lab: &Lab, prefixes: &[&str]) -> u64 {
    let mut last = 0;
    for prefix in prefixes {
        for part in lab.etcd().list(prefix).unwrap().chunks(100) {
            let mut gone = Transaction::default();
            part.iter().for_each(|(key, _)| gone.delete(String::from_utf8(key.clone()).unwrap()));
            last = truth.commit(gone);
        }
    }
    last
}

fn snapshot(lab: &Lab, name: &str) -> String {
    let path = lab.dir().join(name);
    lab.etcd().snapshot(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_running_etcd_is_told_as_its_snapshot_is_the_past_too() {
    let lab = Lab::builder("census live").apiservers(0).start().unwrap();
    let endpoint = lab.etcd().endpoint();
    let mut truth = GroundTruth::of(lab.etcd());
    let overwritten = fill(&mut truth, "/registry", 900);
    fill(&mut truth, "/kubernetes.io", 90);
    let live = ["etcd", "--endpoints", &endpoint, "--rate", "0"];

    for (name, prefix) in [("1.db", "/registry"), ("2.db", "/kubernetes.io"), ("3.db", "")] {
        let file = snapshot(&lab, name);
        let (code, ours) = answer(&[&live[..], &["--prefix", prefix]].concat());
        let (_, theirs) = answer(&["snapshot", &file, "--prefix", prefix]);
        assert_eq!(groups(&ours), groups(&theirs), "{prefix}");
        let fact = |answer: &Value, name: &str| answer["files"][0]["survey"][name].clone();
        for name in ["revision", "compacted", "live", "past", "ungrouped"] {
            assert_eq!(fact(&ours, name), fact(&theirs, name), "{prefix}: {name}");
        }
        assert_eq!((code, fact(&ours, "unseen")), (0, Value::Array(Vec::new())), "{prefix}");
        assert_eq!(fact(&ours, "outside") == 0, prefix.is_empty());
    }
    let (code, lost) = answer(&[&live[..], &["--prefix", "/nothing", "--may-go", "aescbc:one"]].concat());
    assert_eq!((code, lost["may_go"]["verdict"].as_str()), (3, Some("unknown")));

    // One key, live and in the past, and gone only when etcd has forgotten it.
    let may_go = |key: &str| {
        let (code, told) = answer(&[&live[..], &["--may-go", key]].concat());
        (code, told["may_go"].clone())
    };
    let (code, told) = may_go("aescbc:one");
    assert_eq!((code, told["verdict"].as_str()), (1, Some("no")));
    let keys =
        lab.etcd().list("/registry/").unwrap().into_iter().map(|(key, _)| String::from_utf8(key).unwrap());
    write(&mut truth, keys, MARKS[3]);
    let (code, told) = may_go("aescbc:one");
    assert_eq!((code, told["held_by"][0]["live"]["values"].as_u64()), (1, Some(0)), "{told:#}");
    let held: u64 =
        told["held_by"].as_array().unwrap().iter().map(|one| one["past"]["values"].as_u64().unwrap()).sum();
    assert!(held > 100, "{told:#}");
    // Compacted up to before the migration: what it replaced is still there.
    truth.compact(overwritten + 1);
    let (code, told) = may_go("aescbc:one");
    assert_eq!((code, told["verdict"].as_str()), (1, Some("no")));
    let newest = truth.commit({
        let mut one = Transaction::default();
        one.put("/registry/configmaps/default/last", &value(MARKS[3], 1), 0);
        one
    });
    truth.compact(newest - 1);
    // What is below the other prefixes is under it, too.
    let (code, told) = may_go("aescbc:one");
    assert_eq!((code, told["verdict"].as_str()), (3, Some("unknown")), "{told:#}");
    let file = snapshot(&lab, "outside.db");
    assert_eq!(answer(&["snapshot", &file, "--may-go", "aescbc:one"]).0, 3);
    let newest = clear(&mut truth, &lab, &["/registry2/", "/kubernetes.io"]);
    truth.compact(newest);
    let (code, told) = may_go("aescbc:one");
    assert_eq!((code, told["verdict"].as_str()), (0, Some("yes")), "{told:#}");
    assert_eq!(may_go("aesgcm:four").0, 1);
    let file = snapshot(&lab, "4.db");
    assert_eq!(answer(&["snapshot", &file, "--may-go", "aescbc:one"]).0, 0);
}

#[test]
fn a_migration_is_followed_until_nothing_is_left_of_what_was_asked_for() {
    let lab = Lab::builder("census watch").apiservers(0).start().unwrap();
    let endpoint = lab.etcd().endpoint();
    let mut truth = GroundTruth::of(lab.etcd());
    let keys: Vec<String> = (0..600).map(|number| key("/registry", number)).collect();
    write(&mut truth, keys.iter().cloned(), MARKS[0]);
    let arguments =
        ["etcd", "--endpoints", &endpoint, "--rate", "0", "--needs", "aescbc:one", "--watch", "100ms"];
    let mut command = Command::new(product("casemate").unwrap());
    command.arg("census").args(arguments).args(["--output", "json"]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut passes = BufReader::new(watch.stdout.take().unwrap())
        .lines()
        .map(|line| -> Value { serde_json::from_str(&line.unwrap()).unwrap() });
    let first = passes.next().unwrap();
    assert_eq!((first["left"].as_u64(), first["exit"].as_u64()), (Some(600), Some(1)), "{first:#}");
    // Each step is seen before the next one begins.
    write(&mut truth, keys[..200].iter().cloned(), MARKS[1]);
    let seen = passes.find(|pass| pass["groups"][0]["live_change"].as_i64().unwrap() < 0).unwrap();
    assert_eq!(seen["left"].as_u64(), Some(600), "old revisions count: {seen:#}");
    let revision = write(&mut truth, keys[200..].iter().cloned(), MARKS[1]);
    truth.compact(revision);
    let last = passes.last().unwrap();
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert_eq!((last["left"].as_u64(), last["exit"].as_u64()), (Some(0), Some(0)), "{last:#}");
    let changes: Vec<i64> = last["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["live_change"].as_i64().unwrap())
        .collect();
    assert_eq!((changes.iter().sum::<i64>(), changes.iter().min()), (0, Some(&-200)), "{last:#}");
}

#[test]
fn resources_of_one_name_in_several_groups_are_told_apart() {
    let lab = Lab::builder("census names").apiservers(0).start().unwrap();
    let endpoint = lab.etcd().endpoint();
    let mut truth = GroundTruth::of(lab.etcd());
    let objects = |folder: &'static str| {
        (0..20).map(move |number| format!("/registry/{folder}/default/object-{number}"))
    };
    let folders = ["secrets", "example.com/secrets", "secrets.example.com/secrets", "example.org/secrets"];
    let marks = [MARKS[0], MARKS[1], "aescbc:v1:five", MARKS[3]];
    for (folder, mark) in folders.into_iter().zip(marks) {
        write(&mut truth, objects(folder), mark);
    }
    // Those of the core group are written anew first.
    let revision = write(&mut truth, objects("secrets"), MARKS[3]);
    truth.compact(revision);
    let watch = |key: &str| {
        let arguments = ["etcd", "--endpoints", &endpoint, "--rate", "0", "--needs", key, "--watch", "100ms"];
        let mut command = Command::new(product("casemate").unwrap());
        command.arg("census").args(arguments).args(["--output", "json"]).stdout(Stdio::piped());
        let mut watch = command.spawn().unwrap();
        let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        (watch, lines.map(|line| -> Value { serde_json::from_str(&line.unwrap()).unwrap() }))
    };
    let (mut done, mut passes) = watch("aescbc:one");
    assert_eq!(passes.next().unwrap()["left"], 0, "nothing is under it any more");
    assert_eq!(done.wait().unwrap().code(), Some(0));

    let (mut following, mut passes) = watch("aescbc:two");
    let first = passes.next().unwrap();
    let mut found: Vec<(&str, &str, u64)> = first["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let of = |field: &str| group["resource"][field].as_str().unwrap();
            (of("group"), of("name"), group["live"].as_u64().unwrap())
        })
        .collect();
    found.sort_unstable();
    let groups = ["", "example.com", "example.org", "secrets.example.com"];
    assert_eq!(found, groups.map(|group| (group, "secrets", 20)), "{first:#}");
    assert_eq!(first["left"], 20, "{first:#}");
    let revision = write(&mut truth, objects("example.com/secrets"), MARKS[3]);
    truth.compact(revision);
    let last = passes.last().unwrap();
    assert_eq!((following.wait().unwrap().code(), &last["left"]), (Some(0), &Value::from(0)), "{last:#}");
    for group in last["groups"].as_array().unwrap() {
        let changed = group["live_change"] != 0;
        assert_eq!(changed, group["resource"]["group"] == "example.com", "{group:#}");
    }
    // Interrupted, it ends as its last pass says, with whole lines.
    for name in ["-INT", "-TERM"] {
        let (mut stopped, mut passes) = watch("aesgcm:four");
        assert_eq!(passes.next().unwrap()["exit"], 1);
        let signal = Command::new("kill").args([name, &stopped.id().to_string()]).status().unwrap();
        assert!(signal.success());
        passes.for_each(drop);
        assert_eq!(stopped.wait().unwrap().code(), Some(1), "{name}");
    }
    // So it does when nobody reads what it prints.
    let (mut stopped, mut passes) = watch("aesgcm:four");
    passes.next().unwrap();
    drop(passes);
    assert_eq!(stopped.wait().unwrap().code(), Some(1));
    // A policy for Secrets is one for those of the core group.
    let policy = lab.dir().join("policy.yaml");
    for (resource, code) in [("secrets", 0), ("secrets.example.org", 0), ("secrets.secrets.example.com", 1)] {
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n\
             - {{resources: [{resource}], allow: ['aesgcm:four']}}\n"
        );
        std::fs::write(&policy, text).unwrap();
        let policy = policy.to_str().unwrap();
        let done = census(&["etcd", "--endpoints", &endpoint, "--rate", "0", "--policy", policy]);
        assert_eq!(done.status.code(), Some(code), "{resource}: {done:?}");
    }
}

#[test]
fn each_distributions_files_lead_to_its_etcd() {
    let lab = Lab::builder("census detect").apiservers(0).start().unwrap();
    let cluster = EtcdCluster::start_with_tls(&lab, "detected", 1).unwrap();
    let authority = lab.dir().join("detected-authority");
    let endpoint = cluster.endpoints().remove(0);
    let mark = String::from_utf8(value(MARKS[0], 0)).unwrap();
    for prefix in ["/registry", "/kubernetes.io"] {
        cluster.etcdctl(&["put", &format!("{prefix}/secrets/default/one"), &mark]).unwrap();
    }
    let flags = |folder: &str, ca: &str, client: &str| {
        format!(
            "spec: {{containers: [{{name: kube-apiserver, command: [kube-apiserver], args: [--etcd-servers={endpoint}, \
             --etcd-cafile={folder}/{ca}, --etcd-certfile={folder}/{client}.crt, --etcd-keyfile={folder}/{client}.key]}}]}}"
        )
    };
    let (kubeadm, rke2, k3s, openshift) = (
        "etc/kubernetes/pki",
        "var/lib/rancher/rke2/server/tls/etcd",
        "var/lib/rancher/k3s/server/tls/etcd",
        "etc/kubernetes/static-pod-resources/etcd-certs/secrets/etcd-all-certs",
    );
    let environment = format!("export ETCDCTL_ENDPOINTS=\"{endpoint}\"\n");
    let trees = [
        (
            "kubeadm",
            kubeadm,
            "etcd/ca.crt",
            "apiserver-etcd-client",
            "etc/kubernetes/manifests/kube-apiserver.yaml",
            flags("/etc/kubernetes/pki", "etcd/ca.crt", "apiserver-etcd-client"),
        ),
        (
            "RKE2",
            rke2,
            "server-ca.crt",
            "client",
            "var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml",
            flags(&format!("/{rke2}"), "server-ca.crt", "client"),
        ),
        (
            "k3s",
            k3s,
            "server-ca.crt",
            "client",
            "var/lib/rancher/k3s/server/db/etcd/config",
            format!("listen-client-urls: {endpoint}\n"),
        ),
        (
            "OpenShift",
            openshift,
            "../../configmaps/etcd-all-bundles/server-ca-bundle.crt",
            "etcd-peer-one",
            "etc/kubernetes/static-pod-resources/etcd-certs/configmaps/etcd-scripts/etcd.env",
            environment,
        ),
    ];
    for (name, folder, ca, client, file, text) in trees {
        let root = lab.dir().join(name);
        let put = |at: &Path, bytes: &[u8]| {
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(at, bytes).unwrap();
        };
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let copy =
            |from: &str, to: String| put(&folder.join(to), &std::fs::read(authority.join(from)).unwrap());
        copy("ca.pem", ca.to_owned());
        copy("root.pem", format!("{client}.crt"));
        copy("root.key", format!("{client}.key"));
        put(&root.join(file), text.as_bytes());
        let arguments = ["etcd", "--detect", "--root", root.to_str().unwrap()];
        let (code, told) = answer(&arguments);
        let survey = &told["files"][0]["survey"];
        assert_eq!((code, survey["live"].as_u64()), (0, Some(1)), "{name}: {told:#}");
        let (_, said) = refusal(&arguments);
        assert!(said.contains(&format!("detected {name} by")) && said.contains(&endpoint), "{said}");
        // One more distribution on the same host is one too many.
        put(
            &root.join("etc/kubernetes/manifests/kube-apiserver.yaml"),
            flags("/none", "ca", "client").as_bytes(),
        );
        if name != "kubeadm" {
            let (code, said) = refusal(&arguments);
            assert!(code == 3 && said.contains("several were detected: kubeadm by"), "{code} {said}");
        }
    }
}

/// All arguments to reach `cluster` with TLS, as the client of that name.
fn with_tls<'a>(cluster: &EtcdCluster<'_>, folder: &'a Path, endpoints: &'a str, name: &str) -> Vec<String> {
    let at = |file: &str| folder.join(file).to_str().unwrap().to_owned();
    assert!(cluster.authority().is_some());
    let arguments = ["etcd", "--rate", "0", "--endpoints", endpoints, "--cacert"].map(str::to_owned);
    let files = [
        at("ca.pem"),
        "--cert".into(),
        at(&format!("{name}.pem")),
        "--key".into(),
        at(&format!("{name}.key")),
    ];
    arguments.into_iter().chain(files).collect()
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
