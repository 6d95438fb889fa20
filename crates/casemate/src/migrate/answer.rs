//! What is told of a migration. Its JSON is a contract: `docs/reference/migrate.schema.json`.
use std::collections::BTreeMap;
use std::time::Duration;

use casemate_migrate::progress::Look;
use casemate_migrate::proof::{Proof, Remaining, Verdict as Proven};
use casemate_migrate::report::{Report, Tally};
use casemate_migrate::targets::Plan;
use schemars::JsonSchema;
use serde::Serialize;

use super::aim::Goal;
use crate::census::Configuration;
use crate::output::{Exit, Section};

/// The whole answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate migrate --output json")]
pub(crate) struct Answer {
    /// What follows from all of it.
    verdict: Verdict,
    /// The EncryptionConfiguration that objects are to be stored by.
    encryption_config: Option<Configuration>,
    /// By provider, SHA-256 of the key ids that API servers write with.
    key_ids: BTreeMap<String, Vec<String>>,
    /// Each resource, and what was done with its objects.
    resources: Vec<ResourceAnswer>,
    /// What was done; absent after a dry run, which tells in `skipped` what would not be.
    report: Option<Report>,
    /// Resources that would not be gone through, with why.
    skipped: Vec<String>,
    /// What a census of etcd says: before, of a dry run; else after it.
    proof: Proof,
    /// How long it would take at 300 objects a second, in minutes; of a dry run.
    expected_minutes: Option<u64>,
    /// By how many bytes etcd would grow until it is compacted; of a dry run with a census.
    expected_growth: Option<u64>,
    /// How long writing took, in seconds.
    seconds: Option<f64>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// Nothing was done: a dry run.
    Planned,
    /// A census found no stale object.
    Proven,
    /// All was written, as far as API servers tell.
    Unproven,
    /// Something is left.
    Partly,
}

/// One resource.
#[derive(Debug, Serialize, JsonSchema)]
struct ResourceAnswer {
    /// As EncryptionConfigurations name it.
    resource: String,
    /// Objects that there are to look at: stale ones, where a census was made. Of a dry run.
    objects: Option<u64>,
    /// What was done with them.
    #[serde(flatten)]
    tally: Tally,
}

impl Answer {
    pub(super) fn planned(
        plan: &Plan,
        counts: BTreeMap<String, Option<u64>>,
        before: Option<Proof>,
        goal: &Goal,
        rate: u64,
    ) -> Self {
        let known: Option<u64> = counts.values().copied().sum();
        let growth = before.as_ref().map(|proof| proof.stale.iter().map(|remaining| remaining.bytes).sum());
        let resources = counts.into_iter().map(|(resource, objects)| ResourceAnswer {
            resource,
            objects,
            tally: Tally::default(),
        });
        Self {
            verdict: Verdict::Planned,
            encryption_config: goal.config.as_ref().map(|(configuration, _)| configuration.clone()),
            key_ids: key_ids(goal),
            resources: resources.collect(),
            report: None,
            skipped: plan
                .skipped
                .iter()
                .map(|skipped| format!("{}: {}", skipped.what, skipped.why))
                .collect(),
            proof: before.unwrap_or_else(|| Proof::unknown(vec!["no census was made".to_owned()])),
            expected_minutes: known.map(|objects| objects.div_ceil(rate * 60)),
            expected_growth: growth,
            seconds: None,
        }
    }

