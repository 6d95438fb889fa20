//! `casemate key plan-rotation`: what the next look at the root keys would come to, and why. Nothing is changed.
use std::path::Path;
use std::time::Duration;

use casemate_keys::{Epoch, Root};
use casemate_keyservice::selection::Candidate;
use casemate_keyservice::{Class, Failure as NoAnswer, Pace, RootKey};
use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms::config::{Config, Place, ProviderConfig, SignerConfig, VersionSelection};
use casemate_kms::key_services::{KeyServices, NotHere};
use casemate_kms::provider::{Store, StoreError};
use casemate_recipients::Recipient;
use serde::Serialize;

use self::decision::{Active, Facts, decide};
pub(crate) use self::decision::{Seen, Would};
use crate::host::{HostArgs, bounded, class_name, runtime};
use crate::kms::admin;
use crate::output::{Exit, Failure, Output};

mod decision;

pub(super) const ABOUT: &str = "\
Say what the next look at the root keys would come to, and why.

Asks each root key of the configuration as the plugin does, shows all its versions, and says which key id would be \
proposed, by when it would write, what of it would be refused, and what to do next. Nothing is changed: neither here nor in \
a key service. What other nodes can read is not seen from here.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  nothing would change
  1  it would change, or what is seen would be refused: `would` says which
  2  the command line or the configuration is wrong
  3  can't tell: a root key can't be asked
  4  of some providers it can't be told, and of the others nothing would change";

/// How long the admin socket gets.
const ADMIN: Duration = Duration::from_secs(3);

/// `casemate key plan-rotation`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    host: HostArgs,

    /// The one provider that is looked at; all if left out
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
}

#[derive(Serialize)]
struct Plan {
    provider: String,
    /// What wrote last on this node; null if nothing ever did.
    active: Option<Active>,
    /// Why the running plugin is not asked; null if it is.
    plugin_not_asked: Option<String>,
    root_keys: Vec<KeyPlan>,
    would: Would,
    next: Vec<String>,
}

#[derive(Serialize)]
struct KeyPlan {
    name: String,
    /// `write` or `read`.
    r#use: &'static str,
    /// Which version is to write: `latest`, `label` or a number.
    selection: String,
    /// The version that the key service shows as the one that writes.
    shows: Option<String>,
    versions: Vec<Candidate>,
    error: Option<KeyError>,
}

#[derive(Serialize)]
struct KeyError {
    class: &'static str,
    message: String,
}

/// Runs it.
pub(super) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let config = args.host.load()?;
    let chosen: Vec<&ProviderConfig> = config
        .providers
        .iter()
        .filter(|one| args.provider.as_ref().is_none_or(|name| one.name.as_str() == name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = config.providers.iter().map(|one| one.name.as_str()).collect();
        return Err(Failure::new(
            Exit::Usage,
            &format_args!(
                "--provider {}: there is no such provider; there are {}",
                args.provider.unwrap_or_default(),
                names.join(", ")
            ),
        ));
    }
    let services = args.host.services(&config).map_err(|why| Failure::new(Exit::Unknown, &why))?;
    let runtime = runtime()?;
    let plans = runtime.block_on(async {
        let running = running(&config).await;
        let refused = running.as_ref().ok().and_then(|document| refused(document, &args.host.config));
        let planned = async {
            let mut plans = Vec::new();
            for provider in chosen {
                plans.push(plan(&config, provider, &services, &running, refused).await?);
            }
            Ok::<_, Failure>(plans)
        };
        let planned = planned.await;
        services.log_out().await;
        planned
    })?;
    let rows = plans.iter().flat_map(Plan::rows).collect::<Vec<_>>();
    output.answer(&plans, rows)?;
    Ok(exit(&plans))
}

/// What a running plugin says of itself, if it can be asked.
async fn running(config: &Config) -> Result<Document, String> {
    let Some(of_config) = &config.admin else {
        return Err("the configuration has no admin socket".into());
    };
    let socket = of_config.endpoint.to_string().parse().map_err(|error| format!("{error}"))?;
    admin::document(&socket, ADMIN).await.map_err(|failure| failure.text().to_owned())
}

