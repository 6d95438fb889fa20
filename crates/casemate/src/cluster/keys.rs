//! Keys, by what EncryptionConfigurations say of them. Pure.
//!
//! Each gets a number when it is first seen: the oldest file first, and in it, what comes last. What is stored is told by the
//! name of a key, which is not the key: two of one name in one entry are told apart by nobody, so both count.
use std::collections::{BTreeMap, BTreeSet};

use casemate_encryption_config::{
    EncryptionConfiguration, Entry, GroupResource, Provider, ResourcePattern, Scheme, file_hash,
};
use casemate_rotation::{
    Age, File, Key, Materials, ProviderId, Record, Resources, ServerFile, ServiceName, Settings, Slot, Wanted,
};

/// What a key that is still to be made stands as. No real one is.
pub(crate) const NOT_MADE: [u8; 32] = [0; 32];

/// What is known of keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// What each is made of.
    pub(crate) materials: Materials,
    /// By what is in front of a stored value: resources, scheme, name.
    names: BTreeMap<(Resources, Scheme, String), BTreeSet<ProviderId>>,
}

impl Known {
    /// Takes up what a configuration has, and says what it comes to; or why it comes to nothing.
    pub(crate) fn take(&mut self, configuration: &EncryptionConfiguration) -> Result<File, String> {
        let highest = self.materials.0.keys().next_back().copied().unwrap_or_default();
        self.materials.adopt(configuration, highest);
        let file = self.materials.read(configuration).map_err(|error| error.to_string())?;
        for entry in &configuration.entries {
            let resources = Resources(entry.resources.iter().cloned().collect());
            for provider in entry.providers.iter().flat_map(each_key) {
                let (Some(scheme), Some(id)) = (provider.scheme(), self.key(entry, &provider)) else {
                    continue;
                };
                let named = (resources.clone(), scheme, name(&provider).to_owned());
                self.names.entry(named).or_default().insert(id);
            }
        }
        Ok(file)
    }

    fn key(&self, entry: &Entry, provider: &Provider) -> Option<ProviderId> {
        let alone = Entry { resources: entry.resources.clone(), providers: vec![provider.clone()] };
        let file = self.materials.read(&EncryptionConfiguration { entries: vec![alone] }).ok()?;
        file.0.values().next()?.writer().key()
    }

    /// The keys that go by this name in the entry of these resources.
    pub(crate) fn named(&self, resources: &Resources, scheme: Scheme, name: &str) -> BTreeSet<ProviderId> {
        self.names.get(&(resources.clone(), scheme, name.to_owned())).cloned().unwrap_or_default()
    }

    /// The plugins that go by this name in any entry.
    pub(crate) fn plugins(&self, name: &str) -> BTreeSet<ProviderId> {
        let its = self.names.iter().filter(|((_, scheme, its), _)| *scheme == Scheme::KmsV2 && its == name);
        its.flat_map(|(_, ids)| ids).copied().collect()
    }

    /// For decisions: what is there is intact.
    pub(crate) fn records(&self) -> BTreeMap<ProviderId, Record> {
        let record = |(id, material): (&ProviderId, &casemate_rotation::Material)| {
            let shape = material.shape();
            let key = Key {
                scheme: material.provider.scheme()?,
                service: service(&material.provider),
                settings: shape.map_or_else(Settings::default, |shape| shape.settings),
                reason: None,
                migrated: Age::Unknown,
            };
            Some((*id, Record::Intact(key)))
        };
        self.materials.0.iter().filter_map(record).collect()
    }

    /// What would have to be wanted for this to go on writing. KMS v1 can't be wanted.
    pub(crate) fn wanted(&self, slot: Slot) -> Option<Wanted> {
        let Slot::Key(id) = slot else { return Some(Wanted::Identity) };
        let provider = &self.materials.0.get(&id)?.provider;
        match provider {
            Provider::Identity => Some(Wanted::Identity),
            Provider::AesCbc(_) => Some(Wanted::AesCbc),
            Provider::AesGcm(_) => Some(Wanted::AesGcm),
            Provider::Secretbox(_) => Some(Wanted::Secretbox),
            Provider::KmsV1(_) => None,
            Provider::KmsV2(_) => Some(Wanted::KmsV2(service(provider)?)),
        }
    }

