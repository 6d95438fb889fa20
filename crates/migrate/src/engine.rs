//! Goes through pages of objects and writes each, as many at once as the pace allows.
mod attempt;
mod lane;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::budget::PageBudget;
use crate::cursor::{Cursor, CursorStore, StoreError};
use crate::pace::{Limits, Pace};
use crate::progress::Progress;
use crate::report::Report;
use crate::source::{Etcd, Listing, Missed, Page};
use crate::targets::{Plan, Target};
use lane::Crew;

/// How a migration goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bounds of what is in flight.
    pub limits: Limits,
    /// About how large a page may be.
    pub page_bytes: u64,
    /// How many objects a page may have.
    pub page_objects: u64,
    /// How long to go on while nothing succeeds.
    pub patience: Duration,
    /// How often an object is tried.
    pub tries: u32,
    /// The first pause before objects are tried again; then twice as long each time.
    pub pause: Duration,
}

/// Where objects come from.
#[derive(Debug)]
pub enum Source<'a> {
    /// Lists of API servers.
    Api,
    /// A census of etcd.
    Etcd(Box<EtcdSource<'a>>),
}

/// How an etcd is read.
#[derive(Debug)]
pub struct EtcdSource<'a> {
    /// Who is asked.
    pub client: casemate_census::etcd::Client,
    /// Below which key objects are.
    pub prefix: String,
    /// Which of them are stale.
    pub aim: crate::proof::Aim<'a>,
}

/// A migration.
#[derive(Debug)]
pub struct Migration<'a> {
    /// Who writes.
    pub api: &'a Api,
    /// What is gone through.
    pub plan: &'a Plan,
    /// What objects are to become: a cursor of another goal is not resumed from.
    pub goal: &'a str,
    /// How.
    pub options: Options,
    /// Ends it after what is in flight.
    pub cancel: CancellationToken,
}

enum Pages<'a> {
    Listing(Box<Listing>),
    Etcd(Box<Etcd<'a>>),
}

/// Why it ends early.
pub(crate) enum Stop {
    Because(String),
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            page_bytes: 4 << 20,
            page_objects: 500,
            patience: Duration::from_secs(300),
            tries: 5,
            pause: Duration::from_secs(1),
        }
    }
}

impl Migration<'_> {
    /// Goes through all of it. `expected` says how many objects of a resource there are, where that is known; `observe` is told
    /// how far it is, often.
    ///
    /// # Errors
    /// If the cursor can't be kept. All else is in the report.
    pub async fn run<S: CursorStore>(
        &self,
        source: Source<'_>,
        store: &mut S,
        expected: &BTreeMap<String, u64>,
        observe: impl FnMut(&Progress, Duration),
    ) -> Result<Report, StoreError> {
        let cursor = Cursor::resume(store.load().await?, self.goal);
        let mut report = Report { resumed: cursor.is_begun(), ..Report::default() };
        report.skipped.clone_from(&self.plan.skipped);
        let mut progress = Progress::default();
        for lane in cursor.lanes.values() {
            for (resource, tally) in &lane.done {
                progress.expect(resource, tally.objects(), None);
            }
        }
        for (resource, total) in expected {
            let before =
                progress.resources().find(|(name, ..)| name == resource).map_or(0, |(_, done, _)| done);
            progress.expect(resource, before, Some(before + total));
        }
        let before = self.api.requests();
        let mut crew = Crew {
            migration: self,
            cursor,
            store,
            report,
            progress,
            pace: Pace::new(self.options.limits),
            observe,
            begun: Instant::now(),
            succeeded: Instant::now(),
            failing: 0,
        };
        let ended = match source {
            Source::Api => self.by_lists(&mut crew).await,
            Source::Etcd(etcd) => self.by_etcd(*etcd, &mut crew).await,
        };
        let Crew { cursor, mut report, .. } = crew;
        match ended {
            Ok(()) => store.clear().await?,
            Err(Stop::Because(why)) => report.stopped = Some(why),
            Err(Stop::Store(error)) => return Err(error),
        }
        for lane in cursor.lanes.into_values() {
            for (resource, tally) in &lane.done {
                report.resources.entry(resource.clone()).or_default().absorb(tally);
            }
            report.failed.extend(lane.failed);
            report.unlisted += lane.unlisted;
        }
        report.requests = self.api.requests() - before;
        Ok(report)
    }

    async fn by_lists<S: CursorStore, O: FnMut(&Progress, Duration)>(
        &self,
        crew: &mut Crew<'_, S, O>,
    ) -> Result<(), Stop> {
        for (place, target) in self.plan.targets.iter().enumerate() {
            let name = target.resource.to_string();
            let after = crew.cursor.lane(&name).after.clone();
            let listing = Listing::new(self.api.clone(), target.clone(), place, self.budget(), &after);
            crew.lane(&name, Pages::Listing(Box::new(listing))).await?;
        }
        Ok(())
    }

    async fn by_etcd<S: CursorStore, O: FnMut(&Progress, Duration)>(
        &self,
        etcd: EtcdSource<'_>,
        crew: &mut Crew<'_, S, O>,
    ) -> Result<(), Stop> {
        const LANE: &str = "etcd";

        let EtcdSource { client, prefix, aim } = etcd;
        let after = crew.cursor.lane(LANE).after.clone();
        let etcd = Etcd::new(client, &prefix, aim, self.plan, self.budget(), &after);
        crew.lane(LANE, Pages::Etcd(Box::new(etcd))).await
    }

    fn budget(&self) -> PageBudget {
        PageBudget::new(self.options.page_bytes, self.options.page_objects)
    }

    pub(crate) fn target(&self, place: usize) -> &Target {
        &self.plan.targets[place]
    }
}

impl Pages<'_> {
    /// After it was waited for in vain: what is to be told of what is left, if it is not all that is away.
    async fn give_up(&mut self) -> Option<Page> {
        match self {
            Self::Listing(listing) => listing.give_up().await,
            Self::Etcd(_) => None,
        }
    }

    async fn next(&mut self) -> Result<Page, Missed> {
        match self {
            Self::Listing(listing) => listing.next().await,
            Self::Etcd(etcd) => etcd.next().await,
        }
    }
}
