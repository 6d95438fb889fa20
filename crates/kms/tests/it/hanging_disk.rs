//! A state directory whose file system does not answer: what would need it is told so, and what serves goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use casemate_kms::provider::{ANSWERS_WITHIN, Observer, Provider, Store, StoreError, Told};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use crate::grpc::{DEK, double};
use crate::node::{Node, reading, settings};
use crate::succession::Running;

/// Who opens it waits, as for a server that is gone, until it is dropped.
struct Hanging(PathBuf);

impl Hanging {
    fn at(path: PathBuf) -> Self {
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self(path)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // Both directions, so that neither this nor who waits there waits any more.
        let opened = File::options().read(true).write(true).open(&self.0);
        std::thread::sleep(Duration::from_millis(50));
        let _ = fs::remove_file(&self.0);
        drop(opened);
    }
}

/// What a task comes to, though the clock does not go by itself while a thread waits for a disk.
async fn ended<T>(task: JoinHandle<T>) -> T {
    for _ in 0..100 * ANSWERS_WITHIN.as_secs() {
        if task.is_finished() {
            return task.await.unwrap();
        }
        for _ in 0..100 {
            yield_now().await;
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
        advance(Duration::from_millis(500)).await;
    }
    panic!("it waits without bound");
}

fn aside(folder: &Path, name: &str) -> PathBuf {
    folder.join("test").join(format!("{name}.new"))
}

#[tokio::test(start_paused = true)]
async fn a_take_over_ends_with_an_error_and_what_held_goes_on() {
    let (a, b) = (double("a"), double("b"));
    let running = Arc::new(Running::start(settings(&[&a])).await);
    let hanging = Hanging::at(aside(running.folder(), "record.rehearsed"));
    let (asked, configured) = (running.clone(), reading(&[&b], &[&a]));
    let refused = ended(tokio::spawn(async move { asked.prepare(configured).await.map(drop) })).await;
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("it would not write") && why.contains("has given no answer for"), "{why}");
    assert!(running.provider.encrypt(DEK, &Told::default()).await.is_ok());
    drop(hanging);
    // It is as good as ever once the disk answers.
    let asked = running.clone();
    let ready = tokio::spawn(async move { asked.prepare(reading(&[&b], &[&a])).await });
    ended(ready).await.unwrap().begin();
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_hangs_stops_no_change() {
    let (a, b) = (double("a"), double("b"));
    let running = Arc::new(Running::start(settings(&[&a])).await);
    let mut ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let hanging = Hanging::at(aside(running.folder(), "ledger"));
    let ready = ended(tokio::spawn(async move {
        ready.note().await;
        ready
    }))
    .await;
    let next = ready.provider().clone();
    ready.begin();
    assert!(next.encrypt(DEK, &Told::default()).await.is_ok());
    drop(hanging);
}

#[tokio::test(start_paused = true)]
async fn a_start_ends_with_an_error() {
    let (key, folder) = (double("a"), tempfile::tempdir().unwrap());
    drop(Node::start_in(folder.path(), settings(&[&key])).await);
    let record = folder.path().join("test/record");
    fs::remove_file(&record).unwrap();
    let hanging = Hanging::at(record);
    let store = Store::open_in_time(folder.path(), "test").await.unwrap();
    let provider = Arc::new(Provider::new(settings(&[&key]), store));
    let begun = ended(tokio::spawn(async move { Observer::begin(provider, None).await.map(drop) })).await;
    assert!(matches!(begun, Err(StoreError::Hangs { .. })), "{begun:?}");
    drop(hanging);
}
