//! `casemate recover`: the way back from a snapshot and a key, without etcd, API server or plugin.
//!
//! * `keys`: keys of the command line, and how they open
//! * `walk`: from a file of etcd to opened objects
//! * `report`: what was opened and what was not
//! * `folder`: where manifests are written
//! * `restore`: everything into a fresh etcd
//!
//! `docs/reference/recover.schema.json` and `recover-restore.schema.json` are the schemas of the JSON.
mod folder;
mod keys;
mod report;
mod restore;
mod walk;

use std::path::PathBuf;

use casemate_census::classify::{Name, ObjectPath};
use casemate_census::recover::Manifest;
use casemate_census::recover::place::Place;
use clap::Subcommand;
use zeroize::Zeroizing;

use crate::output::{Exit, Failure, Output, printable, write_stdout};
use folder::Folder;
use keys::KeyArgs;
use report::Report;
use walk::{Which, walk};

const SNAPSHOT: &str = "Open what a snapshot holds, and write manifests.\n\n\
    Reads a snapshot (etcdctl snapshot save), the member/snap/db of a stopped etcd or k3s' state.db, and opens what the given keys open, \
    whatever encrypted it: nothing, aescbc, aesgcm, secretbox, casemate-kms or another KMS plugin. Neither etcd nor an \
    API server is needed, and for a recovery identity no plugin and no key service.\n\n\
    Secrets and ConfigMaps become YAML that kubectl takes, custom resources JSON, everything else stays protobuf as it was \
    stored (.pb), in NAMESPACE/RESOURCE/NAME below --out; so does, beside its YAML, what has fields that this program does not \
    know. What does not open is told, with the keys that would open it.";

const OBJECT: &str = "Open one object, and write its manifest or show it.\n\n\
    As `casemate recover snapshot` does it. With --revision, an object that was deleted or overwritten since is had as it \
    was, as long as etcd had not compacted it away; `casemate census object` lists its revisions.";

const DRILL: &str = "Drill: do these keys open all of a snapshot?\n\n\
    Opens each object as a recovery would, checks that it is one, and forgets it: nothing is written, nothing is shown. For \
    cron, after each backup, with the keys that are meant for the worst day.";

const EXIT_CODES: &str = "\
Exit codes:
  0  all that was asked for is recovered
  1  nothing of it is: it is not there, or no given key opens it
  2  usage: the command line, a key file or the folder is wrong
  3  can't tell: the file could not be read, or who has the key could not be asked
  4  partly: some of it is recovered, some of it does not open";

const DRILL_EXIT_CODES: &str = "\
Exit codes:
  0  the given keys open all of it
  1  something does not open
  2  usage: the command line or a key file is wrong
  3  can't tell: the file could not be read or holds nothing, or who has a key could not be asked";

/// `casemate recover`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Open one object, and write its manifest or show it
    #[command(long_about = OBJECT, after_help = EXIT_CODES)]
    Object(ObjectArgs),
    /// Open what a snapshot holds, and write manifests
    #[command(long_about = SNAPSHOT, after_help = EXIT_CODES)]
    Snapshot(SnapshotArgs),
    /// Drill: do these keys open all of a snapshot?
    #[command(long_about = DRILL, after_help = DRILL_EXIT_CODES)]
    Drill(DrillArgs),
    /// Put everything of a snapshot into a fresh etcd
    #[command(long_about = restore::ABOUT, after_help = restore::EXIT_CODES)]
    Restore(restore::RestoreArgs),
}

#[derive(clap::Args)]
struct ObjectArgs {
    // Behind the file on the command line; here, so that it is not among the keys in the help.
    /// NAMESPACE/NAME, of whatever resource; or the key in etcd, which begins with `/`
    #[arg(value_name = "NAMESPACE/NAME|KEY", index = 2)]
    object: String,

    #[command(flatten)]
    from: SnapshotArgs,
}

#[derive(clap::Args)]
struct SnapshotArgs {
    /// A snapshot, a stopped member's member/snap/db, or k3s' state.db
    file: PathBuf,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    to: To,

    #[command(flatten)]
    keys: KeyArgs,
}

#[derive(clap::Args)]
struct DrillArgs {
    /// A snapshot, a stopped member's member/snap/db, or k3s' state.db
    file: PathBuf,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    keys: KeyArgs,
}

/// Where manifests go.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct To {
    /// A folder for manifests, which is made with mode 0700; one that has something in it is refused
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Print manifests, secrets in the clear, to standard output; the report goes to standard error
    #[arg(long)]
    show_secrets: bool,
}

/// Does what the command line says.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Object(ObjectArgs { from, object }) => {
            let wanted = Wanted::new(&object)?;
            recover(&from, output, |key, path| wanted.is(key, path))
        }
        Verb::Snapshot(args) => recover(&args, output, |_, _| true),
        Verb::Drill(args) => drill(&args, output),
        Verb::Restore(args) => restore::run(&args, output),
    }
}

