//! What to do next, in order.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Age, Change, Course, Decisions, File, Held, Hold, Lag, NewKeyReason, Observed, PluginKeyId, Proposal,
    ProviderId, Resources, ServerName, Slot, Step, Task, Verdict,
};
use goal::Goal;
use view::View;

mod files;
mod goal;
mod held;
mod key_ids;
mod recording;
mod view;

/// What to do next about one component, and what there is to know about it.
pub fn desired(observed: &Observed) -> Verdict {
    let view = View::of(observed);
    Verdict { step: view.step(), decisions: view.decisions() }
}

/// Whether nothing needs what a plugin wrote under this key id any more, so that the root key's version behind it may be
/// destroyed: no server reports it or can be writing under it, a count of this turn found nothing, and no backup has it.
pub fn is_unneeded(observed: &Observed, provider: ProviderId, key_id: &PluginKeyId) -> bool {
    View::of(observed).is_unneeded(provider, key_id)
}

/// The step alone, for whoever asks a million times.
#[cfg(test)]
pub(crate) fn next_step(observed: &Observed) -> Step {
    View::of(observed).step()
}

/// What would be lost if every server had `proposed` as its file: keys that it lacks and that something needs.
pub fn strands(observed: &Observed, proposed: &File) -> BTreeMap<ProviderId, Vec<Held>> {
    let view = View::of(observed);
    let mut stranded: BTreeMap<ProviderId, Vec<Held>> = BTreeMap::new();
    for resource in view.resources() {
        let layout = proposed.layout(&resource);
        for id in view.keys_in_use(&resource).into_iter().filter(|id| !layout.reads(Slot::Key(*id))) {
            let held = view.held(&resource, id);
            if !held.is_empty() {
                stranded.entry(id).or_default().extend(held);
            }
        }
    }
    stranded
}

