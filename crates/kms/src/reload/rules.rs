//! Which configuration a running process takes over from the one that holds.
//!
//! A restart takes any; a running process only what leaves readable all that was readable, or says what is gone.

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{KeyId, Lineage, LineagePrefix, ReadRule};

use crate::config::{Config, Endpoint, ProviderConfig, RemovedKeyConfig, SealedCacheConfig};

/// A configuration that is sound and is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTakenOver {
    /// Something that holds from start to end.
    #[error("{field} changed from {before} to {after}, which needs a restart")]
    NeedsRestart {
        /// Which field.
        field: &'static str,
        /// What holds.
        before: String,
        /// What the file says.
        after: String,
    },
    /// The mark of the file's end is missing.
    #[error(
        "the last line is not `...` any more, as if the file were half written; it is taken over when it ends with `...` \
         again, and without by a restart"
    )]
    EndMissing,
    /// Something that protects is missing, and nothing shows that this is the whole file.
    #[error(
        "{field} is missing, or part of it, as if the file were half written; if it is to go, end the file with the line \
         `...`, which half a file does not have, or restart"
    )]
    ProtectionMissing {
        /// Which field.
        field: String,
    },
    /// A provider is missing.
    #[error(
        "provider {name} is missing; if nothing needs it any more, list its name under removedProviders (half a file looks \
         like this too)"
    )]
    ProviderMissing {
        /// Which one.
        name: String,
    },
    /// A root key that is read with is missing.
    #[error(
        "provider {provider}: root key {name} ({id}) is missing, and what is wrapped under it alone could not be read \
         any more; {}{}",
        stays(id),
        needed(seen)
    )]
    ReaderMissing {
        /// Whose.
        provider: String,
        /// What people call it.
        name: String,
        /// Its id.
        id: LineagePrefix,
        /// Key ids of records that the process has opened and could open no more.
        seen: Vec<KeyId>,
    },
    /// A root key that is read with would be read otherwise.
    #[error(
        "provider {provider}: root key {name} ({id}) is read with {before}, the file says otherwise, and what is wrapped \
         under it could not be read any more; keep that, and wrap in another way with another key"
    )]
    OtherMechanism {
        /// Whose.
        provider: String,
        /// What people call it.
        name: String,
        /// Its id.
        id: LineagePrefix,
        /// How it wraps.
        before: String,
    },
    /// Another cluster's data is still to be read.
    #[error(
        "provider {provider}: alsoAccept lacks cluster {cluster} or ends sooner than it did ({until}); wait until then, or \
         restart"
    )]
    ClusterMissing {
        /// Whose.
        provider: String,
        /// Which cluster.
        cluster: String,
        /// Until when it holds.
        until: String,
    },
    /// A signature that was believed would not be any more.
    #[error(
        "provider {provider}: signer {signer} is missing, or has another publicKey, and what it signed could not be read \
         with RSA keys any more; keep it under signers, or restart once nothing needs it"
    )]
    SignerMissing {
        /// Whose.
        provider: String,
        /// Which one.
        signer: Lineage,
    },
    /// A socket that is to be open before the one in its place is closed.
    #[error(
        "{who}: endpoint {endpoint} is that of {holder} until now; move {holder} away first, and {who} there in a second \
         change, or restart"
    )]
    EndpointTaken {
        /// Whose it is to be.
        who: String,
        /// Which one.
        endpoint: String,
        /// Whose it is.
        holder: String,
    },
}

/// What to do with a root key that is not in the file any more.
fn stays(id: &LineagePrefix) -> String {
    let place = if id.to_string().starts_with("pkcs11:") {
        "`keys` of its token, or under readKeys"
    } else {
        "readKeys"
    };
    format!(
        "if it is misspelled now, correct it; else keep it under {place}, or list it under removedReadKeys once nothing needs it; \
         if it was misspelled before and never was a key, restart"
    )
}

/// What a process has seen, for the end of a reason.
pub(super) fn needed(seen: &[KeyId]) -> String {
    const NAMED: usize = 4;

    let named: Vec<_> = seen.iter().take(NAMED).map(KeyId::as_str).collect();
    match seen.len() {
        0 => String::new(),
        count if count > NAMED => format!(
            "; of what this process has read, key ids {} and {} more need it",
            named.join(", "),
            count - NAMED
        ),
        1 => format!("; of what this process has read, {} needs it", named[0]),
        _ => format!("; of what this process has read, {} need it", named.join(", ")),
    }
}

/// Whether `after` may take the place of `before` in a running process, at `now` (seconds since 1970).
///
/// # Errors
/// The first reason why not.
pub fn may_take_over(before: &Config, after: &Config, now: u64) -> Result<(), NotTakenOver> {
    unchanged("clusterId", &*before.cluster_id, &*after.cluster_id)?;
    unchanged("stateDirectory", before.state_directory.display(), after.state_directory.display())?;
    for provider in &before.providers {
        match after.providers.iter().find(|other| *other.name == *provider.name) {
            Some(other) => {
                unchanged("sealedCache", sealed_cache(provider), sealed_cache(other))?;
                keeps_readers(provider, other, now)?;
                keeps_signers(provider, other)?;
            }
            None if after.removed_providers.iter().any(|name| **name == *provider.name) => {}
            None => return Err(NotTakenOver::ProviderMissing { name: provider.name.to_string() }),
        }
    }
    if !after.has_end {
        if before.has_end {
            return Err(NotTakenOver::EndMissing);
        }
        if let Some(field) = lost_protection(before, after) {
            return Err(NotTakenOver::ProtectionMissing { field });
        }
    }
    for (who, endpoint) in doors(after) {
        if let Some((holder, _)) = doors(before).find(|(holder, held)| *held == endpoint && *holder != who) {
            return Err(NotTakenOver::EndpointTaken { who, endpoint: endpoint.to_string(), holder });
        }
    }
    Ok(())
}

