//! Objects that are read one by one, while the server's counters are watched.
use std::collections::BTreeSet;

use casemate_encryption_config::GroupResource;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::bounds::{Silence, Told, told};
use super::metrics::Metrics;
use super::reach::{AskError, Server};

/// Objects that are read between two looks at the counters: few, so that others come between seldom.
const TOGETHER: usize = 20;
/// How often they are read again because others came between.
const TRIES: usize = 3;
/// Names in one answer.
const PAGE: usize = 500;
/// Pages of names: the sample is of the first ten thousand objects at most.
const PAGES: usize = 20;
const MOST_METRICS: usize = 128 << 20;
const MOST_LIST: usize = 256 << 20;
const MOST_OBJECT: usize = 1 << 20;

/// Names without anything else of an object.
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// What kubectl prints a row from, with `includeObject=None` no more than that.
const ROW: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
/// What may stand in a path as it is.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a sample of one resource gave.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// How many objects there are.
    pub(super) objects: u64,
    /// How many of them could have been chosen.
    pub(super) listed: u64,
    /// Objects whose storage is told by bounds.
    pub(super) told: Told,
    /// Objects that were read while the counters told nothing.
    pub(super) untold: u64,
    /// Why they did not.
    pub(super) silences: BTreeSet<Silence>,
    /// Objects that were deleted before they were read.
    pub(super) gone: u64,
    /// Objects that the server could not read.
    pub(super) unreadable: Vec<String>,
    /// Why the others were not read.
    pub(super) stopped: Option<AskError>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMetadata,
    /// Null where there are none.
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: String,
    remaining_item_count: u64,
}

#[derive(Deserialize)]
struct Item {
    metadata: Name,
}

/// All else that is in there is dropped unread.
#[derive(Clone, Deserialize)]
struct Name {
    name: String,
    namespace: Option<String>,
}

/// One look at its counters.
pub(super) async fn metrics(server: &Server) -> Result<Metrics, AskError> {
    let text = server.get("/metrics", "text/plain;version=0.0.4", MOST_METRICS, "get /metrics").await?;
    let foreign = |what: String| AskError::Foreign { what };
    let text = std::str::from_utf8(&text).map_err(|_| foreign("/metrics".into()))?;
    Metrics::parse(text).map_err(|error| foreign(error.to_string()))
}

/// Reads `most` objects of a resource, chosen evenly from those that there are.
pub(super) async fn sample(
    server: &Server,
    resource: &GroupResource,
    most: usize,
) -> Result<Sample, AskError> {
    let place = Place::of(server, resource).await?;
    let (names, objects) = place.names(server).await?;
    let mut sample = Sample { objects, listed: names.len() as u64, ..Sample::default() };
    let chosen: Vec<&Name> = evenly(names.len(), most).filter_map(|at| names.get(at)).collect();
    for some in chosen.chunks(TOGETHER) {
        // What was told before it failed stays true.
        if let Err(error) = place.read(server, some, &mut sample).await {
            sample.stopped = Some(error);
            break;
        }
    }
    Ok(sample)
}

/// Where a resource is served.
struct Place {
    /// As the server's counters name it.
    name: String,
    root: String,
    plural: String,
}

