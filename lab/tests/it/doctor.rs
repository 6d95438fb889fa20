//! `casemate doctor` and `casemate key plan-rotation` on hosts whose root keys are in a file, in OpenBao and in a token.

mod table;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::{KeyService, TokenRoot, TransitRoot, casemate_json, documented_policy, product};
use casemate_lab::softhsm::SoftHsm;
use casemate_lab::{FaultProxy, Lab, OpenBao, Plugin, Result};
use serde_json::{Value, json};

use self::table::{IN_A_FILE, IN_A_TOKEN, IN_BOTH, IN_OPENBAO, Node, Row, Shows, TABLES, missing};

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// A plugin that lacks nothing.
fn start<'lab>(
    lab: &'lab Lab,
    name: &str,
    fill: impl FnOnce(&Path, &mut Value) -> Result<()>,
) -> Plugin<'lab> {
    let recipients = ["safe", "bank"].map(|place| {
        let identity = lab.dir().join(format!("{name}-{place}")).display().to_string();
        let made = casemate_json(&["recovery", "new", "--out", &identity]).unwrap();
        json!({"name": place, "age": made["recipient"]})
    });
    Plugin::start_with(lab, name, |folder, config| {
        // As a folder of the system is.
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        config["providers"][0]["recoveryRecipients"] = json!(recipients);
        fill(folder, config)
    })
    .unwrap()
}

