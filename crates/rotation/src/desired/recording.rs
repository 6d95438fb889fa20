//! What to record.

use std::collections::BTreeSet;

use super::view::View;
use crate::{
    Change, Claim, Count, Course, Entry, Outcome, PluginKeyId, Progress, ProviderId, Resources, Slot, Stored,
    Turn,
};

impl View<'_> {
    /// What should be recorded, and what that changes.
    pub(super) fn recorded(&self) -> (Progress, Vec<Entry>) {
        let mut next = Progress { highest: self.highest(), ..self.progress.clone() };
        let mut changes = Vec::new();
        for resource in self.resources() {
            match self.progress.courses.get(&resource) {
                None => self.adopt(&resource, &mut next, &mut changes),
                Some(course) => self.go_on(&resource, course, &mut next, &mut changes),
            }
        }
        let deployed = next.courses.values().flat_map(|course| &course.keys).copied();
        next.deployed = deployed.fold(next.deployed, ProviderId::max);
        self.key_ids(&mut next, &mut changes);
        (next, changes.into_iter().map(|change| self.entry(change)).collect())
    }

    /// A resource of which nothing is recorded is taken as it is found. Where servers differ, all that any of them has is
    /// read before one of them writes what another one does.
    fn adopt(&self, resource: &Resources, next: &mut Progress, changes: &mut Vec<Change>) {
        let writers: BTreeSet<Slot> = self.layouts(resource).map(|(_, layout)| layout.writer()).collect();
        let Some(writer) = writers.last().copied() else { return };
        let mut keys = self.keys_in_use(resource);
        if self.observed.progress.is_none() && self.configurations().all(|(_, file)| file.0.is_empty()) {
            // Everything is lost but the records, so that any of them may be needed.
            let records = self.observed.records.iter();
            keys.extend(records.filter(|(_, record)| record.intact().is_some()).map(|(id, _)| *id));
        }
        next.turn = next.turn.next();
        changes.push(Change::Adopted { resource: resource.clone(), writer, keys: keys.clone() });
        let course = Course { turn: next.turn, writer, keys, claim: None, encrypted: false };
        next.courses.insert(resource.clone(), course);
    }

    fn go_on(&self, resource: &Resources, course: &Course, next: &mut Progress, changes: &mut Vec<Change>) {
        let mut course = course.clone();
        if self.is_leaving(resource) && self.configurations().all(|(_, file)| !file.0.contains_key(resource))
        {
            next.courses.remove(resource);
            changes.push(Change::Left { resource: resource.clone() });
            return;
        }
        let old = course.keys.clone();
        let goal = self.goal_of(resource);
        let found = self.found_stored(resource);
        let wanted = self.keys_in_use(resource).into_iter().chain(goal.key()).chain(found);
        // What a count of before found is no reason, either, once nothing holds it: it would come and go for ever.
        course.keys = wanted.filter(|id| !self.held(resource, *id).is_empty()).collect();
        if course.keys != old {
            let unproven =
                old.difference(&course.keys).filter(|_| self.count(resource).is_none()).copied().collect();
            let new = course.keys.clone();
            changes.push(Change::Read { resource: resource.clone(), old, new, unproven });
        }
        if goal != course.writer {
            if self.all_read(resource, goal) {
                next.turn = next.turn.next();
                changes.push(Change::Promoted { resource: resource.clone(), old: course.writer, new: goal });
                let encrypted = course.encrypted && goal != Slot::Plain;
                course = Course { turn: next.turn, writer: goal, claim: None, encrypted, ..course };
            }
        } else if self.strays(resource, &course) {
            next.turn = next.turn.next();
            changes.push(Change::Strayed { resource: resource.clone(), writer: course.writer });
            (course.turn, course.claim) = (next.turn, None);
        } else if self.unsettled(resource, course.writer).is_none() {
            self.claim(resource, &mut course, &mut next.turn, changes);
        }
        next.courses.insert(resource.clone(), course);
    }

    /// Whether a server writes something else after it had been settled what writes: an old file came back.
    fn strays(&self, resource: &Resources, course: &Course) -> bool {
        let was_settled = course.claim.is_some() || self.count(resource).is_some();
        was_settled && self.layouts(resource).any(|(_, layout)| layout.writer() != course.writer)
    }

    fn claim(&self, resource: &Resources, course: &mut Course, turn: &mut Turn, changes: &mut Vec<Change>) {
        let key_id = self.target(resource).cloned();
        if self.needs_target(resource) && key_id.is_none() {
            return;
        }
        let count = self.count(resource).filter(|count| count.key_id == key_id);
        let is_stale = count.is_some_and(|count| self.stale(resource, count));
        if self.is_claimed(resource) {
            // While plugins are on their way to another key id, what they write meanwhile contradicts nothing.
            let provider = course.writer.key().filter(|_| key_id.is_some());
            let is_quiet = provider.is_none_or(|id| self.agreed_key_id(id) == key_id.as_ref());
            if is_stale && is_quiet && count.is_some_and(|count| count.after_claim) {
                // The engine's word of this turn is void, too: it would be taken for the next one.
                *turn = turn.next();
                (course.turn, course.claim) = (*turn, None);
                changes.push(Change::NotMigrated { resource: resource.clone() });
            }
            return;
        }
        let engine = self.observed.engine.get(resource);
        let is_finished = engine.is_some_and(|report| {
            report.outcome == Outcome::Finished && report.turn == course.turn && report.key_id == key_id
        });
        let counted = count.is_some() && !is_stale;
        // Where only plaintext is read, there is nothing that a server could rewrite.
        // A count that was taken on the way contradicts nothing; one that finds nothing to do needs no engine.
        if counted || is_finished || course.is_plain() {
            course.claim = Some(Claim { key_id: key_id.clone() });
            course.encrypted = course.writer != Slot::Plain;
            let (resource, writer) = (resource.clone(), course.writer);
            changes.push(Change::Migrated { resource, writer, key_id, counted });
        }
    }

    /// The last count, if it is of this turn.
    pub(super) fn count(&self, resource: &Resources) -> Option<&Count> {
        let course = self.progress.courses.get(resource)?;
        self.observed.census.get(resource).filter(|count| count.turn == course.turn)
    }

    /// Keys that the last count found, of whichever turn, and that can be had: no configuration should be without them.
    fn found_stored(&self, resource: &Resources) -> Vec<ProviderId> {
        let stored = self.observed.census.get(resource).into_iter().flat_map(|count| &count.stored);
        let objects = stored.filter(|(_, need)| need.objects > 0).filter_map(|(stored, _)| stored.slot.key());
        objects.filter(|id| self.shape(*id).is_some()).collect()
    }

    /// Whether objects are stored otherwise than they would be now, and could be rewritten.
    fn stale(&self, resource: &Resources, count: &Count) -> bool {
        let Some(course) = self.progress.courses.get(resource) else { return false };
        let target = self.target(resource);
        // A plugin that went on to yet another key id writes under that one: the next migration is about it.
        let is_reported = |id: ProviderId, key_id: &PluginKeyId| {
            let mut servers = self.observed.servers.values();
            servers.any(|server| server.key_ids.get(&id).is_some_and(|report| report.key_id == *key_id))
        };
        let is_fresh = |stored: &Stored| {
            stored.slot == course.writer
                && (target.is_none()
                    || stored.key_id.as_ref() == target
                    || stored
                        .key_id
                        .as_ref()
                        .is_some_and(|key_id| stored.slot.key().is_some_and(|id| is_reported(id, key_id))))
        };
        // What no server can read can't be rewritten by one either.
        let is_read =
            |slot: Slot| slot.key().is_none_or(|id| course.keys.contains(&id) && self.shape(id).is_some());
        count
            .stored
            .iter()
            .any(|(stored, need)| need.objects > 0 && !is_fresh(stored) && is_read(stored.slot))
    }
}
