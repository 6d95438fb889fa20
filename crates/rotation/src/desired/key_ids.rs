//! A plugin's key ids, which change without any change of configuration.

use std::{collections::BTreeSet, time::Duration};

use super::view::View;
use crate::{
    Change, Count, KeyIdReport, KeyIds, Need, PluginKeyId, Progress, Proposal, ProviderId, Resources,
    ServerName, Slot, Stored,
};

impl View<'_> {
    pub(super) fn key_ids(&self, next: &mut Progress, changes: &mut Vec<Change>) {
        for provider in self.writing_plugins() {
            let reported = self.agreed_key_id(provider);
            let Some(known) = self.progress.key_ids.get(&provider) else {
                // The key was approved, and with it what its plugin reports. It must have been stable, too: a server may
                // write for a minute under what its plugin reported before.
                if let Some(new) = reported {
                    let approved = BTreeSet::new();
                    changes.push(Change::KeyId { provider, old: None, new: new.clone(), approved });
                    next.key_ids.insert(provider, KeyIds { target: new.clone(), migrated: None });
                }
                continue;
            };
            let mut known = known.clone();
            if known.migrated.as_ref() != Some(&known.target) {
                // One after the other: what was begun is finished first.
                let mut courses =
                    self.progress.courses.iter().filter(|(_, course)| course.writer == Slot::Key(provider));
                if courses.all(|(resource, _)| self.is_on_course(resource) && self.is_claimed(resource)) {
                    let (old, new) = (known.migrated.replace(known.target.clone()), known.target.clone());
                    changes.push(Change::KeyIdMigrated { provider, old, new });
                }
            } else if let Some(new) = reported.filter(|reported| **reported != known.target).cloned() {
                let proposal = Proposal::KeyId { provider, key_id: new.clone() };
                if self.may_go_on(&proposal) {
                    let (old, approved) = (Some(known.target), self.approved_by(&proposal));
                    changes.push(Change::KeyId { provider, old, new: new.clone(), approved });
                    known.target = new;
                }
            }
            next.key_ids.insert(provider, known);
        }
    }

    /// A new key id that waits for somebody's approval.
    pub(super) fn key_id_to_approve(&self) -> Option<Proposal> {
        let proposals = self.writing_plugins().into_iter().filter_map(|provider| {
            let target = &self.progress.key_ids.get(&provider)?.target;
            let key_id = self.agreed_key_id(provider).filter(|key_id| *key_id != target)?.clone();
            Some(Proposal::KeyId { provider, key_id })
        });
        proposals.into_iter().find(|proposal| !self.may_go_on(proposal))
    }

    /// Plugins that write, everywhere where they are to.
    fn writing_plugins(&self) -> BTreeSet<ProviderId> {
        let courses = self.progress.courses.iter().filter(|(resource, _)| self.is_on_course(resource));
        courses.filter_map(|(_, course)| course.writer.key()).filter(|id| self.has_key_ids(*id)).collect()
    }

    /// What the plugins of all expected servers report, and have for long enough.
    pub(super) fn agreed_key_id(&self, provider: ProviderId) -> Option<&PluginKeyId> {
        let observed = self.observed;
        // Of servers that are not expected, too: they write as well.
        let names = observed.expected.iter().chain(observed.servers.keys());
        let mut reports = names.map(|name| self.report(name, provider));
        let first = reports.next().flatten()?;
        let is_stable =
            |report: &KeyIdReport| report.since >= self.stable_for() && report.key_id == first.key_id;
        (is_stable(first) && reports.all(|report| report.is_some_and(is_stable))).then_some(&first.key_id)
    }

    /// A plugin of this server whose key id is waited for.
    pub(super) fn silent_plugin(&self, name: &ServerName) -> Option<ProviderId> {
        let mut plugins = self.writing_plugins().into_iter();
        plugins.find(|provider| {
            let target = self.progress.key_ids.get(provider).map(|known| &known.target);
            match (self.report(name, *provider), target) {
                (None, _) => true,
                (Some(report), Some(target)) => {
                    report.key_id != *target && self.agreed_key_id(*provider) != Some(&report.key_id)
                }
                (Some(_), None) => self.agreed_key_id(*provider).is_none(),
            }
        })
    }

    fn report(&self, name: &ServerName, provider: ProviderId) -> Option<&KeyIdReport> {
        self.observed.servers.get(name)?.key_ids.get(&provider)
    }

    fn stable_for(&self) -> Duration {
        self.observed.intent.key_id_stable_for
    }

    pub(super) fn is_unneeded(&self, provider: ProviderId, key_id: &PluginKeyId) -> bool {
        let observed = self.observed;
        let slot = Slot::Key(provider);
        let is_it = |stored: &Stored| {
            stored.slot == slot && stored.key_id.as_ref().is_none_or(|found| found == key_id)
        };
        let is_reported = || {
            let mut servers = observed.servers.values();
            servers.any(|server| server.key_ids.get(&provider).is_some_and(|report| report.key_id == *key_id))
        };
        let is_left_behind = || {
            if self.progress.courses.values().all(|course| course.writer != slot) {
                return true;
            }
            // What was reported for a moment only may still be in use.
            let Some(known) = self.progress.key_ids.get(&provider) else { return false };
            known.target != *key_id
                && known.migrated.as_ref() == Some(&known.target)
                && self.agreed_key_id(provider) == Some(&known.target)
        };
        let is_counted_out = |resources: &Resources| {
            let Some(course) = self.progress.courses.get(resources) else { return false };
            let count = observed.census.get(resources).filter(|count| count.turn == course.turn);
            let is_settled = self.unsettled(resources, course.writer).is_none();
            let is_of_now =
                |count: &&Count| course.writer != slot || count.key_id.as_ref() == self.target(resources);
            count.filter(is_of_now).is_some_and(|count| {
                is_settled
                    && count.stored.iter().all(|(stored, need)| !is_it(stored) || *need == Need::default())
            })
        };
        let mut users =
            self.resources().into_iter().filter(|resources| self.keys_in_use(resources).contains(&provider));
        let is_in_use =
            self.resources().iter().any(|resources| self.keys_in_use(resources).contains(&provider));
        is_in_use
            && !is_reported()
            && is_left_behind()
            && users.all(|resources| is_counted_out(&resources))
            && !observed.backups.values().flatten().any(is_it)
    }
}
