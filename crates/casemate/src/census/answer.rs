//! What is told of files.
use casemate_census::answers::{Closed, Holder, Judged, MayGo, State, Verdict};
use casemate_census::policy::Kept;
use casemate_census::survey::{Encryption, Group, Key, Survey, Tally};
use schemars::JsonSchema;
use serde::Serialize;

use super::scan::{Checksum, Scanned};
use crate::output::{Exit, Section};

/// The whole answer. Its JSON is a contract: `docs/reference/census.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate census snapshot --output json")]
pub(super) struct Answer {
    /// Files that were read; of a running etcd what its first endpoint is called.
    pub(super) files: Vec<FileAnswer>,
    /// Files that could not be read.
    pub(super) failed: Vec<Failed>,
    /// The EncryptionConfiguration that was given.
    pub(super) encryption_config: Option<Configuration>,
    /// With `--needs`: what is under the key.
    pub(super) needs: Option<Vec<Holder>>,
    /// With `--needs`: why it can't be told whether more is under the key.
    pub(super) needs_unclear: Vec<String>,
    /// With `--may-go`: whether the key may go.
    pub(super) may_go: Option<MayGo>,
}

/// An EncryptionConfiguration.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Configuration {
    /// Where it is.
    pub(crate) file: String,
    /// The hash that kube-apiserver shows for it in `apiserver_encryption_config_controller_last_config_info`.
    pub(crate) hash: String,
}

/// A file that could not be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Failed {
    /// Which.
    pub(super) file: String,
    /// Why.
    pub(super) error: String,
}

/// A file that was read.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileAnswer {
    /// Which.
    pub(super) file: String,
    /// Bytes of it; of a running etcd those of all values.
    pub(super) bytes: u64,
    /// Whether it is as it was written.
    pub(super) checksum: Checksum,
    /// SHA-256 of all its bytes, as hex digits: what `sha256sum` prints. A running etcd has none.
    pub(super) sha256: Option<String>,
    /// Each key that opens something in it.
    pub(super) keys: Vec<KeyUse>,
    /// What it holds.
    pub(super) survey: Survey,
    /// With `--encryption-config`: how each group stands to it.
    pub(super) against: Option<Vec<Judged>>,
    /// With `--have`: what nobody can read who has these keys only.
    pub(super) closed: Option<Vec<Closed>>,
    /// With `--policy`: what is not as it wants.
    pub(super) policy: Option<Kept>,
}

/// A key, and how many values it opens.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KeyUse {
    /// Which.
    pub(super) key: Key,
    /// Values that are what their objects are now.
    pub(super) live: u64,
    /// Values that were overwritten or deleted, and not compacted away.
    pub(super) past: u64,
}

impl From<Scanned> for FileAnswer {
    fn from(Scanned { file, bytes, checksum, sha256, survey }: Scanned) -> Self {
        let keys = survey.keys().into_iter().map(|(key, (live, past))| KeyUse { key, live, past }).collect();
        Self { file, bytes, checksum, sha256, keys, survey, against: None, closed: None, policy: None }
    }
}

impl Answer {
    /// What scripts are told: what was found first, then what is left open.
    pub(super) fn exit(&self) -> Exit {
        let any = |is: fn(&FileAnswer) -> bool| self.files.iter().any(is);
        let may_go = self.may_go.as_ref().map(|answer| answer.verdict);
        let holders = self.needs.as_ref().is_some_and(|holders| !holders.is_empty());
        if holders || may_go == Some(Verdict::No) || any(FileAnswer::has_finding) {
            Exit::No
        } else if self.files.is_empty()
            || may_go == Some(Verdict::Unknown)
            || any(FileAnswer::is_unclear)
            || !self.needs_unclear.is_empty()
        {
            Exit::Unknown
        } else if !self.failed.is_empty() {
            Exit::Partly
        } else {
            Exit::Yes
        }
    }

