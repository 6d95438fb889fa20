//! What changed between two times.
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use casemate_census::answers::{self, Change};
use casemate_census::survey::Survey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Prefix, scan};
use crate::output::{Exit, Failure, Output, Section};

#[derive(clap::Args)]
pub(super) struct DiffArgs {
    /// The earlier: a snapshot, or what `census snapshot --output json` printed of one
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The later
    #[arg(value_name = "B")]
    after: PathBuf,

    #[command(flatten)]
    prefix: Prefix,
}

/// The whole answer. Its JSON is a contract: `docs/reference/census-diff.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate census diff --output json")]
pub(super) struct Answer {
    /// The earlier.
    before: Side,
    /// The later.
    after: Side,
    /// What there is more or less of.
    changes: Vec<Change>,
}

/// One of two times.
#[derive(Debug, Serialize, JsonSchema)]
struct Side {
    /// Which file.
    file: String,
    /// The newest revision of etcd in it.
    revision: Option<u64>,
    /// Objects in it.
    live: u64,
}

pub(super) fn run(args: &DiffArgs, output: &Output) -> Result<Exit, Failure> {
    let [before, after] = [&args.before, &args.after].map(|path| read(path, &args.prefix.prefix, output));
    let (before, after) = (before?, after?);
    let side = |path: &Path, survey: &Survey| Side {
        file: path.display().to_string(),
        revision: survey.revision,
        live: survey.live,
    };
    let changes = answers::diff(&before, &after);
    let is_same = changes.is_empty();
    let answer = Answer { before: side(&args.before, &before), after: side(&args.after, &after), changes };
    output.sections(&answer, &[answer.section()])?;
    Ok(if is_same { Exit::Yes } else { Exit::No })
}

/// What `census snapshot --output json` printed, as far as it is needed here.
#[derive(Deserialize)]
struct Saved {
    files: Vec<SavedFile>,
}

#[derive(Deserialize)]
struct SavedFile {
    survey: Survey,
}

/// A snapshot begins with a page, whose number is 0.
fn read(path: &Path, prefix: &str, output: &Output) -> Result<Survey, Failure> {
    const MOST: u64 = 256 << 20;
    let failed =
        |exit, what: &dyn std::fmt::Display| Failure::new(exit, &format_args!("{}: {what}", path.display()));
    let is_json = path.is_file() && {
        let mut first = [0];
        File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
    };
    if !is_json {
        let scanned = scan::scan(path, prefix, output);
        return scanned.map(|scanned| scanned.survey).map_err(|error| Failure::new(Exit::Unknown, &error));
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| {
        file.rewind()?;
        file.take(MOST).read_to_string(&mut text)
    });
    read.map_err(|error| failed(Exit::Unknown, &error))?;
    let saved: Saved = serde_json::from_str(&text).map_err(|error| {
        let what = format!("is no answer of `casemate census snapshot --output json`: {error}");
        failed(Exit::Usage, &what)
    })?;
    match <[SavedFile; 1]>::try_from(saved.files) {
        Ok([one]) => Ok(one.survey),
        Err(files) => Err(failed(
            Exit::Usage,
            &format_args!(
                "is an answer about {} files, and one is compared with one: save an answer for each",
                files.len()
            ),
        )),
    }
}

impl Answer {
    fn section(&self) -> Section {
        let revision = |side: &Side| side.revision.map_or("none".to_owned(), |revision| revision.to_string());
        let (before, after) = (&self.before, &self.after);
        let title = format!(
            "from revision {} with {} objects to revision {} with {}",
            revision(before),
            before.live,
            revision(after),
            after.live
        );
        if self.changes.is_empty() {
            return Section::new(format!("{title}: nothing changed"));
        }
        let columns = ["RESOURCE", "ENCRYPTION", "KEY ID", "OBJECTS", "OLD REVISIONS"];
        let mut section = Section::new(title).head(columns);
        for Change { group, before, after, .. } in &self.changes {
            let key_id = match &group.encryption {
                casemate_census::survey::Encryption::KmsV2 { key_id, .. } => key_id.clone(),
                _ => String::new(),
            };
            section.row([
                group.resource.to_string(),
                group.encryption.to_string(),
                key_id,
                format!("{} -> {}", before.live, after.live),
                format!("{} -> {}", before.past, after.past),
            ]);
        }
        section
    }
}
