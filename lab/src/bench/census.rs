//! How quick a census and a recovery are, what memory they take, and what others notice of a census: on what a real etcd
//! wrote.
//!
//! Objects are encrypted as kube-apiserver does under KMS v2, by DEK sources that a real `casemate-kms` sealed. That of an
//! API server would take an hour; what a census reads is the same.
//!
//! * `objects`: what is written
//! * `program`: `casemate`, run and measured
//! * `recovery`: a snapshot opened, by keys in OpenBao
//! * `live`: a running etcd, beside a reader that does nothing with what it reads
//! * `foreground`: a client of an API server on the same etcd

mod foreground;
mod live;
mod objects;
mod program;
mod recovery;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::ensure;
use serde_json::{Value, json};

use super::Options;
use super::daemon::runtime;
use crate::Lab;
use crate::cache::say;

/// A tenth of all is there when the memory is taken that does not depend on the number of keys.
const BASE: usize = 10;

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("census").apiservers(0).start()?, runtime()?);
    let keys = recovery::Keys::make(&lab, &runtime)?;
    let sources = Arc::new(keys.sources.clone());
    let (base, all) = (options.objects / BASE, options.objects);
    let (small, large) = (lab.dir().join("base.db"), lab.dir().join("all.db"));
    say(&format!("writing {all} objects"));
    objects::fill(&lab, &runtime, &sources, 0..base)?;
    lab.etcd().snapshot(&small)?;
    objects::fill(&lab, &runtime, &sources, base..all)?;
    lab.etcd().snapshot(&large)?;
    let bytes = fs::metadata(&large)?.len();

    let base_taken = snapshot(&small, base)?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        say(&format!("snapshot, round {}", round + 1));
        rounds.push(snapshot(&large, all)?);
    }
    let recovery = recovery::run(&keys, [(&small, base), (&large, all)], options.rounds)?;
    for read in [small, large] {
        fs::remove_file(read)?;
    }
    let live = live::run(&lab, &runtime, all, options.rounds)?;
    let foreground = foreground::run(&lab, &runtime, &keys.daemon, options.rounds)?;
    Ok(json!({
        "objects": all, "object_bytes": objects::OBJECT, "bytes": bytes,
        "base": {"objects": base, "taken": base_taken}, "snapshot": rounds,
        "recovery": recovery, "live": live, "foreground": foreground,
    }))
}

/// The whole command, its checksum of the file included.
fn snapshot(file: &Path, objects: usize) -> anyhow::Result<Value> {
    let ran = program::run(program::command(&["census", "snapshot"])?.arg(file))?;
    let live = &ran.answer["files"][0]["survey"]["live"];
    ensure!(*live == objects, "{file:?}: {live} live objects of {objects}");
    Ok(ran.json())
}
