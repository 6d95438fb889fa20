//! All values of a file or of a running etcd, counted by what they need.
//!
//! A [`Survey`] is small whatever it was made of, and is all that the [`answers`](crate::answers) need: it can be kept as
//! JSON, and compared with one of another day. What it tells apart is a [`Group`]: one resource, encrypted in one way, down
//! to the local KEK. Values that were overwritten or deleted, and that etcd still has, are counted apart from live ones.
//!
//! Bounds: at most [`MAX_GROUPS`] groups, of which each has [`MAX_EXAMPLES`] objects by name; what does not fit is counted
//! in [`Survey::ungrouped`], and then no answer is a yes.
mod encryption;
mod key;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use casemate_encryption_config::GroupResource;
use casemate_keys::names::sha256;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use encryption::{Encryption, RecordKeys};
pub use key::{Key, KeyError};

use crate::classify::{Class, Classifier, Malformed, Name, ObjectPath, is_plain};
use crate::mvcc::{self, Counts, Item, Live, Standing, Store, StoreFacts};

/// The most groups that are told apart.
pub const MAX_GROUPS: usize = 4096;
/// The most objects that are named for a group, live and past each.
pub const MAX_EXAMPLES: usize = 5;
/// The most malformed values that are named.
pub const MAX_MALFORMED: usize = 100;

/// What one file, or one etcd, holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Survey {
    /// Below which key of etcd was looked.
    pub prefix: String,
    /// The newest revision of etcd that is there: of when it is.
    pub revision: Option<u64>,
    /// Up to this revision, what was overwritten is gone.
    pub compacted: Option<u64>,
    /// Objects that are there.
    pub live: u64,
    /// Objects that were deleted, and of which etcd still knows; 0 for a running etcd, which does not show them.
    pub deleted: u64,
    /// Values that were overwritten or deleted, and not compacted away: as many as the groups have in `past`.
    pub past: u64,
    /// Revisions of keys outside of the prefix, at which nobody looked.
    pub outside: u64,
    /// How many values of these are encrypted, by what they begin with, so that they need some key; absent where that is not
    /// known.
    #[serde(default)]
    pub outside_encrypted: Option<u64>,
    /// Values, sorted by what they are.
    pub groups: Vec<Entry>,
    /// Values that are in no group, because there were too many groups.
    pub ungrouped: u64,
    /// Malformed values, the first ones of them.
    pub malformed: Vec<MalformedValue>,
    /// Records of `casemate-kms`, at most [`MAX_GROUPS`]. Kept while etcd is trusted, they prove where its values come from
    /// when a recovery identity opens them later.
    #[serde(default)]
    pub records: Vec<RecordSeen>,
    /// What was not looked at, so that nothing is known of it. Empty for files, which are read as a whole.
    #[serde(default)]
    pub unseen: Vec<Unseen>,
}

/// A record of `casemate-kms`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordSeen {
    /// SHA-256 of it, as 64 hex digits.
    pub digest: String,
    /// The local KEK that it is of.
    pub local_kek: String,
    /// When that was made, in seconds since 1970.
    pub created: u64,
}

/// What a survey of a running etcd does not cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Unseen {
    /// Values that were overwritten or deleted, and not compacted away.
    Past {
        /// Up to this revision, what was overwritten is gone; absent where that is not known.
        since: Option<u64>,
        /// Why.
        why: String,
    },
    /// It was read at several revisions, since etcd was compacted again and again meanwhile: what was written between
    /// them may be missing.
    Moment {
        /// The oldest one.
        oldest: u64,
        /// The newest one.
        newest: u64,
    },
}

/// A group, and how much is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Values that are what their objects are now.
    pub live: Tally,
    /// Values that were overwritten or deleted, and not compacted away.
    pub past: Tally,
}

/// What values have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Whose values they are.
    pub resource: Resource,
    /// How they are encrypted.
    pub encryption: Encryption,
}

