//! What follows from what was seen: pure, and in one table.
use casemate_keyservice::{Class, Failure};
use casemate_kms::admin::status::ProviderStatus;
use serde::Serialize;

use super::facts::{Access, Facts, FileFacts, KeyFacts, ProviderFacts, Role, User};
use crate::host::class_name;

mod kinds;

pub(super) use kinds::{KINDS, Kind, Severity, kind};

/// A record or a ledger entry that is younger than this much from now was made by a clock that is wrong.
const CLOCKS_DIFFER: u64 = 300;
/// Below this, local KEKs may not fit into memory that is not swapped.
const LOCKED_MEMORY: u64 = 1024 * 1024;

/// Something to be mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    /// What it means for whoever runs the cluster.
    means: &'static str,
    /// Null if it is no provider's.
    pub(super) provider: Option<String>,
    pub(super) evidence: String,
    pub(super) remedy: String,
    /// Where it stands, and where more is said.
    pub(super) docs: [String; 2],
}

impl Finding {
    pub(super) fn new(id: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        let Kind { severity, means, see, .. } = kind(id);
        let more = match see.strip_prefix("../") {
            Some(elsewhere) => format!("docs/{elsewhere}"),
            None => format!("docs/reference/{see}"),
        };
        Self {
            id,
            severity: *severity,
            means,
            provider: None,
            evidence: evidence.into(),
            remedy: remedy.into(),
            docs: [format!("docs/reference/doctor.md#{id}"), more],
        }
    }

    fn of(self, provider: &str) -> Self {
        Self { provider: Some(provider.to_owned()), ..self }
    }
}

/// All that is to be mended, the worst first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all: Vec<Finding> = facts.files.iter().flat_map(|file| of_file(file, facts.user)).collect();
    all.extend(of_limits(facts));
    all.extend(of_status(facts));
    all.extend(facts.no_services.iter().map(|why| {
        Finding::new("pkcs11-not-asked", why.clone(), "name the program with --plugin, and run as root")
    }));
    all.extend(facts.refused_pins.iter().map(|note| {
        Finding::new(
            "pin-refused",
            format!(
                "{} says that the token refused the PIN in the PIN file; it is not tried again",
                note.display()
            ),
            format!(
                "write the right PIN into the PIN file; if it was right all along, delete {}",
                note.display()
            ),
        )
    }));
    for provider in &facts.providers {
        let found = of_provider(provider, facts);
        all.extend(found.into_iter().map(|finding| finding.of(&provider.name)));
    }
    all.sort_by_key(|finding| finding.severity);
    all
}

impl Access {
    /// Whether `user` has all of `bits` (4 read, 2 write, 1 search). Lists of control beyond the mode are not looked at.
    fn lets(&self, user: User, bits: u32) -> bool {
        let shift = match () {
            () if user.uid == 0 => return true,
            () if user.uid == self.uid => 6,
            () if user.gid == self.gid => 3,
            () => 0,
        };
        self.mode >> shift & bits == bits
    }

    /// Whether anybody but the owner and root can replace what is below this folder.
    fn lets_others_replace(&self) -> bool {
        self.mode & 0o022 != 0 && self.mode & 0o1000 == 0
    }
}