impl Place {
    async fn of(server: &Server, resource: &GroupResource) -> Result<Self, AskError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            preferred_version: Version,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            group_version: String,
        }
        let GroupResource { group, resource: plural } = resource;
        let plural = escaped(plural);
        if group.is_empty() {
            return Ok(Self { name: plural.clone(), root: "/api/v1".into(), plural });
        }
        let path = format!("/apis/{}", escaped(group));
        let answer = server.get(&path, "application/json", MOST_OBJECT, "get /apis/*").await?;
        let found: Group = serde_json::from_slice(&answer).map_err(|_| AskError::Foreign { what: path })?;
        let version = found.preferred_version.group_version;
        let root = format!("/apis/{}", version.split('/').map(escaped).collect::<Vec<_>>().join("/"));
        Ok(Self { name: format!("{plural}.{group}"), root, plural })
    }

    /// Their names, and how many objects there are.
    async fn names(&self, server: &Server) -> Result<(Vec<Name>, u64), AskError> {
        let (mut names, mut left, mut next) = (Vec::new(), 0, String::new());
        for _ in 0..PAGES {
            let path = format!("{}/{}?limit={PAGE}{next}", self.root, self.plural);
            let answer = server.get(&path, LIST, MOST_LIST, &format!("list {}", self.name)).await;
            let answer = match answer {
                // What was listed is compacted away: those names are enough.
                Err(AskError::Code { code: 410, .. }) if !names.is_empty() => break,
                answer => answer?,
            };
            let list: List = serde_json::from_slice(&answer).map_err(|_| AskError::Foreign { what: path })?;
            names.extend(list.items.unwrap_or_default().into_iter().map(|item| item.metadata));
            left = list.metadata.remaining_item_count;
            if list.metadata.next.is_empty() {
                left = 0;
                break;
            }
            next = format!("&continue={}", escaped(&list.metadata.next));
        }
        let objects = names.len() as u64 + left;
        Ok((names, objects))
    }

    /// Reads some, again while others come between, and keeps what tells most.
    async fn read(&self, server: &Server, some: &[&Name], sample: &mut Sample) -> Result<(), AskError> {
        let mut best: Option<(Result<Told, Silence>, Read)> = None;
        for _ in 0..TRIES {
            let before = metrics(server).await?;
            let read = self.read_once(server, some).await?;
            let told = told(&before, &metrics(server).await?, &self.name, read.done);
            let others = |told: &Result<Told, Silence>| told.as_ref().map_or(u64::MAX, |told| told.others);
            let undisturbed = others(&told) == 0;
            if best.as_ref().is_none_or(|(best, _)| others(&told) < others(best)) {
                best = Some((told, read));
            }
            if undisturbed {
                break;
            }
        }
        let Some((told, read)) = best else { return Ok(()) };
        match told {
            Ok(told) => sample.told.add(told),
            Err(silence) => {
                sample.untold += read.done;
                sample.silences.insert(silence);
            }
        }
        sample.gone += read.gone;
        sample.unreadable.extend(read.unreadable);
        Ok(())
    }

    async fn read_once(&self, server: &Server, some: &[&Name]) -> Result<Read, AskError> {
        let mut read = Read::default();
        for name in some {
            match server.get(&self.path(name), ROW, MOST_OBJECT, &format!("get {}", self.name)).await {
                Ok(_) => read.done += 1,
                Err(AskError::Missing { .. }) => read.gone += 1,
                Err(AskError::Code { code: 500, .. }) => read.unreadable.push(name.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Without a resourceVersion: so it comes from etcd, not from the server's cache.
    fn path(&self, name: &Name) -> String {
        let Self { root, plural, .. } = self;
        let namespace = name.namespace.as_deref().map(escaped);
        let within = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        format!("{root}/{within}{plural}/{}?includeObject=None", escaped(&name.name))
    }
}

#[derive(Default)]
struct Read {
    done: u64,
    gone: u64,
    unreadable: Vec<String>,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Which of `all`, at most `most`, with the same distance between them.
fn evenly(all: usize, most: usize) -> impl Iterator<Item = usize> {
    let chosen = all.min(most);
    (0..chosen).map(move |at| at * all / chosen.max(1))
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, IN_PATH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all() {
        assert_eq!(evenly(10, 3).collect::<Vec<_>>(), [0, 3, 6]);
        assert_eq!(evenly(3, 10).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(evenly(0, 10).count(), 0);
        assert_eq!(evenly(10, 0).count(), 0);
    }

    #[test]
    fn a_list_of_nothing_is_a_list() {
        let list =
            |text: &str| serde_json::from_str::<List>(text).map(|list| list.items.unwrap_or_default().len());
        assert_eq!(list(r#"{"metadata": {}, "items": null}"#).ok(), Some(0));
        assert_eq!(list(r#"{"metadata": {}, "items": [{"metadata": {"name": "a"}}]}"#).ok(), Some(1));
        assert!(list(r#"{"metadata": {}, "items": 1}"#).is_err());
    }

    #[test]
    fn names_stay_within_their_part_of_a_path() {
        let place = Place { name: "secrets".into(), root: "/api/v1".into(), plural: "secrets".into() };
        let name = Name { name: "a/../b?c".into(), namespace: Some("n".into()) };
        assert_eq!(place.path(&name), "/api/v1/namespaces/n/secrets/a%2F..%2Fb%3Fc?includeObject=None");
        let name = Name { name: "system:a".into(), namespace: None };
        assert_eq!(place.path(&name), "/api/v1/secrets/system%3Aa?includeObject=None");
    }
}
