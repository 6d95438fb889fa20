//! The admin socket: what it tells, in faults too, and that nobody who looks there hurts those who are served.

mod faults;
mod page;
mod program;
mod refresh;
mod rejected;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use casemate_keys::{Algorithm, LocalKek};
use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms::admin::{Admin, CONNECTION_DEADLINE, MAX_CONNECTIONS, Shown, metrics};
use casemate_kms::audit::Recorder;
use casemate_kms::hosted::Hosted;
use casemate_kms::provider::{Provider, Told};
use casemate_kms::socket::{Admission, Socket};
use casemate_wire::kms_v2::{DecryptRequest, EncryptRequest, StatusRequest};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::double::{RootKeyDouble, guarded};
use crate::node::{Clock, Node, Plugin, Stored, THEN, endpoint, settings};

const DEK: [u8; 32] = [0x5a; 32];

/// An admin socket in front of some providers.
struct Window {
    socket: PathBuf,
    _stop: DropGuard,
    _folder: TempDir,
}

impl Window {
    async fn open(providers: impl IntoIterator<Item = Arc<Provider>>) -> Self {
        Self::with(providers, None).await
    }

    async fn with(providers: impl IntoIterator<Item = Arc<Provider>>, audit: Option<Recorder>) -> Self {
        let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let socket = folder.path().join("admin.sock");
        let bound = Socket::bind(&endpoint(&socket), Admission::default()).await.unwrap();
        let hosted = providers.into_iter().map(|provider| Arc::new(Hosted::new(provider, None))).collect();
        let shown = Shown { hosted, audit, ..Shown::default() };
        tokio::spawn(Admin::new(Arc::new(ArcSwap::from_pointee(shown))).serve(bound, stop.clone()));
        Self { socket, _stop: stop.drop_guard(), _folder: folder }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        get(&self.socket, path).await
    }

    /// Of the one provider.
    async fn status(&self) -> ProviderStatus {
        let (code, body) = self.get("/status").await;
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<Document>(&body).unwrap().providers.remove(0)
    }

    async fn metrics(&self) -> String {
        let (code, body) = self.get("/metrics").await;
        assert_eq!(code, 200, "{body}");
        body
    }
}

pub(crate) async fn get(socket: &Path, path: &str) -> (u16, String) {
    ask(socket, format!("GET {path} HTTP/1.1\r\nhost: admin\r\n\r\n").as_bytes()).await
}

/// Code and body; code 0 if the connection ended without an answer.
async fn ask(socket: &Path, request: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let _ = stream.write_all(request).await;
    answer(&mut stream).await
}

