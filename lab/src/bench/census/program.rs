//! `casemate`, run to its end and measured from outside.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::objects::PREFIX;
use crate::plugin::product;
use crate::process;

/// One that ended well.
pub(super) struct Ran {
    pub(super) wall: Duration,
    /// Resident memory at its highest, in KiB.
    pub(super) highest: u64,
    /// What it printed.
    pub(super) answer: Value,
}

/// `casemate` with these words, on the objects of the benchmark.
pub(super) fn command(words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(product("casemate")?);
    command.args(words).args(["--output", "json", "--prefix", PREFIX]);
    Ok(command)
}

pub(super) fn run(command: &Command) -> anyhow::Result<Ran> {
    let began = Instant::now();
    let mut child = process::tied_to_us(command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
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
    let answer = serde_json::from_reader(child.stdout.take().context("no output")?)?;
    ensure!(status.success(), "{}: {status}, {answer}", process::as_typed(command));
    Ok(Ran { wall, highest, answer })
}

impl Ran {
    pub(super) fn json(&self) -> Value {
        json!({"wall_s": self.wall.as_secs_f64(), "highest_kib": self.highest})
    }
}

fn high_water(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
