//! Defects that controllers had, planted.
//!
//! Most are a check that is not made: the core is told that what it would have checked is so. The others do a step
//! otherwise. Numbers are those of the reports in `docs/decisions/0023-rotations.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Engine, OBJECTS, Object, World};
use crate::{
    Count, File, Intent, KeyIdReport, Layout, NewKeyReason, Observed, ProviderId, Record, ServerFile, Shape,
    Slot, Step, Task, desired,
};

/// A defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mutation {
    #[default]
    None,
    /// The old key goes with the promotion of the new one, which an interruption of the rewrite made final.
    DropsAtOnce,
    /// The new key writes as soon as it is there.
    WritesAtOnce,
    /// The first error ends the rewrite, and what was said of it is taken for a proof.
    PartialIsDone,
    /// Only the first of several namespaces is rewritten, and looked at.
    OneNamespace,
    /// A terminating server counts as gone.
    TerminatingIsGone,
    /// A server that can't be reached counts as gone.
    SilentIsGone,
    /// Nothing is written while a server has not loaded what it has.
    NoFixForward,
    /// It is not kept which key id was migrated to.
    ForgetsKeyId,
    /// A plugin that reports nothing agrees.
    SilenceIsAgreement,
    /// A plugin's report counts from the first moment on.
    NoFiveMinutes,
    /// A key whose record is lost or damaged is left out of the configuration.
    UnbackedIsDropped,
    /// The file of a server is taken for what it runs with.
    FileIsLoaded,
    /// A second rotation does not wait for the first, and two keys are kept.
    SecondRotation,
    /// That the migration is finished is said once, and by then the old key has gone.
    SaidOnce,
    /// One old key is kept for ever.
    Spare,
    /// Backups are forgotten.
    NoBackups,
    /// A count of any turn is taken for one of this.
    OldCounts,
    /// Old revisions are not looked at.
    NoRevisions,
    /// Another controller's step is done, however late.
    NotFenced,
}

impl Mutation {
    /// What is observed, as the defect has it.
    pub(super) fn lie(self, observed: &mut Observed) {
        match self {
            Self::PartialIsDone => claims_are_counts(observed),
            Self::TerminatingIsGone => observed.servers.retain(|_, server| !server.terminating),
            Self::SilentIsGone => {
                observed.servers.retain(|_, server| server.loaded.is_some());
                observed.expected = observed.servers.keys().cloned().collect();
            }
            Self::ForgetsKeyId => {
                let courses = observed.progress.iter_mut().flat_map(|progress| progress.courses.values_mut());
                courses.flat_map(|course| &mut course.claim).for_each(|claim| claim.key_id = None);
            }
            Self::SilenceIsAgreement => {
                let reports: BTreeMap<ProviderId, KeyIdReport> =
                    observed.servers.values().flat_map(|server| server.key_ids.clone()).collect();
                for server in observed.servers.values_mut().filter(|server| server.key_ids.is_empty()) {
                    server.key_ids.clone_from(&reports);
                }
            }
            Self::NoFiveMinutes => {
                let reports = observed.servers.values_mut().flat_map(|server| server.key_ids.values_mut());
                reports.for_each(|report| report.since = Intent::KEY_ID_STABLE_FOR);
            }
            Self::FileIsLoaded => {
                let servers = observed.servers.values_mut().filter(|server| server.loaded.is_some());
                servers.for_each(|server| server.loaded.clone_from(&server.file));
            }
            Self::NoBackups => observed.backups.clear(),
            Self::OldCounts => {
                let courses = observed.progress.iter().flat_map(|progress| &progress.courses);
                for (resources, course) in courses {
                    let mut configurations =
                        observed.servers.values().flat_map(|server| server.file.iter().chain(&server.loaded));
                    let is_settled =
                        configurations.all(|file| file.layout(resources).writer() == course.writer);
                    if let Some(count) = observed.census.get_mut(resources).filter(|_| is_settled) {
                        (count.turn, count.after_claim) = (course.turn, false);
                    }
                }
            }
            Self::NoRevisions => {
                let counts = observed.census.values_mut().flat_map(|count| count.stored.values_mut());
                counts.for_each(|need| need.revisions = 0);
            }
            Self::None
            | Self::DropsAtOnce
            | Self::SaidOnce
            | Self::WritesAtOnce
            | Self::OneNamespace
            | Self::NoFixForward
            | Self::UnbackedIsDropped
            | Self::SecondRotation
            | Self::Spare
            | Self::NotFenced => {}
        }
    }

