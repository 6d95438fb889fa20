//! `casemate recovery test`: the drill. Opens recovery wraps, and shows nothing of what is in them.
use std::path::{Path, PathBuf};

use casemate_keys::names::sha256;
use casemate_recipients::Identity;
use serde::Serialize;

use super::Public;
use super::value::{Kind, NoValue, Value};
use crate::inspect::input;
use crate::output::{Exit, Failure, Output};

/// What `casemate recovery test --help` says.
pub(super) const ABOUT: &str = "Drill: does this identity open these values?\n\n\
    A value is one of etcd, a record alone, or what `casemate kms encrypt` wrote. Its recovery wrap is opened, the local \
    KEK in it compared with the id in the record, and the encrypted DEK source opened with it. Nothing of them is shown. \
    Without values it says whose identity it is.\n\n\
    Who knows the recipient, which is public, can make a record that the identity opens: who wrote a value stays \
    unproven, and the answer says so.\n\n\
    With etcd at hand: etcdctl get --print-value-only /registry/secrets/default/demo | casemate recovery test \
    --identity FILE --value -";

/// What its exit codes say.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  it opens all of them
  1  one of them is not encrypted to it, or is damaged
  2  usage: the command line is wrong, or a file can't be read
  3  can't tell: none was given, or one is nothing that casemate-kms wrote";

#[derive(clap::Args)]
pub(super) struct Args {
    /// The identity file, as `casemate recovery new` wrote it
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,

