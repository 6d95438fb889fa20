//! A client that sends what a test wants, and a reader that finds the authorities again.

use crate::socket::authority::{CONTINUATION, END_HEADERS, HEADERS, PADDED, PREFACE};

/// How a value is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Plain,
    Coded,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) sent: Vec<u8>,
}

impl Default for Client {
    /// The preface and empty SETTINGS.
    fn default() -> Self {
        let mut client = Self { sent: PREFACE.to_vec() };
        client.frame(4, 0, 0, &[]);
        client
    }
}

impl Client {
    /// A connection with one request of which only the authority is there.
    pub(super) fn once(authority: &[u8], form: Form) -> Vec<u8> {
        let mut client = Self::default();
        client.headers(&Self::field(authority, form));
        client.sent
    }

    pub(super) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.sent.extend(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        self.sent.extend([kind, flags]);
        self.sent.extend(stream.to_be_bytes());
        self.sent.extend(payload);
    }

    /// A header block in one frame.
    pub(super) fn headers(&mut self, block: &[u8]) {
        self.header_frames(block, &[], None);
    }

    /// A header block in frames that end at `splits`, the first with padding.
    pub(super) fn header_frames(&mut self, block: &[u8], splits: &[usize], padding: Option<u8>) {
        let mut ends: Vec<_> = splits.iter().map(|split| *split.min(&block.len())).collect();
        ends.sort_unstable();
        ends.push(block.len());
        let mut from = 0;
        for (number, end) in ends.iter().enumerate() {
            let last = if number + 1 == ends.len() { END_HEADERS } else { 0 };
            let part = &block[from..*end];
            match (number, padding) {
                (0, Some(padding)) => {
                    let padded = [&[padding], part, &vec![0; padding.into()]].concat();
                    self.frame(HEADERS, last | PADDED, 1, &padded);
                }
                (0, None) => self.frame(HEADERS, last, 1, part),
                _ => self.frame(CONTINUATION, last, 1, part),
            }
            from = *end;
        }
    }

    /// `:authority`, with incremental indexing.
    pub(super) fn field(value: &[u8], form: Form) -> Vec<u8> {
        [&[0x41], &string(value, form)[..]].concat()
    }

    /// A header whose value would be replaced if it were ours.
    pub(super) fn other_field(form: Form) -> Vec<u8> {
        [&[0x40], &string(b"other", form)[..], &string(b"%2F/@", form)].concat()
    }
}

fn string(value: &[u8], form: Form) -> Vec<u8> {
    let (flag, bytes) = match form {
        Form::Plain => (0, value.to_vec()),
        Form::Coded => (0x80, coded(value)),
    };
    let mut out = match bytes.len() {
        len @ 0..127 => vec![flag | u8::try_from(len).unwrap()],
        len => vec![flag | 127, u8::try_from(len - 127).unwrap()],
    };
    out.extend(bytes);
    out
}

/// Codes of appendix B with up to 13 bits, by their first one: written down from there once more, so that a
/// mistake in the filter's own table shows.
const FIRST_CODES: [(u32, u32, &[u8]); 8] = [
    (5, 0x0, b"012aceiost"),
    (6, 0x14, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xf8, b"&*,;XZ"),
    (10, 0x3f8, b"!\"()?"),
    (11, 0x7fa, b"'+|"),
    (12, 0xffa, b"#>"),
    (13, 0x1ff8, b"\0$@[]~"),
];

/// Code and length.
pub(super) fn code(byte: u8) -> Option<(u32, u32)> {
    FIRST_CODES.iter().find_map(|(len, first, characters)| {
        let at = characters.iter().position(|character| *character == byte)?;
        Some((first + u32::try_from(at).unwrap(), *len))
    })
}

fn coded(value: &[u8]) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    for byte in value {
        let (code, len) = code(*byte).unwrap_or_else(|| panic!("no code for {byte}"));
        bits.extend((0..len).rev().map(|bit| code >> bit & 1 == 1));
    }
    while !bits.len().is_multiple_of(8) {
        bits.push(true);
    }
    bits.chunks(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | u8::from(*bit))).collect()
}

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u32> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1))).collect();
    let (mut out, mut value, mut len) = (Vec::new(), 0, 0);
    for bit in bits {
        (value, len) = (value << 1 | bit, len + 1);
        if let Some(byte) = (0..=127).find(|byte| code(*byte) == Some((value, len))) {
            out.push(byte);
            (value, len) = (0, 0);
        }
    }
    out
}

/// The literal values of `:authority` in `sent`, of what [`Client`] writes; frames that it would not send are skipped.
pub(super) fn authorities(sent: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut rest = &sent[PREFACE.len()..];
    while let [a, b, c, kind, flags, _, _, _, _, after @ ..] = rest {
        let (payload, next) = after.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        rest = next;
        match *kind {
            HEADERS if flags & PADDED != 0 => match payload.split_first() {
                Some((padding, part)) if usize::from(*padding) <= part.len() => {
                    blocks.push(part[..part.len() - usize::from(*padding)].to_vec());
                }
                _ => {}
            },
            HEADERS => blocks.push(payload.to_vec()),
            CONTINUATION => {
                if let Some(block) = blocks.last_mut() {
                    block.extend(payload);
                }
            }
            _ => {}
        }
    }
    blocks.iter().filter_map(|block| authority_of(block)).collect()
}

fn authority_of(block: &[u8]) -> Option<Vec<u8>> {
    let block = block.strip_prefix(&[0x83, 0x86]).unwrap_or(block);
    let [0x41, len, value @ ..] = block else { return None };
    let (len, value) = match len & 0x7f {
        127 => (127 + usize::from(value[0]), &value[1..]),
        len => (len.into(), value),
    };
    let value = value.get(..len)?;
    Some(if block[1] & 0x80 != 0 { decoded(value) } else { value.to_vec() })
}
