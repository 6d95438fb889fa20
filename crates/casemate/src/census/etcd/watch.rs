//! Follows a migration: one pass after another, until what was asked for is so.
use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use casemate_census::etcd::Scanner;
use casemate_census::survey::{Entry, Group, Survey, Unseen};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::super::answer::named;
use super::super::questions::Asked;
use super::survey;
use crate::output::{Exit, Failure, Output, Section, harmless_json, reader_is_gone, write_stdout};

/// How many passes the rate is told of.
const WINDOW: usize = 6;

/// One pass. A line of JSON each; a contract: `docs/reference/census-watch.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate census etcd --watch --output json: each line")]
pub(in super::super) struct Pass {
    /// When it ended, as RFC 3339 has it.
    time: String,
    /// The revision of etcd that it is of.
    revision: Option<u64>,
    /// Objects that are there.
    objects: u64,
    /// How many values are left of what was asked for; absent if nothing was.
    left: Option<u64>,
    /// How many of them became fewer in a second, over the last passes; negative if they became more.
    per_second: Option<f64>,
    /// When none is left if it goes on so.
    seconds_left: Option<f64>,
    /// What the program would exit with if this were the last pass. It is, if that is 0 and something was asked for.
    exit: u8,
    /// What was not looked at.
    unseen: Vec<Unseen>,
    /// What there is, and what became of it since the first pass.
    groups: Vec<Changed>,
}

/// A group, and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
struct Changed {
    /// What the values have in common.
    #[serde(flatten)]
    group: Group,
    /// Values that are what their objects are now.
    live: u64,
    /// How many more than in the first pass.
    live_change: i64,
    /// Values that were overwritten or deleted, and not compacted away.
    past: u64,
    /// How many more than in the first pass.
    past_change: i64,
}

/// Passes, one each `interval` at most, until nothing is left of what was asked for.
pub(super) async fn follow(
    scanner: &mut Scanner,
    asked: &Asked<'_>,
    interval: Duration,
    output: &Output,
) -> Result<Exit, Failure> {
    let mut course = Course::default();
    let mut first: Option<Survey> = None;
    // What is printed is printed whole, and a terminal has its last line for itself again.
    let mut interrupted = pin!(interrupted()?);
    let mut last = Exit::Unknown;
    loop {
        let next = Instant::now() + interval;
        let scanned = select! {
            scanned = survey(scanner, output) => scanned?,
            () = &mut interrupted => return Ok(last),
        };
        let survey = scanned.survey.clone();
        let answer = asked.answer(vec![scanned], Vec::new());
        let (exit, left) = (answer.exit(), answer.left());
        let (per_second, seconds_left) = course.at(Instant::now(), left);
        let pass = Pass {
            time: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            revision: survey.revision,
            objects: survey.live,
            left,
            per_second,
            seconds_left,
            exit: exit.number(),
            groups: changes(first.as_ref().unwrap_or(&survey), &survey),
            unseen: survey.unseen.clone(),
        };
        pass.print(output)?;
        if left.is_some() && exit == Exit::Yes {
            asked.report(&answer, output)?;
            return Ok(exit);
        }
        if reader_is_gone() {
            return Ok(exit);
        }
        (first, last) = (first.or(Some(survey)), exit);
        select! {
            () = sleep_until(next) => {}
            () = &mut interrupted => return Ok(last),
        }
    }
}

/// Ends with Ctrl-C, or when the program is asked to end.
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    let on = |kind| signal(kind).map_err(|error| Failure::new(Exit::Unknown, &error));
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    Ok(async move {
        select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// How fast it goes.
#[derive(Default)]
struct Course(VecDeque<(Instant, u64)>);

impl Course {
    /// Values a second, and seconds left.
    fn at(&mut self, now: Instant, left: Option<u64>) -> (Option<f64>, Option<f64>) {
        let Some(left) = left else { return (None, None) };
        self.0.push_back((now, left));
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
        let Some((then, before)) = self.0.front() else { return (None, None) };
        let seconds = (now - *then).as_secs_f64();
        if seconds <= 0.0 {
            return (None, None);
        }
        let per_second = (*before as f64 - left as f64) / seconds;
        (Some(per_second), (per_second > 0.0).then(|| left as f64 / per_second))
    }
}

/// Groups of both, in the order of `now`; those that are gone come last.
fn changes(first: &Survey, now: &Survey) -> Vec<Changed> {
    let change = |group: &Group, before: Option<&Entry>, after: Option<&Entry>| {
        let count =
            |entry: Option<&Entry>| entry.map_or((0, 0), |entry| (entry.live.values, entry.past.values));
        let ((live_before, past_before), (live, past)) = (count(before), count(after));
        let more = |after: u64, before: u64| after.cast_signed().saturating_sub(before.cast_signed());
        Changed {
            group: group.clone(),
            live,
            live_change: more(live, live_before),
            past,
            past_change: more(past, past_before),
        }
    };
    let of =
        |survey: &'_ Survey, group: &Group| survey.groups.iter().find(|entry| entry.group == *group).cloned();
    let there =
        now.groups.iter().map(|entry| change(&entry.group, of(first, &entry.group).as_ref(), Some(entry)));
    let gone = first.groups.iter().filter(|entry| of(now, &entry.group).is_none());
    there.chain(gone.map(|entry| change(&entry.group, Some(entry), None))).collect()
}

impl Pass {
    fn print(&self, output: &Output) -> Result<(), Failure> {
        if !output.is_json() {
            return output.sections(self, &[self.section()]);
        }
        let line = serde_json::to_string(self).map_err(|error| Failure::new(Exit::Unknown, &error))?;
        if output.is_quiet() {
            Ok(())
        } else {
            write_stdout(format!("{}\n", harmless_json(&line)).as_bytes())
        }
    }

    fn section(&self) -> Section {
        let revision = self.revision.map_or_else(|| "none".to_owned(), |revision| revision.to_string());
        let mut title = format!("{}  revision {revision}, {} objects", self.time, self.objects);
        if let Some(left) = self.left {
            title += &format!("; {left} left");
        }
        if let Some(per_second) = self.per_second {
            title += &format!(", {per_second:.1} fewer a second");
        }
        if let Some(seconds) = self.seconds_left {
            title += &format!(", about {seconds:.0} s to go");
        }
        for unseen in &self.unseen {
            title += &format!("\n{unseen}");
        }
        let columns = ["RESOURCE", "ENCRYPTION", "OBJECTS", "CHANGE", "OLD REVISIONS", "CHANGE"];
        let mut section = Section::new(title).head(columns);
        for one in &self.groups {
            section.row([
                one.group.resource.to_string(),
                named(&one.group.encryption),
                one.live.to_string(),
                signed(one.live_change),
                one.past.to_string(),
                signed(one.past_change),
            ]);
        }
        section
    }
}

fn signed(change: i64) -> String {
    if change == 0 { String::new() } else { format!("{change:+}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_passes() {
        let begun = Instant::now();
        let mut course = Course::default();
        let mut at = |second: u64, left: u64| course.at(begun + Duration::from_secs(second), Some(left));
        assert_eq!(at(0, 1000), (None, None));
        assert_eq!(at(10, 900), (Some(10.0), Some(90.0)));
        assert_eq!(at(20, 1200), (Some(-10.0), None));
        for (second, left) in [(30, 1200), (40, 1200), (50, 1200), (60, 1200)] {
            at(second, left);
        }
        // The first ones are forgotten.
        assert_eq!(at(70, 700), (Some(10.0), Some(70.0)));
        assert_eq!(course.at(begun, None), (None, None));
    }
}