    pub(super) fn done(plan: &Plan, report: Report, proof: Proof, goal: &Goal, took: Duration) -> Self {
        let verdict = match proof.verdict {
            _ if !report.is_complete() => Verdict::Partly,
            Proven::Proven => Verdict::Proven,
            Proven::Stale => Verdict::Partly,
            Proven::Unproven => Verdict::Unproven,
        };
        let tally = |resource: &String| report.resources.get(resource).copied().unwrap_or_default();
        let resources = plan.targets.iter().map(|target| target.resource.to_string());
        let resources = resources
            .map(|resource| ResourceAnswer { tally: tally(&resource), objects: None, resource })
            .collect();
        Self {
            verdict,
            encryption_config: goal.config.as_ref().map(|(configuration, _)| configuration.clone()),
            key_ids: key_ids(goal),
            resources,
            report: Some(report),
            skipped: Vec::new(),
            proof,
            expected_minutes: None,
            expected_growth: None,
            seconds: Some(took.as_secs_f64()),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match self.verdict {
            Verdict::Planned | Verdict::Proven => Exit::Yes,
            Verdict::Unproven => Exit::Unknown,
            Verdict::Partly => Exit::Partly,
        }
    }

    pub(super) fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section::new(self.sentence())];
        match &self.report {
            None => {
                let mut table = Section::new("Resources").head(["RESOURCE", "OBJECTS"]);
                for ResourceAnswer { resource, objects, .. } in
                    self.resources.iter().filter(|one| one.objects != Some(0))
                {
                    let objects = objects.map_or("not told".to_owned(), |objects| objects.to_string());
                    table.row([resource.clone(), objects]);
                }
                sections.push(table);
            }
            Some(_) => {
                let mut table =
                    Section::new("Resources").head(["RESOURCE", "WRITTEN", "WERE FRESH", "GONE", "FAILED"]);
                for ResourceAnswer { resource, tally, .. } in
                    self.resources.iter().filter(|one| one.tally.objects() > 0)
                {
                    let Tally { written, fresh, gone, failed } = tally;
                    table.row([
                        resource.clone(),
                        written.to_string(),
                        fresh.to_string(),
                        gone.to_string(),
                        failed.to_string(),
                    ]);
                }
                sections.push(table);
            }
        }
        if let Some(report) = self.report.as_ref().filter(|report| !report.failed.is_empty()) {
            let mut table = Section::new("Not written").head(["RESOURCE", "OBJECT", "WHY"]);
            for failed in &report.failed {
                table.row([failed.resource.clone(), failed.object(), failed.cause.to_string()]);
            }
            if report.unlisted > 0 {
                table.row([String::new(), format!("and {} more", report.unlisted), String::new()]);
            }
            sections.push(table);
        }
        let reported = self.report.iter().flat_map(|report| &report.skipped);
        let reported = reported.map(|skipped| format!("{}: {}", skipped.what, skipped.why));
        sections.extend(list("Not gone through", self.skipped.iter().cloned().chain(reported)));
        sections.extend(remaining("Stale in etcd", &self.proof.stale));
        sections.extend(remaining(
            "In etcd, and no API server with this configuration can read it",
            &self.proof.unreadable,
        ));
        sections.extend(list("Not proven, since it is not known", self.proof.unclear.iter().cloned()));
        sections
    }

    fn sentence(&self) -> String {
        let total = self.report.as_ref().map(Report::total).unwrap_or_default();
        let pace = match self.seconds {
            Some(seconds) if seconds > 0.0 && total.objects() > 0 => {
                format!(" in {seconds:.0} s ({:.0} a second)", total.objects() as f64 / seconds)
            }
            _ => String::new(),
        };
        let done = format!("{} objects written, {} were fresh{pace}", total.written, total.fresh);
        let stopped = self.report.as_ref().and_then(|report| report.stopped.as_deref());
        match self.verdict {
            Verdict::Planned => {
                let minutes = match self.expected_minutes {
                    Some(minutes) => format!("about {minutes} min at 300 objects a second"),
                    None => "for a time that can't be told".to_owned(),
                };
                let growth = self.expected_growth.map(|bytes| {
                    format!(
                        "; etcd grows by {:.1} MiB until it is compacted",
                        bytes as f64 / f64::from(1 << 20)
                    )
                });
                format!(
                    "Nothing was changed. With --yes, this is written anew, {minutes}{}",
                    growth.unwrap_or_default()
                )
            }
            Verdict::Proven => format!("Proven: no stale object is in etcd. {done}"),
            Verdict::Unproven => format!("Unproven: {done}"),
            Verdict::Partly => match stopped {
                Some(why) => format!("Not finished: {why}. {done}"),
                None => format!("Not finished: some objects are left. {done}"),
            },
        }
    }
}

/// How far it is.
pub(super) fn line(look: &Look) -> String {
    let Look { done, total, rate, seconds_left } = look;
    let share = *done as f64 / (*total).max(1) as f64 * 100.0;
    let left = match seconds_left {
        Some(seconds) if *seconds >= 120 => format!(", about {} min left", seconds.div_ceil(60)),
        Some(seconds) => format!(", about {seconds} s left"),
        None => String::new(),
    };
    format!("{share:.0} %, {done} of {total} objects, {rate:.0} a second{left}")
}

fn key_ids(goal: &Goal) -> BTreeMap<String, Vec<String>> {
    let ids = goal.key_ids.iter().map(|(provider, ids)| (provider.clone(), ids.iter().cloned().collect()));
    ids.collect()
}

fn list(title: &str, lines: impl Iterator<Item = String>) -> Option<Section> {
    let mut section = Section::new(title);
    let mut is_empty = true;
    for line in lines {
        section.row([line]);
        is_empty = false;
    }
    (!is_empty).then_some(section)
}

fn remaining(title: &str, all: &[Remaining]) -> Option<Section> {
    if all.is_empty() {
        return None;
    }
    let mut section = Section::new(title).head(["RESOURCE", "STORED AS", "OBJECTS", "FOR EXAMPLE"]);
    for Remaining { resource, stored, objects, examples, .. } in all {
        let example = examples.first().cloned().unwrap_or_default();
        section.row([resource.clone(), stored.clone(), objects.to_string(), example]);
    }
    Some(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let look = Look { done: 3700, total: 10_000, rate: 612.4, seconds_left: Some(11) };
        assert_eq!(line(&look), "37 %, 3700 of 10000 objects, 612 a second, about 11 s left");
        let look = Look { done: 0, total: 0, rate: 0.0, seconds_left: None };
        assert_eq!(line(&look), "0 %, 0 of 0 objects, 0 a second");
        let look = Look { done: 1, total: 90_001, rate: 300.0, seconds_left: Some(300) };
        assert!(line(&look).ends_with("about 5 min left"));
    }
}
