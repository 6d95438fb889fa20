//! Between the numbers of the model and the types of the crate; and the lies that a defective controller tells itself.

use std::collections::BTreeMap;
use std::time::Duration;

use casemate_encryption_config::{ResourcePattern, Scheme};

use super::Mutation;
use super::world::*;
use crate::{
    Age, Claim, Course as RealCourse, EngineReport, File, Intent, KeyIdReport, KeyIds, Layout, Moment, Need,
    Observed, Outcome, PluginKeyId, Progress as RealProgress, ProviderId, Resources, ServerName, ServiceName,
    Settings, Shape, Slot, Stored, Turn, Wanted,
};

/// What is observed of a world.
pub(super) fn observed(world: &World, entries: usize, mutation: Mutation) -> Observed {
    let servers = (0..SERVERS).filter(|index| world.servers[*index].life != Life::Absent);
    let names = |index: usize| ServerName(format!("{index}"));
    let mut observed = Observed {
        by: String::new(),
        at: Moment(0),
        intent: Intent {
            by: String::new(),
            wanted: wanted(world.wanted),
            resources: (0..entries).map(entry).collect(),
            reason: (world.wanted == Kind::Rotated).then(|| "rotate".into()),
            max_age: None,
            key_id_stable_for: Intent::KEY_ID_STABLE_FOR,
            needs_approval: false,
            paused: false,
            accept_unproven: BTreeMap::new(),
        },
        records: (1..=KEYS)
            .filter_map(|key| Some((ProviderId(key.into()), record(&world.keys[usize::from(key)])?)))
            .collect(),
        expected: servers.clone().filter(|index| world.servers[*index].is_expected()).map(names).collect(),
        servers: servers.map(|index| (names(index), server(world, &world.servers[index], entries))).collect(),
        progress: world.progress.as_ref().map(|progress| real_progress(progress, entries)),
        engine: BTreeMap::new(),
        has_census: true,
        census: BTreeMap::new(),
        backups: BTreeMap::new(),
        approvals: BTreeMap::new(),
    };
    for index in 0..entries {
        let engine = world.engines[index];
        if engine.turn > 0 {
            let outcome = if engine.is_finished { Outcome::Finished } else { Outcome::Running };
            let report =
                EngineReport { turn: Turn(engine.turn.into()), key_id: key_id(engine.key_id), outcome };
            observed.engine.insert(entry(index), report);
        }
        if let Some(count) = &world.counts[index] {
            observed.census.insert(entry(index), real_count(count));
        }
    }
    if world.backup > 0 {
        let needs = (1..=KEYS).filter(|key| world.backup & set(*key) != 0);
        let stored = needs.map(|key| Stored { slot: slot(key), key_id: None });
        observed.backups.insert("backup".into(), stored.collect());
    }
    mutation.lie(&mut observed);
    observed
}

fn wanted(kind: Kind) -> Wanted {
    match kind {
        Kind::Plain => Wanted::Identity,
        Kind::Local | Kind::Rotated => Wanted::AesCbc,
        Kind::KmsA => Wanted::KmsV2(ServiceName("a".into())),
        Kind::KmsB => Wanted::KmsV2(ServiceName("b".into())),
    }
}

pub(super) fn entry(index: usize) -> Resources {
    let text = ["secrets", "configmaps"][index];
    text.parse::<ResourcePattern>().unwrap().into()
}

fn record(key: &Key) -> Option<crate::Record> {
    match key.record {
        Record::None | Record::Lost => None,
        Record::Damaged => Some(crate::Record::Damaged { scheme: None }),
        Record::Intact => Some(crate::Record::Intact(crate::Key {
            scheme: scheme(key.kind),
            service: wanted(key.kind).service().cloned(),
            settings: Settings(key.is_mended.into()),
            reason: (key.kind == Kind::Rotated).then(|| "rotate".into()),
            migrated: Age::Unknown,
        })),
    }
}

fn scheme(kind: Kind) -> Scheme {
    if kind.has_key_ids() { Scheme::KmsV2 } else { Scheme::AesCbc }
}

fn server(world: &World, server: &Server, entries: usize) -> crate::Server {
    let key_id = key_id(server.reports).filter(|_| !server.is_silent && server.runs());
    let since = if server.is_stable { Intent::KEY_ID_STABLE_FOR } else { Duration::ZERO };
    let plugins = (1..=KEYS).filter(|key| world.keys[usize::from(*key)].kind.has_key_ids());
    crate::Server {
        terminating: server.life == Life::Terminating,
        file: (!server.is_broken).then(|| file(world, &server.file, entries)),
        loaded: server.runs().then(|| file(world, &server.loaded, entries)),
        key_ids: plugins
            .filter_map(|key| Some((ProviderId(key.into()), KeyIdReport { key_id: key_id.clone()?, since })))
            .collect(),
    }
}

