//! All that can be found, and what it means: the page of the reference is made of it.
use serde::Serialize;

use super::seen;
use crate::doctor::facts::Facts;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::doctor) enum Severity {
    /// Something does not work, or anybody can break in.
    Error,
    /// It works, and a bad day will be worse for it.
    Warning,
}

/// Something that can be found.
#[derive(Debug)]
pub(in crate::doctor) struct Kind {
    pub(in crate::doctor) id: &'static str,
    /// What was looked at, if nothing was found.
    pub(in crate::doctor) seen: Seen,
    pub(in crate::doctor) severity: Severity,
    /// What it means for whoever runs the cluster.
    pub(in crate::doctor) means: &'static str,
    /// Where more is said.
    pub(in crate::doctor) see: &'static str,
}

/// In a few words; `None` if there is nothing of the kind to look at, or it can't be seen from here.
type Seen = fn(&Facts) -> Option<String>;

const fn error(id: &'static str, seen: Seen, means: &'static str, see: &'static str) -> Kind {
    Kind { id, seen, severity: Severity::Error, means, see }
}

const fn warning(id: &'static str, seen: Seen, means: &'static str, see: &'static str) -> Kind {
    Kind { id, seen, severity: Severity::Warning, means, see }
}

const START: &str = "../how-to/troubleshoot.md#the-plugin-does-not-start";
const STATUS: &str = "../how-to/troubleshoot.md#it-runs-and-does-not-write-status-fails";
const STATES: &str = "outages.md#states";
const SEALED: &str = "../how-to/start-in-an-outage.md#what-goes-wrong";
const LEDGER: &str = "../explanation/switching.md#the-ledger";

