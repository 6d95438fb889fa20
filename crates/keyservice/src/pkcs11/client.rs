//! The daemon's side of a host: it is started when it is needed, and replaced when it hangs, crashes or leaks.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::frame::{self, Answer, Ask, Outcome, Request};
use super::host::SESSIONS;
use super::leeway::Leeway;
use super::{Launch, Patience, Running};
use crate::{Class, Failure};

/// A host that lived as long is no reason to wait before the next one.
const SOUND: Duration = Duration::from_secs(60);

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A host that may be there or not.
#[derive(Debug)]
pub(super) struct Host {
    launcher: Arc<dyn Launch>,
    patience: Patience,
    /// A call that waits for its turn is not one that hangs.
    turns: Arc<Semaphore>,
    current: tokio::sync::Mutex<Current>,
    leeway: Arc<Leeway>,
    /// What hosts had to say that is no failure: each says it again.
    said: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Debug, Default)]
struct Current {
    connection: Option<Arc<Connection>>,
    /// Why the last one was given up: so it is for as long as there is no other.
    why: Option<Failure>,
    pauses: Option<ExponentialBackoff>,
    not_before: Option<Instant>,
}

/// What a host answered: who writes or nothing, and bytes.
pub(super) type Reply = (Outcome, Zeroizing<Vec<u8>>);

impl Host {
    pub(super) fn new(launcher: Arc<dyn Launch>, patience: Patience) -> Self {
        let turns = Arc::new(Semaphore::new(SESSIONS));
        let (current, leeway, said) = Default::default();
        Self { launcher, patience, turns, current, leeway, said }
    }

    /// Asks, and waits until there is an answer or the host is given up. That a key is not there is believed of a new host
    /// only, if there is doubt: the token may have been pulled.
    pub(super) async fn call(&self, ask: &Ask, bytes: &[u8]) -> Result<Reply, Failure> {
        let asked = self.ask(ask, bytes).await?;
        if !asked.is_doubtful {
            return Ok(asked.reply);
        }
        match self.ask(ask, bytes).await {
            Ok(again) => Ok(again.reply),
            Err(failure) => Err(failure),
        }
    }

    async fn ask(&self, ask: &Ask, bytes: &[u8]) -> Result<Asked, Failure> {
        let turn = self.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| gone("it is being stopped"))?;
        let connection = self.connection().await?;
        let answer = connection.send(ask, bytes, turn, self.patience)?;
        answer.await.unwrap_or_else(|_| Err(gone("it is being stopped")))
    }

    /// The connection to a host that is neither dead nor spent.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.connection.clone() {
            match connection.health() {
                Health::Sound => return Ok(connection),
                Health::Spent { was_well, why } => {
                    connection.emptied().await;
                    current.connection = None;
                    current.why = why;
                    if !was_well {
                        current.died(connection.born);
                    }
                }
                Health::Dead(why) => {
                    current.connection = None;
                    current.why = Some(gone(&why));
                    current.died(connection.born);
                    tracing::warn!("the host of a PKCS#11 module is given up: {why}");
                }
            }
        }
        if current.not_before.is_some_and(|at| Instant::now() < at) {
            let why = current.why.clone();
            return Err(why.unwrap_or_else(|| gone("it failed more than once")).unasked());
        }
        let launcher = self.launcher.clone();
        let launched = tokio::task::spawn_blocking(move || launcher.launch());
        let launched = launched.await.unwrap_or_else(|_| Err(io::Error::other("broken off")));
        match launched.and_then(|(process, stream)| Connection::open(process, stream, self)) {
            Ok(connection) => {
                current.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                current.died(Instant::now());
                let why = gone(&format!("it can't be started: {error}"));
                current.why = Some(why.clone());
                Err(why)
            }
        }
    }
}

impl Current {
    /// Sets the time before which no other host is started: none after one that lived long, or the first to fail.
    fn died(&mut self, born: Instant) {
        if born.elapsed() > SOUND {
            self.pauses = None;
        }
        self.not_before = match &mut self.pauses {
            Some(pauses) => pauses.next().map(|pause| Instant::now() + pause),
            first => {
                let pauses = ExponentialBuilder::default()
                    .with_min_delay(FIRST_PAUSE)
                    .with_max_delay(LONGEST_PAUSE)
                    .without_max_times()
                    .with_jitter();
                *first = Some(pauses.build());
                None
            }
        };
    }
}

#[derive(Debug)]
struct Connection {
    born: Instant,
    frames: mpsc::UnboundedSender<Zeroizing<Vec<u8>>>,
    process: Arc<dyn Running>,
    state: Mutex<State>,
    empty: Notify,
    leeway: Arc<Leeway>,
    said: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    pending: HashMap<u64, Pending>,
    answered: bool,
    /// Whether an answer left it as good as it was.
    well: bool,
    spent: bool,
    /// The failure that spent it, if one did.
    why: Option<Failure>,
    dead: Option<String>,
}

#[derive(Debug)]
struct Pending {
    answer: oneshot::Sender<Result<Asked, Failure>>,
    /// Whether a leeway was taken for it. A host that dies keeps it.
    thorough: bool,
    /// Kept until there is an answer, be the caller gone or not: the session is busy.
    _turn: OwnedSemaphorePermit,
}

/// What a host answered, and whether a new one is to be asked the same.
#[derive(Debug)]
struct Asked {
    reply: Reply,
    is_doubtful: bool,
}

enum Health {
    Sound,
    /// One that was well is old, or its device fell ill. One that never was is like a dead one.
    Spent {
        was_well: bool,
        why: Option<Failure>,
    },
    Dead(String),
}

