//! One change after another, each as an admin makes it, on a control plane that is written to and read all the time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use casemate_lab::plugin::{casemate, casemate_json, product};
use casemate_lab::{Apiserver, Encryption, KmsProvider, Lab, Plugin, Proof, demo};
use serde_json::{Value, json};

use crate::load::Load;

const SECRETS: &str = "/registry/secrets/";
const CONFIG_MAPS: &str = "/registry/configmaps/";
const FIRST: &str = "casemate";
const SECOND: &str = "second";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Beside what the plugin has in its folder.
fn beside(plugin: &Plugin<'_>, name: &str) -> PathBuf {
    plugin.config().with_file_name(name)
}

/// A confined process can begin one where it may write already.
fn audit_log(plugin: &Plugin<'_>) -> PathBuf {
    beside(plugin, "state").join("audit.log")
}

fn until(what: &str, so: impl Fn() -> bool) {
    let came = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        so()
    });
    assert!(came, "never: {what}");
}

/// A new key file, the same on both nodes; how a configuration names it.
fn new_key(plugins: &[Plugin<'_>; 2], name: &str) -> [Value; 2] {
    let file = format!("{name}.key");
    let [one, two] = plugins.each_ref().map(|plugin| beside(plugin, &file));
    casemate(&["key", "new", "--file", text(&one)]).unwrap();
    fs::copy(&one, &two).unwrap();
    let id = casemate_json(&["key", "list", "--file", text(&one)]).unwrap()["id"].take();
    [one, two].map(|path| json!({"name": name, "file": {"path": path, "id": id}}))
}

/// A field that changes nothing for those who call.
fn reload_a_harmless_field(plugins: &[Plugin<'_>; 2]) {
    for plugin in plugins {
        plugin.reconfigure(|config| config["providers"][0]["maxConnections"] = json!(64)).unwrap();
    }
}

/// On both nodes: staged, delivered, activated. Meanwhile one gets a configuration that is none.
fn rotate_and_deliver_nonsense(plugins: &[Plugin<'_>; 2]) {
    let [one, two] = plugins;
    let before = one.key_id().unwrap();
    let version = one.stage().unwrap();
    one.deliver_to(two).unwrap();
    one.activate(version).unwrap();
    one.deliver_to(two).unwrap();

    let good = fs::read_to_string(one.config()).unwrap();
    one.deliver_configuration(&good[..good.len() / 2]).unwrap();
    let refused = || !one.status().unwrap()["configuration"]["refused"].is_null();
    until("nonsense is refused", refused);
    one.deliver_configuration(&good).unwrap();
    until("it is put right", || !refused());

    let after = one.wait_for_switch(&before).unwrap();
    until("both nodes write under the same key id", || two.key_id().unwrap() == after);
}

/// First every node can read with it, then it writes.
fn turn_to_another_root_key(plugins: &[Plugin<'_>; 2]) {
    let before = plugins[0].key_id().unwrap();
    let key = new_key(plugins, "other");
    for (plugin, key) in plugins.iter().zip(&key) {
        plugin.reconfigure(|config| config["providers"][0]["readKeys"] = json!([key])).unwrap();
    }
    for (plugin, key) in plugins.iter().zip(&key) {
        let turn = |config: &mut Value| {
            let provider = &mut config["providers"][0];
            provider["readKeys"] = provider["rootKeys"].take();
            provider["rootKeys"] = json!([key]);
        };
        plugin.reconfigure(turn).unwrap();
    }
    let [one, two] = plugins.each_ref().map(|plugin| plugin.key_id().unwrap());
    assert_eq!(one, two);
    assert_ne!(one, before);
}

/// To the plugins; then each API server learns to read with it.
fn add_a_provider(plane: &Plane<'_, '_>) {
    let keys = new_key(plane.plugins, SECOND);
    for (plugin, key) in plane.plugins.iter().zip(keys) {
        let endpoint = format!("unix://{}", beside(plugin, "second.sock").display());
        let second = json!({"name": SECOND, "endpoint": endpoint, "rootKeys": [key]});
        plugin.reconfigure(|config| config["providers"].as_array_mut().unwrap().push(second)).unwrap();
        until("the second provider answers", || casemate(&["kms", "status", "--socket", &endpoint]).is_ok());
    }
    for node in 0..2 {
        plane.configure_server(node, &[FIRST, SECOND]);
    }
}

/// Gone from the API servers once nothing needs it, then from the plugins.
fn remove_the_provider(plane: &Plane<'_, '_>) {
    for node in 0..2 {
        plane.configure_server(node, &[FIRST]);
    }
    for plugin in plane.plugins {
        let remove = |config: &mut Value| {
            config["providers"].as_array_mut().unwrap().truncate(1);
            config["removedProviders"] = json!([SECOND]);
        };
        plugin.reconfigure(remove).unwrap();
        until("its socket is gone", || !beside(plugin, "second.sock").exists());
    }
}

/// Two nodes, each with an API server and a plugin.
struct Plane<'a, 'lab> {
    lab: &'lab Lab,
    plugins: &'a [Plugin<'lab>; 2],
}

impl Plane<'_, '_> {
    /// Gives an API server these providers, the first one writes, and starts it again: one at a time, the other one goes on.
    fn configure_server(&self, node: usize, providers: &[&str]) {
        let server = self.lab.apiserver(node).unwrap();
        server.set_encryption(self.encryption(node, providers)).unwrap();
        server.kill9();
        server.start().unwrap();
    }

    fn encryption(&self, node: usize, providers: &[&str]) -> Encryption {
        let plugin = &self.plugins[node];
        let provider = |name: &&str| {
            let socket = if *name == SECOND { beside(plugin, "second.sock") } else { plugin.socket() };
            KmsProvider { name: (*name).to_owned(), endpoint: format!("unix://{}", socket.display()) }
        };
        Encryption::Kms(providers.iter().map(provider).collect())
    }

    /// Names of what is stored under the second provider, by resource and namespace.
    fn under_the_second(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut found = BTreeMap::<_, Vec<String>>::new();
        for prefix in [SECRETS, CONFIG_MAPS] {
            let stored = self.lab.etcd().list(prefix).unwrap().into_iter();
            for (key, _) in stored.filter(|(_, value)| value.starts_with(b"k8s:enc:kms:v2:second:")) {
                let key = String::from_utf8(key).unwrap();
                let [resource, namespace, name] = key
                    .trim_start_matches("/registry/")
                    .split('/')
                    .collect::<Vec<_>>()
                    .try_into()
                    .unwrap_or_else(|_| panic!("{key}"));
                found.entry((resource.into(), namespace.into())).or_default().push(name.into());
            }
        }
        found
    }

    /// Writes what is under the second provider anew, until nothing is.
    fn migrate_back(&self, through: &Apiserver) {
        until("nothing is under the second provider", || {
            let found = self.under_the_second();
            for ((resource, namespace), names) in &found {
                let get = ["-n", namespace, "get", resource, "-o", "json"];
                let get: Vec<&str> = get.into_iter().chain(names.iter().map(String::as_str)).collect();
                let all = through.kubectl(&get).unwrap();
                // What was changed meanwhile is written anew already, or is found again.
                let _ = through.kubectl_with_input(&["replace", "-f", "-"], all.as_bytes());
            }
            found.is_empty()
        });
    }
}

#[test]
fn every_acknowledged_write_outlives_a_rolling_story() {
    let lab = Lab::builder("rolling").apiservers(0).start().unwrap();
    let one = Plugin::start_activated(&lab, "node-1").unwrap();
    let two = Plugin::start_beside(&one, "node-2").unwrap();
    let plugins = [one, two];
    for plugin in &plugins {
        lab.add_apiserver(plugin.encryption()).unwrap();
        let path = audit_log(plugin);
        plugin.reconfigure(|config| config["audit"] = json!({"path": path})).unwrap();
    }
    let next = lab.dir().join("casemate-kms-next");
    fs::copy(product("casemate-kms").unwrap(), &next).unwrap();
    let plane = Plane { lab: &lab, plugins: &plugins };
    let load = Load::on(&lab, 2);
    let mut key_ids = vec![plugins[0].key_id().unwrap()];

    load.during(|| {
        let told = |what: &str| {
            load.goes_on();
            eprintln!("{what}: {} acknowledged, {} read", load.writes(), load.reads());
        };
        told("it began");
        reload_a_harmless_field(&plugins);
        told("a harmless field");
        rotate_and_deliver_nonsense(&plugins);
        key_ids.push(plugins[0].key_id().unwrap());
        for server in lab.apiservers() {
            demo::adopted(&|args| Ok(server.kubectl(args)?), &lab, key_ids.last().unwrap()).unwrap();
        }
        told("a rotated key, and a configuration put right");
        turn_to_another_root_key(&plugins);
        key_ids.push(plugins[0].key_id().unwrap());
        told("another root key");

        add_a_provider(&plane);
        plane.configure_server(0, &[SECOND, FIRST]);
        told("a second provider that writes on one node");
        for plugin in &plugins {
            plugin.upgrade_to(&next).unwrap();
            told("an upgrade");
        }
        for plugin in &plugins {
            plugin.kill9();
            plugin.start_again().unwrap();
            told("a kill -9");
        }
        assert!(!plane.under_the_second().is_empty());
        plane.configure_server(0, &[FIRST, SECOND]);
        plane.migrate_back(&lab.apiserver(1).unwrap());
        remove_the_provider(&plane);
        told("the second provider is gone");
    });

    for (node, plugin) in plugins.iter().enumerate() {
        load.is_read_by_fresh(node, plugin);
    }
    let proof = Proof::read(lab.etcd(), &[SECRETS]).unwrap();
    assert!(proof.not_encrypted.is_empty() && proof.malformed.is_empty(), "{proof}");
    assert!(key_ids.iter().all(|key_id| proof.by_key_id.contains_key(key_id)), "{proof}");
    for plugin in &plugins {
        // The last line of a process that is killed may be torn, and is told of; nothing else is.
        assert!(plugin.terminate().unwrap().success());
        casemate(&["audit", "verify", text(&audit_log(plugin))]).unwrap();
    }
    eprintln!("{} acknowledged, {} read while it happened; {proof}", load.writes(), load.reads());
}
