//! `casemate migrate`: objects are written anew, so that they are stored as API servers store now.
//!
//! * `reach`: flags for an etcd that may be left out
//! * `aim`: what objects are to become
//! * `answer`: what is told of it
//!
//! The engine is `casemate-migrate`. `docs/reference/migrate.schema.json` is the schema of the JSON.
mod aim;
pub(crate) mod answer;
pub(crate) mod reach;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use casemate_census::etcd::{Options as Census, Scanner};
use casemate_migrate::cursor::{CursorStore, FileStore, Forgetful, StoreError};
use casemate_migrate::pace::Limits;
use casemate_migrate::progress::Progress;
use casemate_migrate::proof::Proof;
use casemate_migrate::targets::Plan;
use casemate_migrate::{Api, EtcdSource, Migration, Options, Source};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::census::api::reach::Reach;
use crate::output::{Exit, Failure, Output};
use aim::{Goal, Wanted};
use answer::Answer;
use reach::EtcdReach;

pub(crate) const ABOUT: &str = "Writes stored objects anew, so that they are encrypted as API servers encrypt now: after a key or \
    provider changed, or encryption was switched on\n\n\
    Each object gets an empty patch that holds for the version that was seen: nothing in it changes, what others write meanwhile is \
    not overwritten, and an API server that finds an object stored as it stores now writes nothing. As many are in flight as the \
    servers do without letting others wait. Objects that can't be written are listed with the reason, the rest goes on. Contents of objects \
    are not asked for.\n\n\
    Without --yes it says what it would do. Finished is what a census of etcd says: give the flags for etcd, and it also takes from there \
    which objects are stale, so that one that nobody can decrypt is named and hides no other. Without them the end is \
    called unproven.\n\n\
    Needs the rights to get, list and patch each resource, and to get /metrics; of etcd, to read.";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  proven: a census of etcd found no stale object; or a dry run
  2  usage: the command line, or a file named on it, is wrong
  3  unproven: all was written, as far as API servers tell; or nothing could be done
  4  partly: some objects are left, and are named; or it was interrupted";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,

    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    etcd: EtcdReach,

    /// Write. Without it, nothing is changed
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,

    /// Say what would be done: as without --yes
    #[arg(long)]
    dry_run: bool,

    /// Where to keep how far it is: begun again with the same folder, it goes on there. Holds names of objects
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,

    /// How many writes may be in flight at most; fewer are, while others would have to wait
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=512))]
    in_flight: u16,

    /// How long to go on while no API server does anything
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::kms::timeout)]
    patience: Duration,
}

/// What a slow control plane does: for the dry run, since nothing was measured.
const EXPECTED_RATE: u64 = 300;
/// How often compaction may make a census begin anew.
const PASSES: u32 = 8;

pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let goal = args.wanted.read()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    runtime.block_on(async {
        let configs = args.reach.configs().await?;
        let api = Api::new(&configs, args.reach.request_timeout())
            .map_err(|error| Failure::new(Exit::Usage, &error))?;
        let plan = api.plan(&goal.patterns).await.map_err(|error| unknown(&error))?;
        let goal = goal.ask(&args.reach, output).await?;
        let prefix = args.etcd.prefix(output).await?;
        let before = match &prefix {
            Some(prefix) => Some(census(&args.etcd, prefix, &goal, output).await?),
            None => None,
        };
        if !args.yes {
            let answer = Answer::planned(
                &plan,
                counts(&api, &plan, before.as_ref()).await,
                before,
                &goal,
                EXPECTED_RATE,
            );
            output.sections(&answer, &answer.sections())?;
            return Ok(answer.exit());
        }
        let answer = match &args.state {
            Some(folder) => {
                let mut store = FileStore::open(folder).map_err(|error| Failure::new(Exit::Usage, &error))?;
                migrate(args, &api, &plan, goal, prefix, before, &mut store, output).await?
            }
            None => migrate(args, &api, &plan, goal, prefix, before, &mut Forgetful, output).await?,
        };
        output.sections(&answer, &answer.sections())?;
        Ok(answer.exit())
    })
}

