//! The one writer of an audit log: numbers events, chains them, rotates, and counts what it could not write.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::file::{FileError, LogFile, Place};
use super::format::{CHECKPOINT_EVERY, Call, Event, Head, Reason, render};
use super::key::{CheckpointKey, DeliveredKey};
use super::recorder::{Message, Shared};

/// Lines without a checkpoint get one after this time.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(300);
/// How often it is looked for calls that were missed and for files that were moved, when there are no calls.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often the journal gets the head while there are calls, so that it anchors more than starts and stops do.
const JOURNAL_EVERY: Duration = Duration::from_secs(3600);
/// Calls that are written at a time.
const BATCH: usize = 256;
const PROGRAM: &str = concat!("casemate-kms/", env!("CARGO_PKG_VERSION"));

/// Where and how a log is written.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) path: PathBuf,
    pub(super) max_bytes: u64,
    pub(super) keep: u32,
    pub(super) key: Option<DeliveredKey>,
}

#[derive(Debug)]
pub(super) struct Writer {
    layout: Layout,
    shared: Arc<Shared>,
    file: Option<LogFile>,
    /// Nothing before the log was opened once: then it is what stands there.
    head: Option<Head>,
    /// Own events that go before the next call.
    due: Vec<Event>,
    /// Calls that no line tells of yet.
    missed: Missed,
    since_checkpoint: u64,
    last_checkpoint: Instant,
    /// What the journal has, and since when.
    journalled: (Head, Instant),
    /// A file that could not be rotated grows until then, before it is tried again.
    no_rotation_below: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    queue_full: u64,
    not_written: u64,
}

/// Lines that are not written yet.
struct Batch {
    head: Head,
    since_checkpoint: u64,
    checkpointed: bool,
    bytes: Vec<u8>,
}

impl Writer {
    /// Opens the log and notes the start. A full disk is no reason not to start: calls are missed, or refused, until
    /// there is room.
    pub(super) fn open(layout: Layout, shared: Arc<Shared>) -> Result<Self, FileError> {
        let mut writer = Self {
            layout,
            shared,
            file: None,
            head: None,
            due: Vec::new(),
            missed: Missed::default(),
            since_checkpoint: 0,
            last_checkpoint: Instant::now(),
            journalled: (Head::EMPTY, Instant::now()),
            no_rotation_below: 0,
        };
        match writer.write(&[]) {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(writer),
        }
    }

