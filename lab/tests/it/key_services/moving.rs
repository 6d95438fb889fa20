//! From Transit to an HSM and back, on three nodes, as the page for admins says: first everybody can read with the new
//! root key, then both write, then what is stored is written anew, then the old one goes.
//!
//! An API server hides a mistake in this order for as long as it knows a seed: so after each change of a node, what each
//! writes and what is stored is opened by all of them, without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::{TokenRoot, TransitRoot, casemate};
use casemate_lab::{FaultProxy, KeyService, Lab, OpenBao, Plugin, Proof, SoftHsm};
use casemate_wire::kms_v2::stored;
use serde_json::{Value, json};

use super::{activations, adopted_by_all, agreed, all_is_well, is_out, lab, long_lived, until};
use crate::load::Load;

const SECRETS: &[&str] = &["/registry/secrets/"];

/// Both key services, by the names of their root keys.
struct Site<'a> {
    lab: &'a Lab,
    transit: &'a TransitRoot<'a>,
    token: &'a TokenRoot<'a>,
}

/// What a provider's configuration says of root keys.
#[derive(Default)]
struct Keys {
    write: &'static [&'static str],
    read: &'static [&'static str],
    removed: &'static [&'static str],
    epoch: u64,
}

impl Site<'_> {
    fn keys(&self, node: &Plugin<'_>, names: &[&str]) -> Value {
        let key = |name: &&str| {
            let service = match *name {
                "transit" => KeyService::Transit(self.transit),
                _ => KeyService::Pkcs11(self.token),
            };
            service.root_key(name, node.dir()).unwrap()
        };
        names.iter().map(key).collect()
    }

    fn removed(&self, names: &[&str]) -> Value {
        let key = |name: &&str| match *name {
            "transit" => json!({"transit": {"key": "casemate"}}),
            _ => json!({"pkcs11": {"keys": self.token.keys()}}),
        };
        names.iter().map(key).collect()
    }

    fn change(&self, node: &Plugin<'_>, to: &Keys) -> impl FnOnce(&mut Value) {
        let (write, read) = (self.keys(node, to.write), self.keys(node, to.read));
        let (removed, epoch) = (self.removed(to.removed), to.epoch);
        move |config| {
            let provider = &mut config["providers"][0];
            provider["rootKeys"] = write;
            provider["readKeys"] = read;
            provider["removedReadKeys"] = removed;
            provider["epoch"] = json!(epoch);
        }
    }

    /// On one node after another, while they run. Returns what all write under then.
    fn configure(&self, nodes: &[Plugin<'_>; 3], to: &Keys) -> String {
        for node in nodes {
            node.reconfigure(self.change(node, to)).unwrap();
            all_is_opened_by_all(self.lab, nodes);
        }
        agreed(nodes)
    }

    /// Until nothing needs another key id.
    fn migrate(&self, to: &str) {
        adopted_by_all(self.lab, to);
        until("all is under the new key id", || {
            let all = self.lab.kubectl(0, &["get", "secrets", "-A", "-o", "json"]).unwrap();
            self.lab.kubectl_with_input(1, &["replace", "-f", "-"], all.as_bytes()).unwrap();
            Proof::read(self.lab.etcd(), SECRETS).unwrap().all_under(to)
        });
    }
}

/// What each node writes is opened by all, and what is stored: a server that starts knows no seed.
fn all_is_opened_by_all(lab: &Lab, nodes: &[Plugin<'_>; 3]) {
    const SEED: [u8; 32] = [0x5e; 32];

    let [seed, sealed, opened] = ["seed", "sealed", "opened"].map(|name| nodes[0].dir().join(name));
    let kms = |verb: &str, node: &Plugin<'_>, from: &Path, to: &Path| {
        let socket = format!("unix://{}", node.socket().display());
        let [from, to] = [from, to].map(|path| path.to_str().unwrap());
        casemate(&["kms", verb, "--socket", &socket, "--in", from, "--out", to, "--yes"])
    };
    let is_opened = |whose: &str| {
        for node in nodes {
            let told = kms("decrypt", node, &sealed, &opened);
            told.unwrap_or_else(|error| panic!("{} can't open {whose}: {error}", node.dir().display()));
        }
    };
    fs::write(&seed, SEED).unwrap();
    for writer in nodes {
        kms("encrypt", writer, &seed, &sealed).unwrap();
        is_opened(&format!("what {} writes", writer.dir().display()));
        assert_eq!(fs::read(&opened).unwrap(), SEED);
    }
    let values = lab.etcd().list(SECRETS[0]).unwrap();
    let objects = values.iter().map(|(_, value)| stored::parse(value).unwrap().object);
    let seeds: BTreeMap<Vec<u8>, _> =
        objects.map(|object| (object.encrypted_dek_source.to_vec(), object)).collect();
    for object in seeds.into_values() {
        let annotations: BTreeMap<_, _> =
            object.annotations.iter().map(|(name, value)| (name, STANDARD.encode(value))).collect();
        let reply = json!({
            "key_id": object.key_id,
            "ciphertext": STANDARD.encode(&object.encrypted_dek_source),
            "annotations": annotations,
        });
        fs::write(&sealed, reply.to_string()).unwrap();
        is_opened("what is stored");
    }
}

