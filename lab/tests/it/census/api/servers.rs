//! Several API servers behind one etcd: what they differ in is told, and what is told is true of each.

use std::fs;

use casemate_lab::{Encryption, Lab, Plugin, demo};
use serde_json::{Value, json};

use super::{KMS, PLAIN, UNDER_KMS, bounds, census, lies_between, read, write};

/// Plaintext is written, and what the plugin encrypted is read.
fn plain_first(plugin: &Plugin<'_>) -> Encryption {
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - identity: {{}}\n\
         \x20 - kms: {{apiVersion: v2, name: casemate, endpoint: 'unix://{}'}}\n",
        plugin.socket().display()
    ))
}

fn told(answer: &Value) -> String {
    format!("{}{}", answer["findings"], answer["open"])
}

/// No statement about objects or servers stands without what it leaves open.
fn says_its_limits(answer: &Value) {
    let findings = answer["findings"].as_array().unwrap();
    for limited in findings.iter().chain(answer["servers"].as_array().unwrap()) {
        assert!(!limited["limits"].as_array().unwrap().is_empty(), "{limited:#}");
    }
    let explained = answer["limits"].to_string();
    for finding in findings {
        for limit in finding["limits"].as_array().unwrap() {
            assert!(explained.contains(&limit.to_string()), "{limit} of {finding:#} is not explained");
        }
    }
}

#[test]
fn servers_with_different_configurations_and_key_ids_are_told_apart() {
    let lab = Lab::builder("census api servers").apiservers(0).start().unwrap();
    let one = Plugin::start(&lab, "one").unwrap();
    let sealing = lab.add_apiserver(one.encryption()).unwrap();
    // On another host: a key that was never delivered there.
    let two = Plugin::start_beside(&one, "two").unwrap();
    two.rotate().unwrap();
    let switched = two.wait_for_switch(&one.key_id().unwrap()).unwrap();
    let plain = lab.add_apiserver(plain_first(&two)).unwrap();
    write(&sealing, "sealed", UNDER_KMS);
    write(&plain, "plain", PLAIN);
    demo::adopted(&|args| Ok(sealing.kubectl(args)?), &lab, &one.key_id().unwrap()).unwrap();

    let (first, second) = (sealing.url(), plain.url());
    // One certificate for both: each made its own, and a lab's kubeconfig names that of its server.
    let both = both(&lab, &sealing, &plain);
    let asked = ["--server", &first, "--server", &second, "--resource", "secrets"];
    let (code, answer) = census(&both, &asked);
    assert_eq!(code, 1, "{answer:#}");
    says_its_limits(&answer);
    let hash = |place: usize| answer["servers"][place]["configurations"][0].as_str().unwrap().to_owned();
    assert_ne!(hash(0), hash(1));
    let said = told(&answer);
    assert!(said.contains("2 EncryptionConfigurations"), "{answer:#}");
    assert!(said.contains(&format!("{first} has {}, {second} has {}", hash(0), hash(1))), "{answer:#}");
    assert!(said.contains("casemate gives the API servers 2 key ids"), "{answer:#}");
    assert_ne!(answer["servers"][0]["instance"], answer["servers"][1]["instance"]);
    // Whichever server's counters are watched, what is in etcd lies between.
    for order in [[&first, &second], [&second, &first]] {
        let (_, answer) = census(&both, &["--server", order[0], "--server", order[1]]);
        assert_eq!(answer["resources"][0]["server"].as_str(), Some(order[0].as_str()));
        lies_between(&answer, "identity", PLAIN as u64);
        lies_between(&answer, KMS, read(&answer) - PLAIN as u64);
        assert!(bounds(&answer, "identity").0 > 0, "{answer:#}");
    }

    // With the file of one, the other is named; with its key id, too.
    let file = sealing.encryption_file().display().to_string();
    let (_, answer) =
        census(&both, &[&asked[..4], &["--sample", "0", "--encryption-config", &file]].concat());
    let matches = [0, 1].map(|place| answer["servers"][place]["configuration_matches"].as_bool());
    assert_eq!(matches, [Some(true), Some(false)], "{answer:#}");
    assert!(told(&answer).contains(&format!("{second} runs with another")), "{answer:#}");
    let (code, answer) = census(&both, &[&asked[..4], &["--sample", "0", "--key-id", &switched]].concat());
    assert_eq!(code, 1);
    assert!(
        told(&answer).contains(&format!("{first}: the key id that casemate gives is none")),
        "{answer:#}"
    );

    // A server that lost the provider for what another wrote: it takes over what stands in its file.
    let before = hash(1);
    plain.set_encryption(Encryption::Identity).unwrap();
    let reloaded = plain.process().wait_until("it ran with the new file", || {
        let (_, answer) = census(&both, &["--server", &second, "--sample", "0"]);
        answer["servers"][0]["configurations"][0].as_str().is_some_and(|hash| hash != before)
    });
    reloaded.unwrap();
    let (code, answer) = census(&both, &["--server", &second]);
    assert_eq!(code, 1, "{answer:#}");
    assert!(told(&answer).contains(&format!("{second} can't read")), "{answer:#}");

    // One address twice is one server.
    let (code, answer) = census(&both, &["--server", &first, "--server", &first, "--sample", "0"]);
    assert_eq!(code, 4, "{answer:#}");
    assert!(told(&answer).contains("is the same process"), "{answer:#}");
}

