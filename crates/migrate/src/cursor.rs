//! How far a migration is, kept so that a process that is killed repeats one page at most.
//!
//! A cursor belongs to a *goal*: what objects are to become. One of another goal is not resumed from, since what it passed
//! may be stale again. It is saved after each page, before the next one begins, and holds names and counts, never a value.
mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use file::{FileStore, StoreError};

use crate::report::{Failed, Tally};

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Of the form that this is in: [`Cursor::VERSION`].
    pub version: u32,
    /// What objects are to become.
    pub goal: String,
    /// How far each lane is, by its name: a resource, or a whole etcd.
    pub lanes: BTreeMap<String, Lane>,
}

/// How far one sequence of objects is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// The last object of the last page that is done, as the sequence names it; empty at its beginning.
    pub after: String,
    /// Whether there is none behind it.
    pub ended: bool,
    /// What was done, by resource.
    pub done: BTreeMap<String, Tally>,
    /// Objects that were passed and are to be tried again.
    pub later: Vec<Deferred>,
    /// Objects that were given up.
    pub failed: Vec<Failed>,
    /// How many more were given up than `failed` has room for.
    pub unlisted: u64,
}

/// An object that is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deferred {
    /// Whose it is and why.
    #[serde(flatten)]
    pub failed: Failed,
    /// How often it was tried.
    pub tries: u32,
}

/// Where cursors are kept.
pub trait CursorStore {
    /// The one that was saved last, if it can be understood; one that can't be is as good as none.
    fn load(&mut self) -> impl Future<Output = Result<Option<Cursor>, StoreError>>;

    /// Replaces it. When this returns, it outlives the process and the host.
    fn save(&mut self, cursor: &Cursor) -> impl Future<Output = Result<(), StoreError>>;

    /// Forgets it: all was done.
    fn clear(&mut self) -> impl Future<Output = Result<(), StoreError>>;
}

/// Keeps nothing: a process that is killed begins anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Cursor {
    /// The version of the form that is written.
    pub const VERSION: u32 = 1;

    /// One at the beginning of everything.
    pub fn new(goal: impl Into<String>) -> Self {
        Self { version: Self::VERSION, goal: goal.into(), lanes: BTreeMap::new() }
    }

    /// `saved`, if it is on the way to `goal`; else a new one.
    pub fn resume(saved: Option<Self>, goal: &str) -> Self {
        match saved {
            Some(saved) if saved.goal == goal && saved.version == Self::VERSION => saved,
            _ => Self::new(goal),
        }
    }

    /// How far that lane is.
    pub fn lane(&mut self, name: &str) -> &mut Lane {
        self.lanes.entry(name.to_owned()).or_default()
    }

    /// Whether something was done already.
    pub fn is_begun(&self) -> bool {
        self.lanes.values().any(|lane| !lane.after.is_empty() || lane.ended)
    }
}

impl Lane {
    /// The most objects that are listed with why they were given up, and the most that are tried again.
    pub const MOST: usize = 1000;

    /// Gives an object up.
    pub fn give_up(&mut self, failed: Failed) {
        self.done.entry(failed.resource.clone()).or_default().failed += 1;
        match self.failed.len() {
            Self::MOST => self.unlisted += 1,
            _ => self.failed.push(failed),
        }
    }

    /// Has an object tried again, if there is room for it.
    pub fn defer(&mut self, deferred: Deferred) {
        match self.later.len() {
            Self::MOST => self.give_up(deferred.failed),
            _ => self.later.push(deferred),
        }
    }
}

impl CursorStore for Forgetful {
    async fn load(&mut self) -> Result<Option<Cursor>, StoreError> {
        Ok(None)
    }

    async fn save(&mut self, _: &Cursor) -> Result<(), StoreError> {
        Ok(())
    }

    async fn clear(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Cause;

    fn failed(number: usize) -> Failed {
        Failed {
            resource: "secrets".into(),
            namespace: Some("a".into()),
            name: format!("s-{number}"),
            cause: Cause::NoAnswer,
        }
    }

    #[test]
    fn a_cursor_of_another_goal_is_none() {
        let mut saved = Cursor::new("one");
        saved.lane("secrets").after = "a/b".into();
        assert!(saved.is_begun());
        assert_eq!(Cursor::resume(Some(saved.clone()), "one"), saved);
        assert_eq!(Cursor::resume(Some(saved.clone()), "two"), Cursor::new("two"));
        saved.version = 2;
        assert_eq!(Cursor::resume(Some(saved), "one"), Cursor::new("one"));
        assert!(!Cursor::resume(None, "one").is_begun());
    }

    #[test]
    fn what_is_listed_is_bounded_and_what_is_not_is_counted() {
        let mut lane = Lane::default();
        for number in 0..Lane::MOST + 7 {
            lane.defer(Deferred { failed: failed(number), tries: 1 });
        }
        assert_eq!((lane.later.len(), lane.failed.len()), (Lane::MOST, 7));
        for number in 0..Lane::MOST {
            lane.give_up(failed(number));
        }
        assert_eq!((lane.failed.len(), lane.unlisted), (Lane::MOST, 7));
        assert_eq!(lane.done["secrets"].failed, Lane::MOST as u64 + 7);
    }
}
