//! Pages of one sequence of objects, one after another.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::attempt::{Outcome, Work};
use super::{Migration, Pages, Stop};
use crate::cursor::{Cursor, CursorStore, Deferred, Lane};
use crate::pace::{Pace, Sign};
use crate::progress::Progress;
use crate::report::{Failed, Report};
use crate::source::{Item, Missed};
use crate::verdict::{Cause, Verdict};

/// Everything that changes while it runs.
pub(super) struct Crew<'a, S, O> {
    pub(super) migration: &'a Migration<'a>,
    pub(super) cursor: Cursor,
    pub(super) store: &'a mut S,
    pub(super) report: Report,
    pub(super) progress: Progress,
    pub(super) pace: Pace,
    pub(super) observe: O,
    pub(super) begun: Instant,
    /// When an object was done, or a list came, the last time.
    pub(super) succeeded: Instant,
    /// How many writes failed in a row that may succeed later.
    pub(super) failing: u64,
}

/// How many writes may fail in a row before it is not the objects: etcd takes no writes, or a webhook is away.
const FAILING: u64 = 50;
/// How often others may be quicker with one object.
const CONFLICTS: u32 = 8;
/// How often one object may be told to wait although it can be read.
const IDLE_WAITS: u32 = 3;
/// Each pause between rounds is at most so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