/// In the order of the page.
pub(in crate::doctor) const KINDS: &[Kind] = &[
    error(
        "configuration",
        seen::configuration,
        "The file does not parse, or says what can't be: the plugin does not start with it.",
        START,
    ),
    error(
        "configuration-refused",
        seen::taken_over,
        "The running plugin does not take over what the file says now; a restart would.",
        "../how-to/change-the-configuration.md#what-is-not-taken-over",
    ),
    warning(
        "configuration-differs",
        seen::taken_over,
        "The running plugin does not do what the file says.",
        "../how-to/change-the-configuration.md#what-changes-when",
    ),
    error(
        "provider-not-started",
        seen::served_providers,
        "One provider of the configuration is not served.",
        START,
    ),
    error("file-missing", seen::named_files, "A file that the configuration names is not there.", START),
    error(
        "file-unreadable",
        seen::readable_files,
        "The user of the plugin can't read a file that it needs.",
        START,
    ),
    error(
        "file-writable",
        seen::trusted_files,
        "Others can change which keys are used, or who is trusted.",
        START,
    ),
    error(
        "file-owner",
        seen::owners,
        "Somebody who is neither root nor the plugin's user can change or read a file.",
        START,
    ),
    error(
        "folder-open",
        seen::folders,
        "Others can put another file in the place of one that is used.",
        START,
    ),
    error(
        "secret-open",
        seen::secrets,
        "Others on this host can use a key, PIN, token or passphrase.",
        "../how-to/openbao.md#3-a-way-to-log-in",
    ),
    error("state-unwritable", seen::state, "The plugin can't keep its record and its ledger.", START),
    error("state-open", seen::state, "Others can change the ledger: a key id may come back.", LEDGER),
    error(
        "not-served",
        seen::status,
        "kube-apiserver gets no good Status: it is unready, and writes fail after three minutes.",
        STATUS,
    ),
    error(
        "unready",
        seen::status,
        "kube-apiserver is unready, so that a load balancer takes it out; it writes on.",
        "outages.md#policies",
    ),
    error("not-writing", seen::writing, "The plugin refuses to write, and says why.", STATUS),
    error(
        "socket-open",
        seen::sockets,
        "Everybody on this host can encrypt and decrypt.",
        "../how-to/troubleshoot.md#kube-apiserver",
    ),
    warning(
        "socket-mode",
        seen::sockets,
        "kube-apiserver may not be let in.",
        "../how-to/troubleshoot.md#kube-apiserver",
    ),
    error(
        "socket-folder",
        seen::socket_folders,
        "The plugin can't make its socket, or kube-apiserver can't reach it.",
        "../how-to/troubleshoot.md#kube-apiserver",
    ),
    error(
        "admin-silent",
        seen::admin,
        "The admin socket does not answer: probes and metrics fail, and less can be told here.",
        "admin.md",
    ),
    error("audit", seen::log_folder, "Calls are missing in the audit log, or are refused.", "audit.md"),
    warning(
        "limit-files",
        seen::open_files,
        "With all configured connections open, the plugin runs out of descriptors.",
        START,
    ),
    warning(
        "limit-memory",
        seen::locked_memory,
        "Local KEKs may be swapped to disk.",
        "../explanation/secret-memory.md",
    ),
    warning(
        "limit-cgroup",
        seen::memory,
        "The plugin may be killed when much is asked of it.",
        "benchmarks.md",
    ),
    error("clock", seen::clocks, "Certificates, tokens and ages are judged by a wrong clock.", STATUS),
    error(
        "key-unreachable",
        seen::keys_shown,
        "Outage, class *unreachable*: no answer of the key service, or no key file.",
        STATES,
    ),
    error(
        "key-throttled",
        seen::keys_shown,
        "Outage, class *throttled*: the key service asks to slow down.",
        STATES,
    ),
    error(
        "key-credential",
        seen::keys_shown,
        "Class *credential*: the key service does not accept who asks, or what it is to be asked with is not protected. Writing goes on.",
        STATES,
    ),
    error(
        "key-refused",
        seen::keys_tried,
        "Class *refused*: the key service knows the caller and says no. After two minutes nothing is written.",
        STATES,
    ),
    error("key-corrupt", seen::keys_true, "Outage, class *corrupt*: it answers with what can't be.", STATES),
    error(
        "other-key",
        seen::keys_of_record,
        "*Same name, other key*: a root key was made again, or restored, under its name.",
        "outages.md#same-name-other-key",
    ),
    error(
        "key-undecided",
        seen::keys_shown,
        "No version, or several, carry the write label, or the pinned one is disabled: what was confirmed last goes on.",
        "../explanation/switching.md#when-nobody-can-see-what-should-write",
    ),
    error(
        "key-absent",
        seen::keys_listed,
        "The token of this node lacks a key that the configuration lists: what is written under it on other nodes can't be read here.",
        "../how-to/hsm.md#4-rotation",
    ),
    warning(
        "key-differs",
        seen::keys_of_plugin,
        "The plugin can't ask a root key that this command can ask.",
        STATES,
    ),
    error(
        "pkcs11-not-asked",
        seen::keys_asked,
        "Root keys in tokens could not be asked from here.",
        "../how-to/hsm.md",
    ),
    error(
        "pin-refused",
        seen::pins,
        "A wrong PIN is not tried again, because a few lock the token.",
        "../how-to/hsm.md#2-the-pin",
    ),
    error(
        "signer",
        seen::signers,
        "No new local KEK can be signed: the next rotation, or the next replacement by age, does not happen.",
        "../how-to/hsm.md#rsa-keys",
    ),
    warning(
        "unproven-origin",
        seen::origin,
        "Who writes etcd can plant data that is read under RSA keys.",
        "../how-to/hsm.md#rsa-keys",
    ),
    warning(
        "rotation-pending",
        seen::foreseen,
        "Another key id than the one in Status is about to write.",
        "../explanation/switching.md#proposed-confirmed-active",
    ),
    error(
        "reused",
        seen::foreseen,
        "A key id that was active before another one does not come back by itself.",
        LEDGER,
    ),
    error(
        "selection",
        seen::foreseen,
        "What the root keys show would not be taken.",
        "../explanation/switching.md#proposed-confirmed-active",
    ),
    error(
        "record-damaged",
        seen::records,
        "The record in the state directory was changed, or is torn.",
        "../explanation/switching.md#what-a-restart-cant-break",
    ),
    error(
        "ledger-damaged",
        seen::ledgers,
        "The node has forgotten part of which key ids were active.",
        LEDGER,
    ),
    error(
        "ledger-unsaved",
        seen::saved_ledgers,
        "A restart would forget which key id was active last.",
        LEDGER,
    ),
    error("other-cluster", seen::ledgers, "Data of this node's own past is refused.", STATUS),
    warning(
        "no-recovery",
        seen::recipients,
        "Whoever loses the root keys loses the cluster.",
        "../how-to/recovery.md",
    ),
    error(
        "sealed-cache",
        seen::sealed,
        "A restart while the root keys are out would not come up, or not read everything.",
        SEALED,
    ),
    warning(
        "sealed-beside",
        seen::sealed_apart,
        "The sealed cache protects nothing against who takes the disk.",
        SEALED,
    ),
];

/// The kind with this id.
pub(in crate::doctor) fn kind(id: &'static str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.id == id).expect("a test finds each id that is used")
}
