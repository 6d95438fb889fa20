//! `casemate doctor`: what is wrong on a plugin host, why, and what to do. It changes nothing.
mod facts;
mod findings;
mod gather;
mod outage;

use std::io::ErrorKind;
use std::path::Path;

use casemate_kms::admin::status::Document;
use casemate_kms::config::Source;
use serde::Serialize;

use self::facts::Facts;
use self::findings::{Finding, KINDS, Kind, Severity, findings};
use crate::host::HostArgs;
use crate::kms::socket::Socket;
use crate::output::{Exit, Failure, Output};

pub(crate) const ABOUT: &str = "\
Say what is wrong on a plugin host, why, and what to do.

Looks at the configuration, at permissions in both directions, at clock, limits, socket, state directory, sealed cache and \
recovery recipients, and asks the running plugin and each root key directly: which version writes, and whether what it wraps \
opens again, under its own name only. Changes nothing; a root key wraps and opens a payload that is thrown away, and a signer \
signs what is no record. A root key whose secret id opens once is left to the plugin, and so is one whose login by AppRole the plugin reports as refused: \
OpenBao and Vault lock a role after some. Run it as root, or as the user of the \
plugin. It says nothing if all is well.";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found
  2  the command line is wrong
  3  can't tell: the configuration can't be read by this user
  4  nothing was found, and not all could be looked at: `notes` says what";

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

    /// Say what is well and what was looked at, too, and what an outage would do now
    #[arg(long)]
    verbose: bool,
}

#[derive(Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// What was not looked at, and why.
    notes: Vec<Note>,
    /// What an outage of the root keys would do now.
    outages: Vec<outage::Outage>,
    /// For people who want to know: of each kind that was not found, what was looked at.
    #[serde(skip)]
    well: Vec<(&'static str, Option<String>)>,
}

/// What was not looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Note {
    provider: String,
    text: String,
    /// Whether the running plugin was asked instead.
    told_by_plugin: bool,
}

/// Runs it.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let opened = std::fs::File::open(&args.host.config);
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        let report = Report::absent(&args.host.config);
        output.answer(&report, report.rows(false))?;
        return Ok(report.exit());
    }
    if let Err(error) = opened
        && error.kind() == ErrorKind::PermissionDenied
    {
        let path = args.host.config.display();
        return Err(Failure::new(
            Exit::Unknown,
            &format_args!("{path}: {error}; run as root, or as the user of the plugin"),
        ));
    }
    let report = match (Source::read(&args.host.config), args.host.load()) {
        (Ok(source), Ok(config)) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.map_err(|error| {
                Failure::new(
                    Exit::Unknown,
                    &format_args!("can't start: {error}; raise the limit of open files"),
                )
            })?;
            // From this thread, which lives as long as the process.
            let services = args.host.services(&config);
            Report::of(&runtime.block_on(gather::facts(&args, &source, &config, services)))
        }
        (_, Err(why)) => Report::unconfigured(why.text()),
        (Err(why), _) => Report::unconfigured(&why.to_string()),
    };
    output.answer(&report, report.rows(args.verbose))?;
    Ok(report.exit())
}

/// Of each root key that was not asked.
fn notes(facts: &Facts, document: Option<&Document>) -> Vec<Note> {
    let mut notes = Vec::new();
    for provider in &facts.providers {
        let status = document.and_then(|all| all.providers.iter().find(|one| one.name == provider.name));
        for key in provider.keys.iter().filter(|key| key.observed.is_none()) {
            let known = status.and_then(|status| status.root_keys.iter().find(|one| one.name == key.name));
            let instead = match known {
                Some(known) => format!("the running plugin says that it is {}", known.state),
                None => "nothing is known of it, since the plugin has no admin socket that answers".into(),
            };
            let because = if key.opens_once {
                "its wrapped secret id opens once, and the plugin needs it"
            } else {
                "the login of the plugin is refused, and each further one that is brings the role nearer to being locked, on all nodes"
            };
            notes.push(Note {
                provider: provider.name.clone(),
                text: format!("root key {} was not asked: {because}; {instead}", key.name),
                told_by_plugin: known.is_some(),
            });
        }
    }
    notes
}

impl Report {
    fn of(facts: &Facts) -> Self {
        let document = facts.status.as_ref().and_then(|status| status.as_ref().ok());
        let outages = facts.providers.iter().map(|provider| outage::Outage::of(provider, facts));
        let findings = findings(facts);
        let is_found = |kind: &&Kind| findings.iter().any(|finding| finding.id == kind.id);
        let well = KINDS.iter().filter(|kind| !is_found(kind)).map(|kind| (kind.id, (kind.seen)(facts)));
        let well = well.collect();
        Self { findings, notes: notes(facts, document), outages: outages.collect(), well }
    }

    fn absent(path: &Path) -> Self {
        let why = format!("{}: there is no such file", path.display());
        let remedy = "make it, or name it with --config";
        Self { findings: vec![Finding::new("configuration", why, remedy)], ..Self::default() }
    }

    fn unconfigured(why: &str) -> Self {
        let remedy = "correct it as it says; `casemate-kms schema` prints what is accepted";
        Self { findings: vec![Finding::new("configuration", why, remedy)], ..Self::default() }
    }

