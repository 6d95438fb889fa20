//! The rules that kube-apiserver keeps, on values. What can't even be said in our types is refused by `read`.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    EncryptionConfiguration, Entry, Fault, KmsV1, KmsV2, LocalKey, Problem, Provider, Refused,
    ResourcePattern,
};

/// What of an API server's flags changes which configurations it accepts. The default is its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerFlags {
    /// `--encryption-provider-config-automatic-reload`: names of KMS v1 plugins have to be unique too.
    pub automatic_reload: bool,
    /// `--feature-gates=KMSv1=true`: plugins of KMS v1 are served. This was the default until 1.28.
    pub kms_v1: bool,
}

const AES_KEY_LENGTHS: &[usize] = &[16, 24, 32];
const SECRETBOX_KEY_LENGTHS: &[usize] = &[32];

impl EncryptionConfiguration {
    /// Whether an API server that runs with `flags` would accept it.
    pub fn check(&self, flags: ServerFlags) -> Result<(), Refused> {
        let mut checker =
            Checker { flags, problems: Vec::new(), wildcards: Vec::new(), kms_names: BTreeSet::new() };
        if self.entries.is_empty() {
            checker.found("resources", Fault::Missing { needed: "at least one item" });
        }
        for (place, entry) in self.entries.iter().enumerate() {
            checker.entry(entry, &format!("resources[{place}]"));
        }
        match checker.problems {
            problems if problems.is_empty() => Ok(()),
            problems => Err(Refused::new(problems)),
        }
    }
}

struct Checker<'a> {
    flags: ServerFlags,
    problems: Vec<Problem>,
    /// Those of earlier entries.
    wildcards: Vec<&'a ResourcePattern>,
    /// Of every plugin so far.
    kms_names: BTreeSet<&'a str>,
}

impl<'a> Checker<'a> {
    fn found(&mut self, field: impl Into<String>, fault: Fault) {
        self.problems.push(Problem::new(field, fault));
    }

    fn entry(&mut self, entry: &'a Entry, path: &str) {
        let resources = format!("{path}.resources");
        if entry.resources.is_empty() {
            self.found(resources.as_str(), Fault::Missing { needed: "at least one resource" });
        }
        for (place, pattern) in entry.resources.iter().enumerate() {
            self.pattern(pattern, &entry.resources[..place], &format!("{resources}[{place}]"));
        }
        self.wildcards.extend(entry.resources.iter().filter(|pattern| pattern.is_wildcard()));

        let providers = format!("{path}.providers");
        if entry.providers.is_empty() {
            self.found(providers.as_str(), Fault::Missing { needed: "at least one provider" });
        }
        for (place, provider) in entry.providers.iter().enumerate() {
            self.provider(provider, &format!("{providers}[{place}].{}", provider.field()));
        }
    }

    fn pattern(&mut self, pattern: &ResourcePattern, before: &[ResourcePattern], path: &str) {
        if let Err(fault) = pattern.check() {
            self.found(path, Fault::Pattern { found: pattern.to_string(), fault });
        }
        if let Some(wildcard) = self.wildcards.iter().find(|wildcard| wildcard.masks(pattern)) {
            let (masked, by) = (pattern.to_string(), wildcard.to_string());
            self.found(path, Fault::Masked { masked, by });
        }
        if before.contains(pattern) {
            self.found(path, Fault::DuplicateResource(pattern.to_string()));
        } else if let Some(other) = before.iter().find(|other| other.overlaps(pattern)) {
            self.found(path, Fault::Overlap(other.to_string(), pattern.to_string()));
        }
    }

    fn provider(&mut self, provider: &'a Provider, path: &str) {
        match provider {
            Provider::Identity => {}
            Provider::AesCbc(keys) | Provider::AesGcm(keys) => self.keys(keys, AES_KEY_LENGTHS, path),
            Provider::Secretbox(keys) => self.keys(keys, SECRETBOX_KEY_LENGTHS, path),
            Provider::KmsV1(KmsV1 { name, timeout, cache_size, .. }) => {
                if !self.flags.kms_v1 {
                    self.found(path, Fault::KmsV1Disabled);
                }
                if *cache_size == 0 {
                    self.found(format!("{path}.cachesize"), Fault::CacheSizeZero);
                }
                self.kms_name(name, self.flags.automatic_reload, path);
                self.timeout(*timeout, path);
            }
            Provider::KmsV2(KmsV2 { name, timeout, .. }) => {
                if name.contains(':') {
                    self.found(format!("{path}.name"), Fault::KmsNameColon { found: name.clone() });
                }
                self.kms_name(name, true, path);
                self.timeout(*timeout, path);
            }
        }
    }

    fn keys(&mut self, keys: &[LocalKey], accepted: &'static [usize], path: &str) {
        if keys.is_empty() {
            self.found(format!("{path}.keys"), Fault::Missing { needed: "at least one key" });
        }
        for (place, key) in keys.iter().enumerate() {
            if key.name.is_empty() {
                self.found(format!("{path}.keys[{place}].name"), Fault::Missing { needed: "a name" });
            }
            let found = key.secret.expose().len();
            if !accepted.contains(&found) {
                self.found(format!("{path}.keys[{place}].secret"), Fault::SecretLength { found, accepted });
            }
        }
    }

    fn kms_name(&mut self, name: &'a str, unique: bool, path: &str) {
        if name.is_empty() {
            self.found(format!("{path}.name"), Fault::Missing { needed: "a name" });
        } else if !self.kms_names.insert(name) && unique {
            self.found(format!("{path}.name"), Fault::DuplicateKmsName { found: name.to_owned() });
        }
    }

    fn timeout(&mut self, timeout: Duration, path: &str) {
        // Go counts nanoseconds in 64 bits with a sign.
        if timeout.is_zero() || i64::try_from(timeout.as_nanos()).is_err() {
            self.found(format!("{path}.timeout"), Fault::Timeout { found: format!("{timeout:?}") });
        }
    }
}