fn of_file(file: &FileFacts, user: User) -> Vec<Finding> {
    let shown = file.path.display();
    let access = match &file.found {
        Ok(access) => access,
        // It is made at the first start.
        Err(_) if file.role == Role::State => return Vec::new(),
        Err(why) => {
            let evidence = format!("{shown}: {why}");
            return vec![Finding::new(
                "file-missing",
                evidence,
                "deliver it to this node, or correct its path in the configuration",
            )];
        }
    };
    let mut found = Vec::new();
    let mode = access.mode & 0o777;
    let barred = file.folders.iter().find(|(_, folder)| !folder.lets(user, 1));
    let bits = if file.role == Role::State { 7 } else { 4 };
    let uid = user.uid;
    if let Some((folder, barred)) = barred {
        found.push(Finding::new(
            "file-unreadable",
            format!(
                "{shown}: user {uid}, as whom the plugin runs, may not enter {} (mode {:04o}, owner {})",
                folder.display(),
                barred.mode & 0o777,
                barred.uid
            ),
            format!("chmod or chown {} so that user {uid} can enter it", folder.display()),
        ));
    } else if !access.lets(user, bits) {
        let what = if file.role == Role::State { "write there" } else { "read it" };
        found.push(Finding::new(
            if file.role == Role::State { "state-unwritable" } else { "file-unreadable" },
            format!("{shown} has mode {mode:04o} and owner {}: user {uid}, as whom the plugin runs, may not {what}", access.uid),
            format!("chown {uid} {shown}"),
        ));
    }
    let (id, forbidden, remedy) = match file.role {
        Role::Configuration | Role::Public => ("file-writable", 0o022, format!("chmod go-w {shown}")),
        Role::Secret => (
            "secret-open",
            0o077,
            format!("chmod go-rwx {shown}; if others were on this host, make a new one"),
        ),
        Role::State => ("state-open", 0o022, format!("chmod go-w {shown}")),
    };
    if mode & forbidden != 0 {
        found.push(Finding::new(
            id,
            format!("{shown} has mode {mode:04o}: others than its owner can use it"),
            remedy,
        ));
    }
    let stranger = access.uid != 0 && access.uid != uid;
    if stranger && file.role != Role::State {
        found.push(Finding::new(
            "file-owner",
            format!(
                "{shown} belongs to user {}, who is neither root nor the user of the plugin ({uid})",
                access.uid
            ),
            format!("chown root {shown}, or give it to user {uid}"),
        ));
    }
    if let Some((folder, access)) = file.folders.iter().find(|(_, folder)| folder.lets_others_replace()) {
        found.push(Finding::new(
            "folder-open",
            format!(
                "{} has mode {:04o}: others can put another file in the place of {shown}",
                folder.display(),
                access.mode & 0o7777
            ),
            format!("chmod go-w {}", folder.display()),
        ));
    }
    found
}

fn of_limits(facts: &Facts) -> Vec<Finding> {
    let Some(limits) = facts.limits else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(allowed) = limits.open_files.filter(|allowed| *allowed < limits.needed_files) {
        found.push(Finding::new(
            "limit-files",
            format!("the plugin may open {allowed} files, its configuration needs {}", limits.needed_files),
            "raise LimitNOFILE= of the unit, or lower maxConnections",
        ));
    }
    if let Some(allowed) = limits.locked_memory.filter(|allowed| *allowed < LOCKED_MEMORY) {
        found.push(Finding::new(
            "limit-memory",
            format!("the plugin may lock {allowed} bytes of memory: local KEKs may be swapped to disk"),
            "raise LimitMEMLOCK= of the unit to 8M",
        ));
    }
    found
}

/// What the running plugin says of itself.
fn of_status(facts: &Facts) -> Vec<Finding> {
    let document = match &facts.status {
        None => return Vec::new(),
        Some(Err(why)) => {
            return vec![Finding::new("admin-silent", why.clone(), "start the plugin; see its log")];
        }
        Some(Ok(document)) => document,
    };
    let mut found = Vec::new();
    if let Some(held) = &document.configuration {
        found.extend(held.refused.iter().map(|why| {
            Finding::new(
                "configuration-refused",
                format!("{}: {why}", held.path),
                "correct the file as it says; until then the running plugin keeps what it has",
            )
        }));
        found.extend(held.not_started.iter().map(|absent| {
            Finding::new(
                "provider-not-started",
                absent.why.clone(),
                "do what it says; it is tried again every ten seconds",
            )
            .of(&absent.name)
        }));
    }
    let audit = document.audit.as_ref().and_then(|audit| audit.problem.as_ref());
    found.extend(audit.map(|why| {
        Finding::new("audit", why.clone(), "make room, or correct the permissions of its folder")
    }));
    found
}

