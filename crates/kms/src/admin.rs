//! The admin socket: what goes on, over HTTP/1.1, for people, probes and Prometheus.
//!
//! `GET /livez`, `/readyz`, `/metrics`, `/status`; nothing secret, and no call to a key service. What it shows is read
//! from atomics and immutable snapshots, so that no KMS call waits for who looks here. `POST /refresh` changes nothing
//! either but when observers look at their root keys, and that not without end. Each connection has one request and a deadline; those beyond a
//! fixed number are refused at once.
//!
//! Map: [`status`] (the document), [`metrics`] (names, units, text), [`refresh`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::audit::Recorder;
use crate::hosted::Hosted;
use crate::key_services::KeyServices;
use crate::provider::{Provider, Standing};
use crate::reload::Configured;
use crate::socket::Socket;

pub mod metrics;
pub mod refresh;
pub mod status;

/// Connections that are served at a time.
pub const MAX_CONNECTIONS: usize = 16;
/// How long one connection may take, its slow reader too.
pub const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
/// A provider whose observer has not ended a look for so long hangs: all calls of a look have deadlines, and together
/// they take less.
pub const OBSERVER_HANGS_AFTER: Duration = Duration::from_secs(300);
/// The longest request head.
const MAX_HEAD: usize = 8 * 1024;
/// For those who come when all places are taken.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What there is to show; replaced whole when the configuration changes.
#[derive(Debug, Default)]
pub struct Shown {
    /// Providers, in the order of the configuration.
    pub hosted: Vec<Arc<Hosted>>,
    /// The audit log, where there is one.
    pub audit: Option<Recorder>,
    /// The configuration that holds, if it is one of a file.
    pub configuration: Option<Configured>,
    /// What root keys share, their logins among it.
    pub key_services: KeyServices,
}

impl Shown {
    fn providers(&self) -> Vec<Arc<Provider>> {
        self.hosted.iter().map(|hosted| hosted.provider()).collect()
    }

    /// What `check` says of each provider.
    fn checked(&self, check: fn(&Provider) -> Result<(), String>) -> impl Iterator<Item = Checked> {
        self.hosted.iter().map(move |hosted| (hosted.name().to_string(), check(&hosted.provider())))
    }

    fn not_started(&self) -> impl Iterator<Item = Checked> {
        let failed = self.configuration.iter().flat_map(|held| &held.not_started);
        failed.map(|(name, why)| (name.clone(), Err(format!("is not started: {why}"))))
    }
}

/// What the admin socket shows.
#[derive(Clone, Debug)]
pub struct Admin {
    shown: Arc<ArcSwap<Shown>>,
    refreshes: Arc<refresh::Allowance>,
}

impl Admin {
    /// Shows what is there when it is asked.
    pub fn new(shown: Arc<ArcSwap<Shown>>) -> Self {
        Self { shown, refreshes: Arc::default() }
    }

    /// Serves until `stop`.
    pub async fn serve(self, socket: Socket, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = socket.serve_plain(stop);
        while let Some(stream) = connections.recv().await {
            match places.clone().try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(self.clone().serve_connection(stream, place));
                }
                // Fits into the socket's buffer; if not, closing says it too.
                Err(_) => drop(stream.try_write(BUSY)),
            }
        }
    }

    async fn serve_connection(self, stream: UnixStream, _place: OwnedSemaphorePermit) {
        let service = service_fn(|request: Request<Incoming>| {
            let answer = self.answer(&request);
            async { Ok::<_, Infallible>(answer) }
        });
        let mut http = http1::Builder::new();
        let connection =
            http.keep_alive(false).max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(stream), service);
        // A peer that breaks off or is too slow has what it wanted.
        let _ = tokio::time::timeout(CONNECTION_DEADLINE, connection).await;
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let (method, path) = (request.method(), request.uri().path());
        let shown = self.shown.load_full();
        if path == "/refresh" {
            return match *method {
                Method::POST => refresh::answer(&shown, &self.refreshes, request.uri().query()),
                _ => only("POST"),
            };
        }
        if method != Method::GET && method != Method::HEAD {
            return only("GET, HEAD");
        }
        let verbose = request.uri().query().is_some_and(|query| {
            query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="))
        });
        match path {
            "/livez" => checks(shown.checked(alive), verbose),
            "/readyz" => checks(shown.checked(writes).chain(shown.not_started()), verbose),
            "/metrics" => match metrics::text(shown) {
                Ok(metrics) => of_type(StatusCode::OK, metrics::CONTENT_TYPE, metrics),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            },
            "/status" => match serde_json::to_string_pretty(&status::Document::of(&shown)) {
                Ok(document) => of_type(StatusCode::OK, "application/json", document + "\n"),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            },
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /livez, /readyz, /metrics, /status and /refresh\n".into(),
            ),
        }
    }
}

/// A provider, and what is wrong with it.
type Checked = (String, Result<(), String>);

/// Asks no key service: whether the tasks of the process go on.
fn alive(provider: &Provider) -> Result<(), String> {
    let looked = provider.snapshot().looked.instant.elapsed();
    if looked < OBSERVER_HANGS_AFTER {
        return Ok(());
    }
    Err(format!("has not looked at its root keys for {} s: it hangs; restart the program", looked.as_secs()))
}

fn writes(provider: &Provider) -> Result<(), String> {
    match &*provider.standing() {
        Standing::Writing(_) => Ok(()),
        Standing::Failing(_, reason) => Err(format!("writes, but not for long: {reason}")),
        Standing::Refusing(reason) => Err(format!("does not write: {reason}")),
    }
}

/// As kube-apiserver's own checks look: one line each if asked for or if one is bad.
fn checks(providers: impl Iterator<Item = Checked>, verbose: bool) -> Response<Full<Bytes>> {
    let mut lines = String::new();
    let (mut all, mut bad) = (0, 0);
    for (name, checked) in providers {
        all += 1;
        match checked {
            Ok(()) => lines += &format!("[+] provider {name}: ok\n"),
            Err(why) => {
                bad += 1;
                lines += &format!("[-] provider {name}: {why}\n");
            }
        }
    }
    match (bad, verbose) {
        (0, false) => text(StatusCode::OK, "ok\n".into()),
        (0, true) => text(StatusCode::OK, lines + "ok\n"),
        _ => text(StatusCode::SERVICE_UNAVAILABLE, format!("{lines}{bad} of {all} not ok\n")),
    }
}

fn only(methods: &'static str) -> Response<Full<Bytes>> {
    let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    refused.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static(methods));
    refused
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    of_type(code, "text/plain; charset=utf-8", body)
}

fn of_type(code: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
