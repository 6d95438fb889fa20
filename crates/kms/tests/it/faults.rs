//! Bad days of the real program, and what users of other plugins met: after each, everything that was acknowledged is
//! read again through a restarted one.
//!
//! `docs/reference/known-failures.md` says which complaint is tested where, here and elsewhere.

mod clock;
mod input;
mod keys;
mod limited_memory;
mod memory_group;
mod nodes;
mod secrets;
mod signals;
mod socket_folder;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::{JoinHandle, JoinSet};
use tonic::Status;

use crate::node::{Client, Stored, connect};
use crate::process::{Host, encrypt};

/// A DEK source, and what kube-apiserver would store of the reply.
type Promise = (Stored, [u8; 32]);

/// What a plugin has promised to keep.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    kept: Arc<Mutex<Vec<Promise>>>,
    next: Arc<AtomicU64>,
}

impl Acknowledged {
    fn count(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    fn all(&self) -> Vec<Promise> {
        self.kept.lock().unwrap().clone()
    }

    /// A DEK source that there was none like.
    fn fresh(&self) -> [u8; 32] {
        let mut dek_source = *b"<number 00000000 of the sources>";
        let number = format!("{:08}", self.next.fetch_add(1, Ordering::Relaxed));
        dek_source[8..16].copy_from_slice(number.as_bytes());
        dek_source
    }

    async fn encrypt(&self, client: &mut Client) -> Result<Stored, Status> {
        let dek_source = self.fresh();
        let stored = encrypt(client, &dek_source).await?;
        self.kept.lock().unwrap().push((stored.clone(), dek_source));
        Ok(stored)
    }

    /// Through whoever serves there, many at a time.
    async fn read_by(&self, client: &Client) {
        let mut reads = JoinSet::new();
        for (stored, dek_source) in self.all() {
            let mut client = client.clone();
            reads.spawn(async move {
                let plaintext =
                    client.decrypt(stored.request()).await.map(|reply| reply.into_inner().plaintext);
                assert_eq!(plaintext.unwrap(), dek_source.as_slice());
            });
        }
        while let Some(read) = reads.join_next().await {
            read.unwrap();
        }
    }

    /// Through a process that has seen none of it. Nothing helps but what was acknowledged, state and key file.
    async fn read_after_a_restart(&self, host: &Host) {
        assert!(self.count() > 0, "nothing was acknowledged: nothing is shown");
        let mut daemon = host.serve();
        self.read_by(&daemon.healthy().await).await;
        daemon.kill();
    }
}

/// Encrypts and decrypts without a pause, so many at a time, over connections of 100 calls each.
struct Load {
    over: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Vec<Status>>>,
}

const CALLS_PER_CONNECTION: usize = 100;

impl Load {
    async fn on(socket: &Path, in_flight: usize, acknowledged: &Acknowledged) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for first in (0..in_flight).step_by(CALLS_PER_CONNECTION) {
            let client = connect(socket).await.unwrap();
            for number in first..in_flight.min(first + CALLS_PER_CONNECTION) {
                let (client, acknowledged, over) = (client.clone(), acknowledged.clone(), over.clone());
                workers.push(tokio::spawn(work(client, acknowledged, over, number % 2 == 0)));
            }
        }
        Self { over, workers }
    }

    /// What failed, until now. Those who had a failure have stopped.
    async fn end(self) -> Vec<Status> {
        self.over.store(true, Ordering::Relaxed);
        let mut failed = Vec::new();
        for worker in self.workers {
            failed.extend(worker.await.unwrap());
        }
        failed
    }
}

async fn work(
    mut client: Client,
    acknowledged: Acknowledged,
    over: Arc<AtomicBool>,
    encrypts_only: bool,
) -> Vec<Status> {
    let mut own: Option<Promise> = None;
    while !over.load(Ordering::Relaxed) {
        let done = match &own {
            Some((stored, dek_source)) if !encrypts_only => read(&mut client, stored, dek_source).await,
            _ => {
                let dek_source = acknowledged.fresh();
                encrypt(&mut client, &dek_source).await.map(|stored| {
                    acknowledged.kept.lock().unwrap().push((stored.clone(), dek_source));
                    own = Some((stored, dek_source));
                })
            }
        };
        if let Err(status) = done {
            return vec![status];
        }
    }
    Vec::new()
}

async fn read(client: &mut Client, stored: &Stored, dek_source: &[u8]) -> Result<(), Status> {
    let reply = client.decrypt(stored.request()).await?.into_inner();
    assert_eq!(reply.plaintext, dek_source, "whatever happens, never something else");
    Ok(())
}

/// The page names each test and its file.
#[test]
fn the_page_of_known_failures_names_tests_that_there_are() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(repository.join("docs/reference/known-failures.md")).unwrap();
    let mut tests = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let mut source = String::new();
        let named = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
        for name in named.split('`').skip(1).step_by(2) {
            if name.ends_with(".rs") {
                let is_whole = ["lab/", "crates/"].iter().any(|start| name.starts_with(start));
                let folder = if is_whole { "" } else { "crates/kms/tests/it" };
                source = std::fs::read_to_string(repository.join(folder).join(name)).unwrap();
            } else {
                assert!(source.contains(&format!("fn {name}(")), "{name}: {row}");
                tests += 1;
            }
        }
    }
    assert!(tests > 20, "{tests}");
}
