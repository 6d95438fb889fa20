//! The steps, as if each worked at once. Pure.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use casemate_census::survey::Encryption;
use casemate_encryption_config::{
    EncryptionConfiguration, Endpoint, KeyBytes, KmsV2, LocalKey, Provider, ResourcePattern, Scheme,
};
use casemate_rotation::{
    Age, Count, EngineReport, File, Hold, Key, KeyIdReport, Lag, Material, Need, Observed, Outcome,
    PluginKeyId, Proposal, ProviderId, Record, Resources, Server, ServerFile, ServerName, Settings, Slot,
    Step, Stored, Task, Wanted, desired, entries, strands,
};
use zeroize::Zeroizing;

use super::answer::{Kind, PlannedDiff, PlannedStep};
use super::diff::diff;
use crate::cluster::keys::{Known, NOT_MADE};
use crate::cluster::sight::{Sight, settle};

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    /// None: what is written with now.
    pub(super) wanted: Option<Wanted>,
    pub(super) endpoint: Option<Endpoint>,
    /// None: those of the files.
    pub(super) resources: BTreeSet<ResourcePattern>,
    pub(super) new_key: bool,
}

/// All steps, and whether they lead there.
pub(super) struct Course {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) arrives: bool,
    /// Keys that are still read at its end, with what holds them.
    pub(super) left: Vec<String>,
}

/// More than any change needs.
const MOST_STEPS: usize = 200;
/// What stands for the text that asks for a new key.
const ASKED: &str = "asked";
/// Objects a second of a slow control plane.
const EXPECTED_RATE: u64 = 300;

/// How much is stored how, with bytes.
type Holds = BTreeMap<Stored, (Need, u64)>;

/// A cluster in which everything works.
struct World<'a> {
    sight: &'a Sight,
    known: Known,
    observed: Observed,
    /// What is stored, and bytes of it; none without a census.
    stored: Option<BTreeMap<Resources, Holds>>,
    /// The plugin to come.
    endpoint: Option<Endpoint>,
}

pub(super) fn course(sight: &Sight, wish: &Wish) -> Course {
    let mut world = World::of(sight, wish);
    let mut steps = Vec::new();
    for _ in 0..MOST_STEPS {
        match world.next() {
            Some(Ok(step)) => steps.push(step),
            Some(Err(())) => {}
            None => {
                let verdict = desired(&world.observed);
                let arrives = verdict.step == Step::Done;
                if let Step::Hold(hold) = &verdict.step {
                    steps.push(PlannedStep::said(Kind::Stop, held_up(sight, hold)));
                }
                if let Step::Propose(proposal) = &verdict.step {
                    let what = match proposal {
                        Proposal::Key { .. } => "somebody else is to approve the new key",
                        Proposal::KeyId { .. } => "somebody else is to approve the new key id",
                    };
                    steps.push(PlannedStep::said(Kind::Stop, what.to_owned()));
                }
                let held = verdict.decisions.held.iter().filter(|(_, by)| !by.is_empty());
                let left = held.map(|(id, _)| world.known.shown(Slot::Key(*id))).collect();
                return Course { steps, arrives, left };
            }
        }
    }
    steps.push(PlannedStep::said(Kind::Stop, "there is no end of steps".to_owned()));
    Course { steps, arrives: false, left: Vec::new() }
}

fn held_up(sight: &Sight, hold: &Hold) -> String {
    match hold {
        Hold::Paused => sight.open.first().cloned().unwrap_or_else(|| "it is paused".to_owned()),
        Hold::NoServers => "it is not known which API servers there are: name all with --server".to_owned(),
        Hold::NoNumbersLeft => "all numbers of keys are used up".to_owned(),
    }
}

