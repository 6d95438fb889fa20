//! From a file of etcd to opened objects, one after another.
use std::path::Path;

use casemate_census::classify::{Class, ObjectPath};
use casemate_census::mvcc::{Item, Live};
use casemate_census::recover::{Closed, Opened, Opener};
use casemate_census::snapshot::Snapshot;
use casemate_census::survey::Resource;

use super::keys::Ring;
use crate::census::Prefix;
use crate::census::scan::{self, Checksum, Progress};
use crate::output::{Exit, Failure, Output};

/// Which objects, and as of when.
#[derive(clap::Args)]
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
    let (snapshot, checksum) = scan::open(file, output).map_err(unreadable)?;
    let prefix = which.prefix.prefix.as_str();
    let (mut live, revision) = begin(&snapshot, which)?;
    let pages = snapshot.database().meta().pages;
    let mut progress = Progress::new(output, file.display().to_string(), "objects", pages);
    loop {
        let (visited, counts) = (live.pages_visited(), live.counts());
        progress.at(visited, counts.live);
        let next = live.next_item().map_err(|error| unreadable(snapshot.error(error)))?;
        let Some(item) = next else { break };
        let path = ObjectPath::parse(prefix, item.pair.key);
        if !which.has(path) || !is_wanted(item.pair.key, path) {
            continue;
        }
        let class = opener.classify(item.pair.value);
        let opened = opener.open(item.pair.key, item.pair.value, &class);
        to(Met { item: &item, class: &class, path, opened })?;
    }
    drop(progress);
    let counts = live.counts();
    snapshot.ensure_unchanged().map_err(unreadable)?;
    let is_empty = counts.live + counts.past + counts.deleted == 0;
    Ok(Walked { checksum, revision, elsewhere: (is_empty && counts.outside > 0).then_some(counts.outside) })
}

/// Where it begins, and as of which revision.
fn begin<'s>(snapshot: &'s Snapshot, which: &Which) -> Result<(Live<'s>, u64), Failure> {
    let store = snapshot.store().map_err(unreadable)?;
    let facts = store.facts();
    let prefix = which.prefix.prefix.as_bytes();
    let latest = facts.latest.map_or(0, |revision| revision.main);
    let compacted = facts.compacted.max(facts.compacting).map_or(0, |revision| revision.main);
    let live = match which.revision {
        None => store.live(prefix),
        Some(wanted) if (compacted..=latest).contains(&wanted) => store.live_at(prefix, wanted),
        Some(wanted) => {
            let text = format_args!(
                "--revision {wanted}: the file has revisions {compacted} to {latest}; what is older was compacted away, and \
                 may be in an older snapshot"
            );
            return Err(Failure::new(Exit::Usage, &text));
        }
    };
    Ok((live.map_err(|error| unreadable(snapshot.error(error)))?, which.revision.unwrap_or(latest)))
}

fn unreadable(error: impl Into<scan::ScanError>) -> Failure {
    Failure::new(Exit::Unknown, &error.into())
}
