//! Whether the lines of an audit log are as they were written. No I/O: lines are handed in.
//!
//! The chain alone shows changes by who does not recompute it. What it can't show without an anchor is said: a
//! [`Head`] that was kept elsewhere anchors all lines up to it; checkpoints anchor those before them for who has their
//! key.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::format::{CHECKPOINT_EVERY, Hash, Head, Line, Malformed};
use super::key::CheckpointKey;

/// Findings that are kept; more are counted.
pub const MAX_FINDINGS: usize = 200;
/// Lines wait in a queue, and one that waited may state an earlier time than the one before it.
const OUT_OF_ORDER: SignedDuration = SignedDuration::from_secs(10);
/// More than the program ever writes, with room for starts after a kill.
const MOST_WITHOUT_CHECKPOINT: u64 = 2 * CHECKPOINT_EVERY;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// The head that was kept is of another line: everything before it may have been recomputed.
    AnotherHead,
    /// A checkpoint that the given key did not make.
    Checkpoint,
    /// A line was changed.
    Edited,
    /// Calls are not in the log, and the log says so itself.
    Gap,
    /// The head that was kept is of a line before the first one.
    HeadNotCovered,
    /// No line of an audit log.
    Malformed,
    /// A chain begins in the middle.
    NewChain,
    /// Lines are missing.
    Removed,
    /// A line stands after one that was written later.
    Reordered,
    /// A line follows one that it was not written after.
    Spliced,
    /// The last line is not complete.
    Torn,
    /// The log ends before the head that was kept.
    Truncated,
}

/// Something that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Which file.
    pub file: String,
    /// Which line of it, from 1.
    pub line: u64,
    /// The number that the line gives itself.
    pub seq: Option<u64>,
    /// In words.
    pub detail: String,
}

/// Something to know that is not wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Which file.
    pub file: String,
    /// Which line of it, from 1.
    pub line: u64,
    /// In words.
    pub detail: String,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Lines that were read.
    pub lines: u64,
    /// Of them, calls.
    pub calls: u64,
    /// Calls that are not there, as the log says itself.
    pub missed: u64,
    /// The number of the first line.
    pub first_seq: Option<u64>,
    /// The last line.
    pub last: Option<Head>,
    /// Up to which line the head that was kept proves the log to be as it was written.
    pub anchored_to: Option<u64>,
    /// Up to which line the key proves the same.
    pub authenticated_to: Option<u64>,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// How many findings there are, those beyond [`MAX_FINDINGS`] too.
    pub finding_count: u64,
    /// What else is to be known.
    pub notes: Vec<Note>,
}

/// Takes in the lines of one log, oldest first.
#[derive(Debug)]
pub struct Verifier {
    /// Oldest first.
    keys: Vec<CheckpointKey>,
    /// Those before this one are in use no more.
    oldest_key: usize,
    head: Option<Head>,
    place: Place,
    report: Report,
    /// The line before: what it states, and what it is.
    before: Option<Before>,
    since_checkpoint: u64,
    head_met: bool,
    /// The first line with the head's number and another hash.
    not_the_head: Option<Place>,
    /// Whether the chain was found broken: an anchor further down proves nothing of what stands before the break.
    broken: bool,
}

#[derive(Clone, Debug, Default)]
struct Place {
    file: String,
    line: u64,
}

#[derive(Clone, Copy, Debug)]
struct Before {
    seq: u64,
    time: Timestamp,
    stated: Hash,
    computed: Hash,
}

impl Verifier {
    /// With what there is of anchors. Of several keys, which followed each other, the oldest comes first.
    pub fn new(head: Option<Head>, keys: impl IntoIterator<Item = CheckpointKey>) -> Self {
        let report = Report {
            lines: 0,
            calls: 0,
            missed: 0,
            first_seq: None,
            last: None,
            anchored_to: None,
            authenticated_to: None,
            findings: Vec::new(),
            finding_count: 0,
            notes: Vec::new(),
        };
        Self {
            keys: keys.into_iter().collect(),
            oldest_key: 0,
            head,
            place: Place::default(),
            report,
            before: None,
            since_checkpoint: 0,
            head_met: false,
            not_the_head: None,
            broken: false,
        }
    }