#[allow(clippy::too_many_arguments)] // all that one run has; it is called in one place
async fn migrate<S: CursorStore>(
    args: &Args,
    api: &Api,
    plan: &Plan,
    goal: Goal,
    prefix: Option<String>,
    before: Option<Proof>,
    store: &mut S,
    output: &Output,
) -> Result<Answer, Failure> {
    let cancel = CancellationToken::new();
    watch_signals(cancel.clone())?;
    let options = Options {
        limits: Limits { widest: args.in_flight.into(), ..Limits::default() },
        patience: args.patience,
        ..Options::default()
    };
    let name = goal.name(prefix.is_some());
    let migration = Migration { api, plan, goal: &name, options, cancel };
    let mut expected = BTreeMap::new();
    for remaining in before.iter().flat_map(|proof| &proof.stale) {
        *expected.entry(remaining.resource.clone()).or_insert(0) += remaining.objects;
    }
    let source = match &prefix {
        Some(prefix) => Source::Etcd(Box::new(EtcdSource {
            client: args.etcd.connect(output).await?,
            prefix: prefix.clone(),
            aim: goal.aim().ok_or_else(|| Failure::new(Exit::Usage, &aim::NEEDS_CONFIG))?,
        })),
        None => Source::Api,
    };
    let begun = Instant::now();
    let mut line = Line::new(output);
    let report = migration.run(source, store, &expected, |progress, now| line.show(progress, now)).await;
    drop(line);
    let report = report.map_err(|error| stored(&error))?;
    let took = begun.elapsed();
    // What API servers write with may have changed meanwhile.
    let goal = goal.ask(&args.reach, output).await?;
    let proof = match &prefix {
        Some(prefix) => census(&args.etcd, prefix, &goal, output).await?,
        None => Proof::unknown(vec![
            "API servers do not tell how objects are stored: a census of etcd does, with --etcd-endpoints or --etcd-detect".to_owned(),
        ]),
    };
    Ok(Answer::done(plan, report, proof, &goal, took))
}

/// All of etcd, against the goal.
async fn census(etcd: &EtcdReach, prefix: &str, goal: &Goal, output: &Output) -> Result<Proof, Failure> {
    let client = etcd.connect(output).await?;
    let Some(aim) = goal.aim() else { return Err(Failure::new(Exit::Usage, &aim::NEEDS_CONFIG)) };
    let options = Census { prefix: prefix.to_owned(), rate: None, passes: PASSES };
    let mut progress =
        crate::census::scan::Progress::new(output, format!("census of {}", client.endpoint()), "values", 0);
    let mut scanner = Scanner::new(client, options);
    let survey = scanner.survey(|at| progress.now_at(at.done, at.all, at.done)).await;
    drop(progress);
    Ok(aim.prove(&survey.map_err(|error| unknown(&error))?))
}

/// How many objects of each target there are to look at.
async fn counts(api: &Api, plan: &Plan, before: Option<&Proof>) -> BTreeMap<String, Option<u64>> {
    let mut counts = BTreeMap::new();
    for target in &plan.targets {
        let name = target.resource.to_string();
        let count = match before {
            Some(proof) => {
                let its = proof.stale.iter().filter(|remaining| remaining.resource == name);
                Some(its.map(|remaining| remaining.objects).sum())
            }
            None => api.count(target).await,
        };
        counts.insert(name, count);
    }
    counts
}

/// The first one ends it after what is in flight; the next one at once.
fn watch_signals(cancel: CancellationToken) -> Result<(), Failure> {
    let unfit =
        |error: io::Error| Failure::new(Exit::Unknown, &format_args!("can't watch for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unfit)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(unfit)?;
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        cancel.cancel();
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        std::process::exit(i32::from(Exit::Partly.number()));
    });
    Ok(())
}

/// One line on a terminal.
struct Line {
    is_watched: bool,
    shown: Option<Duration>,
}

impl Line {
    const INTERVAL: Duration = Duration::from_millis(200);

    fn new(output: &Output) -> Self {
        Self { is_watched: output.is_watched(), shown: None }
    }

    fn show(&mut self, progress: &Progress, now: Duration) {
        if !self.is_watched || self.shown.is_some_and(|shown| now < shown + Self::INTERVAL) {
            return;
        }
        self.shown = Some(now);
        let _ = write!(io::stderr(), "\r{}\x1b[K", answer::line(&progress.look(now)));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn unknown(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Unknown, error)
}

fn stored(error: &StoreError) -> Failure {
    Failure::new(Exit::Unknown, error)
}

#[cfg(test)]
mod tests;
