//! Which files servers should have.

use std::collections::BTreeMap;

use super::view::View;
use crate::{Course, File, Layout, Resources, Server, ServerFile, ServerName, Slot};

impl View<'_> {
    /// Files that are not as they should be. Reading is given to any server at any time; so is what mends a provider: a
    /// server that can't load what it has must not hold up what would help it.
    pub(super) fn files_to_write(&self) -> Vec<ServerFile> {
        let expected = self.observed.expected.iter();
        let found = expected.filter_map(|name| Some((name, self.observed.servers.get(name)?)));
        let mut files = Vec::new();
        for (name, server) in found.filter(|(_, server)| !server.terminating) {
            let Some(file) = self.file_for(name, server) else { continue };
            if server.file.as_ref() != Some(&file) {
                files.push(ServerFile { server: name.clone(), replaces: server.file.clone(), file });
            }
        }
        files
    }

    /// None: nothing is known of the server, and not enough of the others to know what is safe.
    fn file_for(&self, name: &ServerName, server: &Server) -> Option<File> {
        let known = server.file.as_ref().or(server.loaded.as_ref());
        let mut entries = BTreeMap::new();
        for (resource, course) in &self.progress.courses {
            // An entry that says what holds without it is not worth a file, and what stands there is left alone.
            let says_nothing =
                course.is_plain() && !known.is_some_and(|known| known.0.contains_key(resource));
            if says_nothing || self.is_leaving(resource) {
                continue;
            }
            let keys = course.keys.iter().filter_map(|id| Some((*id, self.shape(*id)?))).collect();
            let writer = if self.may_write(name, server, resource, course.writer) {
                course.writer
            } else {
                known?.layout(resource).writer()
            };
            entries.insert(resource.clone(), Layout::new(writer, keys)?);
        }
        Some(File(entries))
    }

    /// Whether a server may write so: everybody can read it.
    fn may_write(&self, name: &ServerName, server: &Server, resource: &Resources, writer: Slot) -> bool {
        let is_there = writer.key().is_none_or(|id| self.shape(id).is_some());
        let is_read = if server.loaded.is_some() {
            self.all_read(resource, writer)
        } else {
            // It may not run at all. If it does, or starts, it can read what it is given: the others matter.
            self.all_are_known() && self.servers_read(resource, writer, |other| other != name)
        };
        is_there && is_read
    }

    /// Whether resources can be left out: they are not wanted, and every server has them in plaintext and reads nothing else.
    pub(super) fn is_leaving(&self, resources: &Resources) -> bool {
        let is_plain =
            |file: &Option<File>| file.as_ref().is_some_and(|file| *file.layout(resources) == Layout::PLAIN);
        let mut servers = self.observed.servers.values();
        !self.is_wanted(resources)
            && self.all_are_known()
            && self.progress.courses.get(resources).is_some_and(Course::is_plain)
            && servers.all(|server| !server.terminating && is_plain(&server.file) && is_plain(&server.loaded))
    }
}
