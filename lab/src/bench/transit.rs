//! OpenBao behind a proxy, for a benchmark.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Calls;
use crate::{FaultProxy, Lab, OpenBao};

/// What a plugin needs, and no more.
const POLICY: &str = r#"
path "transit/keys/casemate" { capabilities = ["read"] }
path "transit/encrypt/casemate" { capabilities = ["update"] }
path "transit/decrypt/casemate" { capabilities = ["update"] }
path "auth/token/lookup-self" { capabilities = ["read"] }
path "auth/token/renew-self" { capabilities = ["update"] }
"#;

/// A server with one key.
pub(super) struct Transit<'lab> {
    lab: &'lab Lab,
    pub(super) bao: OpenBao<'lab>,
}

/// A way to it with a login of its own.
pub(super) struct Way {
    pub(super) proxy: FaultProxy,
    /// As in a configuration.
    pub(super) root_key: Value,
}

impl<'lab> Transit<'lab> {
    pub(super) fn start(lab: &'lab Lab) -> anyhow::Result<Self> {
        let bao = OpenBao::dev(lab)?;
        bao.transit("transit")?.create("casemate")?;
        bao.policy("casemate", POLICY)?;
        bao.auth("approle", "approle")?;
        Ok(Self { lab, bao })
    }

    /// By a role of this name, whose tokens last `token`, as in `{"token_ttl": "1h"}`.
    pub(super) fn way(&self, name: &str, token: &Value) -> anyhow::Result<Way> {
        let mut role = json!({"token_policies": ["casemate"], "token_no_default_policy": true});
        if let (Some(role), Some(token)) = (role.as_object_mut(), token.as_object()) {
            role.extend(token.clone());
        }
        let role = self.bao.approle("approle", name, &role)?;
        let secret = self.lab.dir().join(format!("{name}.secret-id"));
        fs::write(&secret, &role.secret_id)?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        let proxy = FaultProxy::http(&self.bao.address())?;
        let root_key = json!({"transit": {
            "addresses": [proxy.address()],
            "key": "casemate",
            "auth": {"appRole": {"roleId": role.role_id, "secretIdFile": secret}},
        }});
        Ok(Way { proxy, root_key })
    }
}

impl Way {
    pub(super) fn calls(&self) -> Calls {
        Calls::at(&self.proxy)
    }

    /// What was asked until nothing was for half a second and `more`: a good Status comes before the first looks are over.
    pub(super) fn settled(&self, more: Duration) -> Calls {
        let mut calls = self.calls();
        loop {
            thread::sleep(Duration::from_millis(500) + more);
            let now = self.calls();
            if now == calls {
                return calls;
            }
            calls = now;
        }
    }
}
