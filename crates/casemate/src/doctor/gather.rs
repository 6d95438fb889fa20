//! The shell of the doctor: looks, asks, and judges nothing.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use casemate_keys::{CacheOf, Digest, Record, Root, payload};
use casemate_keyservice::{Class, Failure, Pace, RootKey};
use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms::config::{Config, Place, ProviderConfig, ReadKeyConfig, SealedCacheConfig, WriteKeyConfig};
use casemate_kms::key_services::KeyServices;
use casemate_kms::provider::{Protection, Store, StoredRecord, peek_sealed_cache};
use casemate_wire::kms_v2::limits;
use tokio::net::UnixStream;
use zeroize::Zeroizing;

use super::Args;
use super::facts::{
    Access, Answer, Facts, FileFacts, KeyFacts, LedgerFacts, Limits, ProviderFacts, RecordFacts, Role,
    SealedFacts, User,
};
use crate::host::bounded;
use crate::key::plan_rotation::{Seen, Would, foretell};
use crate::kms::admin;
use crate::kms::client::Plugin;
use crate::kms::socket::Socket;

/// How long a socket of the plugin gets.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is open beside connections.
const OTHER_DESCRIPTORS: u64 = 96;

/// All of it.
pub(super) async fn facts(args: &Args, config: &Config, services: Result<KeyServices, String>) -> Facts {
    let (services, no_services) = match services {
        Ok(services) => (services, None),
        Err(why) => (KeyServices::default(), Some(why)),
    };
    let admin = args.admin.clone().or_else(|| config.admin.as_ref()?.endpoint.to_string().parse().ok());
    let status = match admin {
        None => None,
        Some(socket) => {
            Some(admin::document(&socket, PATIENCE).await.map_err(|failure| failure.text().to_owned()))
        }
    };
    let mut sockets = config.providers.iter().map(|provider| endpoint(args, config, provider));
    let process = match sockets.next().flatten() {
        Some(socket) => Process::behind(&socket).await,
        None => None,
    };
    let state = &*config.state_directory;
    let user = process
        .as_ref()
        .map(|process| process.user)
        .or_else(|| Access::of(state).ok().map(|access| access.owner()));
    let connections: u64 =
        config.providers.iter().map(|provider| u64::from(provider.max_connections.0)).sum();
    let mut providers = Vec::new();
    for provider in &config.providers {
        let document = status.as_ref().and_then(|status| status.as_ref().ok());
        providers.push(of_provider(args, config, provider, &services, document).await);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Facts {
        now,
        user: user.unwrap_or_default(),
        files: files(args, config),
        limits: process.and_then(|process| process.limits(connections + OTHER_DESCRIPTORS)),
        status,
        no_services,
        refused_pins: refused_pins(config),
        providers,
    }
}

fn endpoint(args: &Args, config: &Config, provider: &ProviderConfig) -> Option<Socket> {
    let named = args.socket.clone().filter(|_| config.providers.len() == 1);
    named.or_else(|| provider.endpoint.to_string().parse().ok())
}

fn files(args: &Args, config: &Config) -> Vec<FileFacts> {
    let public: BTreeSet<PathBuf> = places(config).into_iter().flat_map(certificates).collect();
    let named: BTreeSet<PathBuf> = config.files(&args.host.config).into_iter().collect();
    let role = |path: &PathBuf| match () {
        () if *path == args.host.config => Role::Configuration,
        () if public.contains(path) => Role::Public,
        () => Role::Secret,
    };
    let mut files: Vec<FileFacts> = named.iter().map(|path| FileFacts::of(path, role(path))).collect();
    files.push(FileFacts::of(&config.state_directory, Role::State));
    files
}

fn places(config: &Config) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    for provider in &config.providers {
        places.extend(provider.root_keys.iter().map(WriteKeyConfig::place));
        places.extend(provider.read_keys.iter().map(ReadKeyConfig::place));
    }
    places
}

fn certificates(place: Place<'_>) -> Vec<PathBuf> {
    let Place::Transit(transit) = place else { return Vec::new() };
    let tls = &transit.tls;
    [&tls.ca_file, &tls.client_certificate_file].into_iter().flatten().map(|path| path.0.clone()).collect()
}

impl FileFacts {
    fn of(path: &Path, role: Role) -> Self {
        let above = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let above = above
            .ancestors()
            .skip(1)
            .filter_map(|folder| Some((folder.to_owned(), Access::of(folder).ok()?)));
        Self { path: path.to_owned(), role, found: Access::of(path), folders: above.collect() }
    }
}

