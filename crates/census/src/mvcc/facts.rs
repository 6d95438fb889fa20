//! What etcd says of itself beside the keys.
use serde::Deserialize;

use super::{Error, Revision};
use crate::bolt::{Database, Direction};

/// The newest layout of etcd's buckets that is known here. 3.6 began to write which one it is.
pub const NEWEST_STORAGE: &str = "3.7";
const NEWEST: (u64, u64) = (3, 7);

/// State of one member, as of its last whole transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFacts {
    /// The newest revision that is there.
    pub latest: Option<Revision>,
    /// Up to this revision, what was overwritten is gone.
    pub compacted: Option<Revision>,
    /// Up to this revision, what was overwritten is to go; more than `compacted` while etcd is at it.
    pub compacting: Option<Revision>,
    /// Index of the last entry of the Raft log that was applied.
    pub consistent_index: Option<u64>,
    /// Raft term of that entry; since etcd 3.5.
    pub term: Option<u64>,
    /// Layout of the buckets, as in `3.6.0`; since etcd 3.6.
    pub storage_version: Option<String>,
    /// Version that all members had.
    pub cluster_version: Option<String>,
    /// The members of the cluster, by id.
    pub members: Vec<Member>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its name; empty until it first started.
    #[serde(default)]
    pub name: String,
    /// Where the others find it.
    #[serde(default, rename = "peerURLs")]
    pub peer_urls: Vec<String>,
    /// Where clients find it.
    #[serde(default, rename = "clientURLs")]
    pub client_urls: Vec<String>,
}

impl StoreFacts {
    /// All but `latest`.
    pub(super) fn read(database: &Database, accept_newer: bool) -> Result<Self, Error> {
        let mut facts = Self::default();
        each(database, "meta", |entry, value| facts.meta(entry, value))?;
        if let Some(found) = &facts.storage_version
            && !accept_newer
            && is_newer(found)
        {
            return Err(Error::Newer { found: found.clone(), newest: NEWEST_STORAGE });
        }
        each(database, "cluster", |entry, value| {
            if entry == b"clusterVersion" {
                facts.cluster_version = Some(text(value)?);
            }
            Ok(())
        })?;
        each(database, "members", |_, value| {
            facts.members.push(serde_json::from_slice(value).map_err(|_| "it is no JSON of a member")?);
            Ok(())
        })?;
        facts.members.sort_by_key(|member| member.id);
        Ok(facts)
    }

    fn meta(&mut self, entry: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match entry {
            b"consistent_index" => self.consistent_index = Some(number(value)?),
            b"term" => self.term = Some(number(value)?),
            b"finishedCompactRev" => self.compacted = Some(revision(value)?),
            b"scheduledCompactRev" => self.compacting = Some(revision(value)?),
            // Written empty for a moment.
            b"storageVersion" if !value.is_empty() => self.storage_version = Some(text(value)?),
            _ => {}
        }
        Ok(())
    }
}

/// Goes through a bucket of the root, if it is there.
fn each(
    database: &Database,
    bucket: &'static str,
    mut read: impl FnMut(&[u8], &[u8]) -> Result<(), &'static str>,
) -> Result<(), Error> {
    let Some(found) = database.bucket(bucket.as_bytes())? else { return Ok(()) };
    let mut cursor = database.cursor(&found, Direction::Ascending)?;
    while let Some(entry) = cursor.next_entry()? {
        let read = if entry.is_bucket { Err("it is a bucket") } else { read(entry.key, entry.value) };
        let Err(what) = read else { continue };
        let name = entry.key.iter().take(64).map(|byte| byte.escape_ascii().to_string()).collect();
        return Err(Error::Facts { bucket, entry: name, what });
    }
    Ok(())
}

fn number(value: &[u8]) -> Result<u64, &'static str> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| "it is no number of 8 bytes")
}

fn revision(value: &[u8]) -> Result<Revision, &'static str> {
    match Revision::parse(value) {
        Some((revision, false)) => Ok(revision),
        _ => Err("it is no revision"),
    }
}

fn text(value: &[u8]) -> Result<String, &'static str> {
    let fits = |byte: &u8| byte.is_ascii_graphic();
    match std::str::from_utf8(value) {
        Ok(text) if value.len() <= 64 && value.iter().all(fits) => Ok(text.to_owned()),
        _ => Err("it is no version"),
    }
}

/// What can't be read is newer too: older ones can.
fn is_newer(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) > NEWEST,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::is_newer;

    #[test]
    fn which_layouts_are_newer() {
        for known in ["3.5.0", "3.6.0", "3.7.0", "3.7.12"] {
            assert!(!is_newer(known), "{known}");
        }
        for newer in ["3.8.0", "3.10.0", "4.0.0", "four", "3"] {
            assert!(is_newer(newer), "{newer}");
        }
    }
}
