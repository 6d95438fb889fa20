//! `casemate key`: root keys in files.
use std::path::{Path, PathBuf};

use casemate_keyservice::file::{
    Change, ChangeRefused, Comment, FileKeyId, Haste, KeyFile, Keyring, Secret, StoreError,
};
use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;

use crate::output::{Exit, Failure, Output};

pub(crate) mod plan_rotation;

/// `casemate key`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a new root key in a new file, and print the configuration that uses it
    New(NewArgs),
    /// Add a version that does not write yet
    #[command(long_about = "Add a version that does not write yet.\n\n\
        Deliver the file to every control plane node, then let the version write with `casemate key activate`.")]
    AddVersion(ChangeArgs),
    /// Let a version write that every control plane node has
    #[command(long_about = "Let a version write that every control plane node has.\n\n\
        A node that writes with a version that another node does not have makes objects that the other can't read. \
        So this is refused for ten minutes after the version was added, in which the file is to be delivered; \
        --now says that it was. Then deliver the file again: each node moves when it has it.")]
    Activate(ActivateArgs),
    /// What a key file holds: never a secret
    List(FileArgs),
    /// Destroy the secret of a version: what needs it can't be read again
    #[command(long_about = "Destroy the secret of a version: what needs it can't be read again.\n\n\
        Prove first that no object in etcd and no backup needs it. The secret goes from this file only: \
        not from other nodes, from backups, or from the disk blocks where the file was.")]
    Retire(RetireArgs),
    /// Say what the next look at the root keys would come to, and why
    #[command(long_about = plan_rotation::ABOUT, after_help = plan_rotation::EXIT_CODES)]
    PlanRotation(plan_rotation::Args),
}

#[derive(clap::Args)]
struct FileArgs {
    /// The key file
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

#[derive(clap::Args)]
struct ChangeArgs {
    #[command(flatten)]
    file: FileArgs,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
struct NewArgs {
    #[command(flatten)]
    change: ChangeArgs,

    /// A remark for people, one line
    #[arg(long, value_name = "TEXT")]
    comment: Option<Comment>,
}

#[derive(clap::Args)]
struct ActivateArgs {
    #[command(flatten)]
    change: ChangeArgs,

    /// Which one; the newest if left out
    #[arg(value_name = "VERSION")]
    number: Option<u32>,

    /// Every control plane node has the file with this version already
    #[arg(long)]
    now: bool,
}

#[derive(clap::Args)]
struct RetireArgs {
    #[command(flatten)]
    change: ChangeArgs,

    /// Which one
    #[arg(value_name = "VERSION")]
    number: u32,

    /// Do it: nothing needs this version any more
    #[arg(long)]
    yes: bool,
}

/// Runs one verb.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    match args.verb {
        Verb::New(args) => new(args, output),
        Verb::AddVersion(args) => add_version(args, output),
        Verb::Activate(args) => activate(args, output),
        Verb::List(args) => list(args, output),
        Verb::Retire(args) => retire(args, output),
        Verb::PlanRotation(args) => plan_rotation::run(args, output),
    }
}

#[derive(Serialize)]
struct NewAnswer {
    file: PathBuf,
    /// Drawn when the file is made: a dry run has none.
    id: Option<String>,
    lineage: Option<String>,
    dry_run: bool,
    configuration: Option<Configuration>,
}

/// What `casemate-kms` is to be told.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    root_keys: [RootKey; 1],
}

#[derive(Serialize)]
struct RootKey {
    name: &'static str,
    file: FileSource,
}

#[derive(Serialize)]
struct FileSource {
    path: PathBuf,
    id: String,
}

