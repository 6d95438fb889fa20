//! What is asked of surveys, whatever they were made of.
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use casemate_census::answers::{self, Given, Source};
use casemate_census::policy::Policy;
use casemate_census::survey::Key;
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags, file_hash};
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::answer::{Answer, Configuration, Failed, FileAnswer};
use super::report::{Made, Reports};
use super::scan::Scanned;
use crate::output::{Exit, Failure, Output};

/// Flags that ask.
#[derive(clap::Args)]
pub(super) struct Questions {
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

    #[command(flatten)]
    reports: Reports,
}

/// The same, with the files that they name.
pub(super) struct Asked<'a> {
    questions: &'a Questions,
    config: Option<(Configuration, EncryptionConfiguration)>,
    policy: Option<Policy>,
}

impl Questions {
    /// Reads the files that they name: before anything that takes long.
    pub(super) fn read(&self) -> Result<Asked<'_>, Failure> {
        self.reports.check()?;
        let config = self.encryption_config.as_deref().map(read_configuration).transpose()?;
        let policy = self.policy.as_deref().map(read_policy).transpose()?;
        Ok(Asked { questions: self, config, policy })
    }
}

impl Asked<'_> {
    /// Prints the answer, and writes the reports.
    pub(super) fn tell(
        &self,
        scanned: Vec<Scanned>,
        failed: Vec<Failed>,
        output: &Output,
    ) -> Result<Exit, Failure> {
        let answer = self.answer(scanned, failed);
        output.sections(&answer, &answer.sections())?;
        self.report(&answer, output)?;
        Ok(answer.exit())
    }

    /// Writes the reports of an answer.
    pub(super) fn report(&self, answer: &Answer, output: &Output) -> Result<(), Failure> {
        let made = Made::now(now(), self.questions.needs.as_ref());
        self.questions.reports.write(answer, &made, output)
    }

    /// What is to be told of what was read, and of what could not be.
    pub(super) fn answer(&self, scanned: Vec<Scanned>, failed: Vec<Failed>) -> Answer {
        let Questions { needs, may_go, have, .. } = self.questions;
        let sources: Vec<Source<'_>> =
            scanned.iter().map(|one| Source { name: &one.file, survey: &one.survey }).collect();
        let config = self.config.as_ref().map(|(_, config)| config);
        let needs_unclear = needs.as_ref().map(|key| answers::unclear(key, &sources)).unwrap_or_default();
        let needs = needs.as_ref().map(|key| answers::needs(key, &sources));
        let may_go = may_go.as_ref().map(|key| {
            let answer = answers::may_go(key, &sources, config);
            answer.with_doubts(failed.iter().map(|failed| format!("{}: could not be read", failed.file)))
        });
        let given = Given { config, keys: have };
        let files = scanned.into_iter().map(|one| FileAnswer {
            against: config.map(|config| answers::against(config, &one.survey)),
            closed: (!have.is_empty()).then(|| answers::closed(given, &one.survey)),
            policy: self.policy.as_ref().map(|policy| policy.judge(&one.survey, now())),
            ..one.into()
        });
        let encryption_config = self.config.as_ref().map(|(configuration, _)| configuration.clone());
        Answer { files: files.collect(), failed, encryption_config, needs, needs_unclear, may_go }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

/// With its name and hash.
pub(crate) fn read_configuration(path: &Path) -> Result<(Configuration, EncryptionConfiguration), Failure> {
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
pub(crate) fn read_small(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
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