impl View<'_> {
    fn step(&self) -> Step {
        let observed = self.observed;
        if observed.intent.paused {
            return Step::Hold(Hold::Paused);
        }
        // A list that came out empty is a list that could not be had.
        if observed.expected.is_empty() {
            return Step::Hold(Hold::NoServers);
        }
        if self.was_never_encrypted() {
            return Step::Done;
        }
        let (progress, history) = self.recorded();
        if progress != self.progress {
            return Step::Record { progress, history };
        }
        let is_urgent =
            |reason: &NewKeyReason| matches!(reason, NewKeyReason::Lost(_) | NewKeyReason::Damaged(_));
        let new_key = match &self.goal {
            Goal::New(because) => Some(because),
            Goal::Slot(_) => None,
        };
        // What can't be made again from its record is left at once: waiting for its migration gains nothing.
        if let Some(because) = new_key.filter(|because| because.iter().any(is_urgent)) {
            return self.new_key(because);
        }
        let files = self.files_to_write();
        if !files.is_empty() {
            return Step::Write(files);
        }
        let migrations = self.migrations();
        if !migrations.is_empty() {
            return Step::Migrate(migrations);
        }
        let proofs = self.proofs();
        if !proofs.is_empty() {
            return Step::Prove(proofs);
        }
        let lagging = self.lagging();
        if !lagging.is_empty() {
            return Step::Wait(lagging);
        }
        // A second rotation before the first one is through would pile up keys, and with a plugin's root key that is
        // rotated at will, leave data under versions that nobody counts.
        if let Some(because) = new_key {
            return self.new_key(because);
        }
        match self.key_id_to_approve() {
            Some(proposal) => Step::Propose(proposal),
            None => Step::Done,
        }
    }

    fn new_key(&self, because: &[NewKeyReason]) -> Step {
        let Some(id) = self.highest().next() else { return Step::Hold(Hold::NoNumbersLeft) };
        let wanted = self.observed.intent.wanted.clone();
        let proposal = Proposal::Key { id, wanted: wanted.clone() };
        if !self.may_go_on(&proposal) {
            return Step::Propose(proposal);
        }
        let because = because.to_vec();
        let approved = self.approved_by(&proposal);
        let history = vec![self.entry(Change::KeyCreated { id, because: because.clone(), approved })];
        Step::CreateKey { id, wanted, because, history }
    }

    /// Resources whose writer is the one that is wanted, on every server, and that are not migrated to it.
    fn migrations(&self) -> Vec<Task> {
        let to_migrate = |resource: &&Resources| {
            self.is_on_course(resource)
                && !self.is_claimed(resource)
                && (self.target(resource).is_some() || !self.needs_target(resource))
        };
        self.progress.courses.keys().filter(to_migrate).filter_map(|resource| self.task(resource)).collect()
    }

    /// Resources that are migrated by somebody's word only, and those with keys that nothing holds but the lack of a count.
    fn proofs(&self) -> Vec<Task> {
        if !self.observed.has_census {
            return Vec::new();
        }
        let to_prove = |(resource, course): &(&Resources, &Course)| {
            let is_counted =
                self.count(resource).is_some_and(|count| count.key_id.as_ref() == self.target(resource));
            let would_be_freed = |id: ProviderId| self.would_be_freed_by_a_count(resource, id);
            self.is_on_course(resource)
                && self.is_claimed(resource)
                && !course.is_plain()
                && (!is_counted || self.keys_in_use(resource).into_iter().any(would_be_freed))
        };
        let courses = self.progress.courses.iter().filter(to_prove);
        courses.filter_map(|(resource, _)| self.task(resource)).collect()
    }

    fn task(&self, resource: &Resources) -> Option<Task> {
        let course = self.progress.courses.get(resource)?;
        let key_id = self.target(resource).cloned();
        Some(Task { resource: resource.clone(), turn: course.turn, writer: course.writer, key_id })
    }

    fn lagging(&self) -> BTreeMap<ServerName, Lag> {
        let mut lagging = BTreeMap::new();
        let observed = self.observed;
        for name in observed.expected.iter().chain(observed.servers.keys()) {
            let lag = match observed.servers.get(name) {
                None => Some(Lag::Absent),
                Some(server) if server.terminating => Some(Lag::Terminating),
                Some(_) if !observed.expected.contains(name) => Some(Lag::Unexpected),
                Some(server) => match (&server.file, &server.loaded) {
                    (None, _) => Some(Lag::NoFile),
                    (_, None) => Some(Lag::Silent),
                    (Some(file), Some(loaded)) if file != loaded => Some(Lag::NotLoaded),
                    _ => self.silent_plugin(name).map(Lag::KeyId),
                },
            };
            lagging.extend(lag.map(|lag| (name.clone(), lag)));
        }
        lagging
    }

    fn decisions(&self) -> Decisions {
        let observed = self.observed;
        let resources = self.resources();
        let in_use: BTreeSet<ProviderId> =
            resources.iter().flat_map(|resource| self.keys_in_use(resource)).collect();
        let mut held: BTreeMap<ProviderId, Vec<Held>> = BTreeMap::new();
        for resource in &resources {
            for id in self.keys_in_use(resource) {
                held.entry(id).or_default().extend(self.held(resource, id));
            }
        }
        let writes =
            |id: &ProviderId| self.progress.courses.values().any(|course| course.writer == Slot::Key(*id));
        held.retain(|id, _| !writes(id));
        let slots = in_use.iter().map(|id| Slot::Key(*id)).chain([Slot::Plain]);
        let is_needed = |id: &ProviderId| {
            in_use.contains(id)
                || self.goal.slot() == Some(Slot::Key(*id))
                || self.is_counted(*id)
                || !self.backups_with(*id).is_empty()
        };
        Decisions {
            goal: self.goal.slot(),
            new_key: self.goal.reasons().to_vec(),
            lagging: self.lagging(),
            held,
            // A record that was just made is not one that was left.
            prunable: observed
                .records
                .keys()
                .filter(|id| !is_needed(id) && !self.is_fresh(**id))
                .copied()
                .collect(),
            gone: in_use.iter().filter(|id| self.shape(**id).is_none()).copied().collect(),
            unbacked: in_use.iter().filter(|id| self.intact(**id).is_none()).copied().collect(),
            could_write: slots
                .filter(|slot| {
                    !resources.is_empty() && resources.iter().all(|resource| self.all_read(resource, *slot))
                })
                .collect(),
            from_the_future: observed
                .records
                .iter()
                .filter(|(_, record)| record.intact().is_some_and(|key| key.migrated == Age::InTheFuture))
                .map(|(id, _)| *id)
                .collect(),
        }
    }
}