    /// Keys that files bring, and that they take away, for people; empty where there is none.
    pub(crate) fn brought_and_taken(&self, files: &[ServerFile]) -> (String, String) {
        let keys = |file: &File| -> BTreeSet<ProviderId> {
            file.0.values().flat_map(|layout| layout.keys().keys().copied()).collect()
        };
        let (mut more, mut less) = (BTreeSet::new(), BTreeSet::new());
        for file in files {
            let (new, old) = (keys(&file.file), file.replaces.as_ref().map(keys).unwrap_or_default());
            more.extend(new.difference(&old).copied());
            less.extend(old.difference(&new).copied());
        }
        let shown = |ids: BTreeSet<ProviderId>| {
            let shown: Vec<String> = ids.into_iter().map(|id| self.shown(Slot::Key(id))).collect();
            shown.join(", ")
        };
        (shown(more), shown(less))
    }

    /// For people: `key 2 (KMS v2 plugin casemate)`.
    pub(crate) fn shown(&self, slot: Slot) -> String {
        let Slot::Key(id) = slot else { return "plaintext".to_owned() };
        match self.materials.0.get(&id) {
            None => format!("key {id}"),
            Some(material) => {
                let name =
                    material.found.values().next().map_or_else(|| name(&material.provider), String::as_str);
                // A plugin that is in no file yet has a name in each entry to come.
                let at =
                    service(&material.provider).filter(|_| name.is_empty()).map(|at| format!("at {}", at.0));
                let name = at.as_deref().unwrap_or(name);
                let of = match &material.provider {
                    Provider::KmsV1(_) => "KMS v1 plugin ",
                    Provider::KmsV2(_) => "KMS v2 plugin ",
                    provider => &format!("{} ", provider.field()),
                };
                // Of a key that stands in the file, which one it is; never what it is.
                let made =
                    material.provider.local_keys().first().filter(|key| key.secret.expose() != NOT_MADE);
                let which = made.map(|key| {
                    let digest = file_hash(key.secret.expose());
                    format!(", {}", digest.get(7..15).unwrap_or_default())
                });
                format!("key {id} ({of}{name}{})", which.unwrap_or_default())
            }
        }
    }
}

/// The entry whose turn it is for a resource: what is narrower comes first in every file that API servers take.
pub(crate) fn entry_of<'a>(
    resource: &GroupResource,
    entries: impl IntoIterator<Item = &'a Resources>,
) -> Option<&'a Resources> {
    let width = |pattern: &ResourcePattern| match pattern {
        ResourcePattern::One(_) => 0,
        ResourcePattern::Group(_) => 1,
        ResourcePattern::All => 2,
    };
    let fits =
        |entry: &&'a Resources| entry.0.iter().filter(|pattern| pattern.matches(resource)).map(width).min();
    entries.into_iter().filter_map(|entry| Some((fits(&entry)?, entry))).min().map(|(_, entry)| entry)
}

/// Two that name the same root key, as far as a configuration tells: the same socket.
fn service(provider: &Provider) -> Option<ServiceName> {
    match provider {
        Provider::KmsV1(kms) => Some(ServiceName(kms.endpoint.as_str().to_owned())),
        Provider::KmsV2(kms) => Some(ServiceName(kms.endpoint.as_str().to_owned())),
        _ => None,
    }
}

fn name(provider: &Provider) -> &str {
    let local = provider.local_keys().first().map(|key| key.name.as_str());
    provider.kms_name().or(local).unwrap_or_default()
}

/// Providers with one key each.
fn each_key(provider: &Provider) -> Vec<Provider> {
    let keys = provider.local_keys();
    let make = match provider {
        Provider::AesCbc(_) => Provider::AesCbc,
        Provider::AesGcm(_) => Provider::AesGcm,
        Provider::Secretbox(_) => Provider::Secretbox,
        Provider::Identity | Provider::KmsV1(_) | Provider::KmsV2(_) => return vec![provider.clone()],
    };
    keys.iter().map(|key| make(vec![key.clone()])).collect()
}

#[cfg(test)]
mod tests;
