//! What is told. Its JSON is a contract: `docs/reference/status.schema.json`.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use casemate_rotation::{Held, HeldBy, Hold, Lag, PluginKeyId, Resources, ServerFile, Slot, Step, Stored};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::expected::Expected;
use crate::cluster::sight::{Sight, report};
use crate::output::Exit;

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "casemate status --output json")]
pub(super) struct Answer {
    /// Where it is.
    pub(super) phase: Phase,
    /// The same in words, with what to do.
    pub(super) says: String,
    /// What new objects are written with; absent where that is not known.
    pub(super) write_key: Option<String>,
    /// Objects below all entries; absent without a census.
    pub(super) objects: Option<u64>,
    /// How many of them are stored as they are written now; absent without a census.
    pub(super) current: Option<u64>,
    /// The share of those, rounded down: 100 means all.
    pub(super) percent: Option<u64>,
    /// Objects a second, by what was seen of them lately; only while it is watched.
    pub(super) rate: Option<u64>,
    /// How many seconds it takes until all are: at that rate, or at 300 a second.
    pub(super) eta_seconds: Option<u64>,
    /// The revision of etcd that was counted.
    pub(super) revision: Option<u64>,
    /// Each entry of the EncryptionConfiguration.
    pub(super) entries: Vec<EntryAnswer>,
    /// What told which API servers there must be: `named`, `leases`, `endpoints` or `unknown`.
    pub(super) servers_by: String,
    /// Each API server.
    pub(super) servers: Vec<ServerAnswer>,
    /// Keys that are still read and write nothing, with what holds them.
    pub(super) held: Vec<HeldAnswer>,
    /// Objects that no file has a key for.
    pub(super) unreadable: Vec<StoredAnswer>,
    /// What could not be seen.
    pub(super) open: Vec<String>,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Everything is as it should be.
    Done,
    /// Files are to be written on servers.
    Write,
    /// API servers, or their plugins, are waited for.
    Wait,
    /// Objects are to be written anew.
    Migrate,
    /// Objects are to be counted.
    Prove,
    /// A new key is to be made.
    NewKey,
    /// Somebody is to approve something.
    Approve,
    /// It can't be decided what is next.
    Unknown,
}

/// An entry of the EncryptionConfiguration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct EntryAnswer {
    /// Whose objects.
    pub(super) resources: String,
    /// What they are written with.
    pub(super) writer: String,
    /// What they are stored under, by a census.
    pub(super) stored: Vec<StoredAnswer>,
}

/// Objects that are stored in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct StoredAnswer {
    /// How.
    pub(super) under: String,
    /// Under which key id of its plugin.
    pub(super) key_id: Option<String>,
    /// Whether a write would store them so.
    pub(super) is_current: bool,
    /// How many.
    pub(super) objects: u64,
    /// Older revisions that etcd has not compacted.
    pub(super) revisions: u64,
}

/// One API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct ServerAnswer {
    /// What it is called.
    pub(super) server: String,
    /// Where it answered.
    pub(super) url: Option<String>,
    /// Whether it must be there.
    pub(super) is_expected: bool,
    /// SHA-256 of what it has loaded.
    pub(super) loaded: Option<String>,
    /// Its file, if one is named.
    pub(super) file: Option<String>,
    /// SHA-256 of that file.
    pub(super) file_hash: Option<String>,
    /// What its plugins give now.
    pub(super) key_ids: Vec<KeyIdAnswer>,
    /// What holds it up; absent, if it is as it should be.
    pub(super) lag: Option<String>,
}

/// What a plugin gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct KeyIdAnswer {
    /// Which plugin, by the name that the EncryptionConfiguration has for it.
    pub(super) provider: String,
    /// SHA-256 of the key id.
    pub(super) hash: String,
    /// The key id itself, if something in etcd is stored under it.
    pub(super) key_id: Option<String>,
    /// For how many seconds at least.
    pub(super) seconds: u64,
}

/// A key that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct HeldAnswer {
    /// Which.
    pub(super) key: String,
    /// By what.
    pub(super) by: Vec<String>,
}

