//! What an age file looks like from outside: the kinds of its stanzas and the length of what is in it.

use std::fmt;

use casemate_keys::payload;

const MAGIC: &[u8] = b"age-encryption.org/v1";
/// What the format puts around a plaintext of less than one chunk: a nonce (16) and a tag (16).
const AROUND_PAYLOAD: usize = 32;

/// Kinds of stanzas in order, and the length of the plaintext.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    kinds: Vec<String>,
    payload: usize,
}

impl Shape {
    /// `None` if the bytes are no binary age file of version 1, or one whose end is missing.
    pub(crate) fn of(file: &[u8]) -> Option<Self> {
        let mut rest = file;
        let mut line = || {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let (line, after) = rest.split_at(end);
            rest = &after[1..];
            Some(line)
        };
        if line()? != MAGIC {
            return None;
        }
        let mut kinds = Vec::new();
        loop {
            let line = line()?;
            if let Some(stanza) = line.strip_prefix(b"-> ") {
                let kind = stanza.split(|byte| *byte == b' ').next()?;
                kinds.push(std::str::from_utf8(kind).ok()?.to_owned());
            } else if line.starts_with(b"--- ") {
                break;
            } else if kinds.is_empty() {
                return None;
            }
        }
        Some(Self { kinds, payload: rest.len().checked_sub(AROUND_PAYLOAD)? })
    }

    pub(crate) fn has_passphrase(&self) -> bool {
        self.kinds.iter().any(|kind| kind == "scrypt")
    }

    pub(crate) fn has_x25519(&self) -> bool {
        self.count() > 0
    }

    pub(crate) fn has_payload(&self) -> bool {
        self.payload == payload::LEN
    }

    /// One X25519 stanza, and beside it only what readers are promised to ignore.
    pub(crate) fn is_as_written(&self) -> bool {
        let ignored = |kind: &String| kind == X25519 || kind.ends_with("-grease");
        self.count() == 1 && self.kinds.iter().all(ignored) && self.has_payload()
    }

    fn count(&self) -> usize {
        self.kinds.iter().filter(|kind| *kind == X25519).count()
    }
}

const X25519: &str = "X25519";

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} stanzas of which {} are X25519, and a payload of {} bytes",
            self.kinds.len(),
            self.count(),
            self.payload
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(stanzas: &str, payload: usize) -> Vec<u8> {
        let header = format!("age-encryption.org/v1\n{stanzas}--- {}\n", "A".repeat(43));
        [header.as_bytes(), &vec![b'\n'; payload]].concat()
    }

    #[test]
    fn what_is_written_has_one_x25519_stanza() {
        let (ours, grease, body) = ("-> X25519 AAAA\n", "-> q-grease b\n", "AAAA\n");
        for (stanzas, written) in [
            (format!("{ours}{body}"), true),
            (format!("{ours}{body}{grease}\n"), true),
            (format!("{grease}\n{ours}{body}"), true),
            (format!("{ours}{body}{ours}{body}"), false),
            (format!("{ours}{body}-> ssh-rsa a\n{body}"), false),
            (format!("{ours}{body}-> scrypt a 1\n{body}"), false),
            (format!("{grease}\n"), false),
            (String::new(), false),
        ] {
            let shape = Shape::of(&file(&stanzas, 96)).unwrap();
            assert_eq!(shape.is_as_written(), written, "{stanzas}: {shape}");
        }
        assert!(!Shape::of(&file(ours, 95)).unwrap().is_as_written());
        assert!(!Shape::of(&file(ours, 97)).unwrap().is_as_written());
        assert_eq!(Shape::of(&file(ours, 31)), None);
        assert_eq!(Shape::of(&file(body, 96)), None);
        let whole = file(ours, 96);
        for cut in 0..whole.len() - 64 {
            assert_eq!(Shape::of(&whole[..cut]), None, "{cut}");
        }
    }
}
