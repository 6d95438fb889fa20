//! How quick a snapshot is opened, and what OpenBao is asked for it.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::super::daemon::{Daemon, Stored};
use super::super::transit::{Transit, Way};
use super::program::{self, Ran};
use crate::Lab;
use crate::cache::say;

/// Local KEKs, each of one start of a plugin, and DEK sources under each: of API servers that were restarted now and then.
const KEKS: usize = 4;
const SOURCES: usize = 3;

/// What objects are encrypted by, and who has its keys.
pub(super) struct Keys<'lab> {
    /// Of all local KEKs in turn.
    pub(super) sources: Vec<Stored>,
    /// A plugin on the root key.
    pub(super) daemon: Daemon,
    way: Way,
    _transit: Transit<'lab>,
}

impl<'lab> Keys<'lab> {
    pub(super) fn make(lab: &'lab Lab, runtime: &Runtime) -> anyhow::Result<Self> {
        say(&format!("making {KEKS} local KEKs, one by each start of a plugin"));
        let transit = Transit::start(lab)?;
        let way = transit.way("node", &json!({"token_ttl": "1h"}))?;
        let (mut sources, mut last) = (Vec::new(), None);
        for number in 0..KEKS {
            let daemon = Daemon::start(lab, runtime, &format!("node-{number}"), &way.root_key)?;
            sources.extend(runtime.block_on(daemon.seal(SOURCES))?);
            if let Some(before) = last.replace(daemon) {
                before.remove()?;
            }
        }
        Ok(Self { sources, daemon: last.context("no plugin")?, way, _transit: transit })
    }

    /// The command, for `objects` of `file`. OpenBao is asked once for each local KEK, or it is an error.
    fn recover(
        &self,
        words: &[&str],
        file: &Path,
        objects: usize,
        out: Option<&Path>,
    ) -> anyhow::Result<Ran> {
        self.way.proxy.forget_counts();
        let mut command = program::command(words)?;
        command.arg(file).arg("--config").arg(self.daemon.config());
        if let Some(folder) = out {
            command.arg("--out").arg(folder);
        }
        let ran = program::run(&command)?;
        let (opened, calls) = (&ran.answer["opened"], self.way.calls());
        ensure!(*opened == objects, "{words:?}: {opened} of {objects} objects open");
        ensure!(calls.unwrap == KEKS, "{words:?}: {} unwraps of {KEKS} local KEKs", calls.unwrap);
        ensure!(ran.answer["calls"] == KEKS, "{words:?} tells of {} calls", ran.answer["calls"]);
        Ok(ran)
    }
}

/// A drill opens all of it and writes nothing; manifests are written of the small snapshot, to memory: what a disk takes
/// for so many files is its own.
pub(super) fn run(
    keys: &Keys<'_>,
    [(small, few), (large, many)]: [(&Path, usize); 2],
    rounds: u32,
) -> anyhow::Result<Value> {
    let (mut drills, mut written) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        say(&format!("recovery, round {}", round + 1));
        drills.push(keys.recover(&["recover", "drill"], large, many, None)?.json());
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let out = folder.path().join("recovered");
        written.push(keys.recover(&["recover", "snapshot"], small, few, Some(&out))?.json());
    }
    Ok(
        json!({"keks": KEKS, "sources": KEKS * SOURCES, "drills": drills, "written_objects": few, "written": written}),
    )
}
