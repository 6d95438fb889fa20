//! `casemate census api`: what API servers show of encryption to those who can't reach etcd. Bounds, never a proof.
//!
//! * `reach`: kubectl's flags, and GET requests
//! * `metrics`: what `/metrics` says
//! * `sample`: objects read one by one, while the counters are watched
//! * `bounds`: what the counters tell of those
//! * `limit`: what a statement leaves open
//! * `judge`: what speaks against it, and what stays open
//! * `answer`: what is told
pub(super) mod answer;
mod bounds;
mod judge;
mod limit;
mod metrics;
pub(crate) mod reach;
mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;

use casemate_encryption_config::{EncryptionConfiguration, GroupResource, Provider, ResourcePattern};

use super::questions::read_configuration;
use crate::output::{Exit, Failure, Output};
use answer::{Answer, Class, KeyIdClass, ResourceAnswer, ServerAnswer};
use bounds::Bounds;
use judge::Given;
use limit::{Explained, Limit};
use metrics::Metrics;
use reach::{AskError, Reach, Server};
use sample::{Sample, sample};

pub(super) const ABOUT: &str = "What do API servers show of how their objects are encrypted?\n\n\
    For those who can't reach etcd, as with managed control planes. Reads /metrics, and some objects one by one, and tells from \
    the counters of what the server took from etcd how many of them are stored how: at least, and at most, whatever other \
    clients did meanwhile. That is an estimate: it says nothing of objects that were not read, of old revisions, of backups, \
    nor of API servers that were not asked. Only a look into etcd proves: see casemate census snapshot and etcd.\n\n\
    Needs the rights to get /metrics, and to get and list each resource. Of an object it asks for a row without its contents. \
    It changes nothing, and prints no value.\n\n\
    Without --encryption-config, objects in plaintext are a finding; with it, objects that are stored in another way than a write \
    would store them.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  nothing that was seen speaks against it
  1  something was found
  2  usage: the command line, or a file named on it, is wrong
  3  can't tell: nothing was seen that would tell
  4  partly: some of it stays open, and the rest gives no reason for 1";

#[derive(clap::Args)]
pub(super) struct ApiArgs {
    #[command(flatten)]
    reach: Reach,

    /// Whose objects to read, as in secrets or deployments.apps; may be given several times. If left out, those that
    /// --encryption-config names, or secrets
    #[arg(long, value_name = "RESOURCE")]
    resource: Vec<String>,

    /// How many objects of each resource to read, of the first API server that answers; with 0, only /metrics is looked at
    #[arg(long, value_name = "N", default_value = "100")]
    sample: usize,

    /// Do they run with this EncryptionConfiguration, and are objects stored as it says? Its keys are not used
    #[arg(long, value_name = "FILE")]
    encryption_config: Option<PathBuf>,

    /// The key id that KMS v2 plugins should give now; may be given several times, and as PROVIDER=ID for one of them
    #[arg(long, value_name = "ID")]
    key_id: Vec<String>,
}

pub(super) fn run(args: &ApiArgs, output: &Output) -> Result<Exit, Failure> {
    let config = args.encryption_config.as_deref().map(read_configuration).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    let resources = args.resources(config.as_ref().map(|(_, config)| config))?;
    let (mut servers, resources) = runtime.block_on(async {
        let servers = args.reach.servers().await?;
        Ok::<_, Failure>(
            look(&servers, &resources, args.sample, config.as_ref().map(|(_, config)| config)).await,
        )
    })?;
    let configuration = config.as_ref().map(|(configuration, _)| configuration.hash.as_str());
    let given = Given { configuration, key_ids: &args.key_id };
    let judged = judge::judge(&mut servers, &resources, &given);
    let verdict = judge::verdict(&judged, &servers, &resources, args.sample > 0);
    // Who told nothing stated nothing.
    let told = servers.iter().any(|server| server.instance.is_some());
    let of_servers = [&judge::OF_CONFIGURATIONS[..], &judge::OF_KEY_IDS[..]].concat();
    let mut limits = if told { of_servers } else { Vec::new() };
    limits.extend(resources.iter().flat_map(|resource| &resource.limits));
    if args.leaves_wildcards(config.as_ref().map(|(_, config)| config)) {
        limits.push(Limit::Wildcards);
    }
    limits.sort();
    limits.dedup();
    let explained = |limit: Limit| Explained { limit, says_nothing_of: limit.whole() };
    let answer = Answer {
        verdict,
        servers,
        resources,
        encryption_config: config.map(|(configuration, _)| configuration),
        findings: judged.findings,
        open: judged.open,
        limits: limits.into_iter().map(explained).collect(),
    };
    output.sections(&answer, &answer.sections())?;
    Ok(answer.exit())
}

