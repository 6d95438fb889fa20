//! Plugins on root keys in key services, confined as always, with the rights that the pages for admins give them, below a
//! kube-apiserver that is written to and read all the time.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use casemate_lab::plugin::TokenRoot;
use casemate_lab::{KeyService, Lab, Plugin, SoftHsm, demo};
use serde_json::{Value, json};

use crate::load::Load;
use crate::pkcs11::hosts_in;

mod lifetimes;
mod moving;
mod start_in_an_outage;
mod three_nodes;

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// A role with tokens that live longer than any test.
fn long_lived() -> Value {
    json!({"token_ttl": "1h"})
}

fn until(what: &str, so: impl Fn() -> bool) {
    let came = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        so()
    });
    assert!(came, "never: {what}");
}

/// The provider's part of `/status`, some time after its root keys were asked for.
fn looked(plugin: &Plugin<'_>) -> Value {
    plugin.refresh().unwrap();
    plugin.status().unwrap()["providers"][0].take()
}

fn all_is_well(plugin: &Plugin<'_>) -> bool {
    looked(plugin)["trouble"].is_null()
}

/// Whether this root key can't be reached.
fn is_out(plugin: &Plugin<'_>, name: &str) -> bool {
    let status = looked(plugin);
    let key = status["root_keys"].as_array().unwrap().iter().find(|key| key["name"] == name).unwrap();
    key["state"] == "failing" && key["last_error"]["class"] == "unreachable"
}

/// The key id that all write under.
fn agreed<'a, 'lab: 'a>(nodes: impl IntoIterator<Item = &'a Plugin<'lab>>) -> String {
    let mut key_ids: Vec<String> = nodes.into_iter().map(|node| node.key_id().unwrap()).collect();
    key_ids.dedup();
    assert_eq!(key_ids.len(), 1, "nodes disagree: {key_ids:?}");
    key_ids.swap_remove(0)
}

/// What wrote on a node, one after another, over all its restarts, by its log.
fn activations(plugin: &Plugin<'_>) -> Vec<String> {
    let log = fs::read_to_string(plugin.process().log()).unwrap();
    let said = log.lines().filter(|line| line.contains("this key id writes from now on"));
    let named = said.map(|line| line.split("key_id=").nth(1).unwrap().split(' ').next().unwrap().to_owned());
    let mut key_ids: Vec<String> = named.collect();
    key_ids.dedup();
    key_ids
}

/// Until each API server writes under it.
fn adopted_by_all(lab: &Lab, key_id: &str) {
    for server in lab.apiservers() {
        demo::adopted(&|args| Ok(server.kubectl(args)?), lab, key_id).unwrap();
    }
}

#[test]
fn the_demo_tells_its_story_on_each_key_service() {
    let tell = |service: &str| {
        let mut demo = Command::new(crate::program());
        let told = demo.args(["demo", "--once", "--key-service", service]).output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.status.success(), "{text}\n{}", String::from_utf8_lossy(&told.stderr));
        assert!(text.contains("what does that stop?") && text.contains("The story is told"), "{text}");
        text
    };
    thread::scope(|scope| {
        let [openbao, softhsm] = ["openbao", "softhsm"].map(|service| scope.spawn(move || tell(service)));
        // Which root key opens it stands on every object.
        assert!(openbao.join().unwrap().contains("version 1 of Transit key transit/casemate"));
        assert!(softhsm.join().unwrap().contains("PKCS#11 key with CKA_ID"));
    });
    let wrong = Command::new(crate::program()).args(["demo", "--key-service", "cloud"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("file, openbao and softhsm"));
}

#[test]
fn a_root_key_in_a_token_rotates_under_load_and_comes_back_after_the_token_was_pulled() {
    let lab = lab("token");
    let hsm = SoftHsm::create(&lab.dir().join("hsm")).unwrap();
    let root = TokenRoot::create(&hsm, "kms").unwrap();
    let plugin = Plugin::start_on(&lab, "kms", KeyService::Pkcs11(&root)).unwrap();
    lab.add_apiserver(plugin.encryption()).unwrap();
    let load = Load::on(&lab, 1);
    let before = plugin.key_id().unwrap();
    let hosts = || hosts_in(plugin.dir());
    // One that hangs on a busy machine is, which it says.
    let replaced = || {
        let log = fs::read_to_string(plugin.process().log()).unwrap();
        log.matches("the host of a PKCS#11 module is").count()
    };
    load.during(|| {
        load.goes_on();
        let (host, given_up) = (hosts(), replaced());
        assert_eq!(host.len(), 1);
        root.stage().unwrap();
        let keys = json!(root.keys());
        let list = |config: &mut Value| config["providers"][0]["rootKeys"][0]["pkcs11"]["keys"] = keys;
        plugin.reconfigure(list).unwrap();
        root.activate().unwrap();
        let after = plugin.refresh_until_switch(&before).unwrap();
        load.goes_on();
        let readable = &looked(&plugin)["readable"]["rules"];
        let named = |rule: &Value| rule["root_key"] == "main";
        assert!(readable.as_array().unwrap().iter().all(named), "{readable}");
        // Nor did it log in again: that is done by a new process, if by any.
        assert!(hosts() == host || replaced() > given_up, "{:?} instead of {host:?}", hosts());

        // Of a token that was pulled, SoftHSM shows none of its keys; that it is gone, and that it is back, is seen by
        // a new process.
        root.token().pull().unwrap();
        until("the token is gone", || is_out(&plugin, "main"));
        load.goes_on();
        root.token().put_back().unwrap();
        until("the token is back", || all_is_well(&plugin));
        assert_eq!(plugin.key_id().unwrap(), after);
    });
    load.is_read_by_fresh(0, &plugin);
}
