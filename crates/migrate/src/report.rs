//! What came of a migration.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::verdict::Cause;

/// What was done with the objects of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Objects that a server wrote anew.
    pub written: u64,
    /// Objects that it found to be stored as it writes now.
    pub fresh: u64,
    /// Objects that were deleted before their turn.
    pub gone: u64,
    /// Objects that were given up.
    pub failed: u64,
}

/// An object that was not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failed {
    /// Whose it is, as EncryptionConfigurations name it.
    pub resource: String,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Why.
    pub cause: Cause,
}

/// Something that was not gone through to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Skipped {
    /// What: a resource, a group, or some objects of it.
    pub what: String,
    /// Why, and what to do.
    pub why: String,
}

/// What came of a migration. It does not say that it is finished: only a census does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// What was done, by resource, in this run and those that it resumed.
    pub resources: BTreeMap<String, Tally>,
    /// Objects that were given up.
    pub failed: Vec<Failed>,
    /// How many more were given up, than are listed.
    pub unlisted: u64,
    /// What was not gone through.
    pub skipped: Vec<Skipped>,
    /// Why it ended early; the cursor is kept.
    pub stopped: Option<String>,
    /// Whether it went on where a run before it had ended.
    pub resumed: bool,
    /// Requests that were sent, lists and repetitions too.
    pub requests: u64,
    /// How often a list expired and was continued at a newer moment: objects that were made meanwhile were written with what
    /// is written now.
    pub expired_lists: u64,
}

impl Tally {
    /// How many objects were dealt with.
    pub fn objects(&self) -> u64 {
        self.written + self.fresh + self.gone + self.failed
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        self.written += other.written;
        self.fresh += other.fresh;
        self.gone += other.gone;
        self.failed += other.failed;
    }
}

impl Report {
    /// Whether every object was dealt with and none given up.
    pub fn is_complete(&self) -> bool {
        self.stopped.is_none() && self.skipped.is_empty() && self.failed.is_empty() && self.unlisted == 0
    }

    /// All resources together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.resources.values().for_each(|tally| total.absorb(tally));
        total
    }
}

impl Failed {
    /// `NAMESPACE/NAME`, or the name.
    pub fn object(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_complete_if_nothing_is_left() {
        let mut report = Report::default();
        report.resources.insert("secrets".into(), Tally { written: 3, fresh: 2, gone: 1, failed: 0 });
        report.resources.insert("configmaps".into(), Tally { written: 1, ..Tally::default() });
        assert_eq!((report.total().objects(), report.is_complete()), (7, true));
        for spoil in [
            |report: &mut Report| report.stopped = Some("etcd is full".into()),
            |report: &mut Report| report.unlisted = 1,
            |report: &mut Report| report.skipped.push(Skipped { what: "a".into(), why: "b".into() }),
            |report: &mut Report| {
                let name = "a".to_owned();
                report.failed.push(Failed {
                    resource: "b".into(),
                    namespace: None,
                    name,
                    cause: Cause::NoAnswer,
                });
            },
        ] {
            let mut spoilt = report.clone();
            spoil(&mut spoilt);
            assert!(!spoilt.is_complete());
        }
    }
}
