//! Bad days of root keys in a key service, with the daemon that is asked meanwhile.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::{KeyService, TransitRoot, casemate};
use casemate_lab::{FaultProxy, Lab, OpenBao, Plugin};
use serde_json::{Value, json};

const LOOKS: u32 = 600;
const REST: Duration = Duration::from_millis(100);

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// Has `plugin` look again and again until its status is so.
fn until(plugin: &Plugin<'_>, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let mut seen = Value::Null;
    for _ in 0..LOOKS {
        plugin.refresh().unwrap();
        seen = plugin.status().unwrap();
        if so(&seen["providers"][0]) {
            return seen["providers"][0].take();
        }
        thread::sleep(REST);
    }
    panic!("never {what}: {seen:#}");
}

fn asked(plugin: &Plugin<'_>, verb: &str, more: &[&str]) -> Result<String, String> {
    let socket = format!("unix://{}", plugin.socket().display());
    casemate(&[&["kms", verb, "--socket", &socket], more].concat()).map_err(|error| error.to_string())
}

/// What kube-apiserver would keep: a sealed seed, in a file.
fn sealed(plugin: &Plugin<'_>, folder: &Path, name: &str) -> Result<String, String> {
    let (seed, reply) = (folder.join("seed"), folder.join(name).display().to_string());
    fs::write(&seed, [0x5e; 32]).unwrap();
    asked(plugin, "encrypt", &["--in", &seed.display().to_string(), "--out", &reply, "--yes"]).map(|_| reply)
}

fn opens(plugin: &Plugin<'_>, reply: &str) -> Result<(), String> {
    let out = format!("{reply}.opened");
    asked(plugin, "decrypt", &["--in", reply, "--out", &out, "--yes"])?;
    assert_eq!(fs::read(out).unwrap(), [0x5e; 32]);
    Ok(())
}

#[test]
fn a_service_that_is_restored_from_an_older_backup_brings_no_key_id_back() {
    let lab = lab("restored");
    let bao = OpenBao::start(&lab).unwrap();
    let root = TransitRoot::create(&bao, "restored", &json!({"token_ttl": "1h"})).unwrap();
    let plugin = Plugin::start_on(&lab, "node", KeyService::Transit(&root)).unwrap();
    let first = plugin.key_id().unwrap();
    let old = sealed(&plugin, lab.dir(), "old").unwrap();
    let backup = bao.back_up().unwrap();
    root.rotate().unwrap();
    let second = plugin.refresh_until_switch(&first).unwrap();
    let new = sealed(&plugin, lab.dir(), "new").unwrap();

    bao.restore(&backup).unwrap();
    let provider = until(&plugin, "told of the older version", |provider| {
        provider.to_string().contains("was active before and another one since")
    });
    assert!(provider.to_string().contains("raise `epoch`"), "{provider:#}");
    // What is in memory writes on for two minutes of refusals, and is read for as long as the process lives.
    assert_eq!(plugin.key_id().unwrap(), second, "it does not go back");
    opens(&plugin, &new).unwrap();
    opens(&plugin, &old).unwrap();

    // A restart has only what the service has.
    plugin.kill9();
    plugin.start_again_in_trouble().unwrap();
    until(&plugin, "looked after the restart", |provider| provider.to_string().contains("another one since"));
    let refused = sealed(&plugin, lab.dir(), "refused").unwrap_err();
    assert!(refused.contains("does not write"), "{refused}");
    opens(&plugin, &old).unwrap();
    let lost = opens(&plugin, &new).unwrap_err();
    assert!(lost.contains("version 2"), "{lost}");

    // What the message says: then the restored version is a new policy.
    plugin.reconfigure(|config| config["providers"][0]["epoch"] = json!(1)).unwrap();
    until(&plugin, "written under the new epoch", |_| sealed(&plugin, lab.dir(), "third").is_ok());
    let third = plugin.key_id().unwrap();
    assert!(third != first && third != second, "{third}");
    opens(&plugin, &old).unwrap();
}

