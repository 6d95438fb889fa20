//! Which key should write.

use casemate_encryption_config::Scheme;

use super::view::View;
use crate::{Age, Key, NewKeyReason, ProviderId, Record, Resources, Slot};

/// What should write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Plaintext, or a key that there is.
    Slot(Slot),
    /// A key that there is not.
    New(Vec<NewKeyReason>),
}

impl Goal {
    pub(super) fn slot(&self) -> Option<Slot> {
        match self {
            Self::Slot(slot) => Some(*slot),
            Self::New(_) => None,
        }
    }

    pub(super) fn reasons(&self) -> &[NewKeyReason] {
        match self {
            Self::Slot(_) => &[],
            Self::New(because) => because,
        }
    }
}

impl View<'_> {
    /// What should write a resource. As long as the key for it is not there, what wrote last goes on.
    pub(super) fn goal_of(&self, resource: &Resources) -> Slot {
        if !self.is_wanted(resource) {
            return Slot::Plain;
        }
        match self.goal {
            Goal::Slot(slot) => slot,
            Goal::New(_) => self.current().map_or(Slot::Plain, Slot::Key),
        }
    }

    pub(super) fn find_goal(&self) -> Goal {
        let wanted = &self.observed.intent.wanted;
        let Some(scheme) = wanted.scheme().filter(|_| !self.observed.intent.resources.is_empty()) else {
            return Goal::Slot(Slot::Plain);
        };
        let fits = |key: &Key| key.scheme == scheme && key.service.as_ref() == wanted.service();
        let current = self.current();
        let mut because = Vec::new();
        // Newer than this, if it is to be another one of the same kind.
        let mut newer_than = None;
        match current.map(|id| (id, self.observed.records.get(&id))) {
            None => because.push(NewKeyReason::NoKey),
            Some((id, None)) => because.push(NewKeyReason::Lost(id)),
            Some((id, Some(Record::Damaged { .. }))) => because.push(NewKeyReason::Damaged(id)),
            Some((_, Some(Record::Intact(key)))) if key.scheme != scheme => {
                because.push(NewKeyReason::Scheme)
            }
            Some((_, Some(Record::Intact(key)))) if !fits(key) => because.push(NewKeyReason::Service),
            Some((id, Some(Record::Intact(key)))) => {
                let used_up = self.used_up(id, key);
                if used_up.is_empty() {
                    return Goal::Slot(Slot::Key(id));
                }
                newer_than = Some(id);
                because.extend(used_up);
            }
        }
        // From A to B and back to A needs no third key, and a plugin's key needs no second provider: what is still read
        // everywhere can write again.
        let can_write = |id: ProviderId, key: &Key| {
            fits(key)
                && newer_than.is_none_or(|current| id > current)
                && self.used_up(id, key).is_empty()
                && (self.is_fresh(id) || self.is_deployed(id))
        };
        let keys =
            self.observed.records.iter().rev().filter_map(|(id, record)| Some((*id, record.intact()?)));
        match keys.into_iter().find(|(id, key)| can_write(*id, key)) {
            Some((id, _)) => Goal::Slot(Slot::Key(id)),
            None => Goal::New(because),
        }
    }

    /// The key that was last decided to write something that is still wanted.
    pub(super) fn current(&self) -> Option<ProviderId> {
        let courses = self.progress.courses.iter().filter(|(resource, _)| self.is_wanted(resource));
        let keys = courses.filter_map(|(_, course)| Some((course.turn, course.writer.key()?)));
        keys.max().map(|(_, id)| id)
    }

    /// Whether a key was made and never used.
    pub(super) fn is_fresh(&self, id: ProviderId) -> bool {
        id > self.progress.deployed && !self.is_deployed(id) && !self.is_counted(id)
    }

    fn is_deployed(&self, id: ProviderId) -> bool {
        self.resources().iter().any(|resource| self.keys_in_use(resource).contains(&id))
    }

    /// Why a local key is not to be used any more. A plugin's root key is rotated in its key service, and then its key id
    /// changes.
    fn used_up(&self, id: ProviderId, key: &Key) -> Vec<NewKeyReason> {
        let intent = &self.observed.intent;
        if key.scheme == Scheme::KmsV2 {
            return Vec::new();
        }
        let asked = intent.reason.as_deref().filter(|reason| !reason.is_empty());
        let is_asked = asked.is_some_and(|reason| key.reason.as_deref() != Some(reason));
        let is_old = intent.max_age.is_some_and(|max_age| match key.migrated {
            Age::Since(age) => age > max_age,
            // Of a key that is in use, since a time that nobody knows.
            Age::Unknown => self.current() == Some(id) && self.is_migrated(),
            Age::InTheFuture => false,
        });
        let reasons = [(is_asked, NewKeyReason::Reason), (is_old, NewKeyReason::Age)];
        reasons.into_iter().filter(|(is_so, _)| *is_so).map(|(_, reason)| reason).collect()
    }

    fn is_migrated(&self) -> bool {
        self.observed.intent.resources.iter().all(|resource| self.is_claimed(resource))
    }
}
