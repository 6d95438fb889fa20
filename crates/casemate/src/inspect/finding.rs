//! What is told of the bytes: one structure, as JSON and as rows.
use casemate_wire::kms_v2::limits;
use serde::Serialize;

use super::etcd::{KmsV1, LocalProvider, Plain};
use super::input::Encoding;
use super::sealed::{Ciphertext, KmsV2, RecordFacts, Reply};
use super::text::{KeyFileFacts, Label};

/// The whole answer. Its JSON is a contract: `docs/reference/inspect.md`.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    encoding: Encoding,
    bytes: usize,
    #[serde(flatten)]
    finding: Finding,
}

/// How sure and how whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// It is what the answer says, and whole.
    Recognised,
    /// Damaged, or its parts don't belong together: the best guess.
    Faulty,
    /// Nothing known.
    Unknown,
}

/// What some bytes are.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    #[serde(flatten)]
    pub(super) thing: Thing,
    /// One sentence: what it is.
    pub(super) what: String,
    /// What is wrong, and where.
    pub(super) problems: Vec<Problem>,
    /// What should be known beside it.
    pub(super) notes: Vec<String>,
    /// One sentence: what it takes to read it.
    pub(super) to_read: Option<String>,
}

/// The kinds. Names in JSON are those of the variants, in snake case.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", content = "details", rename_all = "snake_case")]
pub(super) enum Thing {
    AgeFile,
    Ciphertext(Ciphertext),
    EncryptReply(Option<Reply>),
    EtcdKmsV1(KmsV1),
    EtcdKmsV2(KmsV2),
    EtcdLocal(LocalProvider),
    EtcdOther,
    KeyFile(Option<KeyFileFacts>),
    Pem(Label),
    PlainJson(Plain),
    PlainProtobuf(Plain),
    Record(Option<RecordFacts>),
    Secret,
    Unknown,
}

/// One fault.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    /// A field, or a byte counted from 0.
    #[serde(rename = "where")]
    pub(super) place: String,
    pub(super) what: String,
}

/// Rows of a table: names and values.
#[derive(Default)]
pub(super) struct Rows(Vec<[String; 2]>);

impl Answer {
    pub(super) fn new(encoding: Encoding, bytes: usize, finding: Finding) -> Self {
        let verdict = match (&finding.thing, finding.problems.is_empty()) {
            (Thing::Unknown, _) => Verdict::Unknown,
            (_, true) => Verdict::Recognised,
            (_, false) => Verdict::Faulty,
        };
        Self { verdict, encoding, bytes, finding }
    }

    pub(super) fn rows(&self) -> Vec<[String; 2]> {
        let Finding { thing, what, problems, notes, to_read } = &self.finding;
        let mut rows = Rows::default();
        rows.add("what", what);
        rows.add("read", format!("{} bytes, {}", self.bytes, self.encoding.name()));
        thing.rows(&mut rows);
        for Problem { place, what } in problems {
            rows.add("PROBLEM", format!("{place}: {what}"));
        }
        for note in notes {
            rows.add("note", note);
        }
        if let Some(to_read) = to_read {
            rows.add("to read it", to_read);
        }
        rows.0
    }
}

impl Finding {
    pub(super) fn new(thing: Thing, what: impl Into<String>) -> Self {
        Self { thing, what: what.into(), problems: Vec::new(), notes: Vec::new(), to_read: None }
    }

    pub(super) fn read_with(mut self, how: impl Into<String>) -> Self {
        self.to_read = Some(how.into());
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(super) fn problem(mut self, place: impl Into<String>, what: impl Into<String>) -> Self {
        self.problems.push(Problem { place: place.into(), what: what.into() });
        self
    }
}

impl Thing {
    fn rows(&self, rows: &mut Rows) {
        match self {
            Self::AgeFile | Self::EtcdOther | Self::Secret | Self::Unknown => {}
            Self::Ciphertext(facts) => facts.rows(rows),
            Self::EncryptReply(facts) => facts.iter().for_each(|facts| facts.rows(rows)),
            Self::EtcdKmsV1(facts) => facts.rows(rows),
            Self::EtcdKmsV2(facts) => facts.rows(rows),
            Self::EtcdLocal(facts) => facts.rows(rows),
            Self::KeyFile(facts) => facts.iter().for_each(|facts| facts.rows(rows)),
            Self::Pem(facts) => facts.rows(rows),
            Self::PlainJson(facts) | Self::PlainProtobuf(facts) => facts.rows(rows),
            Self::Record(facts) => facts.iter().for_each(|facts| facts.rows(rows)),
        }
    }
}

impl Rows {
    pub(super) fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push([name.into(), value.into()]);
    }

    pub(super) fn add_some(&mut self, name: &str, value: Option<&(impl ToString + ?Sized)>) {
        if let Some(value) = value {
            self.add(name, value.to_string());
        }
    }
}

/// Text of the input that is shown because it stands where a name does. In a damaged value something else may
/// stand there: what no name has is not shown.
pub(super) fn shown(name: &str) -> String {
    let length = name.len();
    if length > limits::KEY_ID_MAX || name.contains(char::is_control) {
        return format!("({length} bytes that are no name)");
    }
    name.to_owned()
}
