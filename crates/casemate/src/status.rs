//! `casemate status`: how a cluster is encrypted, by what, how far it is, and what holds it up.
//!
//! * `answer`: what is told; `docs/reference/status.schema.json` is the schema of the JSON
//! * `page`: the same for people, 80 columns wide
//!
//! What is seen and decided stands in [`crate::cluster`] and in `casemate-rotation`.
mod answer;
mod page;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use crate::cluster::look::Places;
use crate::cluster::sight::Sight;
use crate::output::{Exit, Failure, Output, printable, reader_is_gone, to_json, write_stdout};
use answer::{Answer, Pace};

pub(crate) const ABOUT: &str = "How is the cluster encrypted, by which key, and how far is it on its way there?\n\n\
    Reads of each API server which EncryptionConfiguration it has loaded and which key id its plugin gives, of the files what \
    they say, and of etcd, where that can be reached, how each object is stored. From these it decides what the next step would \
    be, as a rotation does, and names whatever holds it up. An API server that must be there and can't be reached holds it up: \
    those are the ones that are named, else those that keep an identity Lease, else the endpoints of the Service kubernetes.\n\n\
    It changes nothing, and shows no value and no key: of a key that stands in a file, a fingerprint.\n\n\
    Needs the rights to get /metrics, and to list leases in kube-system and endpointslices in default.";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  everything is as it should be, and a census of etcd says so
  1  something is left to do, or is under way
  2  usage: the command line, or a file named on it, is wrong
  3  can't tell: something could not be seen, and the rest gives no reason for 1";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    places: Places,

    /// Look again and again, until it is interrupted
    #[arg(long)]
    watch: bool,

    /// How long to wait between two looks: each reads all of etcd, where that is given
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "watch", value_parser = crate::kms::timeout)]
    every: Duration,

    /// For how long all plugins must have given a key id before it counts
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::cluster::sight::stable_for)]
    key_id_stable_for: Duration,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    runtime.block_on(async {
        let mut pace = Pace::default();
        let begun = Instant::now();
        loop {
            let looked = args.places.look(output).await;
            let answer = match looked {
                Ok(looked) => Answer::of(&Sight::of(looked, args.key_id_stable_for)),
                // Whoever watches wants to see it come back.
                Err(failure) if args.watch => {
                    output.note(failure.text());
                    tokio::time::sleep(args.every).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let rate = pace.add(&answer.progress(), begun.elapsed());
            let answer = answer.with_pace(rate);
            show(&answer, args.watch, output)?;
            if !args.watch || reader_is_gone() {
                return Ok(answer.exit());
            }
            tokio::time::sleep(args.every).await;
        }
    })
}

fn show(answer: &Answer, watch: bool, output: &Output) -> Result<(), Failure> {
    if output.is_quiet() {
        return Ok(());
    }
    let text = match output.is_json() {
        true => to_json(answer)?,
        false => printable(&page::page(answer)),
    };
    // On a terminal each look takes the place of the last one.
    let clear = if watch && !output.is_json() && io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let end = if watch && clear.is_empty() && !output.is_json() { "\n" } else { "" };
    write_stdout(format!("{clear}{text}{end}").as_bytes())
}

#[cfg(test)]
mod tests;
