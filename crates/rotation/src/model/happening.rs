//! Everything that can happen next.

use super::search::Model;
use super::world::*;
use super::{Kind, observation as seen};
use crate::Step;

/// What a controller may do now: one of these, and then it may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Create { key: u8 },
    Record(Progress),
    Write { server: usize, confs: Confs },
    Migrate { entry: usize, turn: u8, key_id: u8 },
    Count { entry: usize, turn: u8, key_id: u8 },
    Wait,
    Done,
}

/// Shown on the way to a broken promise: servers and objects are sorted anew after each, so that a position is no name.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "told by Debug")]
pub(super) enum Happening {
    Start,
    AdminWants(Kind),
    KeyIsMade(u8),
    KeyIsMadeBadly(u8),
    IsRecorded,
    FileIsWritten { by: &'static str, old: Confs, new: Confs },
    EngineRewrites { object: usize, server: usize },
    IsCounted { entry: usize },
    Loads { server: usize },
    ClientWrites { object: usize, server: usize },
    Compaction,
    RecordIsLost(u8),
    RecordIsDamaged(u8),
    RecordIsRestored(u8),
    ProviderIsMended(u8),
    GoesDown { server: usize },
    ComesUp { server: usize },
    FileBreaks { server: usize },
    Leaves { server: usize },
    IsGone { server: usize },
    Joins { server: usize },
    RootKeyIsRotated,
    PluginSeesIt { server: usize },
    FiveMinutesPass { server: usize },
    PluginFallsSilent { server: usize },
    PluginIsHeard { server: usize },
    BackupIsDeclared,
    BackupIsGone,
    ProgressIsLost,
    EngineForgets { entry: usize },
    OtherControllerDecides,
    OtherControllerRecords,
}

use Happening as H;

/// What a step comes to, in numbers.
pub(super) fn acts(step: Step, entries: usize) -> Vec<Act> {
    let index = |resources| (0..entries).find(|index| seen::entry(*index) == resources).unwrap();
    match step {
        Step::CreateKey { id, .. } => vec![Act::Create { key: u8::try_from(id.0).unwrap() }],
        Step::Record { progress, .. } => vec![Act::Record(seen::progress(&progress, entries))],
        Step::Write(files) => files
            .iter()
            .map(|file| Act::Write {
                server: file.server.0.parse().unwrap(),
                confs: seen::confs(&file.file, entries),
            })
            .collect(),
        Step::Migrate(tasks) | Step::Prove(tasks) if tasks.is_empty() => vec![Act::Wait],
        Step::Migrate(tasks) => tasks
            .into_iter()
            .map(|task| Act::Migrate {
                entry: index(task.resource),
                turn: u8::try_from(task.turn.0).unwrap(),
                key_id: seen::key_id_number(task.key_id.as_ref()),
            })
            .collect(),
        Step::Prove(tasks) => tasks
            .into_iter()
            .map(|task| Act::Count {
                entry: index(task.resource),
                turn: u8::try_from(task.turn.0).unwrap(),
                key_id: seen::key_id_number(task.key_id.as_ref()),
            })
            .collect(),
        Step::Wait(_) => vec![Act::Wait],
        Step::Done => vec![Act::Done],
        other => panic!("{other:?}"),
    }
}

impl Model {
    pub(super) fn what_can_happen(&mut self, world: &World) -> Vec<(Happening, World)> {
        let mut all = Vec::new();
        self.controllers(world, &mut all);
        self.servers(world, &mut all);
        self.the_rest(world, &mut all);
        all
    }

    fn controllers(&mut self, world: &World, all: &mut Vec<(Happening, World)>) {
        for act in self.acts(world).iter().copied() {
            match act {
                Act::Create { key } if key <= KEYS => {
                    all.push((H::KeyIsMade(key), made(world, key, false)));
                    if world.left.bad > 0 && world.wanted.has_key_ids() {
                        let mut after = made(world, key, true);
                        after.left.bad -= 1;
                        all.push((H::KeyIsMadeBadly(key), after));
                    }
                }
                Act::Create { .. } => {}
                Act::Record(progress) => {
                    all.push((H::IsRecorded, self.recorded(world, progress)));
                    if world.left.late > 0 && world.late.is_none() {
                        let mut after = World { late: Some(progress), ..*world };
                        after.left.late -= 1;
                        all.push((H::OtherControllerDecides, after));
                    }
                }
                Act::Write { server, confs } => {
                    all.push(self.written("a controller", world, server, confs));
                    if world.left.late > 0 && world.servers[server].late.is_none() {
                        let mut after = *world;
                        after.servers[server].late = Some(confs);
                        after.left.late -= 1;
                        all.push((H::OtherControllerDecides, after));
                    }
                }
                Act::Migrate { entry, turn, key_id } => self.engine(world, entry, turn, key_id, all),
                Act::Count { entry, turn, key_id } => {
                    let mut after = *world;
                    after.counts[entry] = Some(self.counted(world, entry, turn, key_id));
                    all.push((H::IsCounted { entry }, after));
                }
                Act::Wait | Act::Done => {}
            }
        }
        if let Some(progress) = world.late {
            let mut after = self.recorded(world, progress);
            after.late = None;
            all.push((H::OtherControllerRecords, after));
        }
        for server in 0..SERVERS {
            if let Some(confs) = world.servers[server].late {
                let mut written = self.written("another controller, late,", world, server, confs);
                written.1.servers[server].late = None;
                all.push(written);
            }
        }
    }

