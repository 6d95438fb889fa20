//! Everything that can be validated without serving.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::rand;
use casemate_keys::{CacheOf, Digest, Epoch, KeyId, Root, Suite, WritePolicy, payload};
use casemate_keyservice::{Answer, Class, RootKey, lists_absent};
use casemate_recipients::Recipient;
use jiff::Timestamp;
use rustix::fs::{Access, access};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::audit::key::CheckpointKey;
use crate::config::{AuditConfig, Config, Endpoint, Place, ProviderConfig, SealedCacheConfig, SignerConfig};
use crate::key_services::{KeyServices, NotHere};
use crate::provider::{Protection, Store, peek_sealed_cache};
use crate::socket::TooFewDescriptors;

const DEADLINE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(200);
/// Before the detail of what will do, and is probably not what is wanted.
const WARNING: &str = "warning: ";
/// Of a root key that a look from here would take away from the plugin.
const NOT_ASKED: &str = "warning: not asked: its wrapped secret id opens once, and `serve` needs it";

const ACCEPTS_UNPROVEN: &str = "warning: whoever writes etcd can plant what is read under RSA keys; rewrite what has no \
                                signature, then take this out";
/// Before what is signed to see whether it can be: no record's message begins so.
const SIGNED_BY_CHECK: &[u8] = b"casemate.dev/v1/check\0";

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which provider; `-` if it is none's.
    pub provider: String,
    /// What was looked at.
    pub subject: String,
    /// Whether it will do.
    pub good: bool,
    /// What was found; if it will not do, what to do. A `warning: ` before it: it will do, and is probably not wanted.
    pub detail: String,
}

/// Looks at folders, key files and key ids of a configuration, and has root keys that are to write wrap and open what is
/// thrown away. Changes nothing.
pub async fn check(config: &Config, services: &KeyServices) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(admin) = &config.admin {
        let (good, detail) = match endpoint(&admin.endpoint) {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        // Of no provider.
        findings.push(Finding { provider: "-".into(), subject: "admin.endpoint".into(), good, detail });
    }
    let connections = config.providers.iter().map(|provider| u64::from(provider.max_connections.0)).sum();
    findings.push(Finding {
        provider: "-".into(),
        subject: "file descriptors".into(),
        good: true,
        detail: descriptors(connections),
    });
    if let Some(audit) = &config.audit {
        let (good, detail) = audit_log(audit).map_or_else(|detail| (false, detail), |detail| (true, detail));
        findings.push(Finding { provider: "-".into(), subject: "audit".into(), good, detail });
    }
    for provider in &config.providers {
        let mut add = |subject: &str, outcome: Result<String, String>| {
            let (good, detail) = outcome.map_or_else(|detail| (false, detail), |detail| (true, detail));
            let (provider, subject) = (provider.name.to_string(), subject.to_owned());
            findings.push(Finding { provider, subject, good, detail });
        };
        add("endpoint", endpoint(&provider.endpoint));
        add("stateDirectory", state_directory(&config.state_directory));

        let mut roots = Vec::new();
        let state = &*config.state_directory;
        for key in &provider.root_keys {
            if key.place().opens_once() {
                add(&format!("rootKeys {}", key.name), Ok(NOT_ASKED.into()));
                continue;
            }
            let observed = ask(key.place().key(Some(key.version.0), services, state), true).await;
            add(
                &format!("rootKeys {}", key.name),
                observed.as_ref().map(|root| format!("writes as {}", root.lineage)).map_err(String::clone),
            );
            roots.extend(observed);
        }
        for key in &provider.read_keys {
            if key.place().opens_once() {
                add(&format!("readKeys {}", key.name), Ok(NOT_ASKED.into()));
                continue;
            }
            let observed = ask(key.place().key(None, services, state), false).await;
            add(&format!("readKeys {}", key.name), observed.map(|_| "can be read".to_owned()));
        }
        let credentials: BTreeSet<PathBuf> = provider.places().flat_map(Place::credentials).collect();
        for exposed in credentials.iter().filter_map(|path| exposed(path)) {
            add("credential", Ok(exposed));
        }
        if provider.signer.is_some() {
            add("signer", signs(provider, services, state).await);
        }
        for signer in &provider.signers {
            add(
                &format!("signers {}", signer.name),
                Ok(format!("what {} signed is believed", *signer.lineage)),
            );
        }
        if provider.accept_unproven_origin {
            add("acceptUnprovenOrigin", Ok(ACCEPTS_UNPROVEN.to_owned()));
        }
        if let Some(protection) = provider.sealed_cache.as_ref().and_then(SealedCacheConfig::protection) {
            add("sealedCache", sealed_cache(config, provider, &protection));
        }
        for recipient in &provider.recovery_recipients {
            let (age, fingerprint) = (&recipient.age, recipient.age.fingerprint());
            add(
                &format!("recoveryRecipients {}", recipient.name),
                Ok(format!("{age} can recover what is written; its fingerprint is {fingerprint}")),
            );
        }
        for other in &provider.also_accept {
            add(&format!("alsoAccept {}", other.cluster_id.0), Ok(accepted(other.until.0.0)));
        }
        if roots.len() == provider.root_keys.len() {
            add("key id", key_id(config, provider, roots));
        }
    }
    findings
}

