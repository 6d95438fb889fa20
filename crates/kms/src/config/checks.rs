//! What no field of a configuration can tell alone.

use std::fmt;
use std::path::Path;

use super::root_keys::Identity;
use super::{
    Config, ConfigError, Endpoint, Id, Mode, Parsed, PeersConfig, Place, ReadKeyConfig, RemovedKeyConfig,
    WriteKeyConfig, root_keys,
};

impl Config {
    /// What no field can tell alone.
    pub(super) fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let names = self.providers.iter().map(|provider| (&*provider.name, provider.name.line()));
        at_most_once(path, "name", names.clone())?;
        let removed = self.removed_providers.iter().map(|name| (&**name, name.line()));
        both_there_and_removed(path, "removedProviders", names, removed)?;
        let mut endpoints: Vec<_> = self.providers.iter().map(|provider| &provider.endpoint).collect();
        endpoints.extend(self.admin.as_ref().map(|admin| &admin.endpoint));
        // The second one in the file is the doubled one.
        endpoints.sort_by_key(|endpoint| endpoint.line());
        at_most_once(path, "endpoint", endpoints.iter().map(|endpoint| (&***endpoint, endpoint.line())))?;
        if let Some(admin) = &self.admin {
            let owned = admin.socket_owner.or(admin.socket_group);
            check_socket(path, &admin.endpoint, &admin.socket_mode, owned, admin.allowed_peers.as_ref())?;
        }
        for provider in &self.providers {
            let owned = provider.socket_owner.or(provider.socket_group);
            let peers = provider.allowed_peers.as_ref();
            check_socket(path, &provider.endpoint, &provider.socket_mode, owned, peers)?;
            provider.outage.check(path)?;
            if let Some(sealed_cache) = &provider.sealed_cache {
                sealed_cache.check(path, provider.name.line())?;
            }
            let (write, read) = (provider.root_keys.iter(), provider.read_keys.iter());
            let names = write.clone().map(|key| &key.name).chain(read.clone().map(|key| &key.name));
            at_most_once(path, "name", names.map(|name| (&**name, name.line())))?;
            root_keys::check(path, write.clone(), read.clone())?;
            let places = write.map(WriteKeyConfig::place).chain(read.map(ReadKeyConfig::place));
            let keys: Vec<_> = places.flat_map(Place::identities).collect();
            for field in Identity::FIELDS {
                let named = keys.iter().filter(|one| one.field == field);
                at_most_once(path, field, named.map(|one| (&one.key, one.line)))?;
            }
            provider.check_origin(path)?;
            let signers = provider.signer_names();
            at_most_once(path, "signers", signers.iter().map(|(lineage, line)| (lineage, *line)))?;
            let names = provider.signers.iter().map(|one| (&*one.name, one.name.line()));
            at_most_once(path, "name", names)?;
            let removed: Vec<_> =
                provider.removed_read_keys.iter().flat_map(RemovedKeyConfig::identities).collect();
            let (there, removed) = (keys.iter().map(|one| (&one.key, one.line)), removed.iter());
            both_there_and_removed(path, "removedReadKeys", there, removed.map(|one| (&one.key, one.line)))?;
            let recipients = &provider.recovery_recipients;
            at_most_once(path, "name", recipients.iter().map(|one| (&*one.name, one.name.line())))?;
            at_most_once(path, "age", recipients.iter().map(|one| (&*one.age, one.age.line())))?;
            let others = provider.also_accept.iter().map(|other| &other.cluster_id);
            let clusters = std::iter::once(&self.cluster_id).chain(others);
            at_most_once(path, "clusterId", clusters.map(|cluster| (&**cluster, cluster.line())))?;
        }
        Ok(())
    }

    /// What this build can't do, although the file may say it.
    pub(super) fn check_build(&self, path: &Path, fips: bool) -> Result<(), ConfigError> {
        let mut recipients = self.providers.iter().flat_map(|provider| &provider.recovery_recipients);
        match recipients.next().filter(|_| fips) {
            Some(recipient) => Err(ConfigError::Unfit {
                path: path.to_owned(),
                line: recipient.age.line(),
                field: "age",
                message: "recovery recipients of kind age are not available in a FIPS build; leave out \
                          recoveryRecipients, or use a build without the feature fips"
                    .to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// What of a socket does not go together.
fn check_socket(
    path: &Path,
    endpoint: &Parsed<Endpoint>,
    mode: &Parsed<Mode>,
    owned: Option<Id>,
    peers: Option<&PeersConfig>,
) -> Result<(), ConfigError> {
    let unfit = |line, field, message: &str| {
        Err(ConfigError::Unfit { path: path.to_owned(), line, field, message: message.to_owned() })
    };
    let written = mode.line() != 0;
    match (endpoint.abstract_name(), peers) {
        (_, Some(peers)) if peers.uids.is_empty() && peers.gids.is_empty() => unfit(
            endpoint.line(),
            "allowedPeers",
            "names nobody, so nobody could connect; list uids or gids, or leave it out",
        ),
        (Some(_), None) => unfit(
            endpoint.line(),
            "endpoint",
            "an abstract socket has no mode: everybody on the host could connect; list in allowedPeers who may",
        ),
        (Some(_), _) if written || owned.is_some() => unfit(
            if written { mode.line() } else { endpoint.line() },
            if written { "socketMode" } else { "endpoint" },
            "an abstract socket is no file: leave out socketMode, socketOwner and socketGroup; allowedPeers decides",
        ),
        _ => Ok(()),
    }
}

/// What is said to be gone must not be there.
fn both_there_and_removed<'a, T: PartialEq + fmt::Display + 'a>(
    path: &Path,
    field: &'static str,
    there: impl Iterator<Item = (&'a T, u64)> + Clone,
    removed: impl Iterator<Item = (&'a T, u64)>,
) -> Result<(), ConfigError> {
    for (name, line) in removed {
        if let Some((_, at)) = there.clone().find(|(other, _)| *other == name) {
            let message = format!("{name} is in use in line {at}; take it out there, or here");
            return Err(ConfigError::Unfit { path: path.to_owned(), line, field, message });
        }
    }
    Ok(())
}

/// A list may name each thing once.
fn at_most_once<'a, T: PartialEq + fmt::Display + 'a>(
    path: &Path,
    field: &'static str,
    named: impl Iterator<Item = (&'a T, u64)>,
) -> Result<(), ConfigError> {
    let mut earlier: Vec<(&T, u64)> = Vec::new();
    for (name, line) in named {
        if let Some((_, first)) = earlier.iter().find(|(other, _)| *other == name) {
            let (found, first) = (name.to_string(), *first);
            return Err(ConfigError::Twice { path: path.to_owned(), line, field, found, first });
        }
        earlier.push((name, line));
    }
    Ok(())
}