/// The others go on, and what is written meanwhile is opened by the one that is left, after a restart too.
fn live_without(proxy: &FaultProxy, nodes: &[Plugin<'_>; 3], load: &Load<'_>) {
    let key_id = agreed(nodes);
    proxy.set_mode(Mode::Refuse).unwrap();
    for node in nodes {
        until("it is seen", || is_out(node, "transit"));
    }
    for look in 0..5 {
        load.goes_on();
        if look == 2 {
            nodes[1].kill9();
            nodes[1].start_again().unwrap();
        }
        assert_eq!(agreed(nodes), key_id);
        // A good while, for what is due only now and then.
        thread::sleep(Duration::from_secs(4));
    }
    proxy.set_mode(Mode::Pass).unwrap();
    for node in nodes {
        until("it is over", || all_is_well(node));
    }
    assert_eq!(agreed(nodes), key_id);
}

#[test]
fn three_nodes_move_from_transit_to_an_hsm_and_back_under_load() {
    let lab = lab("moving");
    let bao = OpenBao::start(&lab).unwrap();
    let proxy = FaultProxy::bytes(&bao.address()).unwrap();
    let hsm = SoftHsm::create(&lab.dir().join("hsm")).unwrap();
    let transit = TransitRoot::create(&bao, "casemate", &long_lived()).unwrap().behind(&proxy);
    let token = TokenRoot::create(&hsm, "kms").unwrap();
    let one = Plugin::start_with(&lab, "node-1", |folder, config| {
        let key = KeyService::Transit(&transit).root_key("transit", folder)?;
        config["providers"][0]["rootKeys"] = json!([key]);
        Ok(())
    });
    let one = one.unwrap();
    let [two, three] = ["node-2", "node-3"].map(|name| Plugin::start_beside(&one, name).unwrap());
    let nodes = [one, two, three];
    for node in &nodes[..2] {
        lab.add_apiserver(node.encryption()).unwrap();
    }
    let site = Site { lab: &lab, transit: &transit, token: &token };
    let load = Load::on(&lab, 2);
    let mut wrote = vec![agreed(&nodes)];

    load.during(|| {
        let told = |what: &str| {
            load.goes_on();
            eprintln!("{what}: {} acknowledged, {} read", load.writes(), load.reads());
        };
        told("on Transit");
        // A process that runs loads no module that it did not start with.
        for node in &nodes {
            let readers = Keys { write: &["transit"], read: &["hsm"], ..Keys::default() };
            node.restart_with(site.change(node, &readers)).unwrap();
        }
        assert_eq!(agreed(&nodes), wrote[0]);
        told("all can read with the HSM");
        let both = Keys { write: &["transit", "hsm"], ..Keys::default() };
        wrote.push(site.configure(&nodes, &both));
        site.migrate(&wrote[1]);
        told("both write");
        live_without(&proxy, &nodes, &load);
        told("Transit was away");
        let hsm = Keys { write: &["hsm"], read: &["transit"], ..Keys::default() };
        wrote.push(site.configure(&nodes, &hsm));
        site.migrate(&wrote[2]);
        let dropped = Keys { write: &["hsm"], removed: &["transit"], ..Keys::default() };
        assert_eq!(site.configure(&nodes, &dropped), wrote[2]);
        told("on the HSM");

        // Back. What wrote in between would have its key id a second time: the epoch makes it another one.
        let readers = Keys { write: &["hsm"], read: &["transit"], ..Keys::default() };
        assert_eq!(site.configure(&nodes, &readers), wrote[2]);
        let both = Keys { write: &["hsm", "transit"], epoch: 1, ..Keys::default() };
        wrote.push(site.configure(&nodes, &both));
        site.migrate(&wrote[3]);
        told("both write again");
        let transit = Keys { write: &["transit"], read: &["hsm"], epoch: 1, ..Keys::default() };
        wrote.push(site.configure(&nodes, &transit));
        site.migrate(&wrote[4]);
        let dropped = Keys { write: &["transit"], removed: &["hsm"], epoch: 1, ..Keys::default() };
        assert_eq!(site.configure(&nodes, &dropped), wrote[4]);
        told("on Transit again");
    });

    for node in &nodes {
        assert_eq!(activations(node), wrote, "{}", node.dir().display());
    }
    for (server, node) in nodes[..2].iter().enumerate() {
        load.is_read_by_fresh(server, node);
    }
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(proof.all_under(&wrote[4]), "{proof}");
}
