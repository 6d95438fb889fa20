//! How a root key is brought into each state for real, and back.

use std::fs;
use std::path::{Path, PathBuf};

use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::{KeyService, TokenRoot, TransitRoot, documented_policy};
use casemate_lab::softhsm::{Backup, Class, SoftHsm};
use casemate_lab::{Apiserver, FaultProxy, Lab, OpenBao, Plugin, demo};
use serde_json::json;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The way to the key service does this.
    Way(Mode),
    /// The same, and the plugin is started meanwhile.
    StartedMeanwhile(Mode),
    /// What it logs in with is revoked, and its token ends.
    CredentialRevoked,
    /// The right to open is taken away, or all rights on the key.
    Forbidden { open_only: bool },
    /// The key is deleted, and another one is made with its name.
    MadeAnew,
    /// An older key file is put back, and the plugin is started with it.
    OlderPutBack,
}

/// A root key of its own, in a key service that can be brought down.
pub(crate) enum Site<'a> {
    Transit { root: TransitRoot<'a>, key: String, proxy: FaultProxy },
    Token { root: TokenRoot<'a>, backup: Option<Backup> },
    File,
}

impl<'a> Site<'a> {
    /// Of the kind that `fault` needs.
    pub(crate) fn new(bao: &'a OpenBao<'a>, hsm: &'a SoftHsm, key: &str, fault: Fault) -> Self {
        match fault {
            Fault::MadeAnew => Self::Token { root: TokenRoot::create(hsm, "root").unwrap(), backup: None },
            Fault::OlderPutBack => Self::File,
            _ => {
                let proxy = FaultProxy::http(&bao.address()).unwrap();
                let life = if fault == Fault::CredentialRevoked { "20s" } else { "2h" };
                let role = json!({"token_ttl": life, "token_max_ttl": life});
                let root = TransitRoot::create(bao, key, &role).unwrap().behind(&proxy);
                Self::Transit { root, key: key.to_owned(), proxy }
            }
        }
    }

    pub(crate) fn key_service(&self) -> KeyService<'_> {
        match self {
            Self::Transit { root, .. } => KeyService::Transit(root),
            Self::Token { root, .. } => KeyService::Pkcs11(root),
            Self::File => KeyService::File,
        }
    }

    /// It goes wrong.
    pub(crate) fn fail(&mut self, fault: Fault, lab: &Lab, plugin: &Plugin<'_>, server: &Apiserver) {
        match (fault, self) {
            (Fault::None, _) => {}
            (Fault::Way(mode), Self::Transit { proxy, .. }) => proxy.set_mode(mode).unwrap(),
            (Fault::StartedMeanwhile(mode), Self::Transit { proxy, .. }) => {
                plugin.kill9();
                proxy.set_mode(mode).unwrap();
                plugin.start_again_in_trouble().unwrap();
            }
            (Fault::CredentialRevoked, Self::Transit { root, .. }) => root.rotate_secret_id(&[]).unwrap(),
            (Fault::Forbidden { open_only }, Self::Transit { root, key, .. }) => {
                let taken = if open_only { "\"transit/decrypt/" } else { "\"transit/" };
                allow(root.bao(), key, |path| !path.contains(taken));
            }
            (Fault::MadeAnew, Self::Token { root, backup }) => {
                let (token, id) = (root.token(), hex::decode(&root.keys()[0]).unwrap());
                let pin = fs::read_to_string(plugin.dir().join("pin")).unwrap();
                *backup = Some(token.back_up().unwrap());
                token.delete(pin.trim(), Class::Secret, &id).unwrap();
                token.new_aes_key_with_id(pin.trim(), TokenRoot::WRITES, &id).unwrap();
            }
            (Fault::OlderPutBack, Self::File) => {
                fs::copy(plugin.key_file(), put_aside(plugin)).unwrap();
                let before = plugin.key_id().unwrap();
                plugin.rotate().unwrap();
                let after = plugin.wait_for_switch(&before).unwrap();
                // The server has to hold something that only the newer version opens.
                demo::adopted(&|args| Ok(server.kubectl(args)?), lab, &after).unwrap();
                plugin.kill9();
                swap(&plugin.key_file(), &put_aside(plugin));
                plugin.start_again_in_trouble().unwrap();
            }
            (fault, _) => panic!("{fault:?} is nothing that befalls this root key"),
        }
    }

    /// As it was: what an admin would do.
    pub(crate) fn heal(&mut self, fault: Fault, plugin: &Plugin<'_>) {
        match (fault, self) {
            (Fault::None, _) => {}
            (Fault::Way(_) | Fault::StartedMeanwhile(_), Self::Transit { proxy, .. }) => {
                proxy.set_mode(Mode::Pass).unwrap();
            }
            (Fault::CredentialRevoked, Self::Transit { root, .. }) => {
                root.rotate_secret_id(&[plugin.dir()]).unwrap();
            }
            (Fault::Forbidden { .. }, Self::Transit { root, key, .. }) => allow(root.bao(), key, |_| true),
            (Fault::MadeAnew, Self::Token { root, backup: Some(backup) }) => {
                plugin.kill9();
                root.token().restore(backup).unwrap();
                plugin.start_again_in_trouble().unwrap();
            }
            (Fault::OlderPutBack, Self::File) => {
                plugin.kill9();
                swap(&plugin.key_file(), &put_aside(plugin));
                plugin.start_again_in_trouble().unwrap();
            }
            (fault, _) => panic!("{fault:?} is nothing that befalls this root key"),
        }
    }
}

/// What of the documented policy is `left`, block by block, for this key.
fn allow(bao: &OpenBao<'_>, key: &str, left: impl Fn(&&str) -> bool) {
    let blocks = documented_policy().split_inclusive("}\n").filter(left);
    let policy = blocks.collect::<String>().replace("/casemate\"", &format!("/{key}\""));
    bao.policy(key, &policy).unwrap();
}

/// Where the other one of two key files is.
fn put_aside(plugin: &Plugin<'_>) -> PathBuf {
    plugin.key_file().with_extension("aside")
}

/// Each gets the other's name.
fn swap(one: &Path, other: &Path) {
    let between = one.with_extension("between");
    fs::rename(one, &between).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(between, other).unwrap();
}
