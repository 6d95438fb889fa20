//! SoftHSM, for a benchmark.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::{Lab, SoftHsm};

const PIN: &str = "2468-bench";

/// A token with one key; answers the root key, as in a configuration.
pub(super) fn start(lab: &Lab) -> anyhow::Result<Value> {
    let hsm = SoftHsm::create(&lab.dir().join("hsm"))?;
    let key = hsm.init_token("bench", PIN)?.new_aes_key(PIN, "casemate")?;
    let pin = lab.dir().join("pin");
    fs::write(&pin, PIN)?;
    fs::set_permissions(&pin, fs::Permissions::from_mode(0o600))?;
    let (name, conf) = hsm.env();
    Ok(json!({"pkcs11": {
        "module": SoftHsm::MODULE,
        "token": {"label": "bench"},
        "pinFile": pin,
        "keys": [hex::encode(key)],
        "folders": [hsm.tokens(), conf],
        "environment": {name: conf},
    }}))
}
