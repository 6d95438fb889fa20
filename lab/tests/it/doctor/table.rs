//! Which fault shows what, and what `casemate doctor` has to say of it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use casemate_lab::fault_proxy::{Canned, Mode, Times};
use casemate_lab::plugin::{TokenRoot, TransitRoot, documented_policy};
use casemate_lab::softhsm::Class;
use casemate_lab::{FaultProxy, Plugin};
use serde_json::json;

macro_rules! shows {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has to be shown by at least one planted fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Shows {
            $($(#[$doc])* $name,)*
        }

        impl Shows {
            pub(super) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

shows! {
    /// Which key writes, and the ledger.
    StateMachine,
    /// What stands around every root key: deadlines, probes.
    Machinery,
    Transit,
    Pkcs11,
    /// Which version of a root key writes.
    Selection,
    /// Several root keys at once.
    RedundantWrap,
    /// What goes on in an outage.
    OutagePolicy,
    /// What outlives it.
    SealedCache,
    /// Files, folders, sockets, clock, process.
    Host,
    // The classes of outages.
    Unreachable,
    Throttled,
    Credential,
    Refused,
    Corrupt,
}

/// One fault.
pub(super) struct Row {
    pub(super) shows: &'static [Shows],
    pub(super) finding: &'static str,
    /// Part of what is said to be seen, and of what is said to be done.
    pub(super) evidence: &'static str,
    pub(super) remedy: &'static str,
    pub(super) plant: fn(&Node<'_>),
    pub(super) mend: fn(&Node<'_>),
}

/// A plugin, and what its root keys are in.
pub(super) struct Node<'a> {
    pub(super) plugin: Plugin<'a>,
    pub(super) transit: Option<(&'a TransitRoot<'a>, &'a FaultProxy)>,
    pub(super) token: Option<&'a TokenRoot<'a>>,
    /// What opens the sealed cache, if there is one.
    pub(super) credential: Option<PathBuf>,
}

impl Node<'_> {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.plugin.dir().join(name)
    }

    fn way(&self, mode: Mode) {
        self.transit.unwrap().1.set_mode(mode).unwrap();
    }

    /// The documented policy, without the right to do this with the key.
    pub(super) fn allow_without(&self, path: &str) {
        let all = documented_policy().replace("/casemate\"", "/examined\"");
        let less = all.replace(&format!("transit/{path}/"), &format!("transit/not-{path}/"));
        self.transit.unwrap().0.bao().policy("examined", &less).unwrap();
    }

    /// Waits until the plugin has met it.
    pub(super) fn is_met(&self) {
        let plugin = &self.plugin;
        let met = || plugin.status().unwrap()["providers"][0]["root_keys"][0]["state"] == "failing";
        plugin.process().wait_until("it met the fault", || plugin.refresh().is_ok() && met()).unwrap();
    }

    fn aside(&self, name: &str) {
        fs::rename(self.file(name), self.file("aside")).unwrap();
    }

    fn back(&self, name: &str) {
        fs::rename(self.file("aside"), self.file(name)).unwrap();
    }

    /// Another content, as private as the one before.
    fn replace(&self, name: &str, content: &str) {
        self.aside(name);
        fs::write(self.file(name), content).unwrap();
        self.mode(name, 0o600);
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.file(name), Permissions::from_mode(mode)).unwrap();
    }

    fn pin(&self) -> String {
        fs::read_to_string(self.file("pin")).unwrap().trim().to_owned()
    }

    fn label(&self, id: &str, label: &str) {
        self.token.unwrap().token().set_label(&self.pin(), id, label).unwrap();
    }

    fn last_key(&self) -> String {
        self.token.unwrap().keys().pop().unwrap()
    }
}

const FILE: &str = "root.key";

/// A root key in a file, and a sealed cache.
pub(super) const IN_A_FILE: &[Row] = &[
    Row {
        shows: &[Shows::StateMachine],
        finding: "reused",
        evidence: "it was active on this node before, and another one since",
        remedy: "raise `epoch` from 0 to 1 on all nodes",
        plant: |node| {
            fs::copy(node.file(FILE), node.file("older")).unwrap();
            let before = node.plugin.key_id().unwrap();
            node.plugin.rotate().unwrap();
            node.plugin.refresh_until_switch(&before).unwrap();
            node.aside(FILE);
            fs::rename(node.file("older"), node.file(FILE)).unwrap();
        },
        mend: |node| node.back(FILE),
    },
    Row {
        shows: &[Shows::SealedCache],
        finding: "sealed-cache",
        evidence: "it does not open with what",
        remedy: "docs/how-to/start-in-an-outage.md",
        plant: |node| {
            let secret = node.credential.as_ref().unwrap();
            fs::rename(secret, secret.with_extension("aside")).unwrap();
            fs::write(secret, "another one, and not as random as it is to be").unwrap();
            fs::set_permissions(secret, Permissions::from_mode(0o600)).unwrap();
        },
        mend: |node| {
            let secret = node.credential.as_ref().unwrap();
            fs::rename(secret.with_extension("aside"), secret).unwrap();
        },
    },
    Row {
        shows: &[Shows::Host],
        finding: "secret-open",
        evidence: "root.key has mode 0644",
        remedy: "chmod go-rwx",
        plant: |node| node.mode(FILE, 0o644),
        mend: |node| node.mode(FILE, 0o600),
    },
    Row {
        shows: &[Shows::Host],
        finding: "folder-open",
        evidence: "in the place of",
        remedy: "chmod go-w",
        plant: |node| node.mode("", 0o777),
        mend: |node| node.mode("", 0o755),
    },
    Row {
        shows: &[Shows::Host],
        finding: "not-served",
        evidence: "kms.sock",
        remedy: "systemctl start casemate-kms",
        plant: |node| assert!(node.plugin.terminate().unwrap().success()),
        mend: |node| node.plugin.start_again().unwrap(),
    },
    Row {
        shows: &[Shows::Unreachable],
        finding: "key-unreachable",
        evidence: "there is no key file",
        remedy: "deliver the key file to this node",
        plant: |node| node.aside(FILE),
        mend: |node| node.back(FILE),
    },
    Row {
        shows: &[Shows::Corrupt],
        finding: "key-corrupt",
        evidence: "root.key can't be used",
        remedy: "deliver",
        plant: |node| node.replace(FILE, "no key file\n"),
        mend: |node| node.back(FILE),
    },
    Row {
        shows: &[Shows::Credential],
        finding: "key-credential",
        evidence: "which lets others in",
        remedy: "with mode 0600 or 0400",
        plant: |node| node.mode(FILE, 0o644),
        mend: |node| node.mode(FILE, 0o600),
    },
];

/// A root key in OpenBao, behind the proxy.
pub(super) const IN_OPENBAO: &[Row] = &[
    Row {
        shows: &[Shows::Unreachable],
        finding: "key-unreachable",
        evidence: "(class unreachable)",
        remedy: "see that OpenBao or Vault runs there",
        plant: |node| node.way(Mode::Refuse),
        mend: |node| node.way(Mode::Pass),
    },
    Row {
        shows: &[Shows::Machinery, Shows::Unreachable],
        finding: "key-unreachable",
        evidence: "no whole answer within",
        remedy: "this host reaches it",
        plant: |node| node.way(Mode::BlackHole),
        mend: |node| node.way(Mode::Pass),
    },
    Row {
        shows: &[Shows::Throttled],
        finding: "key-throttled",
        evidence: "answers 429",
        remedy: "raise the rate limit quota",
        plant: |node| node.way(Mode::Throttle { retry_after: Some(1) }),
        mend: |node| node.way(Mode::Pass),
    },
    Row {
        shows: &[Shows::Corrupt],
        finding: "key-corrupt",
        evidence: "(class corrupt)",
        remedy: "see what answers at the configured addresses",
        plant: |node| node.way(Mode::WrongBytes),
        mend: |node| node.way(Mode::Pass),
    },
    Row {
        shows: &[Shows::Credential],
        finding: "key-credential",
        evidence: "(class credential)",
        remedy: "write a new one into its file",
        plant: |node| node.transit.unwrap().0.rotate_secret_id(&[]).unwrap(),
        mend: |node| node.transit.unwrap().0.rotate_secret_id(&[node.plugin.dir()]).unwrap(),
    },
    // One direction alone.
    Row {
        shows: &[Shows::Transit, Shows::Refused],
        finding: "key-refused",
        evidence: "asked to open what it had just wrapped",
        remedy: "give its policy the capability",
        plant: |node| node.allow_without("decrypt"),
        mend: |node| node.allow_without("nothing"),
    },
    Row {
        shows: &[Shows::Transit, Shows::Refused],
        finding: "key-refused",
        evidence: "asked to wrap",
        remedy: "give its policy the capability",
        plant: |node| node.allow_without("encrypt"),
        mend: |node| node.allow_without("nothing"),
    },
    Row {
        shows: &[Shows::StateMachine],
        finding: "rotation-pending",
        evidence: "is to write 7 minutes from now at the latest",
        remedy: "casemate key plan-rotation",
        plant: |node| node.transit.unwrap().0.rotate().unwrap(),
        mend: |node| {
            let before = node.plugin.key_id().unwrap();
            node.plugin.refresh_until_switch(&before).unwrap();
        },
    },
    Row {
        shows: &[Shows::Host],
        finding: "clock",
        evidence: "ahead of that of http://127.0.0.1",
        remedy: "timedatectl",
        plant: |node| {
            let mut answer = Canned::json(200, &json!({}));
            answer.headers.push(("Date".into(), "Thu, 01 Jan 2026 00:00:00 GMT".into()));
            node.transit.unwrap().1.answer("/v1/sys/health", answer, Times::Always);
        },
        mend: |node| node.transit.unwrap().1.forget_answers(),
    },
];

/// A root key in a token, and a signer.
pub(super) const IN_A_TOKEN: &[Row] = &[
    Row {
        shows: &[Shows::Pkcs11, Shows::Credential],
        finding: "pin-refused",
        evidence: "it is not tried again",
        remedy: "write the right PIN",
        plant: |node| node.replace("pin", "13579-is-wrong"),
        mend: |node| node.back("pin"),
    },
    Row {
        shows: &[Shows::Pkcs11, Shows::Unreachable],
        finding: "key-unreachable",
        evidence: "no token with serial number",
        remedy: "plug it in",
        plant: |node| node.token.unwrap().token().pull().unwrap(),
        mend: |node| node.token.unwrap().token().put_back().unwrap(),
    },
    Row {
        shows: &[Shows::Pkcs11],
        finding: "signer",
        evidence: "does not sign",
        remedy: "deliver the file with the token's user PIN",
        plant: |node| node.aside("signer-pin"),
        mend: |node| node.back("signer-pin"),
    },
    // Of a key that writes nothing, and that other nodes may write under.
    Row {
        shows: &[Shows::Pkcs11],
        finding: "key-absent",
        evidence: "which the token does not have",
        remedy: "to this node's token",
        plant: |node| {
            let id = hex::decode(node.last_key()).unwrap();
            node.token.unwrap().token().delete(&node.pin(), Class::Secret, &id).unwrap();
        },
        mend: |node| {
            let id = hex::decode(node.last_key()).unwrap();
            node.token.unwrap().token().new_aes_key_with_id(&node.pin(), "casemate-read", &id).unwrap();
        },
    },
    // Two carry the label.
    Row {
        shows: &[Shows::Selection],
        finding: "key-undecided",
        evidence: "all fit label",
        remedy: "set CKA_LABEL of exactly one",
        plant: |node| node.label(&node.last_key(), TokenRoot::WRITES),
        mend: |node| node.label(&node.last_key(), "casemate-read"),
    },
];

/// Two root keys: one in OpenBao, by a token in a file, and one in a file.
pub(super) const IN_BOTH: &[Row] = &[
    Row {
        shows: &[Shows::RedundantWrap],
        finding: "key-unreachable",
        evidence: "root key spare",
        remedy: "deliver the key file to this node",
        plant: |node| node.aside(FILE),
        mend: |node| node.back(FILE),
    },
    Row {
        shows: &[Shows::OutagePolicy, Shows::Unreachable],
        finding: "unready",
        evidence: "and names key id",
        remedy: "outage.policy",
        plant: |node| {
            node.way(Mode::Refuse);
            node.is_met();
        },
        mend: |node| node.way(Mode::Pass),
    },
    Row {
        shows: &[Shows::RedundantWrap, Shows::Credential],
        finding: "key-credential",
        evidence: "root key main",
        remedy: "write a new token into the file",
        plant: |node| {
            let token = fs::read_to_string(node.file("token")).unwrap();
            let bao = node.transit.unwrap().0.bao();
            bao.write("auth/token/revoke", &json!({"token": token})).unwrap();
        },
        mend: |node| {
            let token = node.transit.unwrap().0.bao().token(&["examined"], &json!({"ttl": "1h"})).unwrap();
            fs::write(node.file("token"), token).unwrap();
        },
    },
];

pub(super) const TABLES: &[&[Row]] = &[IN_A_FILE, IN_OPENBAO, IN_A_TOKEN, IN_BOTH];

/// What no row of these shows.
pub(super) fn missing<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Shows> {
    let shown: BTreeSet<Shows> = rows.into_iter().flat_map(|row| row.shows).copied().collect();
    Shows::ALL.iter().copied().filter(|one| !shown.contains(one)).collect()
}
