//! What stands in etcd, against what an EncryptionConfiguration says.
use casemate_encryption_config::{
    Coverage, EncryptionConfiguration, GroupResource, Provider, ResourcePattern, Scheme, Transformer,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::classify::Name;
use crate::survey::{Encryption, Group, Resource, Survey, Tally};

/// A group, and how it stands to the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Judged {
    /// What the values have in common.
    #[serde(flatten)]
    pub group: Group,
    /// How they stand to the configuration.
    pub state: State,
    /// What a write would make of them now.
    pub expected: String,
    /// Values that are what their objects are now.
    pub live: Tally,
    /// Values that were overwritten or deleted, and not compacted away.
    pub past: Tally,
}

/// How a value stands to a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In the clear, and should be encrypted.
    Unencrypted,
    /// No API server with this configuration can read it.
    Unreadable,
    /// Readable, and the next write stores it in another way.
    Stale,
    /// It can't be told.
    Undecided,
    /// As a write would store it now.
    Current,
}

/// Judges each group of `survey` by `config`. Whether a KMS v2 plugin has another key id by now is not in a configuration.
pub fn against(config: &EncryptionConfiguration, survey: &Survey) -> Vec<Judged> {
    let judged = survey.groups.iter().map(|entry| {
        let coverage = coverage_of(config, &entry.group.resource);
        let is_plain = entry.group.encryption.is_plain();
        let (state, expected) = match &coverage {
            _ if entry.group.resource.is_bookkeeping() => {
                let state = if is_plain { State::Current } else { State::Unreadable };
                (state, "plaintext: API servers never encrypt it".to_owned())
            }
            None => (State::Undecided, "the key in etcd does not tell the API group".to_owned()),
            Some(coverage) => (judge(coverage, &entry.group.encryption), writes(&coverage.writer())),
        };
        let (group, live, past) = (entry.group.clone(), entry.live.clone(), entry.past.clone());
        Judged { group, state, expected, live, past }
    });
    judged.collect()
}

/// What falls on a resource; `None` where that depends on its group, which is not known.
pub(super) fn coverage_of<'a>(
    config: &'a EncryptionConfiguration,
    resource: &Resource,
) -> Option<Coverage<'a>> {
    if let Some(resource) = resource.group_resource() {
        return Some(config.coverage(&resource));
    }
    let depends = config.entries.iter().flat_map(|entry| &entry.resources).any(|pattern| match pattern {
        ResourcePattern::One(one) => one.resource == resource.name,
        ResourcePattern::Group(_) => true,
        ResourcePattern::All => resource.name.is_empty(),
    });
    // No group has this name, so that `*.*` covers it, or nothing.
    let any = GroupResource { group: String::from(":"), resource: resource.name.clone() };
    (!depends).then(|| config.coverage(&any))
}

impl Judged {
    /// Whether something is to be done about it.
    pub fn is_finding(&self) -> bool {
        matches!(self.state, State::Unencrypted | State::Unreadable | State::Stale)
    }
}

fn judge(coverage: &Coverage<'_>, encryption: &Encryption) -> State {
    if encryption.is_plain() && coverage.encrypts() {
        return State::Unencrypted;
    }
    let first = coverage.transformers().iter().enumerate().find_map(|(place, transformer)| {
        Some(match reads(transformer, encryption)? {
            Reads::Key(0) if place == 0 => State::Current,
            Reads::Key(_) => State::Stale,
            Reads::Perhaps => State::Undecided,
        })
    });
    first.filter(|_| !encryption.is_broken()).unwrap_or(State::Unreadable)
}

/// How a provider reads a value.
pub(super) enum Reads {
    /// With its key at this place; plugins and plaintext have one.
    Key(usize),
    /// With a key whose name has a colon: the value tells the part before it alone.
    Perhaps,
}

/// How a provider reads such a value; `None` if it does not.
pub(super) fn reads(transformer: &Transformer<'_>, encryption: &Encryption) -> Option<Reads> {
    let provider = transformer.provider;
    let (schemes, found): (&[Scheme], &str) = match encryption {
        _ if encryption.is_plain() => return (*provider == Provider::Identity).then_some(Reads::Key(0)),
        Encryption::Local { key, .. } => (&[Scheme::AesCbc, Scheme::AesGcm, Scheme::Secretbox], key),
        Encryption::KmsV1 { provider } => (&[Scheme::KmsV1], provider),
        Encryption::KmsV2 { provider, .. } => (&[Scheme::KmsV2], provider),
        _ => return None,
    };
    let is_scheme = provider.scheme().is_some_and(|scheme| schemes.contains(&scheme));
    let is_cipher = match encryption {
        Encryption::Local { cipher, .. } => provider.field() == cipher,
        _ => true,
    };
    if !is_scheme || !is_cipher {
        return None;
    }
    let local = provider.local_keys().iter().map(|key| key.name.as_str());
    let names: Vec<&str> = local.chain(provider.kms_name()).collect();
    let is = |name: &str| Name::new(name.as_bytes()).to_string() == found;
    let begins = |name: &&str| name.split_once(':').is_some_and(|(begin, _)| is(begin));
    match names.iter().position(|name| is(name)) {
        _ if names.iter().any(begins) => Some(Reads::Perhaps),
        place => place.map(Reads::Key),
    }
}

/// As the census names it.
fn writes(transformer: &Transformer<'_>) -> String {
    let provider = transformer.provider;
    let name = || provider.local_keys().first().map_or("", |key| &key.name);
    match provider {
        Provider::Identity => "plaintext".to_owned(),
        Provider::KmsV1(kms) => format!("kms:v1:{}", kms.name),
        Provider::KmsV2(kms) => format!("kms:v2:{}", kms.name),
        local => format!("{}:{}", local.field(), name()),
    }
}
