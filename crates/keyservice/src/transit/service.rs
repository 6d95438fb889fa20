//! Calls to the service, at whichever of its addresses it answers.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::answer;
use crate::http::{Address, Call, Http, Reply, Trouble};
use crate::{Class, Failure};

const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Without it an agent or proxy that wants it refuses the call.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// How long an address may take while another one is left to ask. Callers give up after 2.5 s.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long the last address may take, if nobody gives up before.
const LAST_ATTEMPT: Duration = Duration::from_secs(10);
/// What a remedy says where this machine has no way to an address, or bars it.
const UNIT: &str = "under systemd the unit must allow it (PrivateNetwork=, RestrictAddressFamilies=, IPAddressAllow=: see \
                    docs/how-to/confine.md)";
/// How long a server that does not serve may take to say why.
const HEALTH: Duration = Duration::from_millis(500);

/// The service at its addresses.
pub(super) struct Service {
    http: Http,
    /// The address that is asked first: the one that answered last.
    preferred: AtomicUsize,
}

/// One call.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) path: &'a [&'a str],
    pub(super) namespace: &'a str,
    pub(super) token: Option<HeaderValue>,
    pub(super) body: Option<Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}

impl Service {
    pub(super) fn new(http: Http) -> Self {
        Self { http, preferred: AtomicUsize::new(0) }
    }

    /// See [`Http::certificates`].
    pub(super) async fn certificates(&self) -> Option<[u8; 32]> {
        self.http.certificates().await
    }

    /// The answer of the first address that serves, whatever it is.
    ///
    /// # Errors
    /// If none does, or what answers everywhere is not the service.
    pub(super) async fn ask(&self, request: Request<'_>) -> Result<Reply, Failure> {
        self.in_turn(request, false).await
    }

    /// Like [`Self::ask`], for a call that the service answers once: no other address is asked where this one may
    /// have done it already. One that is sealed has not.
    pub(super) async fn ask_once(&self, request: Request<'_>) -> Result<Reply, Failure> {
        self.in_turn(request, true).await
    }

    async fn in_turn(&self, request: Request<'_>, once: bool) -> Result<Reply, Failure> {
        let call = Call {
            method: request.method,
            path: request.path,
            headers: headers(request.namespace, request.token)?,
            body: request.body,
        };
        let count = self.http.addresses().len();
        let first = self.preferred.load(Ordering::Relaxed) % count;
        let mut failures = Vec::new();
        for step in 0..count {
            let limit = if once || step + 1 == count { LAST_ATTEMPT } else { ATTEMPT };
            match self.attempt((first + step) % count, &call, limit).await {
                Ok(reply) => return Ok(reply),
                Err(missed) => {
                    failures.push(missed.failure);
                    if once && missed.may_be_done {
                        break;
                    }
                }
            }
        }
        Err(together(failures))
    }

    async fn attempt(&self, index: usize, call: &Call<'_>, limit: Duration) -> Result<Reply, Missed> {
        // If whoever called gives up meanwhile, the next call begins with the next address.
        let mut turn = Turn { service: self, index, served: false };
        let mut reply = self.send(index, call, limit).await?;
        if matches!(reply.status, 301 | 302 | 307 | 308) {
            turn.index = self.active(index, &reply).map_err(Missed::not_done)?;
            reply = self.send(turn.index, call, limit).await?;
        }
        if !answer::is_served(reply.status) {
            return Err(self.not_serving(turn.index, &reply).await);
        }
        if matches!(reply.status, 301 | 302 | 307 | 308) {
            return Err(Missed::not_done(self.failure(turn.index, "redirects in a circle")));
        }
        let asked = format!("{}/{}", self.http.addresses()[turn.index], call.path.join("/"));
        if let Err(failure) = answer::expect_shape(&reply, &asked) {
            return Err(self.unlike_the_service(turn.index, failure).await);
        }
        turn.served = true;
        Ok(reply)
    }

    async fn send(&self, index: usize, call: &Call<'_>, limit: Duration) -> Result<Reply, Missed> {
        self.http.send(index, call, limit).await.map_err(|trouble| {
            let address = &self.http.addresses()[index];
            let may_be_done = trouble.may_be_done();
            let failure = match trouble {
                Trouble::Unconnected(what) | Trouble::Unreachable(what) => self.failure(index, &what),
                Trouble::NoTls => Failure::new(
                    Class::Unreachable,
                    format!("{address}: what answers there speaks no TLS"),
                    "see that the port is that of OpenBao or Vault, and that its listener has TLS; one without, on this machine, is \
                     `http://127.0.0.1:PORT` in `addresses`",
                ),
                Trouble::Barred(what) => {
                    let failure = self.failure(index, &what);
                    Failure { remedy: format!("{}; {UNIT}", failure.remedy), ..failure }
                }
                Trouble::Protection(what) => Failure::new(
                    Class::Credential,
                    format!("{address}: {what}"),
                    "see that the CA file is that of the server's certificate, that the certificate names the host or \
                     `serverName`, that no certificate has expired, and that this machine's clock is right",
                ),
                Trouble::Files(what) => Failure::new(
                    Class::Credential,
                    format!("{address}: {what}"),
                    "deliver the certificate files, readable for the user that runs this program",
                )
                .unasked(),
                Trouble::TooLong => answer::corrupt(&address.to_string(), "more than 64 KiB"),
            };
            Missed { failure, may_be_done }
        })
    }

