//! What of the story is told otherwise on each key service.

use std::fmt::Write as _;
use std::str::FromStr;

use anyhow::Context as _;
use serde_json::json;

use super::Story;
use crate::softhsm::SoftHsm;
use crate::{KeyService, Plugin, Result, python};

/// Which key service the story is told on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum On {
    /// The root key is in a file.
    #[default]
    File,
    /// The root key is in the Transit engine of OpenBao.
    OpenBao,
    /// The root key is in a PKCS#11 token of SoftHSM.
    SoftHsm,
}

impl On {
    /// What is accepted.
    pub const WORDS: &str = "file, openbao and softhsm";
}

impl FromStr for On {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        match word {
            "file" => Ok(Self::File),
            "openbao" => Ok(Self::OpenBao),
            "softhsm" => Ok(Self::SoftHsm),
            _ => Err(format!("there is no key service {word:?}; there are {}", Self::WORDS)),
        }
    }
}

impl KeyService<'_> {
    /// What was set up, as a step of the story.
    pub(super) fn set_up(&self) -> &'static str {
        match self {
            Self::File => "A root key in a file, and our plugin on it",
            Self::Pkcs11(_) => {
                "A root key in a token of SoftHSM, which can't be read out of it, and our plugin on it"
            }
            Self::Transit(_) => {
                "A root key in OpenBao, sealed and unsealed like a real one, and our plugin on it, with an AppRole that may \
                 wrap, unwrap and look"
            }
        }
    }

    /// How the root key is rotated, as a step of the story.
    pub(super) fn rotation(&self) -> &'static str {
        match self {
            Self::File => "The root key is rotated: a version is staged, then activated",
            Self::Pkcs11(_) => {
                "The root key is rotated: another AES key is made, the configuration lists it, then it gets the write label"
            }
            Self::Transit(_) => {
                "The root key is rotated where it is: bao write -f transit/keys/casemate/rotate"
            }
        }
    }

    /// Rotates it, and says how that is known. Returns the key id that writes then.
    pub(super) fn rotate(
        &self,
        plugin: &Plugin<'_>,
        before: &str,
        story: &mut Story,
    ) -> anyhow::Result<String> {
        match self {
            Self::File => {
                let version = plugin.rotate()?;
                let now = plugin.wait_for_switch(before)?;
                story.known(&format!(
                    "version {version} is active; casemate kms status names key id {now} now, no restart"
                ));
                Ok(now)
            }
            Self::Pkcs11(root) => {
                let id = root.stage()?;
                let keys = json!(root.keys());
                plugin
                    .reconfigure(|config| config["providers"][0]["rootKeys"][0]["pkcs11"]["keys"] = keys)?;
                story.known("casemate kms status --admin: the changed configuration holds; the new key only reads yet");
                root.activate()?;
                let now = plugin.refresh_until_switch(before)?;
                story.known(&format!(
                    "key {id} writes; casemate kms status names key id {now} now, no restart"
                ));
                Ok(now)
            }
            Self::Transit(root) => {
                root.rotate()?;
                let now = plugin.refresh_until_switch(before)?;
                story.known(&format!(
                    "after casemate kms refresh, casemate kms status names key id {now}; without it, it takes minutes"
                ));
                Ok(now)
            }
        }
    }

    /// Takes the key service away, if it can be, and says how.
    pub(super) fn take_away(&self) -> Result<Option<&'static str>> {
        match self {
            Self::File => Ok(None),
            Self::Pkcs11(root) => root.token().pull().map(|()| Some("The token is pulled")),
            Self::Transit(root) => root.bao().seal().map(|()| Some("OpenBao is sealed")),
        }
    }

    /// Brings it back, and says how.
    pub(super) fn bring_back(&self) -> Result<&'static str> {
        match self {
            Self::File => Ok("Nothing happens to a file"),
            Self::Pkcs11(root) => root.token().put_back().map(|()| "The token is put back"),
            Self::Transit(root) => root.bao().unseal().map(|()| "OpenBao is unsealed"),
        }
    }

    /// What to try in a shell.
    pub(super) fn suggestions(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        match self {
            Self::File => writeln!(text, "  casemate key list --file root.key")?,
            Self::Pkcs11(root) => {
                let (variable, conf) = root.hsm().env();
                writeln!(text, "  export {variable}={}", conf.display())?;
                writeln!(
                    text,
                    "  pkcs11-tool --module {} --slot {} --login --pin \"$(cat pin)\" -O",
                    SoftHsm::MODULE,
                    root.token().slot()
                )?;
                writeln!(text, "  casemate kms status --admin unix://$PWD/admin.sock")?;
            }
            Self::Transit(root) => {
                let bao = python::bao()?;
                let authority = root.bao().authority().context("OpenBao speaks TLS here")?;
                writeln!(text, "  export BAO_ADDR={}", root.bao().address())?;
                writeln!(text, "  export BAO_CACERT={}", authority.certificate().display())?;
                writeln!(text, "  export BAO_TOKEN={}", root.bao().root_token())?;
                writeln!(text, "  {} write -f transit/keys/casemate/rotate", bao.display())?;
                writeln!(text, "  casemate kms refresh --admin unix://$PWD/admin.sock --wait")?;
            }
        }
        Ok(text)
    }
}
