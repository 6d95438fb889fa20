//! Questions about what was observed.

use std::collections::BTreeSet;

use casemate_encryption_config::Scheme;

use super::goal::Goal;
use crate::{
    Change, Entry, File, Key, Layout, Observed, PluginKeyId, Progress, Proposal, ProviderId, Resources,
    Server, ServerName, Shape, Slot, Wanted,
};

pub(super) struct View<'a> {
    pub(super) observed: &'a Observed,
    pub(super) progress: Progress,
    pub(super) goal: Goal,
}

impl<'a> View<'a> {
    pub(super) fn of(observed: &'a Observed) -> Self {
        let progress = observed.progress.clone().unwrap_or_default();
        let mut view = Self { observed, progress, goal: Goal::Slot(Slot::Plain) };
        view.goal = view.find_goal();
        view
    }

    /// All that anything is known of.
    pub(super) fn resources(&self) -> BTreeSet<Resources> {
        let in_files = self.configurations().flat_map(|(_, file)| file.0.keys());
        let wanted = self.observed.intent.resources.iter();
        self.progress.courses.keys().chain(wanted).chain(in_files).cloned().collect()
    }

    /// Every configuration that a server has on disk or runs with.
    pub(super) fn configurations(&self) -> impl Iterator<Item = (&'a ServerName, &'a File)> {
        let servers = self.observed.servers.iter();
        servers
            .flat_map(|(name, server)| server.file.iter().chain(&server.loaded).map(move |file| (name, file)))
    }

    pub(super) fn layouts(&self, resource: &Resources) -> impl Iterator<Item = (&'a ServerName, &'a Layout)> {
        self.configurations().map(move |(name, file)| (name, file.layout(resource)))
    }

    /// The keys of a resource that some configuration has, or that every one should.
    pub(super) fn keys_in_use(&self, resource: &Resources) -> BTreeSet<ProviderId> {
        let recorded = self.progress.courses.get(resource).into_iter().flat_map(|course| &course.keys);
        self.layouts(resource).flat_map(|(_, layout)| layout.keys().keys()).chain(recorded).copied().collect()
    }

    /// Whether every server that runs or will can read what is stored so.
    pub(super) fn all_read(&self, resource: &Resources, slot: Slot) -> bool {
        self.all_are_known() && self.servers_read(resource, slot, |_| true)
    }

    /// Whether those servers can read it, all of them that were found.
    pub(super) fn servers_read(
        &self,
        resource: &Resources,
        slot: Slot,
        chosen: impl Fn(&ServerName) -> bool,
    ) -> bool {
        let reads = |file: &Option<File>| file.as_ref().is_some_and(|file| file.layout(resource).reads(slot));
        let mut servers = self.observed.servers.iter().filter(|(name, _)| chosen(name));
        // One on its way out never reads its file again.
        servers.all(|(_, server)| reads(&server.loaded) && (server.terminating || reads(&server.file)))
    }

    /// Whether every expected server was found.
    pub(super) fn all_are_known(&self) -> bool {
        let observed = self.observed;
        !observed.expected.is_empty()
            && observed.expected.iter().all(|name| observed.servers.contains_key(name))
    }

