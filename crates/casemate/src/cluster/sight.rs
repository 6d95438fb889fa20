//! All that was seen, as what `casemate-rotation` decides on. Pure.
//!
//! What is decided to be recorded, and nothing else, is taken for done here, in memory: what comes after it is the step that
//! people wait for.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use casemate_rotation::{
    Course, File, Intent, KeyIdReport, Moment, Observed, PluginKeyId, Progress, ProviderId, Resources,
    Server, ServerName, Slot, Step, Verdict, desired,
};

use super::counts::Counted;
use super::expected::{Expected, Found};
use super::keys::Known;
use super::look::{FileSeen, Looked, files_of};
use crate::census::api::Told;

/// How often an API server asks its plugin.
const POLL: Duration = Duration::from_secs(60);
/// What a plugin reported longer ago than this is no report.
const OLDEST_REPORT: f64 = 240.0;
/// More than any chain of things to record.
const MOST_RECORDS: usize = 16;

/// What was seen, and what comes of it.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) looked: Looked,
    pub(crate) known: Known,
    /// What decisions rest on, with what is to be recorded.
    pub(crate) observed: Observed,
    pub(crate) verdict: Verdict,
    pub(crate) counted: Option<Counted>,
    /// What stays open.
    pub(crate) open: Vec<String>,
}

impl Sight {
    /// Of what was looked at, if it goes on as it is: what writes is what is wanted.
    pub(crate) fn of(looked: Looked, key_id_stable_for: Duration) -> Self {
        let mut open = Vec::new();
        if let Expected::Unknown(why) = &looked.expected {
            open.push(format!("which API servers there must be is not known: {why}"));
        }
        let mut known = Known::default();
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        for seen in &looked.files {
            let file = match &seen.says {
                Ok(configuration) => known.take(configuration),
                Err(error) => Err(error.clone()),
            };
            match (file, &seen.hash) {
                (Ok(file), Some(hash)) => drop(files.insert(hash.clone(), file)),
                (Err(error), _) => open.push(error),
                _ => {}
            }
        }
        if looked.files.is_empty() {
            open.push(
                "what API servers run with is told by its hash alone: name their file with --encryption-config"
                    .to_owned(),
            );
        }
        let servers = servers(&looked, &known, &files);
        let entries: BTreeSet<Resources> = files.values().flat_map(|file| file.0.keys()).cloned().collect();
        let counted = looked.survey.as_ref().filter(|_| !files.is_empty()).and_then(|survey| {
            let counted = Counted::of(survey, &known, &entries);
            counted.map_err(|error| open.push(error)).ok()
        });
        if looked.survey.is_none() {
            open.push(
                "how objects are stored: a census of etcd tells, with --etcd-endpoints or --etcd-detect"
                    .to_owned(),
            );
        }
        let intent = intent(&known, &servers, &entries, key_id_stable_for, &mut open);
        let expected = looked.servers.iter().filter(|server| server.is_expected);
        let mut observed = Observed {
            by: String::new(),
            at: Moment(looked.at),
            intent,
            records: known.records(),
            expected: expected.map(|server| ServerName(server.name.clone())).collect(),
            servers,
            progress: None,
            engine: BTreeMap::new(),
            has_census: counted.is_some(),
            census: BTreeMap::new(),
            backups: BTreeMap::new(),
            approvals: BTreeMap::new(),
        };
        if observed.intent.paused {
            // What is there can be told without a wish: the first thing to record is that.
            observed.intent.paused = false;
            if let Step::Record { progress, .. } = desired(&observed).step {
                take(&mut observed, progress, counted.as_ref());
            }
            observed.intent.paused = true;
        }
        let verdict = settle(&mut observed, counted.as_ref());
        Self { looked, known, observed, verdict, counted, open }
    }

    /// What is recorded, or would be.
    pub(crate) fn progress(&self) -> Option<&Progress> {
        self.observed.progress.as_ref()
    }
}

/// A time that may be none.
pub(crate) fn stable_for(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => crate::kms::timeout(text),
    }
}

/// Takes what is to be recorded for recorded, until something else is to be done.
pub(crate) fn settle(observed: &mut Observed, counted: Option<&Counted>) -> Verdict {
    for _ in 0..MOST_RECORDS {
        let verdict = desired(observed);
        let Step::Record { progress, .. } = verdict.step else { return verdict };
        take(observed, progress, counted);
    }
    desired(observed)
}

fn take(observed: &mut Observed, progress: Progress, counted: Option<&Counted>) {
    if let Some(counted) = counted {
        // Servers were looked at before etcd was.
        let is_settled =
            |entry: &Resources, course: &Course| writes_everywhere(observed, entry, course.writer);
        observed.census = counted.counts(&progress, is_settled);
    }
    observed.progress = Some(progress);
}

