//! What a call costs: one event into a bounded queue, and no wait, unless the admin wants none that is not written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::format::{Call, Head, MAX_KEY_ID, MAX_UID, PeerIds, Shortened};
use crate::config::OnFailure;
use crate::traffic::{Method, code_name};

/// How long a call waits for its line with `onFailure: refuse`: less than kube-apiserver waits for the call.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    /// To write; and, if somebody waits, whether it is written.
    Call(Call, Option<oneshot::Sender<bool>>),
    /// To write what came so far, and end.
    Stop,
}

/// What the writer and those who look from outside share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) head: ArcSwap<Head>,
    /// Calls that found the queue full and that no line tells of yet.
    pub(super) queue_full: AtomicU64,
    /// Calls since the start that are not in the log.
    pub(super) missed: AtomicU64,
    pub(super) problem: ArcSwapOption<String>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            head: ArcSwap::from_pointee(Head::EMPTY),
            queue_full: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            problem: ArcSwapOption::empty(),
        }
    }
}

/// The way into an audit log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub(super) queue: SyncSender<Message>,
    pub(super) shared: Arc<Shared>,
    pub(super) on_failure: OnFailure,
}

/// A call that must not be answered because the log does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit log can't be written, and the configuration wants no call that is not in it (audit.onFailure: \
     refuse); see the plugin's log, make room on its disk"
)]
pub struct NotRecorded;

impl Recorder {
    /// The last line that was written.
    pub fn head(&self) -> Head {
        **self.shared.head.load()
    }

    /// Calls since the start that are not in the log.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }

    /// Why nothing can be written now.
    pub fn problem(&self) -> Option<Arc<String>> {
        self.shared.problem.load_full()
    }

    /// A call has begun.
    pub fn begin(&self, provider: &Arc<str>, method: Method, peer: PeerIds) -> Recording {
        let call = Call {
            time: Timestamp::UNIX_EPOCH,
            provider: provider.clone(),
            method: method.name(),
            uid: None,
            peer,
            key_id: None,
            outcome: code_name(Code::Cancelled),
            duration_us: 0,
            root_key_asked: None,
        };
        Recording { running: Some((self.clone(), call)), started: Instant::now() }
    }

    fn send(&self, call: Call, written: Option<oneshot::Sender<bool>>) -> Result<(), NotRecorded> {
        self.queue.try_send(Message::Call(call, written)).map_err(|_| {
            self.shared.queue_full.fetch_add(1, Ordering::Relaxed);
            self.shared.missed.fetch_add(1, Ordering::Relaxed);
            NotRecorded
        })
    }
}

/// A call that is being served. It is recorded when the answer is known, or as cancelled when it is dropped before.
#[derive(Debug)]
pub struct Recording {
    running: Option<(Recorder, Call)>,
    started: Instant,
}

impl Recording {
    /// Of a call that nobody records.
    pub fn none() -> Self {
        Self { running: None, started: Instant::now() }
    }

    /// What the client calls it.
    pub fn uid(&mut self, uid: &str) {
        if let Some((_, call)) = &mut self.running {
            call.uid = Some(Shortened::new(uid, MAX_UID));
        }
    }

    /// Under which key id it is written, or is to be read.
    pub fn key_id(&mut self, key_id: &str) {
        if let Some((_, call)) = &mut self.running {
            call.key_id = Some(Shortened::new(key_id, MAX_KEY_ID));
        }
    }

    /// Whether it waits for a root key. For Decrypt, whose every line says so.
    pub fn root_key_asked(&mut self, asked: bool) {
        if let Some((_, call)) = &mut self.running {
            call.root_key_asked = Some(asked);
        }
    }

    /// The answer is known.
    ///
    /// # Errors
    /// [`NotRecorded`] if it must not be given. Never with `onFailure: serve`.
    pub async fn end(mut self, code: Code) -> Result<(), NotRecorded> {
        let Some((recorder, call)) = self.finish(code) else { return Ok(()) };
        match recorder.on_failure {
            OnFailure::Serve => {
                // That it is missed is counted, and will be in the log.
                let _ = recorder.send(call, None);
                Ok(())
            }
            OnFailure::Refuse => {
                let (tell, written) = oneshot::channel();
                recorder.send(call, Some(tell))?;
                match timeout(WRITTEN_WITHIN, written).await {
                    Ok(Ok(true)) => Ok(()),
                    _ => Err(NotRecorded),
                }
            }
        }
    }

    fn finish(&mut self, code: Code) -> Option<(Recorder, Call)> {
        let (recorder, mut call) = self.running.take()?;
        call.time = Timestamp::now();
        call.outcome = code_name(code);
        call.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Some((recorder, call))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some((recorder, call)) = self.finish(Code::Cancelled) {
            let _ = recorder.send(call, None);
        }
    }
}
