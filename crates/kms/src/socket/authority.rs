//! Any `:authority`: kube-apiserver up to 1.31 sends the socket's path there, which HTTP libraries refuse.
//!
//! [`AuthorityFilter`] looks at the bytes that a client sends on one HTTP/2 connection and replaces, in the literal
//! value of each `:authority` header, what the `http` crate refuses: `%2Frun%2Fkms.sock` becomes
//! `-2Frun-2Fkms.sock`. Nobody here reads that value; who may call is decided by the socket.
//!
//! * A character gives way to one whose Huffman code is as long. So nothing is encoded anew, no length changes, and
//!   the dynamic tables of both sides stay in step. A client sends the literal again whenever its table has lost it,
//!   so every header block of the connection is walked.
//! * What is not understood passes as it is: the HTTP/2 library behind judges it. So does a character for which there
//!   is no other of its length (`#<>\^{}` and the like, Huffman-coded; no client is known that sends one).
//! * State is bounded: no header is ever stored.
//!
//! What is here finds header blocks, `hpack` the values in them, `huffman` the characters; [`AnyAuthority`] is a
//! stream that is read through the filter.

mod hpack;
mod huffman;
mod stream;
#[cfg(test)]
mod tests;

pub use stream::AnyAuthority;

use hpack::Walk;

/// Undecided bytes at the end of what was looked at, at most. Some more than a frame header and the longest code,
/// so that a character that is split over two frames is replaced too.
pub const MAX_UNDECIDED: usize = 32;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types and flags of RFC 9113.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LEN: u32 = 5;

/// What one client sends on one connection, from its first byte on.
#[derive(Debug)]
pub struct AuthorityFilter {
    at: At,
    /// There was a frame.
    begun: bool,
    /// The header block that is not complete: its stream, and the place in it.
    block: Option<Block>,
    /// Where in the bytes at hand those begin that are not decided.
    open: Option<usize>,
    undecided: usize,
}

#[derive(Debug)]
struct Block {
    stream: [u8; 4],
    walk: Walk,
}

/// Where the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum At {
    /// So many bytes of the preface have been seen.
    Preface(usize),
    /// So many bytes of a frame's header.
    Header([u8; 9], usize),
    /// The byte that says how long the padding is, in a frame with so many bytes left.
    PadLength { left: u32, priority: bool, end: bool },
    /// A part of the header block, after `skip` bytes of a priority, and before `padding`.
    Fragment { skip: u32, left: u32, padding: u32, end: bool },
    /// Bytes that are none of our business.
    Other(u32),
    /// This is not HTTP/2.
    Lost,
}

impl Default for AuthorityFilter {
    fn default() -> Self {
        Self { at: At::Preface(0), begun: false, block: None, open: None, undecided: 0 }
    }
}

impl AuthorityFilter {
    /// Looks at the next `bytes`, which must begin with those that the last call left undecided, and changes what
    /// has to be. Returns how many at the end are undecided now, up to [`MAX_UNDECIDED`]: they may still be changed
    /// when more bytes are known, and if none come they are as they are.
    pub fn filter(&mut self, bytes: &mut [u8]) -> usize {
        let mut next = self.undecided.min(bytes.len());
        while next < bytes.len() {
            next = self.step(bytes, next);
            if self.open.is_some_and(|open| next - open > MAX_UNDECIDED) {
                self.open = None;
                if let Some(block) = &mut self.block {
                    block.walk.let_go();
                }
            }
        }
        self.undecided = self.open.map_or(0, |open| bytes.len() - open);
        // Those come first the next time.
        self.open = self.open.map(|_| 0);
        self.undecided
    }

    /// Whether a frame may be put in here: the client has begun with one, and the next has not begun.
    pub fn is_between_frames(&self) -> bool {
        self.begun && self.block.is_none() && matches!(self.at, At::Header(_, 0))
    }

    /// Takes one byte, or many that are none of our business. Returns the index of the next.
    fn step(&mut self, bytes: &mut [u8], index: usize) -> usize {
        match self.at {
            At::Preface(seen) => {
                self.at = match (bytes[index] == PREFACE[seen], seen + 1 == PREFACE.len()) {
                    (true, true) => At::Header([0; 9], 0),
                    (true, false) => At::Preface(seen + 1),
                    (false, _) => At::Lost,
                };
                index + 1
            }
            At::Header(mut header, seen) => {
                header[seen] = bytes[index];
                self.at =
                    if seen + 1 == header.len() { self.frame(header) } else { At::Header(header, seen + 1) };
                index + 1
            }
            At::PadLength { left, priority, end } => {
                let padding = bytes[index].into();
                self.at = self.fragment(left - 1, padding, priority, end);
                index + 1
            }
            At::Fragment { skip: 0, left, padding, end } => {
                if let Some(block) = &mut self.block {
                    block.walk.byte(bytes, index, &mut self.open);
                }
                self.at = self.fragment_rest(0, left - 1, padding, end);
                index + 1
            }
            At::Fragment { skip, left, padding, end } => {
                self.at = self.fragment_rest(skip - 1, left, padding, end);
                index + 1
            }
            At::Other(left) => {
                let here = (bytes.len() - index).min(left as usize);
                self.at = other(left - here as u32);
                index + here
            }
            At::Lost => bytes.len(),
        }
    }

    fn frame(&mut self, header: [u8; 9]) -> At {
        self.begun = true;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let left = u32::from_be_bytes([0, a, b, c]);
        let end = flags & END_HEADERS != 0;
        match (kind, &self.block) {
            (HEADERS, None) => {
                self.block = Some(Block { stream, walk: Walk::default() });
                let priority = flags & PRIORITY != 0;
                match flags & PADDED != 0 {
                    true if left == 0 => self.abandon(0),
                    true => At::PadLength { left, priority, end },
                    false => self.fragment(left, 0, priority, end),
                }
            }
            (CONTINUATION, Some(block)) if block.stream == stream => self.fragment_rest(0, left, 0, end),
            // Also a block that something else interrupts, which is an error of the connection.
            _ => self.abandon(left),
        }
    }

    /// The payload of HEADERS after its pad length.
    fn fragment(&mut self, left: u32, padding: u32, priority: bool, end: bool) -> At {
        let skip = if priority { PRIORITY_LEN } else { 0 };
        match left.checked_sub(padding + skip) {
            Some(fragment) => self.fragment_rest(skip, fragment, padding, end),
            None => self.abandon(left),
        }
    }

    fn fragment_rest(&mut self, skip: u32, left: u32, padding: u32, end: bool) -> At {
        match (skip, left) {
            (0, 0) if end => self.abandon(padding),
            (0, 0) => other(padding),
            _ => At::Fragment { skip, left, padding, end },
        }
    }

    /// No block goes on after this: it was complete, or is not understood.
    fn abandon(&mut self, left: u32) -> At {
        self.block = None;
        self.open = None;
        other(left)
    }
}

fn other(left: u32) -> At {
    if left == 0 { At::Header([0; 9], 0) } else { At::Other(left) }
}