/// Whether all servers that must be there write with it, and will.
fn writes_everywhere(observed: &Observed, entry: &Resources, writer: Slot) -> bool {
    let writes =
        |file: &Option<File>| file.as_ref().is_some_and(|file| file.layout(entry).writer() == writer);
    let does = |server: &Server| !server.terminating && writes(&server.file) && writes(&server.loaded);
    observed.expected.iter().all(|name| observed.servers.contains_key(name))
        && observed.servers.values().all(does)
}

fn servers(looked: &Looked, known: &Known, files: &BTreeMap<String, File>) -> BTreeMap<ServerName, Server> {
    let on_disk = files_of(&looked.files, &looked.servers);
    let mut servers = BTreeMap::new();
    for found in &looked.servers {
        let Ok(told) = &found.told else { continue };
        let file = on_disk.get(&found.name).and_then(|seen| files.get(seen.hash.as_ref()?)).cloned();
        let server = Server {
            terminating: false,
            file,
            loaded: loaded(found, told, &on_disk, files),
            key_ids: key_ids(told, known, looked.at),
        };
        servers.insert(ServerName(found.name.clone()), server);
    }
    servers
}

/// By the hash that it tells. An API server that is started without a file tells none, and so does one that is too old to.
fn loaded(
    found: &Found,
    told: &Told,
    on_disk: &BTreeMap<String, &FileSeen>,
    files: &BTreeMap<String, File>,
) -> Option<File> {
    match told.configurations.as_slice() {
        [hash] => {
            let own = on_disk
                .get(&found.name)
                .and_then(|seen| files.get(seen.hash.as_ref().filter(|own| *own == hash)?));
            own.or_else(|| files.get(hash)).cloned()
        }
        _ => None,
    }
}

fn key_ids(told: &Told, known: &Known, now: u64) -> BTreeMap<ProviderId, KeyIdReport> {
    let names: BTreeSet<&String> = told.key_ids.iter().map(|(provider, ..)| provider).collect();
    let mut reports: BTreeMap<ProviderId, KeyIdReport> = BTreeMap::new();
    for name in names {
        let Some(report) = report(told, name, now) else { continue };
        reports.extend(known.plugins(name).into_iter().map(|id| (id, report.clone())));
    }
    reports
}

/// What the plugin of this name reports, and for how long at least.
///
/// An API server tells when it was last given each key id: the present one began within a poll of the last time that it was
/// given another, or that it asked for the first time. All times are of its own clock, so that ours matters for nothing but
/// whether it still asks.
pub(crate) fn report(told: &Told, provider: &str, now: u64) -> Option<KeyIdReport> {
    let its = || {
        told.key_ids
            .iter()
            .filter(|(name, ..)| name == provider)
            .filter_map(|(_, hash, at)| Some((hash, (*at)?)))
    };
    let (newest, last) = its().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let others = its().filter(|(hash, _)| *hash != newest).map(|(_, at)| at);
    let began = others.chain(told.started).chain(told.reloaded).reduce(f64::max);
    if !last.is_finite() || last + OLDEST_REPORT < now as f64 {
        return None;
    }
    let since = began.map_or(0.0, |began| (last - began).max(0.0));
    let since = Duration::try_from_secs_f64(since).unwrap_or_default().saturating_sub(POLL);
    Some(KeyIdReport { key_id: PluginKeyId::new(newest)?, since })
}

/// What servers write with, wanted as it is.
fn intent(
    known: &Known,
    servers: &BTreeMap<ServerName, Server>,
    entries: &BTreeSet<Resources>,
    key_id_stable_for: Duration,
    open: &mut Vec<String>,
) -> Intent {
    let files = || servers.values().flat_map(|server| server.file.iter().chain(&server.loaded));
    let writers = |entry: &Resources| files().map(|file| file.layout(entry).writer()).max();
    let writer = entries.iter().filter_map(writers).max().unwrap_or(Slot::Plain);
    let wanted = known.wanted(writer);
    // What can't be said as one wish is not decided on.
    let mut paused = wanted.is_none();
    if wanted.is_none() {
        open.push(format!("{} writes, and KMS v1 can only be left", known.shown(writer)));
    }
    let (with, without): (BTreeSet<_>, BTreeSet<_>) =
        entries.iter().cloned().partition(|entry| writers(entry) == Some(writer));
    for entry in &without {
        let other = writers(entry).unwrap_or(Slot::Plain);
        if other != Slot::Plain {
            paused = true;
            open.push(format!(
                "{entry} is written with {}, and others with {}",
                known.shown(other),
                known.shown(writer)
            ));
        }
    }
    Intent {
        by: String::new(),
        wanted: wanted.unwrap_or(casemate_rotation::Wanted::Identity),
        resources: with,
        reason: None,
        max_age: None,
        key_id_stable_for,
        needs_approval: false,
        paused,
        accept_unproven: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