fn key_id(config: &Config, provider: &ProviderConfig, roots: Vec<Root>) -> Result<String, String> {
    let cluster = config.cluster_id.0.clone();
    let read_policy = provider.read_policy(&cluster);
    for root in &roots {
        read_policy.may_ask(root).map_err(|reason| {
            format!(
                "root key {} would write and {reason}; deliver the current key file, or correct minReadVersion",
                root.lineage
            )
        })?;
    }
    let recipients = provider.recipients().iter().map(Recipient::fingerprint).collect();
    let signer = provider.signer.as_ref().map(SignerConfig::lineage);
    let policy = WritePolicy::new(Suite::One, cluster, Epoch(provider.epoch), roots, recipients, signer)
        .map_err(|error| error.to_string())?;
    let key_id = policy.key_id();
    let (ledger, damage) = Store::peek_ledger(&config.state_directory, provider.name.as_str())
        .map_err(|error| error.to_string())?;
    if ledger.was_superseded(&key_id) {
        return Err(format!(
            "{key_id} was active on this node before another one and will not write again by itself: an older key \
             file, configuration or pinned version was put back; deliver the current one"
        ));
    }
    let foreign = |last: &&KeyId| {
        last.cluster_id() != config.cluster_id.as_str()
            && !provider.also_accept.iter().any(|other| other.cluster_id.as_str() == last.cluster_id())
    };
    if let Some(last) = ledger.last().filter(foreign) {
        return Err(format!(
            "this node wrote as cluster {} before, and clusterId is {}: all that was written then would be refused; \
             correct clusterId, or list {} under alsoAccept with an end date",
            last.cluster_id(),
            config.cluster_id.0,
            last.cluster_id(),
        ));
    }
    let lost = damage
        .map_or(String::new(), |damage| format!("; lines {:?} of the ledger are damaged", damage.lines));
    Ok(format!("new data is written under {key_id}{lost}"))
}

/// What a start during an outage would find.
fn sealed_cache(
    config: &Config,
    provider: &ProviderConfig,
    protection: &Protection,
) -> Result<String, String> {
    let of = CacheOf { cluster: config.cluster_id.0.clone(), provider: provider.name.to_string() };
    let found =
        peek_sealed_cache(&config.state_directory, protection, &of).map_err(|error| error.to_string())?;
    let secret = format!("the {} {}", protection.kind(), protection.path().display());
    let Some(found) = found else {
        return Ok(format!("{secret} will do; nothing is sealed yet: the next start needs its root keys"));
    };
    let written = found.written.and_then(|at| Timestamp::try_from(at).ok()).map_or_else(
        || "is not there".to_owned(),
        |at| format!("was written at {}", at.round(jiff::Unit::Second).unwrap_or(at)),
    );
    let sealed = format!("{secret} opens {} local KEKs; the file {written}", found.entries);
    match found.damaged {
        0 => Ok(sealed),
        damaged => Ok(format!(
            "{WARNING}{sealed}, and {damaged} of its entries are torn or changed: root keys are asked for them"
        )),
    }
}

/// A file that does what it is for, and may do it for others on this host.
fn exposed(path: &Path) -> Option<String> {
    let (shown, mode) = (path.display(), fs::metadata(path).ok()?.permissions().mode() & 0o7777);
    (mode & 0o077 != 0).then(|| {
        format!(
            "{WARNING}{shown} has mode {mode:04o}: others than its owner can use it; chmod go-rwx {shown}, and if others were on \
             this host, make a new one"
        )
    })
}

/// That of the service may be another one than that of who looks.
fn descriptors(connections: u64) -> String {
    match TooFewDescriptors::foreseen(connections) {
        Some(too_few) => format!("{WARNING}started with the limits of this process it would end: {too_few}"),
        None => format!("there are enough for {connections} connections"),
    }
}