/// The first of what nobody would miss until it is needed. What is read with has words for its end of its own.
fn lost_protection(before: &Config, after: &Config) -> Option<String> {
    let checkpoints =
        |config: &Config| config.audit.as_ref().is_some_and(|audit| audit.checkpoint_key.is_some());
    let peers = |config: &Config| config.admin.as_ref().is_some_and(|admin| admin.allowed_peers.is_some());
    let lost = [
        ("audit", before.audit.is_some() && after.audit.is_none()),
        ("audit.checkpointKey", checkpoints(before) && !checkpoints(after)),
        ("admin.allowedPeers", peers(before) && after.admin.is_some() && !peers(after)),
    ];
    if let Some((field, _)) = lost.into_iter().find(|(_, lost)| *lost) {
        return Some(field.to_owned());
    }
    before.providers.iter().find_map(|provider| {
        let now = after.providers.iter().find(|other| *other.name == *provider.name)?;
        let kept = |recipient| now.recovery_recipients.iter().any(|other| other.age == recipient);
        let field = if provider.allowed_peers.is_some() && now.allowed_peers.is_none() {
            "allowedPeers"
        } else if provider.recovery_recipients.iter().any(|one| !kept(one.age.clone())) {
            "recoveryRecipients"
        } else {
            return None;
        };
        Some(format!("{field} of provider {}", provider.name))
    })
}

/// Who listens where.
fn doors(config: &Config) -> impl Iterator<Item = (String, &Endpoint)> {
    let providers = config.providers.iter();
    let providers = providers.map(|one| (format!("provider {}", one.name), &*one.endpoint));
    providers.chain(config.admin.iter().map(|admin| ("the admin socket".to_owned(), &*admin.endpoint)))
}

fn sealed_cache(provider: &ProviderConfig) -> String {
    match provider.sealed_cache.as_ref().and_then(SealedCacheConfig::protection) {
        Some(protection) => format!("{} {}", protection.kind(), protection.path().display()),
        None => "none".into(),
    }
}

fn unchanged(field: &'static str, before: impl ToString, after: impl ToString) -> Result<(), NotTakenOver> {
    let (before, after) = (before.to_string(), after.to_string());
    if before == after { Ok(()) } else { Err(NotTakenOver::NeedsRestart { field, before, after }) }
}

fn keeps_readers(before: &ProviderConfig, after: &ProviderConfig, now: u64) -> Result<(), NotTakenOver> {
    let kept = readers(after);
    for (rule, name) in readers(before) {
        let provider = before.name.to_string();
        match kept.iter().find(|(other, _)| other.key == rule.key) {
            Some((other, _)) if rule.algorithms.is_subset(&other.algorithms) => {}
            Some(_) => {
                let algorithms: Vec<_> = rule.algorithms.iter().map(ToString::to_string).collect();
                let before = algorithms.join(", ");
                return Err(NotTakenOver::OtherMechanism { provider, name, id: rule.key, before });
            }
            None => {
                let mut removed = after.removed_read_keys.iter().flat_map(RemovedKeyConfig::identities);
                if removed.all(|other| other.key != rule.key) {
                    return Err(NotTakenOver::ReaderMissing {
                        provider,
                        name,
                        id: rule.key,
                        seen: Vec::new(),
                    });
                }
            }
        }
    }
    for accepted in &before.also_accept {
        let until = accepted.until.0.0;
        let kept = after
            .also_accept
            .iter()
            .any(|other| *other.cluster_id == *accepted.cluster_id && other.until.0.0 >= until);
        let over = until.as_second() <= i64::try_from(now).unwrap_or(i64::MAX);
        if !kept && !over {
            return Err(NotTakenOver::ClusterMissing {
                provider: before.name.to_string(),
                cluster: accepted.cluster_id.to_string(),
                until: until.to_string(),
            });
        }
    }
    Ok(())
}

fn keeps_signers(before: &ProviderConfig, after: &ProviderConfig) -> Result<(), NotTakenOver> {
    match (before.origin(), after.origin()) {
        (OriginPolicy::AcceptUnproven, OriginPolicy::Signed(_)) => {
            unchanged("acceptUnprovenOrigin", true, false)
        }
        (OriginPolicy::Signed(before_change), OriginPolicy::Signed(kept)) => {
            match before_change.into_iter().find(|signer| !kept.contains(signer)) {
                Some(signer) => Err(NotTakenOver::SignerMissing {
                    provider: before.name.to_string(),
                    signer: signer.lineage,
                }),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// All root keys that a provider reads with, those that write too.
fn readers(provider: &ProviderConfig) -> Vec<(ReadRule, String)> {
    let write = provider.root_keys.iter().map(|key| (key.place(), key.name.to_string()));
    let read = provider.read_keys.iter().map(|key| (key.place(), key.name.to_string()));
    let mut found = Vec::new();
    for (place, name) in write.chain(read) {
        found.extend(place.rules(None).into_iter().map(|rule| (rule, name.clone())));
    }
    found
}

#[cfg(test)]
mod tests;
