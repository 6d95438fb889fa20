//! What is told. Its JSON is a contract: `docs/reference/plan.schema.json`.
use std::fmt::Write as _;

use casemate_rotation::Slot;
use schemars::JsonSchema;
use serde::Serialize;

use super::course::Course;
use crate::cluster::sight::Sight;
use crate::output::Exit;

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "casemate plan --output json")]
pub(super) struct Answer {
    /// What is written with now.
    pub(super) now: Vec<String>,
    /// Each step, in this order. The first one is what is next.
    pub(super) steps: Vec<PlannedStep>,
    /// Whether they lead to what is wanted.
    pub(super) arrives: bool,
    /// Keys that are still read after the last step, because something holds them or nothing proves that they may go.
    pub(super) left: Vec<String>,
    /// Bytes of etcd's database now, if etcd tells.
    pub(super) etcd_bytes: Option<u64>,
    /// By how many bytes it grows at most, until it is compacted; absent without a census.
    pub(super) growth_bytes: Option<u64>,
    /// How large it may get.
    pub(super) etcd_quota: u64,
    /// Whether it would get larger; absent where that is not known.
    pub(super) exceeds_quota: Option<bool>,
    /// What could not be seen.
    pub(super) open: Vec<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct PlannedStep {
    /// Of which kind.
    pub(super) kind: Kind,
    /// In words.
    pub(super) says: String,
    /// On which servers.
    pub(super) servers: Vec<String>,
    /// What changes in the file of each, without keys.
    pub(super) diffs: Vec<PlannedDiff>,
    /// Keys that something needs and that would be gone. None, unless something is wrong already.
    pub(super) strands: Vec<String>,
    /// Objects to write.
    pub(super) objects: Option<u64>,
    /// Bytes of them: by so much etcd grows until it is compacted.
    pub(super) growth_bytes: Option<u64>,
    /// How long that takes at 300 objects a second.
    pub(super) minutes: Option<u64>,
    /// How often key services are called, at most; absent where plugins are not Casemate's.
    pub(super) remote_calls: Option<u64>,
}

/// What changes in the file of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct PlannedDiff {
    /// Which server.
    pub(super) server: String,
    /// A unified diff.
    pub(super) diff: String,
}

/// Kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// A key is made.
    NewKey,
    /// Files are written, and loaded.
    Write,
    /// API servers or plugins are waited for.
    Wait,
    /// Objects are written anew.
    Migrate,
    /// Objects are counted.
    Prove,
    /// It can't go on.
    Stop,
}

impl PlannedStep {
    pub(super) fn said(kind: Kind, says: String) -> Self {
        Self {
            kind,
            says,
            servers: Vec::new(),
            diffs: Vec::new(),
            strands: Vec::new(),
            objects: None,
            growth_bytes: None,
            minutes: None,
            remote_calls: None,
        }
    }
}

impl Answer {
    pub(super) fn of(sight: &Sight, course: Course, etcd_bytes: Option<u64>, etcd_quota: u64) -> Self {
        let writers = sight.progress().into_iter().flat_map(|progress| &progress.courses);
        let now =
            writers.map(|(resource, course)| format!("{resource}: {}", sight.known.shown(course.writer)));
        let growth_bytes = sight
            .counted
            .as_ref()
            .map(|_| course.steps.iter().filter_map(|step| step.growth_bytes).fold(0, u64::saturating_add));
        let exceeds_quota =
            etcd_bytes.zip(growth_bytes).map(|(bytes, growth)| bytes.saturating_add(growth) > etcd_quota);
        let now: Vec<String> = now.collect();
        Self {
            now: if now.is_empty() { vec![sight.known.shown(Slot::Plain)] } else { now },
            steps: course.steps,
            arrives: course.arrives,
            left: course.left,
            etcd_bytes,
            growth_bytes,
            etcd_quota,
            exceeds_quota,
            open: sight.open.clone(),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        let strands = self.steps.iter().any(|step| !step.strands.is_empty());
        match self.arrives && !strands && self.exceeds_quota != Some(true) {
            true => Exit::Yes,
            false if self.steps.iter().any(|step| step.kind == Kind::Stop) && !self.open.is_empty() => {
                Exit::Unknown
            }
            false => Exit::No,
        }
    }

    /// For people.
    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a String can't fail.
        for now in &self.now {
            let _ = writeln!(page, "Now: {now}");
        }
        if self.steps.is_empty() && self.arrives {
            let _ = writeln!(page, "\nNothing to do: it is as it is wanted.");
        }
        for (number, step) in self.steps.iter().enumerate() {
            let _ = writeln!(page, "\n{:>2}. {}", number + 1, step.says);
            if !step.servers.is_empty() {
                let _ = writeln!(page, "    on {}", step.servers.join(", "));
            }
            if let Some(objects) = step.objects {
                let bytes = step.growth_bytes.unwrap_or_default();
                let minutes = step.minutes.unwrap_or_default();
                let _ = writeln!(
                    page,
                    "    {objects} objects, {bytes} bytes, about {minutes} min at 300 objects a second"
                );
                let calls = match step.remote_calls {
                    Some(0) => "no call of a key service".to_owned(),
                    Some(1) => "at most one call of a key service".to_owned(),
                    Some(calls) => format!("at most {calls} calls of key services"),
                    None => "how often key services are called is up to the plugins".to_owned(),
                };
                let _ = writeln!(page, "    {calls}");
            }
            for strands in &step.strands {
                let _ = writeln!(page, "    STRANDS {strands}");
            }
            self.diffs(&mut page, step);
        }
        if !self.left.is_empty() {
            let _ = writeln!(page, "\nStill read at the end: {}", self.left.join(", "));
        }
        if let (Some(bytes), Some(growth)) = (self.etcd_bytes, self.growth_bytes) {
            let word = if self.exceeds_quota == Some(true) { "MORE THAN" } else { "within" };
            let _ = writeln!(
                page,
                "\netcd: {bytes} bytes, grows by {growth} at most until it is compacted, {word} its quota of {} bytes",
                self.etcd_quota
            );
        }
        for open in &self.open {
            let _ = writeln!(page, "\nNot seen: {open}");
        }
        page
    }

    /// One that several servers have in common is shown once.
    fn diffs(&self, page: &mut String, step: &PlannedStep) {
        let body = |diff: &PlannedDiff| diff.diff.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
        let mut shown: Vec<Vec<String>> = Vec::new();
        for diff in step.diffs.iter().filter(|diff| !diff.diff.is_empty()) {
            let body = body(diff);
            if shown.contains(&body) {
                let _ = writeln!(page, "    the same on {}", diff.server);
                continue;
            }
            for line in diff.diff.lines() {
                let _ = writeln!(page, "    {line}");
            }
            shown.push(body);
        }
    }
}