    fn engine(&self, world: &World, entry: usize, turn: u8, key_id: u8, all: &mut Vec<(Happening, World)>) {
        let entries = self.bounds.entries;
        let mut begun = *world;
        let objects = (0..OBJECTS).filter(|object| World::entry_of(*object, entries) == entry);
        if (begun.engines[entry].turn, begun.engines[entry].key_id) != (turn, key_id) {
            begun.engines[entry] = Engine { turn, key_id, is_finished: false };
            objects.clone().for_each(|object| begun.objects[object].is_done = false);
        }
        for object in objects.clone().filter(|object| !begun.objects[*object].is_done) {
            for server in (0..SERVERS).filter(|server| world.servers[*server].runs()) {
                let mut after = begun;
                after.write(object, server, entries);
                after.objects[object].is_done = true;
                let is_done = |object: usize| after.objects[object].is_done;
                after.engines[entry].is_finished = self.mutation.is_finished(objects.clone().map(is_done));
                all.push((H::EngineRewrites { object, server }, after));
            }
        }
    }

    pub(super) fn counted(&self, world: &World, entry: usize, turn: u8, key_id: u8) -> Count {
        let mut found = [None; OBJECTS];
        for (object, found) in found.iter_mut().enumerate() {
            if World::entry_of(object, self.bounds.entries) == entry
                && self.mutation.counts(world.objects[object])
            {
                *found = Some((world.objects[object].key, world.objects[object].key_id));
            }
        }
        Count { turn, key_id, found, revisions: world.revisions[entry] }
    }

    /// Whoever has seen what was recorded before has seen what is not so any more.
    pub(super) fn recorded(&self, world: &World, progress: Progress) -> World {
        let mut after = World { progress: Some(progress), ..*world };
        if self.mutation.is_fenced() {
            after.late = None;
            after.servers.iter_mut().for_each(|server| server.late = None);
        }
        after
    }

    fn written(&self, by: &'static str, world: &World, server: usize, confs: Confs) -> (Happening, World) {
        let mut after = *world;
        let written = &mut after.servers[server];
        let old = written.file;
        (written.file, written.is_broken) = (confs, false);
        if self.mutation.is_fenced() {
            written.late = None;
        }
        (H::FileIsWritten { by, old, new: confs }, after)
    }

    fn servers(&self, world: &World, all: &mut Vec<(Happening, World)>) {
        let expected = world.servers.iter().filter(|server| server.is_expected()).count();
        let there = world.servers.iter().filter(|server| server.life != Life::Absent).count();
        for server in 0..SERVERS {
            let now = world.servers[server];
            let mut turn = |happening, change: &dyn Fn(&mut Server, &mut Left)| {
                let mut after = *world;
                change(&mut after.servers[server], &mut after.left);
                all.push((happening, after));
            };
            let can_load = can_load(world, &now);
            match now.life {
                Life::Running => {
                    if now.loaded != now.file && can_load {
                        turn(H::Loads { server }, &|server, _| server.loaded = server.file);
                    }
                    if world.left.outages > 0 {
                        turn(H::GoesDown { server }, &|server, left| {
                            (server.life, server.loaded) = (Life::Down, Confs::default());
                            left.outages -= 1;
                        });
                    }
                    if world.left.moves > 0 && expected > 1 {
                        turn(H::Leaves { server }, &|server, left| {
                            server.life = Life::Terminating;
                            left.moves -= 1;
                        });
                    }
                    if now.reports != world.key_id {
                        turn(H::PluginSeesIt { server }, &|server, _| {
                            (server.reports, server.is_stable) = (world.key_id, false);
                        });
                    }
                    if !now.is_stable {
                        turn(H::FiveMinutesPass { server }, &|server, _| {
                            (server.uses, server.is_stable) = (server.reports, true);
                        });
                    }
                    if now.is_silent {
                        turn(H::PluginIsHeard { server }, &|server, _| server.is_silent = false);
                    } else if world.left.outages > 0 && world.key_id > 1 {
                        turn(H::PluginFallsSilent { server }, &|server, left| {
                            server.is_silent = true;
                            left.outages -= 1;
                        });
                    }
                }
                Life::Down if can_load => {
                    turn(H::ComesUp { server }, &|server, _| {
                        (server.life, server.loaded) = (Life::Running, server.file);
                        (server.reports, server.uses, server.is_stable) = (world.key_id, world.key_id, false);
                    });
                }
                Life::Terminating => turn(H::IsGone { server }, &|server, _| *server = Server::default()),
                Life::Absent if world.left.moves > 0 && there < self.bounds.servers => {
                    // With the file of another one.
                    let others = world.servers.iter().filter(|other| other.is_expected() && !other.is_broken);
                    for other in others.filter(|other| can_load_it(world, &other.file)) {
                        turn(H::Joins { server }, &|server, left| {
                            *server = running(other.file, world.key_id);
                            left.moves -= 1;
                        });
                    }
                }
                Life::Down | Life::Absent => {}
            }
            if now.is_expected() && !now.is_broken && world.left.outages > 0 {
                turn(H::FileBreaks { server }, &|server, left| {
                    (server.is_broken, server.late) = (true, None);
                    left.outages -= 1;
                });
            }
        }
        if world.left.writes > 0 {
            for server in (0..SERVERS).filter(|server| world.servers[*server].runs()) {
                for object in 0..OBJECTS {
                    let mut after = *world;
                    after.write(object, server, self.bounds.entries);
                    if after != *world {
                        all.push((H::ClientWrites { object, server }, after));
                    }
                }
            }
        }
    }

