//! What all connections of a proxy share.

use std::{
    collections::BTreeMap,
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use super::{Canned, Mode, Times};

#[derive(Debug)]
pub(super) struct State {
    server: SocketAddr,
    now: Mutex<Now>,
    /// Notified when the mode changes, and when all ends.
    changed: Condvar,
    seen: Mutex<Seen>,
    answers: Mutex<Vec<(String, Canned, Times)>>,
    live: Mutex<Vec<Weak<TcpStream>>>,
}

#[derive(Debug, Default)]
struct Now {
    mode: Mode,
    ends: bool,
}

#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    requests: BTreeMap<(String, String), usize>,
}

impl State {
    pub(super) fn new(server: SocketAddr) -> Self {
        Self {
            server,
            now: Mutex::default(),
            changed: Condvar::new(),
            seen: Mutex::default(),
            answers: Mutex::default(),
            live: Mutex::default(),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        lock(&self.now).mode
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        lock(&self.now).mode = mode;
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        lock(&self.now).ends = true;
        self.changed.notify_all();
    }

    /// Rests, unless all ends before.
    pub(super) fn rest(&self, how_long: Duration) -> io::Result<()> {
        let until = Instant::now() + how_long;
        let mut now = lock(&self.now);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if now.ends {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if left.is_zero() {
                return Ok(());
            }
            (now, _) = self.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for another mode than [`Mode::Hold`], and answers it.
    pub(super) fn released(&self) -> io::Result<Mode> {
        let mut now = lock(&self.now);
        while now.mode == Mode::Hold && !now.ends {
            now = self.changed.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        if now.ends { Err(io::ErrorKind::Interrupted.into()) } else { Ok(now.mode) }
    }

    pub(super) fn connect(&self) -> io::Result<Arc<TcpStream>> {
        TcpStream::connect(self.server).map(|stream| self.keep(stream))
    }

    /// Remembers a connection, so that it can be cut.
    pub(super) fn keep(&self, stream: TcpStream) -> Arc<TcpStream> {
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let mut live = lock(&self.live);
        live.retain(|kept| kept.strong_count() > 0);
        live.push(Arc::downgrade(&stream));
        stream
    }

    pub(super) fn cut_all(&self) {
        for stream in lock(&self.live).drain(..).filter_map(|kept| kept.upgrade()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn answer(&self, path: &str, answer: Canned, times: Times) {
        lock(&self.answers).push((path.to_owned(), answer, times));
    }

    pub(super) fn forget_answers(&self) {
        lock(&self.answers).clear();
    }

    pub(super) fn answer_for(&self, path: &str) -> Option<Canned> {
        let mut answers = lock(&self.answers);
        let found = answers.iter().position(|(of, ..)| of == path)?;
        match answers[found].2 {
            Times::Once => Some(answers.remove(found).1),
            Times::Always => Some(answers[found].1.clone()),
        }
    }

    pub(super) fn count_connection(&self) {
        lock(&self.seen).connections += 1;
    }

    pub(super) fn count_request(&self, method: &str, path: &str) {
        *lock(&self.seen).requests.entry((method.to_owned(), path.to_owned())).or_default() += 1;
    }

    pub(super) fn connections(&self) -> usize {
        lock(&self.seen).connections
    }

    pub(super) fn requests(&self) -> BTreeMap<(String, String), usize> {
        lock(&self.seen).requests.clone()
    }

    pub(super) fn forget_counts(&self) {
        *lock(&self.seen) = Seen::default();
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
