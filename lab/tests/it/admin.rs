//! The admin socket beside a real kube-apiserver: both name the same key id.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use casemate_lab::{Lab, Plugin, demo};

/// Hashes of key ids that the API server has written under, by its own count.
fn written_under(lab: &Lab) -> BTreeSet<String> {
    let metrics = lab.kubectl(0, &["get", "--raw", "/metrics"]).unwrap();
    let lines = metrics.lines().filter(|line| {
        line.starts_with("apiserver_envelope_encryption_key_id_hash_total{")
            && line.contains(r#"provider_name="casemate""#)
            && line.contains(r#"transformation_type="to_storage""#)
    });
    lines.map(|line| label(line, "key_id_hash")).collect()
}

fn label(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

/// What Prometheus would read of the plugin.
fn metrics_of(plugin: &Plugin<'_>) -> String {
    let mut stream = UnixStream::connect(plugin.admin_socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: lab\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn next_write(plugin: &Plugin<'_>) -> String {
    let status = plugin.status().unwrap();
    status["providers"][0]["next_write"]["key_id_hash"].as_str().unwrap().to_owned()
}

#[test]
fn the_key_id_hash_is_the_one_that_kube_apiserver_publishes() {
    let lab = Lab::builder("admin").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    lab.add_apiserver(plugin.encryption()).unwrap();
    lab.kubectl(0, &["create", "secret", "generic", "first"]).unwrap();
    let first = next_write(&plugin);
    assert_eq!(written_under(&lab), BTreeSet::from([first.clone()]));

    let before = plugin.key_id().unwrap();
    plugin.rotate().unwrap();
    let after = plugin.wait_for_switch(&before).unwrap();
    demo::adopted(&|args| Ok(lab.kubectl(0, args)?), &lab, &after).unwrap();
    let second = next_write(&plugin);
    assert_ne!(first, second);
    assert_eq!(written_under(&lab), BTreeSet::from([first.clone(), second.clone()]));

    // The plugin's own metric, as a dashboard joins it; and what it says of itself.
    let metrics = metrics_of(&plugin);
    let info: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("casemate_kms_key_id_info{")).collect();
    assert_eq!(info.len(), 1, "{metrics}");
    assert_eq!(label(info[0], "key_id_hash"), second);
    let provider = &plugin.status().unwrap()["providers"][0];
    let ledger = provider["ledger"]["last"].as_array().unwrap();
    let ledger: Vec<_> = ledger.iter().map(|entry| entry["key_id_hash"].as_str().unwrap()).collect();
    assert_eq!(ledger, [first.as_str(), second.as_str()]);
    let served = |method: &str| {
        let calls = provider["requests"].as_array().unwrap().iter();
        calls
            .filter(|one| one["method"] == method && one["code"] == "OK")
            .map(|one| one["count"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(served("Status") > 0 && served("Encrypt") >= 2, "{provider:#}");
    assert!(provider["connections"]["open"].as_u64() > Some(0), "{provider:#}");
}
