//! `casemate doctor` and `casemate key plan-rotation` on hosts whose root keys are in OpenBao and in a token.

use std::fs;
use std::process::Command;

use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::{KeyService, TokenRoot, TransitRoot, casemate_json, documented_policy, product};
use casemate_lab::softhsm::SoftHsm;
use casemate_lab::{FaultProxy, Lab, OpenBao, Plugin};
use serde_json::{Value, json};

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// A plugin that lacks nothing.
fn start<'lab>(lab: &'lab Lab, service: KeyService<'_>) -> Plugin<'lab> {
    let recipients = ["safe", "bank"].map(|place| {
        let identity = lab.dir().join(place).display().to_string();
        let made = casemate_json(&["recovery", "new", "--out", &identity]).unwrap();
        json!({"name": place, "age": made["recipient"]})
    });
    Plugin::start_with(lab, "node", |folder, config| {
        config["providers"][0]["rootKeys"] = Value::from(vec![service.root_key("main", folder)?]);
        config["providers"][0]["recoveryRecipients"] = json!(recipients);
        Ok(())
    })
    .unwrap()
}

/// Exit code and what is printed.
fn run(plugin: &Plugin<'_>, words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(product("casemate").unwrap());
    let done =
        command.args(words).args(["--output", "json", "--config"]).arg(plugin.config()).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    let json = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    (done.status.code().unwrap(), json)
}

fn is_silent(plugin: &Plugin<'_>) {
    let (code, report) = run(plugin, &["doctor"]);
    assert_eq!((code, &report["findings"]), (0, &json!([])), "{report:#}");
}

fn finds(plugin: &Plugin<'_>, id: &str, evidence: &str, remedy: &str) {
    let (code, report) = run(plugin, &["doctor"]);
    let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == id);
    let found = found.unwrap_or_else(|| panic!("no {id}: {report:#}"));
    let says = |field: &str, text: &str| found[field].as_str().unwrap().contains(text);
    assert!(code == 1 && says("evidence", evidence) && says("remedy", remedy), "{id}: {report:#}");
}

/// Exit code and plan of the one provider.
fn plan(plugin: &Plugin<'_>) -> (i32, Value) {
    let (code, mut plans) = run(plugin, &["key", "plan-rotation"]);
    (code, plans[0].take())
}

#[test]
fn a_root_key_in_openbao_is_asked_in_both_directions_and_each_outage_has_its_remedy() {
    let lab = lab("doctor openbao");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "examined", &json!({"token_ttl": "1h"})).unwrap().behind(&proxy);
    let plugin = start(&lab, KeyService::Transit(&root));
    is_silent(&plugin);
    let (code, same) = plan(&plugin);
    assert_eq!((code, &same["would"]["what"]), (0, &json!("nothing_changes")), "{same:#}");

    for (mode, id, class) in [
        (Mode::Refuse, "key-unreachable", "unreachable"),
        (Mode::Throttle { retry_after: Some(1) }, "key-throttled", "throttled"),
        (Mode::WrongBytes, "key-corrupt", "corrupt"),
    ] {
        proxy.set_mode(mode).unwrap();
        finds(&plugin, id, class, "");
        let (code, planned) = plan(&plugin);
        let code_of_class = if class == "corrupt" { 1 } else { 3 };
        assert_eq!((code, &planned["would"]["class"]), (code_of_class, &json!(class)), "{planned:#}");
    }
    proxy.set_mode(Mode::Pass).unwrap();

    // One direction alone.
    let policy = |text: &str| bao.policy("examined", text).unwrap();
    let all = documented_policy().replace("/casemate\"", "/examined\"");
    let without = |path: &str| all.replace(&format!("transit/{path}/"), &format!("transit/not-{path}/"));
    policy(&without("decrypt"));
    finds(&plugin, "key-refused", "asked to open what it had just wrapped", "policy");
    policy(&without("encrypt"));
    finds(&plugin, "key-refused", "asked to wrap", "policy");
    policy(&all);

    // The secret id on this node is destroyed.
    root.rotate_secret_id(&[]).unwrap();
    finds(&plugin, "key-credential", "credential", "");
    root.rotate_secret_id(&[plugin.dir()]).unwrap();

    let before = plugin.key_id().unwrap();
    root.rotate().unwrap();
    let (code, next) = plan(&plugin);
    assert_eq!((code, &next["would"]["what"]), (1, &json!("write")), "{next:#}");
    assert!(next["would"]["when"].as_str().unwrap().contains("7 minutes"), "{next:#}");
    assert_eq!(next["root_keys"][0]["versions"].as_array().unwrap().len(), 2);
    assert_eq!(
        json!(plugin.refresh_until_switch(&before).unwrap()),
        next["would"]["key_id"],
        "it comes true"
    );
    // What failed here may still be what the plugin met last.
    let refreshed = format!("unix://{}", plugin.admin_socket().display());
    casemate_json(&["kms", "refresh", "--wait", "--admin", &refreshed]).unwrap();
    is_silent(&plugin);
}

#[test]
fn a_token_is_asked_by_a_process_of_its_own_and_a_wrong_pin_is_tried_once() {
    let lab = lab("doctor softhsm");
    let hsm = SoftHsm::create(&lab.dir().join("hsm")).unwrap();
    let root = TokenRoot::create(&hsm, "examined").unwrap();
    let plugin = start(&lab, KeyService::Pkcs11(&root));
    is_silent(&plugin);
    let (code, same) = plan(&plugin);
    assert_eq!((code, &same["would"]["what"]), (0, &json!("nothing_changes")), "{same:#}");
    assert_eq!(same["root_keys"][0]["versions"][0]["version"], root.keys()[0], "{same:#}");

    // Two carry the label, then none.
    let (first, second) = (root.keys().remove(0), root.stage().unwrap());
    plugin
        .reconfigure(|config| config["providers"][0]["rootKeys"][0]["pkcs11"]["keys"] = json!(root.keys()))
        .unwrap();
    let label = |id: &str, label| root.token().set_label("2468-of-the-lab", id, label).unwrap();
    label(&second, TokenRoot::WRITES);
    finds(&plugin, "key-undecided", &second, "exactly one");
    let (code, planned) = plan(&plugin);
    assert_eq!((code, &planned["would"]["class"]), (1, &json!("undecided")), "{planned:#}");
    assert_eq!(planned["root_keys"][0]["versions"].as_array().unwrap().len(), 2, "{planned:#}");
    label(&first, "casemate-read");
    let (code, planned) = plan(&plugin);
    assert_eq!((code, &planned["would"]["what"]), (1, &json!("write")), "{planned:#}");
    label(&first, TokenRoot::WRITES);
    label(&second, "casemate-read");
    is_silent(&plugin);

    let pin = plugin.dir().join("pin");
    let right = fs::read(&pin).unwrap();
    fs::write(&pin, "13579").unwrap();
    finds(&plugin, "key-credential", "PIN", "");
    finds(&plugin, "pin-refused", "", "write the right PIN");
    fs::write(&pin, right).unwrap();
    is_silent(&plugin);
}
