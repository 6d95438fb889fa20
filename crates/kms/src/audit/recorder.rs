//! What a call costs: one event into a bounded queue, and no wait, unless the admin wants none that is not written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::format::{Call, Head, MAX_KEY_ID, MAX_UID, PeerIds, Shortened};
use super::writer::Layout;
use crate::config::OnFailure;
use crate::traffic::{Method, code_name};

/// How long a call waits for its line with `onFailure: refuse`: less than kube-apiserver waits for the call.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    /// To write; and, if somebody waits, whether it is written. Its place is free again when it is taken.
    Call(Call, Option<oneshot::Sender<bool>>, OwnedSemaphorePermit),
    /// To write the same file in another way from now on.
    Change(Layout),
    /// To write what came so far, and end.
    Stop,
}

/// What the writer and those who look from outside share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) head: ArcSwap<Head>,
    /// Calls that found no place in the queue and that no line tells of yet.
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

/// The way into an audit log. Cheap to clone; clones share their places in the queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub(super) queue: Sender<Message>,
    /// What bounds the queue: who has places of its own can't be kept out by others.
    pub(super) places: Arc<Semaphore>,
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
        let call = blank(provider, method, peer);
        Recording { running: Some((self.clone(), call)), started: Instant::now() }
    }

    /// A call has ended that never began: its answer is a refusal, whether this can be written or not.
    pub fn rejected(&self, provider: &Arc<str>, method: Method, peer: PeerIds, code: Code, took: Duration) {
        let mut call = blank(provider, method, peer);
        ended(&mut call, code, took);
        // That it is missed is counted, and will be in the log.
        let _ = self.send(call, None);
    }

    fn send(&self, call: Call, written: Option<oneshot::Sender<bool>>) -> Result<(), NotRecorded> {
        let place = self.places.clone().try_acquire_owned().ok();
        // A writer that is gone has dropped its end of the queue.
        let sent = place.and_then(|place| self.queue.send(Message::Call(call, written, place)).ok());
        sent.ok_or_else(|| {
            self.shared.queue_full.fetch_add(1, Ordering::Relaxed);
            self.shared.missed.fetch_add(1, Ordering::Relaxed);
            NotRecorded
        })
    }
}

fn blank(provider: &Arc<str>, method: Method, peer: PeerIds) -> Call {
    Call {
        time: Timestamp::UNIX_EPOCH,
        provider: provider.clone(),
        method: method.name(),
        uid: None,
        peer,
        key_id: None,
        outcome: code_name(Code::Cancelled),
        duration_us: 0,
        root_key_asked: None,
    }
}

fn ended(call: &mut Call, code: Code, took: Duration) {
    call.time = Timestamp::now();
    call.outcome = code_name(code);
    call.duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
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
        ended(&mut call, code, self.started.elapsed());
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Two providers before one writer that writes nothing yet.
    fn two(places: usize) -> ([Recorder; 2], Receiver<Message>) {
        let (queue, messages) = channel();
        let shared = Arc::new(Shared::default());
        let recorder = |_| Recorder {
            queue: queue.clone(),
            places: Arc::new(Semaphore::new(places)),
            shared: shared.clone(),
            on_failure: OnFailure::Refuse,
        };
        ([0, 1].map(recorder), messages)
    }

    fn begin(recorder: &Recorder) -> Recording {
        recorder.begin(&"casemate".into(), Method::Encrypt, PeerIds::default())
    }

    fn answer(message: Message) {
        let Message::Call(_, Some(written), _) = message else { panic!("{message:?}") };
        written.send(true).unwrap();
    }

    #[tokio::test]
    async fn who_fills_its_places_takes_none_of_others() {
        let ([noisy, quiet], messages) = two(8);
        let mut waiting = Vec::new();
        for _ in 0..8 {
            waiting.push(tokio::spawn(begin(&noisy).end(Code::Ok)));
            tokio::task::yield_now().await;
        }
        // Calls that were given up and those that were rejected take places too, and no more than there are.
        drop(begin(&noisy));
        noisy.rejected(&"casemate".into(), Method::Other, PeerIds::default(), Code::Internal, Duration::ZERO);
        assert_eq!(begin(&noisy.clone()).end(Code::Ok).await, Err(NotRecorded));
        assert_eq!(noisy.missed(), 3);
        waiting.push(tokio::spawn(begin(&quiet).end(Code::Ok)));
        tokio::task::yield_now().await;
        assert_eq!(messages.try_iter().map(answer).count(), 9);
        for call in waiting {
            assert_eq!(call.await.unwrap(), Ok(()));
        }
        // What the writer has taken leaves its place.
        for _ in 0..8 {
            drop(begin(&noisy));
        }
        assert_eq!(noisy.missed(), 3);
    }

    #[tokio::test]
    async fn nobody_is_recorded_once_the_writer_is_gone() {
        let ([recorder, _], messages) = two(8);
        drop(messages);
        for _ in 0..20 {
            assert_eq!(begin(&recorder).end(Code::Ok).await, Err(NotRecorded));
        }
        assert_eq!((recorder.missed(), recorder.places.available_permits()), (20, 8));
    }
}
