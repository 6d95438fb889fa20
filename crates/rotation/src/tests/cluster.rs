//! A cluster in which every step works at once, and a short way to write configurations down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use casemate_encryption_config::{ResourcePattern, Scheme};

use crate::*;

pub(super) fn resource(name: &str) -> Resources {
    name.parse::<ResourcePattern>().unwrap().into()
}

fn scheme(name: &str) -> Scheme {
    match name {
        "cbc" => Scheme::AesCbc,
        "gcm" => Scheme::AesGcm,
        "box" => Scheme::Secretbox,
        "kms1" => Scheme::KmsV1,
        "kms" => Scheme::KmsV2,
        other => panic!("{other}"),
    }
}

/// `cbc:1,kms:2,identity`
pub(super) fn layout(text: &str) -> Layout {
    let slots: Vec<(Slot, Option<Scheme>)> = text
        .split(',')
        .map(|item| match item.split_once(':') {
            None => (Slot::Plain, None),
            Some((kind, id)) => (Slot::Key(ProviderId(id.parse().unwrap())), Some(scheme(kind))),
        })
        .collect();
    let keys = slots.iter().filter_map(|(slot, scheme)| {
        Some((slot.key()?, Shape { scheme: (*scheme)?, settings: Settings(0) }))
    });
    let made = Layout::new(slots[0].0, keys.collect()).unwrap();
    if slots.iter().any(|(slot, _)| *slot == Slot::Plain) { made } else { made.without_plain().unwrap() }
}

/// The same of all these resources.
pub(super) fn file(resources: &[&str], text: &str) -> File {
    File(resources.iter().map(|name| (resource(name), layout(text))).collect())
}

pub(super) fn shown(layout: &Layout) -> String {
    let slots = layout.order().into_iter().map(|slot| match slot {
        Slot::Plain => "identity".to_owned(),
        Slot::Key(id) => {
            let kind = match layout.keys()[&id].scheme {
                Scheme::AesCbc => "cbc",
                Scheme::AesGcm => "gcm",
                Scheme::Secretbox => "box",
                Scheme::KmsV1 => "kms1",
                Scheme::KmsV2 => "kms",
            };
            format!("{kind}:{id}")
        }
    });
    slots.collect::<Vec<_>>().join(",")
}

pub(super) fn id(number: u64) -> ProviderId {
    ProviderId(number)
}

pub(super) fn name(text: &str) -> ServerName {
    ServerName(text.into())
}

/// `cbc:1` is a local key that was made for the reason `1`, `kms:2` one of a service `2`.
pub(super) fn record(text: &str) -> (ProviderId, Record) {
    let (kind, number) = text.split_once(':').unwrap();
    let scheme = scheme(kind);
    let is_local = !matches!(scheme, Scheme::KmsV1 | Scheme::KmsV2);
    let key = Key {
        scheme,
        service: (!is_local).then(|| ServiceName(number.into())),
        settings: Settings(0),
        reason: is_local.then(|| number.into()),
        migrated: Age::Unknown,
    };
    (id(number.parse().unwrap()), Record::Intact(key))
}

/// As `record` makes them: `identity`, `cbc:2`, `kms:3`.
pub(super) fn wanting(intent: &mut Intent, text: &str) {
    intent.reason = None;
    intent.wanted = match text.split_once(':') {
        None => Wanted::Identity,
        Some(("kms", service)) => Wanted::KmsV2(ServiceName(service.into())),
        Some((kind, reason)) => {
            intent.reason = Some(reason.into());
            match kind {
                "cbc" => Wanted::AesCbc,
                "gcm" => Wanted::AesGcm,
                _ => Wanted::Secretbox,
            }
        }
    };
}

/// Everything that was observed, and what is stored.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) observed: Observed,
    pub(super) objects: BTreeMap<Resources, Vec<Stored>>,
    pub(super) history: Vec<Entry>,
}

impl Cluster {
    /// Two servers with this file.
    pub(super) fn new(resources: &[&str], deployed: File) -> Self {
        let server = Server { file: Some(deployed.clone()), loaded: Some(deployed), ..Server::default() };
        let names = ["a", "b"].map(name);
        let intent = Intent {
            by: "admin".into(),
            wanted: Wanted::Identity,
            resources: resources.iter().map(|name| resource(name)).collect(),
            reason: None,
            max_age: None,
            key_id_stable_for: Intent::KEY_ID_STABLE_FOR,
            needs_approval: false,
            paused: false,
            accept_unproven: BTreeMap::new(),
        };
        let observed = Observed {
            by: "controller".into(),
            at: Moment(7),
            intent,
            records: BTreeMap::new(),
            expected: names.iter().cloned().collect(),
            servers: names.into_iter().map(|name| (name, server.clone())).collect(),
            progress: None,
            engine: BTreeMap::new(),
            has_census: true,
            census: BTreeMap::new(),
            backups: BTreeMap::new(),
            approvals: BTreeMap::new(),
        };
        Self { observed, objects: BTreeMap::new(), history: Vec::new() }
    }

