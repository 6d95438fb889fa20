//! What a plugin's root key is in, set up as the pages for admins say, and what each node gets of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::{KEY_FILE, casemate, casemate_json, text};
use crate::openbao::AppRole;
use crate::softhsm::{SoftHsm, Token};
use crate::{Error, FaultProxy, OpenBao, Result};

/// A key service with a root key in it.
#[derive(Clone, Copy, Debug)]
pub enum KeyService<'a> {
    /// A new key file on each node.
    File,
    /// A key in a token.
    Pkcs11(&'a TokenRoot<'a>),
    /// A key in Transit.
    Transit(&'a TransitRoot<'a>),
}

impl KeyService<'_> {
    /// Writes what a node needs for it into `folder`, and answers how `rootKeys` and `readKeys` of a configuration name it.
    pub fn root_key(&self, name: &str, folder: &Path) -> Result<Value> {
        match self {
            Self::File => {
                let path = text(&folder.join(KEY_FILE));
                casemate(&["key", "new", "--file", &path])?;
                let listed = casemate_json(&["key", "list", "--file", &path])?;
                Ok(json!({"name": name, "file": {"path": path, "id": listed["id"]}}))
            }
            Self::Pkcs11(root) => root.root_key(name, folder),
            Self::Transit(root) => root.root_key(name, folder),
        }
    }
}

/// A key in Transit, and an AppRole that may do what the page for admins says and nothing else.
#[derive(Debug)]
pub struct TransitRoot<'bao> {
    bao: &'bao OpenBao<'bao>,
    key: String,
    address: String,
    login: Mutex<AppRole>,
}

impl<'bao> TransitRoot<'bao> {
    const MOUNT: &'static str = "transit";
    const SECRET_ID: &'static str = "secret-id";

    /// Makes `key`, and a role whose tokens live as long as `role` says, as in `{"token_ttl": "1h"}`. Transit and AppRole
    /// are enabled, if they are not yet.
    pub fn create(bao: &'bao OpenBao<'bao>, key: &str, role: &Value) -> Result<Self> {
        if bao.read("sys/mounts")?["data"].get("transit/").is_none() {
            bao.transit(Self::MOUNT)?;
            bao.auth("approle", "approle")?;
        }
        bao.write(&format!("{}/keys/{key}", Self::MOUNT), &json!({"type": "aes256-gcm96"}))?;
        bao.policy(key, &documented_policy().replace("/casemate\"", &format!("/{key}\"")))?;
        let mut asked = json!({"token_policies": [key], "token_no_default_policy": true});
        if let (Some(asked), Some(more)) = (asked.as_object_mut(), role.as_object()) {
            asked.extend(more.clone());
        }
        let login = Mutex::new(bao.approle("approle", key, &asked)?);
        Ok(Self { bao, key: key.to_owned(), address: bao.address(), login })
    }

    /// The same, for nodes that reach it by `proxy`.
    #[must_use]
    pub fn behind(mut self, proxy: &FaultProxy) -> Self {
        self.address = proxy.address();
        self
    }

    /// The server.
    pub fn bao(&self) -> &'bao OpenBao<'bao> {
        self.bao
    }

    /// Makes a new version, which is the latest from now on.
    pub fn rotate(&self) -> Result<()> {
        self.bao.write(&format!("{}/keys/{}/rotate", Self::MOUNT, self.key), &json!({})).map(drop)
    }

    /// Gives each of these nodes a new secret id, then destroys the one before.
    pub fn rotate_secret_id(&self, nodes: &[&Path]) -> Result<()> {
        let role = format!("auth/approle/role/{}", self.key);
        let made = self.bao.write(&format!("{role}/secret-id"), &json!({}))?;
        let field = |name: &str| {
            let found = made["data"][name].as_str().map(str::to_owned);
            found.ok_or_else(|| Error::Answer { command: "bao".into(), found: format!("there is no {name}") })
        };
        let (secret_id, accessor) = (field("secret_id")?, field("secret_id_accessor")?);
        for folder in nodes {
            deliver_secret(&folder.join(Self::SECRET_ID), &secret_id)?;
        }
        let before = {
            let mut login = self.login.lock().unwrap_or_else(PoisonError::into_inner);
            login.secret_id = secret_id;
            std::mem::replace(&mut login.secret_id_accessor, accessor)
        };
        let destroyed = json!({"secret_id_accessor": before});
        self.bao.write(&format!("{role}/secret-id-accessor/destroy"), &destroyed).map(drop)
    }

