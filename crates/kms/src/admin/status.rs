//! What `/status` answers: one JSON document. Fields are added, never renamed; times are RFC 3339 in UTC.

use casemate_keys::names::sha256;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

mod filled;

/// The whole document.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Document {
    /// Version of `casemate-kms`.
    pub version: String,
    /// When it was made.
    pub time: String,
    /// The configuration that holds.
    #[serde(default)]
    pub configuration: Option<ConfigurationStatus>,
    /// The audit log; null if none is written.
    #[serde(default)]
    pub audit: Option<AuditStatus>,
    /// Each provider, in the order of the configuration.
    pub providers: Vec<ProviderStatus>,
}

/// The configuration that holds, and the file that it came from.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ConfigurationStatus {
    /// Its file.
    pub path: String,
    /// SHA-256 of what was read there, in hex.
    pub sha256: String,
    /// Since when it holds.
    pub since: String,
    /// How often another one was taken over since the start.
    pub reloads: u64,
    /// Why what the file says now does not hold, and what to do; null if it does.
    pub refused: Option<String>,
    /// Since when.
    pub refused_since: Option<String>,
    /// Whether nothing in it is to be corrected: a restart takes it as it is.
    #[serde(default)]
    pub needs_restart: bool,
    /// Providers that could not be started; the others serve without them.
    #[serde(default)]
    pub not_started: Vec<NotStarted>,
}

/// A provider that could not be started. It is tried again every ten seconds.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct NotStarted {
    /// Its configured name.
    pub name: String,
    /// Why, and what to do.
    pub why: String,
}

/// The audit log, of all providers together.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct AuditStatus {
    /// Its last line. Kept elsewhere, it proves later that nothing up to it was changed.
    pub head: AuditHead,
    /// Calls since the start that are not in it.
    pub missed: u64,
    /// Why nothing can be written to it now, and what to do; null if it can.
    pub problem: Option<String>,
}

/// The last line of the audit log.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct AuditHead {
    /// Its number; 0 if there is no line yet.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// Both, as `casemate audit verify --head` takes them.
    pub anchor: String,
}

/// One provider.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ProviderStatus {
    /// Its configured name.
    pub name: String,
    /// The configured cluster.
    pub cluster_id: String,
    /// The configured epoch.
    pub epoch: u64,
    /// Whether Encrypt writes and Status is ok.
    pub writing: bool,
    /// If it does not: why, and what to do.
    pub not_writing_because: Option<String>,
    /// What the next write uses; null if nothing is written.
    pub next_write: Option<NextWrite>,
    /// What is on its way to write; null if nothing changes.
    pub candidate: Option<Candidate>,
    /// The key id that should write and may not, because another one was active since; what wrote last goes on, if it can.
    pub refused_reuse: Option<RefusedReuse>,
    /// What is wrong, though it may write on; null if nothing is.
    pub trouble: Option<Trouble>,
    /// When the root keys were last looked at.
    pub last_look: String,
    /// When all root keys that write last told their version; null if they never did.
    pub last_observation: Option<String>,
    /// Looks that were asked for at `POST /refresh`.
    #[serde(default)]
    pub refreshes: Option<Refreshes>,
    /// Each root key, those that write first, in the order of the configuration.
    pub root_keys: Vec<RootKeyStatus>,
    /// What may be read, whoever wrote it.
    pub readable: Readable,
    /// Which key ids were active on this node.
    pub ledger: Ledger,
    /// The cache of opened local KEKs.
    pub opened_keks: OpenedKeks,
    /// The sealed cache; null if none is configured.
    #[serde(default)]
    pub sealed_cache: Option<SealedCache>,
    /// Calls since the start, by method and gRPC code.
    pub requests: Vec<Requests>,
    /// Connections to its KMS socket.
    pub connections: Connections,
}

/// What the next write uses.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct NextWrite {
    /// The key id that Status names.
    pub key_id: String,
    /// The same as kube-apiserver publishes it in metrics and logs.
    pub key_id_hash: String,
    /// When it became active on this node; null if that is not known.
    pub since: Option<String>,
    /// The key that seals.
    pub local_kek: LocalKek,
    /// What wraps the local KEK: each alone opens it.
    pub roots: Vec<WrappedUnder>,
    /// Fingerprints of recovery recipients, under which it is wrapped too.
    pub recovery_recipients: Vec<String>,
    /// The key that signs its record, by its lineage: a part of the key id; null if none does.
    #[serde(default)]
    pub signer: Option<String>,
}

/// A local KEK. Never the key.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct LocalKek {
    /// Its id, as in records.
    pub id: String,
    /// When it was made.
    pub created: String,
    /// How long ago; it is replaced after 90 days.
    pub age_seconds: u64,
}

/// A version of a root key, and how it wraps.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct WrappedUnder {
    /// Which version of which root key.
    pub lineage: String,
    /// How it wraps.
    pub algorithm: String,
}

/// What is on its way to write.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Candidate {
    /// Its key id.
    pub key_id: String,
    /// The same as kube-apiserver will publish it.
    pub key_id_hash: String,
    /// What will wrap.
    pub roots: Vec<WrappedUnder>,
    /// What will sign; null if nothing does.
    #[serde(default)]
    pub signer: Option<String>,
    /// How often it was seen in a row: twice confirms it.
    pub sightings: u8,
    /// Whether a local KEK is being made under it.
    pub preparing: bool,
}

/// A key id that may not come back by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct RefusedReuse {
    /// Which one.
    pub key_id: String,
    /// The same as kube-apiserver publishes it.
    pub key_id_hash: String,
}

