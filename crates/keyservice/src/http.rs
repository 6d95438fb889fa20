//! HTTP to a key service: one call to one configured address, with nothing that a hostile or broken server could
//! abuse. No proxy from the environment, no redirect that is followed blindly, no cookie, bounded answers.
//!
//! * [`Address`]: where a key service answers. [`Tls`]: how its connection is protected.
//! * `Http`: the client. Its certificate files are read again when they change.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Method, Url};
use zeroize::Zeroizing;

mod tls;
mod trouble;

pub(crate) use tls::open;
pub use tls::{ClientCertificate, Tls};
pub(crate) use trouble::Trouble;

/// The longest answer that is read. The longest that is needed, a key of hundreds of versions, has some kilobytes.
pub(crate) const MAX_ANSWER: usize = 64 * 1024;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(1);

/// What a server may ask us to wait at most.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Where a key service answers: an `https` URL, or an `http` URL of this machine.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(Url);

impl Address {
    /// Whether TLS protects the way there.
    pub fn is_protected(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The port that is connected to.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(443)
    }

    /// Whether its host is a name, which has to be looked up.
    pub fn is_named(&self) -> bool {
        self.0.domain().is_some()
    }

    /// Whether `location`, which a server redirects to, is this address.
    pub(crate) fn covers(&self, location: &str) -> bool {
        Url::parse(location).is_ok_and(|url| url.origin() == self.0.origin())
    }

    /// The URL of a path below this address, each segment percent-encoded.
    fn join(&self, server_name: Option<&str>, path: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Some(name) = server_name.filter(|_| self.is_protected()) {
            // Checked to be a host name when the configuration was.
            let _ = url.set_host(Some(name));
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// A text that is no address of a key service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no address of a key service: {reason}; an address is https://HOST:PORT, or http://127.0.0.1:PORT \
     where the service listens on this machine"
)]
pub struct AddressError {
    /// What was found, without what could be a password.
    pub found: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refuse = |reason| {
            let shown = text.rsplit_once('@').map_or(text, |(_, host)| host);
            Err(AddressError { found: shown.chars().take(200).collect(), reason })
        };
        let Ok(url) = Url::parse(text) else { return refuse("it is no URL") };
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return refuse("it names no host");
        };
        let here = host == "localhost"
            || host
                .trim_matches(|c| c == '[' || c == ']')
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback());
        match url.scheme() {
            "https" => {}
            "http" if here => {}
            "http" => return refuse("http is not protected, and the host is not this machine"),
            _ => return refuse("its scheme is neither https nor http"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("it holds a user name or password");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("it has a query or a fragment");
        }
        Ok(Self(url))
    }
}

/// One call, to whichever address.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a [&'a str],
    pub(crate) headers: HeaderMap,
    /// JSON.
    pub(crate) body: Option<Zeroizing<Vec<u8>>>,
}

/// What came back, whatever its status.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) location: Option<String>,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// A client for several addresses of one service.
pub(crate) struct Http {
    addresses: Vec<Address>,
    clients: tls::Clients,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Http {
    /// Reads no file yet: what is not there now may be there at the first call.
    pub(crate) fn new(addresses: Vec<Address>, tls: Tls) -> Self {
        Self { clients: tls::Clients::new(addresses.clone(), tls), addresses }
    }

    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Of the certificate files in use, which are looked at first, if it is time to. `None` if none can be used.
    pub(crate) async fn certificates(&self) -> Option<[u8; 32]> {
        // What is wrong with them is said by who sends.
        let _ = self.clients.client(0, false).await;
        self.clients.digest()
    }

    /// Sends `call` to the address of this index and reads the whole answer, within `limit`.
    pub(crate) async fn send(
        &self,
        index: usize,
        call: &Call<'_>,
        limit: Duration,
    ) -> Result<Reply, Trouble> {
        let attempt = async {
            match self.attempt(index, call, false).await {
                // New files may have been delivered since they were looked at.
                Err(trouble) if trouble.is_of_certificates() => match self.clients.look_again().await {
                    true => self.attempt(index, call, true).await,
                    false => Err(trouble),
                },
                other => other,
            }
        };
        let sent = tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| {
            Err(Trouble::Unreachable(format!("no whole answer within {} ms", limit.as_millis())))
        });
        sent.map_err(|trouble| trouble.with(self.clients.complaint()))
    }

    /// Whether what answers at this address speaks TLS, though the address says that it does not. For who had an answer
    /// there that the service does not give.
    pub(crate) async fn speaks_tls(&self, index: usize, limit: Duration) -> bool {
        let Ok(client) = self.clients.client(index, true).await else { return false };
        let mut url = self.addresses[index].0.clone();
        if self.addresses[index].is_protected() || url.set_scheme("https").is_err() {
            return false;
        }
        let sent = tokio::time::timeout(limit, client.head(url).send()).await;
        sent.is_ok_and(|sent| sent.map_or_else(|error| trouble::is_of_a_server_with_tls(&error), |_| true))
    }

    async fn attempt(&self, index: usize, call: &Call<'_>, again: bool) -> Result<Reply, Trouble> {
        let client = self.clients.client(index, again).await?;
        let url = self.addresses[index].join(self.clients.server_name(), call.path);
        let mut request = client.request(call.method.clone(), url).headers(call.headers.clone());
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_vec());
        }
        let mut response = request.send().await.map_err(Trouble::from)?;
        let headers = response.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let mut reply = Reply {
            status: response.status().as_u16(),
            retry_after: text(RETRY_AFTER).and_then(|value| wait(value, text(DATE))),
            location: text(LOCATION).map(str::to_owned),
            body: Zeroizing::new(Vec::new()),
        };
        // Made in one piece: a buffer that grows leaves copies behind.
        let announced = response.content_length().unwrap_or(MAX_ANSWER as u64);
        if announced > MAX_ANSWER as u64 {
            return Err(Trouble::TooLong);
        }
        reply.body.reserve_exact(announced as usize);
        while let Some(chunk) = response.chunk().await.map_err(Trouble::from)? {
            if reply.body.len() + chunk.len() > MAX_ANSWER {
                return Err(Trouble::TooLong);
            }
            reply.body.extend_from_slice(&chunk);
        }
        Ok(reply)
    }
}

/// How long `Retry-After` asks to wait: seconds, or a date, which is told by the server's own clock if it shows it.
fn wait(value: &str, date: Option<&str>) -> Option<Duration> {
    let asked = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = instant(value)?;
            let now = date.and_then(instant).unwrap_or_else(jiff::Timestamp::now);
            Duration::from_secs(u64::try_from(until.as_second() - now.as_second()).unwrap_or(0))
        }
    };
    Some(asked.min(MAX_RETRY_AFTER))
}

fn instant(date: &str) -> Option<jiff::Timestamp> {
    jiff::fmt::rfc2822::parse(date.trim()).ok().map(|zoned| zoned.timestamp())
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

#[cfg(test)]
mod tests;
