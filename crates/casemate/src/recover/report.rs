//! What was opened and what was not: counts and names, never a value.
use std::collections::BTreeMap;

use casemate_census::classify::Name;
use casemate_census::recover::{Manifest, NotOpened, Origin, Shape};
use casemate_census::survey::{Encryption, Key, Resource};
use schemars::JsonSchema;
use serde::Serialize;

use super::walk::{Met, Walked};
use crate::census::scan::Checksum;
use crate::output::{Exit, Section};

/// The whole answer. Its JSON is a contract: `docs/reference/recover.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate recover object, snapshot, drill --output json")]
pub(super) struct Answer {
    /// The snapshot.
    file: String,
    /// Whether it is as it was written.
    checksum: Checksum,
    /// As of which revision of etcd it was read.
    revision: u64,
    /// Objects that were asked for.
    objects: u64,
    /// How many of them open.
    opened: u64,
    /// Of those that open, how many are no object of Kubernetes: neither protobuf of a kind nor JSON of one.
    strange: u64,
    /// Of the manifests, how many lack fields of a later Kubernetes; the object as it was stored is beside each, as `.pb`.
    incomplete: u64,
    /// How many could have been planted: they were opened by a recovery identity or an asymmetric key, and whoever knows
    /// the public half of it and writes to etcd makes such a record. `--records` proves where one comes from.
    unproven: u64,
    /// How often key services and plugins were asked.
    calls: u64,
    /// Where manifests were written.
    folder: Option<String>,
    /// Objects by what they are.
    groups: Vec<Group>,
    /// Objects that are in no group, because there were too many groups.
    ungrouped: u64,
    /// What did not open, the first 1000.
    closed: Vec<ClosedObject>,
    /// How many more did not open.
    closed_more: u64,
}

/// Objects of one resource that are encrypted in one way.
#[derive(Debug, Serialize, JsonSchema)]
struct Group {
    /// Whose they are.
    resource: Resource,
    /// How they are encrypted.
    encryption: Encryption,
    /// How many open, by what opened them: a key, or `plaintext`.
    opened_by: BTreeMap<String, u64>,
    /// Whether whoever writes etcd could have made them; absent where the kind of encryption leaves nothing to tell.
    origin: Option<Origin>,
    /// How many do not open.
    closed: u64,
}

/// An object that did not open.
#[derive(Debug, Serialize, JsonSchema)]
struct ClosedObject {
    /// Its key in etcd.
    key: String,
    /// The revision that wrote it.
    revision: u64,
    /// How it is encrypted.
    encryption: Encryption,
    /// What kind of reason it is.
    reason: Reason,
    /// Why, in words.
    why: String,
    /// Any one of these keys would open it; none if no key does.
    opened_by: Vec<Key>,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Reason {
    /// It contradicts itself: no key opens it.
    Broken,
    /// No key was given that would.
    NoKey,
    /// A key was given that should, and it does not.
    Refused,
    /// Who has the key could not be asked.
    Unreachable,
}

/// The most objects that are named.
const MOST: usize = 1000;
/// The most groups that are told apart.
const GROUPS: usize = 4096;

/// Counts one object after another.
#[derive(Default)]
pub(super) struct Report {
    objects: u64,
    opened: u64,
    strange: u64,
    incomplete: u64,
    unproven: u64,
    groups: BTreeMap<(Resource, Encryption), Tally>,
    ungrouped: u64,
    closed: Vec<ClosedObject>,
    closed_more: u64,
    /// Whether something stays closed for another reason than that somebody could not be asked.
    is_found: bool,
}

#[derive(Default)]
struct Tally {
    opened_by: BTreeMap<Option<Key>, u64>,
    origin: Option<Origin>,
    closed: u64,
}

impl Report {
    /// Counts what was met.
    pub(super) fn add(&mut self, met: &Met<'_>) {
        self.objects += 1;
        let encryption = Encryption::of(met.class);
        let group = (Resource::of(met.path), encryption.clone());
        let tally = if self.groups.len() < GROUPS || self.groups.contains_key(&group) {
            Some(self.groups.entry(group).or_default())
        } else {
            self.ungrouped += 1;
            None
        };
        match &met.opened {
            Ok(opened) => {
                self.opened += 1;
                self.unproven += u64::from(opened.origin == Some(Origin::Unproven));
                let is_strange = met.path.is_some() && Shape::of(&opened.object) == Shape::Other;
                self.strange += u64::from(is_strange && opened.by.is_some());
                if let Some(tally) = tally {
                    *tally.opened_by.entry(opened.by.clone()).or_default() += 1;
                    // The worse of both.
                    tally.origin = tally.origin.max(opened.origin);
                }
            }
            Err(closed) => {
                if let Some(tally) = tally {
                    tally.closed += 1;
                }
                let reason = Reason::of(&closed.why);
                self.is_found |= reason != Reason::Unreachable;
                if self.closed.len() == MOST {
                    self.closed_more += 1;
                    return;
                }
                self.closed.push(ClosedObject {
                    key: Name::new(met.item.pair.key).to_string(),
                    revision: met.item.revision.main,
                    encryption,
                    reason,
                    why: closed.why.to_string(),
                    opened_by: closed.opened_by.clone(),
                });
            }
        }
    }

