//! Between [`File`]s and the configurations that API servers read.
//!
//! A local key is named by its number, and a plugin `N_resource` by the first resource of its entry, since API servers
//! refuse two plugins of one name: as OpenShift's operators do, but that a resource is named with its group, as in
//! `7_routes.route.openshift.io`; else two resources of one name would come to one. What was found under another name keeps
//! it, for it stands in every object that it wrote.

use std::collections::{BTreeMap, BTreeSet};

use casemate_encryption_config::{
    EncryptionConfiguration, Endpoint, Entry, KmsV1, KmsV2, LocalKey, Provider, Refused, ResourcePattern,
    ServerFlags,
};
use casemate_keys::names::sha256;

use crate::{File, Layout, ProviderId, Resources, Settings, Shape, Slot};

/// What each key's provider is made of: what its record holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Materials(pub BTreeMap<ProviderId, Material>);

/// What a key's provider is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// The provider; of a local one the first key alone counts. Its name is that of entries which are not in `found`, if it
    /// is a local one, and is not looked at else.
    pub provider: Provider,
    /// The names under which it was found in entries that somebody else wrote.
    pub found: BTreeMap<Resources, String>,
}

/// Why a configuration can't be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotWritable {
    /// There is nothing that key could be made of.
    #[error("key {id} of {resources} can't be written, because nothing of it is left: restore its record")]
    NoMaterial {
        /// Which key.
        id: ProviderId,
        /// In which entry.
        resources: Resources,
    },
    /// API servers would refuse it.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Why a configuration is not one of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReadable {
    /// Something that is none of the materials: [`Materials::adopt`] takes it up.
    #[error(
        "{resources} has a provider ({field}) that is no key that is known: take it up, or write the file anew"
    )]
    Unknown {
        /// In which entry.
        resources: Resources,
        /// Of which kind.
        field: &'static str,
    },
    /// One resource in two entries.
    #[error("{0} stands in two entries: join them")]
    Twice(ResourcePattern),
}

/// The entries for resources that are wanted, given those that there are.
///
/// An entry stays whole if anything of it is wanted, or falls under what is. A wildcard stays for as long as something
/// under it is wanted, and nothing under it gets an entry of its own: that would take objects from a plugin that wrote
/// them. More may be encrypted so than was asked for, never less.
pub fn entries(wanted: &BTreeSet<ResourcePattern>, found: &BTreeSet<Resources>) -> BTreeSet<Resources> {
    let is_wanted = |pattern: &ResourcePattern| {
        wanted.iter().any(|wanted| covers(wanted, pattern) || covers(pattern, wanted))
    };
    let mut entries: BTreeSet<Resources> =
        found.iter().filter(|resources| resources.0.iter().any(is_wanted)).cloned().collect();
    for pattern in wanted {
        let mut others = entries
            .iter()
            .flat_map(|resources| &resources.0)
            .chain(wanted.iter().filter(|other| *other != pattern));
        if !others.any(|other| covers(other, pattern)) {
            entries.insert(pattern.clone().into());
        }
    }
    entries
}

/// Whether whatever falls under `narrow` falls under `wide`, too.
fn covers(wide: &ResourcePattern, narrow: &ResourcePattern) -> bool {
    match narrow {
        ResourcePattern::One(resource) => wide.matches(resource),
        ResourcePattern::Group(_) | ResourcePattern::All => wide == narrow || *wide == ResourcePattern::All,
    }
}

impl Material {
    /// What a file says of it.
    pub fn shape(&self) -> Option<Shape> {
        let settings = match &self.provider {
            Provider::KmsV1(KmsV1 { endpoint, timeout, .. })
            | Provider::KmsV2(KmsV2 { endpoint, timeout, .. }) => {
                let digest = sha256(format!("{timeout:?} {}", endpoint.as_str()).as_bytes());
                digest[..8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
            }
            _ => 0,
        };
        Some(Shape { scheme: self.provider.scheme()?, settings: Settings(settings) })
    }

    /// The provider of one entry.
    fn named(&self, id: ProviderId, resources: &Resources) -> Provider {
        let found = self.found.get(resources).cloned();
        let plugin = || match resources.0.first() {
            Some(first) => format!("{id}_{first}"),
            None => id.to_string(),
        };
        let local = |keys: &[LocalKey]| {
            let first = keys.first().into_iter();
            first
                .map(|key| LocalKey {
                    name: found.clone().unwrap_or_else(|| key.name.clone()),
                    ..key.clone()
                })
                .collect()
        };
        match &self.provider {
            Provider::Identity => Provider::Identity,
            Provider::AesCbc(keys) => Provider::AesCbc(local(keys)),
            Provider::AesGcm(keys) => Provider::AesGcm(local(keys)),
            Provider::Secretbox(keys) => Provider::Secretbox(local(keys)),
            Provider::KmsV1(kms) => {
                Provider::KmsV1(KmsV1 { name: found.unwrap_or_else(plugin), ..kms.clone() })
            }
            Provider::KmsV2(kms) => {
                Provider::KmsV2(KmsV2 { name: found.unwrap_or_else(plugin), ..kms.clone() })
            }
        }
    }
}

impl Materials {
    /// The configuration that a file comes to. The same file and materials make the same bytes.
    pub fn write(&self, file: &File) -> Result<EncryptionConfiguration, NotWritable> {
        let mut entries = Vec::new();
        for (resources, layout) in &file.0 {
            let provider = |slot: Slot| match slot {
                Slot::Plain => Ok(Provider::Identity),
                Slot::Key(id) => {
                    let material = self.0.get(&id);
                    let named = material.map(|material| material.named(id, resources));
                    named.ok_or_else(|| NotWritable::NoMaterial { id, resources: resources.clone() })
                }
            };
            let providers = layout.order().into_iter().map(provider).collect::<Result<_, _>>()?;
            entries.push(Entry { resources: resources.0.iter().cloned().collect(), providers });
        }
        // What is wider comes later, or it would mask what is narrower.
        entries.sort_by_key(|entry| entry.resources.iter().map(width).max());
        let configuration = EncryptionConfiguration { entries };
        // Without an entry it is no file that an API server takes, and none is needed.
        if !file.0.is_empty() {
            configuration.check(ServerFlags { automatic_reload: true, kms_v1: true })?;
        }
        Ok(configuration)
    }

