//! The schedule without faults: how long it takes to what is wanted, from any state.

use super::happening::{Act, can_load, made};
use super::search::Model;
use super::world::*;

/// How many rounds it may take. In each, a controller takes one step with all its writes, and everything catches up.
pub(super) const ROUNDS: u8 = 40;

impl Model {
    /// How many rounds it is to what is wanted.
    pub(super) fn distance(&mut self, world: &World) -> Result<u8, String> {
        let mut way = vec![self.caught_up(world)];
        let rest = loop {
            let at = way[way.len() - 1];
            if let Some(known) = self.distances.get(&at) {
                break *known;
            }
            let acts = self.acts(&at);
            if *acts == [Act::Done] {
                self.is_as_wanted(&at)?;
                break 0;
            }
            if way.len() > usize::from(ROUNDS) {
                return Err(format!("a calm schedule has no end: it comes to {acts:?}"));
            }
            way.push(self.round(&at));
        };
        let mut distance = rest;
        for world in way.iter().rev() {
            let known = *self.distances.entry(*world).or_insert(distance);
            distance = known + 1;
        }
        let distance = self.distances[&way[0]];
        if distance > ROUNDS {
            return Err(format!("a calm schedule takes {distance} rounds"));
        }
        Ok(distance)
    }

    fn round(&mut self, world: &World) -> World {
        let mut after = *world;
        for act in self.acts(world).iter().copied() {
            match act {
                Act::Create { key } => after = made(&after, key, false),
                Act::Record(progress) => after = self.recorded(&after, progress),
                Act::Write { server, confs } => {
                    let written = &mut after.servers[server];
                    (written.file, written.is_broken) = (confs, false);
                }
                Act::Migrate { entry, turn, key_id } => self.migrated(&mut after, entry, turn, key_id),
                Act::Count { entry, turn, key_id } => {
                    after.revisions[entry] = 0;
                    after.counts[entry] = Some(self.counted(&after, entry, turn, key_id));
                }
                Act::Wait | Act::Done => {}
            }
        }
        self.caught_up(&after)
    }

    fn migrated(&self, world: &mut World, entry: usize, turn: u8, key_id: u8) {
        let entries = self.bounds.entries;
        let server = (0..SERVERS).find(|server| world.servers[*server].runs());
        let engine = &mut world.engines[entry];
        let is_new = (engine.turn, engine.key_id) != (turn, key_id);
        *engine = Engine { turn, key_id, is_finished: engine.is_finished && !is_new };
        for object in (0..OBJECTS).filter(|object| World::entry_of(*object, entries) == entry) {
            if is_new || !world.objects[object].is_done {
                if let Some(server) = server {
                    world.write(object, server, entries);
                }
                world.objects[object].is_done = true;
                world.engines[entry].is_finished = true;
            }
        }
    }

    /// Nothing fails, nothing is late, nobody changes his mind.
    fn caught_up(&self, world: &World) -> World {
        let mut after = World { left: Left::default(), late: None, backup: 0, ..*world };
        for key in &mut after.keys {
            key.is_mended |= key.is_bad && key.record == Record::Intact;
        }
        for server in 0..SERVERS {
            let now = &mut after.servers[server];
            now.late = None;
            if now.life == Life::Terminating {
                *now = Server::default();
            }
            if now.life == Life::Absent {
                continue;
            }
            let now = *now;
            if can_load(&after, &now) {
                (after.servers[server].loaded, after.servers[server].life) = (now.file, Life::Running);
            }
            let now = &mut after.servers[server];
            (now.reports, now.uses) = (after.key_id, after.key_id);
            (now.is_stable, now.is_silent) = (true, false);
        }
        after.sorted(self.bounds.entries)
    }

    /// The key that is wanted writes, nothing else is read, and everything is stored under it.
    fn is_as_wanted(&self, world: &World) -> Result<(), String> {
        let entries = self.bounds.entries;
        let servers = world.servers.iter().filter(|server| server.life != Life::Absent);
        let confs = servers.flat_map(|server| {
            [server.file, server.loaded].into_iter().flat_map(|confs| confs.into_iter().take(entries))
        });
        let fits = |key: u8| match (world.wanted, world.keys[usize::from(key)].kind) {
            (Kind::Local, Kind::Local | Kind::Rotated) => true,
            (wanted, kind) => wanted == kind,
        };
        for conf in confs {
            if !fits(conf.writer) || conf.keys != set(conf.writer) {
                return Err(format!("it is called done with {conf:?}, and {:?} is wanted", world.wanted));
            }
        }
        for object in world.objects {
            let has_key_ids = world.keys[usize::from(object.key)].kind.has_key_ids();
            if !fits(object.key) || (has_key_ids && object.key_id != world.key_id) {
                return Err(format!("it is called done with {object:?}"));
            }
        }
        Ok(())
    }
}