fn of_provider(provider: &ProviderFacts, facts: &Facts) -> Vec<Finding> {
    let document = facts.status.as_ref().and_then(|status| status.as_ref().ok());
    let status =
        document.and_then(|document| document.providers.iter().find(|one| one.name == provider.name));
    let mut found = of_socket(provider);
    found.extend(provider.keys.iter().flat_map(of_key));
    if let Some((class, message, remedy)) = &provider.refused {
        let id = if class == "reuse" { "reused" } else { "selection" };
        found.push(Finding::new(id, message.clone(), remedy.clone()));
    }
    found.extend(of_disk(provider, facts.now));
    if provider.recipients == 0 {
        found.push(Finding::new(
            "no-recovery",
            "no recovery recipient is configured: with the root keys, all data is lost",
            "casemate recovery new, keep the identity in a safe, and list its recipient under recoveryRecipients",
        ));
    }
    found.extend(of_sealed(provider));
    found.extend(status.into_iter().flat_map(|status| of_running(provider, status)));
    found
}

fn of_socket(provider: &ProviderFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    match &provider.answer {
        Err(why) => found.push(Finding::new(
            "not-served",
            why.clone(),
            "start the plugin (systemctl status casemate-kms); its log says why it does not write",
        )),
        Ok(answer) => found.extend(answer.problems.iter().map(|problem| {
            Finding::new(
                "not-served",
                format!("Status: {problem}"),
                "see its log; upgrade it if it is of another version",
            )
        })),
    }
    if let Some(Ok(access)) = &provider.socket {
        let mode = access.mode & 0o777;
        if mode & 0o007 & !provider.socket_mode != 0 {
            found.push(Finding::new(
                "socket-open",
                format!("{} has mode {mode:04o}: everybody on this host can decrypt", provider.endpoint),
                "restart the plugin, which sets the configured mode; find out who changed it",
            ));
        } else if mode != provider.socket_mode {
            found.push(Finding::new(
                "socket-mode",
                format!("{} has mode {mode:04o}, the configuration says {:04o}: kube-apiserver may not be let in", provider.endpoint, provider.socket_mode),
                "restart the plugin, which sets the configured mode; with a socket of systemd, correct SocketMode= of its unit",
            ));
        }
    }
    found
}

/// The worst that is wrong with a root key: one text each is enough.
fn of_key(key: &KeyFacts) -> Option<Finding> {
    let name = &key.name;
    let in_trouble = |failure: &Failure, doing: &str| {
        Finding::new(
            id_of(failure.class),
            format!("root key {name}, {doing}: {} ({})", failure.what, class_name(failure.class)),
            failure.remedy.clone(),
        )
    };
    if let Err(failure) = &key.observed {
        return Some(in_trouble(failure, "asked which version writes"));
    }
    if let Some(Err(failure)) = &key.wrapped {
        return Some(in_trouble(failure, "asked to wrap"));
    }
    if let Some(Err(failure)) = &key.opened {
        return Some(in_trouble(failure, "asked to open what it had just wrapped"));
    }
    if key.is_true == Some(false) {
        return Some(Finding::new(
            "key-corrupt",
            format!(
                "root key {name} gives back something else than it was given, or opens it with other associated data"
            ),
            "do not write with it: the service, or something on the way to it, is not what it seems",
        ));
    }
    match &key.opens_record {
        Some(Err(failure)) if failure.class == Class::NotOpened => {
            return Some(Finding::new(
                "other-key",
                format!("root key {name} does not open what this node wrote under it: {}", failure.what),
                "bring the old key back (a backup of the key service), or raise `epoch` on all nodes to write with the new one; what \
                 only the old one opens needs a recovery identity",
            ));
        }
        Some(Err(failure)) => return Some(in_trouble(failure, "asked to open the record on disk")),
        _ => {}
    }
    // From here it answers, and the plugin is not answered.
    key.running.as_ref().map(|(class, message)| {
        Finding::new(
            "key-differs",
            format!("root key {name} answers here, and the running plugin says ({class}): {message}"),
            "wait a minute, or `casemate kms refresh --wait`; if it stays, compare the user, the environment and the confinement of \
             the plugin with those of this command",
        )
    })
}

fn id_of(class: Class) -> &'static str {
    match class {
        Class::Throttled => "key-throttled",
        Class::Credential => "key-credential",
        Class::Refused => "key-refused",
        Class::Undecided => "key-undecided",
        Class::Corrupt | Class::NotOpened => "key-corrupt",
        _ => "key-unreachable",
    }
}

