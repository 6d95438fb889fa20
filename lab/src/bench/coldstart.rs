//! A control-plane node comes up with nothing in memory and on disk, and reads what many restarts wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::Options;
use super::daemon::{Client, Daemon, Stored, runtime};
use super::transit::{Transit, Way};
use crate::Lab;
use crate::cache::say;
use crate::fault_proxy::Mode;

/// Of each call to the key service and back.
const DELAYS: [u64; 4] = [0, 5, 40, 200];
const IN_FLIGHT: [usize; 2] = [1, 50];
/// How many local KEKs, beside the most.
const KEKS: [usize; 2] = [1, 21];

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("coldstart").apiservers(0).start()?, runtime()?);
    let transit = Transit::start(&lab)?;
    let way = transit.way("node", &json!({"token_ttl": "1h"}))?;
    say(&format!("making {} local KEKs, one by each start of a plugin", options.keks));
    let written = written(&lab, &runtime, &way, options)?;
    let sizes = KEKS.into_iter().filter(|size| *size < options.keks).chain([options.keks]);
    let mut cells = Vec::new();
    for size in sizes {
        for delay in DELAYS {
            for in_flight in IN_FLIGHT {
                let cell = Cell { keks: size, delay, in_flight };
                say(&format!("{size} local KEKs, {delay} ms, {in_flight} in flight"));
                cells.push(cell.measure(&lab, &runtime, &way, &written)?);
            }
        }
    }
    Ok(json!({"sources": options.sources, "cells": cells}))
}

/// By local KEK.
fn written(lab: &Lab, runtime: &Runtime, way: &Way, options: &Options) -> anyhow::Result<Vec<Vec<Stored>>> {
    let mut all = Vec::with_capacity(options.keks);
    for number in 0..options.keks {
        let daemon = Daemon::start(lab, runtime, &format!("writer-{number}"), &way.root_key)?;
        all.push(runtime.block_on(daemon.seal(options.sources))?);
        daemon.remove()?;
    }
    Ok(all)
}

struct Cell {
    keks: usize,
    delay: u64,
    in_flight: usize,
}

impl Cell {
    fn measure(
        &self,
        lab: &Lab,
        runtime: &Runtime,
        way: &Way,
        written: &[Vec<Stored>],
    ) -> anyhow::Result<Value> {
        let Self { keks, delay, in_flight } = *self;
        way.proxy.set_mode(Mode::Delay { request: Duration::from_millis(delay), answer: Duration::ZERO })?;
        way.proxy.forget_counts();
        let daemon =
            Daemon::start(lab, runtime, &format!("reader-{keks}-{delay}-{in_flight}"), &way.root_key)?;
        let starting = way.settled(Duration::from_millis(2 * delay));
        way.proxy.forget_counts();
        // Every local KEK is met before any is met again, as in a list of objects that were written in turn.
        let per_kek = written.first().map_or(0, Vec::len);
        let wanted: Vec<Stored> = (0..per_kek)
            .flat_map(|source| written[..keks].iter().map(move |under| under[source].clone()))
            .collect();
        let count = wanted.len();
        let client = runtime.block_on(daemon.client())?;
        let started = Instant::now();
        runtime.block_on(open_all(client, Arc::new(wanted), in_flight))?;
        let wall = started.elapsed();
        let reading = way.calls();
        let ready = daemon.ready;
        daemon.remove()?;
        ensure!(reading.unwrap >= keks, "{} unwraps opened {keks} local KEKs", reading.unwrap);
        Ok(json!({
            "keks": keks, "delay_ms": delay, "in_flight": in_flight, "decrypts": count,
            "starting": starting.json(), "ready_s": ready.as_secs_f64(),
            "reading": reading.json(), "wall_s": wall.as_secs_f64(),
        }))
    }
}

/// So many at a time, over one connection, as kube-apiserver does.
async fn open_all(client: Client, wanted: Arc<Vec<Stored>>, in_flight: usize) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..in_flight {
        let (mut client, wanted, next) = (client.clone(), wanted.clone(), next.clone());
        callers.spawn(async move {
            while let Some(stored) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                stored.open(&mut client).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}