    pub(super) fn wants(mut self, text: &str) -> Self {
        wanting(&mut self.observed.intent, text);
        self
    }

    pub(super) fn with(mut self, records: &[&str]) -> Self {
        self.observed.records.extend(records.iter().map(|text| record(text)));
        self
    }

    pub(super) fn step(&self) -> Step {
        desired(&self.observed).step
    }

    pub(super) fn server(&mut self, server: &str) -> &mut Server {
        self.observed.servers.get_mut(&name(server)).unwrap()
    }

    pub(super) fn course(&self, name: &str) -> &Course {
        &self.observed.progress.as_ref().unwrap().courses[&resource(name)]
    }

    /// Every server's plugins report this.
    pub(super) fn report(&mut self, provider: u64, key_id: &str, since: Duration) {
        for server in self.observed.servers.values_mut() {
            let key_id = PluginKeyId::new(key_id).unwrap();
            server.key_ids.insert(id(provider), KeyIdReport { key_id, since });
        }
    }

    /// What a server would store an object under.
    fn stores(&self, resource: &Resources) -> Stored {
        let server = self.observed.servers.values().next().unwrap();
        let slot = server.loaded.as_ref().unwrap().layout(resource).writer();
        let report = slot.key().and_then(|id| server.key_ids.get(&id));
        Stored { slot, key_id: report.map(|report| report.key_id.clone()) }
    }

    /// A step and all that it asks for. Files are loaded at once.
    pub(super) fn carry_out(&mut self, step: Step) {
        match step {
            Step::Record { progress, history } => {
                self.observed.progress = Some(progress);
                self.history.extend(history);
            }
            Step::CreateKey { id, wanted, history, .. } => {
                let is_local = wanted.service().is_none();
                let key = Key {
                    scheme: wanted.scheme().unwrap(),
                    service: wanted.service().cloned(),
                    settings: Settings(0),
                    reason: self.observed.intent.reason.clone().filter(|_| is_local),
                    migrated: Age::Unknown,
                };
                assert!(self.observed.records.insert(id, Record::Intact(key)).is_none());
                self.history.extend(history);
            }
            Step::Write(files) => {
                for ServerFile { server, replaces, file } in files {
                    let server = self.observed.servers.get_mut(&server).unwrap();
                    assert_eq!(server.file, replaces);
                    (server.file, server.loaded) = (Some(file.clone()), Some(file));
                }
            }
            Step::Migrate(tasks) => {
                for Task { resource, turn, key_id, .. } in tasks {
                    let stored = self.stores(&resource);
                    for object in self.objects.entry(resource.clone()).or_default() {
                        *object = stored.clone();
                    }
                    let report = EngineReport { turn, key_id, outcome: Outcome::Finished };
                    self.observed.engine.insert(resource, report);
                }
            }
            Step::Prove(tasks) => {
                for Task { resource, turn, key_id, .. } in tasks {
                    let mut stored: BTreeMap<Stored, Need> = BTreeMap::new();
                    for object in self.objects.get(&resource).into_iter().flatten() {
                        stored.entry(object.clone()).or_default().objects += 1;
                    }
                    let count = Count { turn, key_id, after_claim: true, stored };
                    self.observed.census.insert(resource, count);
                }
            }
            Step::Wait(_) => self.wait(),
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self) {
        let keys: BTreeSet<ProviderId> = self.observed.records.keys().copied().collect();
        for server in self.observed.servers.values_mut() {
            for id in &keys {
                let key_id = PluginKeyId::new("first").unwrap();
                let report =
                    server.key_ids.entry(*id).or_insert(KeyIdReport { key_id, since: Duration::ZERO });
                report.since = Intent::KEY_ID_STABLE_FOR;
            }
        }
    }

    /// Goes on until nothing is left to do, or something has to be decided. Gives each configuration that all resources
    /// had on the way, and what was the last step.
    pub(super) fn run(&mut self) -> (Vec<String>, Step) {
        let mut seen = Vec::new();
        for _ in 0..100 {
            let step = self.step();
            match &step {
                Step::Done | Step::Hold(_) | Step::Propose(_) => return (seen, step),
                _ => {}
            }
            self.carry_out(step);
            let now = self.deployed();
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        panic!("no end: {:?} after {seen:?}", self.step());
    }

    /// The configuration of all servers: once, if all resources have the same.
    pub(super) fn deployed(&self) -> String {
        let files: BTreeSet<&File> =
            self.observed.servers.values().filter_map(|server| server.file.as_ref()).collect();
        let files = files.into_iter().map(|file| {
            let layouts: BTreeSet<String> = file.0.values().map(shown).collect();
            if layouts.len() <= 1 {
                return layouts.into_iter().next().unwrap_or_else(|| "nothing".into());
            }
            let each = file.0.iter().map(|(resource, layout)| format!("{resource}={}", shown(layout)));
            each.collect::<Vec<_>>().join(" ")
        });
        files.collect::<Vec<_>>().join(" | ")
    }
}