fn write_secret(path: &Path, secret: impl AsRef<[u8]>) {
    fs::write(path, secret).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Exit code and what is printed.
fn run(plugin: &Plugin<'_>, words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(product("casemate").unwrap());
    let done =
        command.args(words).args(["--output", "json", "--config"]).arg(plugin.config()).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    let printed = String::from_utf8_lossy(&done.stdout).into_owned() + &told;
    for secret in ["pin", "signer-pin", "secret-id", "token"] {
        let secret = fs::read_to_string(plugin.dir().join(secret)).unwrap_or_default();
        assert!(secret.is_empty() || !printed.contains(secret.trim()), "{printed}");
    }
    let json = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    (done.status.code().unwrap(), json)
}

fn is_silent(plugin: &Plugin<'_>) {
    let (code, report) = run(plugin, &["doctor"]);
    assert_eq!((code, &report["findings"]), (0, &json!([])), "{report:#}");
}

fn finds(plugin: &Plugin<'_>, id: &str, evidence: &str, remedy: &str) {
    let (code, report) = run(plugin, &["doctor"]);
    let found = report["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id);
    let says = |found: &Value, field: &str, text: &str| found[field].as_str().unwrap().contains(text);
    let is_meant = |found: &Value| says(found, "evidence", evidence) && says(found, "remedy", remedy);
    assert!(code == 1 && found.clone().any(is_meant), "{id}, {evidence}, {remedy}: {report:#}");
    let row = format!("docs/reference/doctor.md#{id}");
    assert!(found.clone().all(|found| found["docs"][0] == row), "{report:#}");
}

/// What failed may still be what the plugin met last: then it looks again.
fn is_silent_again(plugin: &Plugin<'_>) {
    let fails = |status: &Value| {
        let keys = status["providers"][0]["root_keys"].as_array().unwrap();
        keys.iter().any(|key| key["state"] == "failing")
    };
    let is_well = || {
        let fails = plugin.status().is_ok_and(|status| fails(&status));
        // It is not asked for more often than it grants.
        (!fails || plugin.refresh().is_err()) && run(plugin, &["doctor"]).0 == 0
    };
    plugin.process().wait_until("all was well again", is_well).unwrap();
    is_silent(plugin);
}

/// All well, each fault found, and all well again.
fn goes_through(node: &Node<'_>, rows: &[Row]) {
    is_silent(&node.plugin);
    for row in rows {
        (row.plant)(node);
        finds(&node.plugin, row.finding, row.evidence, row.remedy);
        (row.mend)(node);
        is_silent_again(&node.plugin);
    }
}

/// Exit code and plan of the one provider.
fn plan(plugin: &Plugin<'_>) -> (i32, Value) {
    let (code, mut plans) = run(plugin, &["key", "plan-rotation"]);
    (code, plans[0].take())
}

#[test]
fn each_part_and_each_class_of_outages_has_a_fault_that_is_planted() {
    let all = || TABLES.iter().copied().flatten();
    assert_eq!(missing(all()), [], "add a row that shows it");
    // A row that goes is missed.
    for one in Shows::ALL {
        assert!(missing(all().filter(|row| !row.shows.contains(one))).contains(one), "{one:?}");
    }
    assert!(all().all(|row| ![row.finding, row.evidence, row.remedy].contains(&"")));
}

#[test]
fn a_root_key_in_a_file_and_a_sealed_cache_are_examined() {
    let lab = lab("doctor file");
    // On another file system than the state directory.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let credential = elsewhere.path().join("credential");
    write_secret(&credential, "of a lab, and not as random as it is to be");
    let plugin = start(&lab, "node", |folder, config| {
        let provider = &mut config["providers"][0];
        provider["rootKeys"] = json!([KeyService::File.root_key("main", folder)?]);
        provider["sealedCache"] = json!({"credential": credential});
        Ok(())
    });
    let node = Node { plugin, transit: None, token: None, credential: Some(credential) };
    goes_through(&node, IN_A_FILE);
}

#[test]
fn a_root_key_in_openbao_is_asked_in_both_directions_and_each_outage_has_its_remedy() {
    let lab = lab("doctor openbao");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "examined", &json!({"token_ttl": "1h"})).unwrap().behind(&proxy);
    let plugin = start(&lab, "node", |folder, config| {
        config["providers"][0]["rootKeys"] = json!([KeyService::Transit(&root).root_key("main", folder)?]);
        Ok(())
    });
    let node = Node { plugin, transit: Some((&root, &proxy)), token: None, credential: None };
    goes_through(&node, IN_OPENBAO);

    let plugin = &node.plugin;
    // Before it is started, too, who would write must be let encrypt.
    let checked = || {
        let mut check = Command::new(product("casemate-kms").unwrap());
        let done = check.args(["check", "--config"]).arg(plugin.config()).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (code, told) = checked();
    assert_eq!(code, Some(0), "{told}");
    for (right, says) in [("encrypt", "does not wrap"), ("decrypt", "does not open what it wrapped")] {
        node.allow_without(right);
        let (code, told) = checked();
        assert!(
            code == Some(1) && told.contains("FAIL  casemate  rootKeys main") && told.contains(says),
            "{told}"
        );
    }
    node.allow_without("nothing");

    let (code, same) = plan(plugin);
    assert_eq!((code, &same["would"]["what"]), (0, &json!("nothing_changes")), "{same:#}");
    for (mode, class, code_of_class) in [
        (Mode::Refuse, "unreachable", 3),
        (Mode::Throttle { retry_after: Some(1) }, "throttled", 3),
        (Mode::WrongBytes, "corrupt", 1),
    ] {
        proxy.set_mode(mode).unwrap();
        let (code, planned) = plan(plugin);
        assert_eq!((code, &planned["would"]["class"]), (code_of_class, &json!(class)), "{planned:#}");
    }
    proxy.set_mode(Mode::Pass).unwrap();

    let before = plugin.key_id().unwrap();
    root.rotate().unwrap();
    let (code, next) = plan(plugin);
    assert_eq!((code, &next["would"]["what"]), (1, &json!("write")), "{next:#}");
    assert!(next["would"]["when"].as_str().unwrap().contains("7 minutes"), "{next:#}");
    assert_eq!(next["root_keys"][0]["versions"].as_array().unwrap().len(), 3);
    let after = plugin.refresh_until_switch(&before).unwrap();
    assert_eq!(json!(after), next["would"]["key_id"], "it comes true");

    // A login that the plugin reports as refused is not tried from here: it would count, too.
    root.rotate_secret_id(&[]).unwrap();
    bao.write("sys/leases/revoke-prefix/auth/approle", &json!({"sync": true})).unwrap();
    node.is_met();
    let logins = || proxy.requests_to("/v1/auth/approle/login");
    let before = logins();
    for _ in 0..4 {
        finds(plugin, "key-credential", "as the running plugin sees it", "has it look again at once");
    }
    assert!(logins() < before + 4, "the plugin itself has tried twice more at most");
    root.rotate_secret_id(&[plugin.dir()]).unwrap();
    is_silent_again(plugin);

    // It is gone.
    let at = "transit/keys/examined";
    bao.write(&format!("{at}/config"), &json!({"deletion_allowed": true})).unwrap();
    bao.delete(at).unwrap();
    finds(plugin, "key-refused", "there is no key \"examined\"", "restored from a backup");
}

#[test]
fn two_root_keys_are_told_apart_and_an_outage_is_told_with_its_end() {
    let lab = lab("doctor both");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "examined", &json!({"token_ttl": "1h"})).unwrap().behind(&proxy);
    let plugin = start(&lab, "node", |folder, config| {
        let mut main = KeyService::Transit(&root).root_key("main", folder)?;
        let token = folder.join("token");
        write_secret(&token, bao.token(&["examined"], &json!({"ttl": "1h"}))?);
        main["transit"]["auth"] = json!({"tokenFile": {"path": token}});
        config["providers"][0]["rootKeys"] = json!([main, KeyService::File.root_key("spare", folder)?]);
        config["providers"][0]["outage"] = json!({"policy": "failAfter", "after": "1h"});
        Ok(())
    });
    let node = Node { plugin, transit: Some((&root, &proxy)), token: None, credential: None };
    goes_through(&node, IN_BOTH);

    proxy.set_mode(Mode::Refuse).unwrap();
    node.is_met();
    let (code, report) = run(&node.plugin, &["doctor"]);
    let outage = &report["outages"][0];
    assert!(code == 1 && outage["has_begun"] == true, "{report:#}");
    assert_eq!(outage["status"], "not ok");
    assert!(outage["writes"].as_str().unwrap().starts_with("go on until 20"), "{report:#}");
    assert!(outage["reads"].as_str().unwrap().contains("another root key opens"), "{report:#}");

    // What it says of a restart comes true: by the root key that is there, and by none if that one goes too.
    let restart = |says: &str| {
        let (_, report) = run(&node.plugin, &["doctor"]);
        assert!(report["outages"][0]["restart"].as_str().unwrap().contains(says), "{says}: {report:#}");
    };
    restart("comes up: root key spare opens what this node wrote last");
    let writes = || node.plugin.status().unwrap()["providers"][0]["next_write"]["key_id"].clone();
    let key_id = writes();
    node.plugin.kill9();
    restart("a start comes up: root key spare opens");
    node.plugin.start_again_in_trouble().unwrap();
    node.plugin.process().wait_until("it went on under the same key id", || writes() == key_id).unwrap();
    restart("comes up: root key spare opens");

    fs::rename(node.file("root.key"), node.file("aside")).unwrap();
    restart("does not come up before it ends, since there is no sealed cache");
    node.plugin.kill9();
    restart("a start does not come up, since there is no sealed cache");
    node.plugin.start_again_in_trouble().unwrap();
    restart("changes nothing, since there is no sealed cache");
    assert_eq!(writes(), json!(null));
}

#[test]
fn a_secret_id_that_opens_once_is_left_to_the_plugin() {
    let lab = lab("doctor wrapped");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "examined", &json!({"token_ttl": "1h"})).unwrap().behind(&proxy);
    let deliver = |folder: &Path| write_secret(&folder.join("secret-id"), wrapped_secret_id(&bao));
    let plugin = start(&lab, "node", |folder, config| {
        let mut main = KeyService::Transit(&root).root_key("main", folder)?;
        main["transit"]["auth"]["appRole"]["wrapped"] = json!(true);
        config["providers"][0]["rootKeys"] = json!([main]);
        deliver(folder);
        Ok(())
    });
    let asked = || proxy.requests_to("/v1/auth/") + proxy.requests_to("/v1/sys/wrapping/");
    let before = asked();
    let (code, report) = run(&plugin, &["doctor"]);
    assert_eq!((code, &report["findings"], asked()), (0, &json!([]), before), "{report:#}");
    let note = report["notes"][0]["text"].as_str().unwrap();
    assert!(note.contains("root key main was not asked") && note.contains("says that it is ok"), "{note}");

    // The one that the next start needs is still good after it.
    deliver(plugin.dir());
    is_silent(&plugin);
    plugin.terminate().unwrap();
    plugin.start_again().unwrap();

    // What the plugin meets is told in its place.
    let node = Node { plugin, transit: None, token: None, credential: None };
    bao.policy("examined", "path \"elsewhere\" { capabilities = [\"read\"] }").unwrap();
    node.is_met();
    finds(&node.plugin, "key-refused", "as the running plugin sees it", "casemate kms refresh");
    bao.policy("examined", &documented_policy().replace("/casemate\"", "/examined\"")).unwrap();

    // With nobody to ask it can't be told.
    let plugin = node.plugin;
    deliver(plugin.dir());
    plugin.restart_with(|config| drop(config.as_object_mut().unwrap().remove("admin"))).unwrap();
    let (code, report) = run(&plugin, &["doctor"]);
    assert_eq!((code, &report["findings"]), (4, &json!([])), "{report:#}");
}