    /// How many values stand against what was asked for; `None` if nothing was.
    pub(super) fn left(&self) -> Option<u64> {
        let held = |holders: &Vec<Holder>| -> u64 {
            holders.iter().map(|one| one.live.values + one.past.values).sum()
        };
        let needs = self.needs.as_ref().map(held);
        let may_go = self.may_go.as_ref().map(|answer| held(&answer.held_by));
        let files = self.files.iter().filter_map(FileAnswer::left).max();
        [needs, may_go, files].into_iter().flatten().max()
    }

    /// As tables: what was asked comes last, where a terminal shows it.
    pub(super) fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<Section> = self.files.iter().flat_map(FileAnswer::sections).collect();
        if self.files.len() > 1 {
            sections.push(self.key_table());
        }
        for Failed { file, error } in &self.failed {
            let error = error.strip_prefix(file.as_str()).unwrap_or(error).trim_start_matches([':', ' ']);
            sections.push(Section::new(format!("NOT READ  {file}: {error}")));
        }
        if let Some(holders) = &self.needs {
            let mut section = held("NEEDED", holders);
            if holders.is_empty() {
                for why in &self.needs_unclear {
                    section.row([format!("CAN'T TELL: {why}")]);
                }
            }
            sections.push(section);
        }
        if let Some(answer) = &self.may_go {
            sections.extend(may_go(answer));
        }
        sections
    }

    fn key_table(&self) -> Section {
        let mut section = Section::new("KEYS BY FILE").head(["KEY", "FILE", "OBJECTS", "OLD REVISIONS"]);
        let mut rows: Vec<_> = self
            .files
            .iter()
            .flat_map(|file| file.keys.iter().map(move |used| (&used.key, file, used)))
            .collect();
        rows.sort_by_key(|(key, file, _)| (*key, &file.file));
        for (key, file, used) in rows {
            section.row([key.to_string(), file.file.clone(), used.live.to_string(), used.past.to_string()]);
        }
        section
    }
}

impl FileAnswer {
    fn has_finding(&self) -> bool {
        let judged = self.against.iter().flatten();
        judged.clone().any(|one| one.live.values > 0 && one.is_finding())
            || self.closed.as_ref().is_some_and(|closed| !closed.is_empty())
            || self.policy.as_ref().is_some_and(|kept| !kept.violations.is_empty())
    }

    fn left(&self) -> Option<u64> {
        let against = self.against.as_ref().map(|judged| {
            judged.iter().filter(|one| one.is_finding()).map(|one| one.live.values).sum::<u64>()
        });
        let closed = self.closed.as_ref().map(|closed| closed.iter().map(|one| one.live.values).sum());
        let policy = self.policy.as_ref().map(|kept| kept.violations.iter().map(|one| one.live.values).sum());
        [against, closed, policy].into_iter().flatten().max()
    }