/// What a slow control plane does, until something was measured.
const EXPECTED_RATE: u64 = 300;

impl Answer {
    pub(super) fn of(sight: &Sight) -> Self {
        let (phase, says) = phase(sight);
        let entries = entries(sight);
        let stored = || entries.iter().flat_map(|entry| &entry.stored);
        let objects = sight.counted.as_ref().map(|counted| {
            stored().map(|stored| stored.objects).sum::<u64>()
                + counted.unknown.iter().map(|unknown| unknown.objects).sum::<u64>()
        });
        let is_current = |stored: &&StoredAnswer| stored.is_current;
        let current = objects.map(|_| stored().filter(is_current).map(|stored| stored.objects).sum());
        let left = objects.zip(current).map(|(all, current): (u64, u64)| all.saturating_sub(current));
        let writers: BTreeSet<&str> = entries.iter().map(|entry| entry.writer.as_str()).collect();
        let writers: Vec<&str> = writers.into_iter().collect();
        let unknown = sight.counted.iter().flat_map(|counted| &counted.unknown);
        Self {
            phase,
            says,
            write_key: (!writers.is_empty()).then(|| writers.join(", ")),
            objects,
            current,
            percent: objects.zip(current).map(|(all, current)| percent(current, all)),
            rate: None,
            eta_seconds: left.filter(|left| *left > 0).map(|left| left.div_ceil(EXPECTED_RATE)),
            revision: sight.counted.as_ref().and_then(|counted| counted.revision),
            servers_by: match sight.looked.expected {
                Expected::Named => "named",
                Expected::Leases(_) => "leases",
                Expected::Endpoints => "endpoints",
                Expected::Unknown(_) => "unknown",
            }
            .to_owned(),
            servers: servers(sight),
            held: held(sight),
            unreadable: unknown
                .map(|unknown| StoredAnswer {
                    under: format!("{}: {}", unknown.resource, unknown.stored),
                    key_id: None,
                    is_current: false,
                    objects: unknown.objects,
                    revisions: 0,
                })
                .collect(),
            open: sight.open.clone(),
            entries,
        }
    }

    /// Objects that are stored as they are written now, and all.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.current.unwrap_or_default(), self.objects.unwrap_or_default())
    }

    pub(super) fn with_pace(mut self, rate: Option<u64>) -> Self {
        let (current, all) = self.progress();
        if let (Some(rate), Some(_)) = (rate.filter(|rate| *rate > 0), self.eta_seconds) {
            self.rate = Some(rate);
            self.eta_seconds = Some(all.saturating_sub(current).div_ceil(rate));
        }
        self
    }

    pub(super) fn exit(&self) -> Exit {
        match self.phase {
            Phase::Done if !self.unreadable.is_empty() || !self.held.is_empty() => Exit::No,
            Phase::Done if self.open.is_empty() && self.percent == Some(100) => Exit::Yes,
            Phase::Done if self.percent.is_some_and(|percent| percent < 100) => Exit::No,
            Phase::Done | Phase::Unknown => Exit::Unknown,
            Phase::Wait if self.servers.iter().any(|server| server.loaded.is_none()) => Exit::Unknown,
            _ => Exit::No,
        }
    }
}

/// How fast it goes, by the last looks.
#[derive(Debug, Default)]
pub(super) struct Pace {
    seen: VecDeque<(Duration, u64)>,
}

impl Pace {
    const LOOKS: usize = 6;

    /// Objects a second, once there are two looks at which something went on.
    pub(super) fn add(&mut self, (current, _): &(u64, u64), at: Duration) -> Option<u64> {
        // It began anew.
        if self.seen.back().is_some_and(|(_, before)| before > current) {
            self.seen.clear();
        }
        self.seen.push_back((at, *current));
        if self.seen.len() > Self::LOOKS {
            self.seen.pop_front();
        }
        let (first, before) = self.seen.front()?;
        let seconds = at.checked_sub(*first)?.as_secs_f64();
        let done = current.saturating_sub(*before);
        (seconds > 0.0 && done > 0).then(|| (done as f64 / seconds).ceil() as u64)
    }
}