#[test]
fn who_asks_once_leaves_no_token_behind_and_the_plugin_keeps_its_own() {
    let lab = lab("doctor tokens");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let root = TransitRoot::create(&bao, "examined", &json!({"token_ttl": "1h"})).unwrap().behind(&proxy);
    let plugin = start(&lab, "node", |folder, config| {
        config["providers"][0]["rootKeys"] = json!([KeyService::Transit(&root).root_key("main", folder)?]);
        Ok(())
    });
    let tokens = || {
        let listed = bao.read("auth/token/accessors?list=true").unwrap();
        let mut tokens: Vec<String> = serde_json::from_value(listed["data"]["keys"].clone()).unwrap();
        tokens.sort();
        tokens
    };
    let (before, logins) = (tokens(), || proxy.requests_to("/v1/auth/approle/login"));
    let of_plugin = logins();
    is_silent(&plugin);
    assert_eq!(run(&plugin, &["key", "plan-rotation"]).0, 0);
    let mut check = Command::new(product("casemate-kms").unwrap());
    assert!(check.args(["check", "--config"]).arg(plugin.config()).output().unwrap().status.success());
    assert_eq!(logins() - of_plugin, 3, "each logs in");
    assert_eq!(tokens(), before);

    // Without the right a token stays for its life, and nobody is told.
    let less = documented_policy()
        .replace("/casemate\"", "/examined\"")
        .replace("auth/token/revoke-self", "elsewhere");
    bao.policy("examined", &less).unwrap();
    is_silent(&plugin);
    assert_eq!(tokens().len(), before.len() + 1);
    assert!(plugin.refresh().is_ok());
    assert_eq!(logins() - of_plugin, 4, "the plugin's own token goes on");
}