fn of_disk(provider: &ProviderFacts, now: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    let (record, ledger) = (&provider.record, &provider.ledger);
    if record.is_there && (!record.is_whole || record.created.is_none()) {
        found.push(Finding::new(
            "record-damaged",
            "the record in the state directory is not what was saved there",
            "nothing is lost: a restart replaces it. Look at the disk, and at who may write the state directory",
        ));
    }
    if let Some(why) = &ledger.unreadable {
        found.push(Finding::new(
            "ledger-damaged",
            why.clone(),
            "correct the permissions of the state directory; the plugin does not start without",
        ));
    }
    if !ledger.damaged.is_empty() {
        found.push(Finding::new(
            "ledger-damaged",
            format!("lines {:?} of the ledger of active key ids don't check", ledger.damaged),
            "look at the disk; the next start keeps the file as ledger.damaged and goes on with the rest, so see that no older \
             key file or configuration is put back",
        ));
    }
    if let Some(other) = &ledger.other_cluster {
        found.push(Finding::new(
            "other-cluster",
            format!(
                "this node wrote as cluster {other} before, and clusterId is another: all of that is refused"
            ),
            format!("correct clusterId, or list {other} under alsoAccept with an end date"),
        ));
    }
    let future = |at: Option<u64>| at.filter(|at| *at > now + CLOCKS_DIFFER);
    for (what, at) in [("the record on disk", future(record.created)), ("the ledger", future(ledger.last))] {
        found.extend(at.map(|at| {
            Finding::new(
                "clock",
                format!("{what} is of a time that is {} s from now: this clock is late, or was early", at - now),
                "set the clock (timedatectl; systemd-timesyncd or chrony): tokens and certificates fail by it",
            )
        }));
    }
    found
}

fn of_sealed(provider: &ProviderFacts) -> Vec<Finding> {
    let Some(sealed) = &provider.sealed else { return Vec::new() };
    let mut found = Vec::new();
    match &sealed.found {
        Err(why) => found.push(Finding::new(
            "sealed-cache",
            why.clone(),
            "until it opens, this host does not start while its root keys are out: see docs/how-to/start-in-an-outage.md",
        )),
        Ok(Some((_, damaged @ 1..))) => found.push(Finding::new(
            "sealed-cache",
            format!("{damaged} entries of the sealed cache are torn or changed"),
            "look at the disk; while the root keys answer, what is read is sealed again",
        )),
        Ok(_) => {}
    }
    if sealed.is_beside_its_secret {
        found.push(Finding::new(
            "sealed-beside",
            "what opens the sealed cache is on the same file system as the cache: who has the disk has both",
            "put it elsewhere: a systemd credential bound to the TPM (LoadCredentialEncrypted=), or a file on another medium",
        ));
    }
    found
}

/// What the running plugin says, unless it was seen from here too.
fn of_running(provider: &ProviderFacts, status: &ProviderStatus) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(reuse) = status.refused_reuse.as_ref().filter(|_| provider.refused.is_none()) {
        found.push(Finding::new(
            "reused",
            format!("key id {} should write, and another one was active since", reuse.key_id),
            "deliver the current key file or configuration; if it is meant, raise `epoch` on all nodes",
        ));
    }
    if let Some(why) = &status.not_writing_because {
        found.push(Finding::new(
            "not-writing",
            why.clone(),
            "do what it says; `casemate kms refresh --wait` looks again at once",
        ));
    }
    if !status.ledger.saved {
        found.push(Finding::new(
            "ledger-unsaved",
            "the ledger of active key ids could not be written",
            "make room in the state directory, or correct its permissions",
        ));
    }
    let problem = status.sealed_cache.as_ref().and_then(|sealed| sealed.problem.as_ref());
    let known = provider.sealed.as_ref().is_some_and(|sealed| sealed.found.is_err());
    found.extend(problem.filter(|_| !known).map(|why| {
        Finding::new("sealed-cache", why.clone(), "do what it says: see docs/how-to/start-in-an-outage.md")
    }));
    found
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::healthy;
