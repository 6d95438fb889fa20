//! A client for a handful of requests.

use std::{error::Error as _, fs, path::PathBuf, thread, time::Duration};

use reqwest::{Certificate, Client, Identity, Method};
use serde_json::Value;

use crate::{Error, Result, authority::Certified};

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; null if it is empty.
    pub body: Value,
}

/// Where a server is, how to trust it, and who asks.
#[derive(Clone, Debug)]
pub(super) struct Api {
    address: String,
    /// Whom to trust; nobody for one without TLS.
    authority: Option<PathBuf>,
    certified: Option<Certified>,
}

impl Api {
    pub(super) fn new(address: String, authority: Option<PathBuf>) -> Self {
        Self { address, authority, certified: None }
    }

    /// The same as a client with this certificate.
    pub(super) fn certified(self, by: &Certified) -> Self {
        Self { certified: Some(by.clone()), ..self }
    }

    /// A status other than 2xx is an error.
    pub(super) fn checked(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let body = body.map(Value::to_string);
        let answer = self.bytes(method, path, Some(token), body.as_ref().map(String::as_bytes))?;
        self.json(method, path, &answer)
    }

    /// The same with a body that is no JSON, and an answer that need not be.
    pub(super) fn bytes(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&[u8]>,
    ) -> Result<Vec<u8>> {
        let (status, answer) = self.exchange(method, path, token, body)?;
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let found = format!("{status} {}", String::from_utf8_lossy(&answer).trim());
        Err(self.failed(method, path, Some(status), found))
    }

    /// Any status is an answer.
    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let body = body.map(Value::to_string);
        let (status, answer) = self.exchange(method, path, token, body.as_ref().map(String::as_bytes))?;
        Ok(Answer { status, body: self.json(method, path, &answer)? })
    }

    fn json(&self, method: &str, path: &str, answer: &[u8]) -> Result<Value> {
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        let wrong = |error: serde_json::Error| self.failed(method, path, None, error.to_string());
        serde_json::from_slice(answer).map_err(wrong)
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&[u8]>,
    ) -> Result<(u16, Vec<u8>)> {
        let client = self.client()?;
        let ask = async {
            let verb = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
            let mut request = client.map_err(causes)?.request(verb, self.url(path));
            if let Some(token) = token {
                request = request.header("X-Vault-Token", token);
            }
            if let Some(body) = body {
                request = request.body(body.to_owned());
            }
            let response = request.send().await.map_err(causes)?;
            let status = response.status().as_u16();
            let body = response.bytes().await.map_err(causes)?;
            Ok((status, body.to_vec()))
        };
        // A thread and a runtime a request: a caller may be in a runtime of its own, which is then not
        // to be blocked on, and this is no client for speed.
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map_err(|error| error.to_string())?.block_on(ask)
            });
            asking.join().unwrap_or_else(|_| Err("the client panicked".to_owned()))
        })
        .map_err(|found| self.failed(method, path, None, found))
    }

    /// Files are read anew for each request: they may have been replaced.
    fn client(&self) -> Result<reqwest::Result<Client>> {
        let read = |path: &PathBuf| fs::read(path).map_err(Error::file("read", path));
        let trusted = self.authority.as_ref().map(read).transpose()?;
        let own = match &self.certified {
            Some(Certified { certificate, key }) => Some([read(certificate)?, read(key)?].concat()),
            None => None,
        };
        let build = || {
            let trusted = trusted.map(|pem| Certificate::from_pem(&pem)).transpose()?;
            let builder = Client::builder().no_proxy().timeout(Duration::from_secs(60));
            let builder = builder.tls_certs_only(trusted);
            match own {
                Some(pem) => builder.identity(Identity::from_pem(&pem)?).build(),
                None => builder.build(),
            }
        };
        Ok(build())
    }

    fn url(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.address)
    }

    fn failed(&self, method: &str, path: &str, status: Option<u16>, found: String) -> Error {
        Error::Request { request: format!("{method} {}", self.url(path)), status, found }
    }
}

/// An error with what caused it.
fn causes(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