async fn answer(stream: &mut UnixStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let code = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
    (code, text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

fn double(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

/// The value of one series.
pub(crate) fn value(metrics: &str, series: &str) -> Option<f64> {
    let rest = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    rest.map(|value| value.parse().unwrap())
}

/// All series without their values.
fn series(metrics: &str) -> BTreeSet<&str> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0).collect()
}

#[tokio::test]
async fn status_tells_what_the_next_write_uses() {
    let key = double("a");
    let mut settings = settings(&[&key]);
    settings.key_names = vec!["main".into()];
    let clock = Clock::of(&mut settings);
    let node = Node::start(settings).await;
    let stored = node.seal(&DEK).await;
    node.open(&stored).await.unwrap();
    clock.advance(7);

    let window = Window::open([node.provider.clone()]).await;
    let status = window.status().await;
    let next = status.next_write.unwrap();
    assert_eq!((status.name.as_str(), status.cluster_id.as_str(), status.writing), ("test", "prod", true));
    assert_eq!(next.key_id, stored.key_id);
    assert_eq!(next.key_id_hash, sha256sum(&stored.key_id));
    let record = stored.record();
    assert_eq!(next.local_kek.id, record.core().kek_id.to_string());
    assert_eq!((next.local_kek.created.as_str(), next.local_kek.age_seconds), ("2027-01-15T08:00:00Z", 7));
    assert_eq!(next.since.as_deref(), Some("2027-01-15T08:00:00Z"), "{THEN} is that");
    assert_eq!((next.roots[0].lineage.as_str(), next.roots[0].algorithm.as_str()), ("exec:a/1", "transit"));

    let root = &status.root_keys[0];
    assert_eq!((root.name.as_str(), root.state.as_str(), root.r#use.as_str()), ("main", "ok", "write"));
    assert_eq!(root.version.as_ref().unwrap().lineage, "exec:a/1");
    assert!(root.last_error.is_none() && root.failing_since.is_none());
    let rule = &status.readable.rules[0];
    assert_eq!((rule.root_key.as_str(), rule.prefix.as_str()), ("main", "exec:a/"));
    assert_eq!((rule.algorithms.as_slice(), rule.min_version), (["transit".to_owned()].as_slice(), None));
    assert_eq!((status.ledger.entries, status.ledger.saved), (1, true));
    assert_eq!(status.ledger.last[0].key_id, stored.key_id);
    assert_eq!((status.opened_keks.hits, status.opened_keks.held), (1, 1));
    assert!(status.candidate.is_none() && status.refused_reuse.is_none() && status.trouble.is_none());

    let metrics = window.metrics().await;
    assert_eq!(value(&metrics, r#"casemate_kms_writing{provider="test"}"#), Some(1.0));
    assert_eq!(value(&metrics, r#"casemate_kms_local_kek_age_seconds{provider="test"}"#), Some(7.0));
    let info = format!(r#"casemate_kms_key_id_info{{provider="test",key_id_hash="{}"}}"#, next.key_id_hash);
    assert_eq!(value(&metrics, &info), Some(1.0));
    let ok = r#"casemate_kms_root_key_observations_total{provider="test",root_key="main",class="ok"}"#;
    assert!(value(&metrics, ok) > Some(2.0), "two looks and a wrap\n{metrics}");
}

/// Not the code under test.
fn sha256sum(text: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut program = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let printed = program.wait_with_output().unwrap().stdout;
    format!("sha256:{}", std::str::from_utf8(&printed).unwrap().split(' ').next().unwrap())
}

#[tokio::test]
async fn a_switch_is_seen_coming() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let window = Window::open([node.provider.clone()]).await;
    let before = window.status().await.next_write.unwrap().key_id;

    key.version_writes(2);
    node.observer.look().await;
    let candidate = window.status().await.candidate.unwrap();
    assert_eq!((candidate.sightings, candidate.preparing), (1, false));
    assert_eq!(candidate.roots[0].lineage, "exec:a/2");
    assert_eq!(candidate.key_id_hash, sha256sum(&candidate.key_id));

    // The second sighting begins to wrap a new local KEK; the root key takes its time.
    key.open_gate(false);
    let wraps = key.calls().wrap;
    let mut look = std::pin::pin!(node.observer.look());
    let preparing = async {
        while key.calls().wrap == wraps {
            tokio::task::yield_now().await;
        }
        window.status().await
    };
    let status = tokio::select! {
        () = &mut look => panic!("the gate is closed"),
        status = preparing => status,
    };
    let now = status.candidate.unwrap();
    assert_eq!((now.sightings, now.preparing, now.key_id), (2, true, candidate.key_id.clone()));
    assert_eq!(status.next_write.unwrap().key_id, before, "the old one writes until the new one can");

    key.open_gate(true);
    look.await;
    let after = window.status().await;
    assert_eq!(after.next_write.unwrap().key_id, candidate.key_id);
    assert!(after.candidate.is_none());
    let ledger: Vec<_> = after.ledger.last.iter().map(|entry| entry.key_id.as_str()).collect();
    assert_eq!(ledger, [before.as_str(), candidate.key_id.as_str()]);
}

#[tokio::test]
async fn the_ledger_shows_its_last_ten() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    for version in 2..=13 {
        key.version_writes(version);
        node.observer.look().await;
        node.observer.look().await;
    }
    let ledger = Window::open([node.provider.clone()]).await.status().await.ledger;
    assert_eq!((ledger.entries, ledger.last.len()), (13, 10));
    assert_eq!(ledger.last[9].key_id, node.provider.status(&Told::default()).unwrap().to_string());
}

#[tokio::test]
async fn root_keys_that_only_read_are_watched_too() {
    let (write, read) = (double("w"), double("r"));
    read.is_local();
    let mut settings = settings(&[&write]);
    settings.read_only_keys = vec![guarded(&read)];
    settings.key_names = vec!["main".into(), "old".into()];
    let mut node = Node::start(settings).await;
    let window = Window::open([node.provider.clone()]).await;
    let state = async || {
        let key = window.status().await.root_keys.remove(1);
        assert_eq!((key.name.as_str(), key.r#use.as_str()), ("old", "read"));
        key.state
    };
    assert_eq!(state().await, "unknown");
    node.observer.look_at_read_keys().await;
    assert_eq!(state().await, "ok");
    read.fails(Some(casemate_keyservice::Class::Credential));
    node.observer.look_at_read_keys().await;
    assert_eq!(state().await, "failing");
    let status = window.status().await;
    assert!(status.writing && status.trouble.is_none(), "nothing follows from it for writing");
    assert_eq!(status.root_keys[1].last_error.as_ref().unwrap().class, "credential");
}

#[tokio::test]
async fn what_clients_send_makes_no_series() {
    let key = double("a");
    let mut plugin = Plugin::serve(settings(&[&key])).await;
    let window = Window::open([plugin.node.provider.clone()]).await;
    let stored = plugin.node.seal(&DEK).await;
    let mut client = plugin.client().await;
    let hostile = |round: usize| -> Vec<DecryptRequest> {
        let text = format!("round-{round}\n\u{1b}[31m\"}} 1\nx{{");
        let (mut other_id, mut annotated, mut changed, mut long) =
            (stored.request(), stored.request(), stored.request(), stored.request());
        other_id.key_id = text.clone();
        annotated.annotations.insert(format!("{text}.example.com"), text.clone().into_bytes().into());
        changed.ciphertext = {
            let mut bytes = stored.ciphertext.clone();
            bytes[50] ^= 1 << (round % 8);
            bytes.into()
        };
        long.uid = text.repeat(100);
        let forged = |kek: &LocalKek| Stored::forged(&[(&key, kek)], |wraps| wraps[0][20] ^= 1, &DEK);
        let damaged = forged(&LocalKek::generate()).request();
        vec![other_id, annotated, changed, long, damaged, DecryptRequest { uid: text, ..Default::default() }]
    };
    let mut all = async |round: usize| {
        for request in hostile(round) {
            let _ = client.decrypt(request).await;
        }
        let plaintext = vec![0; round % 5].into();
        let _ = client.encrypt(EncryptRequest { plaintext, uid: format!("{round}") }).await;
        client.status(StatusRequest {}).await.unwrap();
    };
    all(0).await;
    let first = window.metrics().await;
    // Beyond sixty, wraps that do not open would not be tried any more.
    for round in 1..50 {
        all(round).await;
    }
    let last = window.metrics().await;
    assert_eq!(series(&first), series(&last), "only values change");
    let damaged =
        r#"casemate_kms_root_key_opens_total{provider="test",root_key="exec:a/",class="not_opened"}"#;
    assert_eq!(value(&last, damaged), Some(50.0), "the hostile requests got as far as that");
    let refused = r#"casemate_kms_requests_total{provider="test",method="Decrypt",code="InvalidArgument"}"#;
    assert!(value(&last, refused) >= Some(150.0), "{last}");
    plugin.node.observer.look().await;
    let root = window.status().await.root_keys.remove(0);
    assert!(
        root.state == "ok" && root.last_error.is_none(),
        "what stands in etcd says nothing about a root key"
    );
}

#[tokio::test]
async fn connections_and_calls_are_counted() {
    let plugin = Plugin::serve(settings(&[&double("a")])).await;
    let window = Window::open([plugin.node.provider.clone()]).await;
    let mut client = plugin.client().await;
    for _ in 0..3 {
        client.status(StatusRequest {}).await.unwrap();
    }
    let metrics = window.metrics().await;
    let calls = r#"casemate_kms_requests_total{provider="test",method="Status",code="OK"}"#;
    assert_eq!(value(&metrics, calls), Some(3.0));
    let count = r#"casemate_kms_request_duration_seconds_count{provider="test",method="Status"}"#;
    assert_eq!(value(&metrics, count), Some(3.0));
    let status = window.status().await;
    assert_eq!((status.requests[0].code.as_str(), status.requests[0].count), ("OK", 3));
}

/// The text against the format: each series belongs to a metric of the table, with its labels and type.
#[tokio::test]
async fn the_text_has_every_metric_of_the_table_and_no_other() {
    let plugin = Plugin::serve(settings(&[&double("a")])).await;
    plugin.client().await.status(StatusRequest {}).await.unwrap();
    let text = Window::open([plugin.node.provider.clone()]).await.metrics().await;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            found.insert(described.split(' ').next().unwrap().to_owned());
            continue;
        }
        let Some(name) = line.split(['{', ' ']).next().filter(|name| *name != "#") else { continue };
        let metric = metrics::METRICS.iter().find(|metric| {
            let full = metric.full_name();
            name == full || ["_bucket", "_sum", "_count"].iter().any(|suffix| name == full.clone() + suffix)
        });
        let metric = metric.unwrap_or_else(|| panic!("{name} is not in the table"));
        let mut labels: Vec<&str> = if metric.is_of_a_provider() { vec!["provider"] } else { vec![] };
        labels.extend(metric.labels);
        if name.ends_with("_bucket") {
            labels.push("le");
        }
        let written = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        let written: Vec<&str> = written
            .split(',')
            .filter(|label| !label.is_empty())
            .map(|l| l.split('=').next().unwrap())
            .collect();
        assert_eq!(written, labels, "{line}");
    }
    let table: BTreeSet<String> = metrics::METRICS.iter().map(|metric| metric.full_name()).collect();
    assert_eq!(found, table);
}

#[tokio::test]
async fn whatever_else_is_asked_is_answered_or_closed() {
    let node = Node::start(settings(&[&double("a")])).await;
    let window = Window::open([node.provider.clone()]).await;
    for (path, code) in [
        ("/", 404),
        ("/metrics/", 404),
        ("/status/../status", 404),
        ("/livez?verbose=1", 200),
        ("/readyz?x", 200),
    ] {
        assert_eq!(window.get(path).await.0, code, "{path}");
    }
    let raw = async |request: &[u8]| ask(&window.socket, request).await.0;
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let request = format!("{method} /status HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}");
        assert_eq!(raw(request.as_bytes()).await, 405, "{method}");
    }
    assert_eq!(raw(b"HEAD /status HTTP/1.1\r\nhost: a\r\n\r\n").await, 200);
    assert_eq!(raw(b"\x16\x03\x01\x02\x00\x01").await, 400, "TLS");
    assert_eq!(raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, 0, "HTTP/2 is closed");
    let long = format!("GET /status HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(64 * 1024));
    assert_eq!(raw(long.as_bytes()).await, 431);
    let two = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\nGET /livez HTTP/1.1\r\nhost: a\r\n\r\n";
    let (_, body) = ask(&window.socket, two).await;
    assert_eq!(body, "ok\n", "one request a connection");
    assert_eq!(window.get("/livez").await, (200, "ok\n".into()));
}

/// The clock jumps whenever all wait: the silent ones are closed by their deadline, and by nothing else.
#[tokio::test(start_paused = true)]
async fn who_says_nothing_and_who_does_not_read_lose_their_places() {
    let node = Node::start(settings(&[&double("a")])).await;
    let window = Window::open([node.provider.clone()]).await;
    let started = tokio::time::Instant::now();
    let mut silent = Vec::new();
    for number in 0..MAX_CONNECTIONS {
        let mut stream = UnixStream::connect(&window.socket).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n").await.unwrap();
        }
        silent.push(stream);
    }
    let (code, _) = window.get("/livez").await;
    assert_eq!(code, 503, "all places are taken, and who comes is told at once");
    for mut stream in silent {
        let closed = tokio::time::timeout(2 * CONNECTION_DEADLINE, answer(&mut stream)).await;
        assert_eq!(closed.unwrap().0, 0);
    }
    assert!(started.elapsed() >= CONNECTION_DEADLINE);
    assert!(started.elapsed() < CONNECTION_DEADLINE + Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(window.get("/livez").await.0, 200);
}