impl Access {
    fn of(path: &Path) -> Result<Self, String> {
        let found = fs::metadata(path).map_err(|error| error.to_string())?;
        Ok(Self { uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o7777 })
    }

    fn owner(self) -> User {
        User { uid: self.uid, gid: self.gid }
    }
}

/// The process behind a socket.
struct Process {
    user: User,
    pid: i32,
}

impl Process {
    /// If it is a casemate-kms: of one that systemd has bound, the system names systemd.
    async fn behind(socket: &Socket) -> Option<Self> {
        let connected = tokio::time::timeout(PATIENCE, UnixStream::connect(socket.address())).await;
        let peer = connected.ok()?.ok()?.peer_cred().ok()?;
        let (user, pid) = (User { uid: peer.uid(), gid: peer.gid() }, peer.pid()?);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim_end() == "casemate-kms").then_some(Self { user, pid })
    }

    fn limits(&self, needed_files: u64) -> Option<Limits> {
        let text = fs::read_to_string(format!("/proc/{}/limits", self.pid)).ok()?;
        // Name, soft limit, hard limit: the plugin raises the first to the second.
        let hard = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().nth(1)?.parse().ok())
        };
        Some(Limits {
            open_files: hard("Max open files"),
            needed_files,
            locked_memory: hard("Max locked memory"),
        })
    }
}

/// Notes beside which nothing else stands: the others belong to a login that is under way.
fn refused_pins(config: &Config) -> Vec<PathBuf> {
    let entries = config.guard_folder().and_then(|folder| fs::read_dir(folder).ok());
    let paths = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_note = |path: &PathBuf| {
        path.is_file() && !path.extension().is_some_and(|ending| ending == "new" || ending == "turn")
    };
    paths.filter(is_note).collect()
}

async fn of_provider(
    args: &Args,
    config: &Config,
    provider: &ProviderConfig,
    services: &KeyServices,
    document: Option<&Document>,
) -> ProviderFacts {
    let (state, name) = (&*config.state_directory, provider.name.as_str());
    let status = document.and_then(|document| document.providers.iter().find(|one| one.name == name));
    let stored = Store::peek_record(state, name).ok().flatten();
    let record = stored.as_ref().and_then(StoredRecord::record);
    let (mut keys, mut seen) = (Vec::new(), Vec::new());
    let mut is_local = true;
    // Those of tokens are missing if their module could not be started, which is told by itself.
    for (key, of_config) in
        provider.write_keys(services, state).unwrap_or_default().iter().zip(&provider.root_keys)
    {
        let (facts, root) = of_key(&**key, of_config.name.as_str(), true, record.as_ref(), status).await;
        is_local &= key.pace() == Pace::Local;
        seen.push(Seen { name: facts.name.clone(), prefix: key.prefix().clone(), shows: root });
        keys.push(facts);
    }
    for (key, of_config) in
        provider.read_only_keys(services, state).unwrap_or_default().iter().zip(&provider.read_keys)
    {
        keys.push(of_key(&**key, of_config.name.as_str(), false, record.as_ref(), status).await.0);
    }
    // What a root key says for itself is told there.
    let all_seen = seen.len() == provider.root_keys.len() && seen.iter().all(|seen| seen.shows.is_ok());
    let refused = match all_seen.then(|| foretell(config, provider, seen, is_local, status)) {
        Some(Ok((Would::Refused { class, message, .. }, next))) => {
            Some((class.to_owned(), message, next.join("; or ")))
        }
        _ => None,
    };
    let socket = endpoint(args, config, provider);
    ProviderFacts {
        name: name.to_owned(),
        endpoint: provider.endpoint.to_string(),
        socket: provider.endpoint.path().map(Access::of),
        socket_mode: provider.socket_mode.0.0,
        answer: match socket {
            Some(socket) => answer(socket).await,
            None => Err(format!("{} is no socket", provider.endpoint)),
        },
        keys,
        refused,
        record: RecordFacts {
            is_there: stored.is_some(),
            is_whole: stored.as_ref().is_some_and(|stored| stored.is_whole),
            created: record.as_ref().map(|record| record.core().created),
        },
        ledger: ledger(config, provider),
        recipients: provider.recovery_recipients.len(),
        sealed: provider
            .sealed_cache
            .as_ref()
            .and_then(SealedCacheConfig::protection)
            .map(|protection| sealed(config, name, &protection)),
        rules: provider.outage(),
    }
}

