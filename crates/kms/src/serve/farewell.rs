//! The end of a connection when the server stops: nothing that a client has sent meanwhile becomes an error of its socket.
//!
//! A server says twice that it goes away (RFC 9113, 6.8): first that no new call should come, then, when the client has
//! heard that, which call was the last one. Clients of hyper answer before they send what they still had in their
//! queue. Were the socket closed by then, writing would fail, and the client would not know that these calls were never
//! begun, though the server has said so.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

/// How long a client may take to hang up after the last word.
const HANGS_UP_WITHIN: Duration = Duration::from_millis(500);

/// A connection that, once `stop` is cancelled, is closed when the client has closed it, or after [`HANGS_UP_WITHIN`].
pub(super) struct Farewell<C> {
    connection: C,
    stop: CancellationToken,
    /// After our last word.
    hangs_up: Option<Pin<Box<Sleep>>>,
}

impl<C> Farewell<C> {
    pub(super) fn new(connection: C, stop: CancellationToken) -> Self {
        Self { connection, stop, hangs_up: None }
    }
}

impl<C: Connected> Connected for Farewell<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Farewell<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Farewell<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.hangs_up.is_none() {
            ready!(Pin::new(&mut self.connection).poll_shutdown(cx))?;
            if !self.stop.is_cancelled() {
                return Poll::Ready(Ok(()));
            }
        }
        let mut ignored = [0; 1024];
        loop {
            let mut buf = ReadBuf::new(&mut ignored);
            match Pin::new(&mut self.connection).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        let hangs_up = self.hangs_up.get_or_insert_with(|| Box::pin(sleep(HANGS_UP_WITHIN)));
        hangs_up.as_mut().poll(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}
