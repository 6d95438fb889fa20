//! The admin socket of a `casemate-kms`, told to people.
use std::time::Duration;

use casemate_keyservice::lists_absent;
use casemate_kms::admin::status::{
    AuditStatus, Candidate, ConfigurationStatus, Document, NextWrite, ProviderStatus, RootKeyStatus,
    SealedCache, WrappedUnder,
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header::HOST};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{CallError, connect};
use super::socket::Socket;
use crate::output::{Exit, Failure, Output};

/// More than any number of providers says.
const LONGEST: usize = 16 * 1024 * 1024;

type Row = [String; 2];

/// Why the answer is not told.
#[derive(Debug, thiserror::Error)]
enum AdminError {
    #[error(
        "what listens at {socket} is not the admin socket of a casemate-kms ({reason}): its address stands in the \
         configuration, at admin.endpoint; a KMS socket is asked with --socket"
    )]
    Other { socket: Socket, reason: String },
    #[error(
        "{socket} does not exist: start the plugin; its configuration needs `admin: {{endpoint: {socket}}}` at the top level, \
         for without it there is no admin socket"
    )]
    Missing { socket: Socket },
    #[error("{socket} is busy: others hold all its connections; try again in some seconds")]
    Busy { socket: Socket },
    #[error(
        "{socket} gave no answer within {timeout:?}: the program hangs or the host is overloaded, see its log; \
         --timeout gives it longer"
    )]
    Deadline { socket: Socket, timeout: Duration },
    #[error(
        "the answer of {socket} is not understood ({reason}): use a casemate of the same version as the casemate-kms, \
         or --output json"
    )]
    Foreign { socket: Socket, reason: String },
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        Self::new(Exit::Unknown, &error)
    }
}

/// Prints `/status`: for programs as it came, for people in their words.
pub(super) async fn status(socket: &Socket, timeout: Duration, output: &Output) -> Result<Exit, Failure> {
    let text = match ask(socket, timeout, Method::GET, "/status").await? {
        (StatusCode::OK, text) => text,
        (code, _) => return Err(other(socket, code)),
    };
    let foreign =
        |error: serde_json::Error| AdminError::Foreign { socket: socket.clone(), reason: error.to_string() };
    let json: Value = serde_json::from_slice(&text).map_err(foreign)?;
    // What people read is written from the fields that are known; a program may know more.
    let known: Result<Document, _> = serde_json::from_value(json.clone());
    let writes = |provider: &Value| provider["writing"] == Value::Bool(true);
    let not_started = json["configuration"]["not_started"].as_array().is_some_and(|names| !names.is_empty());
    let providers = json["providers"].as_array().filter(|providers| !providers.is_empty());
    let Some(all_write) = providers.map(|providers| providers.iter().all(writes)) else {
        return Err(AdminError::Other { socket: socket.clone(), reason: "no providers".into() }.into());
    };
    let rows = match known {
        Ok(document) => rows(&document),
        Err(_) if output.is_json() => Vec::new(),
        Err(error) => return Err(foreign(error).into()),
    };
    output.answer(&json, rows)?;
    Ok(if all_write && !not_started { Exit::Yes } else { Exit::No })
}

/// What `/status` says, in fields that are known.
pub(crate) async fn document(socket: &Socket, timeout: Duration) -> Result<Document, Failure> {
    match ask(socket, timeout, Method::GET, "/status").await? {
        (StatusCode::OK, text) => understood(socket, &text),
        (code, _) => Err(other(socket, code)),
    }
}

/// An answer, in fields that are known.
pub(super) fn understood<T: DeserializeOwned>(socket: &Socket, text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text)
        .map_err(|error| AdminError::Foreign { socket: socket.clone(), reason: error.to_string() }.into())
}

/// An answer that the admin socket of a casemate-kms does not give.
pub(super) fn other(socket: &Socket, code: StatusCode) -> Failure {
    AdminError::Other { socket: socket.clone(), reason: code.to_string() }.into()
}

/// One request. Whoever is too busy to answer is an error here; all other answers are the caller's.
pub(super) async fn ask(
    socket: &Socket,
    timeout: Duration,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), Failure> {
    let stream = connect(socket, timeout).await.map_err(|error| match error {
        CallError::Deadline { .. } => AdminError::Deadline { socket: socket.clone(), timeout }.into(),
        CallError::Missing { .. } => AdminError::Missing { socket: socket.clone() }.into(),
        other => Failure::from(other),
    })?;
    match tokio::time::timeout(timeout, exchange(TokioIo::new(stream), method, path)).await {
        Ok(Ok((StatusCode::SERVICE_UNAVAILABLE, _))) => {
            Err(AdminError::Busy { socket: socket.clone() }.into())
        }
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(reason)) => Err(AdminError::Other { socket: socket.clone(), reason }.into()),
        Err(_) => Err(AdminError::Deadline { socket: socket.clone(), timeout }.into()),
    }
}

