//! Whether anything grows: a plugin under steady load, to which new local KEKs of another node come all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use casemate_wire::kms_v2::StatusRequest;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::admin::metric;
use super::daemon::{Daemon, Stored, runtime};
use super::sampled::sample;
use super::transit::{Transit, Way};
use super::{Options, Service, hsm};
use crate::Lab;
use crate::cache::say;

/// Each calls Status, Encrypt and Decrypt in turn, and rests.
const CALLERS: usize = 4;
const REST: Duration = Duration::from_millis(10);
const NEW_KEK_EVERY: Duration = Duration::from_millis(500);
const SAMPLES: u32 = 120;

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("soak").apiservers(0).start()?, runtime()?);
    match options.service {
        Service::Transit => {
            let transit = Transit::start(&lab)?;
            // Renewed each 20 s, and a new login each two minutes.
            let way = transit.way("node", &json!({"token_ttl": "30s", "token_max_ttl": "2m"}))?;
            // Others have logins of their own, so that this one's can be counted.
            let others = transit.way("others", &json!({"token_ttl": "10s"}))?;
            soak(&lab, &runtime, options, &way.root_key, &others.root_key, Some((&transit, &way)))
        }
        Service::Pkcs11 => {
            let root_key = hsm::start(&lab)?;
            soak(&lab, &runtime, options, &root_key, &root_key, None)
        }
    }
}

fn soak(
    lab: &Lab,
    runtime: &Runtime,
    options: &Options,
    root_key: &Value,
    others: &Value,
    transit: Option<(&Transit<'_>, &Way)>,
) -> anyhow::Result<Value> {
    let daemon = Daemon::start(lab, runtime, "soaked", root_key)?;
    let served = Arc::new(AtomicUsize::new(0));
    let mut callers = runtime.block_on(callers(&daemon, &served))?;
    let length = Duration::from_secs(60 * u64::from(options.minutes));
    say(&format!("{} minutes", options.minutes));
    let (started, mut samples, mut opened) = (Instant::now(), Vec::new(), 0);
    while started.elapsed() < length {
        if started.elapsed() >= NEW_KEK_EVERY * opened {
            let other = Daemon::start(lab, runtime, "other", others)?;
            let stored = runtime.block_on(other.seal(1))?;
            other.remove()?;
            runtime.block_on(async { stored[0].open(&mut daemon.client().await?).await })?;
            opened += 1;
        }
        if started.elapsed() >= length * u32::try_from(samples.len())? / SAMPLES {
            let mut taken = json!({
                "at_s": started.elapsed().as_secs_f64(),
                "served": served.load(Ordering::Relaxed),
                "opened_keks": metric(&daemon.admin, "casemate_kms_kek_cache_entries", "")?,
                "processes": sample(daemon.process.pid())?,
            });
            if let Some((transit, way)) = transit {
                taken["tokens"] = json!(tokens(transit)?);
                taken["proxied_connections"] = json!(way.proxy.connections());
                taken["calls"] = way.calls().json();
            }
            samples.push(taken);
        }
        std::thread::sleep(Duration::from_millis(100));
        ensure!(daemon.process.is_running(), "it ended:\n{}", daemon.process.log_tail(15));
        ensure!(
            callers.len() == CALLERS && runtime.block_on(async { callers.try_join_next() }).is_none(),
            "a call failed"
        );
    }
    runtime.block_on(callers.shutdown());
    Ok(json!({"minutes": options.minutes, "samples": samples}))
}

/// They end at the first call that fails.
async fn callers(daemon: &Daemon, served: &Arc<AtomicUsize>) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let mut callers = JoinSet::new();
    let stored: Arc<Vec<Stored>> = Arc::new(daemon.seal(32).await?);
    for _ in 0..CALLERS {
        let (mut client, stored, served) = (daemon.client().await?, stored.clone(), served.clone());
        callers.spawn(async move {
            for stored in stored.iter().cycle() {
                client.status(StatusRequest {}).await?;
                Stored::seal(&mut client).await?;
                stored.open(&mut client).await?;
                served.fetch_add(3, Ordering::Relaxed);
                tokio::time::sleep(REST).await;
            }
            Ok(())
        });
    }
    Ok(callers)
}

/// How many the service holds; the others' last for 10 s.
fn tokens(transit: &Transit<'_>) -> anyhow::Result<usize> {
    let listed = transit.bao.read("auth/token/accessors?list=true")?;
    Ok(listed["data"]["keys"].as_array().map_or(0, Vec::len))
}