/// Whose values they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// By the name that EncryptionConfigurations have for it; empty for keys that name no object.
    pub name: String,
    /// API group; empty for the core group, absent where the key in etcd does not tell.
    pub group: Option<String>,
}

/// How many values, how large and how old.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// How many.
    pub values: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How many of these bytes are annotations of a KMS v2 plugin: what its records cost.
    pub annotation_bytes: u64,
    /// The oldest revision among them.
    pub oldest: Option<u64>,
    /// The newest revision among them.
    pub newest: Option<u64>,
    /// Keys in etcd of some of them; of a file the newest ones first.
    pub examples: Vec<String>,
}

/// A value that contradicts its own mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MalformedValue {
    /// Its key in etcd.
    pub key: String,
    /// The revision that wrote it.
    pub revision: u64,
    /// Whether it is what its object is now.
    pub live: bool,
    /// What is wrong with it.
    pub reasons: Vec<String>,
}

/// Surveys all of `store` under `prefix`. `progress` is told after each value how far it is.
///
/// # Errors
/// If a page or a revision is damaged.
pub fn survey(
    store: &Store<'_>,
    prefix: &str,
    mut progress: impl FnMut(&Live<'_>),
) -> Result<Survey, mvcc::Error> {
    let mut values = store.live(prefix.as_bytes())?;
    let mut surveyor = Surveyor::new(prefix);
    while let Some((item, standing)) = values.next_value()? {
        surveyor.add(&item, standing);
        progress(&values);
    }
    Ok(surveyor.finish(store.facts(), values.counts()))
}

/// Makes a survey of one value after another.
#[derive(Debug)]
pub struct Surveyor {
    survey: Survey,
    classifier: Classifier,
    places: BTreeMap<Group, usize>,
    recent: Vec<Recent>,
    records: BTreeSet<RecordSeen>,
}

/// A group that came by a moment ago: most values are like their neighbours, and no text is copied for them.
#[derive(Debug)]
struct Recent {
    resource: Resource,
    class: Class,
    place: Option<usize>,
}

/// How many are compared.
const RECENT: usize = 16;

impl Surveyor {
    /// One that has seen nothing. Objects are named by their keys below `prefix`.
    pub fn new(prefix: &str) -> Self {
        let survey = Survey { prefix: prefix.to_owned(), ..Survey::default() };
        let (places, recent, records) = Default::default();
        Self { survey, classifier: Classifier::new(), places, recent, records }
    }

    /// Counts one value.
    pub fn add(&mut self, item: &Item<'_>, standing: Standing) {
        let class = self.classifier.classify(item.pair.value);
        let revision = item.revision.main;
        if let Class::Malformed(malformed) = &class {
            self.survey.note_malformed(item, standing, malformed);
        }
        let annotations = annotation_bytes(&class);
        let path = ObjectPath::parse(&self.survey.prefix, item.pair.key);
        let Some(place) = self.place(path, class) else {
            self.survey.ungrouped += 1;
            return;
        };
        let entry = &mut self.survey.groups[place];
        let tally = match standing {
            Standing::Live => &mut entry.live,
            Standing::Past => &mut entry.past,
        };
        tally.values += 1;
        tally.bytes += item.pair.value.len() as u64;
        tally.annotation_bytes += annotations;
        tally.oldest = Some(tally.oldest.map_or(revision, |oldest| oldest.min(revision)));
        tally.newest = Some(tally.newest.map_or(revision, |newest| newest.max(revision)));
        if tally.examples.len() < MAX_EXAMPLES {
            tally.examples.push(shown(item.pair.key));
        }
    }

    /// The survey, with what etcd says of itself.
    pub fn finish(self, facts: &StoreFacts, counts: Counts) -> Survey {
        let Counts { live, deleted, past, outside, outside_encrypted } = counts;
        let mut survey = Survey { live, deleted, past, outside, ..self.survey };
        survey.outside_encrypted = Some(outside_encrypted);
        survey.revision = facts.latest.map(|revision| revision.main);
        survey.compacted = facts.compacted.map(|revision| revision.main);
        survey.groups.sort_by(|one, other| one.group.cmp(&other.group));
        survey.records = self.records.into_iter().collect();
        survey
    }

    /// The survey, without what etcd says of itself. Groups are in no order.
    pub fn into_survey(self) -> Survey {
        Survey { records: self.records.into_iter().collect(), ..self.survey }
    }

    /// Where the group of such a value stands; `None` if there is no room for it.
    fn place(&mut self, path: Option<ObjectPath<'_>>, class: Class) -> Option<usize> {
        if let Some(found) = self.recent.iter().position(|recent| recent.is(path, &class)) {
            self.recent.swap(0, found);
            return self.recent[0].place;
        }
        if self.records.len() < MAX_GROUPS {
            self.records.extend(RecordSeen::of(&class));
        }
        let resource = Resource::of(path);
        let group = Group { resource: resource.clone(), encryption: Encryption::of(&class) };
        let place = match self.places.get(&group) {
            Some(place) => Some(*place),
            None if self.places.len() == MAX_GROUPS => None,
            None => {
                let place = self.survey.groups.len();
                let (live, past) = (Tally::default(), Tally::default());
                self.survey.groups.push(Entry { group: group.clone(), live, past });
                self.places.insert(group, place);
                Some(place)
            }
        };
        self.recent.truncate(RECENT - 1);
        self.recent.insert(0, Recent { resource, class, place });
        place
    }
}

impl Recent {
    fn is(&self, path: Option<ObjectPath<'_>>, class: &Class) -> bool {
        let Resource { name, group } = &self.resource;
        let (found, its_group) = path.map_or(("", None), |path| (path.resource, path.group));
        name == found && group.as_deref() == its_group && self.class == *class
    }
}

impl Survey {
    /// Each key that opens something, with how many live and past values it opens.
    pub fn keys(&self) -> BTreeMap<Key, (u64, u64)> {
        let mut keys = BTreeMap::new();
        for entry in &self.groups {
            for key in entry.group.encryption.keys() {
                let (live, past) = keys.entry(key).or_insert((0, 0));
                *live += entry.live.values;
                *past += entry.past.values;
            }
        }
        keys
    }

    /// Whether nothing was found where others have something: the prefix is another one.
    pub fn looked_elsewhere(&self) -> bool {
        self.is_empty() && self.outside > 0
    }

    /// Whether nothing was found, so that nothing is proven: another etcd, one that was made anew, or another prefix.
    pub fn is_empty(&self) -> bool {
        self.live + self.past + self.deleted == 0
    }

    /// Adds the values of `others`, none of which is in two of them. What else a survey says is left alone, and groups
    /// are in no order.
    pub fn absorb<'a>(&mut self, others: impl IntoIterator<Item = &'a Self>) {
        let placed = |(place, entry): (usize, &Entry)| (entry.group.clone(), place);
        let mut places: BTreeMap<Group, usize> = self.groups.iter().enumerate().map(placed).collect();
        let mut records: BTreeSet<RecordSeen> = std::mem::take(&mut self.records).into_iter().collect();
        for other in others {
            records.extend(other.records.iter().take(MAX_GROUPS.saturating_sub(records.len())).cloned());
            for entry in &other.groups {
                if let Some(place) = places.get(&entry.group) {
                    self.groups[*place].live.absorb(&entry.live);
                    self.groups[*place].past.absorb(&entry.past);
                } else if self.groups.len() == MAX_GROUPS {
                    self.ungrouped += entry.values();
                } else {
                    places.insert(entry.group.clone(), self.groups.len());
                    self.groups.push(entry.clone());
                }
            }
            self.ungrouped += other.ungrouped;
            let room = MAX_MALFORMED.saturating_sub(self.malformed.len());
            self.malformed.extend(other.malformed.iter().take(room).cloned());
        }
        self.records = records.into_iter().collect();
    }

    fn note_malformed(&mut self, item: &Item<'_>, standing: Standing, malformed: &Malformed) {
        if self.malformed.len() < MAX_MALFORMED {
            self.malformed.push(MalformedValue {
                key: shown(item.pair.key),
                revision: item.revision.main,
                live: standing == Standing::Live,
                reasons: malformed.reasons.iter().map(ToString::to_string).collect(),
            });
        }
    }
}