    fn root_key(&self, name: &str, folder: &Path) -> Result<Value> {
        let login = self.login.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let secret_id = folder.join(Self::SECRET_ID);
        deliver_secret(&secret_id, &login.secret_id)?;
        let tls = self.bao.authority().map_or(json!({}), |by| json!({"caFile": by.certificate()}));
        Ok(json!({"name": name, "transit": {
            "addresses": [self.address],
            "mount": Self::MOUNT,
            "key": self.key,
            "auth": {"appRole": {"roleId": login.role_id, "secretIdFile": secret_id}},
            "tls": tls,
        }}))
    }
}

/// AES keys in a SoftHSM token. The one with the label [`TokenRoot::WRITES`] writes.
#[derive(Debug)]
pub struct TokenRoot<'hsm> {
    hsm: &'hsm SoftHsm,
    token: Token,
    keys: Mutex<Vec<String>>,
}

impl<'hsm> TokenRoot<'hsm> {
    /// The label of the key that writes.
    pub const WRITES: &'static str = "casemate-write";
    const STAGED: &'static str = "casemate-staged";
    const OLD: &'static str = "casemate-read";
    const PIN: &'static str = "2468-of-the-lab";
    const PIN_FILE: &'static str = "pin";

    /// A new token with a first key.
    pub fn create(hsm: &'hsm SoftHsm, label: &str) -> Result<Self> {
        let token = hsm.init_token(label, Self::PIN)?;
        let first = hex::encode(token.new_aes_key(Self::PIN, Self::WRITES)?);
        Ok(Self { hsm, token, keys: Mutex::new(vec![first]) })
    }

    /// The host that has it.
    pub fn hsm(&self) -> &'hsm SoftHsm {
        self.hsm
    }

    /// The token.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// All its keys by CKA_ID in hex, the oldest first.
    pub fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a key that no node writes with yet: their configurations must list it first. Answers its CKA_ID.
    pub fn stage(&self) -> Result<String> {
        let id = hex::encode(self.token.new_aes_key(Self::PIN, Self::STAGED)?);
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(id)
    }

    /// Moves the label to the key that was staged last.
    pub fn activate(&self) -> Result<()> {
        let keys = self.keys();
        let Some((last, before)) = keys.split_last() else { return Ok(()) };
        for id in before {
            self.token.set_label(Self::PIN, id, Self::OLD)?;
        }
        self.token.set_label(Self::PIN, last, Self::WRITES)
    }

    fn root_key(&self, name: &str, folder: &Path) -> Result<Value> {
        let pin = folder.join(Self::PIN_FILE);
        deliver_secret(&pin, Self::PIN)?;
        let (variable, conf) = self.hsm.env();
        Ok(json!({"name": name, "pkcs11": {
            "module": SoftHsm::MODULE,
            "token": {"serial": self.token.serial()},
            "pinFile": pin,
            "keys": self.keys(),
            "writes": {"label": Self::WRITES},
            "folders": [self.hsm.tokens()],
            "environment": {variable: conf},
        }}))
    }
}

/// The policy that the page for admins gives.
pub fn documented_policy() -> &'static str {
    let page = include_str!("../../../docs/how-to/openbao.md");
    let (_, after) = page.split_once("```hcl\n").unwrap_or(("", page));
    after.split_once("```").map_or(after, |(policy, _)| policy)
}

/// A file for its owner alone, as an admin delivers it: whole, or not at all.
fn deliver_secret(path: &Path, secret: &str) -> Result<()> {
    let aside = path.with_extension("aside");
    let write = || {
        fs::write(&aside, format!("{secret}\n"))?;
        fs::set_permissions(&aside, Permissions::from_mode(0o600))?;
        fs::rename(&aside, path)
    };
    write().map_err(Error::file("deliver", path))
}