/// A kubeconfig for both of them.
fn both(lab: &Lab, one: &casemate_lab::Apiserver, other: &casemate_lab::Apiserver) -> std::path::PathBuf {
    let certificates = lab.dir().join("both.crt");
    let pem = [one, other].map(|server| fs::read_to_string(server.certificate()).unwrap()).concat();
    fs::write(&certificates, pem).unwrap();
    let path = lab.dir().join("both.kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": one.url(), "certificate-authority": certificates}}],
        "users": [{"name": "a", "user": {"token": one.token()}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn after_a_rotation_objects_under_the_old_key_id_are_told_until_none_is_left() {
    let lab = Lab::builder("census api rotation").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "ours").unwrap();
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    write(&server, "before", UNDER_KMS);
    let old = plugin.key_id().unwrap();
    assert_eq!(census(&server.kubeconfig(), &["--key-id", &old]).0, 0);

    plugin.rotate().unwrap();
    let new = plugin.wait_for_switch(&old).unwrap();
    demo::adopted(&|args| Ok(server.kubectl(args)?), &lab, &new).unwrap();
    let (code, answer) = census(&server.kubeconfig(), &["--key-id", &new]);
    assert_eq!(code, 1, "{answer:#}");
    says_its_limits(&answer);
    let findings = answer["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let text = findings[0]["text"].as_str().unwrap();
    assert!(text.contains("are under the key id") && text.contains("which it gives no more"), "{text}");
    assert!(findings[0]["limits"].to_string().contains("past"), "{findings:#?}");
    let uses = answer["servers"][0]["key_ids"].as_array().unwrap();
    let newest: Vec<bool> = uses.iter().map(|used| used["is_newest"].as_bool().unwrap()).collect();
    assert_eq!((uses.len(), newest.iter().filter(|newest| **newest).count()), (2, 1), "{uses:#?}");
    let stored = answer["resources"][0]["key_ids"].as_array().unwrap();
    let of = |newest: bool| {
        let hash = &uses.iter().find(|used| used["is_newest"] == newest).unwrap()["hash"];
        let class = stored.iter().find(|class| class["hash"] == *hash);
        let number = |field: &str| class.map_or(0, |class| class[field].as_u64().unwrap());
        (number("at_least"), number("at_most"))
    };
    let (at_least, at_most) = of(false);
    assert!(at_least > 0 && at_least <= UNDER_KMS as u64 && at_most >= UNDER_KMS as u64, "{answer:#}");

    // Written anew, none of those that were read is under it, and nobody is told that it may go.
    let all = server.kubectl(&["get", "secrets", "-A", "-o", "json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], all.as_bytes()).unwrap();
    let (code, answer) = census(&server.kubeconfig(), &["--key-id", &new]);
    assert_eq!(code, 0, "{answer:#}");
    assert!(answer["resources"][0]["limits"].to_string().contains("past"), "{answer:#}");
    assert!(answer["limits"].to_string().contains("a key id that it does not show may still be needed"));
}