impl<S: CursorStore, O: FnMut(&Progress, Duration)> Crew<'_, S, O> {
    /// All pages, then what is to be tried again. The cursor is saved after each of these.
    pub(super) async fn lane(&mut self, name: &str, mut pages: Pages<'_>) -> Result<(), Stop> {
        let mut lane = std::mem::take(self.cursor.lane(name));
        let ended = self.all_pages(name, &mut lane, &mut pages).await;
        self.cursor.lanes.insert(name.to_owned(), lane);
        ended
    }

    async fn all_pages(&mut self, name: &str, lane: &mut Lane, pages: &mut Pages<'_>) -> Result<(), Stop> {
        while !lane.ended {
            let page = match pages.next().await {
                Ok(page) => page,
                Err(Missed::Stop(why)) => return Err(Stop::Because(why)),
                Err(Missed::Wait { after, busy }) => {
                    self.observe(if busy { Sign::Throttled { after } } else { Sign::Unreached });
                    let Err(stop) = self.rest().await else { continue };
                    match pages.give_up().await {
                        Some(page) if !self.migration.cancel.is_cancelled() => page,
                        _ => return Err(stop),
                    }
                }
            };
            self.succeeded = Instant::now();
            self.report.expired_lists += u64::from(page.expired);
            self.report.skipped.extend(page.skipped);
            if let Some(total) = page.total {
                let before: u64 = lane.done.values().map(|tally| tally.objects()).sum();
                self.progress.expect(name, before, Some(total.max(before)));
            }
            // A page counts as a whole: what was done of it when the process is killed is done again.
            let mut passed = lane.clone();
            for failed in page.unreadable {
                self.count(&failed.resource);
                passed.give_up(failed);
            }
            let queue = page.items.into_iter().map(Work::new).collect();
            self.work_off(queue, &mut passed, true).await?;
            passed.after = page.after;
            passed.ended = page.is_last;
            *lane = passed;
            self.save(name, lane).await?;
        }
        self.try_again(name, lane).await
    }

    /// What failed and may succeed by now, in rounds with pauses between them.
    async fn try_again(&mut self, name: &str, lane: &mut Lane) -> Result<(), Stop> {
        let mut pause = self.migration.options.pause;
        while !lane.later.is_empty() {
            self.sleep(pause).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let mut tried = lane.clone();
            let queue = std::mem::take(&mut tried.later).into_iter().filter_map(|deferred| {
                let Deferred { failed, tries } = deferred;
                let targets = &self.migration.plan.targets;
                let place =
                    targets.iter().position(|target| target.resource.to_string() == failed.resource)?;
                let stored = match failed.cause {
                    Cause::Unreadable { stored, .. } => stored,
                    _ => None,
                };
                let (namespace, name) = (failed.namespace, failed.name);
                let item = Item { target: place, namespace, name, uid: None, version: None, stored };
                Some(Work { tries, ..Work::new(item) })
            });
            let queue = queue.collect();
            self.work_off(queue, &mut tried, false).await?;
            *lane = tried;
            self.save(name, lane).await?;
        }
        Ok(())
    }

    async fn save(&mut self, name: &str, lane: &Lane) -> Result<(), Stop> {
        self.cursor.lanes.insert(name.to_owned(), lane.clone());
        Ok(self.store.save(&self.cursor).await?)
    }

    /// Tries each of `queue` until it is done, given up, or to be tried again later. `is_first` says whether they are tried
    /// for the first time: only then many that fail in a row say that it is not the objects.
    async fn work_off(
        &mut self,
        mut queue: VecDeque<Work>,
        lane: &mut Lane,
        is_first: bool,
    ) -> Result<(), Stop> {
        let mut in_flight = JoinSet::new();
        loop {
            if self.migration.cancel.is_cancelled() {
                return Err(interrupted());
            }
            let rest = self.pace.rest(self.begun.elapsed());
            while rest.is_zero() && in_flight.len() < self.pace.width() {
                let Some(work) = queue.pop_front() else { break };
                let target = self.migration.target(work.item.target).clone();
                in_flight.spawn(work.attempt(self.migration.api.clone(), target));
            }
            if in_flight.is_empty() {
                if queue.is_empty() {
                    return Ok(());
                }
                self.rest().await?;
                continue;
            }
            let outcome = tokio::select! {
                outcome = in_flight.join_next() => outcome,
                () = sleep(rest.max(Duration::from_millis(1))), if !rest.is_zero() && !queue.is_empty() => continue,
                () = self.migration.cancel.cancelled() => continue,
            };
            // A task that panicked is none of ours: attempts don't.
            let Some(Ok(outcome)) = outcome else { continue };
            if let Some(again) = self.settle(outcome, lane, is_first)? {
                queue.push_back(again);
            }
        }
    }

    /// What becomes of an object. One that is to be tried at once comes back.
    fn settle(&mut self, outcome: Outcome, lane: &mut Lane, is_first: bool) -> Result<Option<Work>, Stop> {
        let Outcome { mut work, verdict, is_served, is_written, signs } = outcome;
        for sign in signs {
            self.observe(sign);
        }
        let resource = self.migration.target(work.item.target).resource.to_string();
        match verdict {
            Verdict::Done | Verdict::Gone => {
                let tally = lane.done.entry(resource.clone()).or_default();
                match (&verdict, is_written) {
                    (Verdict::Gone, _) => tally.gone += 1,
                    (_, true) => tally.written += 1,
                    _ => tally.fresh += 1,
                }
                self.succeeded = Instant::now();
                self.failing = 0;
                self.count(&resource);
            }
            Verdict::Changed if work.conflicts < CONFLICTS => {
                work.conflicts += 1;
                return Ok(Some(work));
            }
            Verdict::Wait { busy, .. } => {
                work.waits += 1;
                work.idle_waits += u32::from(is_served);
                // The server is there for reads of it: it is this write after all.
                if work.idle_waits >= IDLE_WAITS {
                    let code = if busy { 429 } else { 503 };
                    let cause = Cause::WriteFails { code, reason: String::new() };
                    self.later(work, resource, cause, lane, is_first)?;
                } else {
                    self.ensure_patience()?;
                    return Ok(Some(work));
                }
            }
            Verdict::Changed => self.later(work, resource, Cause::KeepsChanging, lane, is_first)?,
            Verdict::Later(cause) | Verdict::Ask(cause) => {
                self.later(work, resource, cause, lane, is_first)?
            }
            Verdict::Permanent(cause) => {
                self.count(&resource);
                lane.give_up(failed(work.item, resource, cause));
            }
            Verdict::Stop(cause) => return Err(Stop::Because(cause.to_string())),
        }
        Ok(None)
    }

    fn later(
        &mut self,
        work: Work,
        resource: String,
        cause: Cause,
        lane: &mut Lane,
        is_first: bool,
    ) -> Result<(), Stop> {
        self.failing += 1;
        let bound = match cause {
            // A whole namespace may be unreadable.
            Cause::Unreadable { .. } => Lane::MOST as u64,
            _ => FAILING,
        };
        if is_first && self.failing >= bound {
            return Err(Stop::Because(format!(
                "{} writes in a row failed, the last one because {cause}. Put that right, then begin again: it goes on where it was",
                self.failing
            )));
        }
        let tries = work.tries + 1;
        let failed = failed(work.item, resource, cause);
        if tries < self.migration.options.tries && lane.later.len() < Lane::MOST {
            lane.defer(Deferred { failed, tries });
        } else {
            self.count(&failed.resource);
            lane.give_up(failed);
        }
        Ok(())
    }

    fn count(&mut self, resource: &str) {
        let now = self.begun.elapsed();
        self.progress.add(resource, 1, now);
        (self.observe)(&self.progress, now);
    }

    fn observe(&mut self, sign: Sign) {
        self.pace.observe(self.begun.elapsed(), sign);
    }

    /// As long as the pace says.
    async fn rest(&mut self) -> Result<(), Stop> {
        self.ensure_patience()?;
        let rest = self.pace.rest(self.begun.elapsed()).max(Duration::from_millis(10));
        self.sleep(rest).await
    }

    async fn sleep(&mut self, pause: Duration) -> Result<(), Stop> {
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.migration.cancel.cancelled() => Err(interrupted()),
        }
    }

    fn ensure_patience(&self) -> Result<(), Stop> {
        let patience = self.migration.options.patience;
        match self.succeeded.elapsed() > patience {
            true => Err(Stop::Because(format!(
                "nothing succeeded for {} s: API servers can't be reached, are not ready, or are too busy. Begin again when they are: \
                 it goes on where it was",
                patience.as_secs()
            ))),
            false => Ok(()),
        }
    }
}

fn interrupted() -> Stop {
    Stop::Because("it was interrupted; begun again, it goes on where it was".to_owned())
}

fn failed(item: Item, resource: String, cause: Cause) -> Failed {
    Failed { resource, namespace: item.namespace, name: item.name, cause }
}