impl<'a> World<'a> {
    fn of(sight: &'a Sight, wish: &Wish) -> Self {
        let mut observed = sight.observed.clone();
        observed.intent.by = "plan".to_owned();
        if let Some(wanted) = &wish.wanted {
            observed.intent.wanted = wanted.clone();
            // Where several keys write, one is wanted now.
            observed.intent.paused = false;
        }
        let found: BTreeSet<Resources> = observed
            .servers
            .values()
            .flat_map(|server| server.file.iter().chain(&server.loaded))
            .flat_map(|file| file.0.keys().cloned())
            .collect();
        if !wish.resources.is_empty() {
            observed.intent.resources = entries(&wish.resources, &found);
        } else if wish.wanted.is_some() {
            observed.intent.resources = found;
        }
        observed.intent.reason = wish.new_key.then(|| ASKED.to_owned());
        settle(&mut observed, sight.counted.as_ref());
        let stored = sight.counted.as_ref().map(|counted| {
            let bytes = |entry: &Resources, stored: &Stored| {
                counted.bytes.get(entry).and_then(|bytes| bytes.get(stored)).copied().unwrap_or_default()
            };
            let of = |(entry, stored): (&Resources, &BTreeMap<Stored, Need>)| {
                let with_bytes =
                    stored.iter().map(|(stored, need)| (stored.clone(), (*need, bytes(entry, stored))));
                (entry.clone(), with_bytes.collect())
            };
            counted.entries.iter().map(of).collect()
        });
        Self { sight, known: sight.known.clone(), observed, stored, endpoint: wish.endpoint.clone() }
    }

    /// Takes one step. An error is one that nobody needs to hear of; none is the end.
    fn next(&mut self) -> Option<Result<PlannedStep, ()>> {
        match desired(&self.observed).step {
            Step::Hold(_) | Step::Propose(_) | Step::Done => None,
            Step::Record { progress, .. } => {
                self.observed.progress = Some(progress);
                Some(Err(()))
            }
            Step::CreateKey { id, wanted, .. } => Some(Ok(self.make(id, &wanted))),
            Step::Write(files) => Some(Ok(self.write(&files))),
            Step::Wait(lagging) => Some(Ok(self.wait(&lagging))),
            Step::Migrate(tasks) => Some(Ok(self.migrate(&tasks))),
            Step::Prove(tasks) => Some(Ok(self.prove(&tasks))),
        }
    }

    fn make(&mut self, id: ProviderId, wanted: &Wanted) -> PlannedStep {
        let name = id.to_string();
        let key = || {
            vec![LocalKey { name: name.clone(), secret: KeyBytes::new(Zeroizing::new(NOT_MADE.to_vec())) }]
        };
        let provider = match wanted {
            Wanted::AesCbc => Provider::AesCbc(key()),
            Wanted::AesGcm => Provider::AesGcm(key()),
            Wanted::Secretbox => Provider::Secretbox(key()),
            Wanted::Identity => Provider::Identity,
            Wanted::KmsV2(_) => match self.endpoint.clone() {
                Some(endpoint) => Provider::KmsV2(KmsV2 {
                    name: String::new(),
                    endpoint,
                    timeout: Provider::DEFAULT_TIMEOUT,
                }),
                None => Provider::Identity,
            },
        };
        let material = Material { provider, found: BTreeMap::new() };
        let shape = material.shape();
        self.known.materials.0.insert(id, material);
        let record = Record::Intact(Key {
            scheme: wanted.scheme().unwrap_or(Scheme::KmsV2),
            service: wanted.service().cloned(),
            settings: shape.map_or_else(Settings::default, |shape| shape.settings),
            reason: self.observed.intent.reason.clone(),
            migrated: Age::Unknown,
        });
        self.observed.records.insert(id, record);
        let says = match wanted {
            Wanted::KmsV2(service) => {
                format!("key {id} is the plugin at {}: try it with casemate kms probe", service.0)
            }
            _ => format!("{} is made", self.known.shown(Slot::Key(id))),
        };
        PlannedStep::said(Kind::NewKey, says)
    }