    /// What is done, as the defect has it.
    pub(super) fn bend(self, step: Step, observed: &Observed) -> Step {
        let is_interrupted =
            |task: &Task| observed.engine.get(&task.resource).is_some_and(|report| report.turn == task.turn);
        match (self, step) {
            (Self::DropsAtOnce, Step::Migrate(tasks))
                if tasks.iter().any(is_interrupted) && is_read_by_two(observed) =>
            {
                let files = observed.servers.iter().filter_map(|(name, server)| {
                    let file = server.file.clone()?;
                    Some(ServerFile { server: name.clone(), replaces: Some(file.clone()), file })
                });
                rewritten(files.collect(), |layout, _| {
                    let id = layout.writer().key();
                    Layout::new(layout.writer(), id.map(|id| (id, layout.keys()[&id])).into_iter().collect())
                })
            }
            (Self::WritesAtOnce, Step::Write(files)) => rewritten(files, |layout, _| {
                let newest = layout.keys().keys().next_back().map_or(Slot::Plain, |id| Slot::Key(*id));
                Layout::new(newest, layout.keys().clone())
            }),
            (Self::UnbackedIsDropped, Step::Write(files)) => rewritten(files, |layout, _| {
                let is_backed = |id: &ProviderId| matches!(observed.records.get(id), Some(Record::Intact(_)));
                let keys: BTreeMap<ProviderId, Shape> = layout
                    .keys()
                    .iter()
                    .filter(|(id, _)| is_backed(id))
                    .map(|(id, shape)| (*id, *shape))
                    .collect();
                let newest = keys.keys().next_back().map_or(Slot::Plain, |id| Slot::Key(*id));
                Layout::new(layout.writer(), keys.clone()).or_else(|| Layout::new(newest, keys))
            }),
            (Self::SecondRotation, Step::Write(files)) => rewritten(files, |layout, _| {
                let newest: BTreeSet<ProviderId> = layout.keys().keys().rev().take(2).copied().collect();
                let is_kept = |id: &ProviderId| newest.contains(id) || layout.writer() == Slot::Key(*id);
                let keys = layout.keys().iter().filter(|(id, _)| is_kept(id));
                Layout::new(layout.writer(), keys.map(|(id, shape)| (*id, *shape)).collect())
            }),
            (Self::SecondRotation, Step::Migrate(_) | Step::Prove(_) | Step::Wait(_))
                if !desired(observed).decisions.new_key.is_empty() =>
            {
                let id = observed.records.keys().next_back().map_or(0, |id| id.0) + 1;
                let because = vec![NewKeyReason::Reason];
                let wanted = observed.intent.wanted.clone();
                Step::CreateKey { id: ProviderId(id), wanted, because, history: Vec::new() }
            }
            (Self::Spare, Step::Write(files)) => rewritten(files, |layout, old| {
                let is_last = layout.keys().len() <= 1;
                let spare = old.keys().iter().rev().find(|(id, _)| !layout.keys().contains_key(id));
                let keys = layout.keys().iter().chain(spare.filter(|_| is_last));
                Layout::new(layout.writer(), keys.map(|(id, shape)| (*id, *shape)).collect())
            }),
            (Self::NoFixForward, Step::Write(_))
                if observed.servers.values().any(|server| server.file != server.loaded) =>
            {
                Step::Wait(BTreeMap::new())
            }
            (_, step) => step,
        }
    }

    /// What the engine says after some objects.
    pub(super) fn is_finished(self, is_done: impl Iterator<Item = bool>) -> bool {
        let done: Vec<bool> = is_done.collect();
        match self {
            Self::PartialIsDone | Self::OneNamespace => done.contains(&true),
            _ => !done.contains(&false),
        }
    }

    /// Whether a census sees an object.
    pub(super) fn counts(self, object: Object) -> bool {
        self != Self::OneNamespace || object.is_done
    }

    /// Whether a step is done only if nothing that it rests on was changed.
    pub(super) fn is_fenced(self) -> bool {
        self != Self::NotFenced
    }

    /// An engine starts anew; one that said its word once does not.
    pub(super) fn forget(self, world: &mut World, entry: usize, entries: usize) {
        if self == Self::SaidOnce {
            world.engines[entry].is_finished = false;
            return;
        }
        world.engines[entry] = Engine::default();
        for object in (0..OBJECTS).filter(|object| World::entry_of(*object, entries) == entry) {
            world.objects[object].is_done = false;
        }
    }
}

fn is_read_by_two(observed: &Observed) -> bool {
    let files = observed.servers.values().flat_map(|server| &server.file);
    files.flat_map(|file| file.0.values()).any(|layout| layout.keys().len() > 1)
}

/// What is claimed to be migrated counts as proven.
fn claims_are_counts(observed: &mut Observed) {
    let courses = observed.progress.iter().flat_map(|progress| &progress.courses);
    for (resources, course) in courses {
        if let Some(claim) = &course.claim {
            let (turn, key_id) = (course.turn, claim.key_id.clone());
            let count = Count { turn, key_id, after_claim: true, stored: BTreeMap::new() };
            observed.census.insert(resources.clone(), count);
        }
    }
}

/// The same files with other layouts, given what stands there now.
fn rewritten(files: Vec<ServerFile>, other: impl Fn(&Layout, &Layout) -> Option<Layout>) -> Step {
    let rewritten = files.into_iter().map(|written| {
        let old = written.replaces.clone().unwrap_or_default();
        let entries = written.file.0.iter().filter_map(|(resources, layout)| {
            Some((resources.clone(), other(layout, old.layout(resources))?))
        });
        ServerFile { file: File(entries.collect()), ..written }
    });
    Step::Write(rewritten.collect())
}
