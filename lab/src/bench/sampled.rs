//! What a program and all that it started take of the machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde_json::{Value, json};

/// A process at one moment.
#[derive(Debug, Default)]
struct Sample {
    resident_kib: u64,
    own_kib: u64,
    descriptors: usize,
    threads: u64,
}

/// Program `pid` and its descendants, each under the name of what it does.
pub(super) fn sample(pid: u32) -> io::Result<Value> {
    let parents = parents()?;
    let descends = |mut of: u32| {
        while of != pid {
            match parents.get(&of) {
                Some(parent) => of = *parent,
                None => return false,
            }
        }
        true
    };
    let mut processes = BTreeMap::new();
    for process in parents.keys().copied().filter(|process| descends(*process)) {
        // One that has ended meanwhile is none.
        if let (Ok(word), Ok(Sample { resident_kib, own_kib, descriptors, threads })) =
            (role(process), of(process))
        {
            processes.insert(
                format!("{word} {process}"),
                json!({"resident_kib": resident_kib, "own_kib": own_kib, "descriptors": descriptors, "threads": threads}),
            );
        }
    }
    Ok(json!(processes))
}

fn parents() -> io::Result<BTreeMap<u32, u32>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { continue };
        // After the name, which may hold anything: state, parent.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        if let Some(parent) = after.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) {
            parents.insert(process, parent);
        }
    }
    Ok(parents)
}

/// Its first argument: `serve`, `pkcs11-keeper`, `pkcs11-host`.
fn role(process: u32) -> io::Result<String> {
    let words = fs::read(format!("/proc/{process}/cmdline"))?;
    let word = words.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(word).into_owned())
}

fn of(process: u32) -> io::Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    Ok(Sample {
        resident_kib: field("VmRSS"),
        own_kib: field("RssAnon"),
        threads: field("Threads"),
        descriptors: fs::read_dir(format!("/proc/{process}/fd"))?.count(),
    })
}
