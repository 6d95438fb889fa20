//! The shell of the doctor: looks, asks, and judges nothing.
mod clock;
mod host;
mod keys;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use casemate_keys::crypto_module::FIPS_BUILD;
use casemate_keys::names::sha256;
use casemate_keys::{CacheOf, Record};
use casemate_keyservice::Pace;
use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms::config::{Config, ProviderConfig, SealedCacheConfig, Source};
use casemate_kms::key_services::KeyServices;
use casemate_kms::provider::{Protection, Store, StoredRecord, peek_sealed_cache};
use casemate_wire::kms_v2::limits;
use serde_json::Value;

use self::host::Process;
use self::keys::{Known, of_key, of_signer};
use super::Args;
use super::facts::{
    Access, Answer, Facts, Foreseen, KeyFacts, LedgerFacts, NoAnswer, ProviderFacts, RecordFacts, SealedFacts,
};
use crate::key::plan_rotation::{Seen, Would, foretell};
use crate::kms::admin;
use crate::kms::client::Plugin;
use crate::kms::socket::Socket;

/// How long a socket of the plugin gets.
const PATIENCE: Duration = Duration::from_secs(3);
/// What kube-apiserver takes for well.
const HEALTHY: &str = "ok";
/// What is open beside connections.
const OTHER_DESCRIPTORS: u64 = 96;

