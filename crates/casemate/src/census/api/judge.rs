//! What speaks against it, and what stays open. Pure.
use std::collections::{BTreeMap, BTreeSet};

use super::answer::{ResourceAnswer, ServerAnswer, Verdict};
use super::bounds::{Bounds, IDENTITY, UNCOVERED};
use super::limit::{Limit, Statement};
use super::metrics::mark_newest;
use casemate_encryption_config::file_hash;

/// What follows from what was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) findings: Vec<Statement>,
    pub(super) open: Vec<Statement>,
}

/// What a server's configuration says nothing of.
pub(super) const OF_CONFIGURATIONS: [Limit; 2] = [Limit::OtherServers, Limit::Storage];
/// What key ids that a server used say nothing of.
pub(super) const OF_KEY_IDS: [Limit; 4] =
    [Limit::OtherServers, Limit::BeforeStart, Limit::Storage, Limit::Decryption];

/// What all that a server shows says nothing of.
pub(super) fn of_server(told: bool) -> Vec<Limit> {
    if told { [Limit::BeforeStart, Limit::Storage, Limit::Decryption].into() } else { Vec::new() }
}

/// What bounds on the objects that were read say nothing of.
pub(super) fn of_objects(objects: u64, read: u64) -> Vec<Limit> {
    let unread = (read < objects).then_some(Limit::Unread);
    let others = [Limit::Since, Limit::Past, Limit::Decryption, Limit::Cache];
    unread.into_iter().chain(others).collect()
}

/// What to compare with.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    /// SHA-256 of the EncryptionConfiguration.
    pub(super) configuration: Option<&'a str>,
    /// Key ids that plugins should give now: `ID`, or `PROVIDER=ID`.
    pub(super) key_ids: &'a [String],
}

/// Looks at all of it. Marks what was compared in `servers`.
pub(super) fn judge(servers: &mut [ServerAnswer], resources: &[ResourceAnswer], given: &Given<'_>) -> Judged {
    let mut judged = Judged::default();
    for server in servers.iter() {
        if let Some(error) = &server.error {
            judged.open.push(Statement::new(format!("{} {error}", server.server), &[]));
        }
    }
    same_process(servers, &mut judged);
    configurations(servers, given, &mut judged);
    key_ids(servers, given, &mut judged);
    key_ids_differ(servers, &mut judged);
    let current: BTreeSet<(String, String)> = servers.iter().flat_map(current_key_ids).collect();
    for resource in resources {
        objects(resource, &current, &mut judged);
    }
    judged
}

/// The verdict on all of it: `sampled` says whether objects were to be read.
pub(super) fn verdict(
    judged: &Judged,
    servers: &[ServerAnswer],
    resources: &[ResourceAnswer],
    sampled: bool,
) -> Verdict {
    let nothing_read = sampled
        && resources
            .iter()
            .all(|resource| resource.read == 0 && resource.error.is_none() && resource.objects > 0);
    let nobody = servers.iter().all(|server| server.instance.is_none());
    let failed = sampled && resources.iter().all(|resource| resource.error.is_some() && resource.read == 0);
    match judged {
        Judged { findings, .. } if !findings.is_empty() => Verdict::Finding,
        _ if nobody || nothing_read || failed => Verdict::Unknown,
        Judged { open, .. } if !open.is_empty() => Verdict::Partly,
        _ => Verdict::NothingAgainst,
    }
}

/// Two addresses, one counter: what looks like several servers that agree may be one.
fn same_process(servers: &[ServerAnswer], judged: &mut Judged) {
    for (place, one) in servers.iter().enumerate() {
        let known = |server: &&ServerAnswer| server.instance.as_ref().is_some_and(|it| it.started.is_some());
        let same = |other: &&ServerAnswer| other.instance == one.instance;
        if let Some(first) = servers[..place].iter().filter(known).find(same) {
            let text = format!(
                "{} is the same process as {}: the others were not asked; name each API server by its own address",
                one.server, first.server
            );
            judged.open.push(Statement::new(text, &[Limit::OtherServers]));
        }
    }
}