impl RecordSeen {
    /// In a value; `None` if it has none, or one that is refused.
    fn of(class: &Class) -> Option<Self> {
        let Class::KmsV2(kms) = class else { return None };
        let casemate = kms.casemate.as_ref().filter(|casemate| casemate.faults.is_empty())?;
        let record = casemate.record.as_deref()?;
        let mut digest = String::with_capacity(64);
        // What was decoded is encoded to the same bytes, or it would not have been decoded.
        for byte in sha256(&record.encode()) {
            // Writing to a String can't fail.
            let _ = write!(digest, "{byte:02x}");
        }
        let core = record.core();
        Some(Self { digest, local_kek: core.kek_id.to_string(), created: core.created })
    }
}

impl Tally {
    fn absorb(&mut self, other: &Self) {
        self.values += other.values;
        self.bytes += other.bytes;
        self.annotation_bytes += other.annotation_bytes;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.newest = self.newest.max(other.newest);
        let room = MAX_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.iter().take(room).cloned());
    }
}

impl Unseen {
    /// Whether it says nothing of what objects are now.
    pub fn is_past(&self) -> bool {
        matches!(self, Self::Past { .. })
    }
}

impl std::fmt::Display for Unseen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Past { since, why } => {
                f.write_str("values that were overwritten or deleted")?;
                if let Some(since) = since {
                    write!(f, " after revision {since}")?;
                }
                write!(f, " were not looked at ({why}): a snapshot shows them")
            }
            Self::Moment { oldest, newest } => write!(
                f,
                "it was read at revisions {oldest} to {newest}, since etcd was compacted meanwhile: what was written between \
                 them may be missing. Raise --rate, or take a snapshot"
            ),
        }
    }
}

