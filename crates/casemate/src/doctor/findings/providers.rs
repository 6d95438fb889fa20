//! What is wrong with one provider.
use casemate_keyservice::{Class, Failure, lists_absent};
use casemate_kms::admin::status::ProviderStatus;

use super::Finding;
use crate::doctor::facts::{Facts, KeyFacts, NoAnswer, ProviderFacts};
use crate::host::class_name;

pub(super) fn of_provider(provider: &ProviderFacts, facts: &Facts) -> Vec<Finding> {
    let document = facts.status.as_ref().and_then(|status| status.as_ref().ok());
    let status =
        document.and_then(|document| document.providers.iter().find(|one| one.name == provider.name));
    let mut found = of_socket(provider, status.is_some());
    found.extend(provider.keys.iter().flat_map(|key| of_key(key, facts)));
    found.extend(of_absent(provider, status));
    found.extend(of_signer(provider));
    if let Some((class, message, remedy)) = &provider.refused {
        let id = if class == "reuse" { "reused" } else { "selection" };
        found.push(Finding::new(id, message.clone(), remedy.clone()));
    }
    let held = document.and_then(|document| document.configuration.as_ref());
    if held.is_none_or(|held| held.refused.is_none() && held.sha256 == facts.sha256) {
        found.extend(of_rotation(provider, facts));
    }
    found.extend(of_disk(provider));
    found.extend(of_recipients(provider.recipients));
    found.extend(of_sealed(provider));
    found.extend(status.into_iter().flat_map(|status| of_running(provider, status, facts)));
    found
}

fn of_socket(provider: &ProviderFacts, tells_its_state: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    match &provider.answer {
        Err(NoAnswer { why, is_running }) => found.push(Finding::new(
            "not-served",
            why.clone(),
            if *is_running {
                "it runs: do what its answer says; its log says more: journalctl -u casemate-kms"
            } else if tells_its_state {
                "it runs, and nobody is let in here: correct endpoint, or the permissions of the socket's folder; its log says more: \
                 journalctl -u casemate-kms"
            } else {
                "start the plugin (systemctl start casemate-kms); its log says why it does not write: journalctl -u casemate-kms"
            },
        )),
        Ok(answer) => {
            found.extend(answer.problems.iter().map(|problem| {
                Finding::new(
                    "not-served",
                    format!("Status: {problem}"),
                    "see its log; upgrade it if it is of another version",
                )
            }));
            found.extend(answer.unready.iter().map(|healthz| {
                Finding::new(
                    "unready",
                    format!("Status says {healthz:?}, and names key id {}", answer.key_id),
                    "mend what is found of its root keys: outage.policy in the configuration has it so while one of them is out",
                )
            }));
        }
    }
    if let Some(Ok(access)) = &provider.socket {
        let (mode, path) = (access.mode & 0o777, provider.endpoint.trim_start_matches("unix://"));
        if mode & 0o007 & !provider.socket_mode != 0 {
            found.push(Finding::new(
                "socket-open",
                format!("{} has mode {mode:04o}: everybody on this host can decrypt", provider.endpoint),
                format!("chmod {:04o} {path}, and find out who changed it", provider.socket_mode),
            ));
        } else if mode != provider.socket_mode {
            found.push(Finding::new(
                "socket-mode",
                format!(
                    "{} has mode {mode:04o}, the configuration says {:04o}: kube-apiserver may not be let in",
                    provider.endpoint, provider.socket_mode
                ),
                format!(
                    "chmod {:04o} {path}; with a socket of systemd, correct SocketMode= of its unit",
                    provider.socket_mode
                ),
            ));
        }
    }
    if let Some((meant, folder, access)) = &provider.barred {
        let (folder, meant) = (folder.display(), [("user", meant.uid), ("group", meant.gid)]);
        let whom = meant.iter().filter(|(_, id)| *id != u32::MAX).map(|(kind, id)| format!("{kind} {id}"));
        let whom = whom.collect::<Vec<_>>().join(", ");
        found.push(Finding::new(
            "socket-folder",
            format!(
                "{} is made for {whom}, who may not enter {folder} (mode {:04o}, owner {})",
                provider.endpoint,
                access.mode & 0o777,
                access.uid
            ),
            format!("chmod or chgrp {folder} so that {whom} can enter it, and write nothing there"),
        ));
    }
    found
}

