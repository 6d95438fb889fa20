//! `casemate status` on real servers: what it says is what they have loaded, and what a census finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_lab::plugin::product;
use casemate_lab::{Encryption, Lab, Plugin};
use serde_json::{Value, json};

#[test]
fn each_step_to_another_key_is_told_with_what_holds_it_up() {
    let lab = Lab::builder("status").apiservers(2).start().unwrap();
    let plugin = Plugin::start(&lab, "ours").unwrap();
    for number in 0..20 {
        let name = format!("s-{number}");
        let word = format!("--from-literal=word=hidden-{number}");
        lab.apiserver(0).unwrap().kubectl(&["create", "secret", "generic", &name, &word]).unwrap();
    }

    // In plaintext, as it is wanted.
    let (code, answer) = status(&lab, &[]);
    assert_eq!((code, &answer["phase"], &answer["percent"]), (0, &json!("done"), &json!(100)), "{answer:#}");
    assert_eq!(answer["write_key"], "plaintext");

    // What the way to a key would be, and nothing changes.
    let files = || {
        lab.apiservers().iter().map(|server| fs::read(server.encryption_file()).unwrap()).collect::<Vec<_>>()
    };
    let (before, endpoint) = (files(), format!("unix://{}", plugin.socket().display()));
    let (code, answer) = ask(&lab, "plan", &["--to", "kms", "--kms-endpoint", &endpoint]);
    assert_eq!(code, 0, "{answer:#}");
    let kinds: Vec<&str> =
        answer["steps"].as_array().unwrap().iter().map(|step| step["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["new_key", "write", "write", "migrate", "prove"], "{answer:#}");
    assert!(answer["steps"][1]["diffs"][1]["diff"].as_str().unwrap().contains(&endpoint), "{answer:#}");
    assert_eq!(answer["steps"][3]["remote_calls"], 2, "{answer:#}");
    assert!(answer["etcd_bytes"].as_u64().unwrap() > 0 && answer["exceeds_quota"] == false, "{answer:#}");
    assert_eq!(files(), before);

    // One server writes with a key that the other one can't read.
    let encryption = Encryption::kms("casemate", &plugin.socket());
    lab.apiserver(0).unwrap().set_encryption(encryption.clone()).unwrap();
    lab.apiserver(0).unwrap().restart().unwrap();
    let (code, answer) = status(&lab, &[]);
    assert_eq!((code, &answer["phase"]), (1, &json!("write")), "{answer:#}");
    let second = lab.apiserver(1).unwrap();
    assert!(
        answer["says"].as_str().unwrap().ends_with(&format!("is to be read on {}", second.url())),
        "{answer:#}"
    );

    // Its file says so, as far as the admin knows, and it has loaded another one.
    let other = format!("{}={}", second.url(), lab.apiserver(0).unwrap().encryption_file().display());
    let (code, answer) = status(&lab, &["--encryption-config", &other]);
    assert_eq!((code, &answer["phase"]), (1, &json!("wait")), "{answer:#}");
    assert!(answer["servers"][1]["lag"].as_str().unwrap().contains("has not loaded its file"), "{answer:#}");
    assert_eq!(answer["servers"][0]["lag"], Value::Null, "{answer:#}");

    // Both write with it; a key id counts after minutes only.
    second.set_encryption(encryption).unwrap();
    second.restart().unwrap();
    let (code, answer) = status(&lab, &["--key-id-stable-for", "5m"]);
    assert_eq!((code, &answer["phase"]), (1, &json!("wait")), "{answer:#}");
    assert!(answer["says"].as_str().unwrap().starts_with("waits for https://"), "{answer:#}");
    assert!(answer["servers"][0]["lag"].as_str().unwrap().contains("key id"), "{answer:#}");
    let (code, answer) = status(&lab, &[]);
    assert_eq!((code, &answer["phase"], &answer["percent"]), (1, &json!("migrate"), &json!(0)), "{answer:#}");
    assert!(answer["objects"].as_u64().unwrap() >= 20 && answer["eta_seconds"] == 1, "{answer:#}");
    assert_eq!(answer["servers"][0]["key_ids"][0]["provider"], "casemate");

    // Migrated.
    let mut migrate = command(&lab, "migrate");
    migrate.arg("--encryption-config").arg(second.encryption_file()).arg("--yes");
    let migrated = migrate.output().unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let (code, answer) = status(&lab, &[]);
    assert_eq!((code, &answer["phase"], &answer["percent"]), (0, &json!("done"), &json!(100)), "{answer:#}");
    let key_id = plugin.key_id().unwrap();
    let stored = answer["entries"][0]["stored"].as_array().unwrap().iter();
    let current: Vec<&Value> = stored.filter(|stored| stored["is_current"] == true).collect();
    assert_eq!((current.len(), &current[0]["key_id"]), (1, &json!(key_id)), "{answer:#}");
    assert_eq!(answer["servers"][1]["key_ids"][0]["key_id"], json!(key_id), "{answer:#}");

    // One that can't be reached is one that may write anything.
    second.kill9();
    let (code, answer) = status(&lab, &[]);
    assert_eq!((code, &answer["phase"]), (3, &json!("wait")), "{answer:#}");
    assert!(answer["servers"][1]["lag"].as_str().unwrap().contains("can't be reached"), "{answer:#}");
}

#[test]
fn servers_that_nobody_names_are_those_with_an_identity_lease() {
    let lab = Lab::builder("status-leases").apiservers(1).start().unwrap();
    let server = lab.apiserver(0).unwrap();
    let selector = "--selector=apiserver.kubernetes.io/identity=kube-apiserver";
    let get = ["get", "leases", "--namespace=kube-system", selector, "--output=name"];
    server
        .process()
        .wait_until("it kept an identity Lease", || server.kubectl(&get).is_ok_and(|names| !names.is_empty()))
        .unwrap();
    let named = |lease: &str| {
        let mut command = Command::new(product("casemate").unwrap());
        command.args(["status", "--output", "json", "--kubeconfig"]).arg(kubeconfig(&lab));
        command.args(["--etcd-endpoints", &lab.etcd().endpoint(), "--encryption-config"]);
        command.arg(server.encryption_file());
        let (code, answer) = ended(&mut command);
        assert_eq!(answer["servers_by"], "leases", "{lease}: {answer:#}");
        (code, answer)
    };
    let (code, answer) = named("its own");
    assert_eq!((code, answer["servers"].as_array().unwrap().len()), (0, 1), "{answer:#}");
    assert_eq!(answer["servers"][0]["url"], json!(server.url()), "{answer:#}");

    // The rights that the page asks for are enough.
    const PAGE: &str = include_str!("../../../docs/how-to/see-where-it-stands.md");
    let role = PAGE.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    server.kubectl_with_input(&["apply", "-f", "-"], role.as_bytes()).unwrap();
    server.kubectl(&["create", "serviceaccount", "watcher"]).unwrap();
    let account = "--serviceaccount=default:watcher";
    server
        .kubectl(&["create", "clusterrolebinding", "watcher", "--clusterrole=casemate-status", account])
        .unwrap();
    let token = server.kubectl(&["create", "token", "watcher"]).unwrap();
    let watcher = kubeconfig_of(&lab, "watcher", token.trim());
    let ask = || {
        let mut command = Command::new(product("casemate").unwrap());
        command.args(["status", "--output", "json", "--kubeconfig"]).arg(&watcher);
        command.args(["--etcd-endpoints", &lab.etcd().endpoint(), "--encryption-config"]);
        ended(command.arg(server.encryption_file()))
    };
    // A right is there once the server has seen it.
    let mut answer = ask();
    server
        .process()
        .wait_until("the rights were there", || {
            answer = ask();
            answer.0 == 0
        })
        .unwrap_or_else(|error| panic!("{error}: {:#}", answer.1));
    assert_eq!(answer.1["servers_by"], "leases", "{:#}", answer.1);

    // Another one that nobody reaches.
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
        "name": "apiserver-of-another-host", "namespace": "kube-system",
        "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": "other"}},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z"}});
    server.kubectl_with_input(&["apply", "-f", "-"], lease.to_string().as_bytes()).unwrap();
    let (code, answer) = named("another");
    assert_eq!((code, &answer["phase"]), (3, &json!("wait")), "{answer:#}");
    let other =
        answer["servers"].as_array().unwrap().iter().find(|one| one["server"] == "other").unwrap().clone();
    assert!(other["lag"].as_str().unwrap().contains("was not reached"), "{other:#}");
}

/// With the file of each server, unless one is given, and with key ids that count at once, unless that is given.
fn status(lab: &Lab, arguments: &[&str]) -> (i32, Value) {
    let at_once = ["--key-id-stable-for", "0s"];
    let given = arguments.contains(&at_once[0]);
    let arguments = if given { arguments.to_vec() } else { [&at_once, arguments].concat() };
    ask(lab, "status", &arguments)
}

fn ask(lab: &Lab, verb: &str, arguments: &[&str]) -> (i32, Value) {
    let mut command = command(lab, verb);
    command.args(arguments);
    for server in lab.apiservers() {
        let of = format!("{}={}", server.url(), server.encryption_file().display());
        command.args(["--encryption-config", &of]);
    }
    ended(&mut command)
}

fn command(lab: &Lab, verb: &str) -> Command {
    let mut command = Command::new(product("casemate").unwrap());
    command.args([verb, "--output", "json", "--kubeconfig"]).arg(kubeconfig(lab));
    command.args(["--etcd-endpoints", &lab.etcd().endpoint()]);
    for server in lab.apiservers() {
        command.args(["--server", &server.url()]);
    }
    command
}

/// Exit code and JSON. No value is told.
fn ended(command: &mut Command) -> (i32, Value) {
    let done = command.output().unwrap();
    let (text, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(!text.contains("hidden") && !said.contains("hidden"), "a value is told");
    let code = done.status.code().unwrap_or(-1);
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{code}: {error}: {said}")))
}

/// Of the administrator, who trusts all API servers.
fn kubeconfig(lab: &Lab) -> PathBuf {
    kubeconfig_of(lab, "admin", lab.apiservers()[0].token())
}

/// Of whoever has `token`.
fn kubeconfig_of(lab: &Lab, name: &str, token: &str) -> PathBuf {
    let servers = lab.apiservers();
    let path = lab.dir().join(format!("{name}.kubeconfig"));
    let authorities = lab.dir().join("authorities.pem");
    let pem = |path: &Path| fs::read(path).unwrap();
    let pems: Vec<u8> = servers.iter().flat_map(|server| pem(&server.certificate())).collect();
    fs::write(&authorities, pems).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": servers[0].url(), "certificate-authority": authorities}}],
        "users": [{"name": "a", "user": {"token": token}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}