    fn is_unclear(&self) -> bool {
        let undecided = |one: &Judged| one.state == State::Undecided && one.live.values > 0;
        let is_asked = self.against.is_some() || self.closed.is_some() || self.policy.is_some();
        self.against.iter().flatten().any(undecided)
            || self.policy.as_ref().is_some_and(|kept| !kept.unclear.is_empty())
            || is_asked && self.survey.ungrouped > 0
            || is_asked && self.survey.unseen.iter().any(|unseen| !unseen.is_past())
            || self.closed.is_some() && !self.survey.unseen.is_empty()
            || is_asked && self.survey.is_empty()
            || self.survey.looked_elsewhere()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.groups()];
        if !self.keys.is_empty() {
            let mut keys = Section::new("KEYS").head(["KEY", "OBJECTS", "OLD REVISIONS"]);
            for KeyUse { key, live, past } in &self.keys {
                keys.row([key.to_string(), live.to_string(), past.to_string()]);
            }
            sections.push(keys);
        }
        if !self.survey.malformed.is_empty() {
            let mut malformed = Section::new("MALFORMED").head(["KEY IN ETCD", "REVISION", "WHY"]);
            for value in &self.survey.malformed {
                let revision =
                    if value.live { value.revision.to_string() } else { format!("{} (old)", value.revision) };
                malformed.row([value.key.clone(), revision, value.reasons.join("; ")]);
            }
            sections.push(malformed);
        }
        sections.extend(self.against.as_ref().map(|judged| against(judged)));
        sections.extend(self.closed.as_ref().map(|closed| closed_table(closed)));
        sections.extend(self.policy.as_ref().map(policy));
        sections
    }

    fn groups(&self) -> Section {
        let Self { file, checksum, survey, .. } = self;
        let number = |number: Option<u64>| number.map_or("none".to_owned(), |number| number.to_string());
        let checksum = match checksum {
            Checksum::Verified => "checksum verified",
            Checksum::Absent => "no checksum",
            Checksum::Live => "read from a running etcd",
        };
        let mut title = format!(
            "{file}  revision {}, {}; {} objects, {} old revisions; {checksum}",
            number(survey.revision),
            survey.compacted.map_or("never compacted".to_owned(), |at| format!("compacted up to {at}")),
            survey.live,
            survey.past
        );
        if survey.looked_elsewhere() {
            title += &format!(
                "\nnothing is below {}, but {} revisions are elsewhere: give kube-apiserver's --etcd-prefix as --prefix",
                survey.prefix, survey.outside
            );
        }
        for unseen in &survey.unseen {
            title += &format!("\n{unseen}");
        }
        if survey.ungrouped > 0 {
            title += &format!("\n{} values more, of too many kinds to be told apart", survey.ungrouped);
        }
        let mut section = Section::new(title).head([
            "RESOURCE",
            "ENCRYPTION",
            "KEY ID",
            "OBJECTS",
            "BYTES",
            "IN ANNOTATIONS",
            "OLD REVISIONS",
            "WRITTEN AT",
            "EXAMPLE",
        ]);
        for entry in &survey.groups {
            let Group { resource, encryption } = &entry.group;
            let key_id = match encryption {
                Encryption::KmsV2 { key_id, .. } => key_id.clone(),
                _ => String::new(),
            };
            section.row([
                resource.to_string(),
                named(encryption),
                key_id,
                entry.live.values.to_string(),
                entry.live.bytes.to_string(),
                entry.live.annotation_bytes.to_string(),
                entry.past.values.to_string(),
                span(&entry.live, &entry.past),
                example(&entry.live, &entry.past),
            ]);
        }
        section
    }
}

pub(super) fn named(encryption: &Encryption) -> String {
    match encryption {
        Encryption::KmsV2 { faults, .. } if !faults.is_empty() => {
            format!("{encryption} (DAMAGED: {})", faults.join("; "))
        }
        _ => encryption.to_string(),
    }
}

pub(super) fn span(live: &Tally, past: &Tally) -> String {
    let oldest = [live.oldest, past.oldest].into_iter().flatten().min();
    let newest = [live.newest, past.newest].into_iter().flatten().max();
    match (oldest, newest) {
        (Some(oldest), Some(newest)) if oldest == newest => oldest.to_string(),
        (Some(oldest), Some(newest)) => format!("{oldest}..{newest}"),
        _ => String::new(),
    }
}

pub(super) fn example(live: &Tally, past: &Tally) -> String {
    live.examples.iter().chain(&past.examples).next().cloned().unwrap_or_default()
}

