//! `casemate census`: what files of etcd, or a running one, hold, and what that says of keys. Never a value.
//!
//! * `scan`: files to surveys, with progress
//! * `questions`: what is asked of surveys, whatever they were made of
//! * `answer`: what is told of them, as JSON and as tables
//! * `report`: the same as a page and as gauges
//! * `etcd`: a running one
//! * `api`: API servers, where nobody reaches etcd
//! * `object`: one object
//! * `diff`: two times
//! * `residue`: plaintext that encryption left behind
//!
//! `docs/reference/census.schema.json` is the schema of the JSON.
mod answer;
pub(crate) mod api;
mod diff;
pub(crate) mod etcd;
mod object;
mod questions;
mod report;
mod residue;
pub(crate) mod scan;

use std::path::PathBuf;

use clap::Subcommand;

use crate::output::{Exit, Failure, Output};
pub(crate) use answer::Configuration;
use answer::Failed;
use questions::Questions;
pub(crate) use questions::{read_configuration, read_small};

const ABOUT: &str = "What do snapshots of etcd hold, how is it encrypted, and which keys does it need?\n\n\
    Reads snapshots (etcdctl snapshot save, etcdutl), the member/snap/db of a stopped etcd and k3s' state.db, without \
    etcd and without any key, of clusters with any provider or none. Of a folder, all files in it that are not hidden. Prints names, \
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
    /// What does a running etcd hold, and which keys does it need?
    #[command(long_about = etcd::ABOUT, after_help = etcd::EXIT_CODES)]
    Etcd(Box<etcd::EtcdArgs>),
    /// What do API servers show of how their objects are encrypted?
    #[command(long_about = api::ABOUT, after_help = api::EXIT_CODES)]
    Api(Box<api::ApiArgs>),
    /// Which key does one object use?
    #[command(after_help = OBJECT_EXIT_CODES)]
    Object(object::ObjectArgs),
    /// What changed between two snapshots?
    #[command(after_help = DIFF_EXIT_CODES)]
    Diff(diff::DiffArgs),
    /// Which plaintext did encryption leave behind?
    #[command(long_about = residue::ABOUT, after_help = residue::EXIT_CODES)]
    Residue(residue::ResidueArgs),
}

/// Flags about etcd's keys.
#[derive(Clone, clap::Args)]
pub(crate) struct Prefix {
    /// Below which key kube-apiserver keeps its objects: its --etcd-prefix
    #[arg(long, value_name = "KEY", default_value = "/registry")]
    pub(crate) prefix: String,
}

#[derive(clap::Args)]
struct SnapshotArgs {
    /// Snapshots, stopped members' member/snap/db, k3s' state.db, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    prefix: Prefix,

    #[command(flatten)]
    questions: Questions,
}

/// Does what the command line says.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Snapshot(args) => snapshot(&args, output),
        Verb::Etcd(args) => etcd::run(&args, output),
        Verb::Api(args) => api::run(&args, output),
        Verb::Object(args) => object::run(&args, output),
        Verb::Diff(args) => diff::run(&args, output),
        Verb::Residue(args) => residue::run(&args, output),
    }
}

fn snapshot(args: &SnapshotArgs, output: &Output) -> Result<Exit, Failure> {
    let asked = args.questions.read()?;
    let (mut scanned, mut failed) = (Vec::new(), Vec::new());
    for path in &scan::files(&args.files)? {
        match scan::scan(path, &args.prefix.prefix, output) {
            Ok(one) => scanned.push(one),
            Err(error) => failed.push(Failed { file: path.display().to_string(), error: error.to_string() }),
        }
    }
    asked.tell(scanned, failed, output)
}

#[cfg(test)]
mod tests;
