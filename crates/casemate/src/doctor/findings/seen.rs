//! What was looked at where nothing was found, in a few words: `None` where there is nothing of the kind.
use casemate_kms::admin::status::{Document, ProviderStatus};
use jiff::Timestamp;

use crate::doctor::facts::{Access, Facts, FileFacts, KeyFacts, ProviderFacts, Role};

/// More than these are counted.
const LISTED: usize = 4;

const NAMED: &[Role] = &[Role::Configuration, Role::Public, Role::Secret];

pub(super) fn configuration(facts: &Facts) -> Option<String> {
    let file = facts.files.iter().find(|file| file.role == Role::Configuration)?;
    Some(format!("{} (SHA-256 {}…)", file.path.display(), facts.sha256.get(..12).unwrap_or(&facts.sha256)))
}

pub(super) fn taken_over(facts: &Facts) -> Option<String> {
    let held = document(facts)?.configuration.as_ref()?;
    Some(format!("the plugin has {}, since {}", held.path, held.since))
}

pub(super) fn served_providers(facts: &Facts) -> Option<String> {
    Some(format!("{} of {} are served", document(facts)?.providers.len(), facts.providers.len()))
}

pub(super) fn named_files(facts: &Facts) -> Option<String> {
    files(facts, NAMED, |file, _| file.path.display().to_string())
}

pub(super) fn readable_files(facts: &Facts) -> Option<String> {
    Some(format!("by user {}: {}", facts.user.uid, named_files(facts)?))
}

pub(super) fn trusted_files(facts: &Facts) -> Option<String> {
    files(facts, &[Role::Configuration, Role::Public], with_mode)
}

pub(super) fn owners(facts: &Facts) -> Option<String> {
    files(facts, NAMED, |file, access| format!("{} of user {}", file.path.display(), access.uid))
}

pub(super) fn folders(facts: &Facts) -> Option<String> {
    let above: usize = facts.files.iter().map(|file| file.folders.len()).sum();
    let own = files(facts, &[Role::Sockets, Role::Log], with_mode);
    let above = (above > 0).then(|| "those above each file".to_owned());
    listed(own.into_iter().chain(above))
}

pub(super) fn secrets(facts: &Facts) -> Option<String> {
    files(facts, &[Role::Secret], with_mode)
}

pub(super) fn state(facts: &Facts) -> Option<String> {
    files(facts, &[Role::State, Role::Kept], with_mode)
}

pub(super) fn socket_folders(facts: &Facts) -> Option<String> {
    files(facts, &[Role::Sockets], with_mode)
}

pub(super) fn log_folder(facts: &Facts) -> Option<String> {
    files(facts, &[Role::Log], with_mode)
}

pub(super) fn status(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| {
        let answer = provider.answer.as_ref().ok()?;
        Some(format!("Status at {} names key id {}", provider.endpoint, answer.key_id))
    })
}

pub(super) fn writing(facts: &Facts) -> Option<String> {
    of_providers(facts, |_, status| {
        status?.next_write.as_ref().map(|next| format!("writes under {}", next.key_id))
    })
}

pub(super) fn sockets(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| {
        let access = provider.socket.as_ref()?.as_ref().ok()?;
        Some(format!("{} has mode {:04o}", provider.endpoint, access.mode & 0o777))
    })
}

pub(super) fn admin(facts: &Facts) -> Option<String> {
    document(facts)?;
    Some(format!("{} answers", facts.admin.as_ref()?))
}

pub(super) fn open_files(facts: &Facts) -> Option<String> {
    let limits = facts.limits?;
    Some(format!("{} allowed, {} needed", number(limits.open_files), limits.needed_files))
}

pub(super) fn locked_memory(facts: &Facts) -> Option<String> {
    Some(format!("{} bytes may be locked", number(facts.limits?.locked_memory)))
}

pub(super) fn memory(facts: &Facts) -> Option<String> {
    Some(format!("{} bytes may be used", number(facts.limits?.memory)))
}

pub(super) fn clocks(facts: &Facts) -> Option<String> {
    let others = facts.clocks.iter().map(|clock| format!("that of {}", clock.whose));
    let newest = facts.newest.iter().map(|(path, at)| format!("{} of {}", path.display(), time(*at)));
    listed(others.chain(newest))
}

pub(super) fn keys_shown(facts: &Facts) -> Option<String> {
    of_keys(facts, |key| Some(format!("{} shows {}", key.name, key.observed.as_ref()?.as_ref().ok()?)))
}

pub(super) fn keys_tried(facts: &Facts) -> Option<String> {
    let tried = |key: &KeyFacts| matches!((&key.wrapped, &key.opened), (Some(Ok(())), Some(Ok(()))));
    of_keys(facts, |key| tried(key).then(|| format!("{} wraps, and opens what it wrapped", key.name)))
}

