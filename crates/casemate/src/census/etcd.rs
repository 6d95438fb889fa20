//! `casemate census etcd`: a running etcd.
pub(crate) mod reach;
pub(super) mod watch;

use std::time::Duration;

use casemate_census::etcd::{Client, Error, Options, Scanner};
use casemate_census::survey::Survey;

use super::questions::Questions;
use super::scan::{Checksum, Progress, Scanned};
use crate::output::{Exit, Failure, Output};
use reach::Reach;

pub(super) const ABOUT: &str = "What does a running etcd hold, how is it encrypted, and which keys does it need?\n\n\
    Reads etcd over its own API at one revision, at a rate that leaves it time for its work, and can't write. Needs a \
    client certificate or a user who may read the keys below --prefix; what was overwritten and not compacted is seen \
    only by one who may read all keys. Prints names, counts, sizes and revisions, never a value.\n\n\
    With --watch it reads again and again, each time what changed since, and prints what became of it, with JSON one line \
    a pass. It ends with exit code 0 when nothing is left of what was asked for; without a question it goes on. Interrupted by \
    Ctrl-C, it ends with the exit code of the last pass, which is printed whole; with 3 if there was none.\n\n\
    KEY is written as for casemate census snapshot.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found that was asked for; with --may-go: yes
  1  something was found; with --may-go: no
  2  usage: the command line, or a file named on it, is wrong
  3  can't tell: etcd could not be read, or what was read leaves it open";

/// How often compaction may make the scan begin anew.
const PASSES: u32 = 8;
const MIB: f64 = (1 << 20) as f64;

#[derive(clap::Args)]
pub(super) struct EtcdArgs {
    #[command(flatten)]
    reach: Reach,

    /// Below which key kube-apiserver keeps its objects: its --etcd-prefix [default: what is detected, or /registry]
    #[arg(long, value_name = "KEY")]
    prefix: Option<String>,

    /// How much to read a second; 0 for as much as etcd gives
    #[arg(long, value_name = "MIB", default_value = "4", value_parser = rate)]
    rate: f64,

    /// Look again and again, that often if nothing else is said, until what is asked for is so
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "10s", value_parser = crate::kms::timeout, conflicts_with_all = ["html", "prometheus"])]
    watch: Option<Duration>,

    #[command(flatten)]
    questions: Questions,
}

pub(super) fn run(args: &EtcdArgs, output: &Output) -> Result<Exit, Failure> {
    let asked = args.questions.read()?;
    let (settings, detected) = args.reach.settings(output)?;
    let prefix = args.prefix.clone().or(detected).unwrap_or_else(|| "/registry".to_owned());
    // One takes pages in while the other looks at them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    runtime.block_on(async {
        let mut client = Client::new(settings).map_err(|error| Failure::new(Exit::Usage, &error))?;
        for failure in client.connect(&prefix).await.map_err(|error| unknown(&error))? {
            output.note(format_args!("{failure}; the other endpoints are asked"));
        }
        let rate = (args.rate > 0.0).then_some((args.rate * MIB) as u64);
        let options = Options { prefix, rate, passes: PASSES };
        let mut scanner = Scanner::new(client, options);
        if let Some(interval) = args.watch {
            return watch::follow(&mut scanner, &asked, interval, output).await;
        }
        let scanned = survey(&mut scanner, output).await?;
        asked.tell(vec![scanned], Vec::new(), output)
    })
}

async fn survey(scanner: &mut Scanner, output: &Output) -> Result<Scanned, Failure> {
    let file = scanner.client().endpoint().to_owned();
    let mut progress = Progress::new(output, file.clone(), "values", 0);
    let survey = scanner
        .survey(|at| progress.now_at(at.done, at.all, at.done))
        .await
        .map_err(|error| unknown(&error))?;
    Ok(Scanned { file, bytes: bytes(&survey), checksum: Checksum::Live, sha256: None, survey })
}

fn bytes(survey: &Survey) -> u64 {
    survey.groups.iter().map(|entry| entry.live.bytes + entry.past.bytes).sum()
}

fn unknown(error: &Error) -> Failure {
    Failure::new(Exit::Unknown, error)
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("write mebibytes a second, as in 4 or 0.5; 0 for no limit".to_owned()),
    }
}
