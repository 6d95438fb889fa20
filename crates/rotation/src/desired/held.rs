//! What holds a key back.

use super::view::View;
use crate::{Held, HeldBy, Need, ProviderId, Resources, Slot};

impl View<'_> {
    /// What holds a key in the configuration of a resource. Nothing: it may go.
    pub(super) fn held(&self, resource: &Resources, id: ProviderId) -> Vec<Held> {
        let held = |by| Held { resource: resource.clone(), by };
        let slot = Slot::Key(id);
        let Some(course) = self.progress.courses.get(resource) else { return vec![held(HeldBy::Unproven)] };
        if course.writer == slot || self.goal_of(resource) == slot {
            return vec![held(HeldBy::Writer)];
        }
        let mut all = Vec::new();
        all.extend(
            self.unsettled(resource, course.writer).map(|server| held(HeldBy::Server(server.clone()))),
        );
        all.extend(self.counted(resource, id).into_iter().map(held));
        all.extend(self.backups_with(id).into_iter().map(|name| held(HeldBy::Backup(name.clone()))));
        all
    }

    /// What a count of this turn says of a key, or that there is none.
    fn counted(&self, resource: &Resources, id: ProviderId) -> Vec<HeldBy> {
        let course = self.progress.courses.get(resource);
        let count = self.observed.census.get(resource);
        let Some(count) = count.filter(|count| course.is_some_and(|course| count.turn == course.turn)) else {
            let accepted = self.observed.intent.accept_unproven.get(&id);
            // Consent of an earlier turn is not one to what happened since.
            let is_accepted = accepted == Some(&self.progress.turn) && self.is_claimed(resource);
            return if is_accepted { Vec::new() } else { vec![HeldBy::Unproven] };
        };
        let needs =
            count.stored.iter().filter(|(stored, _)| stored.slot == Slot::Key(id)).map(|(_, need)| need);
        let total = needs.fold(Need::default(), |sum, need| Need {
            objects: sum.objects.saturating_add(need.objects),
            revisions: sum.revisions.saturating_add(need.revisions),
        });
        let held = [
            (total.objects, HeldBy::Objects(total.objects)),
            (total.revisions, HeldBy::Revisions(total.revisions)),
        ];
        held.into_iter().filter(|(number, _)| *number > 0).map(|(_, by)| by).collect()
    }

    /// Whether all that a key waits for is that somebody counts, again or for the first time.
    pub(super) fn would_be_freed_by_a_count(&self, resource: &Resources, id: ProviderId) -> bool {
        let held = self.held(resource, id);
        !held.is_empty()
            && self.shape(id).is_some()
            && held.iter().all(|held| match held.by {
                HeldBy::Unproven | HeldBy::Revisions(_) | HeldBy::Objects(_) => true,
                HeldBy::Writer | HeldBy::Server(_) | HeldBy::Backup(_) => false,
            })
    }

    /// Whether the last count of anything found it.
    pub(super) fn is_counted(&self, id: ProviderId) -> bool {
        let mut counts = self.observed.census.values();
        counts.any(|count| {
            count.stored.iter().any(|(stored, need)| stored.slot == Slot::Key(id) && *need != Need::default())
        })
    }

    pub(super) fn backups_with(&self, id: ProviderId) -> Vec<&String> {
        let backups = self.observed.backups.iter();
        backups
            .filter(|(_, needs)| needs.iter().any(|stored| stored.slot == Slot::Key(id)))
            .map(|(name, _)| name)
            .collect()
    }
}
