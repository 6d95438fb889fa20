//! Wipes the buffers of the HTTP/2 library once a connection is quiet: what passed through them would else stay for as
//! long as the connection lives, and kube-apiserver keeps its own for weeks.
//!
//! Nobody but the library can reach its buffers, so it is made to write over them itself:
//! * *What was read.* It gets a frame of a type that does not exist, all zero, which ends where its buffer ends. It must
//!   ignore such a frame (RFC 9113, 5.5). Then it reads into the buffer from the start again, and gets it zeroed; or it
//!   frees it, which wipes it (the program's allocator does), and goes on with another.
//! * *What is written.* It gets as many PING frames as their answers (17 bytes each, RFC 9113, 6.7) take to reach as far
//!   as what it wrote before. The answers are taken out again: the client neither sent those pings nor sees anything.
//!
//! Both happen between frames of the client, and a busy connection pays nothing: it writes over its buffers anyway.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::authority::AnyAuthority;

/// For how long nothing passes on a connection that is quiet; after twice as long its buffers are wiped.
pub const QUIET: Duration = Duration::from_millis(10);

const HEADER_LEN: usize = 9;
const PING_LEN: usize = HEADER_LEN + 8;
/// The largest frame that every reader accepts.
const MAX_PAYLOAD_LEN: usize = 16 * 1024;
/// The library sends what it has before its buffer grows beyond some 16 kB.
const MAX_REACH: usize = 17 * 1024;
/// Types of frames. That of [`NOTHING`] is one of those that are for experiments and never assigned.
const PING: u8 = 6;
const NOTHING: u8 = 0xf0;
const ACK: u8 = 1;

/// A client's connection; its reader and writer is the HTTP/2 library.
pub(super) struct Scrubbed<S> {
    stream: AnyAuthority<S>,
    /// While something may be left in buffers: until when the connection is quiet.
    quiet: Option<Pin<Box<Sleep>>>,
    /// Something passed since then.
    touched: bool,
    /// Bytes that the library wrote since it had nothing left to write, and the most of them since buffers were wiped.
    written: usize,
    reach: usize,
    reading: Reading,
    /// The payload of our PINGs, which no client can know.
    mark: [u8; 8],
    /// Answers to them that the library has not written yet.
    answers: usize,
}

/// What the library reads next.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// What the client sends.
    Client,
    /// Our PINGs, so many bytes of them, the first `sent` of which it has.
    Pings { sent: usize, of: usize },
    /// The start of a frame of zeros, if its buffer has room for more.
    Zeros { fills: bool },
    /// The rest of that frame.
    RestOfZeros { sent: usize, of: usize, fills: bool },
}

impl<S> Scrubbed<S> {
    pub(super) fn new(stream: AnyAuthority<S>) -> Self {
        let mut mark = [0; 8];
        rand::fill(&mut mark).expect("the system has randomness");
        Self {
            stream,
            quiet: None,
            touched: false,
            written: 0,
            reach: 0,
            reading: Reading::Client,
            mark,
            answers: 0,
        }
    }

    /// Something passed.
    fn touch(&mut self, cx: &mut Context<'_>) {
        self.touched = true;
        if self.quiet.is_none() {
            let mut quiet = Box::pin(sleep(QUIET));
            // So that it wakes whoever reads.
            let _ = quiet.as_mut().poll(cx);
            self.quiet = Some(quiet);
        }
    }

