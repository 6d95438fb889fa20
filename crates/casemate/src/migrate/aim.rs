//! What objects are to become: from files, flags, and what API servers say that they write with.
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use casemate_encryption_config::{EncryptionConfiguration, Provider, ResourcePattern, file_hash};
use casemate_migrate::proof::Aim;

use crate::census::api::{reach::Reach, writes};
use crate::census::{Configuration, read_configuration};
use crate::output::{Exit, Failure, Output};

pub(super) const NEEDS_CONFIG: &str =
    "what is stale in etcd depends on the EncryptionConfiguration: give it with --encryption-config";

/// Flags.
#[derive(clap::Args)]
pub(super) struct Wanted {
    /// The EncryptionConfiguration that all API servers run with: all resources that it names are migrated. Its keys are not
    /// used
    #[arg(long, value_name = "FILE", required_unless_present = "resources")]
    encryption_config: Option<PathBuf>,

    /// These resources only, written as in an EncryptionConfiguration: secrets, deployments.apps, *.apps or *.*; may be given
    /// several times, or with commas
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    resources: Vec<ResourcePattern>,

    /// The key id that KMS v2 plugins give now; may be given several times, and as PROVIDER=ID for one of them [default: what
    /// the API servers say in /metrics]
    #[arg(long, value_name = "ID")]
    key_id: Vec<String>,
}

/// What objects are to become.
pub(super) struct Goal {
    pub(super) patterns: Vec<ResourcePattern>,
    pub(super) config: Option<(Configuration, EncryptionConfiguration)>,
    given: Vec<String>,
    /// By provider, SHA-256 of what its API servers write with.
    pub(super) key_ids: BTreeMap<String, BTreeSet<String>>,
}

impl Wanted {
    /// With the files that are named.
    pub(super) fn read(&self) -> Result<Goal, Failure> {
        let config = self.encryption_config.as_deref().map(read_configuration).transpose()?;
        let mut patterns = self.resources.clone();
        if let (true, Some((_, config))) = (patterns.is_empty(), &config) {
            patterns.extend(config.entries.iter().flat_map(|entry| entry.resources.iter().cloned()));
        }
        patterns.sort();
        patterns.dedup();
        Ok(Goal { patterns, config, given: self.key_id.clone(), key_ids: BTreeMap::new() })
    }
}

impl Goal {
    /// Asks the API servers what they write with. One that runs with another configuration ends it: what it writes is not
    /// what is wanted.
    pub(super) async fn ask(mut self, reach: &Reach, output: &Output) -> Result<Self, Failure> {
        let writers = self.writers();
        self.key_ids.clear();
        for given in &self.given {
            let named = given.split_once('=').filter(|(provider, _)| writers.contains(*provider));
            let (providers, id) = match named {
                Some((provider, id)) => (BTreeSet::from([provider.to_owned()]), id),
                None => (writers.clone(), given.as_str()),
            };
            for provider in providers {
                self.key_ids.entry(provider).or_default().insert(file_hash(id.as_bytes()));
            }
        }
        let Some((Configuration { file, hash }, _)) = &self.config else { return Ok(self) };
        for server in writes(reach).await? {
            if !server.configurations.is_empty() && !server.configurations.contains(hash) {
                return Err(Failure::new(
                    Exit::Unknown,
                    &format_args!(
                        "{} runs with another EncryptionConfiguration than {file} ({} instead of {hash}): bring that file to all API servers, \
                         wait until they have loaded it, then migrate",
                        server.server,
                        server.configurations.join(", ")
                    ),
                ));
            }
            match server.key_ids {
                Ok(ids) if self.given.is_empty() => {
                    for (provider, id) in ids.into_iter().filter(|(provider, _)| writers.contains(provider)) {
                        self.key_ids.entry(provider).or_default().insert(id);
                    }
                }
                Ok(_) => {}
                Err(error) => output.note(format_args!("{} {error}", server.server)),
            }
        }
        Ok(self)
    }

    /// Names of the KMS v2 plugins that write something.
    fn writers(&self) -> BTreeSet<String> {
        let entries = self.config.iter().flat_map(|(_, config)| &config.entries);
        let first = entries.filter_map(|entry| entry.providers.first());
        first
            .filter_map(|provider| match provider {
                Provider::KmsV2(kms) => Some(kms.name.clone()),
                _ => None,
            })
            .collect()
    }

    /// `None` without an EncryptionConfiguration.
    pub(super) fn aim(&self) -> Option<Aim<'_>> {
        let (_, config) = self.config.as_ref()?;
        Some(Aim { config, key_ids: &self.key_ids, patterns: &self.patterns })
    }

    /// What a cursor belongs to.
    pub(super) fn name(&self, by_etcd: bool) -> String {
        let config = self.config.as_ref().map(|(configuration, _)| configuration.hash.as_str());
        let patterns: Vec<String> = self.patterns.iter().map(ToString::to_string).collect();
        let text = serde_json::json!([config, patterns, self.key_ids, by_etcd]).to_string();
        file_hash(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(patterns: &[&str], key_ids: &[(&str, &str)]) -> Goal {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let mut goal = Goal { patterns, config: None, given: Vec::new(), key_ids: BTreeMap::new() };
        for (provider, id) in key_ids {
            goal.key_ids.entry((*provider).to_owned()).or_default().insert((*id).to_owned());
        }
        goal
    }

    #[test]
    fn a_cursor_belongs_to_resources_and_key_ids() {
        let name = goal(&["secrets"], &[("kms", "1")]).name(false);
        assert_eq!(goal(&["secrets"], &[("kms", "1")]).name(false), name);
        for other in [
            goal(&["secrets", "configmaps"], &[("kms", "1")]).name(false),
            goal(&["secrets"], &[("kms", "2")]).name(false),
            goal(&["secrets"], &[]).name(false),
            goal(&["secrets"], &[("kms", "1")]).name(true),
        ] {
            assert_ne!(other, name);
        }
    }
}