    /// Counts what is told of one that opened.
    pub(super) fn add_manifest(&mut self, manifest: &Manifest) {
        self.incomplete += u64::from(manifest.stored.is_some());
    }

    /// How many were asked for.
    pub(super) fn objects(&self) -> u64 {
        self.objects
    }

    /// How many of them stay closed.
    pub(super) fn closed(&self) -> u64 {
        self.objects - self.opened
    }

    /// What a drill says: it is about all of them.
    pub(super) fn drilled(&self) -> Exit {
        match () {
            () if self.is_found || self.strange > 0 => Exit::No,
            () if self.objects == 0 || self.closed() > 0 => Exit::Unknown,
            () => Exit::Yes,
        }
    }

    /// What a recovery says: it is about what was had.
    pub(super) fn recovered(&self) -> Exit {
        match (self.opened, self.closed()) {
            (0, 0) => Exit::No,
            (0, _) => self.drilled(),
            (_, 0) => Exit::Yes,
            _ => Exit::Partly,
        }
    }

    /// The whole answer.
    pub(super) fn answer(self, file: String, walked: &Walked, calls: u64, folder: Option<String>) -> Answer {
        let groups = self.groups.into_iter().map(|((resource, encryption), tally)| Group {
            resource,
            encryption,
            opened_by: tally.opened_by.into_iter().map(|(by, count)| (opener(by), count)).collect(),
            origin: tally.origin,
            closed: tally.closed,
        });
        Answer {
            file,
            checksum: walked.checksum,
            revision: walked.revision,
            objects: self.objects,
            opened: self.opened,
            strange: self.strange,
            incomplete: self.incomplete,
            unproven: self.unproven,
            calls,
            folder,
            groups: groups.collect(),
            ungrouped: self.ungrouped,
            closed: self.closed,
            closed_more: self.closed_more,
        }
    }
}

impl Reason {
    fn of(why: &NotOpened) -> Self {
        match why {
            NotOpened::Broken(_) => Self::Broken,
            NotOpened::NoKey => Self::NoKey,
            NotOpened::Unreachable(_) => Self::Unreachable,
            _ => Self::Refused,
        }
    }
}

impl Answer {
    /// As tables.
    pub(super) fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.group_table()];
        if !self.closed.is_empty() {
            sections.push(self.closed_table());
        }
        if self.unproven > 0 {
            sections.push(Section::new(format!(
                "ORIGIN UNPROVEN  {} objects: whoever knows the recipient, which is public, and writes to etcd could have \
                 made their records; --records proves it",
                self.unproven
            )));
        }
        if self.incomplete > 0 {
            sections.push(Section::new(format!(
                "NOT ALL IN YAML  {} objects have fields of a later Kubernetes: beside each stands what was stored (.pb)",
                self.incomplete
            )));
        }
        if let Some(folder) = &self.folder {
            let files = self.opened + self.incomplete;
            sections.push(Section::new(format!("WRITTEN  {files} files in {folder}")));
        }
        sections
    }

    fn group_table(&self) -> Section {
        let checksum = match self.checksum {
            Checksum::Verified => "checksum verified",
            Checksum::Live => "read from a running etcd",
            Checksum::Absent => "no checksum",
        };
        let Self { file, revision, objects, opened, calls, .. } = self;
        let mut title = format!(
            "{file}  as of revision {revision}: {objects} objects, {opened} open, {} do not; {calls} calls to key services \
             and plugins; {checksum}",
            objects - opened
        );
        if self.strange > 0 {
            title += &format!("\n{} of those that open hold no object of Kubernetes", self.strange);
        }
        if self.ungrouped > 0 {
            title += &format!("\n{} objects more, of too many kinds to be told apart", self.ungrouped);
        }
        let mut section =
            Section::new(title).head(["RESOURCE", "ENCRYPTION", "OPEN", "BY", "ORIGIN", "CLOSED"]);
        for group in &self.groups {
            let by: Vec<&str> = group.opened_by.keys().map(String::as_str).collect();
            let origin = match group.origin {
                Some(Origin::Proven) => "proven",
                Some(Origin::Unproven) => "UNPROVEN",
                None => "",
            };
            section.row([
                group.resource.to_string(),
                group.encryption.to_string(),
                group.opened_by.values().sum::<u64>().to_string(),
                by.join(", "),
                origin.to_owned(),
                group.closed.to_string(),
            ]);
        }
        section
    }

    fn closed_table(&self) -> Section {
        let mut title = "CLOSED".to_owned();
        if self.closed_more > 0 {
            title += &format!("  and {} more", self.closed_more);
        }
        let mut section =
            Section::new(title).head(["KEY IN ETCD", "REVISION", "ENCRYPTION", "WHY", "OPENED BY ANY OF"]);
        for closed in &self.closed {
            let keys: Vec<String> = closed.opened_by.iter().map(ToString::to_string).collect();
            section.row([
                closed.key.clone(),
                closed.revision.to_string(),
                closed.encryption.to_string(),
                closed.why.clone(),
                if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") },
            ]);
        }
        section
    }
}

fn opener(by: Option<Key>) -> String {
    by.map_or("plaintext".to_owned(), |key| key.to_string())
}