fn new(args: NewArgs, output: &Output) -> Result<Exit, Failure> {
    let FileArgs { file } = args.change.file;
    let path = std::path::absolute(&file)
        .map_err(|error| Failure::new(Exit::Usage, &format_args!("--file {file:?}: {error}")))?;
    if args.change.dry_run {
        if path.symlink_metadata().is_ok() {
            return Err(StoreError::Exists { path }.into());
        }
        let lines = [[format!("would make a new root key in {}", path.display())]];
        let answer = NewAnswer { file: path, id: None, lineage: None, dry_run: true, configuration: None };
        output.answer(&answer, lines)?;
        return Ok(Exit::Yes);
    }
    let keyring = Keyring::new(FileKeyId::generate(), args.comment, Secret::generate(), Timestamp::now());
    KeyFile::at(&path).create(&keyring)?;

    let id = keyring.id().to_string();
    // A path and digits in JSON's quotes are YAML, whatever is in them.
    let quoted = serde_json::to_string(&path.to_string_lossy())
        .map_err(|error| Failure::new(Exit::Unknown, &error))?;
    let lines = [
        "# In the configuration of casemate-kms on every control plane node, for the provider:".to_owned(),
        "    rootKeys:".to_owned(),
        "      - name: main".to_owned(),
        "        file:".to_owned(),
        format!("          path: {quoted}"),
        format!("          id: \"{id}\""),
    ];
    let file = FileSource { path: path.clone(), id: id.clone() };
    let answer = NewAnswer {
        file: path.clone(),
        id: Some(id),
        lineage: keyring.lineage(1).map(|lineage| lineage.to_string()),
        dry_run: false,
        configuration: Some(Configuration { root_keys: [RootKey { name: "main", file }] }),
    };
    output.answer(&answer, lines.map(|line| [line]))?;
    output.note(format_args!(
        "Version 1 is active. Copy {} to every control plane node and to a safe place, with mode 0600: \
         without it, what is encrypted under it is lost; with it, anybody can read it.",
        path.display()
    ));
    Ok(Exit::Yes)
}

/// What became of one version.
#[derive(Serialize)]
struct ChangeAnswer {
    file: PathBuf,
    id: String,
    version: u32,
    state: Option<String>,
    /// A dry run that adds a version has none: its secret is not made.
    lineage: Option<String>,
    changed: bool,
    dry_run: bool,
}

impl ChangeArgs {
    /// Does what `change` says to the file, or in a dry run to nothing, and tells about the version it names.
    fn apply(
        &self,
        change: impl FnOnce(&mut Keyring) -> Result<(u32, Change), ChangeRefused>,
    ) -> Result<ChangeAnswer, Failure> {
        let file = KeyFile::at(&self.file.file);
        let tell = |keyring: &mut Keyring| {
            let (version, change) = change(keyring)?;
            Ok::<_, Failure>(ChangeAnswer {
                file: file.path().to_owned(),
                id: keyring.id().to_string(),
                version,
                state: keyring.state(version).map(|state| state.to_string()),
                lineage: keyring.lineage(version).map(|lineage| lineage.to_string()),
                changed: change == Change::Made,
                dry_run: self.dry_run,
            })
        };
        if self.dry_run { tell(&mut file.read()?) } else { file.update(tell) }
    }
}

impl ChangeAnswer {
    fn print(&self, output: &Output) -> Result<Exit, Failure> {
        let changed = match (self.changed, self.dry_run) {
            (false, _) => "no, it was so already",
            (true, true) => "no, this is a dry run",
            (true, false) => "yes",
        };
        let rows = [
            ("file", self.file.display().to_string()),
            ("version", self.version.to_string()),
            ("state", self.state.clone().unwrap_or_default()),
            ("lineage", self.lineage.clone().unwrap_or_else(|| "-".to_owned())),
            ("changed", changed.to_owned()),
        ];
        output.answer(self, rows.map(|(name, value)| [name.to_owned(), value]))?;
        Ok(Exit::Yes)
    }

    fn done(&self) -> bool {
        self.changed && !self.dry_run
    }
}

fn add_version(args: ChangeArgs, output: &Output) -> Result<Exit, Failure> {
    let mut staged_before = None;
    let mut answer = args.apply(|keyring| {
        staged_before = keyring.newest_staged();
        let number = keyring.stage(Secret::generate(), Timestamp::now())?;
        Ok((number, Change::Made))
    })?;
    if args.dry_run {
        answer.lineage = None;
    }
    answer.print(output)?;
    if let Some(before) = staged_before {
        output.note(format_args!(
            "Version {before} was staged before and does not write yet either; if one new version is enough, activate \
             {before} and leave {} staged.",
            answer.version
        ));
    }
    if answer.done() {
        output.note(format_args!(
            "Version {0} does not write yet. Copy {1} to every control plane node; then, ten minutes from now or \
             later: casemate key activate {0} --file {1}",
            answer.version,
            answer.file.display()
        ));
    }
    Ok(Exit::Yes)
}