/// All of it.
pub(super) async fn facts(
    args: &Args,
    source: &Source,
    config: &Config,
    services: Result<KeyServices, String>,
) -> Facts {
    let (services, no_services) = match services {
        Ok(services) => (services, None),
        Err(why) => (KeyServices::default(), Some(why)),
    };
    let admin = args.admin.clone().or_else(|| config.admin.as_ref()?.endpoint.to_string().parse().ok());
    let status = match &admin {
        None => None,
        Some(socket) => {
            Some(admin::document(socket, PATIENCE).await.map_err(|failure| failure.text().to_owned()))
        }
    };
    let path = &*args.host.config;
    let mut sockets = config.providers.iter().map(|provider| endpoint(args, config, provider));
    let process = match sockets.next().flatten() {
        Some(socket) => Process::find(&socket, path).await,
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
    services.log_out().await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Facts {
        now,
        user: user.unwrap_or_default(),
        files: host::files(path, config, process.as_ref().is_some_and(|process| process.sockets_are_passed)),
        limits: process.and_then(|process| process.limits(connections + OTHER_DESCRIPTORS)),
        clocks: clock::clocks(&source.fields()).await,
        newest: host::newest(state),
        status,
        admin: admin.map(|socket| socket.to_string()),
        sha256: hex::encode(sha256(source.text().as_bytes())),
        no_services,
        refused_pins: refused_pins(config),
        providers,
    }
}

fn endpoint(args: &Args, config: &Config, provider: &ProviderConfig) -> Option<Socket> {
    let named = args.socket.clone().filter(|_| config.providers.len() == 1);
    named.or_else(|| provider.endpoint.to_string().parse().ok())
}

/// Notes that keep a PIN from being tried. Others belong to a login that is under way, or to one that may be tried once more.
fn refused_pins(config: &Config) -> Vec<PathBuf> {
    let entries = config.guard_folder().and_then(|folder| fs::read_dir(folder).ok());
    let paths = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_note = |path: &PathBuf| {
        path.is_file() && !path.extension().is_some_and(|ending| ending == "new" || ending == "turn")
    };
    paths.filter(|path| is_note(path) && fs::read(path).is_ok_and(|note| holds_back(&note))).collect()
}

/// One that can't be understood does, too.
fn holds_back(note: &[u8]) -> bool {
    let note: Value = serde_json::from_slice(note).unwrap_or_default();
    let Some(tried) = note["tried"].as_array() else { return true };
    tried
        .iter()
        .any(|tried| tried["refused"] != false || tried["unclear"].as_u64().is_none_or(|times| times > 1))
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
    let (keys, would) = of_keys(config, provider, services, record.as_ref(), status).await;
    let (foreseen, refused) = match would {
        Some((Would::NothingChanges { key_id }, _)) => {
            (Some(Foreseen { key_id, ..Foreseen::default() }), None)
        }
        Some((Would::Write { key_id, because, when }, _)) => {
            (Some(Foreseen { key_id, because, when: Some(when) }), None)
        }
        Some((Would::Refused { class, message, .. }, next)) => {
            (None, Some((class.to_owned(), message, next.join("; or "))))
        }
        _ => (None, None),
    };
    let socket = endpoint(args, config, provider);
    ProviderFacts {
        name: name.to_owned(),
        endpoint: provider.endpoint.to_string(),
        socket: provider.endpoint.path().map(Access::of),
        socket_mode: provider.socket_mode.0.0,
        barred: host::barred(provider),
        answer: match socket {
            Some(socket) => answer(socket).await,
            None => {
                let why = format!("{} is no socket", provider.endpoint);
                Err(NoAnswer { why, is_running: false })
            }
        },
        keys,
        signer: of_signer(provider, services, state).await,
        accepts_unproven: provider.accept_unproven_origin,
        foreseen,
        refused,
        record: RecordFacts {
            is_there: stored.is_some(),
            is_whole: stored.as_ref().is_some_and(|stored| stored.is_whole),
            created: record.as_ref().map(|record| record.core().created),
        },
        ledger: ledger(config, provider),
        recipients: (!FIPS_BUILD).then_some(provider.recovery_recipients.len()),
        sealed: provider
            .sealed_cache
            .as_ref()
            .and_then(SealedCacheConfig::protection)
            .map(|protection| sealed(config, name, &protection)),
        rules: provider.outage(),
    }
}

/// Each root key, and what the next look at them would come to; `None` if one of those that write shows no version: what it
/// says for itself is told there.
async fn of_keys(
    config: &Config,
    provider: &ProviderConfig,
    services: &KeyServices,
    record: Option<&Record>,
    status: Option<&ProviderStatus>,
) -> (Vec<KeyFacts>, Option<(Would, Vec<String>)>) {
    let state = &*config.state_directory;
    let (mut keys, mut seen, mut is_local) = (Vec::new(), Vec::new(), true);
    // Those of tokens are missing if their module could not be started, which is told by itself.
    let write = provider.write_keys(services, state).unwrap_or_default();
    for (key, of_config) in write.iter().zip(&provider.root_keys) {
        let (name, place) = (of_config.name.as_str(), of_config.place());
        let (facts, root) = of_key(&**key, &Known { name, place, writes: true, record, status }).await;
        is_local &= key.pace() == Pace::Local;
        if let Some(shows @ Ok(_)) = root {
            seen.push(Seen { name: name.to_owned(), prefix: key.prefix().clone(), shows });
        }
        keys.push(facts);
    }
    let read = provider.read_only_keys(services, state).unwrap_or_default();
    for (key, of_config) in read.iter().zip(&provider.read_keys) {
        let (name, place) = (of_config.name.as_str(), of_config.place());
        keys.push(of_key(&**key, &Known { name, place, writes: false, record, status }).await.0);
    }
    let all_seen = seen.len() == provider.root_keys.len();
    (keys, all_seen.then(|| foretell(config, provider, seen, is_local, status).ok()).flatten())
}

async fn answer(socket: Socket) -> Result<Answer, NoAnswer> {
    let asked = async { Plugin::connect(socket, PATIENCE).await?.status().await };
    let (mut reply, _) = asked
        .await
        .map_err(|error| NoAnswer { why: error.to_string(), is_running: error.is_listened_to() })?;
    // To be unready is no breach of the contract.
    let healthz = std::mem::replace(&mut reply.healthz, HEALTHY.into());
    let problems = limits::check_status(&reply).iter().map(ToString::to_string).collect();
    Ok(Answer { key_id: reply.key_id, unready: Some(healthz).filter(|healthz| healthz != HEALTHY), problems })
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

#[cfg(test)]
mod tests {
    use super::holds_back;

    #[test]
    fn a_login_that_is_under_way_is_no_pin_that_was_refused() {
        let note = |refused: &str, unclear: u32| {
            format!(
                r#"{{"version": 2, "token": "1", "tried": [{{"refused": {refused}, "unclear": {unclear}, "last": 0}}]}}"#
            )
        };
        assert!(!holds_back(note("false", 1).as_bytes()));
        assert!(holds_back(note("false", 2).as_bytes()) && holds_back(note("true", 1).as_bytes()));
        assert!(holds_back(b"torn") && holds_back(b"{}"));
    }
}
