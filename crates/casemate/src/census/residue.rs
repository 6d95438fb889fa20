//! Plaintext that encryption left behind.
use std::path::{Path, PathBuf};

#[cfg(feature = "kine")]
use casemate_census::kine;
use casemate_census::residue::{Found, Place, Search};
use casemate_encryption_config::ResourcePattern;
use schemars::JsonSchema;
use serde::Serialize;

use super::Prefix;
use super::answer::Failed;
use super::scan::{self, Progress, ScanError};
use crate::output::{Exit, Failure, Output, Section};

pub(super) const ABOUT: &str = "Which plaintext did encryption leave behind, and what removes it?\n\n\
    Writing all objects anew under an EncryptionConfiguration does not remove what stood there before: it stays in old \
    revisions until compaction, in free pages of etcd's file until defragmentation, and in the write-ahead log until that \
    is rotated. Snapshots carry the first two. k3s' state.db has the same: rows, unused parts, a log. This counts copies of \
    plaintext objects in each place, and prints none.\n\n\
    Objects are recognised by their beginning. A piece of one whose beginning was overwritten is not, so that NOT ZERO \
    shows in how many bytes something stands. A manifest within another object's value (kubectl's annotation \
    last-applied-configuration) counts as a copy of its own.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  no copy was recognised
  1  some were
  2  usage: the command line is wrong
  3  can't tell: nothing could be read
  4  partly: some files could not be read, and there is none in the others";

#[derive(clap::Args)]
pub(super) struct ResidueArgs {
    /// Stopped members' data folders, their files, snapshots, k3s' state.db, or folders of these
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Whose plaintext: a resource as an EncryptionConfiguration names it, `*.GROUP` or `*.*`; may be given several times
    #[arg(long = "resource", value_name = "RESOURCE", default_values = ["secrets", "configmaps"])]
    resources: Vec<ResourcePattern>,

    #[command(flatten)]
    prefix: Prefix,
}

/// The whole answer. Its JSON is a contract: `docs/reference/census-residue.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate census residue --output json")]
pub(super) struct Answer {
    /// Whose plaintext was looked for.
    resources: Vec<String>,
    /// Copies that were recognised, in all files.
    copies: u64,
    /// Files that were read.
    files: Vec<FileResidue>,
    /// Files that could not be read.
    failed: Vec<Failed>,
    /// What removes plaintext from each place in which there is some.
    remedies: Vec<Remedy>,
}

/// A file that was read.
#[derive(Debug, Serialize, JsonSchema)]
struct FileResidue {
    /// Which.
    file: String,
    /// What is in each of its places.
    places: Vec<Found>,
}

/// What removes plaintext from a place.
#[derive(Debug, Serialize, JsonSchema)]
struct Remedy {
    /// Where it is.
    place: Place,
    /// What removes it.
    removed_by: String,
    /// What does not.
    not_removed_by: String,
}

pub(super) fn run(args: &ResidueArgs, output: &Output) -> Result<Exit, Failure> {
    let search = Search::new(args.resources.clone(), &args.prefix.prefix);
    let (mut files, mut failed, mut running) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts(&args.paths)? {
        let file = part.path.display().to_string();
        // Its other files change as well.
        if part.member.as_ref().is_some_and(|member| running.contains(member)) {
            continue;
        }
        match part.search(&search, output) {
            Ok(places) => files.push(FileResidue { file, places }),
            Err(error) => {
                if error.is_in_use() {
                    running.extend(part.member.clone());
                }
                failed.push(Failed { file, error: error.to_string() });
            }
        }
    }
    let places = || files.iter().flat_map(|file| &file.places).filter(|found| found.copies > 0);
    let mut with_copies: Vec<Place> = places().map(|found| found.place).collect();
    with_copies.sort();
    with_copies.dedup();
    let remedy = |place: Place| Remedy {
        place,
        removed_by: place.removed_by().to_owned(),
        not_removed_by: place.not_removed_by().to_owned(),
    };
    let answer = Answer {
        resources: args.resources.iter().map(ToString::to_string).collect(),
        copies: places().map(|found| found.copies).sum(),
        remedies: with_copies.into_iter().map(remedy).collect(),
        files,
        failed,
    };
    output.sections(&answer, &answer.sections())?;
    Ok(answer.exit())
}

/// A file, and what it is taken for.
struct Part {
    path: PathBuf,
    kind: Kind,
    /// The member whose file it is.
    member: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A database, or an error.
    Database,
    /// A database, if it can be read as one.
    Remainder,
    Raw(Place),
}

/// Of a member's folder all files, of another one those that are not hidden.
fn parts(paths: &[PathBuf]) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    for path in paths {
        let member = Some(path.join("member")).filter(|member| member.is_dir()).unwrap_or(path.clone());
        let [snap, wal] = ["snap", "wal"].map(|name| member.join(name));
        if snap.is_dir() || wal.is_dir() {
            // etcd may keep its log elsewhere (--wal-dir).
            for folder in [snap, wal].iter().filter(|folder| folder.is_dir()) {
                let inside = scan::files_in(folder)?
                    .into_iter()
                    .map(|path| Part { member: Some(member.clone()), ..Part::new(path, Kind::Remainder) });
                parts.extend(inside);
            }
            // The database first: its lock tells whether the member runs.
            parts.sort_by_key(|part| !part.path.ends_with("db"));
        } else {
            let files = scan::files(std::slice::from_ref(path))?;
            parts.extend(files.into_iter().map(|path| Part::new(path, Kind::Database)));
        }
    }
    Ok(parts)
}