impl Entry {
    /// Values, live and past.
    pub fn values(&self) -> u64 {
        self.live.values + self.past.values
    }
}

impl Resource {
    /// The longest name and group that Kubernetes has.
    const LONGEST: usize = 253;

    /// Of a key in etcd. What no name has is not shown.
    pub fn of(path: Option<ObjectPath<'_>>) -> Self {
        let known = path.filter(|path| {
            let texts = [path.resource, path.group.unwrap_or_default()];
            texts.iter().all(|text| text.len() <= Self::LONGEST && is_plain(text))
        });
        Self {
            name: known.map(|path| path.resource.to_owned()).unwrap_or_default(),
            group: known.and_then(|path| path.group).map(str::to_owned),
        }
    }

    /// What API servers keep for themselves, by the names of their keys: leases of addresses and of each other, and which
    /// service addresses and node ports are taken. They write it past their encryption, so that no EncryptionConfiguration
    /// applies, `*.*` neither. Objects of a group have its name in the key, and are none of these.
    pub fn is_bookkeeping(&self) -> bool {
        const NAMES: [&str; 3] = ["masterleases", "peerserverleases", "ranges"];

        self.group.is_none() && NAMES.contains(&self.name.as_str())
    }

    /// As EncryptionConfigurations name it; `None` where the group is not known.
    pub fn group_resource(&self) -> Option<GroupResource> {
        Some(GroupResource { group: self.group.clone()?, resource: self.name.clone() })
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.name.as_str(), self.group.as_deref()) {
            ("", _) => f.write_str("(no object)"),
            (name, None | Some("")) => f.write_str(name),
            (name, Some(group)) => write!(f, "{name}.{group}"),
        }
    }
}

fn annotation_bytes(class: &Class) -> u64 {
    match class {
        Class::KmsV2(kms) => kms.annotations.iter().map(|annotation| annotation.bytes as u64).sum(),
        _ => 0,
    }
}

fn shown(key: &[u8]) -> String {
    Name::new(key).to_string()
}