    /// The first server that may write something else than `writer`: it does, it will when it restarts, or nobody knows.
    pub(super) fn unsettled(&self, resource: &Resources, writer: Slot) -> Option<&'a ServerName> {
        let observed = self.observed;
        let writes =
            |file: &Option<File>| file.as_ref().is_some_and(|file| file.layout(resource).writer() == writer);
        let is_settled =
            |server: &Server| !server.terminating && writes(&server.file) && writes(&server.loaded);
        let found = observed.servers.iter().find(|(_, server)| !is_settled(server)).map(|(name, _)| name);
        found.or_else(|| observed.expected.iter().find(|name| !observed.servers.contains_key(*name)))
    }

    /// Whether the writer of a resource is the one that is wanted, on every server.
    pub(super) fn is_on_course(&self, resource: &Resources) -> bool {
        let Some(course) = self.progress.courses.get(resource) else { return false };
        self.goal_of(resource) == course.writer && self.unsettled(resource, course.writer).is_none()
    }

    /// What a key looks like, wherever that can be had from; its record comes first, so that a change of settings
    /// reaches every file.
    pub(super) fn shape(&self, id: ProviderId) -> Option<Shape> {
        let recorded = self.intact(id).map(|key| Shape { scheme: key.scheme, settings: key.settings });
        let in_files = || {
            let layouts = self.configurations().flat_map(|(_, file)| file.0.values());
            layouts.filter_map(|layout| layout.keys().get(&id).copied()).max()
        };
        recorded.or_else(in_files)
    }

    pub(super) fn intact(&self, id: ProviderId) -> Option<&'a Key> {
        self.observed.records.get(&id)?.intact()
    }

    /// The highest number that anything knows.
    pub(super) fn highest(&self) -> ProviderId {
        let observed = self.observed;
        let in_files = self
            .configurations()
            .flat_map(|(_, file)| file.0.values().flat_map(|layout| layout.keys().keys()));
        let stored = observed
            .backups
            .values()
            .flatten()
            .chain(observed.census.values().flat_map(|count| count.stored.keys()));
        let stored = stored.filter_map(|stored| stored.slot.key());
        let recorded = self.progress.courses.values().flat_map(|course| &course.keys);
        let known = observed.records.keys().chain(in_files).chain(recorded).copied().chain(stored);
        known.fold(self.progress.highest, ProviderId::max)
    }

    /// Whether nobody ever encrypted anything here, nor wants to: then nothing is to be written or recorded.
    pub(super) fn was_never_encrypted(&self) -> bool {
        let observed = self.observed;
        let is_empty = |file: &Option<File>| file.as_ref().is_some_and(|file| file.0.is_empty());
        observed.intent.wanted == Wanted::Identity
            && observed.progress.is_none()
            && observed.records.is_empty()
            && self.all_are_known()
            && observed.servers.values().all(|server| is_empty(&server.file) && is_empty(&server.loaded))
    }

    pub(super) fn is_wanted(&self, resource: &Resources) -> bool {
        self.observed.intent.resources.contains(resource)
    }

    /// Whether the key that writes a resource belongs to a plugin with key ids.
    pub(super) fn needs_target(&self, resource: &Resources) -> bool {
        let writer = self.progress.courses.get(resource).and_then(|course| course.writer.key());
        writer.is_some_and(|id| self.has_key_ids(id))
    }

    pub(super) fn has_key_ids(&self, id: ProviderId) -> bool {
        self.shape(id).is_some_and(|shape| shape.scheme == Scheme::KmsV2)
    }

    /// The key id that a resource is to be migrated to.
    pub(super) fn target(&self, resource: &Resources) -> Option<&PluginKeyId> {
        let writer = self.progress.courses.get(resource)?.writer.key()?;
        Some(&self.progress.key_ids.get(&writer).filter(|_| self.has_key_ids(writer))?.target)
    }

    /// Whether a resource is migrated to what writes it, so far as is recorded.
    pub(super) fn is_claimed(&self, resource: &Resources) -> bool {
        let Some(course) = self.progress.courses.get(resource) else { return false };
        let is_of_target = |claim: &crate::Claim| claim.key_id.as_ref() == self.target(resource);
        course.claim.as_ref().is_some_and(is_of_target)
    }

    pub(super) fn approved_by(&self, proposal: &Proposal) -> BTreeSet<String> {
        self.observed.approvals.get(proposal).cloned().unwrap_or_default()
    }

    /// Whoever wants a change does not approve it.
    pub(super) fn may_go_on(&self, proposal: &Proposal) -> bool {
        let intent = &self.observed.intent;
        !intent.needs_approval || self.approved_by(proposal).iter().any(|who| *who != intent.by)
    }

    pub(super) fn entry(&self, change: Change) -> Entry {
        Entry { by: self.observed.by.clone(), at: self.observed.at, change }
    }
}