    /// Writes what comes until it is told to stop.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut calls = Vec::with_capacity(BATCH);
        let mut waiting = Vec::new();
        let mut key_looked_at = Instant::now();
        loop {
            let (mut stop, mut change) = (false, None);
            let mut next = match messages.recv_timeout(LOOK_EVERY) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Message::Stop),
            };
            while let Some(message) = next {
                match message {
                    Message::Call(call, written, place) => {
                        drop(place);
                        calls.push(call);
                        waiting.extend(written);
                    }
                    Message::Change(layout) => change = Some(layout),
                    Message::Stop => stop = true,
                }
                let enough = stop || change.is_some() || calls.len() == BATCH;
                next = if enough { None } else { messages.try_recv().ok() };
            }
            let written = self.write(&calls).is_ok();
            calls.clear();
            for who in waiting.drain(..) {
                // Who went away needs no answer.
                let _ = who.send(written);
            }
            if let Some(layout) = change {
                self.change(layout);
            }
            if key_looked_at.elapsed() >= LOOK_EVERY {
                self.look_at_key();
                key_looked_at = Instant::now();
            }
            if stop {
                return self.stop();
            }
        }
    }

    /// Writes `calls`, all or none, with what is due before and after them.
    pub(super) fn write(&mut self, calls: &[Call]) -> Result<(), FileError> {
        let written = self.try_write(calls);
        match &written {
            Ok(()) => {
                if self.shared.problem.swap(None).is_some() {
                    tracing::info!("the audit log is written again");
                }
            }
            Err(error) => {
                self.missed.not_written += calls.len() as u64;
                self.shared.missed.fetch_add(calls.len() as u64, Ordering::Relaxed);
                let problem = error.to_string();
                let before = self.shared.problem.swap(Some(Arc::new(problem.clone())));
                if before.is_none_or(|before| *before != problem) {
                    tracing::error!(%problem, "the audit log is not written");
                }
            }
        }
        written
    }

    /// The same file, with other limits or another key.
    fn change(&mut self, layout: Layout) {
        let Layout { path: _, max_bytes, keep, key } = layout;
        (self.layout.max_bytes, self.layout.keep, self.no_rotation_below) = (max_bytes, keep, 0);
        let name = |key: &Option<DeliveredKey>| key.as_ref().map(|key| key.key().name());
        if name(&key) == name(&self.layout.key) {
            // Perhaps of a file elsewhere.
            self.layout.key = key;
        } else {
            self.use_key(key);
        }
    }

    fn look_at_key(&mut self) {
        if let Some(key) = self.layout.key.as_mut().and_then(DeliveredKey::replacement) {
            self.use_key(Some(key));
        }
    }

    /// What stands there is authenticated by the old key, what follows by the new one.
    fn use_key(&mut self, key: Option<DeliveredKey>) {
        if let Err(problem) = self.end_file(Timestamp::now(), Reason::Key) {
            tracing::warn!(%problem, "the last lines of the audit log have no checkpoint of the key that is replaced");
        }
        self.layout.key = key;
        self.due.push(self.checkpoint(Reason::Key));
        self.log_head("another key makes the checkpoints of the audit log");
        // A failure is told, and what is due stays so.
        let _ = self.write(&[]);
    }

    /// The last checkpoint.
    fn stop(mut self) {
        // Calls that were missed are told before the end is.
        let written = self.write(&[]).and_then(|()| {
            self.due.push(self.checkpoint(Reason::Stop));
            self.write(&[])?;
            self.sync()
        });
        if let Err(problem) = written {
            tracing::error!(%problem, "the end of the audit log is not written");
        }
        self.log_head("the audit log ends for now");
    }

    fn try_write(&mut self, calls: &[Call]) -> Result<(), FileError> {
        self.open_if_closed()?;
        self.follow_others()?;
        let now = Timestamp::now();
        self.missed.queue_full += self.shared.queue_full.swap(0, Ordering::Relaxed);
        let mut batch = self.batch(now, calls);
        let length = self.file.as_ref().map_or(0, LogFile::length);
        let full = length > 0 && length + batch.bytes.len() as u64 > self.layout.max_bytes;
        if full && length >= self.no_rotation_below {
            self.rotate(now)?;
            batch = self.batch(now, calls);
        }
        let checkpointed = batch.checkpointed;
        self.append(batch)?;
        self.due.clear();
        self.missed = Missed::default();
        let (told, at) = self.journalled;
        if at.elapsed() >= JOURNAL_EVERY && self.head != Some(told) {
            self.log_head("the audit log grows");
        }
        // Not at the start: those who wait for it have nothing to lose yet.
        if checkpointed && !calls.is_empty() { self.sync() } else { Ok(()) }
    }

    fn open_if_closed(&mut self) -> Result<(), FileError> {
        if self.file.is_some() {
            return Ok(());
        }
        if self.head.is_some() {
            // This process knows better than the file what comes next.
            let mut log = LogFile::open(&self.layout.path)?;
            log.take_as_it_is()?;
            self.file = Some(log);
            return Ok(());
        }
        let found = LogFile::find(&self.layout.path)?;
        if let Some(cut) = &found.cut {
            tracing::warn!(
                bytes = cut.bytes,
                file = cut.file,
                "the audit log ended within a line; it is set aside"
            );
        }
        if let Some(file) = &found.damaged {
            tracing::error!(
                file,
                "the last line of the audit log is damaged; the file is moved aside, a new one begins"
            );
        }
        self.shared.head.store(Arc::new(found.head));
        self.head = Some(found.head);
        self.log_head("the audit log goes on");
        self.file = Some(found.log);
        let (program, pid) = (PROGRAM, std::process::id());
        self.due.push(Event::Start { program, pid, cut: found.cut, damaged: found.damaged });
        self.due.push(self.checkpoint(Reason::Start));
        Ok(())
    }

    /// Goes on where others, such as logrotate, moved the file away or emptied it.
    fn follow_others(&mut self) -> Result<(), FileError> {
        let reason = match self.file.as_ref().map(LogFile::place) {
            Some(Place::Moved) => {
                self.close_file(Timestamp::now(), Reason::Moved)?;
                Reason::Moved
            }
            Some(Place::Changed) => {
                if let Some(file) = &mut self.file {
                    file.take_as_it_is()?;
                }
                Reason::Changed
            }
            _ => return Ok(()),
        };
        tracing::warn!(path = %self.layout.path.display(), ?reason, "somebody else changed the audit log; it goes on");
        self.due.push(Event::Rotation { reason });
        self.open_if_closed()
    }

    /// Goes on in a new file. One that can't be moved grows on.
    fn rotate(&mut self, now: Timestamp) -> Result<(), FileError> {
        // On a full disk too: to remove the oldest file may be what makes room.
        if let Err(problem) = self.end_file(now, Reason::Size) {
            tracing::warn!(%problem, "the audit log is rotated without a last checkpoint");
        }
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(problem) = file.move_on(self.layout.keep) {
            tracing::error!(%problem, "the audit log can't be rotated and grows on");
            self.no_rotation_below = file.length() + self.layout.max_bytes / 8;
            return Ok(());
        }
        self.file = None;
        self.no_rotation_below = 0;
        self.due.insert(0, Event::Rotation { reason: Reason::Size });
        self.log_head("the audit log is rotated");
        self.open_if_closed()
    }

    /// The last words in a file that is at its path no more.
    fn close_file(&mut self, now: Timestamp, reason: Reason) -> Result<(), FileError> {
        if let Err(problem) = self.end_file(now, reason) {
            // It may be deleted: the chain goes on in the new one.
            tracing::warn!(%problem, "the audit log that was moved away ends without a checkpoint");
        }
        self.file = None;
        self.log_head("the audit log was moved away");
        Ok(())
    }

    fn end_file(&mut self, now: Timestamp, reason: Reason) -> Result<(), FileError> {
        if self.since_checkpoint > 0 {
            let mut batch = self.empty_batch();
            batch.push(now, &self.checkpoint(reason), self.key());
            self.append(batch)?;
        }
        self.sync()
    }

    fn empty_batch(&self) -> Batch {
        let head = self.head.unwrap_or(Head::EMPTY);
        let since_checkpoint = self.since_checkpoint;
        Batch { head, since_checkpoint, checkpointed: false, bytes: Vec::new() }
    }

    fn batch(&self, now: Timestamp, calls: &[Call]) -> Batch {
        let mut batch = self.empty_batch();
        let key = self.key();
        for event in &self.due {
            batch.push(now, event, key);
        }
        let Missed { queue_full, not_written } = self.missed;
        if queue_full + not_written > 0 {
            batch.push(now, &Event::Gap { missed: queue_full + not_written, queue_full, not_written }, key);
        }
        for call in calls {
            batch.push(call.time, &Event::Call(call.clone()), key);
            if batch.since_checkpoint + 1 >= CHECKPOINT_EVERY {
                batch.push(now, &self.checkpoint(Reason::Count), key);
            }
        }
        if batch.since_checkpoint > 0 && self.last_checkpoint.elapsed() >= CHECKPOINT_AFTER {
            batch.push(now, &self.checkpoint(Reason::Time), key);
        }
        batch
    }

    fn append(&mut self, batch: Batch) -> Result<(), FileError> {
        let Some(file) = self.file.as_mut().filter(|_| !batch.bytes.is_empty()) else { return Ok(()) };
        file.append(&batch.bytes)?;
        if batch.checkpointed {
            self.last_checkpoint = Instant::now();
        }
        self.since_checkpoint = batch.since_checkpoint;
        self.head = Some(batch.head);
        self.shared.head.store(Arc::new(batch.head));
        Ok(())
    }

    fn sync(&self) -> Result<(), FileError> {
        self.file.as_ref().map_or(Ok(()), LogFile::sync)
    }

    fn checkpoint(&self, reason: Reason) -> Event {
        Event::Checkpoint { reason, mac_key: self.key().map(CheckpointKey::name) }
    }

    fn key(&self) -> Option<&CheckpointKey> {
        self.layout.key.as_ref().map(DeliveredKey::key)
    }

    /// Where it may be kept out of reach of who changes the log.
    fn log_head(&mut self, what: &str) {
        let head = self.head.unwrap_or(Head::EMPTY);
        self.journalled = (head, Instant::now());
        tracing::info!(path = %self.layout.path.display(), %head, "{what}");
    }
}

impl Batch {
    fn push(&mut self, time: Timestamp, event: &Event, key: Option<&CheckpointKey>) {
        let line = render(&self.head, time, event, key);
        self.head = line.head;
        self.bytes.extend_from_slice(&line.bytes);
        let is_checkpoint = matches!(event, Event::Checkpoint { .. });
        self.since_checkpoint = if is_checkpoint { 0 } else { self.since_checkpoint + 1 };
        self.checkpointed |= is_checkpoint;
    }
}

#[cfg(test)]
mod tests;
