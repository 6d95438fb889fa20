//! What became of it between two times.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::survey::{Group, Survey};

/// A group of which there are more or fewer values than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Change {
    /// What the values have in common.
    #[serde(flatten)]
    pub group: Group,
    /// How many there were.
    pub before: Amount,
    /// How many there are.
    pub after: Amount,
}

/// How many values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Amount {
    /// That are what their objects are now.
    pub live: u64,
    /// That were overwritten or deleted, and not compacted away.
    pub past: u64,
}

/// What changed from one survey to another, sorted by group.
pub fn diff(before: &Survey, after: &Survey) -> Vec<Change> {
    let mut groups: BTreeMap<&Group, [Amount; 2]> = BTreeMap::new();
    for (side, survey) in [before, after].into_iter().enumerate() {
        for entry in &survey.groups {
            let amount = Amount { live: entry.live.values, past: entry.past.values };
            groups.entry(&entry.group).or_default()[side] = amount;
        }
    }
    let changed = groups.into_iter().filter(|(_, [before, after])| before != after);
    changed.map(|(group, [before, after])| Change { group: group.clone(), before, after }).collect()
}