    /// Which of the addresses a standby redirects to.
    fn active(&self, index: usize, reply: &Reply) -> Result<usize, Failure> {
        let location = reply.location.as_deref().unwrap_or_default();
        let known = |address: &Address| address.covers(location);
        self.http.addresses().iter().position(known).ok_or_else(|| {
            Failure::new(
                Class::Unreachable,
                format!(
                    "{} redirects to {:?}, which is none of the configured addresses",
                    self.http.addresses()[index],
                    origin(location)
                ),
                "add it to `addresses` if it is a node of the service, or let standby nodes forward calls",
            )
        })
    }

    /// Of an answer that the service does not give, which has this failure.
    async fn unlike_the_service(&self, index: usize, failure: Failure) -> Missed {
        if !self.http.speaks_tls(index, HEALTH).await {
            return failure.into();
        }
        Missed::not_done(Failure::new(
            Class::Unreachable,
            format!("{}: what answers there speaks TLS, and was asked without", self.http.addresses()[index]),
            "write `https://` in `addresses`, with the host that is in its certificate, and name its authority as `tls.caFile`",
        ))
    }

    async fn not_serving(&self, index: usize, reply: &Reply) -> Missed {
        let status = reply.status;
        let health = self.health(index).await;
        // Who is sealed can't have done anything, nor who says that it is another one's to do.
        let is_elsewhere = matches!(status, 412 | 472 | 473);
        let (state, remedy, may_be_done) = match health {
            Some(Health { initialized: false, .. }) => {
                ("is not initialised", "initialise the service and unseal it", false)
            }
            Some(Health { sealed: true, .. }) => ("is sealed", "unseal it", false),
            Some(Health { standby: true, .. }) => {
                ("is a standby that knows no active node", "see why the cluster has no leader", !is_elsewhere)
            }
            Some(_) => {
                ("is up and does not serve this call", "see the log of OpenBao or Vault", !is_elsewhere)
            }
            None => (
                "does not say how it is",
                "see what answers at this address, and the log of OpenBao or Vault",
                true,
            ),
        };
        let what = format!("{} answers {status}: it {state}", self.http.addresses()[index]);
        let failure =
            Failure { retry_after: reply.retry_after, ..Failure::new(Class::Unreachable, what, remedy) };
        Missed { failure, may_be_done }
    }

    async fn health(&self, index: usize) -> Option<Health> {
        let path = ["v1", "sys", "health"];
        let call = Call { method: Method::GET, path: &path, headers: headers("", None).ok()?, body: None };
        let reply = self.http.send(index, &call, HEALTH).await.ok()?;
        serde_json::from_slice(&reply.body).ok()
    }

    fn failure(&self, index: usize, what: &str) -> Failure {
        let what = format!("{}: {what}", self.http.addresses()[index]);
        Failure::new(
            Class::Unreachable,
            what,
            "see that OpenBao or Vault runs there and that this host reaches it",
        )
    }
}

/// An attempt that no answer came of.
struct Missed {
    failure: Failure,
    /// Whether the service may have done what was asked all the same.
    may_be_done: bool,
}

impl Missed {
    /// Of an answer that says that nothing was done.
    fn not_done(failure: Failure) -> Self {
        Self { failure, may_be_done: false }
    }
}

impl From<Failure> for Missed {
    /// Of an answer: the call has arrived.
    fn from(failure: Failure) -> Self {
        Self { failure, may_be_done: true }
    }
}

/// One attempt at an address.
struct Turn<'a> {
    service: &'a Service,
    index: usize,
    served: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let preferred = &self.service.preferred;
        if self.served {
            preferred.store(self.index, Ordering::Relaxed);
        } else {
            let next = (self.index + 1) % self.service.http.addresses().len();
            // Unless another call has found one that serves.
            let _ = preferred.compare_exchange(self.index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What `sys/health` says, whatever its status.
#[derive(Deserialize)]
struct Health {
    initialized: bool,
    sealed: bool,
    #[serde(default)]
    standby: bool,
}

fn headers(namespace: &str, token: Option<HeaderValue>) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(REQUEST, HeaderValue::from_static("true"));
    if !namespace.is_empty() {
        let value = HeaderValue::from_str(namespace).map_err(|_| {
            let what = format!("namespace {namespace:?} can't be sent");
            Failure::new(Class::Refused, what, "correct `namespace` in the configuration").unasked()
        })?;
        headers.insert(NAMESPACE, value);
    }
    if let Some(token) = token {
        headers.insert(TOKEN, token);
    }
    Ok(headers)
}

/// Of several addresses' failures: the class that all have, else that nobody answered.
fn together(mut failures: Vec<Failure>) -> Failure {
    let Some(last) = failures.pop() else {
        let what = "there is no address to ask";
        return Failure::new(Class::Unreachable, what, "configure `addresses`").unasked();
    };
    if failures.is_empty() {
        return last;
    }
    failures.push(last);
    let mixed = failures.iter().any(|failure| failure.class != failures[0].class);
    let class = if mixed { Class::Unreachable } else { failures[0].class };
    let mut remedies: Vec<&str> = failures.iter().map(|failure| failure.remedy.as_str()).collect();
    remedies.dedup();
    let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
    let retry_after = failures.iter().filter_map(|failure| failure.retry_after).min();
    let unasked = failures.iter().all(|failure| failure.unasked);
    Failure { retry_after, unasked, ..Failure::new(class, what.join("; "), remedies.join("; ")) }
}

/// Scheme, host and port only: what follows is not ours to repeat.
fn origin(location: &str) -> String {
    reqwest::Url::parse(location).map_or_else(|_| "no URL".into(), |url| url.origin().ascii_serialization())
}