#[test]
fn another_service_with_a_key_of_that_name_is_not_taken_for_it() {
    let lab = lab("two services");
    let (ours, theirs) = (OpenBao::dev(&lab).unwrap(), OpenBao::dev(&lab).unwrap());
    let root = TransitRoot::create(&ours, "same", &json!({})).unwrap();
    // Not within one second, which is all that tells them apart.
    thread::sleep(Duration::from_millis(1100));
    let other = TransitRoot::create(&theirs, "same", &json!({})).unwrap();
    let plugin = Plugin::start_on(&lab, "node", KeyService::Transit(&root)).unwrap();
    let key_id = plugin.key_id().unwrap();
    let kept = sealed(&plugin, lab.dir(), "kept").unwrap();
    fs::create_dir(lab.dir().join("elsewhere")).unwrap();
    let elsewhere = KeyService::Transit(&other).root_key("main", &lab.dir().join("elsewhere")).unwrap();

    // A restart takes any configuration; what it can't open it does not write with.
    plugin.terminate().unwrap();
    let text = fs::read_to_string(plugin.config()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["providers"][0]["rootKeys"][0] = elsewhere;
    plugin.deliver_configuration(&format!("{config:#}\n")).unwrap();
    plugin.start_again_in_trouble().unwrap();
    let provider =
        until(&plugin, "written with the other key", |_| sealed(&plugin, lab.dir(), "other").is_ok());
    assert_ne!(plugin.key_id().unwrap(), key_id, "{provider:#}");
    assert!(opens(&plugin, &kept).is_err());
    // With the right address all is as it was.
    plugin.terminate().unwrap();
    plugin.deliver_configuration(&text).unwrap();
    plugin.start_again_in_trouble().unwrap();
    until(&plugin, "read again", |_| opens(&plugin, &kept).is_ok());
}

#[test]
fn an_answer_after_the_deadline_is_no_answer_and_status_waits_for_none() {
    let lab = lab("late");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "late", &json!({})).unwrap().behind(&proxy);
    let plugin = Plugin::start_on(&lab, "node", KeyService::Transit(&root)).unwrap();
    let key_id = plugin.key_id().unwrap();
    let kept = sealed(&plugin, lab.dir(), "kept").unwrap();
    let peer = Plugin::start_on(&lab, "peer", KeyService::Transit(&root)).unwrap();
    let peers = sealed(&peer, lab.dir(), "peers").unwrap();

    proxy.set_mode(Mode::Delay { request: Duration::ZERO, answer: Duration::from_secs(5) }).unwrap();
    until(&plugin, "in an outage", |provider| !provider["trouble"].is_null());
    // What is open is read, what is not says why, and nothing hangs.
    opens(&plugin, &kept).unwrap();
    assert_eq!(plugin.key_id().unwrap(), key_id);
    let refused = opens(&plugin, &peers).unwrap_err();
    assert!(
        !refused.contains("DeadlineExceeded"),
        "the plugin answers before the caller gives up: {refused}"
    );
    proxy.set_mode(Mode::Pass).unwrap();
    until(&plugin, "well again", |provider| provider["trouble"].is_null());
    opens(&plugin, &peers).unwrap();
}

#[test]
fn a_login_that_the_service_refused_is_tried_again_when_an_admin_asks() {
    let lab = lab("asked to log in");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "asked", &json!({})).unwrap().behind(&proxy);
    let plugin = Plugin::start_on(&lab, "node", KeyService::Transit(&root)).unwrap();
    let key_id = plugin.key_id().unwrap();
    plugin.terminate().unwrap();

    fs::write(plugin.dir().join("secret-id"), "not-granted-yet").unwrap();
    proxy.forget_counts();
    plugin.start_again_in_trouble().unwrap();
    let logins = || proxy.requests_to("/v1/auth/approle/login");
    // By itself: each wish would have it try again.
    let refused_twice = (0..3 * LOOKS).any(|_| {
        thread::sleep(REST);
        logins() >= 2
    });
    assert!(refused_twice);
    // The next one would come after 100 s: longer than is waited here. What changes is the service, not a file.
    let granted = json!({"secret_id": "not-granted-yet"});
    bao.write("auth/approle/role/asked/custom-secret-id", &granted).unwrap();
    until(&plugin, "logged in when asked to", |_| sealed(&plugin, lab.dir(), "new").is_ok());
    assert_eq!((plugin.key_id().unwrap(), logins()), (key_id, 3));
}