fn against(judged: &[Judged]) -> Section {
    let mut found: Vec<&Judged> = judged.iter().filter(|one| one.state != State::Current).collect();
    if found.is_empty() {
        return Section::new("AGAINST THE CONFIGURATION  all is stored as it says");
    }
    found.sort_by_key(|one| one.state);
    let columns = ["STATE", "RESOURCE", "IS", "SHOULD BE", "OBJECTS", "OLD REVISIONS", "EXAMPLE"];
    let mut section = Section::new("AGAINST THE CONFIGURATION").head(columns);
    for one in found {
        let state = match one.state {
            State::Unencrypted => "UNENCRYPTED",
            State::Unreadable => "UNREADABLE",
            State::Stale => "STALE",
            State::Undecided => "CAN'T TELL",
            _ => "current",
        };
        let Group { resource, encryption } = &one.group;
        section.row([
            state.to_owned(),
            resource.to_string(),
            named(encryption),
            one.expected.clone(),
            one.live.values.to_string(),
            one.past.values.to_string(),
            example(&one.live, &one.past),
        ]);
    }
    section
}

fn closed_table(closed: &[Closed]) -> Section {
    if closed.is_empty() {
        return Section::new("CLOSED  nothing: these keys open all of it");
    }
    let mut section =
        Section::new("CLOSED").head(["RESOURCE", "IS", "OBJECTS", "OLD REVISIONS", "OPENED BY ANY OF"]);
    for one in closed {
        let keys: Vec<String> = one.opened_by.iter().map(ToString::to_string).collect();
        section.row([
            one.group.resource.to_string(),
            named(&one.group.encryption),
            one.live.values.to_string(),
            one.past.values.to_string(),
            if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") },
        ]);
    }
    section
}

fn policy(kept: &Kept) -> Section {
    if kept.violations.is_empty() && kept.unclear.is_empty() {
        return Section::new("POLICY  kept");
    }
    let mut section =
        Section::new("POLICY").head(["RULE", "RESOURCE", "WHAT", "OBJECTS", "OLD REVISIONS", "EXAMPLE"]);
    for one in &kept.violations {
        section.row([
            one.rule.map_or("malformed".to_owned(), |rule| format!("rules[{rule}]")),
            one.group.resource.to_string(),
            one.what.clone(),
            one.live.values.to_string(),
            one.past.values.to_string(),
            example(&one.live, &one.past),
        ]);
    }
    for why in &kept.unclear {
        section.row([
            "CAN'T TELL".to_owned(),
            String::new(),
            why.clone(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    section
}

fn held(title: &str, holders: &[Holder]) -> Section {
    if holders.is_empty() {
        return Section::new(format!("{title}  by nothing"));
    }
    let columns = [
        "FILE",
        "RESOURCE",
        "ENCRYPTION",
        "OBJECTS",
        "OLD REVISIONS",
        "WRITTEN AT",
        "EXAMPLES",
        "ALSO OPENED BY",
    ];
    let mut section = Section::new(title).head(columns);
    for holder in holders {
        let also: Vec<String> = holder.alternatives.iter().map(ToString::to_string).collect();
        let examples = holder.live.examples.iter().chain(&holder.past.examples).take(3).cloned();
        section.row([
            holder.source.clone(),
            holder.group.resource.to_string(),
            holder.group.encryption.to_string(),
            holder.live.values.to_string(),
            holder.past.values.to_string(),
            span(&holder.live, &holder.past),
            examples.collect::<Vec<_>>().join(" "),
            also.join(", "),
        ]);
    }
    section
}

fn may_go(answer: &MayGo) -> Vec<Section> {
    let mut sections = Vec::new();
    if !answer.held_by.is_empty() {
        sections.push(held("HELD BACK BY", &answer.held_by));
    }
    let verdict = match answer.verdict {
        Verdict::Yes => "YES",
        Verdict::No => "NO",
        Verdict::Unknown => "CAN'T TELL",
    };
    let mut section = Section::new(format!("MAY {} GO?  {verdict}", answer.key));
    for resource in &answer.writes {
        section.row([format!("API servers write {resource} with it, by the EncryptionConfiguration")]);
    }
    for text in answer.unclear.iter().chain(&answer.notes) {
        section.row([text.clone()]);
    }
    sections.push(section);
    sections
}