pub(super) fn keys_true(facts: &Facts) -> Option<String> {
    let is_true = |key: &KeyFacts| key.is_true == Some(true);
    of_keys(facts, |key| is_true(key).then(|| format!("{} gives back what it was given", key.name)))
}

pub(super) fn keys_of_record(facts: &Facts) -> Option<String> {
    let opens = |key: &KeyFacts| matches!(key.opens_record, Some(Ok(())));
    of_keys(facts, |key| opens(key).then(|| format!("{} opens the record on disk", key.name)))
}

pub(super) fn keys_listed(facts: &Facts) -> Option<String> {
    of_keys(facts, |key| key.observed.is_some().then(|| format!("{} lacks none", key.name)))
}

pub(super) fn keys_of_plugin(facts: &Facts) -> Option<String> {
    of_providers(facts, |_, status| {
        listed(status?.root_keys.iter().map(|key| format!("{} is {} to the plugin", key.name, key.state)))
    })
}

pub(super) fn keys_asked(facts: &Facts) -> Option<String> {
    of_keys(facts, |key| key.observed.is_some().then(|| format!("{} was asked", key.name)))
}

pub(super) fn pins(_: &Facts) -> Option<String> {
    Some("no note of a PIN that was refused".into())
}

pub(super) fn signers(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| Some(format!("{} signs", provider.signer.as_ref()?.lineage)))
}

pub(super) fn origin(facts: &Facts) -> Option<String> {
    of_providers(facts, |_, _| Some("acceptUnprovenOrigin is false".into()))
}

pub(super) fn foreseen(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| Some(format!("{} is to write", provider.foreseen.as_ref()?.key_id)))
}

pub(super) fn records(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| Some(format!("made {}", time(provider.record.created?))))
}

pub(super) fn ledgers(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| Some(format!("last entry of {}", time(provider.ledger.last?))))
}

pub(super) fn saved_ledgers(facts: &Facts) -> Option<String> {
    of_providers(facts, |_, status| Some(format!("{} entries", status?.ledger.entries)))
}

pub(super) fn recipients(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| Some(format!("{} recipients", provider.recipients?)))
}

pub(super) fn sealed(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| match provider.sealed.as_ref()?.found.as_ref().ok()? {
        Some((entries, _)) => Some(format!("opens, with {entries} local KEKs")),
        None => Some("nothing is sealed yet".into()),
    })
}

pub(super) fn sealed_apart(facts: &Facts) -> Option<String> {
    of_providers(facts, |provider, _| {
        provider.sealed.as_ref().map(|_| "what opens it is on another file system".into())
    })
}

fn document(facts: &Facts) -> Option<&Document> {
    facts.status.as_ref()?.as_ref().ok()
}

/// One of several is named.
fn of_providers(
    facts: &Facts,
    seen: impl Fn(&ProviderFacts, Option<&ProviderStatus>) -> Option<String>,
) -> Option<String> {
    let all = document(facts);
    listed(facts.providers.iter().filter_map(|provider| {
        let status = all.and_then(|all| all.providers.iter().find(|one| one.name == provider.name));
        let text = seen(provider, status)?;
        Some(if facts.providers.len() > 1 { format!("{}: {text}", provider.name) } else { text })
    }))
}

fn of_keys(facts: &Facts, seen: impl Fn(&KeyFacts) -> Option<String>) -> Option<String> {
    of_providers(facts, |provider, _| listed(provider.keys.iter().filter_map(&seen)))
}

fn files(facts: &Facts, roles: &[Role], shown: impl Fn(&FileFacts, &Access) -> String) -> Option<String> {
    let of_roles = facts.files.iter().filter(|file| roles.contains(&file.role));
    listed(of_roles.filter_map(|file| Some(shown(file, file.found.as_ref().ok()?))))
}

fn with_mode(file: &FileFacts, access: &Access) -> String {
    format!("{} {:04o}", file.path.display(), access.mode & 0o7777)
}

/// `None` if there is none.
fn listed(items: impl Iterator<Item = String>) -> Option<String> {
    let items: Vec<String> = items.collect();
    let more = items.len().saturating_sub(LISTED);
    let shown = items.get(..LISTED).unwrap_or(&items).join(", ");
    match (items.is_empty(), more) {
        (true, _) => None,
        (_, 0) => Some(shown),
        (_, more) => Some(format!("{shown} and {more} more")),
    }
}

fn number(limit: Option<u64>) -> String {
    limit.map_or_else(|| "any number of".into(), |limit| limit.to_string())
}

fn time(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.map_or_else(|| seconds.to_string(), |at| at.to_string())
}