/// What is wrong.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Trouble {
    /// `passing` (a root key can't be asked) or `refused` (it says no, or a key id may not come back).
    pub kind: String,
    /// What happened, and what to do.
    pub message: String,
    /// Since when it is this.
    pub since: String,
}

/// One root key.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct RootKeyStatus {
    /// Its configured name.
    pub name: String,
    /// `write` or `read`.
    pub r#use: String,
    /// What the lineages of all its versions begin with.
    pub prefix: String,
    /// `ok`, `failing`, or `unknown` before the first answer.
    pub state: String,
    /// The version that it last named as the one that writes; null if it never did.
    pub version: Option<WrappedUnder>,
    /// Versions that the configuration lists and that its token did not have at the last look: what is written under them
    /// elsewhere could not be read here.
    #[serde(default)]
    pub absent: Vec<String>,
    /// When it last answered as it should; null if it never did.
    pub last_good: Option<String>,
    /// Since when it fails; null if it does not.
    pub failing_since: Option<String>,
    /// How it failed last, though it may be well since; null if it never did.
    pub last_error: Option<RootKeyError>,
    /// What stands between the plugin and it.
    #[serde(default)]
    pub guard: Option<Guard>,
}

/// What stands between the plugin and a root key, at this moment.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Guard {
    /// `closed`; `open`: it is out, and stored data is tried one at a time; `half_open`: it has answered once since.
    pub breaker: String,
    /// Since when the breaker is in this state.
    pub since: String,
    /// Calls of the plugin itself that are under way.
    pub own_in_flight: u64,
    /// Openings for Decrypts that are under way.
    pub stored_in_flight: u64,
    /// Attempts after the first of a call, since the start.
    pub retries: u64,
    /// Calls that failed without asking it, since the start: it is out, or asked for time.
    pub fast_failures: u64,
    /// Stored wraps that did not open a moment ago and were not tried again, since the start.
    pub negative_hits: u64,
    /// Stored wraps that were not tried because too many others did not open, since the start.
    pub limited: u64,
}

/// How a root key failed.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct RootKeyError {
    /// `unreachable`, `throttled`, `credential`, `refused`, `corrupt`, `not_opened` or `other`.
    pub class: String,
    /// What happened, and what to do.
    pub message: String,
    /// When.
    pub time: String,
}

/// What may be read.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Readable {
    /// Root keys: a record is read if one of its wraps is under one of them.
    pub rules: Vec<ReadRule>,
    /// Other clusters whose data is read.
    pub clusters: Vec<AcceptedCluster>,
}

/// Wraps that may be opened.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ReadRule {
    /// The configured name of the root key.
    pub root_key: String,
    /// What the lineages of all its versions begin with.
    pub prefix: String,
    /// How wraps under it may be made.
    pub algorithms: Vec<String>,
    /// Versions below this are not read; null if all are.
    pub min_version: Option<u64>,
}

/// Another cluster whose data is read.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct AcceptedCluster {
    /// Its cluster id.
    pub cluster_id: String,
    /// Until when.
    pub until: String,
}

/// Which key ids were active on this node.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Ledger {
    /// How many times one became active.
    pub entries: u64,
    /// Whether the state directory has all of it.
    pub saved: bool,
    /// The last ten, oldest first.
    pub last: Vec<LedgerEntry>,
}

/// Looks that were asked for at `POST /refresh`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Refreshes {
    /// How many since the start.
    pub asked: u64,
    /// How many of them had been asked for when that look began which ended last.
    pub done: u64,
}

/// One key id that became active.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct LedgerEntry {
    /// Which one.
    pub key_id: String,
    /// The same as kube-apiserver publishes it.
    pub key_id_hash: String,
    /// When.
    pub since: String,
}

/// What the cache of opened local KEKs did since the start.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct OpenedKeks {
    /// Found in it.
    pub hits: u64,
    /// Opened from the sealed cache: no root key was asked.
    #[serde(default)]
    pub sealed_hits: u64,
    /// Opened by a root key.
    pub opened: u64,
    /// Waited for an opening that was under way.
    pub joined: u64,
    /// Could not be opened.
    pub failed: u64,
    /// Dropped for newer ones.
    pub evicted: u64,
    /// Held now.
    pub held: u64,
}

/// Opened local KEKs on disk, for a start while root keys are out.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct SealedCache {
    /// Local KEKs in its file.
    pub entries: u64,
    /// Whether the file has all that was opened.
    pub saved: bool,
    /// Entries that were refused since the start: torn, or changed.
    pub damaged: u64,
    /// Why it can't be read or written, and what to do; null if it can.
    pub problem: Option<String>,
}

/// Calls of one method with one code.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Requests {
    /// `Status`, `Encrypt`, `Decrypt`; `other` for what is no call of KMS v2.
    pub method: String,
    /// The gRPC code, `OK` if it was served.
    pub code: String,
    /// How many.
    pub count: u64,
}

/// Connections to one KMS socket.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Connections {
    /// Open now.
    pub open: u64,
    /// Accepted since the start.
    pub accepted: u64,
    /// Closed at once since the start, because the peer is not in `allowedPeers`.
    pub refused_peers: u64,
    /// Closed at once since the start, because there were `maxConnections` already.
    pub refused_excess: u64,
}

/// A key id as kube-apiserver's metrics and logs name it.
pub fn key_id_hash(key_id: &str) -> String {
    let hex: String = sha256(key_id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
