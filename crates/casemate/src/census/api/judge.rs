//! What speaks against it, and what stays open. Pure.
use std::collections::BTreeSet;

use super::answer::{ResourceAnswer, ServerAnswer, Verdict};
use super::bounds::{Bounds, IDENTITY, UNCOVERED};
use casemate_encryption_config::file_hash;

/// What follows from what was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) findings: Vec<String>,
    pub(super) open: Vec<String>,
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
            judged.open.push(format!("{} {error}", server.server));
        }
    }
    configurations(servers, given, &mut judged);
    key_ids(servers, given, &mut judged);
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

fn configurations(servers: &mut [ServerAnswer], given: &Given<'_>, judged: &mut Judged) {
    let mut all = BTreeSet::new();
    for server in servers.iter_mut().filter(|server| server.instance.is_some()) {
        all.extend(server.configurations.iter().cloned());
        let Some(wanted) = given.configuration else { continue };
        let name = &server.server;
        if server.configurations.is_empty() {
            judged.open.push(format!(
                "{name} does not tell which EncryptionConfiguration it runs with: before 1.32, or without --encryption-provider-config, it shows no hash"
            ));
            continue;
        }
        let matches = server.configurations.iter().all(|hash| hash == wanted);
        server.configuration_matches = Some(matches);
        if !matches {
            judged.findings.push(format!(
                "{name} runs with another EncryptionConfiguration than the file that was given ({} instead of {wanted}): compare the file on its host; a changed comment is another file",
                server.configurations.join(", ")
            ));
        }
    }
    if given.configuration.is_none() && all.len() > 1 {
        judged.findings.push(format!(
            "the API servers run with {} EncryptionConfigurations: what one writes another may not read; bring one file to all",
            all.len()
        ));
    }
}

fn key_ids(servers: &mut [ServerAnswer], given: &Given<'_>, judged: &mut Judged) {
    for server in servers.iter_mut().filter(|server| server.instance.is_some()) {
        let providers: BTreeSet<String> = server.key_ids.iter().map(|used| used.provider.clone()).collect();
        if providers.is_empty() && !given.key_ids.is_empty() {
            judged.open.push(format!("{} has used no key id of KMS v2 since it started", server.server));
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
                None => judged.open.push(format!("{}: {provider} has given no key id yet", server.server)),
                Some(used) if used.key_id.is_none() => judged.findings.push(format!(
                    "{}: the key id that {provider} gives is none of those that were given (its hash is {}): it has not switched, or another plugin answers",
                    server.server, used.hash
                )),
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
    let newest = |provider: &str| {
        server
            .key_ids
            .iter()
            .filter(|used| used.provider == provider)
            .filter_map(|used| used.last_status)
            .fold(0.0, f64::max)
    };
    let current =
        |used: &&super::metrics::KeyIdUse| used.last_status.is_some_and(|at| at >= newest(&used.provider));
    server.key_ids.iter().filter(current).map(|used| (used.provider.clone(), used.hash.clone())).collect()
}

fn objects(resource: &ResourceAnswer, current: &BTreeSet<(String, String)>, judged: &mut Judged) {
    let name = &resource.resource;
    if let Some(error) = &resource.error {
        judged.open.push(format!("{name}: {} {error}", resource.server));
    }
    if resource.untold > 0 {
        judged.open.push(format!("{name}: how {} of the objects that were read are stored", resource.untold));
    }
    if let [first, ..] = resource.unreadable.as_slice() {
        judged.findings.push(format!(
            "{name}: the server has no answer for {} of the objects, such as {first}: what it logs of them says why",
            resource.unreadable.len()
        ));
    }
    let mut told = |bounds: Bounds, what: &str, remedy: &str| match bounds {
        Bounds { at_least: 1.., .. } => {
            judged.findings.push(format!(
                "{name}: at least {} of {} objects {what}: {remedy}",
                bounds.at_least, resource.read
            ));
        }
        Bounds { at_most: 1.., .. } => {
            judged.open.push(format!(
                "{name}: whether objects {what}, at most {} of {}",
                bounds.at_most, resource.read
            ));
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