    /// The file that a configuration comes to.
    pub fn read(&self, configuration: &EncryptionConfiguration) -> Result<File, NotReadable> {
        let mut file = File::default();
        for entry in &configuration.entries {
            let resources = Resources(entry.resources.iter().cloned().collect());
            let twice =
                resources.0.iter().find(|pattern| file.0.keys().any(|other| other.0.contains(pattern)));
            if let Some(twice) = twice {
                return Err(NotReadable::Twice(twice.clone()));
            }
            let mut slots = Vec::new();
            for provider in entry.providers.iter().flat_map(one_by_one) {
                let field = provider.field();
                let slot = self.slot(&provider, &resources);
                slots.push(slot.ok_or_else(|| NotReadable::Unknown { resources: resources.clone(), field })?);
            }
            let writer = slots.first().map_or(Slot::Plain, |(slot, _)| *slot);
            let keys = slots.iter().filter_map(|(slot, shape)| Some((slot.key()?, (*shape)?))).collect();
            let reads_plain = slots.iter().any(|(slot, _)| *slot == Slot::Plain);
            let made = Layout::new(writer, keys).unwrap_or(Layout::PLAIN);
            let layout = if reads_plain { made } else { made.clone().without_plain().unwrap_or(made) };
            file.0.insert(resources, layout);
        }
        Ok(file)
    }

    /// Takes up what a configuration has and is not known, under the numbers after `highest`: what comes first in an entry
    /// is the newest. Says which those are.
    pub fn adopt(&mut self, configuration: &EncryptionConfiguration, highest: ProviderId) -> Vec<ProviderId> {
        let (mut highest, mut adopted) = (highest, Vec::new());
        for entry in &configuration.entries {
            let resources = Resources(entry.resources.iter().cloned().collect());
            let providers: Vec<Provider> = entry.providers.iter().flat_map(one_by_one).collect();
            for provider in providers.into_iter().rev().filter(|provider| *provider != Provider::Identity) {
                if self.slot(&provider, &resources).is_some() {
                    continue;
                }
                let known = self.0.values_mut().find(|material| is_same(&material.provider, &provider));
                if let Some(material) = known {
                    material.found.insert(resources.clone(), name(&provider));
                } else if let Some(id) = highest.next() {
                    let found = [(resources.clone(), name(&provider))].into();
                    self.0.insert(id, Material { provider, found });
                    (highest, adopted) = (id, [adopted, vec![id]].concat());
                }
            }
        }
        adopted
    }

    /// Which key a provider is, and how it looks there: another way to the same plugin is another setting of it.
    fn slot(&self, provider: &Provider, resources: &Resources) -> Option<(Slot, Option<Shape>)> {
        if *provider == Provider::Identity {
            return Some((Slot::Plain, None));
        }
        let is_it = |(id, material): &(&ProviderId, &Material)| {
            let named = material.named(**id, resources);
            name(&named) == name(provider)
                && (is_same(&named, provider)
                    || endpoint(provider).is_some() && named.scheme() == provider.scheme())
        };
        let (id, _) = self.0.iter().find(is_it)?;
        let there = Material { provider: provider.clone(), found: BTreeMap::new() };
        Some((Slot::Key(*id), there.shape()))
    }
}

/// Providers with one key each: they do the same.
fn one_by_one(provider: &Provider) -> Vec<Provider> {
    let each = |keys: &[LocalKey], make: fn(Vec<LocalKey>) -> Provider| {
        keys.iter().map(|key| make(vec![key.clone()])).collect()
    };
    match provider {
        Provider::AesCbc(keys) => each(keys, Provider::AesCbc),
        Provider::AesGcm(keys) => each(keys, Provider::AesGcm),
        Provider::Secretbox(keys) => each(keys, Provider::Secretbox),
        Provider::Identity | Provider::KmsV1(_) | Provider::KmsV2(_) => vec![provider.clone()],
    }
}

/// Whether two are one key: the same bytes under the same name, or the same socket.
fn is_same(one: &Provider, other: &Provider) -> bool {
    let is_plugin = endpoint(one).is_some() && endpoint(one) == endpoint(other);
    one.scheme() == other.scheme()
        && (is_plugin || one.local_keys() == other.local_keys() && endpoint(one).is_none())
}

fn endpoint(provider: &Provider) -> Option<&Endpoint> {
    match provider {
        Provider::KmsV1(kms) => Some(&kms.endpoint),
        Provider::KmsV2(kms) => Some(&kms.endpoint),
        _ => None,
    }
}

fn name(provider: &Provider) -> String {
    let local = provider.local_keys().first().map(|key| key.name.as_str());
    provider.kms_name().or(local).unwrap_or_default().to_owned()
}

fn width(pattern: &ResourcePattern) -> u8 {
    match pattern {
        ResourcePattern::One(_) => 0,
        ResourcePattern::Group(_) => 1,
        ResourcePattern::All => 2,
    }
}

#[cfg(test)]
mod tests;
