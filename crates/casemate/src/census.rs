//! `casemate census`: what files of etcd hold, and what that says of keys. Never a value.
//!
//! * `scan`: files to surveys, with progress
//! * `answer`: what is told of them, as JSON and as tables
//! * `object`: one object
//! * `diff`: two times
//!
//! `docs/reference/census.schema.json` is the schema of the JSON.
mod answer;
mod diff;
mod object;
mod scan;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use casemate_census::answers::{self, Given, Source};
use casemate_census::policy::Policy;
use casemate_census::survey::Key;
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags, file_hash};
use clap::Subcommand;
use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::output::{Exit, Failure, Output};
use answer::{Answer, Configuration, Failed, FileAnswer};

const ABOUT: &str = "What do snapshots of etcd hold, how is it encrypted, and which keys does it need?\n\n\
    Reads snapshots (etcdctl snapshot save, etcdutl) and the member/snap/db of a stopped etcd, without etcd and without \
    any key, of clusters with any provider or none. Of a folder, all files in it that are not hidden. Prints names, \
    counts, sizes and revisions, never a value. While it reads a member's db, an etcd that starts on it waits for the lock.\n\n\
    KEY is written as the table of keys shows it: aescbc:NAME, aesgcm:NAME, secretbox:NAME, kms:v1:NAME, kms:v2:NAME, \
    key-id:ID, local-kek:HEX, root:LINEAGE or recovery:FINGERPRINT.";

const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found that was asked for; with --may-go: yes
  1  something was found; with --may-go: no
  2  usage: the command line, or a configuration or policy on it, is wrong
  3  can't tell: nothing could be read, or what was read leaves it open
  4  partly: some files could not be read, and the others give no reason for 1";

const OBJECT_EXIT_CODES: &str = "\
Exit codes:
  0  it is there
  1  it is not
  2  usage: the command line is wrong
  3  can't tell: the file could not be read";

const DIFF_EXIT_CODES: &str = "\
Exit codes:
  0  nothing changed
  1  something did
  2  usage: the command line is wrong
  3  can't tell: a file could not be read";

/// `casemate census`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What do snapshots hold, and which keys do they need?
    #[command(long_about = ABOUT, after_help = EXIT_CODES)]
    Snapshot(SnapshotArgs),
    /// Which key does one object use?
    #[command(after_help = OBJECT_EXIT_CODES)]
    Object(object::ObjectArgs),
    /// What changed between two snapshots?
    #[command(after_help = DIFF_EXIT_CODES)]
    Diff(diff::DiffArgs),
}

/// Flags about etcd's keys.
#[derive(clap::Args)]
struct Prefix {
    /// Below which key kube-apiserver keeps its objects: its --etcd-prefix
    #[arg(long, value_name = "KEY", default_value = "/registry")]
    prefix: String,
}

#[derive(clap::Args)]
struct SnapshotArgs {
    /// Snapshots, stopped members' member/snap/db, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    prefix: Prefix,

    /// What is not stored as this EncryptionConfiguration says? Its keys are not used
    #[arg(long, value_name = "FILE")]
    encryption_config: Option<PathBuf>,

    /// What is under this key?
    #[arg(long, value_name = "KEY")]
    needs: Option<Key>,

    /// May this key go? With --encryption-config, it may not while API servers write with it
    #[arg(long, value_name = "KEY")]
    may_go: Option<Key>,

    /// What could nobody read who has these keys only, and those in --encryption-config?
    #[arg(long, value_name = "KEY")]
    have: Vec<Key>,

    /// What is not as this policy wants it?
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

/// Does what the command line says.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Snapshot(args) => snapshot(&args, output),
        Verb::Object(args) => object::run(&args, output),
        Verb::Diff(args) => diff::run(&args, output),
    }
}

fn snapshot(args: &SnapshotArgs, output: &Output) -> Result<Exit, Failure> {
    let config = args.encryption_config.as_deref().map(read_configuration).transpose()?;
    let policy = args.policy.as_deref().map(read_policy).transpose()?;
    let files = scan::files(&args.files)?;
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();

    let (mut scanned, mut failed) = (Vec::new(), Vec::new());
    for path in &files {
        match scan::scan(path, &args.prefix.prefix, output) {
            Ok(one) => scanned.push(one),
            Err(error) => failed.push(Failed { file: path.display().to_string(), error: error.to_string() }),
        }
    }
    let sources: Vec<Source<'_>> =
        scanned.iter().map(|one| Source { name: &one.file, survey: &one.survey }).collect();
    let config_values = config.as_ref().map(|(_, config)| config);
    let needs = args.needs.as_ref().map(|key| answers::needs(key, &sources));
    let may_go = args.may_go.as_ref().map(|key| {
        let answer = answers::may_go(key, &sources, config_values);
        answer.with_doubts(failed.iter().map(|failed| format!("{}: could not be read", failed.file)))
    });
    let given = Given { config: config_values, keys: &args.have };
    let files = scanned.into_iter().map(|one| FileAnswer {
        against: config_values.map(|config| answers::against(config, &one.survey)),
        closed: (!args.have.is_empty()).then(|| answers::closed(given, &one.survey)),
        policy: policy.as_ref().map(|policy| policy.judge(&one.survey, now)),
        ..one.into()
    });
    let answer = Answer {
        files: files.collect(),
        failed,
        encryption_config: config.map(|(configuration, _)| configuration),
        needs,
        may_go,
    };
    output.sections(&answer, &answer.sections())?;
    Ok(answer.exit())
}

fn read_configuration(path: &Path) -> Result<(Configuration, EncryptionConfiguration), Failure> {
    let bytes = read_small(path)?;
    // Whether KMS v1 is served is not what is asked here.
    let flags = ServerFlags { kms_v1: true, ..ServerFlags::default() };
    let config = EncryptionConfiguration::read(&bytes, flags).map_err(|refused| usage(path, &refused))?;
    Ok((Configuration { file: path.display().to_string(), hash: file_hash(&bytes) }, config))
}

fn read_policy(path: &Path) -> Result<Policy, Failure> {
    let bytes = read_small(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| usage(path, &error))?;
    Policy::parse(text).map_err(|error| usage(path, &error))
}

/// At most 1 MiB; wiped, since an EncryptionConfiguration holds keys.
fn read_small(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    const MOST: u64 = 1 << 20;
    let mut bytes = Zeroizing::new(Vec::new());
    let read = File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes));
    match read.map_err(|error| usage(path, &format_args!("can't be read: {error}")))? as u64 {
        length if length > MOST => Err(usage(path, &format_args!("is larger than {MOST} bytes"))),
        _ => Ok(bytes),
    }
}

fn usage(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, &format_args!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