fn activate(args: ActivateArgs, output: &Output) -> Result<Exit, Failure> {
    let haste = if args.now { Haste::Now } else { Haste::Wait };
    let answer = args.change.apply(|keyring| {
        let newest = keyring.newest_staged().unwrap_or(keyring.active());
        let number = args.number.unwrap_or(newest);
        Ok((number, keyring.activate(number, Timestamp::now(), haste)?))
    })?;
    answer.print(output)?;
    if answer.done() {
        output.note(format_args!(
            "Version {} writes wherever this file is. Copy {} to every control plane node.",
            answer.version,
            answer.file.display()
        ));
    }
    Ok(Exit::Yes)
}

#[derive(Serialize)]
struct ListAnswer<'a> {
    file: &'a Path,
    id: String,
    comment: Option<&'a str>,
    active: u32,
    versions: Vec<VersionAnswer>,
}

#[derive(Serialize)]
struct VersionAnswer {
    version: u32,
    state: Option<String>,
    staged: String,
    activated: Option<String>,
    retired: Option<String>,
    lineage: Option<String>,
}

fn list(args: FileArgs, output: &Output) -> Result<Exit, Failure> {
    let keyring = KeyFile::at(&args.file).read()?;
    let versions = keyring.versions().map(|(number, version)| VersionAnswer {
        version: number,
        state: keyring.state(number).map(|state| state.to_string()),
        staged: version.staged_at().to_string(),
        activated: version.activated_at().map(|at| at.to_string()),
        retired: version.retired_at().map(|at| at.to_string()),
        lineage: keyring.lineage(number).map(|lineage| lineage.to_string()),
    });
    let answer = ListAnswer {
        file: &args.file,
        id: keyring.id().to_string(),
        comment: keyring.comment(),
        active: keyring.active(),
        versions: versions.collect(),
    };
    let header = ["VERSION", "STATE", "STAGED", "ACTIVATED", "RETIRED", "LINEAGE"].map(str::to_owned);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows = answer.versions.iter().map(|row| {
        [
            row.version.to_string(),
            or_dash(&row.state),
            row.staged.clone(),
            or_dash(&row.activated),
            or_dash(&row.retired),
            or_dash(&row.lineage),
        ]
    });
    output.answer(&answer, std::iter::once(header).chain(rows))?;
    Ok(Exit::Yes)
}

fn retire(args: RetireArgs, output: &Output) -> Result<Exit, Failure> {
    let change = &args.change;
    if !change.dry_run && !args.yes {
        // What would be refused anyway is not asked for.
        let rehearsal = ChangeArgs { file: FileArgs { file: change.file.file.clone() }, dry_run: true };
        let answer = rehearsal.apply(|keyring| retire_in(keyring, args.number))?;
        if answer.changed {
            let warning = warning(&answer);
            return Err(Failure::new(
                Exit::Usage,
                &format_args!("{warning} Nothing was done; to do it, say --yes"),
            ));
        }
    }
    let answer = change.apply(|keyring| retire_in(keyring, args.number))?;
    answer.print(output)?;
    if answer.changed {
        output.note(warning(&answer));
    }
    Ok(Exit::Yes)
}

fn retire_in(keyring: &mut Keyring, number: u32) -> Result<(u32, Change), ChangeRefused> {
    keyring.retire(number, Timestamp::now()).map(|change| (number, change))
}

fn warning(answer: &ChangeAnswer) -> String {
    format!(
        "Objects that are encrypted under version {} become unreadable for good when it is retired. Prove first \
         that no object in etcd, in no snapshot and in no backup needs it: none names {}, which stands readable in \
         each value that does (`casemate inspect` shows it).",
        answer.version,
        answer.lineage.as_deref().unwrap_or("its lineage")
    )
}

impl From<ChangeRefused> for Failure {
    fn from(refused: ChangeRefused) -> Self {
        let exit = match refused {
            ChangeRefused::NoSuchVersion { .. } => Exit::Usage,
            _ => Exit::No,
        };
        Self::new(exit, &refused)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let exit = match error {
            StoreError::Io { .. } | StoreError::Busy { .. } => Exit::Unknown,
            _ => Exit::Usage,
        };
        match error {
            StoreError::Content { .. } => Self::new(
                exit,
                &format_args!("{error}; put a whole copy in its place, from another node or a backup"),
            ),
            _ => Self::new(exit, &error),
        }
    }
}