/// The key ids that one API server writes with, by provider as SHA-256; or why it does not tell.
pub(crate) struct Writes {
    pub(crate) server: String,
    pub(crate) key_ids: Result<Vec<(String, String)>, String>,
    /// SHA-256 of the EncryptionConfigurations that it says to run with.
    pub(crate) configurations: Vec<String>,
}

/// What one API server tells of itself and of what it runs with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// SHA-256 of its identity.
    pub(crate) identity: Option<String>,
    /// When it started, in seconds since 1970.
    pub(crate) started: Option<f64>,
    /// When it last took up another EncryptionConfiguration without a restart, in seconds since 1970.
    pub(crate) reloaded: Option<f64>,
    /// SHA-256 of the EncryptionConfigurations that it says to run with.
    pub(crate) configurations: Vec<String>,
    /// By provider, SHA-256 of a key id, and when the plugin last gave it.
    pub(crate) key_ids: Vec<(String, String, Option<f64>)>,
}

/// What one API server tells.
pub(crate) async fn told(server: &Server) -> Result<Told, AskError> {
    let metrics = sample::metrics(server).await?;
    let instance = metrics.instance();
    let key_ids = metrics.key_ids().into_iter();
    Ok(Told {
        identity: instance.id_hash,
        started: instance.started,
        reloaded: metrics.reloaded(),
        configurations: metrics.configurations(),
        key_ids: key_ids.map(|used| (used.provider, used.hash, used.last_status)).collect(),
    })
}

/// What each API server writes with now.
pub(crate) async fn writes(reach: &Reach) -> Result<Vec<Writes>, Failure> {
    let mut told = Vec::new();
    for server in reach.servers().await? {
        let answer = server_answer(&server, sample::metrics(&server).await);
        let key_ids = match &answer.error {
            Some(error) => Err(error.clone()),
            None => Ok(judge::current_key_ids(&answer)),
        };
        let (server, configurations) = (answer.server, answer.configurations);
        told.push(Writes { server, key_ids, configurations });
    }
    Ok(told)
}

impl ApiArgs {
    fn resources(&self, config: Option<&EncryptionConfiguration>) -> Result<Vec<GroupResource>, Failure> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '*', '?', '%', ' ']);
        if let Some(wrong) = self.resource.iter().find(|name| !is_name(name)) {
            let what = format_args!("{wrong:?} is no resource: write it as in secrets or deployments.apps");
            return Err(Failure::new(Exit::Usage, &what));
        }
        if !self.resource.is_empty() {
            return Ok(self.resource.iter().map(|name| GroupResource::parse(name)).collect());
        }
        let secrets = GroupResource::parse("secrets");
        let Some(config) = config else { return Ok(vec![secrets]) };
        let mut named = Vec::new();
        for pattern in config.entries.iter().flat_map(|entry| &entry.resources) {
            match pattern {
                ResourcePattern::One(one) if !named.contains(one) => named.push(one.clone()),
                ResourcePattern::One(_) => {}
                pattern if pattern.matches(&secrets) && !named.contains(&secrets) => {
                    named.push(secrets.clone())
                }
                _ => {}
            }
        }
        Ok(named)
    }

    /// Whether the configuration covers resources of which nobody knows that they should be read.
    fn leaves_wildcards(&self, config: Option<&EncryptionConfiguration>) -> bool {
        let mut patterns =
            config.into_iter().flat_map(|config| &config.entries).flat_map(|entry| &entry.resources);
        self.resource.is_empty() && patterns.any(ResourcePattern::is_wildcard)
    }
}

