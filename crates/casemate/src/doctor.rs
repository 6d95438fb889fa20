//! `casemate doctor`: what is wrong on a plugin host, why, and what to do. It changes nothing.
mod facts;
mod findings;
mod gather;
mod outage;

use std::io::ErrorKind;

use serde::Serialize;

use self::findings::{Finding, KINDS, Severity, findings};
use crate::host::HostArgs;
use crate::kms::socket::Socket;
use crate::output::{Exit, Failure, Output};

pub(crate) const ABOUT: &str = "\
Say what is wrong on a plugin host, why, and what to do.

Looks at the configuration, at permissions in both directions, at clock, limits, socket, state directory, sealed cache and \
recovery recipients, and asks the running plugin and each root key directly: which version writes, and whether what it wraps \
opens again, under its own name only. Changes nothing; a root key wraps and opens a payload that is thrown away. Run it as \
root, or as the user of the plugin. It says nothing if all is well.";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found
  2  the command line is wrong
  3  can't tell: the configuration can't be read by this user";

/// `casemate doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    host: HostArgs,

    /// The admin socket, if it is not the one of the configuration
    #[arg(long, value_name = "URL")]
    admin: Option<Socket>,

    /// The KMS socket, if it is not the one of the configuration, which then has one provider
    #[arg(long, value_name = "URL")]
    socket: Option<Socket>,

    /// Say what is well, too, and what an outage would do now
    #[arg(long)]
    verbose: bool,
}

#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// What an outage of the root keys would do now.
    outages: Vec<outage::Outage>,
}

/// Runs it.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    if let Err(error) = std::fs::File::open(&args.host.config)
        && error.kind() == ErrorKind::PermissionDenied
    {
        let path = args.host.config.display();
        return Err(Failure::new(
            Exit::Unknown,
            &format_args!("{path}: {error}; run as root, or as the user of the plugin"),
        ));
    }
    let report = match args.host.load() {
        Err(why) => {
            let remedy = "correct it as it says; `casemate-kms schema` prints what is accepted";
            Report { findings: vec![Finding::new("configuration", why.text(), remedy)], outages: Vec::new() }
        }
        Ok(config) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.map_err(|error| {
                Failure::new(
                    Exit::Unknown,
                    &format_args!("can't start: {error}; raise the limit of open files"),
                )
            })?;
            // From this thread, which lives as long as the process.
            let services = args.host.services(&config);
            let facts = runtime.block_on(gather::facts(&args, &config, services));
            Report {
                findings: findings(&facts),
                outages: facts.providers.iter().map(outage::Outage::of).collect(),
            }
        }
    };
    output.answer(&report, report.rows(args.verbose))?;
    Ok(if report.findings.is_empty() { Exit::Yes } else { Exit::No })
}

impl Report {
    fn rows(&self, verbose: bool) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Error => "ERROR",
                Severity::Warning => "WARNING",
            };
            let of =
                finding.provider.as_ref().map_or(String::new(), |provider| format!("provider {provider}: "));
            rows.push([format!("{severity}  {}", finding.id), format!("{of}{}", finding.evidence)]);
            rows.push(["  do".into(), finding.remedy.clone()]);
            rows.push(["  see".into(), finding.docs.join(", ")]);
        }
        if verbose {
            let well = KINDS.iter().filter(|kind| self.findings.iter().all(|finding| finding.id != kind.id));
            rows.extend(well.map(|kind| [format!("ok  {}", kind.id), "not found".into()]));
            rows.extend(
                self.outages.iter().map(|outage| {
                    ["outage".into(), format!("provider {}: {}", outage.provider, outage.text())]
                }),
            );
        }
        rows
    }
}