    fn write(&mut self, files: &[ServerFile]) -> PlannedStep {
        let mut step = PlannedStep::said(Kind::Write, self.purpose(files));
        for ServerFile { server, replaces, file } in files {
            let old = replaces
                .as_ref()
                .map_or_else(|| Ok(EncryptionConfiguration::default()), |file| self.configuration(file));
            let new = self.configuration(file);
            step.servers.push(server.to_string());
            let (old, new) = match (old, new) {
                (Ok(old), Ok(new)) => (old, new),
                (Err(error), _) | (_, Err(error)) => {
                    step.strands.push(error);
                    continue;
                }
            };
            step.diffs.push(PlannedDiff { server: server.to_string(), diff: diff(&server.0, &old, &new) });
            for id in strands(&self.observed, file).into_keys() {
                step.strands.push(format!("{} on {server}", self.known.shown(Slot::Key(id))));
            }
        }
        for ServerFile { server, file, .. } in files {
            let server = self.observed.servers.entry(server.clone()).or_default();
            (server.file, server.loaded) = (Some(file.clone()), Some(file.clone()));
            self.report_key_ids();
        }
        step
    }

    fn configuration(&self, file: &File) -> Result<EncryptionConfiguration, String> {
        self.known.materials.write(file).map_err(|error| error.to_string())
    }

    fn purpose(&self, files: &[ServerFile]) -> String {
        let (more, less) = self.known.brought_and_taken(files);
        let writers: BTreeSet<String> = files
            .iter()
            .flat_map(|file| file.file.0.values())
            .map(|layout| self.known.shown(layout.writer()))
            .collect();
        let writers: Vec<String> = writers.into_iter().collect();
        match (more.is_empty(), less.is_empty()) {
            (false, _) => format!("every server reads {more}, and writes as before"),
            (true, false) => format!("no server reads {less} any more"),
            (true, true) => format!("every server writes with {}", writers.join(", ")),
        }
    }

    /// Each plugin that a server has loaded gives a key id, and all the same.
    fn report_key_ids(&mut self) {
        let mut given: BTreeMap<ProviderId, PluginKeyId> = BTreeMap::new();
        for (id, report) in self.observed.servers.values().flat_map(|server| &server.key_ids) {
            given.entry(*id).or_insert_with(|| report.key_id.clone());
        }
        for server in self.observed.servers.values_mut() {
            let loaded =
                server.loaded.iter().flat_map(|file| file.0.values()).flat_map(|layout| layout.keys());
            let plugins = loaded.filter(|(_, shape)| shape.scheme == Scheme::KmsV2).map(|(id, _)| *id);
            for id in plugins.collect::<BTreeSet<_>>() {
                let Some(key_id) =
                    given.get(&id).cloned().or_else(|| PluginKeyId::new(&format!("of key {id}")))
                else {
                    continue;
                };
                let given = KeyIdReport { key_id, since: Duration::MAX };
                server.key_ids.insert(id, given);
            }
        }
    }

    /// What is waited for comes as it should.
    fn wait(&mut self, lagging: &BTreeMap<ServerName, Lag>) -> PlannedStep {
        let servers = &mut self.observed.servers;
        let files = || servers.values().filter_map(|server| server.file.clone().or(server.loaded.clone()));
        let some = files().next().unwrap_or_default();
        let mut says = Vec::new();
        for (name, lag) in lagging {
            let what = match lag {
                Lag::Absent => "is to be reached",
                Lag::Terminating => "is to end, or to start",
                Lag::Unexpected => "is to end, or to be named",
                Lag::NoFile => "its file is to be known",
                Lag::Silent => "is to say what it has loaded",
                Lag::NotLoaded => "loads its file",
                Lag::KeyId(_) => "its plugin gives the same key id as the others for five minutes",
            };
            says.push(format!("{name}: {what}"));
            if *lag == Lag::Unexpected {
                servers.remove(name);
                continue;
            }
            let server = servers
                .entry(name.clone())
                .or_insert_with(|| Server { file: Some(some.clone()), ..Server::default() });
            let file = server.file.clone().or(server.loaded.clone()).unwrap_or_else(|| some.clone());
            (server.terminating, server.file, server.loaded) = (false, Some(file.clone()), Some(file));
        }
        self.report_key_ids();
        PlannedStep::said(Kind::Wait, says.join("; "))
    }