fn configurations(servers: &mut [ServerAnswer], given: &Given<'_>, judged: &mut Judged) {
    const BY_NOTHING: &str = "does not tell which EncryptionConfiguration it runs with: before 1.32, or without \
                              --encryption-provider-config-automatic-reload=true, it shows no hash";
    let mut by_hash: Vec<(String, String)> = Vec::new();
    let mut silent = Vec::new();
    for server in servers.iter_mut().filter(|server| server.instance.is_some()) {
        let name = &server.server;
        by_hash.extend(server.configurations.iter().map(|hash| (hash.clone(), name.clone())));
        if server.configurations.is_empty() {
            silent.push(Statement::new(format!("{name} {BY_NOTHING}"), &OF_CONFIGURATIONS));
            continue;
        }
        let Some(wanted) = given.configuration else { continue };
        let matches = server.configurations.iter().all(|hash| hash == wanted);
        server.configuration_matches = Some(matches);
        if !matches {
            let text = format!(
                "{name} runs with another EncryptionConfiguration than the file that was given ({} instead of {wanted}): compare the file on its host; a changed comment is another file",
                server.configurations.join(", ")
            );
            judged.findings.push(Statement::new(text, &OF_CONFIGURATIONS));
        }
    }
    // Who compares nothing misses nothing.
    if given.configuration.is_some() || !by_hash.is_empty() {
        judged.open.extend(silent);
    }
    let different: BTreeSet<&String> = by_hash.iter().map(|(hash, _)| hash).collect();
    if given.configuration.is_none() && different.len() > 1 {
        let text = format!(
            "the API servers run with {} EncryptionConfigurations ({}): what one writes another may not read; bring one file to all",
            different.len(),
            each(&by_hash)
        );
        judged.findings.push(Statement::new(text, &OF_CONFIGURATIONS));
    }
}

/// As in `https://a has 1, https://b has 2`.
fn each(found: &[(String, String)]) -> String {
    found.iter().map(|(what, server)| format!("{server} has {what}")).collect::<Vec<_>>().join(", ")
}

/// A provider has one key id on all servers, but for the minutes of a rotation.
fn key_ids_differ(servers: &[ServerAnswer], judged: &mut Judged) {
    let mut by_provider: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for server in servers {
        for (provider, hash) in current_key_ids(server) {
            by_provider.entry(provider).or_default().push((hash, server.server.clone()));
        }
    }
    for (provider, found) in by_provider {
        let different: BTreeSet<&String> = found.iter().map(|(hash, _)| hash).collect();
        if different.len() > 1 {
            let text = format!(
                "{provider} gives the API servers {} key ids ({}): in a rotation that ends within minutes; if it stays, the plugin of one has not switched, or is another one",
                different.len(),
                each(&found)
            );
            judged.findings.push(Statement::new(text, &OF_KEY_IDS));
        }
    }
}

fn key_ids(servers: &mut [ServerAnswer], given: &Given<'_>, judged: &mut Judged) {
    for server in servers.iter_mut().filter(|server| server.instance.is_some()) {
        let providers: BTreeSet<String> = server.key_ids.iter().map(|used| used.provider.clone()).collect();
        if providers.is_empty() && !given.key_ids.is_empty() {
            let text = format!("{} has used no key id of KMS v2 since it started", server.server);
            judged.open.push(Statement::new(text, &OF_KEY_IDS));
        }
        for provider in &providers {
            let wanted = wanted(provider, &providers, given.key_ids);
            for used in server.key_ids.iter_mut().filter(|used| used.provider == *provider) {
                used.key_id =
                    wanted.iter().find(|id| file_hash(id.as_bytes()) == used.hash).map(|id| (*id).to_owned());
            }
            if wanted.is_empty() {
                continue;
            }
            let current = server
                .key_ids
                .iter()
                .filter(|used| used.provider == *provider && used.last_status.is_some())
                .max_by(|one, other| {
                    one.last_status.unwrap_or_default().total_cmp(&other.last_status.unwrap_or_default())
                });
            match current {
                None => {
                    let text = format!("{}: {provider} has given no key id yet", server.server);
                    judged.open.push(Statement::new(text, &OF_KEY_IDS));
                }
                Some(used) if used.key_id.is_none() => {
                    let text = format!(
                        "{}: the key id that {provider} gives is none of those that were given (its hash is {}): it has not switched, or another plugin answers",
                        server.server, used.hash
                    );
                    judged.findings.push(Statement::new(text, &OF_KEY_IDS));
                }
                Some(_) => {}
            }
        }
    }
}

