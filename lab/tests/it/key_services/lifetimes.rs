//! What a plugin logs in with does not live for ever.

use std::thread;
use std::time::Duration;

use casemate_lab::plugin::TransitRoot;
use casemate_lab::{FaultProxy, KeyService, OpenBao, Plugin};
use serde_json::json;

use super::{all_is_well, lab};
use crate::load::Load;

const LOGIN: &str = "/v1/auth/approle/login";

#[test]
fn tokens_of_fifteen_seconds_and_a_revoked_secret_id_stop_nothing() {
    let lab = lab("lifetimes");
    let bao = OpenBao::dev(&lab).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let role = json!({"token_ttl": "15s", "token_max_ttl": "15s"});
    let root = TransitRoot::create(&bao, "casemate", &role).unwrap().behind(&proxy);
    let plugin = Plugin::start_on(&lab, "kms", KeyService::Transit(&root)).unwrap();
    lab.add_apiserver(plugin.encryption()).unwrap();
    let load = Load::on(&lab, 1);
    let before = plugin.key_id().unwrap();

    load.during(|| {
        for look in 0..9 {
            if look == 3 {
                root.rotate_secret_id(&[plugin.dir()]).unwrap();
            }
            load.goes_on();
            // Each look is a call; in a minute they need four tokens.
            assert!(all_is_well(&plugin), "look {look}: {:#}", plugin.status().unwrap());
            thread::sleep(Duration::from_secs(6));
        }
        root.rotate().unwrap();
        plugin.refresh_until_switch(&before).unwrap();
        load.goes_on();
    });

    let logins = proxy.requests_to(LOGIN);
    assert!(logins >= 4, "{logins} logins");
    assert!(all_is_well(&plugin), "{:#}", plugin.status().unwrap());
    load.is_read_by_fresh(0, &plugin);
}
