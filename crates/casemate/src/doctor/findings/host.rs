//! What is wrong with the host and the process, and with no provider alone.
use casemate_kms::admin::status::Document;

use super::Finding;
use crate::doctor::facts::{ClockFacts, Facts};

/// What was written this much from now was written by a clock that is wrong, or is looked at by one.
const WRITTEN_LATER: u64 = 300;
/// By how many seconds two clocks may differ.
const CLOCKS_DIFFER: u64 = 60;
/// Below this, local KEKs may not fit into memory that is not swapped.
const LOCKED_MEMORY: u64 = 1024 * 1024;
/// Below this, the plugin may be killed under load.
const MEMORY: u64 = 64 * 1024 * 1024;

pub(super) fn of_host(facts: &Facts) -> Vec<Finding> {
    let mut all = of_limits(facts);
    all.extend(of_clock(facts));
    all.extend(match &facts.status {
        None => Vec::new(),
        Some(Err(why)) => vec![Finding::new(
            "admin-silent",
            why.clone(),
            "start the plugin (systemctl start casemate-kms); its log says why it ended: journalctl -u casemate-kms",
        )],
        Some(Ok(document)) => of_document(document, &facts.sha256),
    });
    all.extend(facts.no_services.iter().map(|why| {
        Finding::new("pkcs11-not-asked", why.clone(), "name the program with --plugin, and run as root")
    }));
    all.extend(facts.refused_pins.iter().map(|note| {
        let note = note.display();
        Finding::new(
            "pin-refused",
            format!("{note} says that the token refused a PIN, or gave no clear answer to it; it is not tried again"),
            format!("write the right PIN into the PIN file; if it was right all along, delete {note}"),
        )
    }));
    all
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
    if let Some(allowed) = limits.memory.filter(|allowed| *allowed < MEMORY) {
        let mib = 1024 * 1024;
        found.push(Finding::new(
            "limit-cgroup",
            format!(
                "the control group of the plugin may use {} MiB of memory: under load it may be killed",
                allowed / mib
            ),
            format!(
                "raise MemoryMax= of the unit, or the memory limit of its pod, to {} MiB or more",
                MEMORY / mib
            ),
        ));
    }
    found
}

/// One finding, whoever differs: there is one clock to set.
fn of_clock(facts: &Facts) -> Option<Finding> {
    let mut seen = Vec::new();
    for ClockFacts { whose, ahead } in &facts.clocks {
        let by = ahead.unsigned_abs();
        if by > CLOCKS_DIFFER {
            let is = if *ahead > 0 { "behind" } else { "ahead of" };
            seen.push(format!("this clock is {by} s {is} that of {whose}"));
        }
    }
    let mut later = |what: &str, at: Option<u64>| {
        if let Some(at) = at.filter(|at| *at > facts.now + WRITTEN_LATER) {
            let by = at - facts.now;
            seen.push(format!("{what} is of a time {by} s from now: this clock is behind, or was ahead"));
        }
    };
    for provider in &facts.providers {
        later(&format!("the record of provider {}", provider.name), provider.record.created);
        later(&format!("the ledger of provider {}", provider.name), provider.ledger.last);
    }
    if let Some((path, at)) = &facts.newest {
        later(&path.display().to_string(), Some(*at));
    }
    let remedy = "see which clock is wrong (`timedatectl`, on this host and on the other), and set it by systemd-timesyncd or \
                  chrony: tokens and certificates fail by it";
    (!seen.is_empty()).then(|| Finding::new("clock", seen.join("; "), remedy))
}

/// What the running plugin says of itself.
fn of_document(document: &Document, sha256: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(held) = &document.configuration {
        found.extend(held.refused.iter().map(|why| {
            Finding::new(
                "configuration-refused",
                format!("{}: {why}", held.path),
                if held.needs_restart {
                    "if the change is meant, restart the plugin: nothing in the file is to be corrected. Until then it keeps what it \
                     has"
                } else {
                    "correct the file as it says; until then the running plugin keeps what it has"
                },
            )
        }));
        if held.refused.is_none() && held.sha256 != sha256 {
            found.push(Finding::new(
                "configuration-differs",
                format!("the running plugin has taken over another text, of {}, at {}", held.path, held.since),
                "wait ten seconds, in which it looks at its file; if it stays, see that --config names the file that it was \
                 started with, and restart it",
            ));
        }
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
