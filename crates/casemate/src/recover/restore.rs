//! `casemate recover restore`: everything of a snapshot into a fresh etcd.
//!
//! The file is gone through twice: nothing is written before it is known that all of it opens. The second time is as of the
//! first one's revision, and meets as many objects: somebody may write to k3s' file meanwhile. `target` is the etcd, and the
//! only place of all of Casemate that writes to one; `plugins` asks those of `--encrypt-with` for DEK sources.
mod plugins;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;

use casemate_census::classify::ObjectPath;
use casemate_census::recover::{SealError, Sealer};
use casemate_census::survey::Resource;
use casemate_encryption_config::EncryptionConfiguration;
use schemars::JsonSchema;
use serde::Serialize;

use super::keys::KeyArgs;
use super::report::{self, Report};
use super::walk::{Which, walk};
use crate::census::etcd::reach::Reach;
use crate::census::read_configuration;
use crate::host::runtime;
use crate::output::{Exit, Failure, Output, Section};
use target::Target;

pub(super) const ABOUT: &str = "Put everything of a snapshot into a fresh etcd, opened, and encrypted anew if so asked.\n\n\
    Each object keeps its key in etcd and what it holds, uid and all. It is stored in the clear, or with --encrypt-with as a \
    kube-apiserver with that EncryptionConfiguration would store it: with local keys, or through a KMS v2 plugin that runs. \
    Start API servers with the same configuration then.\n\n\
    An etcd that has anything below --prefix is refused, and nothing is written before all of the snapshot was opened once. \
    Leases of etcd are not restored: events stay until they are deleted. The entries of API servers that are gone \
    (masterleases) are left out. Revisions begin anew: restart what watches.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  all of it is restored; with --dry-run: would be
  1  nothing is written: something does not open, or the etcd is not empty
  2  usage: the command line or a file named on it is wrong
  3  can't tell: the file, who has a key, or etcd could not be asked; what was written is told
  4  partly: what opened is restored, the rest was left out by --without-closed";

#[derive(clap::Args)]
pub(super) struct RestoreArgs {
    /// A snapshot, a stopped member's member/snap/db, or k3s' state.db
    file: PathBuf,

    #[command(flatten)]
    which: Which,

    /// Tell what would be done, and do everything but write
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Write. Without it and without --dry-run nothing is done
    #[arg(long)]
    yes: bool,

    /// Encrypt with the first provider of this EncryptionConfiguration that an object falls under; in the clear if left out
    #[arg(long, value_name = "FILE")]
    encrypt_with: Option<PathBuf>,

    /// Restore what opens, and leave out what does not
    #[arg(long)]
    without_closed: bool,

    #[command(flatten)]
    keys: KeyArgs,

    #[command(flatten)]
    reach: Reach,
}

/// The whole answer. Its JSON is a contract: `docs/reference/recover-restore.schema.json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate recover restore --output json")]
pub(super) struct Answer {
    /// What was opened and what was not.
    recovery: report::Answer,
    /// The etcd.
    endpoint: String,
    /// What came of it.
    outcome: Outcome,
    /// Objects that are restored, or would be, by how they are stored.
    plan: Vec<Planned>,
    /// How many of them etcd would have deleted by itself some time: their leases are gone.
    without_lease: u64,
    /// Entries of API servers that are gone, which were left out.
    left_out: u64,
    /// Keys that were written.
    written: u64,
}

/// Objects that are stored in one way.
#[derive(Debug, Serialize, JsonSchema)]
struct Planned {
    /// Whose they are.
    resource: Resource,
    /// The key that they are under, or `plaintext`.
    stored: String,
    /// How many.
    objects: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// Nothing was written, as was asked.
    DryRun,
    /// Nothing was written: something does not open.
    Refused,
    /// All that opened is in etcd.
    Restored,
}

/// What is to be done.
#[derive(Default)]
struct Plan {
    groups: BTreeMap<(Resource, String), u64>,
    without_lease: u64,
    objects: u64,
}

