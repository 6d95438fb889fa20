//! From a file of etcd to opened objects, one after another.
use std::path::Path;

use casemate_census::classify::{Class, ObjectPath};
#[cfg(feature = "kine")]
use casemate_census::kine;
#[cfg(feature = "kine")]
use casemate_census::mvcc::Standing;
use casemate_census::mvcc::{Counts, Item, StoreFacts};
use casemate_census::recover::{Closed, Opened, Opener};
use casemate_census::survey::Resource;

use super::keys::Ring;
use crate::census::Prefix;
use crate::census::scan::{self, Checksum, Progress};
use crate::output::{Exit, Failure, Output};

/// Which objects, and as of when.
#[derive(Clone, clap::Args)]
pub(super) struct Which {
    #[command(flatten)]
    pub(super) prefix: Prefix,

    /// This resource only, as in secrets or deployments.apps; may be given many times
    #[arg(long = "resource", value_name = "RESOURCE")]
    resources: Vec<String>,

    /// This namespace only; may be given many times
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,

    /// As it was at this revision of etcd, which must not be compacted away: to get at what was deleted or overwritten
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
}

/// What a walk was through.
pub(super) struct Walked {
    pub(super) checksum: Checksum,
    /// As of which revision.
    pub(super) revision: u64,
    /// Revisions of keys that are not below the prefix, if nothing is below it.
    pub(super) elsewhere: Option<u64>,
}

/// An object that was met.
pub(super) struct Met<'a> {
    pub(super) item: &'a Item<'a>,
    pub(super) class: &'a Class,
    pub(super) path: Option<ObjectPath<'a>>,
    pub(super) opened: Result<Opened, Closed>,
}

impl Which {
    fn has(&self, path: Option<ObjectPath<'_>>) -> bool {
        let is_resource = |wanted: &String| Resource::of(path).to_string() == *wanted;
        let is_namespace = |wanted: &String| path.is_some_and(|path| path.namespace == Some(wanted.as_str()));
        (self.resources.is_empty() || self.resources.iter().any(is_resource))
            && (self.namespaces.is_empty() || self.namespaces.iter().any(is_namespace))
    }

    /// The same, as of `revision`.
    pub(super) fn as_of(&self, revision: u64) -> Self {
        Self { revision: Some(revision), ..self.clone() }
    }

    /// As of which revision: the newest, or the one that was asked for, if it is there.
    fn revision_of(&self, facts: &StoreFacts) -> Result<u64, Failure> {
        let latest = facts.latest.map_or(0, |revision| revision.main);
        let compacted = facts.compacted.max(facts.compacting).map_or(0, |revision| revision.main);
        match self.revision {
            None => Ok(latest),
            Some(wanted) if (compacted..=latest).contains(&wanted) => Ok(wanted),
            Some(wanted) => {
                let text = format_args!(
                    "--revision {wanted}: the file has revisions {compacted} to {latest}; what is older was compacted away, \
                     and may be in an older snapshot"
                );
                Err(Failure::new(Exit::Usage, &text))
            }
        }
    }
}

/// Opens every object of `file` that `which` has and `is_wanted` takes, and hands it to `to`.
pub(super) fn walk(
    file: &Path,
    which: &Which,
    opener: &mut Opener<Ring>,
    output: &Output,
    is_wanted: impl Fn(&[u8], Option<ObjectPath<'_>>) -> bool,
    mut to: impl FnMut(Met<'_>) -> Result<(), Failure>,
) -> Result<Walked, Failure> {
    let prefix = which.prefix.prefix.as_str();
    let open = |item: &Item<'_>| {
        let path = ObjectPath::parse(prefix, item.pair.key);
        if !which.has(path) || !is_wanted(item.pair.key, path) {
            return Ok(());
        }
        let class = opener.classify(item.pair.value);
        let opened = opener.open(item.pair.key, item.pair.value, &class);
        to(Met { item, class: &class, path, opened })
    };
    #[cfg(feature = "kine")]
    if kine::is_sqlite(file) {
        return walk_kine(file, which, output, open);
    }
    walk_etcd(file, which, output, open)
}

fn walk_etcd(
    file: &Path,
    which: &Which,
    output: &Output,
    mut open: impl FnMut(&Item<'_>) -> Result<(), Failure>,
) -> Result<Walked, Failure> {
    let (snapshot, checksum) = scan::open(file, output).map_err(unreadable)?;
    let store = snapshot.store().map_err(unreadable)?;
    let revision = which.revision_of(store.facts())?;
    let live = store.live_at(which.prefix.prefix.as_bytes(), revision);
    let mut live = live.map_err(|error| unreadable(snapshot.error(error)))?;
    let pages = snapshot.database().meta().pages;
    let mut progress = Progress::new(output, file.display().to_string(), "objects", pages);
    loop {
        progress.at(live.pages_visited(), live.counts().live);
        let next = live.next_item().map_err(|error| unreadable(snapshot.error(error)))?;
        let Some(item) = next else { break };
        open(&item)?;
    }
    drop(progress);
    snapshot.ensure_unchanged().map_err(unreadable)?;
    Ok(Walked { checksum, revision, elsewhere: elsewhere(live.counts()) })
}

/// The same of k3s' file of SQLite.
#[cfg(feature = "kine")]
fn walk_kine(
    file: &Path,
    which: &Which,
    output: &Output,
    mut open: impl FnMut(&Item<'_>) -> Result<(), Failure>,
) -> Result<Walked, Failure> {
    let state = scan::open_kine(file, output).map_err(unreadable)?;
    let revision = which.revision_of(state.facts())?;
    let mut progress = Progress::new(output, file.display().to_string(), "objects", revision);
    let mut failure = None;
    let passed = state.values_at(&which.prefix.prefix, revision, |item, standing, passed| {
        progress.at(passed.revisions, passed.counts.live);
        if standing == Standing::Live {
            failure = open(item).err();
        }
        failure.is_none()
    });
    drop(progress);
    match (passed, failure) {
        (_, Some(failure)) => Err(failure),
        (Err(error), _) => Err(unreadable(error)),
        (Ok(passed), None) => {
            Ok(Walked { checksum: Checksum::Absent, revision, elsewhere: elsewhere(passed.counts) })
        }
    }
}

fn elsewhere(counts: Counts) -> Option<u64> {
    let is_empty = counts.live + counts.past + counts.deleted == 0;
    (is_empty && counts.outside > 0).then_some(counts.outside)
}

fn unreadable(error: impl Into<scan::ScanError>) -> Failure {
    Failure::new(Exit::Unknown, &error.into())
}
