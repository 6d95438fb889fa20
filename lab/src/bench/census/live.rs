//! A census of a running etcd, beside the least that reading all of it takes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use casemate_wire::etcd::RangeRequest;
use casemate_wire::etcd::kv_client::KvClient;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use super::{objects, program};
use crate::Lab;
use crate::cache::say;

/// Bytes of a page, as a census without a rate has them.
const PAGE: usize = 1 << 20;
const MAX_MESSAGE: usize = 32 << 20;

pub(super) fn run(lab: &Lab, runtime: &Runtime, count: usize, rounds: u32) -> anyhow::Result<Value> {
    let endpoint = lab.etcd().endpoint();
    let mut keys: Vec<String> = (0..count).map(objects::key).collect();
    keys.sort_unstable();
    let (newest, at_once) = runtime.block_on(async { Reader::new(&endpoint).await?.look(&keys[0]).await })?;
    // As kube-apiserver has it done each five minutes. What was overwritten before is no part of what a Range reads.
    lab.etcd().compact(newest.unsigned_abs())?;
    // One thread, as the census has.
    let alone = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all = Vec::new();
    for round in 0..rounds {
        say(&format!("a running etcd, round {}", round + 1));
        let bare = || -> anyhow::Result<Value> {
            let took =
                alone.block_on(async { Reader::new(&endpoint).await?.read(&keys, at_once, newest).await })?;
            Ok(json!({"wall_s": took.as_secs_f64()}))
        };
        let census = || -> anyhow::Result<Value> {
            let words = ["census", "etcd", "--rate", "0", "--endpoints", &endpoint];
            let ran = program::run(&program::command(&words)?)?;
            let live = &ran.answer["files"][0]["survey"]["live"];
            ensure!(*live == count, "{live} live objects of {count}");
            Ok(ran.json())
        };
        let (bare, census) = if round % 2 == 0 {
            let bare = bare()?;
            (bare, census()?)
        } else {
            let census = census()?;
            (bare()?, census)
        };
        all.push(json!({"bare": bare, "census": census}));
    }
    Ok(json!({"keys_a_page": at_once, "rounds": all}))
}

/// Reads pages and drops them.
struct Reader {
    client: KvClient<Channel>,
}

impl Reader {
    async fn new(endpoint: &str) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(endpoint.to_owned())?.tcp_nodelay(true).connect().await?;
        Ok(Self { client: KvClient::new(channel).max_decoding_message_size(MAX_MESSAGE) })
    }

    /// The newest revision, and how many keys as long as `key` and their values make a page.
    async fn look(&mut self, key: &str) -> anyhow::Result<(i64, usize)> {
        let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
        let answer = self.client.range(request).await?.into_inner();
        let pair = answer.kvs.first().with_context(|| format!("{key} is not there"))?;
        let keys = PAGE / (pair.key.len() + pair.value.len());
        Ok((answer.header.context("no header")?.revision, keys))
    }

    /// All `keys` as they were at `revision`, `at_once` a page. etcd counts all keys of a range, whatever its limit: each
    /// range here is that of its page, which is the least of work that one can give it.
    async fn read(&mut self, keys: &[String], at_once: usize, revision: i64) -> anyhow::Result<Duration> {
        let began = Instant::now();
        for page in keys.chunks(at_once) {
            let end = [page[page.len() - 1].as_bytes(), &[0]].concat();
            let request = RangeRequest {
                key: page[0].clone().into(),
                range_end: end.into(),
                revision,
                serializable: true,
                ..RangeRequest::default()
            };
            let found = self.client.range(request).await?.into_inner().kvs.len();
            ensure!(found == page.len(), "{found} keys from {}, of {}", page[0], page.len());
        }
        Ok(began.elapsed())
    }
}