    fn the_rest(&self, world: &World, all: &mut Vec<(Happening, World)>) {
        let left = world.left;
        for kind in self.bounds.wants.iter().copied().filter(|kind| left.changes > 0 && *kind != world.wanted)
        {
            let left = Left { changes: left.changes - 1, ..left };
            all.push((H::AdminWants(kind), World { wanted: kind, left, ..*world }));
        }
        for key in 1..=KEYS {
            let mut turn = |happening, record, cost| {
                let mut after = *world;
                after.keys[usize::from(key)].record = record;
                after.left.records -= cost;
                all.push((happening, after));
            };
            match world.keys[usize::from(key)].record {
                Record::Intact if left.records > 0 && self.is_deployed(world, key) => {
                    turn(H::RecordIsLost(key), Record::Lost, 1);
                    turn(H::RecordIsDamaged(key), Record::Damaged, 1);
                }
                Record::Lost | Record::Damaged => turn(H::RecordIsRestored(key), Record::Intact, 0),
                Record::None | Record::Intact => {}
            }
            let now = world.keys[usize::from(key)];
            if now.is_bad && !now.is_mended && now.record == Record::Intact {
                let mut after = *world;
                after.keys[usize::from(key)].is_mended = true;
                all.push((H::ProviderIsMended(key), after));
            }
        }
        let mut turn = |happening, change: &dyn Fn(&mut World)| {
            let mut after = *world;
            change(&mut after);
            all.push((happening, after));
        };
        if world.revisions != [0; ENTRIES] {
            turn(H::Compaction, &|world| world.revisions = [0; ENTRIES]);
        }
        if left.key_ids > 0 && world.keys.iter().any(|key| key.kind.has_key_ids()) {
            turn(H::RootKeyIsRotated, &|world| {
                world.key_id += 1;
                world.left.key_ids -= 1;
            });
        }
        if left.backups > 0 && world.backup == 0 && world.objects.iter().any(|object| object.key > 0) {
            turn(H::BackupIsDeclared, &|world| {
                world.backup =
                    world.objects.iter().map(|object| set(object.key)).fold(0, |all, key| all | key);
                world.left.backups -= 1;
            });
        }
        if world.backup > 0 {
            turn(H::BackupIsGone, &|world| world.backup = 0);
        }
        if left.memory > 0 {
            if world.progress.is_some() {
                turn(H::ProgressIsLost, &|world| {
                    (world.progress, world.late) = (None, None);
                    world.servers.iter_mut().for_each(|server| server.late = None);
                    // It was kept there.
                    (world.engines, world.counts) = Default::default();
                    world.objects.iter_mut().for_each(|object| object.is_done = false);
                    world.left.memory -= 1;
                });
            }
            for entry in (0..self.bounds.entries).filter(|entry| world.engines[*entry].turn > 0) {
                turn(H::EngineForgets { entry }, &|world| {
                    self.mutation.forget(world, entry, self.bounds.entries);
                    world.left.memory -= 1;
                });
            }
        }
    }

    fn is_deployed(&self, world: &World, key: u8) -> bool {
        let mut servers = world.servers.iter().filter(|server| server.is_expected() && !server.is_broken);
        servers.any(|server| server.file.iter().any(|conf| conf.keys & set(key) != 0))
    }
}

pub(super) fn running(file: Confs, key_id: u8) -> Server {
    Server { life: Life::Running, file, loaded: file, reports: key_id, uses: key_id, ..Server::default() }
}

pub(super) fn made(world: &World, key: u8, is_bad: bool) -> World {
    let mut after = *world;
    after.keys[usize::from(key)] =
        Key { kind: world.wanted, record: Record::Intact, is_bad, is_mended: false };
    after
}

pub(super) fn can_load(world: &World, server: &Server) -> bool {
    !server.is_broken && can_load_it(world, &server.file)
}

fn can_load_it(world: &World, file: &Confs) -> bool {
    let is_bad = |key: u8| world.keys[usize::from(key)].is_bad;
    file.iter().all(|conf| (1..=KEYS).all(|key| !is_bad(key) || conf.keys & !conf.mended & set(key) == 0))
}