    /// The lines that follow are of this file.
    pub fn file(&mut self, name: &str) {
        self.place = Place { file: name.to_owned(), line: 0 };
    }

    /// A line without its end.
    pub fn line(&mut self, bytes: &[u8]) {
        self.next_line();
        match Line::parse(bytes) {
            Ok(line) => self.take_in(&line),
            Err(malformed) => self.malformed(&malformed),
        }
    }

    /// A line longer than any that was written.
    pub fn overlong_line(&mut self) {
        self.next_line();
        self.find(Kind::Malformed, None, "it is longer than any line of an audit log".into());
    }

    /// Bytes at the end of a file that no line's end follows.
    pub fn torn_line(&mut self) {
        self.next_line();
        let detail = "the line is not complete: the program was killed while it wrote it, or bytes were cut off \
                      or changed; the next start of the program sets such bytes aside and says so";
        self.find(Kind::Torn, None, detail.into());
    }

    /// What came of it.
    pub fn finish(mut self) -> Report {
        if let Some(head) = self.head.filter(|_| !self.head_met) {
            self.head_not_met(head);
        }
        self.report
    }

    fn head_not_met(&mut self, head: Head) {
        if let Some(place) = self.not_the_head.take() {
            let detail = format!(
                "line {} had hash {} when the head was kept: this line, or any before it, was changed and the chain \
                 computed anew, or this is the log of another node",
                head.seq, head.hash
            );
            self.place = place;
            self.find(Kind::AnotherHead, Some(head.seq), detail);
        } else {
            let last_seq = self.before.map_or(0, |before| before.seq);
            let first = self.report.first_seq.unwrap_or(1);
            let (kind, detail) = if head.seq < first {
                (
                    Kind::HeadNotCovered,
                    "is older than all that was given; give the older files too".to_owned(),
                )
            } else if head.seq > last_seq {
                let detail = format!(
                    "is not there, the log ends with line {last_seq}: what came after was cut off, or is in a \
                     file that was not given"
                );
                (Kind::Truncated, detail)
            } else {
                (Kind::Removed, "is missing".to_owned())
            };
            self.find(kind, None, format!("line {}, of which the head is, {detail}", head.seq));
        }
    }

    fn next_line(&mut self) {
        self.place.line += 1;
        self.report.lines += 1;
    }

    fn malformed(&mut self, malformed: &Malformed) {
        self.find(Kind::Malformed, None, format!("this is no line of an audit log: {malformed}"));
    }

    fn take_in(&mut self, line: &Line) {
        let seq = line.fields.seq;
        if line.stated != line.computed {
            let detail = "the line was changed after it was written: its hash is of another text".into();
            self.find(Kind::Edited, Some(seq), detail);
        }
        self.check_link(line);
        self.check_head(line);
        self.check_checkpoint(line);
        match line.fields.event.as_str() {
            "call" => self.report.calls += 1,
            "gap" => {
                let missed = line.fields.missed.unwrap_or(0);
                self.report.missed = self.report.missed.saturating_add(missed);
                let detail = format!("{missed} calls about here are not in the log: it could not be written");
                self.find(Kind::Gap, Some(seq), detail);
            }
            "start" if line.fields.cut.is_some() => {
                self.note("the program had been killed; the rest of a line was set aside at this start");
            }
            "rotation" if line.fields.reason.as_deref() == Some("moved") => {
                self.note("the file before was moved away while the program ran");
            }
            "rotation" if line.fields.reason.as_deref() == Some("changed") => {
                self.note("the file was made shorter or longer by somebody else while the program ran");
            }
            _ => {}
        }
        self.before =
            Some(Before { seq, time: line.fields.time, stated: line.stated, computed: line.computed });
        self.report.last = Some(Head { seq, hash: line.stated });
    }