impl Connection {
    fn open(process: Box<dyn Running>, stream: UnixStream, host: &Host) -> io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        let (read, write) = tokio::net::UnixStream::from_std(stream)?.into_split();
        let (frames, queue) = mpsc::unbounded_channel();
        let (born, process, state, empty) = (Instant::now(), process.into(), Mutex::default(), Notify::new());
        let (leeway, said) = (host.leeway.clone(), host.said.clone());
        let connection = Arc::new(Self { born, frames, process, state, empty, leeway, said });
        tokio::spawn(write_all(queue, write));
        tokio::spawn(read_all(read, Arc::downgrade(&connection)));
        Ok(connection)
    }

    fn health(&self) -> Health {
        let state = self.state();
        match &state.dead {
            Some(why) => Health::Dead(why.clone()),
            None if state.spent => Health::Spent { was_well: state.well, why: state.why.clone() },
            None => Health::Sound,
        }
    }

    /// Until no call is in flight.
    async fn emptied(&self) {
        loop {
            let changed = self.empty.notified();
            if self.state().pending.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn send(
        self: &Arc<Self>,
        ask: &Ask,
        bytes: &[u8],
        turn: OwnedSemaphorePermit,
        patience: Patience,
    ) -> Result<oneshot::Receiver<Result<Asked, Failure>>, Failure> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state();
        if let Some(why) = &state.dead {
            return Err(gone(why));
        }
        let number = state.next;
        let mut request = Request { number, ask: ask.clone() };
        let mut is_thorough = false;
        if let Ask::Unwrap { thorough, .. } = &mut request.ask {
            *thorough &= self.leeway.take();
            is_thorough = *thorough;
        }
        let refused = |error: io::Error| {
            Failure::new(Class::Refused, error.to_string(), "this is a fault of the program")
        };
        let frame = frame::encode(&request, bytes).map_err(refused)?;
        state.next += 1;
        // The first one loads the module and logs in.
        let patience = if state.answered { patience.call } else { patience.start };
        state.pending.insert(number, Pending { answer, thorough: is_thorough, _turn: turn });
        drop(state);
        if self.frames.send(frame).is_err() {
            self.die("it does not listen any more");
        }
        tokio::spawn(watch(Arc::downgrade(self), number, patience));
        Ok(answered)
    }

    fn receive(&self, frame: &[u8]) -> io::Result<()> {
        let (answer, bytes): (Answer, _) = frame::decode(frame)?;
        for line in answer.said {
            if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
                tracing::info!("PKCS#11: {line}");
            }
        }
        let mut state = self.state();
        let pending = state.pending.remove(&answer.number);
        let pending = pending.ok_or_else(|| io::Error::other("it answers what was not asked"))?;
        if pending.thorough && !answer.doubted {
            self.leeway.give_back();
        }
        state.answered = true;
        state.well |= answer.spent.is_none();
        // Of a host that never was well, all there is to know is what it says.
        let is_doubtful = state.well && answer.spent.is_some() && answer.outcome.says_no();
        if answer.spent.is_some() && state.why.is_none() {
            state.why = answer.outcome.why();
        }
        if let Some(why) = answer.spent.filter(|_| !state.spent) {
            tracing::warn!("the host of a PKCS#11 module is replaced: {why}");
            state.spent = true;
        }
        if state.pending.is_empty() {
            self.empty.notify_waiters();
        }
        drop(state);
        // A caller that is gone does not mind.
        let _ = pending.answer.send(Ok(Asked { reply: (answer.outcome, bytes), is_doubtful }));
        Ok(())
    }

    /// All calls in flight fail, and the process is ended.
    fn die(self: &Arc<Self>, why: &str) {
        let mut state = self.state();
        if state.dead.is_some() {
            return;
        }
        state.dead = Some(why.to_owned());
        let pending = std::mem::take(&mut state.pending);
        self.empty.notify_waiters();
        drop(state);
        let (connection, why) = (self.clone(), why.to_owned());
        tokio::task::spawn_blocking(move || {
            let why = match connection.process.end() {
                Some(end) => format!("{why}: {end}"),
                None => why,
            };
            connection.state().dead = Some(why.clone());
            for (_, pending) in pending {
                let _ = pending.answer.send(Err(gone(&why)));
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the host up if call `number` is still without an answer then.
async fn watch(connection: Weak<Connection>, number: u64, patience: Duration) {
    tokio::time::sleep(patience).await;
    let Some(connection) = connection.upgrade() else { return };
    let hangs = connection.state().pending.contains_key(&number);
    if hangs {
        connection.die(&format!("a call of the module did not return within {} ms", patience.as_millis()));
    }
}

async fn write_all(mut queue: mpsc::UnboundedReceiver<Zeroizing<Vec<u8>>>, mut to: OwnedWriteHalf) {
    while let Some(frame) = queue.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

async fn read_all(mut from: OwnedReadHalf, connection: Weak<Connection>) {
    let why = loop {
        let frame = match read(&mut from).await {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break "it ended".to_owned(),
            Err(error) => break error.to_string(),
        };
        let Some(connection) = connection.upgrade() else { return };
        if let Err(error) = connection.receive(&frame) {
            break format!("what it sent can't be used: {error}");
        }
    };
    if let Some(connection) = connection.upgrade() {
        connection.die(&why);
    }
}

async fn read(from: &mut OwnedReadHalf) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).await?;
    let mut frame = Zeroizing::new(vec![0; frame::length(prefix)?]);
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

fn gone(why: &str) -> Failure {
    let what = format!("the process that holds the PKCS#11 module does not answer: {why}");
    let remedy = "it is started anew by itself; if that goes on, look at the log and at the module's own";
    Failure::new(Class::Unreachable, what, remedy)
}
