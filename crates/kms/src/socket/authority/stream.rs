//! A stream that is read through the filter.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zeroize::Zeroize;

use super::{AuthorityFilter, MAX_UNDECIDED};

/// Undecided bytes and some that follow.
const HELD: usize = 2 * MAX_UNDECIDED;

/// A client's connection on which any `:authority` is accepted. What is written passes as it is.
pub struct AnyAuthority<S> {
    stream: S,
    filter: AuthorityFilter,
    /// Bytes that were read and not handed on, `held` of them; the first `decided` may be.
    bytes: [u8; HELD],
    held: usize,
    decided: usize,
}

impl<S> AnyAuthority<S> {
    /// `stream`, from its first byte on.
    pub fn new(stream: S) -> Self {
        Self { stream, filter: AuthorityFilter::default(), bytes: [0; HELD], held: 0, decided: 0 }
    }

    /// Whether a frame may be put in after what was handed on: see [`AuthorityFilter::is_between_frames`].
    pub fn is_between_frames(&self) -> bool {
        self.held == 0 && self.filter.is_between_frames()
    }

    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let now = self.decided.min(buf.remaining());
        buf.put_slice(&self.bytes[..now]);
        self.bytes.copy_within(now..self.held, 0);
        (self.held, self.decided) = (self.held - now, self.decided - now);
        // What followed may have been a plaintext.
        self.bytes[self.held..].zeroize();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.decided > 0 {
                this.hand_on(buf);
                return Poll::Ready(Ok(()));
            }
            if this.held == 0 {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                let new = &mut buf.filled_mut()[before..];
                let undecided = this.filter.filter(new);
                let decided = new.len() - undecided;
                this.bytes[..undecided].copy_from_slice(&new[decided..]);
                this.held = undecided;
                buf.set_filled(before + decided);
                if decided > 0 || undecided == 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                // Rare: a read ended within a character of an authority.
                let mut more = ReadBuf::new(&mut this.bytes[this.held..]);
                ready!(Pin::new(&mut this.stream).poll_read(cx, &mut more))?;
                let read = more.filled().len();
                this.held += read;
                let undecided = if read > 0 { this.filter.filter(&mut this.bytes[..this.held]) } else { 0 };
                this.decided = this.held - undecided;
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
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
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: fmt::Debug> fmt::Debug for AnyAuthority<S> {
    /// Without bytes, which a client sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyAuthority").field("stream", &self.stream).finish_non_exhaustive()
    }
}