/// Rounded down: only all are 100.
fn percent(current: u64, all: u64) -> u64 {
    match all {
        0 => 100,
        all => u64::try_from(u128::from(current) * 100 / u128::from(all)).unwrap_or_default(),
    }
}

fn phase(sight: &Sight) -> (Phase, String) {
    let names = |resources: &mut dyn Iterator<Item = &Resources>| {
        resources.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    // Without a file there is nothing to decide on.
    if sight.looked.files.is_empty() {
        return (
            Phase::Unknown,
            "what is next can't be decided without the file of the API servers".to_owned(),
        );
    }
    match &sight.verdict.step {
        Step::Done if sight.verdict.decisions.held.is_empty() => {
            (Phase::Done, "everything is as it is wanted".to_owned())
        }
        Step::Done => (Phase::Done, "written as it is wanted; keys that are still read are held".to_owned()),
        Step::Write(files) => (Phase::Write, writes(sight, files)),
        Step::Wait(lagging) => {
            let names: Vec<String> = lagging.keys().map(ToString::to_string).collect();
            (Phase::Wait, format!("waits for {}", names.join(", ")))
        }
        Step::Migrate(tasks) => {
            let names = names(&mut tasks.iter().map(|task| &task.resource));
            (Phase::Migrate, format!("to be written anew: {names}; casemate migrate does it"))
        }
        Step::Prove(tasks) => {
            let names = names(&mut tasks.iter().map(|task| &task.resource));
            (Phase::Prove, format!("old revisions of {names} need a key, until etcd compacts them"))
        }
        Step::CreateKey { .. } => (Phase::NewKey, "a new key is needed".to_owned()),
        Step::Propose(_) => (Phase::Approve, "somebody else is to approve a change".to_owned()),
        Step::Hold(Hold::NoServers) => (
            Phase::Unknown,
            "nothing is decided while it is not known which API servers there are".to_owned(),
        ),
        Step::Hold(Hold::NoNumbersLeft) => (Phase::Unknown, "all numbers of keys are used up".to_owned()),
        Step::Hold(Hold::Paused) => {
            (Phase::Unknown, "what is wanted can't be told from the files".to_owned())
        }
        Step::Record { .. } => (Phase::Unknown, "there is no end of what is to be recorded".to_owned()),
    }
}

/// What files that are to be written are for.
fn writes(sight: &Sight, files: &[ServerFile]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.server.to_string()).collect();
    let (more, less) = sight.known.brought_and_taken(files);
    let what = match (more.is_empty(), less.is_empty()) {
        (false, _) => format!("{more} is to be read"),
        (true, false) => format!("nothing needs {less}: it is to leave"),
        (true, true) => "what writes is to change".to_owned(),
    };
    format!("{what} on {}", names.join(", "))
}

fn entries(sight: &Sight) -> Vec<EntryAnswer> {
    let Some(progress) = sight.progress() else { return Vec::new() };
    let mut answers = Vec::new();
    for (resources, course) in &progress.courses {
        let target = course.writer.key().and_then(|id| progress.key_ids.get(&id)).map(|known| &known.target);
        let stored = sight.counted.as_ref().and_then(|counted| counted.entries.get(resources));
        let stored = stored.into_iter().flatten().map(|(stored, need)| StoredAnswer {
            under: sight.known.shown(stored.slot),
            key_id: stored.key_id.as_ref().map(|id| key_id(sight, id)),
            is_current: is_current(stored, course.writer, target),
            objects: need.objects,
            revisions: need.revisions,
        });
        answers.push(EntryAnswer {
            resources: resources.to_string(),
            writer: sight.known.shown(course.writer),
            stored: stored.collect(),
        });
    }
    answers
}

/// A key id that is not settled makes nothing stale: what writes under it is not known yet.
fn is_current(stored: &Stored, writer: Slot, target: Option<&PluginKeyId>) -> bool {
    stored.slot == writer && (target.is_none() || stored.key_id.is_none() || stored.key_id.as_ref() == target)
}

