//! One connection: whose it is, and how long it may make us wait.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::authority::AnyAuthority;
use super::scrub::Scrubbed;
use crate::provider::Told;
use crate::traffic::Counted;

/// The bytes that open HTTP/2, without which no other time limit holds.
const PREFACE_LEN: usize = 24;
/// How long a new peer may take to send them.
pub const PREFACE_WITHIN: Duration = Duration::from_secs(10);
/// How long a peer may take no byte of what is being written to it.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// One connection of kube-apiserver.
///
/// A peer that does not begin, or does not take what it asked for, gets an error on its connection, which ends it.
/// One that is idle does not.
#[derive(Debug)]
pub struct Connection {
    stream: Scrubbed<UnixStream>,
    peer: Peer,
    /// Until the preface is complete.
    beginning: Option<Beginning>,
    /// While the peer takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    _counted: Counted,
}

#[derive(Debug)]
struct Beginning {
    seen: usize,
    over: Pin<Box<Sleep>>,
}

/// Who is at the other end, and what it was told.
#[derive(Clone, Default)]
pub struct Peer {
    /// Its process id, if the system tells.
    pub process: Option<i32>,
    /// Its user id, if the system tells.
    pub user: Option<u32>,
    pub(crate) told: Arc<Told>,
}

impl Connection {
    /// Counts as long as it lives.
    pub(super) fn new(stream: UnixStream, counted: Counted) -> Self {
        let found = stream.peer_cred().ok();
        let (process, user) = (found.and_then(|found| found.pid()), found.map(|found| found.uid()));
        Self {
            stream: Scrubbed::new(AnyAuthority::new(stream)),
            peer: Peer { process, user, told: Arc::default() },
            beginning: Some(Beginning { seen: 0, over: Box::pin(sleep(PREFACE_WITHIN)) }),
            stalled: None,
            _counted: counted,
        }
    }

    /// Watches over what was written: `Pending` only for so long.
    fn written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(TAKEN_WITHIN)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(beginning) = &mut self.beginning {
            beginning.seen += buf.filled().len() - before;
            if beginning.seen >= PREFACE_LEN {
                self.beginning = None;
            } else if read.is_pending() {
                ready!(beginning.over.as_mut().poll(cx));
                return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the peer does not begin")));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("process", &self.process).finish_non_exhaustive()
    }
}