/// Asks each server for its metrics, and the first that gives them for objects.
async fn look(
    servers: &[Server],
    resources: &[GroupResource],
    most: usize,
    config: Option<&EncryptionConfiguration>,
) -> (Vec<ServerAnswer>, Vec<ResourceAnswer>) {
    let (mut told, mut chosen) = (Vec::new(), None);
    for server in servers {
        let metrics = sample::metrics(server).await;
        if metrics.is_ok() {
            chosen = chosen.or(Some(server));
        }
        told.push(server_answer(server, metrics));
    }
    let mut read = Vec::new();
    if let (Some(server), true) = (chosen, most > 0) {
        for resource in resources {
            let found = sample(server, resource, most).await;
            read.push(resource_answer(server, resource, found, config));
        }
        // What was read under which key id is new since: the counters of that server are told as they are now.
        if let (Ok(metrics), Some(answer)) =
            (sample::metrics(server).await, told.iter_mut().find(|answer| answer.server == server.url))
        {
            *answer = server_answer(server, Ok(metrics));
        }
    }
    (told, read)
}

fn server_answer(server: &Server, metrics: Result<Metrics, AskError>) -> ServerAnswer {
    let (metrics, error) = match metrics {
        Ok(metrics) => (Some(metrics), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let of = metrics.clone().unwrap_or_default();
    let metrics_told = metrics.is_some();
    ServerAnswer {
        server: server.url.clone(),
        instance: metrics.map(|metrics| metrics.instance()),
        error,
        configurations: of.configurations(),
        configuration_matches: None,
        key_ids: of.key_ids(),
        limits: judge::of_server(metrics_told),
        dek_sources: of.dek_sources(),
        operations: of.operations(),
    }
}

fn resource_answer(
    server: &Server,
    resource: &GroupResource,
    found: Result<Sample, AskError>,
    config: Option<&EncryptionConfiguration>,
) -> ResourceAnswer {
    let (sample, error) = match found {
        Ok(mut sample) => {
            let stopped = sample.stopped.take();
            (sample, stopped.map(|error| error.to_string()))
        }
        Err(error) => (Sample::default(), Some(error.to_string())),
    };
    let classes = |bounds: BTreeMap<String, Bounds>| -> Vec<Class> {
        bounds.into_iter().map(|(name, bounds)| Class { name, bounds }).collect()
    };
    let key_ids = sample.told.key_ids.into_iter();
    let is_told = error.is_none() || sample.told.read > 0;
    let limits = if is_told { judge::of_objects(sample.objects, sample.told.read) } else { Vec::new() };
    let GroupResource { group, resource: plural } = resource;
    ResourceAnswer {
        resource: if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") },
        error,
        limits,
        server: server.url.clone(),
        objects: sample.objects,
        listed: sample.listed,
        read: sample.told.read,
        untold: sample.untold,
        silences: sample.silences.into_iter().collect(),
        gone: sample.gone,
        unreadable: sample.unreadable,
        others: sample.told.others,
        expected: config.map(|config| config.coverage(resource).writer()).map(|writer| {
            match writer.provider {
                Provider::Identity => String::new(),
                _ => writer.write_prefix(),
            }
        }),
        stored: classes(sample.told.prefixes),
        local_keys: classes(sample.told.local_keys),
        key_ids: key_ids.map(|((provider, hash), bounds)| KeyIdClass { provider, hash, bounds }).collect(),
    }
}