async fn exchange(
    stream: TokioIo<tokio::net::UnixStream>,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), String> {
    let reason = |error: hyper::Error| error.to_string();
    let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(reason)?;
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let exchange = async {
        let response = client.send_request(request).await.map_err(reason)?;
        let code = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        body.map(|body| (code, body.to_bytes())).map_err(|error| error.to_string())
    };
    // The connection ends when the exchange has.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = exchange => answer,
        () = driven => Err("the connection ended".into()),
    }
}

fn rows(document: &Document) -> Vec<Row> {
    let providers = document.providers.iter().flat_map(provider);
    let configuration = document.configuration.iter().flat_map(configuration);
    providers.chain(document.audit.iter().flat_map(audit)).chain(configuration).collect()
}

fn configuration(held: &ConfigurationStatus) -> Vec<Row> {
    let mut rows = vec![row("configuration", format!("{}, since {}", held.path, held.since))];
    for absent in &held.not_started {
        rows.push(row("  not started", format!("{}: {}", absent.name, absent.why)));
    }
    if let Some(why) = &held.refused {
        let since = held.refused_since.as_deref().unwrap_or("-");
        rows.push(row("  not taken over", format!("since {since}: {why}")));
    }
    rows
}

fn audit(audit: &AuditStatus) -> Vec<Row> {
    let missing = match audit.missed {
        0 => "no call is missing".to_owned(),
        missed => format!("{missed} calls are missing"),
    };
    let mut rows = vec![row("audit log", missing), row("  head", audit.head.anchor.clone())];
    rows.extend(audit.problem.iter().map(|problem| row("  wrong", problem.clone())));
    rows
}

fn provider(provider: &ProviderStatus) -> Vec<Row> {
    let verdict = if provider.writing { "writes" } else { "does not write" };
    let mut rows =
        vec![row("provider", format!("{} (cluster {}): {verdict}", provider.name, provider.cluster_id))];
    if let Some(next) = &provider.next_write {
        rows.extend(next_write(next));
    }
    if let Some(candidate) = &provider.candidate {
        rows.push(row("  to write soon", candidate_text(candidate)));
    }
    rows.extend(provider.root_keys.iter().map(root_key));
    rows.extend(outage(provider));
    rows.extend(provider.sealed_cache.iter().map(sealed_cache));
    // What writes stands above.
    for rule in &provider.readable.rules {
        let least = rule.min_version.map_or("all versions".into(), |least| format!("versions from {least}"));
        let algorithms = rule.algorithms.join(", ");
        rows.push(row("  readable", format!("{} ({least}; {algorithms})", rule.root_key)));
    }
    for cluster in &provider.readable.clusters {
        rows.push(row(
            "  readable",
            format!("data of cluster {} until {}", cluster.cluster_id, cluster.until),
        ));
    }
    rows.extend(what_is_wrong(provider));
    rows
}

fn next_write(next: &NextWrite) -> Vec<Row> {
    let kek = &next.local_kek;
    let since = next.since.as_ref().map_or(String::new(), |since| format!(", since {since}"));
    let mut rows = vec![
        row("  next write", format!("key id {}{since}", next.key_id)),
        row("  key id hash", next.key_id_hash.clone()),
        row(
            "  local KEK",
            format!("{}…, made {} ({} old)", start(&kek.id), kek.created, age(kek.age_seconds)),
        ),
    ];
    rows.extend(next.roots.iter().map(|root| row("  wrapped under", wrapped_under(root))));
    rows.extend(next.signer.iter().map(|signer| row("  signed by", signer.clone())));
    let recipients = next.recovery_recipients.iter();
    rows.extend(recipients.map(|one| row("  recoverable by", format!("recipient with fingerprint {one}"))));
    rows
}

pub(super) fn candidate_text(candidate: &Candidate) -> String {
    let progress = match (candidate.preparing, candidate.sightings) {
        (true, _) => "its local KEK is being made",
        (false, 0 | 1) => "seen once; it writes when it was seen twice",
        (false, _) => "seen twice; its local KEK could not be made yet",
    };
    let roots: Vec<_> = candidate.roots.iter().map(wrapped_under).collect();
    format!("key id {}, under {}: {progress}", candidate.key_id, roots.join(" and "))
}

