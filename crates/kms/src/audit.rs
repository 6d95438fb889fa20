//! The audit log: who asked what, one line a call, in a file whose lines are chained.
//!
//! What it promises:
//! * a call costs one event in a bounded queue; only `onFailure: refuse` makes it wait for its line to be written;
//! * what is not in the log is counted, and the log says so once it can be written again;
//! * kill -9 at any moment leaves at most a part of one line, which the next start sets aside;
//! * nothing secret, no ciphertext and no digest of a DEK source is in it.
//!
//! What the chain proves and what not, and to whom, is in [`chain`]. [`format`], [`chain`] and [`key`] stand alone:
//! `casemate audit verify` uses them without the daemon.
//!
//! Map: [`format`] (one line), [`chain`] (whether lines belong together), [`key`] (authenticates checkpoints),
//! `recorder` (what a call does), `writer` (the one thread that writes), `file` (the file itself).

pub mod chain;
mod file;
pub mod format;
pub mod key;
mod recorder;
mod writer;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use self::file::FileError;
pub use self::format::Head;
use self::key::{DeliveredKey, KeyError};
use self::recorder::{Message, Shared};
pub use self::recorder::{NotRecorded, Recorder, Recording};
use self::writer::{Layout, Writer};
use crate::config::{AuditConfig, OnFailure};

/// Calls of one provider that wait for the writer: some seconds of a disk that hangs, at the rate of a busy API server.
const PLACES: usize = 4096;
/// How long a stop waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// An audit log that can't be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Its file.
    #[error("audit log: {0}")]
    File(#[from] FileError),
    /// Its key.
    #[error("audit log, checkpointKey: {0}")]
    Key(#[from] KeyError),
    /// No thread for it.
    #[error("audit log: no thread can be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Another way to write a log.
#[derive(Debug)]
pub struct Changed {
    layout: Layout,
    on_failure: OnFailure,
}

impl Layout {
    fn of(config: &AuditConfig) -> Result<Self, AuditError> {
        let key = config.checkpoint_key.as_ref().map(|key| DeliveredKey::read(&key.path)).transpose()?;
        Ok(Self { path: config.path.to_path_buf(), max_bytes: config.max_bytes.0, keep: config.keep.0, key })
    }
}

/// A log that is being written.
#[derive(Debug)]
pub struct Audit {
    recorder: Recorder,
    writer: thread::JoinHandle<()>,
}

impl Audit {
    /// Opens the log that `config` names, and begins to write. A disk that is full now is no error.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn start(config: &AuditConfig) -> Result<Self, AuditError> {
        let layout = Layout::of(config)?;
        let shared = Arc::new(Shared::default());
        let writer = Writer::open(layout, shared.clone())?;
        let (queue, messages) = channel();
        let writer = thread::Builder::new().name("audit".into()).spawn(move || writer.run(&messages))?;
        let places = Arc::new(Semaphore::new(PLACES));
        Ok(Self { recorder: Recorder { queue, places, shared, on_failure: config.on_failure }, writer })
    }

    /// A way into it, with places in the queue for one provider alone: what others send can't fill them.
    pub fn recorder(&self) -> Recorder {
        Recorder { places: Arc::new(Semaphore::new(PLACES)), ..self.recorder.clone() }
    }

    /// What it takes to go on in the same file as `config` says; nothing is different yet.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn prepare(&self, config: &AuditConfig) -> Result<Changed, AuditError> {
        Ok(Changed { layout: Layout::of(config)?, on_failure: config.on_failure })
    }

    /// Goes on in this way; calls that begin with a recorder from now on are recorded so.
    pub fn change(&mut self, changed: Changed) {
        self.recorder.on_failure = changed.on_failure;
        // A writer that is gone has ended with the process.
        let _ = self.recorder.queue.send(Message::Change(changed.layout));
    }

    /// Writes what was recorded until now, and the last checkpoint.
    pub async fn stop(self) {
        let ended = spawn_blocking(move || {
            // What is in the queue is written first; a writer that is gone has ended.
            let _ = self.recorder.queue.send(Message::Stop);
            self.writer.join().is_ok()
        });
        match timeout(LAST_LINES, ended).await {
            Ok(Ok(true)) => {}
            Ok(_) => tracing::error!("the writer of the audit log ended unexpectedly; please report this"),
            Err(_) => {
                tracing::error!("the disk of the audit log does not answer: the last lines may be missing")
            }
        }
    }
}
