//! What callers of a plugin notice of a key service that takes calls and never answers.
//!
//! Calls that need no key service are timed with kube-apiserver's own client while others read what nobody has opened yet:
//! those wait for the key service. The same readers are there while it is well.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::Options;
use super::admin::metric;
use super::daemon::{Daemon, Stored, endpoint, runtime};
use super::transit::{Transit, Way};
use crate::cache::say;
use crate::fault_proxy::Mode;
use crate::{Lab, Tool, process};

/// Who read what nobody has opened, and the rest of each after a read that failed or not.
const READERS: usize = 8;
const READ_EVERY: Duration = Duration::from_millis(100);
/// Local KEKs for each part in which it is well, and for each in which it hangs.
const KEKS: usize = 60;
/// The breaker opens when the plugin itself has asked twice in vain: it asks each 200 s while all is well.
const FINDS_OUT_WITHIN: Duration = Duration::from_secs(300);

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("outage").apiservers(0).start()?, runtime()?);
    let transit = Transit::start(&lab)?;
    let way = transit.way("node", &json!({"token_ttl": "1h"}))?;
    let client = Tool::KmsClient37.path()?;
    say(&format!("making {} local KEKs", 2 * KEKS));
    let read_when_well = written(&lab, &runtime, &way, "well")?;
    let read_in_vain = written(&lab, &runtime, &way, "hangs")?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let daemon = Daemon::start(&lab, &runtime, &format!("round-{round}"), &way.root_key)?;
        let part = |name: &str, wanted: &Arc<Vec<Stored>>| {
            say(&format!("round {}: {name}", round + 1));
            timed(&runtime, &daemon, &client, options.calls, wanted)
        };
        let (well, hangs);
        if round % 2 == 0 {
            well = part("well", &read_when_well)?;
            way.proxy.set_mode(Mode::BlackHole)?;
            hangs = part("hangs", &read_in_vain)?;
        } else {
            way.proxy.set_mode(Mode::BlackHole)?;
            hangs = part("hangs", &read_in_vain)?;
            way.proxy.set_mode(Mode::Pass)?;
            well = part("well", &read_when_well)?;
            way.proxy.set_mode(Mode::BlackHole)?;
        }
        ensure!(hangs["readers"]["opened"] == 0, "somebody read what can't be opened");
        ensure!(well["readers"]["opened"] != 0, "nobody read while all was well");
        // Once: it takes minutes.
        let found_out = if round + 1 == options.rounds {
            say("waiting until the plugin itself has found out");
            let took = until_found_out(&daemon)?;
            let mut timed = part("hangs, and the plugin knows", &read_in_vain)?;
            timed["found_out_after_s"] = json!(took.as_secs_f64());
            Some(timed)
        } else {
            None
        };
        way.proxy.set_mode(Mode::Pass)?;
        daemon.remove()?;
        rounds.push(json!({"well": well, "hangs": hangs, "found_out": found_out}));
    }
    Ok(json!({"readers": READERS, "read_every_ms": READ_EVERY.as_millis(), "rounds": rounds}))
}

fn written(lab: &Lab, runtime: &Runtime, way: &Way, name: &str) -> anyhow::Result<Arc<Vec<Stored>>> {
    let mut all = Vec::with_capacity(KEKS);
    for number in 0..KEKS {
        let daemon = Daemon::start(lab, runtime, &format!("{name}-{number}"), &way.root_key)?;
        all.extend(runtime.block_on(daemon.seal(1))?);
        daemon.remove()?;
    }
    Ok(Arc::new(all))
}

/// Latencies of calls, one at a time, while the readers read.
fn timed(
    runtime: &Runtime,
    daemon: &Daemon,
    client: &std::path::Path,
    calls: u32,
    wanted: &Arc<Vec<Stored>>,
) -> anyhow::Result<Value> {
    let (opened, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut readers = runtime.block_on(async {
        let client = daemon.client().await?;
        let mut readers = JoinSet::new();
        for reader in 0..READERS {
            let (mut client, wanted) = (client.clone(), wanted.clone());
            let (opened, failed) = (opened.clone(), failed.clone());
            readers.spawn(async move {
                for stored in wanted.iter().cycle().skip(reader * wanted.len() / READERS) {
                    let counter = if stored.open(&mut client).await.is_ok() { &opened } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(READ_EVERY).await;
                }
            });
        }
        anyhow::Ok(readers)
    })?;
    let mut command = Command::new(client);
    command.args(["calls", "--endpoint", &endpoint(&daemon.socket), "--count", &calls.to_string()]);
    command.args(["--warm-up", &(calls / 20).to_string()]);
    let printed = process::run_checked(&command, b"");
    runtime.block_on(readers.shutdown());
    let mut timed: Value = serde_json::from_slice(&printed?).context("kms-client calls")?;
    timed["readers"] =
        json!({"opened": opened.load(Ordering::Relaxed), "failed": failed.load(Ordering::Relaxed)});
    Ok(timed)
}

fn until_found_out(daemon: &Daemon) -> anyhow::Result<Duration> {
    let started = Instant::now();
    while metric(&daemon.admin, "casemate_kms_root_key_breaker", r#"state="open""#)? == 0.0 {
        ensure!(started.elapsed() < FINDS_OUT_WITHIN, "the breaker is not open after {FINDS_OUT_WITHIN:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(started.elapsed())
}
