//! What a client of an API server notices of a census of the etcd below it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::super::daemon::Daemon;
use super::program;
use crate::cache::say;
use crate::{Encryption, Lab};

/// How long a part of a round is.
const PART: Duration = Duration::from_secs(6);
/// Before: a census asks how many keys there are, and connections are made.
const WARM_UP: Duration = Duration::from_secs(1);
/// Rounds for each that was asked for: they are short, and what the machine does besides is in each.
const MORE_ROUNDS: u32 = 4;

pub(super) fn run(lab: &Lab, runtime: &Runtime, plugin: &Daemon, rounds: u32) -> anyhow::Result<Value> {
    say("an API server on the same etcd");
    lab.add_apiserver(Encryption::kms("bench", &plugin.socket))?;
    let mut caller = Caller::new(lab)?;
    runtime.block_on(caller.call(WARM_UP))?;
    let mut all = Vec::new();
    for round in 0..rounds * MORE_ROUNDS {
        say(&format!("an API client beside a census, round {}", round + 1));
        let (idle, census);
        if round % 2 == 0 {
            idle = part(runtime, &mut caller)?;
            census = beside(lab, runtime, &mut caller)?;
        } else {
            census = beside(lab, runtime, &mut caller)?;
            idle = part(runtime, &mut caller)?;
        }
        all.push(json!({"idle": idle, "census": census}));
    }
    Ok(json!(all))
}

fn part(runtime: &Runtime, caller: &mut Caller) -> anyhow::Result<Value> {
    runtime.block_on(async {
        caller.call(WARM_UP).await?;
        caller.call(PART).await
    })
}

/// While a census at its default rate goes on from the beginning to the end.
fn beside(lab: &Lab, runtime: &Runtime, caller: &mut Caller) -> anyhow::Result<Value> {
    let command = program::command(&["census", "etcd", "--endpoints", &lab.etcd().endpoint()])?;
    let census = lab.spawn("beside", &command)?;
    let called = part(runtime, caller)?;
    ensure!(census.is_running(), "the census ended before its time:\n{}", census.log_tail(15));
    census.kill9();
    Ok(called)
}

/// Makes a Secret, reads it and replaces it, in turn and one at a time. A GET of kube-apiserver without a
/// `resourceVersion` is read from etcd.
struct Caller {
    client: Client,
    secrets: String,
    token: String,
    made: u64,
}

impl Caller {
    fn new(lab: &Lab) -> anyhow::Result<Self> {
        let server = lab.apiserver(0)?;
        let trusted = Certificate::from_pem(&fs::read(server.certificate())?)?;
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(60)).tls_certs_only([trusted]);
        Ok(Self {
            client: client.build()?,
            secrets: format!("{}/api/v1/namespaces/default/secrets", server.url()),
            token: server.token().to_owned(),
            made: 0,
        })
    }

    /// Calls for so long, and tells how long each took.
    async fn call(&mut self, how_long: Duration) -> anyhow::Result<Value> {
        let began = Instant::now();
        let mut took = Vec::new();
        while began.elapsed() < how_long {
            let name = format!("foreground-{}", self.made);
            self.made += 1;
            let url = format!("{}/{name}", self.secrets);
            let secret = |filler: char| {
                let data = json!({"value": String::from(filler).repeat(1000)});
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
            };
            took.push(self.ask(Method::POST, &self.secrets, Some(secret('a'))).await?);
            took.push(self.ask(Method::GET, &url, None).await?);
            took.push(self.ask(Method::PUT, &url, Some(secret('b'))).await?);
        }
        took.sort_unstable();
        let rank = |percent: usize| took[(took.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        Ok(json!({"calls": took.len(), "p50_us": rank(50), "p99_us": rank(99)}))
    }

    async fn ask(&self, method: Method, url: &str, body: Option<Value>) -> anyhow::Result<Duration> {
        let mut request = self.client.request(method, url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let began = Instant::now();
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await.context("an answer broke off")?;
        let took = began.elapsed();
        ensure!(status.is_success(), "{url}: {status}: {text}");
        Ok(took)
    }
}
