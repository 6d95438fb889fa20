//! What an API server does with the objects of one resource.

use crate::{
    EncryptionConfiguration, GroupResource, LocalKey, Provider, ResourcePattern,
    stored::{ENCRYPTED, Scheme},
};

/// What an API server does with the objects of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage<'a> {
    /// What decided: the resource itself if it is named, else the wildcard of its group, else `*.*`. None of them:
    /// API servers encrypt nothing of their own accord.
    pub rule: Option<&'a ResourcePattern>,
    transformers: Vec<Transformer<'a>>,
}

/// A provider in its place for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer<'a> {
    /// Where it stands; nowhere if no entry covers the resource.
    pub place: Option<Place>,
    /// How it stores.
    pub provider: &'a Provider,
}

/// A provider's place in the file: `resources[entry].providers[provider]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// From 0.
    pub entry: usize,
    /// From 0, in its entry.
    pub provider: usize,
}

/// Who may read a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader<'a> {
    /// Through which provider.
    pub transformer: Transformer<'a>,
    /// With which of its local keys.
    pub key: Option<&'a LocalKey>,
    /// How many bytes of the value come before what is decrypted.
    pub prefix_len: usize,
    /// Whether the next write of the object, even an unchanged one, stores it anew. A plugin of KMS v2 may say so of a
    /// value that is not stale by its place: when its key id has changed.
    pub stale: bool,
}

static IN_PLAINTEXT: Provider = Provider::Identity;

impl EncryptionConfiguration {
    /// What falls on objects of `resource`.
    ///
    /// A resource that several entries name has the providers of all of them, in the order of the file.
    pub fn coverage(&self, resource: &GroupResource) -> Coverage<'_> {
        let resource = resource.stored();
        let patterns = || self.entries.iter().flat_map(|entry| &entry.resources);
        // From the narrowest on: which entry comes first does not matter.
        let rule = [
            ResourcePattern::One(resource.clone()),
            ResourcePattern::Group(resource.group.clone()),
            ResourcePattern::All,
        ]
        .iter()
        .find_map(|wanted| patterns().find(|pattern| *pattern == wanted));
        let Some(rule) = rule else {
            let transformer = Transformer { place: None, provider: &IN_PLAINTEXT };
            return Coverage { rule: None, transformers: vec![transformer] };
        };

        let mut transformers = Vec::new();
        for (entry, found) in
            self.entries.iter().enumerate().filter(|(_, entry)| entry.resources.contains(rule))
        {
            transformers.extend(found.providers.iter().enumerate().map(|(place, provider)| Transformer {
                place: Some(Place { entry, provider: place }),
                provider,
            }));
        }
        Coverage { rule: Some(rule), transformers }
    }
}

impl<'a> Coverage<'a> {
    /// In the order in which they are tried; the first one writes. Empty only where an entry without providers, which
    /// no API server accepts, decides.
    pub fn transformers(&self) -> &[Transformer<'a>] {
        &self.transformers
    }

    /// Who writes.
    pub fn writer(&self) -> Transformer<'a> {
        let unprotected = Transformer { place: None, provider: &IN_PLAINTEXT };
        self.transformers.first().copied().unwrap_or(unprotected)
    }

    /// Whether what is written now is encrypted.
    pub fn encrypts(&self) -> bool {
        *self.writer().provider != Provider::Identity
    }

    /// Who is asked to read `value`, in this order. An API server takes the first that succeeds: two keys may have one
    /// name, and a name with a colon may begin with another's.
    pub fn readers(&self, value: &[u8]) -> Vec<Reader<'a>> {
        let mut readers = Vec::new();
        for (place, transformer) in self.transformers.iter().copied().enumerate() {
            let names = transformer.names();
            let Some(scheme) = transformer.provider.scheme() else {
                if !value.starts_with(ENCRYPTED.as_bytes()) {
                    readers.push(Reader { transformer, key: None, prefix_len: 0, stale: place > 0 });
                }
                continue;
            };
            for (key_place, (name, key)) in names.into_iter().enumerate() {
                let prefix = prefix(scheme, name);
                if value.starts_with(prefix.as_bytes()) {
                    let stale = place > 0 || key_place > 0;
                    readers.push(Reader { transformer, key, prefix_len: prefix.len(), stale });
                }
            }
        }
        readers
    }
}

impl<'a> Transformer<'a> {
    /// With what everything begins that it writes: nothing for plaintext.
    pub fn write_prefix(&self) -> String {
        match (self.provider.scheme(), self.names().first()) {
            (Some(scheme), Some((name, _))) => prefix(scheme, name),
            _ => String::new(),
        }
    }

    /// The names that may follow its scheme, each with its local key.
    fn names(&self) -> Vec<(&'a str, Option<&'a LocalKey>)> {
        match self.provider.kms_name() {
            Some(name) => vec![(name, None)],
            None => self.provider.local_keys().iter().map(|key| (key.name.as_str(), Some(key))).collect(),
        }
    }
}

impl Provider {
    /// How what it writes is encrypted; plaintext is not.
    pub fn scheme(&self) -> Option<Scheme> {
        match self {
            Provider::Identity => None,
            Provider::AesCbc(_) => Some(Scheme::AesCbc),
            Provider::AesGcm(_) => Some(Scheme::AesGcm),
            Provider::Secretbox(_) => Some(Scheme::Secretbox),
            Provider::KmsV1(_) => Some(Scheme::KmsV1),
            Provider::KmsV2(_) => Some(Scheme::KmsV2),
        }
    }
}

fn prefix(scheme: Scheme, name: &str) -> String {
    format!("{}{name}:", scheme.prefix())
}

#[cfg(test)]
mod tests;