/// Those that are for this provider by name, else those that are for none.
fn wanted<'a>(provider: &str, providers: &BTreeSet<String>, given: &'a [String]) -> Vec<&'a str> {
    let named = |id: &'a String| id.split_once('=').filter(|(name, _)| providers.contains(*name));
    let its: Vec<&str> =
        given.iter().filter_map(named).filter(|(name, _)| *name == provider).map(|(_, id)| id).collect();
    if !its.is_empty() {
        return its;
    }
    given.iter().filter(|id| named(id).is_none()).map(String::as_str).collect()
}

/// By provider, the one that it gave last.
pub(super) fn current_key_ids(server: &ServerAnswer) -> Vec<(String, String)> {
    let mut uses = server.key_ids.clone();
    mark_newest(&mut uses);
    uses.into_iter().filter(|used| used.is_newest).map(|used| (used.provider, used.hash)).collect()
}

fn objects(resource: &ResourceAnswer, current: &BTreeSet<(String, String)>, judged: &mut Judged) {
    let name = &resource.resource;
    if let Some(error) = &resource.error {
        judged.open.push(Statement::new(format!("{name}: {} {error}", resource.server), &[]));
    }
    if resource.untold > 0 {
        let text = format!("{name}: how {} of the objects that were read are stored", resource.untold);
        judged.open.push(Statement::new(text, &resource.limits));
    }
    if let [first, ..] = resource.unreadable.as_slice() {
        let text = format!(
            "{name}: {} can't read {} of the objects, such as {first}: what it logs of them says why",
            resource.server,
            resource.unreadable.len()
        );
        judged.findings.push(Statement::new(text, &[Limit::OtherServers, Limit::Unread]));
    }
    let mut told = |bounds: Bounds, what: &str, remedy: &str| match bounds {
        Bounds { at_least: 1.., .. } => {
            let text = format!(
                "{name}: at least {} of the {} objects that were read {what}: {remedy}",
                bounds.at_least, resource.read
            );
            judged.findings.push(Statement::new(text, &resource.limits));
        }
        Bounds { at_most: 1.., .. } => {
            let text = format!(
                "{name}: whether objects {what}, at most {} of the {} that were read: ask again when others read less",
                bounds.at_most, resource.read
            );
            judged.open.push(Statement::new(text, &resource.limits));
        }
        Bounds { .. } => {}
    };
    let rewrite = "write each object again, unchanged";
    for class in &resource.stored {
        let plain = class.name == IDENTITY || class.name == UNCOVERED;
        match (plain, resource.expected.as_deref()) {
            (true, Some("")) => {}
            (true, _) if class.name == UNCOVERED => {
                told(class.bounds, "are in plaintext", "the server encrypts nothing of this resource");
            }
            (true, _) => told(class.bounds, "are in plaintext", rewrite),
            (false, Some(expected)) if !expected.starts_with(&class.name) => {
                told(
                    class.bounds,
                    &format!("are under {}, which is not what a write would store", class.name),
                    rewrite,
                );
            }
            (false, _) => {}
        }
    }
    for class in &resource.local_keys {
        if resource
            .expected
            .as_deref()
            .is_some_and(|expected| !expected.ends_with(&format!(":{}", class.name)))
        {
            let key = class.name.trim_end_matches(':');
            told(
                class.bounds,
                &format!("are under the local key {key}, which is not the one that writes"),
                rewrite,
            );
        }
    }
    for class in &resource.key_ids {
        let known = current.iter().any(|(provider, _)| *provider == class.provider);
        if known && !current.contains(&(class.provider.clone(), class.hash.clone())) {
            let what =
                format!("are under the key id {} of {}, which it gives no more", class.hash, class.provider);
            told(class.bounds, &what, rewrite);
        }
    }
}

#[cfg(test)]
mod tests;