    fn exit(&self) -> Exit {
        match () {
            () if !self.findings.is_empty() => Exit::No,
            () if self.notes.iter().any(|note| !note.told_by_plugin) => Exit::Partly,
            () => Exit::Yes,
        }
    }

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
        let notes = self.notes.iter().map(|note| (&note.provider, &note.text));
        rows.extend(notes.map(|(provider, text)| ["note".into(), format!("provider {provider}: {text}")]));
        if verbose {
            rows.extend(self.well.iter().map(|(id, seen)| match seen {
                Some(seen) => [format!("ok  {id}"), seen.clone()],
                None => {
                    [format!("-   {id}"), "nothing of the kind is there, or can be seen from here".into()]
                }
            }));
        }
        // Who is told of one wants to know how long there is.
        let outages = self.outages.iter().filter(|outage| verbose || outage.has_begun);
        rows.extend(outages.flat_map(outage::Outage::rows));
        rows
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]

    use super::findings::healthy;
    use super::*;

    /// Exit code, and what is printed for people.
    fn told(facts: &Facts) -> (Exit, String) {
        let report = Report::of(facts);
        let rows: Vec<String> = report.rows(false).iter().map(|row| row.join(" ")).collect();
        (report.exit(), rows.join("\n"))
    }

    #[test]
    fn what_was_not_looked_at_is_a_note_and_unknown_only_if_the_plugin_is_silent_too() {
        let mut facts = healthy();
        assert_eq!(told(&facts), (Exit::Yes, String::new()));
        (facts.providers[0].keys[0].observed, facts.providers[0].keys[0].opens_once) = (None, true);
        let (exit, text) = told(&facts);
        assert_eq!(exit, Exit::Partly);
        assert!(text.contains("root key main was not asked") && text.contains("no admin socket"), "{text}");

        let mut document = serde_json::to_value(facts.status.unwrap().unwrap()).unwrap();
        document["providers"][0]["root_keys"] = serde_json::json!([{
            "name": "main", "use": "write", "prefix": "transit:a", "state": "ok", "version": null, "last_good": null,
            "failing_since": null, "last_error": null,
        }]);
        facts.status = Some(Ok(serde_json::from_value(document).unwrap()));
        let (exit, text) = told(&facts);
        assert!(
            exit == Exit::Yes && text.contains("the running plugin says that it is ok"),
            "{exit:?}: {text}"
        );
        // A refused login is not tried again from here.
        let key = &mut facts.providers[0].keys[0];
        (key.opens_once, key.running) = (false, Some(("credential".into(), "answers 403".into())));
        let (exit, text) = told(&facts);
        assert!(
            exit == Exit::No
                && text.contains("ERROR  key-credential")
                && text.contains("answers 403 (class credential)")
                && text.contains("was not asked: the login of the plugin is refused"),
            "{exit:?}: {text}"
        );
        // Something that was found outweighs it.
        facts.providers[0].recipients = Some(0);
        assert_eq!(told(&facts).0, Exit::No);
    }

    #[test]
    fn of_what_is_well_it_is_told_what_was_looked_at() {
        let rows = |facts: &Facts| Report::of(facts).rows(true);
        let facts = healthy();
        for (id, says) in [
            ("ok  configuration", "/etc/casemate-kms/config.yaml (SHA-256 00…)"),
            ("ok  configuration-differs", "the plugin has /c.yaml, since 2027-01-15T08:00:00Z"),
            ("ok  secret-open", "/etc/casemate-kms/root.key 0600"),
            ("ok  file-unreadable", "by user 0: /etc/casemate-kms/config.yaml, "),
            ("ok  not-served", "Status at unix:///run/kms.sock names key id prod:22"),
            ("ok  limit-files", "1024 allowed, 224 needed"),
            ("ok  key-unreachable", "main shows file:aa/2/00"),
            ("ok  key-refused", "main wraps, and opens what it wrapped"),
            ("ok  ledger-damaged", "last entry of 2027-01-15T07:59:53Z"),
            ("ok  no-recovery", "2 recipients"),
            ("ok  sealed-cache", "opens, with 3 local KEKs"),
        ] {
            let row = rows(&facts).into_iter().find(|[name, _]| name == id);
            let [_, text] = row.unwrap_or_else(|| panic!("no {id}"));
            assert!(text.starts_with(says), "{id}: {text}");
        }
        // What is not there was not looked at, and what was found is not well.
        let mut bare = healthy();
        (bare.status, bare.limits, bare.providers[0].sealed) = (None, None, None);
        bare.files[2].found = Err("No such file".into());
        let told: Vec<String> = rows(&bare).into_iter().map(|[name, _]| name).collect();
        for name in [
            "-   admin-silent",
            "-   limit-files",
            "-   sealed-cache",
            "-   secret-open",
            "ERROR  file-missing",
        ] {
            assert!(told.iter().any(|told| told == name), "{name}: {told:?}");
        }
        assert!(!told.iter().any(|told| told == "ok  file-missing"));
    }

    #[test]
    fn who_is_told_of_an_outage_is_told_what_it_does() {
        let mut facts = healthy();
        facts.providers[0].sealed = None;
        facts.providers[0].keys[0].running = Some(("unreachable".into(), "no answer".into()));
        let (exit, text) = told(&facts);
        assert!(
            exit == Exit::No
                && text.contains("under way, of root key main")
                && text.contains("leave it running"),
            "{text}"
        );
    }
}