fn accepted(until: Timestamp) -> String {
    if until > Timestamp::now() {
        return format!("its data is read until {until}");
    }
    format!("{WARNING}its data is not read any more since {until}; set a later date, or remove the entry")
}

/// The log itself is opened by who writes it alone.
fn audit_log(audit: &AuditConfig) -> Result<String, String> {
    if let Some(key) = &audit.checkpoint_key {
        CheckpointKey::read(&key.path).map_err(|error| error.to_string())?;
    }
    if fs::metadata(&**audit.path).is_ok_and(|found| !found.is_file()) {
        return Err(format!("{} is no file; move it away", audit.path.display()));
    }
    writable(audit.path.parent().unwrap_or(Path::new("/")), "make it, or correct its permissions")
}

/// Which version writes; with `writes`, only if it wraps, and opens what it has wrapped.
async fn ask(key: Result<Box<dyn RootKey>, NotHere>, writes: bool) -> Result<Root, String> {
    let key = key.map_err(|error| error.to_string())?;
    let root = bounded(key.observe()).await?;
    if writes {
        wraps_and_opens(&*key, &root).await?;
    }
    let absent = key.absent();
    if absent.is_empty() { Ok(root) } else { Err(lists_absent(&absent)) }
}

/// Tried with what nobody needs.
async fn wraps_and_opens(key: &dyn RootKey, root: &Root) -> Result<(), String> {
    let mut payload = Zeroizing::new([0; payload::LEN]);
    let mut core = Digest::default();
    rand::fill(&mut payload[..])
        .and_then(|()| rand::fill(&mut core))
        .map_err(|_| "the system gives no random bytes; restart the host".to_owned())?;
    let wrap = bounded(key.wrap(root, &core, &payload))
        .await
        .map_err(|why| format!("would write as {}, and does not wrap: {why}", root.lineage))?;
    let opened = bounded(key.unwrap(root, &core, &wrap))
        .await
        .map_err(|why| format!("wraps as {}, and does not open what it wrapped: {why}", root.lineage))?;
    if opened[..] != payload[..] {
        return Err(format!(
            "{} gives back something else than it was given; do not write with it: the service, or something on the way to it, \
             is not what it seems",
            root.lineage
        ));
    }
    Ok(())
}

async fn bounded<T>(answer: Answer<'_, T>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(answer) => answer.map_err(|failure| failure.to_string()),
        Err(_) => {
            Err(format!("no answer within {} s; check the key service and the way to it", DEADLINE.as_secs()))
        }
    }
}

async fn signs(provider: &ProviderConfig, services: &KeyServices, state: &Path) -> Result<String, String> {
    let signing = provider.signing(services, state).map_err(|error| error.to_string())?;
    let Some(signing) = signing else { return Err("none is configured".into()) };
    let ends = tokio::time::Instant::now() + DEADLINE;
    loop {
        match signing.sign(SIGNED_BY_CHECK).await {
            Ok(_) => return Ok(format!("signs as {}", signing.lineage())),
            // Its module may take a while to load.
            Err(failure) if failure.class == Class::Unreachable && tokio::time::Instant::now() < ends => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(failure) => return Err(failure.to_string()),
        }
    }
}

/// A socket in its place is one that is served, or left by a killed process: both are dealt with at the start.
fn endpoint(endpoint: &Endpoint) -> Result<String, String> {
    let Some(socket) = endpoint.path() else {
        return Ok(format!("{endpoint} is abstract: allowedPeers says who may connect"));
    };
    match fs::symlink_metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(format!("{} is no socket; move it away", socket.display()))
        }
        _ => writable(socket.parent().unwrap_or(Path::new("/")), "make it, or correct its permissions"),
    }
}

/// The state directory is made at the first start: then its nearest parent counts.
fn state_directory(path: &Path) -> Result<String, String> {
    let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let found = writable(existing, "correct its permissions")?;
    Ok(if existing == path { found } else { format!("{} will be made: {found}", path.display()) })
}

fn writable(folder: &Path, remedy: &str) -> Result<String, String> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Err(error) => Err(format!("folder {shown}: {error}; {remedy}")),
        Ok(found) if !found.is_dir() => Err(format!("{shown} is no folder; move it away")),
        Ok(_) => match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => Ok(format!("folder {shown} can be written")),
            Err(error) => Err(format!("folder {shown} can't be written: {error}; {remedy}")),
        },
    }
}
