//! An etcd to restore to that wants certificates, is not empty, is cut off half-way, or whose wrong part was asked for.

use std::fs;

use casemate_lab::fault_proxy::{FaultProxy, Mode};
use casemate_lab::{EtcdCluster, Lab, authority::Validity};
use serde_json::json;

use super::written::Written;
use super::{encryption, recover, snapshot, text};

#[test]
fn only_an_empty_etcd_that_takes_us_is_restored_to_and_a_half_one_is_told() {
    let lab = Lab::builder("recover target").apiservers(0).start().unwrap();
    let server = lab.add_apiserver(encryption(&["identity"], None)).unwrap();
    Written::define_things(&server);
    Written::default().write(&server, "one");
    for number in 0..200 {
        let name = format!("many-{number}");
        lab.etcd().put(&format!("/registry/configmaps/default/{name}"), name.as_bytes()).unwrap();
    }
    lab.etcd().put("/registry/masterleases/10.0.0.1", b"k8s\0").unwrap();
    lab.etcd().put("/elsewhere/a", b"not below the prefix").unwrap();
    let file = snapshot(&lab, "all.db");
    let mut all = lab.etcd().list("/registry/").unwrap();
    all.retain(|(key, _)| !key.starts_with(b"/registry/masterleases/"));
    let restore = |endpoint: &str, more: &[&str]| {
        let words = ["restore", text(&file), "--yes", "--output", "json", "--endpoints", endpoint];
        recover(words.into_iter().chain(more.iter().copied()))
    };

    // With certificates, to any member; without, or by a stranger, not.
    let guarded = EtcdCluster::start_with_tls(&lab, "guarded", 3).unwrap();
    let authority = guarded.authority().unwrap();
    let client = authority.client("root", Validity::Now).unwrap();
    let (ca, cert, key) = (authority.certificate(), client.certificate, client.key);
    let endpoints = guarded.endpoints().join(",");
    let refused = restore(&endpoints, &["--cacert", text(&ca)]).expect(3);
    assert!(refused.said.contains("certificate"), "{}", refused.said);
    let with = ["--cacert", text(&ca), "--cert", text(&cert), "--key", text(&key)];
    let answer = restore(&endpoints, &with).expect(0).json();
    assert_eq!((&answer["written"], &answer["left_out"]), (&json!(all.len()), &json!(1)));
    let keys = guarded.etcdctl(&["get", "", "--from-key", "--keys-only", "--limit=0"]).unwrap();
    let keys: Vec<&[u8]> = keys.lines().filter(|line| !line.is_empty()).map(str::as_bytes).collect();
    assert_eq!(keys, all.iter().map(|(key, _)| key.as_slice()).collect::<Vec<_>>());
    let value =
        guarded.etcdctl(&["get", "/registry/configmaps/default/many-7", "--print-value-only"]).unwrap();
    assert_eq!(value, "many-7\n");

    // One key is enough to refuse it, and what is beside the prefix is not asked about.
    let used = EtcdCluster::start(&lab, "used", 1).unwrap();
    used.etcdctl(&["put", "/registry/secrets/a/b", "precious"]).unwrap();
    let said = restore(&used.endpoints()[0], &[]).expect(1).said;
    assert!(said.contains("1 keys below /registry"), "{said}");
    assert_eq!(used.etcdctl(&["get", "", "--from-key", "--print-value-only"]).unwrap(), "precious\n");
    used.etcdctl(&["del", "/registry/secrets/a/b"]).unwrap();
    used.etcdctl(&["put", "/registry-of-another/a", "precious"]).unwrap();

    // Cut off between two transactions.
    let proxy = FaultProxy::bytes(&used.endpoints()[0]).unwrap();
    proxy.set_mode(Mode::CutAfter { bytes: 1500 }).unwrap();
    let said = restore(&proxy.address(), &[]).expect(3).said;
    assert!(said.contains("not all") && said.contains("new data folder"), "{said}");
    let there = used.etcdctl(&["get", "/registry/", "--prefix", "--keys-only"]).unwrap();
    let there = there.lines().filter(|line| !line.is_empty()).count();
    assert!(there > 0 && there < all.len(), "{there} keys: it was not cut off half-way");
    // And it is not empty any more.
    assert!(restore(&used.endpoints()[0], &[]).expect(1).said.contains("only an empty etcd"));

    // A user, nobody there, a broken configuration.
    let password = lab.dir().join("password");
    fs::write(&password, "secret").unwrap();
    let with = ["--user", "root", "--password-file", text(&password)];
    assert!(restore("http://127.0.0.1:1", &with).expect(2).said.contains("a fresh etcd has no users"));
    restore("http://127.0.0.1:1", &[]).expect(3);
    let wrong = lab.dir().join("wrong.yaml");
    let plugin = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
        providers:\n  - kms: {apiVersion: v1, name: old, endpoint: 'unix:///a'}\n";
    fs::write(&wrong, plugin).unwrap();
    let said = restore("http://127.0.0.1:1", &["--encrypt-with", text(&wrong)]).expect(2).said;
    assert!(said.contains("kms:v1:old"), "{said}");
}