/// The worst that is wrong with a root key: one text each is enough.
fn of_key(key: &KeyFacts, facts: &Facts) -> Option<Finding> {
    let name = &key.name;
    let by = if facts.is_refused() && key.running.is_none() {
        "; by the file as it is now, which the running plugin has refused: it goes on, and a restart would meet this"
    } else {
        ""
    };
    let in_trouble = |failure: &Failure, doing: &str| {
        Finding::new(
            id_of(failure.class),
            format!("root key {name}, {doing}: {} (class {}){by}", failure.what, class_name(failure.class)),
            failure.remedy.clone(),
        )
    };
    match &key.observed {
        None => {
            // What the plugin says of it is all that there is.
            return key.running.as_ref().map(|(class, message)| {
                Finding::new(
                    id_of_name(class),
                    format!("root key {name}, as the running plugin sees it: {message} (class {class})"),
                    format!("do what it says; {} has it look again at once", facts.look_again()),
                )
            });
        }
        Some(Err(failure)) => {
            let doing = if key.writes {
                "asked which version writes"
            } else {
                "asked whether it is there to read with"
            };
            return Some(in_trouble(failure, doing));
        }
        Some(Ok(_)) => {}
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
            format!("root key {name} answers here, and the running plugin last met (class {class}): {message}"),
            format!(
                "{} has the plugin look again; if it stays, compare the user, the environment and the confinement of the plugin \
                 with those of this command",
                facts.look_again()
            ),
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

/// The same of a class as the plugin names it.
fn id_of_name(name: &str) -> &'static str {
    let classes = [
        Class::Throttled,
        Class::Credential,
        Class::Refused,
        Class::Undecided,
        Class::Corrupt,
        Class::NotOpened,
    ];
    id_of(classes.into_iter().find(|class| class_name(*class) == name).unwrap_or(Class::Unreachable))
}

fn of_signer(provider: &ProviderFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(signer) = &provider.signer
        && let Err(failure) = &signer.signs
    {
        found.push(Finding::new(
            "signer",
            format!(
                "signer {} does not sign: {} (class {})",
                signer.lineage,
                failure.what,
                class_name(failure.class)
            ),
            failure.remedy.clone(),
        ));
    }
    if provider.accepts_unproven {
        found.push(Finding::new(
            "unproven-origin",
            "acceptUnprovenOrigin is true, and has no end by itself: who writes etcd can plant what is read under RSA keys",
            "migrate storage, so that all is signed; then take acceptUnprovenOrigin out, on all nodes",
        ));
    }
    found
}

/// Whether Status names what is to write.
fn of_rotation(provider: &ProviderFacts, facts: &Facts) -> Option<Finding> {
    let (Ok(answer), Some(next)) = (&provider.answer, &provider.foreseen) else { return None };
    if !answer.problems.is_empty() || answer.key_id == next.key_id {
        return None;
    }
    let (now, key_id) = (&answer.key_id, &next.key_id);
    Some(match &next.when {
        Some(when) => Finding::new(
            "rotation-pending",
            format!("Status names key id {now}; {key_id} is to write {when}: {}", next.because.join("; ")),
            format!(
                "if it is meant, wait, or {} on every node; `casemate key plan-rotation` says what to see to first. If it is not, \
                 put configuration or root key back",
                facts.look_again()
            ),
        ),
        None => Finding::new(
            "rotation-pending",
            format!("Status names key id {now}, and by configuration and root keys it is {key_id}"),
            format!(
                "see that the plugin at this socket is the one of this configuration: `casemate kms status {}`",
                facts.admin.as_ref().map_or_else(
                    || format!("--socket {}", provider.endpoint),
                    |admin| format!("--admin {admin}"),
                )
            ),
        ),
    })
}

/// Keys that a token lacks: seen from here, or else by the plugin.
fn of_absent(provider: &ProviderFacts, status: Option<&ProviderStatus>) -> Vec<Finding> {
    let seen = provider.keys.iter().map(|key| (&key.name, &key.absent));
    let told = status.into_iter().flat_map(|status| &status.root_keys).map(|key| (&key.name, &key.absent));
    let mut found: Vec<(&String, &Vec<String>)> = Vec::new();
    for (name, absent) in seen.chain(told).filter(|(_, absent)| !absent.is_empty()) {
        if found.iter().all(|(known, _)| *known != name) {
            found.push((name, absent));
        }
    }
    let finding = |(name, absent): (&String, &Vec<String>)| {
        Finding::new(
            "key-absent",
            format!("root key {name}: {}", lists_absent(absent)),
            format!(
                "bring {} to this node's token by the way of its vendor (a backup, a clone of another node's), or correct `keys`",
                absent.join(", ")
            ),
        )
    };
    found.into_iter().map(finding).collect()
}

/// One is enough: its identity can be kept in two places.
fn of_recipients(count: Option<usize>) -> Option<Finding> {
    (count == Some(0)).then(|| {
        Finding::new(
            "no-recovery",
            "no recovery recipient is configured: with the root keys, all data is lost",
            "casemate recovery new, keep the identity in a safe, and list its recipient under recoveryRecipients",
        )
    })
}

fn of_disk(provider: &ProviderFacts) -> Vec<Finding> {
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
fn of_running(provider: &ProviderFacts, status: &ProviderStatus, facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(reuse) = status.refused_reuse.as_ref().filter(|_| provider.refused.is_none()) {
        found.push(Finding::new(
            "reused",
            format!("key id {} should write, and another one was active since", reuse.key_id),
            "deliver the current key file, configuration or pinned version; if it is meant, raise `epoch` on all nodes",
        ));
    }
    if let Some(why) = &status.not_writing_because {
        found.push(Finding::new(
            "not-writing",
            why.clone(),
            format!("do what it says; {} has it look again at once", facts.look_again()),
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