    fn migrate(&mut self, tasks: &[Task]) -> PlannedStep {
        let names: Vec<String> = tasks.iter().map(|task| task.resource.to_string()).collect();
        let writer = tasks.first().map_or(Slot::Plain, |task| task.writer);
        let says = format!("{} written anew with {}", names.join("; "), self.known.shown(writer));
        let mut step = PlannedStep::said(Kind::Migrate, says);
        let (mut objects, mut bytes) = (0, 0);
        for Task { resource, turn, writer, key_id } in tasks {
            if let Some(all) = &mut self.stored {
                let stored = all.entry(resource.clone()).or_default();
                let fresh = Stored { slot: *writer, key_id: key_id.clone() };
                let mut moved = (Need::default(), 0);
                for (_, (need, its)) in stored.iter_mut().filter(|(stored, _)| **stored != fresh) {
                    moved.0.objects += need.objects;
                    moved.1 += *its;
                    // What was there is an old revision now.
                    *need = Need { objects: 0, revisions: need.revisions + need.objects };
                    *its = 0;
                }
                objects += moved.0.objects;
                bytes += moved.1;
                let kept = stored.entry(fresh).or_default();
                kept.0.objects += moved.0.objects;
                kept.1 += moved.1;
            }
            let report = EngineReport { turn: *turn, key_id: key_id.clone(), outcome: Outcome::Finished };
            self.observed.engine.insert(resource.clone(), report);
        }
        if self.stored.is_some() {
            step.objects = Some(objects);
            step.growth_bytes = Some(bytes);
            step.minutes = Some(objects.div_ceil(EXPECTED_RATE * 60));
            step.remote_calls = self.remote_calls(writer);
        }
        step
    }

    /// Each plugin opens each local KEK once, and makes one. What other plugins do is not known.
    fn remote_calls(&self, writer: Slot) -> Option<u64> {
        let survey = self.sight.looked.survey.as_ref()?;
        let mut keks = BTreeSet::new();
        for entry in survey.groups.iter().filter(|entry| entry.live.values > 0) {
            match &entry.group.encryption {
                Encryption::KmsV2 { record: Some(record), .. } => drop(keks.insert(&record.local_kek)),
                Encryption::KmsV1 { .. } | Encryption::KmsV2 { record: None, .. } => return None,
                _ => {}
            }
        }
        let is_plugin = writer.key().is_some_and(|id| {
            self.known
                .materials
                .0
                .get(&id)
                .is_some_and(|material| matches!(material.provider, Provider::KmsV2(_)))
        });
        let each = u64::try_from(keks.len()).ok()? + u64::from(is_plugin);
        Some(each * u64::try_from(self.observed.servers.len()).ok()?)
    }

    fn prove(&mut self, tasks: &[Task]) -> PlannedStep {
        for Task { resource, turn, key_id, .. } in tasks {
            let Some(stored) = self.stored.as_mut().and_then(|stored| stored.get_mut(resource)) else {
                continue;
            };
            for (need, _) in stored.values_mut() {
                need.revisions = 0;
            }
            stored.retain(|_, (need, _)| need.objects > 0);
            let count = Count {
                turn: *turn,
                key_id: key_id.clone(),
                after_claim: true,
                stored: stored.iter().map(|(stored, (need, _))| (stored.clone(), *need)).collect(),
            };
            self.observed.census.insert(resource.clone(), count);
        }
        let names: Vec<String> = tasks.iter().map(|task| task.resource.to_string()).collect();
        let says = format!("a census counts {}, once etcd has compacted old revisions", names.join("; "));
        PlannedStep::said(Kind::Prove, says)
    }
}