/// In the clear, where something was found under it.
fn key_id(sight: &Sight, id: &PluginKeyId) -> String {
    let clear = sight.counted.as_ref().and_then(|counted| counted.key_ids.get(id));
    clear.cloned().unwrap_or_else(|| id.to_string())
}

fn servers(sight: &Sight) -> Vec<ServerAnswer> {
    let on_disk = crate::cluster::look::files_of(&sight.looked.files, &sight.looked.servers);
    let lagging: BTreeMap<String, &Lag> =
        sight.verdict.decisions.lagging.iter().map(|(name, lag)| (name.to_string(), lag)).collect();
    let mut answers = Vec::new();
    for found in &sight.looked.servers {
        let told = found.told.as_ref().ok();
        let file = on_disk.get(&found.name);
        let loaded = told.and_then(|told| match told.configurations.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        });
        let providers: BTreeSet<&String> =
            told.iter().flat_map(|told| &told.key_ids).map(|(provider, ..)| provider).collect();
        let key_ids = providers.into_iter().filter_map(|provider| {
            let report = report(told?, provider, sight.looked.at)?;
            let clear = sight.counted.as_ref().and_then(|counted| counted.key_ids.get(&report.key_id));
            Some(KeyIdAnswer {
                provider: provider.clone(),
                hash: report.key_id.to_string(),
                key_id: clear.cloned(),
                seconds: report.since.as_secs(),
            })
        });
        let file_hash = file.and_then(|file| file.hash.clone());
        let lag = match &found.told {
            Err(error) => Some(error.clone()),
            Ok(_) if file.is_none() && loaded.is_some() => None,
            Ok(_) => lagging.get(&found.name).map(|lag| lag_text(sight, lag, &loaded, &file_hash)),
        };
        answers.push(ServerAnswer {
            server: found.name.clone(),
            url: found.url.clone(),
            is_expected: found.is_expected,
            loaded,
            file: file.map(|file| file.of.path.display().to_string()),
            file_hash,
            key_ids: key_ids.collect(),
            lag,
        });
    }
    answers
}

fn lag_text(sight: &Sight, lag: &Lag, loaded: &Option<String>, file: &Option<String>) -> String {
    match lag {
        Lag::Absent => "was not found".to_owned(),
        Lag::Terminating => "is on its way out".to_owned(),
        Lag::Unexpected => "is not expected, and writes: name it with --server, or end it".to_owned(),
        Lag::NoFile => "its file is not known, or says nothing that can be taken up".to_owned(),
        Lag::Silent if loaded.is_some() && loaded != file => {
            "has loaded something else than its file, and it is none of those that are named".to_owned()
        }
        Lag::Silent => {
            "does not say what it has loaded: it was started without a configuration, or is of 1.31 or older"
                .to_owned()
        }
        Lag::NotLoaded => "has not loaded its file yet: it does within a minute, if it can".to_owned(),
        Lag::KeyId(id) => format!(
            "{} gives no key id that counts yet: all must have given the same one for some minutes",
            sight.known.shown(Slot::Key(*id))
        ),
    }
}

fn held(sight: &Sight) -> Vec<HeldAnswer> {
    let of = |held: &Held| {
        let by = match &held.by {
            HeldBy::Writer => "it is to write".to_owned(),
            HeldBy::Server(server) => format!("{server} may write with it"),
            HeldBy::Objects(1) => "1 object".to_owned(),
            HeldBy::Objects(objects) => format!("{objects} objects"),
            HeldBy::Revisions(_) => "older revisions, until etcd compacts them".to_owned(),
            HeldBy::Unproven => "no census that proves that nothing is stored under it".to_owned(),
            HeldBy::Backup(name) => format!("the backup {name}"),
        };
        format!("{}: {by}", held.resource)
    };
    let held = sight.verdict.decisions.held.iter();
    held.filter(|(_, by)| !by.is_empty())
        .map(|(id, by)| HeldAnswer {
            key: sight.known.shown(Slot::Key(*id)),
            by: by.iter().map(of).collect(),
        })
        .collect()
}