/// Why a plugin that runs by this file goes on with what stood in it before.
fn refused<'a>(running: &'a Document, file: &Path) -> Option<&'a str> {
    let held = running.configuration.as_ref()?;
    let same = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    held.refused.as_deref().filter(|_| same(Path::new(&held.path)) == same(file))
}

async fn plan(
    config: &Config,
    provider: &ProviderConfig,
    services: &KeyServices,
    running: &Result<Document, String>,
    refused: Option<&str>,
) -> Result<Plan, Failure> {
    let (state, name) = (&*config.state_directory, provider.name.as_str());
    let not_here = |error: NotHere| Failure::new(Exit::Unknown, &error);
    let write = provider.write_keys(services, state).map_err(not_here)?;
    let read = provider.read_only_keys(services, state).map_err(not_here)?;

    let mut root_keys = Vec::new();
    let mut seen = Vec::new();
    for (key, of_config) in write.iter().zip(&provider.root_keys) {
        let (observed, versions) = look(&**key, of_config.place(), config).await;
        root_keys.push(KeyPlan::of(
            of_config.name.as_str(),
            "write",
            selection(of_config.version.0),
            &observed,
            versions,
        ));
        seen.push(Seen { name: of_config.name.to_string(), prefix: key.prefix().clone(), shows: observed });
    }
    for (key, of_config) in read.iter().zip(&provider.read_keys) {
        let (observed, versions) = look(&**key, of_config.place(), config).await;
        root_keys.push(KeyPlan::of(of_config.name.as_str(), "read", "-".into(), &observed, versions));
    }
    let of_name = |one: &&ProviderStatus| one.name == name;
    let status = running.as_ref().ok().and_then(|document| document.providers.iter().find(of_name));
    let is_local = write.iter().all(|key| key.pace() == Pace::Local);
    let (active, mut would, mut next) = foretell_from(config, provider, seen, is_local, status)?;
    if let Some(why) = refused {
        (would, next) = would.unless_refused(next, why);
    }
    let plugin_not_asked = match (running, status) {
        (Err(why), _) => Some(why.clone()),
        (Ok(_), None) => Some("it has no provider of that name".into()),
        (Ok(_), Some(_)) => None,
    };
    Ok(Plan { provider: name.to_owned(), active, plugin_not_asked, root_keys, would, next })
}

/// What the next looks would come to, if the root keys that write show this; and what to do next, in order.
pub(crate) fn foretell(
    config: &Config,
    provider: &ProviderConfig,
    seen: Vec<Seen>,
    is_local: bool,
    status: Option<&ProviderStatus>,
) -> Result<(Would, Vec<String>), Failure> {
    foretell_from(config, provider, seen, is_local, status).map(|(_, would, next)| (would, next))
}

fn foretell_from(
    config: &Config,
    provider: &ProviderConfig,
    seen: Vec<Seen>,
    is_local: bool,
    status: Option<&ProviderStatus>,
) -> Result<(Option<Active>, Would, Vec<String>), Failure> {
    let (state, name) = (&*config.state_directory, provider.name.as_str());
    let unreadable = |error: StoreError| Failure::new(Exit::Unknown, &error);
    let (ledger, _) = Store::peek_ledger(state, name).map_err(unreadable)?;
    let record = Store::peek_record(state, name).map_err(unreadable)?;
    let record = record.and_then(|stored| stored.record()).map(|record| record.core().policy.clone());
    let active = Active::of(status, &ledger, record.as_ref());
    let facts = Facts {
        cluster: config.cluster_id.0.clone(),
        epoch: Epoch(provider.epoch),
        recipients: provider.recipients().iter().map(Recipient::fingerprint).collect(),
        signer: provider.signer.as_ref().map(SignerConfig::lineage),
        read_policy: provider.read_policy(&config.cluster_id.0),
        is_local,
        seen,
        ledger,
        record,
        active: active.clone(),
        candidate: status.and_then(|status| status.candidate.as_ref()).map(|new| new.key_id.clone()),
        socket: provider.endpoint.to_string(),
        admin: config.admin.as_ref().map(|admin| admin.endpoint.to_string()),
    };
    let (would, next) = decide(&facts);
    Ok((active, would, next))
}