fn file(world: &World, confs: &Confs, entries: usize) -> File {
    let there = (0..entries).filter(|index| confs[*index].there);
    File(there.map(|index| (entry(index), layout(world, confs[index]))).collect())
}

fn layout(world: &World, conf: Conf) -> Layout {
    let keys = (1..=KEYS).filter(|key| conf.keys & set(*key) != 0);
    let keys = keys.map(|key| {
        let settings = Settings((conf.mended & set(key) != 0).into());
        (ProviderId(key.into()), Shape { scheme: scheme(world.keys[usize::from(key)].kind), settings })
    });
    Layout::new(slot(conf.writer), keys.collect()).unwrap()
}

pub(super) fn confs(file: &File, entries: usize) -> Confs {
    let mut confs = Confs::default();
    for (index, conf) in confs.iter_mut().enumerate().take(entries) {
        if let Some(layout) = file.0.get(&entry(index)) {
            let mended = layout.keys().iter().filter(|(_, shape)| shape.settings == Settings(1));
            *conf = Conf {
                there: true,
                writer: number(layout.writer()),
                keys: keys(layout.keys().keys()),
                mended: keys(mended.map(|(id, _)| id)),
            };
        }
    }
    confs
}

fn keys<'a>(ids: impl IntoIterator<Item = &'a ProviderId>) -> u8 {
    ids.into_iter().map(|id| set(u8::try_from(id.0).unwrap())).sum()
}

pub(super) fn slot(key: u8) -> Slot {
    if key == 0 { Slot::Plain } else { Slot::Key(ProviderId(key.into())) }
}

pub(super) fn number(slot: Slot) -> u8 {
    slot.key().map_or(0, |id| u8::try_from(id.0).unwrap())
}

/// 0 is none.
pub(super) fn key_id(number: u8) -> Option<PluginKeyId> {
    PluginKeyId::new(&number.to_string()).filter(|_| number > 0)
}

pub(super) fn key_id_number(key_id: Option<&PluginKeyId>) -> u8 {
    key_id.map_or(0, |key_id| key_id.as_str().parse().unwrap())
}

fn real_progress(progress: &Progress, entries: usize) -> RealProgress {
    let courses = (0..entries).filter_map(|index| {
        let course = progress.courses[index]?;
        let real = RealCourse {
            turn: Turn(course.turn.into()),
            writer: slot(course.writer),
            keys: (1..=KEYS)
                .filter(|key| course.keys & set(*key) != 0)
                .map(|key| ProviderId(key.into()))
                .collect(),
            claim: course.claim.checked_sub(1).map(|claimed| Claim { key_id: key_id(claimed) }),
            encrypted: course.encrypted,
        };
        Some((entry(index), real))
    });
    let key_ids = (1..=KEYS).filter_map(|key| {
        let (target, migrated) = progress.key_ids[usize::from(key)];
        Some((ProviderId(key.into()), KeyIds { target: key_id(target)?, migrated: key_id(migrated) }))
    });
    RealProgress {
        turn: Turn(progress.turn.into()),
        highest: ProviderId(progress.highest.into()),
        deployed: ProviderId(progress.deployed.into()),
        courses: courses.collect(),
        key_ids: key_ids.collect(),
    }
}

pub(super) fn progress(real: &RealProgress, entries: usize) -> Progress {
    let mut progress = Progress {
        turn: u8::try_from(real.turn.0).unwrap(),
        highest: u8::try_from(real.highest.0).unwrap(),
        deployed: u8::try_from(real.deployed.0).unwrap(),
        ..Progress::default()
    };
    for index in 0..entries {
        progress.courses[index] = real.courses.get(&entry(index)).map(|course| Course {
            turn: u8::try_from(course.turn.0).unwrap(),
            writer: number(course.writer),
            keys: keys(&course.keys),
            claim: course.claim.as_ref().map_or(0, |claim| key_id_number(claim.key_id.as_ref()) + 1),
            encrypted: course.encrypted,
        });
    }
    for (id, known) in &real.key_ids {
        let migrated = key_id_number(known.migrated.as_ref());
        progress.key_ids[usize::try_from(id.0).unwrap()] = (key_id_number(Some(&known.target)), migrated);
    }
    progress
}

fn real_count(count: &Count) -> crate::Count {
    let mut stored: BTreeMap<Stored, Need> = BTreeMap::new();
    for (key, id) in count.found.iter().flatten() {
        stored.entry(Stored { slot: slot(*key), key_id: key_id(*id) }).or_default().objects += 1;
    }
    for key in (0..=KEYS).filter(|key| count.revisions & (1 << key) != 0) {
        stored.entry(Stored { slot: slot(key), key_id: None }).or_default().revisions += 1;
    }
    crate::Count { turn: Turn(count.turn.into()), key_id: key_id(count.key_id), after_claim: true, stored }
}