    fn check_link(&mut self, line: &Line) {
        let (seq, prev) = (line.fields.seq, line.fields.prev);
        let Some(before) = self.before else {
            self.report.first_seq = Some(seq);
            if let Some(damaged) = &line.fields.damaged {
                let detail = format!(
                    "a new chain begins: the end of the log before was damaged, it is in {damaged:?}"
                );
                self.find(Kind::NewChain, Some(seq), detail);
            } else if seq == 1 && prev != Hash::NONE {
                let detail = "the first line of a chain is linked to a line before it".into();
                self.find(Kind::Spliced, Some(seq), detail);
            } else if seq != 1 {
                self.note(&format!(
                    "the log that was given begins with line {seq}; older files were not given"
                ));
            }
            return;
        };
        if before.time.duration_since(line.fields.time) > OUT_OF_ORDER {
            self.note(&format!("the clock was set back, from {:.3} to {:.3}", before.time, line.fields.time));
        }
        let linked = prev == before.stated || prev == before.computed;
        let next = before.seq.checked_add(1);
        let (kind, detail) = match (linked, next) {
            (true, Some(next)) if seq == next => return,
            (true, _) => (Kind::Spliced, format!("it follows line {}, and its number is {seq}", before.seq)),
            (false, _) if prev == Hash::NONE && seq == 1 => {
                let detail = match &line.fields.damaged {
                    Some(file) => format!("the end of the log before was damaged, it is in {file:?}"),
                    None => "nothing links it to what stands before it".into(),
                };
                (Kind::NewChain, format!("a new chain begins: {detail}"))
            }
            (false, Some(next)) if seq > next => {
                (Kind::Removed, format!("lines {next} to {} are missing", seq - 1))
            }
            (false, Some(next)) if seq < next => {
                (Kind::Reordered, format!("line {seq} stands after line {}", before.seq))
            }
            (false, _) => (
                Kind::Spliced,
                format!(
                    "it was not written after the line before it: line {} was replaced, or this is another log",
                    before.seq
                ),
            ),
        };
        self.find(kind, Some(seq), detail);
        // What a checkpoint further down says holds for its own chain alone.
        self.since_checkpoint = 0;
    }

    fn check_head(&mut self, line: &Line) {
        let seq = line.fields.seq;
        let Some(head) = self.head.filter(|head| head.seq == seq && !self.head_met) else { return };
        if line.stated == head.hash && line.computed == head.hash {
            self.head_met = true;
            self.report.anchored_to = (!self.broken).then_some(seq);
        } else if self.not_the_head.is_none() {
            self.not_the_head = Some(self.place.clone());
        }
    }

    fn check_checkpoint(&mut self, line: &Line) {
        if self.keys.is_empty() {
            return;
        }
        let seq = line.fields.seq;
        if line.fields.event != "checkpoint" {
            self.since_checkpoint += 1;
            if self.since_checkpoint == MOST_WITHOUT_CHECKPOINT {
                let detail =
                    format!("{MOST_WITHOUT_CHECKPOINT} lines have no checkpoint: they were taken out");
                self.find(Kind::Checkpoint, Some(seq), detail);
            }
            return;
        }
        let problem = match &line.mac {
            Some((mac, authenticated)) => {
                let made_with = self.keys.iter().position(|key| key.verifies(authenticated, mac));
                let is_of = |key: &CheckpointKey| line.fields.mac_key.as_ref() == Some(&key.name());
                match made_with {
                    // Who has a key that was replaced must not go on where its successor was.
                    Some(key) if key < self.oldest_key => {
                        Some("it was made with a key that another one had followed")
                    }
                    Some(key) => {
                        self.oldest_key = key;
                        None
                    }
                    None if line.fields.mac_key.is_some() && !self.keys.iter().any(is_of) => {
                        Some("it was made with another key than the one given")
                    }
                    None => Some(
                        "its MAC is wrong: what stands before it was changed and the chain computed anew",
                    ),
                }
            }
            None => Some("it has no MAC: the program ran without a key, or the chain was computed anew"),
        };
        self.since_checkpoint = 0;
        match problem {
            Some(problem) => self.find(Kind::Checkpoint, Some(seq), problem.into()),
            None if !self.broken => self.report.authenticated_to = Some(seq),
            None => {}
        }
    }

    fn find(&mut self, kind: Kind, seq: Option<u64>, detail: String) {
        self.report.finding_count += 1;
        self.broken |= kind != Kind::Gap;
        if self.report.findings.len() < MAX_FINDINGS {
            let Place { file, line } = self.place.clone();
            self.report.findings.push(Finding { kind, file, line, seq, detail });
        }
    }

    fn note(&mut self, detail: &str) {
        if self.report.notes.len() < MAX_FINDINGS {
            let Place { file, line } = self.place.clone();
            self.report.notes.push(Note { file, line, detail: detail.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests;
