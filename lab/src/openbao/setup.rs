//! What most tests set up, in a word each. All else is a `write` away.

use serde_json::json;

use super::{OpenBao, Value};
use crate::{Error, Result};

/// A mount of the Transit engine.
#[derive(Debug)]
pub struct Transit<'bao> {
    bao: &'bao OpenBao<'bao>,
    mount: String,
}

/// What a program logs in with by AppRole.
#[derive(Clone, Debug)]
pub struct AppRole {
    /// Names the role.
    pub role_id: String,
    /// Proves it.
    pub secret_id: String,
    /// What the secret id is revoked by.
    pub secret_id_accessor: String,
}

impl OpenBao<'_> {
    /// Enables Transit at `mount`.
    pub fn transit(&self, mount: &str) -> Result<Transit<'_>> {
        self.write(&format!("sys/mounts/{mount}"), &json!({"type": "transit"}))?;
        Ok(Transit { bao: self, mount: mount.to_owned() })
    }

    /// Writes a policy, in HCL.
    pub fn policy(&self, name: &str, hcl: &str) -> Result<()> {
        self.write(&format!("sys/policies/acl/{name}"), &json!({"policy": hcl})).map(drop)
    }

    /// A token with these policies alone, and what else its creation takes, such as `{"ttl": "15s"}`.
    pub fn token(&self, policies: &[&str], more: &Value) -> Result<String> {
        let mut asked = json!({"policies": policies, "no_default_policy": true});
        if let (Some(asked), Some(more)) = (asked.as_object_mut(), more.as_object()) {
            asked.extend(more.clone());
        }
        let made = self.write("auth/token/create", &asked)?;
        text(&made, "/auth/client_token")
    }

    /// Enables an auth method at `auth/MOUNT`.
    pub fn auth(&self, kind: &str, mount: &str) -> Result<()> {
        self.write(&format!("sys/auth/{mount}"), &json!({"type": kind})).map(drop)
    }

    /// A role of an AppRole mount, made anew or changed, with a first secret id. `role` is what the role takes, as in
    /// `{"token_policies": ["kek"], "token_ttl": "15s"}`.
    pub fn approle(&self, mount: &str, name: &str, role: &Value) -> Result<AppRole> {
        let at = format!("auth/{mount}/role/{name}");
        self.write(&at, role)?;
        let role_id = text(&self.read(&format!("{at}/role-id"))?, "/data/role_id")?;
        let made = self.write(&format!("{at}/secret-id"), &json!({}))?;
        Ok(AppRole {
            role_id,
            secret_id: text(&made, "/data/secret_id")?,
            secret_id_accessor: text(&made, "/data/secret_id_accessor")?,
        })
    }
}

impl Transit<'_> {
    /// Makes a key that seals with AES-256-GCM.
    pub fn create(&self, key: &str) -> Result<()> {
        self.bao.write(&self.at(key), &json!({"type": "aes256-gcm96"})).map(drop)
    }

    /// Makes a new version.
    pub fn rotate(&self, key: &str) -> Result<()> {
        self.bao.write(&format!("{}/rotate", self.at(key)), &json!({})).map(drop)
    }

    /// Changes what may be changed of a key, such as `{"min_decryption_version": 2}`.
    pub fn configure(&self, key: &str, what: &Value) -> Result<()> {
        self.bao.write(&format!("{}/config", self.at(key)), what).map(drop)
    }

    /// Removes all versions below `version` for ever. The minimum for decryption is raised to it too.
    pub fn trim(&self, key: &str, version: u32) -> Result<()> {
        let least = json!({"min_decryption_version": version, "min_encryption_version": version});
        self.configure(key, &least)?;
        self.bao
            .write(&format!("{}/trim", self.at(key)), &json!({"min_available_version": version}))
            .map(drop)
    }

    /// Deletes a key.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.configure(key, &json!({"deletion_allowed": true}))?;
        self.bao.delete(&self.at(key))
    }

    /// What is known of a key: the answer's `data`.
    pub fn read(&self, key: &str) -> Result<Value> {
        Ok(self.bao.read(&self.at(key))?["data"].take())
    }

    /// The path of a key.
    pub fn at(&self, key: &str) -> String {
        format!("{}/keys/{key}", self.mount)
    }
}

/// A text in an answer.
pub(super) fn text(answer: &Value, pointer: &str) -> Result<String> {
    let found = answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    found.ok_or_else(|| Error::Answer { command: "bao".into(), found: format!("there is no {pointer}") })
}