fn root_key(key: &RootKeyStatus) -> Row {
    let what_for = if key.r#use == "read" { "reads only" } else { "writes" };
    let version = key.version.as_ref().map_or(String::new(), |root| format!(", {}", root.lineage));
    let good = key.last_good.as_deref().unwrap_or("never");
    let state = match (key.state.as_str(), &key.last_error) {
        ("failing", Some(error)) => {
            let since = key.failing_since.as_deref().unwrap_or(&error.time);
            format!("failing since {since} ({}); last good {good}", error.class)
        }
        ("ok", Some(error)) => format!("ok at {good}; last error {} ({})", error.time, error.class),
        ("ok", None) => format!("ok at {good}"),
        (other, _) => other.to_owned(),
    };
    row("  root key", format!("{} ({what_for}{version}): {state}", key.name))
}

/// Whether root keys that write are out, since when, and what goes on.
fn outage(provider: &ProviderStatus) -> Option<Row> {
    let out = |key: &&RootKeyStatus| {
        let class = key.last_error.as_ref().map(|error| error.class.as_str());
        key.r#use == "write"
            && key.state == "failing"
            && matches!(class, Some("unreachable" | "throttled" | "corrupt"))
    };
    let out: Vec<&RootKeyStatus> = provider.root_keys.iter().filter(out).collect();
    let names: Vec<&str> = out.iter().map(|key| key.name.as_str()).collect();
    // Of one form, so that the first in order of text is the first in time.
    let since = out.iter().filter_map(|key| key.failing_since.as_deref()).min().unwrap_or("-");
    let writes = if provider.writing { "writes go on" } else { "nothing is written" };
    let held = provider.opened_keks.held;
    (!out.is_empty()).then(|| {
        row(
            "  outage",
            format!(
                "since {since}, of {}: {writes}; local KEKs opened to read with: {held}; `casemate doctor` says for how long",
                names.join(", ")
            ),
        )
    })
}

fn sealed_cache(sealed: &SealedCache) -> Row {
    let saved = if sealed.saved { "all that was opened" } else { "not all that was opened" };
    let damaged = match sealed.damaged {
        0 => String::new(),
        damaged => format!("; {damaged} entries were refused: torn, or changed"),
    };
    row("  sealed cache", format!("local KEKs: {}, {saved}{damaged}", sealed.entries))
}

fn what_is_wrong(provider: &ProviderStatus) -> Vec<Row> {
    let sealed = provider.sealed_cache.as_ref().and_then(|sealed| sealed.problem.clone());
    let with_absent = provider.root_keys.iter().filter(|key| !key.absent.is_empty());
    let absent = with_absent.map(|key| format!("root key {}: {}", key.name, lists_absent(&key.absent)));
    troubles(provider).into_iter().chain(absent).chain(sealed).map(|text| row("  wrong", text)).collect()
}

/// All that is wrong with a provider, each text once: it says what to do, too.
pub(super) fn troubles(provider: &ProviderStatus) -> Vec<String> {
    let mut texts: Vec<String> = provider.not_writing_because.iter().cloned().collect();
    texts.extend(provider.trouble.iter().map(|trouble| trouble.message.clone()));
    let failing = provider.root_keys.iter().filter(|key| key.state == "failing");
    texts.extend(failing.filter_map(|key| Some(key.last_error.as_ref()?.message.clone())));
    if !provider.ledger.saved {
        texts.push(
            "the ledger of active key ids could not be written; make room in the state directory or correct its \
             permissions"
                .into(),
        );
    }
    let mut told: Vec<String> = Vec::new();
    for text in texts {
        if !told.iter().any(|earlier| earlier.contains(&text)) {
            told.push(text);
        }
    }
    told
}

fn wrapped_under(root: &WrappedUnder) -> String {
    format!("{} ({})", root.lineage, root.algorithm)
}

/// Enough of an id to find it again.
fn start(id: &str) -> &str {
    id.char_indices().nth(16).map_or(id, |(end, _)| &id[..end])
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn row(name: &str, value: String) -> Row {
    [name.to_owned(), value]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_that_matters() {
        let told = [0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age);
        assert_eq!(told, ["0 s", "119 s", "2 minutes", "119 minutes", "2 hours", "47 hours", "2 days"]);
    }

    #[test]
    fn the_start_of_an_id_is_cut_between_characters() {
        assert_eq!((start("0123456789abcdef01"), start("ä"), start("")), ("0123456789abcdef", "ä", ""));
    }
}