    /// Whether buffers have to be wiped now. Says so once.
    fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(quiet) = &mut self.quiet else { return false };
        while quiet.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.touched) {
                self.quiet = None;
                return true;
            }
            quiet.as_mut().reset(Instant::now() + QUIET);
        }
        false
    }

    fn ping(&self, flags: u8) -> [u8; PING_LEN] {
        let mut ping = [0; PING_LEN];
        ping[..HEADER_LEN].copy_from_slice(&header(8, PING, flags));
        ping[HEADER_LEN..].copy_from_slice(&self.mark);
        ping
    }

    /// Hands on what the library reads next, which is not from the client.
    fn read_ours(&mut self, buf: &mut ReadBuf<'_>) {
        match self.reading {
            Reading::Client => {}
            Reading::Pings { mut sent, of } => {
                let ping = self.ping(0);
                while sent < of && buf.remaining() > 0 {
                    let rest = &ping[sent % PING_LEN..];
                    let now = rest.len().min(buf.remaining());
                    buf.put_slice(&rest[..now]);
                    sent += now;
                }
                self.reading =
                    if sent < of { Reading::Pings { sent, of } } else { Reading::Zeros { fills: false } };
            }
            // The last one ended at the end of the buffer: this is its start, or another buffer.
            Reading::Zeros { fills: true } => {
                buf.initialize_unfilled().fill(0);
                self.reading = Reading::Client;
            }
            Reading::Zeros { fills: false } => {
                let of = buf.remaining().clamp(HEADER_LEN, HEADER_LEN + MAX_PAYLOAD_LEN);
                self.reading = Reading::RestOfZeros { sent: 0, of, fills: of >= buf.remaining() };
                self.read_ours(buf);
            }
            Reading::RestOfZeros { mut sent, of, fills } => {
                if sent < HEADER_LEN {
                    let header = header(of - HEADER_LEN, NOTHING, 0);
                    let now = (HEADER_LEN - sent).min(buf.remaining());
                    buf.put_slice(&header[sent..sent + now]);
                    sent += now;
                }
                let now = (of - sent).min(buf.remaining());
                buf.initialize_unfilled_to(now).fill(0);
                buf.advance(now);
                sent += now;
                self.reading = match sent < of {
                    true => Reading::RestOfZeros { sent, of, fills },
                    false => Reading::Zeros { fills },
                };
            }
        }
    }

    /// How many bytes at the start of `buf` are answers to our PINGs; how many bytes after them are none.
    fn answers(&self, buf: &[u8]) -> (usize, usize) {
        if self.answers == 0 {
            return (0, buf.len());
        }
        let answer = self.ping(ACK);
        let ours =
            buf.chunks_exact(PING_LEN).take(self.answers).take_while(|chunk| **chunk == answer).count();
        let rest = &buf[ours * PING_LEN..];
        let others = rest.windows(PING_LEN).position(|window| *window == answer).unwrap_or(rest.len());
        (ours * PING_LEN, others)
    }
}

/// The header of a frame that is of no stream.
fn header(payload_len: usize, kind: u8, flags: u8) -> [u8; HEADER_LEN] {
    let [.., a, b, c] = payload_len.to_be_bytes();
    [a, b, c, kind, flags, 0, 0, 0, 0]
}

impl<S: AsyncRead + Unpin> AsyncRead for Scrubbed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.reading, Reading::Client | Reading::Zeros { fills: true }) {
            this.read_ours(buf);
            let before = buf.filled().len();
            match Pin::new(&mut this.stream).poll_read(cx, buf) {
                Poll::Ready(read) => {
                    if buf.filled().len() > before {
                        this.touch(cx);
                    }
                    return Poll::Ready(read);
                }
                Poll::Pending if this.is_quiet(cx) && this.stream.is_between_frames() => {
                    let pings = this.reach.div_ceil(PING_LEN);
                    this.reach = 0;
                    this.answers += pings;
                    this.reading = Reading::Pings { sent: 0, of: pings * PING_LEN };
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let before = buf.filled().len();
        while buf.filled().len() == before && buf.remaining() > 0 {
            this.read_ours(buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scrubbed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let (ours, others) = this.answers(buf);
        let written = if ours > 0 {
            this.answers -= ours / PING_LEN;
            ours
        } else {
            let written = ready!(Pin::new(&mut this.stream).poll_write(cx, &buf[..others]))?;
            this.touch(cx);
            written
        };
        this.written += written;
        Poll::Ready(Ok(written))
    }

    /// The library has nothing left to write, and begins at the start of its buffer again.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let written = std::mem::take(&mut this.written).min(MAX_REACH);
        this.reach = this.reach.max(written);
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.answers > 0 {
            // One after the other: answers stand in the first only.
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
        this.touch(cx);
        this.written += written;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: fmt::Debug> fmt::Debug for Scrubbed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubbed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