/// A token that wraps a new secret id of the role.
fn wrapped_secret_id(bao: &OpenBao<'_>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let asked = reqwest::Client::new()
            .post(format!("{}/v1/auth/approle/role/examined/secret-id", bao.address()))
            .header("X-Vault-Token", bao.root_token())
            .header("X-Vault-Wrap-TTL", "5m")
            .body("{}");
        let answer = asked.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["wrap_info"]["token"].as_str().unwrap().to_owned()
    })
}

#[test]
fn a_token_is_asked_by_a_process_of_its_own_and_a_wrong_pin_is_tried_once() {
    let lab = lab("doctor softhsm");
    let hsm = SoftHsm::create(&lab.dir().join("hsm")).unwrap();
    let root = TokenRoot::create(&hsm, "examined").unwrap();
    let plugin = start(&lab, "node", |folder, config| {
        let main = KeyService::Pkcs11(&root).root_key("main", folder)?;
        config["providers"][0]["signer"] = signer(&hsm, folder, &main);
        config["providers"][0]["rootKeys"] = json!([main]);
        Ok(())
    });
    let (first, second) = (root.keys().remove(0), root.stage().unwrap());
    let keys = json!(root.keys());
    plugin.reconfigure(|config| config["providers"][0]["rootKeys"][0]["pkcs11"]["keys"] = keys).unwrap();
    let node = Node { plugin, transit: None, token: Some(&root), credential: None };
    goes_through(&node, IN_A_TOKEN);

    let plugin = &node.plugin;
    let (code, same) = plan(plugin);
    assert_eq!((code, &same["would"]["what"]), (0, &json!("nothing_changes")), "{same:#}");
    assert_eq!(same["root_keys"][0]["shows"], format!("pkcs11:{first}"), "{same:#}");
    let pin_file = plugin.dir().join("pin");
    let pin = fs::read_to_string(&pin_file).unwrap();
    write_secret(&pin_file, "24680-is-wrong");
    finds(plugin, "key-credential", "CKR_PIN_INCORRECT", "put the token's user PIN into the PIN file");
    finds(plugin, "key-credential", "it is not tried again", "write the right PIN into ");
    write_secret(&pin_file, &pin);
    let label = |id: &str, label| root.token().set_label(pin.trim(), id, label).unwrap();
    label(&second, TokenRoot::WRITES);
    let (code, planned) = plan(plugin);
    assert_eq!((code, &planned["would"]["class"]), (1, &json!("undecided")), "{planned:#}");
    assert_eq!(planned["root_keys"][0]["versions"].as_array().unwrap().len(), 2, "{planned:#}");
    label(&first, "casemate-read");
    let (code, planned) = plan(plugin);
    assert_eq!((code, &planned["would"]["what"]), (1, &json!("write")), "{planned:#}");
    finds(plugin, "rotation-pending", &second, "plan-rotation");
}

/// An RSA pair on a token of its own.
fn signer(hsm: &SoftHsm, folder: &Path, main: &Value) -> Value {
    let pin = "1357-of-the-lab";
    let token = hsm.init_token("signer", pin).unwrap();
    let id = token.new_rsa_pair(pin, "signer", 3072).unwrap();
    let der = token.public_key(pin, &id).unwrap();
    let text = BASE64_STANDARD.encode(&der);
    let public_key = format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n");
    let named = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der);
    let pin_file = folder.join("signer-pin");
    write_secret(&pin_file, pin);
    json!({"publicKey": public_key, "pkcs11": {
        "module": main["pkcs11"]["module"],
        "token": {"serial": token.serial()},
        "pinFile": pin_file,
        "key": hex::encode(&named.as_ref()[..16]),
        "folders": main["pkcs11"]["folders"],
        "environment": main["pkcs11"]["environment"],
    }})
}