async fn look(
    key: &dyn RootKey,
    place: Place<'_>,
    config: &Config,
) -> (Result<Root, NoAnswer>, Vec<Candidate>) {
    if place.opens_once() {
        let what = "not asked from here: its wrapped secret id opens once, and the plugin needs it";
        let remedy = match &config.admin {
            Some(admin) => {
                format!("`casemate kms status --admin {}` tells what the plugin sees", admin.endpoint)
            }
            None => "`casemate kms status --admin …` would tell what the plugin sees: for that the configuration needs \
                     `admin: {endpoint: …}`"
                .into(),
        };
        return (Err(NoAnswer::new(Class::Unreachable, what, remedy)), Vec::new());
    }
    let observed = bounded(key.observe()).await;
    // Whoever can't be asked need not be waited for twice.
    let asks = observed.as_ref().err().is_none_or(|failure| !failure.class.could_not_be_asked());
    let versions = if asks { bounded(key.versions()).await.unwrap_or_default() } else { Vec::new() };
    (observed, versions)
}

fn selection(version: VersionSelection) -> String {
    match version {
        VersionSelection::Latest => "latest".into(),
        VersionSelection::Label => "label".into(),
        VersionSelection::Pinned(number) => number.to_string(),
    }
}

/// What would change outweighs what can't be told.
fn exit(plans: &[Plan]) -> Exit {
    let all = |wanted: Exit| plans.iter().all(|plan| plan.would.exit() == wanted);
    let any = |wanted: Exit| plans.iter().any(|plan| plan.would.exit() == wanted);
    match () {
        () if any(Exit::No) => Exit::No,
        () if all(Exit::Yes) => Exit::Yes,
        () if all(Exit::Unknown) => Exit::Unknown,
        () => Exit::Partly,
    }
}

impl KeyPlan {
    fn of(
        name: &str,
        r#use: &'static str,
        selection: String,
        observed: &Result<Root, NoAnswer>,
        versions: Vec<Candidate>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            r#use,
            selection,
            shows: observed.as_ref().ok().map(|root| root.lineage.to_string()),
            versions,
            error: observed
                .as_ref()
                .err()
                .map(|failure| KeyError { class: class_name(failure.class), message: failure.to_string() }),
        }
    }

    fn rows(&self) -> Vec<[String; 2]> {
        let what_for = match (self.r#use, &self.shows) {
            ("write", Some(lineage)) => format!("{} ({}): shows {lineage}", self.name, self.selection),
            ("write", None) => format!("{} ({}): shows no version to write with", self.name, self.selection),
            (_, Some(_)) => format!("{} (reads only): answers", self.name),
            (_, None) => format!("{} (reads only): does not answer as it should", self.name),
        };
        let mut rows = vec![["  root key".into(), what_for]];
        rows.extend(self.versions.iter().map(|version| ["    version".into(), version_text(version)]));
        rows.extend(
            self.error
                .iter()
                .map(|error| ["    error".into(), format!("{} ({})", error.message, error.class)]),
        );
        rows
    }
}

fn version_text(candidate: &Candidate) -> String {
    let mut text = candidate.version.clone();
    if candidate.current {
        text += ", current";
    }
    for label in &candidate.labels {
        text += &format!(", label {label:?}");
    }
    if let Some(reason) = &candidate.disabled {
        text += &format!(", can't write: {reason}");
    }
    text
}

impl Plan {
    fn rows(&self) -> Vec<[String; 2]> {
        let mut rows = vec![["provider".into(), self.provider.clone()]];
        rows.push(match &self.active {
            Some(active) => {
                ["  writes now".into(), format!("key id {} ({})", active.key_id, active.known_from)]
            }
            None => ["  writes now".into(), "nothing has written on this node yet".into()],
        });
        let roots = self.active.iter().flat_map(|active| &active.roots);
        rows.extend(roots.map(|root| ["    under".into(), root.clone()]));
        rows.extend(self.plugin_not_asked.iter().map(|why| ["  plugin".into(), format!("not asked: {why}")]));
        rows.extend(self.root_keys.iter().flat_map(KeyPlan::rows));
        rows.push(["  would".into(), self.would.text()]);
        rows.extend(self.would.because().iter().map(|why| ["    because".into(), why.clone()]));
        rows.extend(
            self.next
                .iter()
                .enumerate()
                .map(|(place, step)| ["  next".into(), format!("{}. {step}", place + 1)]),
        );
        rows
    }
}
