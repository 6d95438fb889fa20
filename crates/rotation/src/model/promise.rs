//! What must hold in every state, and of every write of a file.

use super::happening::Happening;
use super::observation as seen;
use super::search::Model;
use super::world::*;
use crate::{ProviderId, is_unneeded};

impl Model {
    /// Every object is decryptable by every server that runs, and by every one that starts with the file that it has.
    pub(super) fn everything_is_readable(&self, world: &World) -> Result<(), String> {
        let entries = self.bounds.entries;
        for (index, object) in world.objects.iter().enumerate() {
            let entry = World::entry_of(index, entries);
            for (number, server) in world.servers.iter().enumerate() {
                if server.runs() && !server.loaded[entry].reads(object.key) {
                    return Err(format!(
                        "server {number} can't read what is stored under key {}",
                        object.key
                    ));
                }
                if server.is_expected() && !server.is_broken && !server.file[entry].reads(object.key) {
                    return Err(format!(
                        "server {number} will not read what is stored under key {}",
                        object.key
                    ));
                }
            }
        }
        Ok(())
    }

    /// No key leaves a file while something needs it.
    pub(super) fn nothing_is_stranded(&self, before: &World, happening: &Happening) -> Result<(), String> {
        let Happening::FileIsWritten { old, new, .. } = happening else { return Ok(()) };
        for entry in 0..self.bounds.entries {
            let gone = old[entry].keys & !new[entry].keys;
            for key in (1..=KEYS).filter(|key| gone & set(*key) != 0) {
                if let Some(by) = self.needed_by(before, entry, key) {
                    return Err(format!("key {key} leaves a file while {by} needs it"));
                }
            }
        }
        Ok(())
    }

    fn needed_by(&self, world: &World, entry: usize, key: u8) -> Option<&'static str> {
        let mut objects = world.objects.iter().enumerate();
        if objects
            .any(|(index, object)| World::entry_of(index, self.bounds.entries) == entry && object.key == key)
        {
            return Some("an object");
        }
        if world.revisions[entry] & (1 << key) != 0 {
            return Some("a revision");
        }
        let writes = |server: &Server| {
            let will = server.is_expected() && !server.is_broken && server.file[entry].writer == key;
            will || server.runs() && server.loaded[entry].writer == key
        };
        if world.servers.iter().any(writes) {
            return Some("a server");
        }
        (world.backup & set(key) != 0).then_some("a backup")
    }

    /// A key id that may go is one that nothing is stored under, nor will be.
    pub(super) fn no_key_id_is_missed(&mut self, world: &World) -> Result<(), String> {
        if world.key_id < 2 {
            return Ok(());
        }
        for (key, key_id) in self.unneeded_key_ids(world) {
            if world.objects.iter().any(|object| (object.key, object.key_id) == (key, key_id)) {
                return Err(format!(
                    "key id {key_id} of key {key} may go while an object is stored under it"
                ));
            }
            let writes = |server: &&Server| server.loaded.iter().any(|conf| conf.writer == key);
            let mut servers = world.servers.iter().filter(|server| server.runs()).filter(writes);
            if servers.any(|server| server.uses == key_id) {
                return Err(format!("key id {key_id} of key {key} may go while a server writes under it"));
            }
        }
        Ok(())
    }

    fn unneeded_key_ids(&mut self, world: &World) -> Vec<(u8, u8)> {
        let (entries, mutation, last) = (self.bounds.entries, self.mutation, world.key_id);
        let known = self.unneeded.entry((world.seen(), last));
        let find = || {
            let observed = seen::observed(world, entries, mutation);
            let keys = (1..=KEYS).filter(|key| world.keys[usize::from(*key)].kind.has_key_ids());
            let pairs = keys.flat_map(|key| (1..=last).map(move |key_id| (key, key_id)));
            pairs
                .filter(|(key, key_id)| {
                    let key_id = seen::key_id(*key_id).unwrap();
                    is_unneeded(&observed, ProviderId((*key).into()), &key_id)
                })
                .collect()
        };
        known.or_insert_with(find).clone()
    }
}