pub(super) fn run(args: &RestoreArgs, output: &Output) -> Result<Exit, Failure> {
    let usage = |text: &dyn std::fmt::Display| Failure::new(Exit::Usage, text);
    if !args.dry_run && !args.yes {
        return Err(usage(&"nothing is done: give --dry-run first, look at what it tells, then --yes"));
    }
    let prefix = args.which.prefix.prefix.trim_end_matches('/');
    if prefix.is_empty() {
        return Err(usage(&"--prefix: it is empty; kube-apiserver's is /registry"));
    }
    let config = args.encrypt_with.as_deref().map(read_configuration).transpose()?.map(|(_, config)| config);
    let mut sealer = sealer(config.as_ref()).map_err(|error| {
        let file = args.encrypt_with.as_deref().unwrap_or(&args.file);
        usage(&format_args!("--encrypt-with {}: {error}", file.display()))
    })?;
    let mut opener = args.keys.opener(output)?;
    let runtime = runtime()?;
    let (settings, _) = args.reach.settings(output)?;
    let mut target = runtime.block_on(Target::connect(settings, prefix, output))?;
    for plugin in sealer.plugins() {
        let source = runtime.block_on(plugins::new_source(plugin))?;
        sealer.give(&plugin.name, source);
    }

    let (mut report, mut plan, mut left_out) = (Report::default(), Plan::default(), 0);
    let is_kept = |key: &[u8], _: Option<ObjectPath<'_>>| !is_master_lease(prefix, key);
    let walked = walk(
        &args.file,
        &args.which,
        &mut opener,
        output,
        |_, _| true,
        |met| {
            let key = met.item.pair.key;
            if is_master_lease(prefix, key) {
                left_out += 1;
                return Ok(());
            }
            report.add(&met);
            if met.opened.is_ok() {
                let stored = sealer.writes(prefix, key).map_or("plaintext".to_owned(), |key| key.to_string());
                plan.objects += 1;
                plan.without_lease += u64::from(met.item.pair.lease != 0);
                *plan.groups.entry((Resource::of(met.path), stored)).or_default() += 1;
            }
            Ok(())
        },
    )?;
    super::tell_elsewhere(walked.elsewhere, prefix, output);
    let is_refused = report.closed() > 0 && !args.without_closed || plan.objects == 0;
    let outcome = match () {
        () if is_refused => Outcome::Refused,
        () if args.dry_run => Outcome::DryRun,
        () => Outcome::Restored,
    };
    if outcome == Outcome::Restored {
        let which = args.which.as_of(walked.revision);
        let mut objects = 0;
        walk(&args.file, &which, &mut opener, output, is_kept, |met| {
            let Ok(opened) = met.opened else { return Ok(()) };
            objects += 1;
            let key = met.item.pair.key;
            let value = sealer.seal(prefix, key, &opened.object).map_err(|error| target.broken(&error))?;
            runtime.block_on(target.put(key, value))
        })?;
        runtime.block_on(target.finish())?;
        if objects != plan.objects {
            let file = args.file.display();
            let text =
                format_args!("{file} had {} objects that open, and now {objects}: stop k3s", plan.objects);
            return Err(target.broken(&text));
        }
    }
    let exit = match (outcome, report.closed()) {
        (Outcome::Refused, _) if plan.objects == 0 && report.objects() == 0 => Exit::Unknown,
        (Outcome::Refused, _) => Exit::No,
        (_, 0) => Exit::Yes,
        _ => Exit::Partly,
    };
    let calls = opener.into_unwrapper().finish();
    let answer = Answer {
        recovery: report.answer(args.file.display().to_string(), &walked, calls, None),
        endpoint: target.endpoint().to_owned(),
        outcome,
        plan: plan
            .groups
            .into_iter()
            .map(|((resource, stored), objects)| Planned { resource, stored, objects })
            .collect(),
        without_lease: plan.without_lease,
        left_out,
        written: target.written(),
    };
    output.sections(&answer, &answer.sections())?;
    Ok(exit)
}

fn sealer(config: Option<&EncryptionConfiguration>) -> Result<Sealer<'_>, SealError> {
    config.map_or(Ok(Sealer::plain()), Sealer::new)
}

/// Addresses of API servers, each under a lease of seconds: without one they would be taken for alive for ever.
fn is_master_lease(prefix: &str, key: &[u8]) -> bool {
    key.strip_prefix(prefix.as_bytes()).is_some_and(|rest| rest.starts_with(b"/masterleases/"))
}

impl Answer {
    fn sections(&self) -> Vec<Section> {
        let mut sections = self.recovery.sections();
        let title = match self.outcome {
            Outcome::DryRun => format!("WOULD BE RESTORED to {}, which is empty", self.endpoint),
            Outcome::Refused => {
                "NOTHING IS WRITTEN: give the missing keys, or --without-closed to leave out what does not open".to_owned()
            }
            Outcome::Restored => format!("RESTORED  {} keys to {}", self.written, self.endpoint),
        };
        let mut section = Section::new(title).head(["RESOURCE", "STORED", "OBJECTS"]);
        for Planned { resource, stored, objects } in &self.plan {
            section.row([resource.to_string(), stored.clone(), objects.to_string()]);
        }
        sections.push(section);
        if self.without_lease > 0 {
            sections.push(Section::new(format!(
                "LEASES  {} objects, as events, would have gone by themselves some time; they stay until they are deleted",
                self.without_lease
            )));
        }
        if self.left_out > 0 {
            sections.push(Section::new(format!(
                "LEFT OUT  {} entries of API servers that are gone",
                self.left_out
            )));
        }
        sections
    }
}