fn recover(
    SnapshotArgs { file, which, to, keys }: &SnapshotArgs,
    output: &Output,
    is_wanted: impl Fn(&[u8], Option<ObjectPath<'_>>) -> bool,
) -> Result<Exit, Failure> {
    if to.show_secrets && output.is_json() {
        let text = "--show-secrets prints manifests: give --out for the report as JSON";
        return Err(Failure::new(Exit::Usage, &text));
    }
    let mut opener = keys.opener(output)?;
    let mut folder = to.out.as_deref().map(Folder::make).transpose()?;
    let mut report = Report::default();
    let prefix = which.prefix.prefix.as_str();
    let walked = walk(file, which, &mut opener, output, is_wanted, |met| {
        report.add(&met);
        let Ok(opened) = met.opened else { return Ok(()) };
        let manifest = Manifest::of(opened.object);
        report.add_manifest(&manifest);
        let key = met.item.pair.key;
        match &mut folder {
            Some(folder) => {
                let own = Place::of(prefix, key);
                let is_taken = folder.has(&own, manifest.extension)
                    || manifest.stored.is_some() && folder.has(&own, "pb");
                let place = if is_taken { Place::by_key(key) } else { own };
                folder.write(&place, manifest.extension, &manifest.bytes)?;
                manifest.stored.map_or(Ok(()), |stored| folder.write(&place, "pb", &stored))
            }
            None => show(key, met.item.revision.main, &manifest),
        }
    })?;
    let name = folder.as_ref().map(Folder::name);
    folder.map(Folder::finish).transpose()?;
    let calls = opener.into_unwrapper().finish();
    tell_elsewhere(walked.elsewhere, prefix, output);
    if report.objects() == 0 {
        output.note("nothing that was asked for is in it");
    }
    let exit = report.recovered();
    let answer = report.answer(file.display().to_string(), &walked, calls, name);
    if to.show_secrets {
        output.note_sections(&answer.sections());
    } else {
        output.sections(&answer, &answer.sections())?;
    }
    Ok(exit)
}

fn drill(args: &DrillArgs, output: &Output) -> Result<Exit, Failure> {
    let mut opener = args.keys.opener(output)?;
    let mut report = Report::default();
    let every = |_: &[u8], _: Option<ObjectPath<'_>>| true;
    let walked = walk(&args.file, &args.which, &mut opener, output, every, |met| {
        report.add(&met);
        Ok(())
    })?;
    let calls = opener.into_unwrapper().finish();
    tell_elsewhere(walked.elsewhere, &args.which.prefix.prefix, output);
    let exit = report.drilled();
    let answer = report.answer(args.file.display().to_string(), &walked, calls, None);
    output.sections(&answer, &answer.sections())?;
    Ok(exit)
}

fn tell_elsewhere(elsewhere: Option<u64>, prefix: &str, output: &Output) {
    if let Some(elsewhere) = elsewhere {
        output.note(format_args!(
            "nothing is below {prefix}, but {elsewhere} revisions are elsewhere: give kube-apiserver's --etcd-prefix as --prefix"
        ));
    }
}

/// As one of several documents of YAML, which JSON is, too.
fn show(key: &[u8], revision: u64, manifest: &Manifest) -> Result<(), Failure> {
    let mut text = Zeroizing::new(Vec::with_capacity(manifest.bytes.len() + 256));
    let named = printable(&Name::new(key).to_string()).replace('\n', " ");
    text.extend(format!("---\n# {named}, revision {revision}\n").into_bytes());
    if ["yaml", "json"].contains(&manifest.extension) {
        text.extend_from_slice(&manifest.bytes);
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        if manifest.stored.is_some() {
            text.extend_from_slice(
                b"# it has fields of a later Kubernetes, which are not here: give --out\n",
            );
        }
    } else {
        let length = manifest.bytes.len();
        text.extend(
            format!("# {length} bytes that are no text (.{}): give --out\n", manifest.extension).into_bytes(),
        );
    }
    write_stdout(&text)
}

/// Which one object.
enum Wanted<'a> {
    Key(&'a str),
    Name { namespace: &'a str, name: &'a str },
}

impl<'a> Wanted<'a> {
    fn new(object: &'a str) -> Result<Self, Failure> {
        match object.split_once('/') {
            Some(("", _)) => Ok(Self::Key(object)),
            Some((namespace, name)) if !name.is_empty() => Ok(Self::Name { namespace, name }),
            _ => Err(Failure::new(
                Exit::Usage,
                &format_args!(
                    "{object:?} is no object: write NAMESPACE/NAME, or its key in etcd as in /registry/namespaces/default"
                ),
            )),
        }
    }

    fn is(&self, key: &[u8], path: Option<ObjectPath<'_>>) -> bool {
        match *self {
            Self::Key(wanted) => wanted.as_bytes() == key,
            Self::Name { namespace, name } => {
                path.is_some_and(|path| (path.namespace, path.name) == (Some(namespace), name))
            }
        }
    }
}

#[cfg(test)]
mod tests;