impl Part {
    /// etcd's logs and snapshots of Raft are known by their names, and all else is taken for `other`.
    fn new(path: PathBuf, other: Kind) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kind = if name.ends_with(".wal") || name.ends_with(".wal.broken") {
            Kind::Raw(Place::WriteAheadLog)
        } else if name.ends_with(".snap") {
            Kind::Raw(Place::OtherFile)
        } else if name.ends_with("-wal") {
            Kind::Raw(Place::SqliteLog)
        } else if name == "db" {
            Kind::Database
        } else if name.contains(".tmp") {
            // A log that etcd has made beforehand, or a defragmentation that was broken off.
            Kind::Remainder
        } else {
            other
        };
        Self { path, kind, member: None }
    }

    fn search(&self, search: &Search, output: &Output) -> Result<Vec<Found>, ScanError> {
        let place = match self.kind {
            Kind::Raw(place) => place,
            Kind::Database => return database(&self.path, search, output),
            Kind::Remainder => match database(&self.path, search, output) {
                Ok(found) => return Ok(found),
                Err(_) => Place::OtherFile,
            },
        };
        let mut progress = Progress::new(output, self.path.display().to_string(), "bytes", 0);
        let found = search.file(place, &self.path, |passed, all| progress.now_at(passed, all, passed))?;
        Ok(vec![found])
    }
}

fn database(path: &Path, search: &Search, output: &Output) -> Result<Vec<Found>, ScanError> {
    #[cfg(feature = "kine")]
    if kine::is_sqlite(path) {
        return state_db(path, search, output);
    }
    let (snapshot, _) = scan::open(path, output)?;
    let store = snapshot.store()?;
    let mut progress = Progress::new(output, path.display().to_string(), "bytes", 0);
    let found = search.database(&store, |passed, all| progress.now_at(passed, all, passed));
    let found = found.map_err(|error| snapshot.error(error))?;
    snapshot.ensure_unchanged()?;
    Ok(found)
}

#[cfg(feature = "kine")]
fn state_db(path: &Path, search: &Search, output: &Output) -> Result<Vec<Found>, ScanError> {
    let state = scan::open_kine(path, output)?;
    let mut progress = Progress::new(output, path.display().to_string(), "bytes", 0);
    let mut found = search.state_db(&state, |passed, all| progress.now_at(passed, all, passed))?;
    if state.has_log() {
        output.note(format_args!(
            "{}: stop k3s for a whole answer: rows that its log replaces stand in the file until then",
            path.display()
        ));
        found.push(
            search
                .file(Place::SqliteLog, &state.log(), |passed, all| progress.now_at(passed, all, passed))?,
        );
    }
    Ok(found)
}

impl Answer {
    fn exit(&self) -> Exit {
        match self {
            Self { copies: 1.., .. } => Exit::No,
            Self { files, .. } if files.is_empty() => Exit::Unknown,
            Self { failed, .. } if !failed.is_empty() => Exit::Partly,
            _ => Exit::Yes,
        }
    }

    fn sections(&self) -> Vec<Section> {
        let of = self.resources.join(", ");
        let title = match self.copies {
            0 => format!("RESIDUE  no plaintext of {of} is recognised"),
            copies => format!("RESIDUE  {copies} copies of plaintext of {of}"),
        };
        let columns = ["PLACE", "COPIES", "OF", "BYTES", "NOT ZERO", "EXAMPLE", "FILE"];
        let mut section = Section::new(title).head(columns);
        for file in &self.files {
            // Most files have nothing behind their end.
            for found in file.places.iter().filter(|found| found.bytes > 0) {
                let of: Vec<String> = found
                    .by_resource
                    .iter()
                    .map(|(resource, copies)| format!("{copies} {resource}"))
                    .collect();
                section.row([
                    called(found.place).to_owned(),
                    found.copies.to_string(),
                    of.join(", "),
                    found.bytes.to_string(),
                    found.written.to_string(),
                    found.examples.first().cloned().unwrap_or_default(),
                    file.file.clone(),
                ]);
            }
        }
        let mut sections: Vec<Section> = (!self.files.is_empty()).then_some(section).into_iter().collect();
        for Failed { file, error } in &self.failed {
            let error = error.strip_prefix(file.as_str()).unwrap_or(error).trim_start_matches([':', ' ']);
            sections.push(Section::new(format!("NOT READ  {file}: {error}")));
        }
        if !self.remedies.is_empty() {
            let mut remedies = Section::new("WHAT REMOVES IT").head(["PLACE", "REMOVED BY", "NOT BY"]);
            for Remedy { place, removed_by, not_removed_by } in &self.remedies {
                remedies.row([called(*place).to_owned(), removed_by.clone(), not_removed_by.clone()]);
            }
            sections.push(remedies);
        }
        sections
    }
}

fn called(place: Place) -> &'static str {
    match place {
        Place::Objects => "objects now",
        Place::OldRevisions => "old revisions",
        Place::FreePages => "free pages",
        Place::PageTails => "ends of pages",
        Place::BeyondEnd => "behind the last page",
        Place::WriteAheadLog => "write-ahead log",
        Place::OldRows => "old rows",
        Place::UnusedParts => "unused parts",
        Place::SqliteLog => "SQLite's log",
        _ => "other file",
    }
}
