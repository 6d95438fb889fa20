//! Hosts that start while their key service is down.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::TransitRoot;
use casemate_lab::{FaultProxy, KeyService, OpenBao, Plugin};
use serde_json::json;

use super::{agreed, all_is_well, is_out, lab, long_lived, until};
use crate::load::Load;

#[test]
fn a_host_with_a_sealed_cache_serves_and_one_without_waits() {
    let lab = lab("start-in-an-outage");
    let bao = OpenBao::start(&lab).unwrap();
    let proxy = FaultProxy::bytes(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "casemate", &long_lived()).unwrap().behind(&proxy);
    // Another file system than the state directory's.
    let elsewhere = tempfile::Builder::new().prefix("casemate-lab-").tempdir_in("/dev/shm").unwrap();
    let credential = elsewhere.path().join("sealed-cache");
    let mut random = [0; 32];
    aws_lc_rs::rand::fill(&mut random).unwrap();
    fs::write(&credential, random).unwrap();
    fs::set_permissions(&credential, fs::Permissions::from_mode(0o600)).unwrap();

    let without = Plugin::start_on(&lab, "without", KeyService::Transit(&root)).unwrap();
    let with = Plugin::start_with(&lab, "with", |folder, config| {
        let provider = &mut config["providers"][0];
        provider["rootKeys"] = json!([KeyService::Transit(&root).root_key("main", folder)?]);
        provider["sealedCache"] = json!({"credential": credential});
        Ok(())
    });
    let with = with.unwrap();
    for node in [&with, &without] {
        lab.add_apiserver(node.encryption()).unwrap();
    }
    // Each has written under a local KEK of its own, and has seen what the other one wrote.
    let load = Load::on(&lab, 2);
    load.during(|| (0..3).for_each(|_| load.goes_on()));
    let key_id = agreed([&with, &without]);
    until("all that was opened is kept", || {
        let cache = with.status().unwrap()["providers"][0]["sealed_cache"].take();
        cache["saved"] == true && cache["entries"].as_u64() >= Some(2)
    });

    proxy.set_mode(Mode::Refuse).unwrap();
    for server in lab.apiservers() {
        server.kill9();
    }
    for node in [&with, &without] {
        node.kill9();
    }
    without.start_again_in_trouble().unwrap();
    until("it says what it waits for", || is_out(&without, "main"));
    without.key_id().unwrap_err();
    with.start_again().unwrap();
    assert_eq!(with.key_id().unwrap(), key_id);
    // What the peer wrote is among it.
    load.is_read_by_fresh(0, &with);
    lab.apiserver(0).unwrap().start().unwrap();
    lab.kubectl(0, &["create", "secret", "generic", "in-the-outage", "--from-literal=word=kept"]).unwrap();
    without.key_id().unwrap_err();

    proxy.set_mode(Mode::Pass).unwrap();
    until("the other one serves", || all_is_well(&without) && without.key_id().is_ok());
    assert_eq!(agreed([&with, &without]), key_id);
    load.is_read_by_fresh(1, &without);
    let server = lab.apiserver(1).unwrap();
    server.start().unwrap();
    let word = server.kubectl(&[
        "get",
        "secret",
        "in-the-outage",
        "-o",
        "go-template={{.data.word | base64decode}}",
    ]);
    assert_eq!(word.unwrap(), "kept");
}