    /// A value to open, `-` for stdin; may be given many times
    #[arg(long = "value", value_name = "FILE")]
    values: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Answer {
    identity: Public,
    /// How many of the values it opens.
    opened: usize,
    values: Vec<Drilled>,
}

/// What came of one value.
#[derive(Serialize)]
struct Drilled {
    value: String,
    outcome: Outcome,
    /// Why, if it does not open.
    problem: Option<String>,
    /// None without a record.
    #[serde(flatten)]
    facts: Option<Facts>,
}

#[derive(Serialize)]
struct Facts {
    kind: Kind,
    key_id: String,
    cluster_id: String,
    local_kek_id: String,
    /// Whom its local KEK is wrapped for.
    recipients: Vec<String>,
    /// Whether it held a DEK source, which was opened. None if it did not come that far.
    dek_source: Option<DekSource>,
    /// Only if it opened.
    origin: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// The identity opens it.
    Opens,
    /// It is not encrypted to this identity.
    NotForThisIdentity,
    /// It is, and was changed.
    Damaged,
    /// Not of casemate-kms.
    Unknown,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum DekSource {
    Opens,
    /// A record alone has none.
    Absent,
}

/// Whoever knows the recipient can make a record for it, and there is no key service here to say otherwise.
const UNPROVEN: &str = "unproven";

/// Opens, and prints what opened.
pub(super) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let identity = Identity::parse(&input::read(Some(&args.identity), output)?).map_err(|error| {
        Failure::new(Exit::Usage, &format_args!("--identity {}: {error}", args.identity.display()))
    })?;
    let mut values = Vec::with_capacity(args.values.len());
    for path in &args.values {
        let stdin = path.as_os_str() == "-";
        let bytes = input::read(Some(path).filter(|_| !stdin).map(PathBuf::as_path), output)?;
        values.push(Drilled::of(path, &bytes, &identity));
    }
    let opened = values.iter().filter(|value| value.outcome == Outcome::Opens).count();
    let answer = Answer { identity: Public::of(&identity), opened, values };
    output.answer(&answer, answer.rows())?;
    if answer.values.is_empty() {
        output.note("The identity file is whole. Give it values with --value: only they tell what it opens.");
    }
    Ok(answer.exit())
}

impl Drilled {
    fn of(path: &Path, bytes: &[u8], identity: &Identity) -> Self {
        let named =
            |outcome, problem, facts| Self { value: path.display().to_string(), outcome, problem, facts };
        let value = match Value::parse(bytes) {
            Ok(value) => value,
            Err(NoValue::Damaged(problem)) => return named(Outcome::Damaged, Some(problem), None),
            Err(NoValue::Unknown(problem)) => return named(Outcome::Unknown, Some(problem.to_owned()), None),
        };
        let mut facts = Facts::of(&value);
        match open(&value, identity) {
            Ok(dek_source) => {
                (facts.dek_source, facts.origin) = (Some(dek_source), Some(UNPROVEN));
                named(Outcome::Opens, None, Some(facts))
            }
            Err((outcome, problem)) => named(outcome, Some(problem), Some(facts)),
        }
    }
}

fn open(value: &Value, identity: &Identity) -> Result<DekSource, (Outcome, String)> {
    let damaged = |problem: &str| (Outcome::Damaged, problem.to_owned());
    let ours = identity.recipient().fingerprint();
    let Some((_, wrap)) = value.record.recovery_wraps().find(|(fingerprint, _)| **fingerprint == ours) else {
        let others = value.record.recovery_wraps().count();
        let problem = match others {
            0 => "its local KEK is wrapped for no recovery recipient: it was written before there was one"
                .to_owned(),
            _ => format!("its local KEK is wrapped for {others} other recovery recipient(s)"),
        };
        return Err((Outcome::NotForThisIdentity, problem));
    };
    let payload = identity
        .unwrap(wrap)
        .map_err(|error| damaged(&format!("its recovery wrap does not open: {error}")))?;
    let kek = value.record.core().local_kek(&*payload).ok_or_else(|| {
        damaged("its recovery wrap opens, and what is in it is not the local KEK of this record")
    })?;
    let Some(ciphertext) = &value.ciphertext else { return Ok(DekSource::Absent) };
    let suite = value.record.core().policy.suite();
    kek.open(suite, &sha256(&value.annotation), ciphertext)
        .map(|_| DekSource::Opens)
        .map_err(|error| damaged(&format!("its local KEK opens, its DEK source does not: {error}")))
}

impl Facts {
    fn of(value: &Value) -> Self {
        let core = value.record.core();
        Self {
            kind: value.kind,
            key_id: core.policy.key_id().to_string(),
            cluster_id: core.policy.cluster().to_string(),
            local_kek_id: core.kek_id.to_string(),
            recipients: core.policy.recipients().iter().map(ToString::to_string).collect(),
            dek_source: None,
            origin: None,
        }
    }
}

impl Answer {
    fn exit(&self) -> Exit {
        let any = |outcomes: &[Outcome]| self.values.iter().any(|value| outcomes.contains(&value.outcome));
        if any(&[Outcome::Damaged, Outcome::NotForThisIdentity]) {
            Exit::No
        } else if self.values.is_empty() || any(&[Outcome::Unknown]) {
            Exit::Unknown
        } else {
            Exit::Yes
        }
    }

    fn rows(&self) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        let mut add = |name: &str, value: &str| rows.push([name.to_owned(), value.to_owned()]);
        add("recipient", &self.identity.recipient);
        add("fingerprint", &self.identity.fingerprint);
        for Drilled { value, outcome, problem, facts } in &self.values {
            add("value", value);
            add("  opens", outcome.words());
            if let Some(problem) = problem {
                add("  why", problem);
            }
            let Some(facts) = facts else { continue };
            add("  key id", &facts.key_id);
            add("  local KEK", &facts.local_kek_id);
            for recipient in &facts.recipients {
                add("  wrapped for", recipient);
            }
            if let Some(origin) = facts.origin {
                add("  origin", origin);
            }
        }
        if !self.values.is_empty() {
            add("opened", &format!("{} of {}", self.opened, self.values.len()));
        }
        rows
    }
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Self::Opens => "yes",
            Self::NotForThisIdentity => "NO, not with this identity",
            Self::Damaged => "NO, it is damaged",
            Self::Unknown => "can't tell",
        }
    }
}
