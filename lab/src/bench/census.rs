//! How quick a census is and what memory it takes, on what a real etcd wrote.
//!
//! Objects are encrypted as kube-apiserver does under KMS v2, by DEK sources that a real `casemate-kms` sealed. That of an
//! API server would take an hour; what a census reads is the same.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use casemate_wire::etcd_write::kv_client::KvClient;
use casemate_wire::etcd_write::{PutRequest, RequestOp, TxnRequest, request_op};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use super::Options;
use super::daemon::{Daemon, Stored, runtime};
use crate::Lab;
use crate::cache::say;
use crate::plugin::product;

/// Bytes of an object.
const OBJECT: usize = 1024;
/// In one transaction: etcd takes 128.
const TOGETHER: usize = 100;
/// Transactions at a time.
const IN_FLIGHT: usize = 8;
/// DEK sources: of API servers that were restarted now and then.
const SOURCES: usize = 12;
/// A tenth of all is there when the memory is taken that does not depend on the number of keys.
const BASE: usize = 10;

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("census").apiservers(0).start()?, runtime()?);
    let key = lab.dir().join("root.key");
    let id = root_key(&key)?;
    let daemon = Daemon::start(&lab, &runtime, "node", &json!({"file": {"path": key, "id": id}}))?;
    let sources = Arc::new(runtime.block_on(daemon.seal(SOURCES))?);

    let (base, all) = (options.objects / BASE, options.objects);
    let (small, large) = (lab.dir().join("base.db"), lab.dir().join("all.db"));
    say(&format!("writing {all} objects"));
    fill(&lab, &runtime, &sources, 0..base)?;
    lab.etcd().snapshot(&small)?;
    fill(&lab, &runtime, &sources, base..all)?;
    lab.etcd().snapshot(&large)?;
    let base = json!({"objects": base, "taken": census(&small, base)?});
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        say(&format!("round {}", round + 1));
        rounds.push(census(&large, all)?);
    }
    let bytes = fs::metadata(&large)?.len();
    Ok(json!({"objects": all, "object_bytes": OBJECT, "bytes": bytes, "base": base, "snapshot": rounds}))
}

/// The whole command, its checksum of the file included.
fn census(file: &Path, objects: usize) -> anyhow::Result<Value> {
    let mut command = Command::new(product("casemate")?);
    command.args(["census", "snapshot", "--output", "json"]).arg(file);
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut highest = 0;
    // What it prints is small: it fits a pipe.
    let status = loop {
        highest = high_water(child.id()).unwrap_or(highest);
        match child.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let wall = began.elapsed();
    let printed: Value = serde_json::from_reader(child.stdout.take().context("no output")?)?;
    let live = &printed["files"][0]["survey"]["live"];
    ensure!(status.success() && *live == objects, "{file:?}: {status}, {live} live objects of {objects}");
    Ok(json!({"wall_s": wall.as_secs_f64(), "highest_kib": highest}))
}

fn high_water(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn fill(
    lab: &Lab,
    runtime: &Runtime,
    sources: &Arc<Vec<Stored>>,
    objects: std::ops::Range<usize>,
) -> anyhow::Result<()> {
    let endpoint = lab.etcd().endpoint();
    runtime.block_on(async {
        let client = KvClient::new(Endpoint::from_shared(endpoint)?.connect().await?);
        let mut writers = JoinSet::new();
        for begin in objects.clone().step_by(TOGETHER) {
            if writers.len() == IN_FLIGHT {
                writers.join_next().await.context("no writer")???;
            }
            let (mut client, sources) = (client.clone(), sources.clone());
            let end = objects.end.min(begin + TOGETHER);
            writers.spawn(async move {
                let puts = (begin..end).map(|number| put(&sources[number % SOURCES], number));
                let success = puts.collect::<anyhow::Result<_>>()?;
                client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
                anyhow::Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        Ok(())
    })
}

fn put(source: &Stored, number: usize) -> anyhow::Result<RequestOp> {
    let resource = if number.is_multiple_of(2) { "secrets" } else { "configmaps" };
    let key = format!("/registry/{resource}/team-{:04}/object-{number:08}", number % 1000);
    let mut object = b"k8s\0".to_vec();
    object.resize(OBJECT, b'.');
    let value = source.encrypt(&key, &object)?;
    let put = PutRequest { key: key.into_bytes().into(), value: value.into(), lease: 0 };
    Ok(RequestOp { request: Some(request_op::Request::RequestPut(put)) })
}

fn root_key(path: &Path) -> anyhow::Result<String> {
    let mut command = Command::new(product("casemate")?);
    command.args(["key", "new", "--output", "json", "--file"]).arg(path);
    let printed: Value = serde_json::from_slice(&crate::process::run_checked(&command, b"")?)?;
    Ok(printed["id"].as_str().context("casemate key new names no id")?.to_owned())
}
