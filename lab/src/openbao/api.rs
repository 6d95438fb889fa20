//! A client for a handful of requests.

use std::{error::Error as _, thread, time::Duration};

use reqwest::{Client, Method};
use serde_json::Value;

use crate::{Error, Result, ports::Port};

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; null if it is empty.
    pub body: Value,
}

/// Where a server is, and how to trust it.
#[derive(Clone, Debug)]
pub(super) struct Api {
    scheme: &'static str,
    port: u16,
}

impl Api {
    pub(super) fn plain(port: &Port) -> Self {
        Self { scheme: "http", port: port.number() }
    }

    pub(super) fn address(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// A status other than 2xx is an error.
    pub(super) fn checked(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let answer = self.request(method, path, Some(token), body)?;
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        Err(Error::Request {
            request: format!("{method} {}/v1/{path}", self.address()),
            status: Some(answer.status),
            found: format!("{} {}", answer.status, answer.body),
        })
    }

    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let url = format!("{}/v1/{path}", self.address());
        let failed =
            |found: String| Error::Request { request: format!("{method} {url}"), status: None, found };
        let ask = async {
            let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
            let mut request = self.client().map_err(causes)?.request(method, &url);
            if let Some(token) = token {
                request = request.header("X-Vault-Token", token);
            }
            if let Some(body) = body {
                request = request.body(body.to_string());
            }
            let response = request.send().await.map_err(causes)?;
            let status = response.status().as_u16();
            let text = response.bytes().await.map_err(causes)?;
            let body = if text.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&text).map_err(|error| error.to_string())?
            };
            Ok(Answer { status, body })
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
        .map_err(failed)
    }

    fn client(&self) -> reqwest::Result<Client> {
        Client::builder().no_proxy().timeout(Duration::from_secs(60)).tls_certs_only([]).build()
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
