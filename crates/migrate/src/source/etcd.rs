//! Stale objects, found by their keys in etcd.
use std::collections::BTreeMap;

use casemate_census::classify::{Classifier, ObjectPath};
use casemate_census::etcd::{Client, Error, RangeRequest};
use casemate_census::survey::{Encryption, Resource};
use casemate_encryption_config::GroupResource;
use tokio::time::Instant;

use super::{Item, Missed, Page};
use crate::budget::PageBudget;
use crate::proof::{Aim, Standing, stored};
use crate::report::Failed;
use crate::targets::Plan;
use crate::verdict::Cause;

/// Stale objects of all targets, in the order of etcd.
///
/// The version of an object that a write names is the revision of etcd that wrote it last, so that nothing is asked of an API
/// server before the write itself. Values are classified as they come in and dropped; none is kept.
#[derive(Debug)]
pub struct Etcd<'a> {
    client: Client,
    prefix: String,
    aim: Aim<'a>,
    places: BTreeMap<GroupResource, usize>,
    budget: PageBudget,
    classifier: Classifier,
    after: String,
    /// How the last kinds of values stand: most are like their neighbours.
    known: Vec<(Resource, Encryption, Standing)>,
}

/// How many kinds of values are remembered.
const KNOWN: usize = 16;

impl<'a> Etcd<'a> {
    /// Of an etcd, below `prefix` and behind the key `after`.
    pub fn new(
        client: Client,
        prefix: &str,
        aim: Aim<'a>,
        plan: &Plan,
        budget: PageBudget,
        after: &str,
    ) -> Self {
        let places = plan.targets.iter().enumerate().map(|(place, target)| (target.resource.clone(), place));
        Self {
            client,
            prefix: prefix.strip_suffix('/').unwrap_or(prefix).to_owned(),
            aim,
            places: places.collect(),
            budget,
            classifier: Classifier::new(),
            after: after.to_owned(),
            known: Vec::new(),
        }
    }

    /// The next page. Most of them have few objects: those that are not stale are passed.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn next(&mut self) -> Result<Page, Missed> {
        let start = match self.after.as_str() {
            "" => format!("{}/", self.prefix),
            after => format!("{after}\0"),
        };
        // `0` comes after `/`.
        let request = RangeRequest {
            key: start.into(),
            range_end: format!("{}0", self.prefix).into(),
            limit: i64::try_from(self.budget.limit()).unwrap_or(i64::MAX),
            ..RangeRequest::default()
        };
        let begun = Instant::now();
        let answer = match self.client.range(&request).await {
            Ok(answer) => answer,
            // Most likely a page that is larger than is taken.
            Err(Error::Refused { .. }) if self.budget.shrink() => {
                return Err(Missed::Wait { after: None, busy: false });
            }
            Err(error) => return Err(Missed::Stop(error.to_string())),
        };
        let bytes = answer.kvs.iter().map(|pair| pair.value.len() as u64).sum();
        self.budget.learn(answer.kvs.len() as u64, bytes, begun.elapsed());
        let mut page = Page { is_last: !answer.more, ..Page::default() };
        for pair in &answer.kvs {
            if let Ok(key) = std::str::from_utf8(&pair.key) {
                key.clone_into(&mut self.after);
            }
            self.look_at(&pair.key, &pair.value, pair.mod_revision, &mut page);
        }
        page.after.clone_from(&self.after);
        Ok(page)
    }

    fn look_at(&mut self, key: &[u8], value: &[u8], revision: i64, page: &mut Page) {
        let Some(path) = ObjectPath::parse(&self.prefix, key) else { return };
        let resource = Resource::of(Some(path));
        let Some(place) =
            resource.group_resource().and_then(|known| self.places.get(&known.stored()).copied())
        else {
            return;
        };
        let encryption = Encryption::of(&self.classifier.classify(value));
        let (namespace, name) = (path.namespace.map(str::to_owned), path.name.to_owned());
        match self.standing(&resource, &encryption) {
            Standing::Current | Standing::Outside => {}
            // A write finds out.
            Standing::Stale | Standing::Unclear(_) => page.items.push(Item {
                target: place,
                namespace,
                name,
                uid: None,
                version: Some(revision.to_string()),
                stored: Some(stored(&encryption)),
            }),
            Standing::Unreadable => page.unreadable.push(Failed {
                resource: resource.to_string(),
                namespace,
                name,
                cause: Cause::Unreadable {
                    code: None,
                    reason: String::new(),
                    stored: Some(stored(&encryption)),
                },
            }),
        }
    }

    fn standing(&mut self, resource: &Resource, encryption: &Encryption) -> Standing {
        let is_this =
            |known: &&(Resource, Encryption, Standing)| known.0 == *resource && known.1 == *encryption;
        if let Some((.., standing)) = self.known.iter().find(is_this) {
            return standing.clone();
        }
        let standing = self.aim.judge(resource, encryption);
        self.known.truncate(KNOWN - 1);
        self.known.insert(0, (resource.clone(), encryption.clone(), standing.clone()));
        standing
    }
}