async fn answer(socket: Socket) -> Result<Answer, String> {
    let asked = async { Plugin::connect(socket, PATIENCE).await?.status().await };
    let (reply, _) = asked.await.map_err(|error| error.to_string())?;
    let problems = limits::check_status(&reply).iter().map(ToString::to_string).collect();
    Ok(Answer { key_id: reply.key_id, problems })
}

fn ledger(config: &Config, provider: &ProviderConfig) -> LedgerFacts {
    let (ledger, damage) = match Store::peek_ledger(&config.state_directory, provider.name.as_str()) {
        Ok(read) => read,
        Err(error) => return LedgerFacts { unreadable: Some(error.to_string()), ..LedgerFacts::default() },
    };
    let is_read = |cluster: &str| {
        cluster == config.cluster_id.0.as_str()
            || provider.also_accept.iter().any(|other| other.cluster_id.0.as_str() == cluster)
    };
    LedgerFacts {
        unreadable: None,
        damaged: damage.map(|damage| damage.lines).unwrap_or_default(),
        last: ledger.entries().last().map(|entry| entry.at),
        other_cluster: ledger
            .last()
            .map(|last| last.cluster_id().to_owned())
            .filter(|cluster| !is_read(cluster)),
    }
}

fn sealed(config: &Config, name: &str, protection: &Protection) -> SealedFacts {
    let of = CacheOf { cluster: config.cluster_id.0.clone(), provider: name.to_owned() };
    let found = peek_sealed_cache(&config.state_directory, protection, &of)
        .map(|found| found.map(|found| (found.entries, found.damaged)))
        .map_err(|error| error.to_string());
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    let (secret, cache) = (device(protection.path()), device(&config.state_directory));
    SealedFacts { is_beside_its_secret: found.is_ok() && secret.is_some() && secret == cache, found }
}

/// Asks for the version that writes, wraps and opens a payload that nobody needs, and opens the record of this node.
async fn of_key(
    key: &dyn RootKey,
    name: &str,
    writes: bool,
    record: Option<&Record>,
    status: Option<&ProviderStatus>,
) -> (KeyFacts, Result<Root, Failure>) {
    let observed = bounded(key.observe()).await;
    let running = status
        .and_then(|status| status.root_keys.iter().find(|one| one.name == name && one.state == "failing"));
    let running = running.and_then(|one| one.last_error.as_ref());
    let mut facts = KeyFacts {
        name: name.to_owned(),
        observed: observed.as_ref().map(|root| root.lineage.to_string()).map_err(Failure::clone),
        wrapped: None,
        opened: None,
        is_true: None,
        opens_record: None,
        running: running.map(|error| (error.class.clone(), error.message.clone())),
    };
    let Ok(root) = &observed else { return (facts, observed) };
    if writes {
        try_out(key, root, &mut facts).await;
    }
    let wrap = record.and_then(|record| {
        let (root, wrap) = record.wraps().find(|(root, _)| key.prefix().rest(&root.lineage).is_some())?;
        Some((root, record.core().digest(), wrap))
    });
    if let Some((root, core, wrap)) = wrap {
        facts.opens_record = Some(bounded(key.unwrap(root, &core, wrap)).await.map(drop));
    }
    (facts, observed)
}

async fn try_out(key: &dyn RootKey, root: &Root, facts: &mut KeyFacts) {
    let mut payload = Zeroizing::new([0; payload::LEN]);
    let mut cores: [Digest; 2] = Default::default();
    let filled =
        rand::fill(&mut payload[..]).and_then(|()| cores.iter_mut().try_for_each(|core| rand::fill(core)));
    if filled.is_err() {
        let failure =
            Failure::new(Class::Unreachable, "the system gives no random bytes", "restart the host");
        facts.wrapped = Some(Err(failure));
        return;
    }
    let wrap = match bounded(key.wrap(root, &cores[0], &payload)).await {
        Ok(wrap) => wrap,
        Err(failure) => {
            facts.wrapped = Some(Err(failure));
            return;
        }
    };
    facts.wrapped = Some(Ok(()));
    match bounded(key.unwrap(root, &cores[0], &wrap)).await {
        Ok(opened) => {
            facts.opened = Some(Ok(()));
            let opens_otherwise =
                key.binds_associated_data(root) && bounded(key.unwrap(root, &cores[1], &wrap)).await.is_ok();
            facts.is_true = Some(opened[..] == payload[..] && !opens_otherwise);
        }
        Err(failure) => facts.opened = Some(Err(failure)),
    }
}
