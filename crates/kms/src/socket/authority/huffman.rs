//! Characters of a Huffman-coded value (RFC 7541, appendix B).
//!
//! The code is canonical: all codes of one length follow each other, and those of the next length follow them. So
//! to know where a code ends it is enough to know how many there are of each length.

/// How many codes have so many bits.
const COUNTS: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];

/// The characters of each length that has one to give way to, in the order of their codes.
const CHARACTERS: [(usize, &[u8]); 7] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (13, b"\0$@[]~"),
];

/// Whether a character may stand in an authority, wherever and beside whatever. So `:`, `@` and brackets, which only
/// some places may have, are not.
pub(super) fn accepted(character: u8) -> bool {
    character.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&character)
}

/// A code that is not complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    value: u32,
    len: usize,
    /// The first code of that length.
    first: u32,
    /// Which bit of its first byte it begins with.
    bit: usize,
    /// Where its bytes are, counted from the first that is not decided. The longest code has 30 bits.
    places: [u8; 5],
    bytes: usize,
    /// It passes as it is.
    let_go: bool,
}

impl Code {
    /// Takes the byte at `index`, and replaces what ends there and is not accepted. `open` becomes where a code
    /// begins that does not end there.
    pub(super) fn byte(&mut self, bytes: &mut [u8], index: usize, open: &mut Option<usize>) {
        let byte = bytes[index];
        self.enter(index, open);
        for bit in 0..8 {
            self.value = self.value << 1 | u32::from(byte >> (7 - bit) & 1);
            self.first <<= 1;
            self.len += 1;
            let count = COUNTS.get(self.len).copied().unwrap_or(0);
            if self.value.wrapping_sub(self.first) >= count {
                self.first += count;
                continue;
            }
            if let (Some(start), Some(other)) = (*open, self.replacement()) {
                self.write(other, &mut bytes[start..]);
            }
            *self = Self { bit: (bit + 1) % 8, ..Self::default() };
            *open = None;
            if bit < 7 {
                self.enter(index, open);
            }
        }
    }

    pub(super) fn let_go(&mut self) {
        self.let_go = true;
    }

    fn enter(&mut self, index: usize, open: &mut Option<usize>) {
        if self.let_go {
            return;
        }
        let start = *open.get_or_insert(index);
        if let (Some(place), Ok(offset)) = (self.places.get_mut(self.bytes), u8::try_from(index - start)) {
            *place = offset;
            self.bytes += 1;
        }
    }

    /// The code to stand there instead.
    fn replacement(&self) -> Option<u32> {
        let (_, characters) = CHARACTERS.iter().find(|(len, _)| *len == self.len)?;
        let character = characters.get((self.value - self.first) as usize)?;
        if accepted(*character) {
            return None;
        }
        let other = characters.iter().position(|character| accepted(*character))?;
        Some(self.first + other as u32)
    }

    fn write(&self, code: u32, undecided: &mut [u8]) {
        for at in 0..self.len {
            let position = self.bit + at;
            let place =
                self.places.get(position / 8).and_then(|place| undecided.get_mut(usize::from(*place)));
            if let Some(byte) = place {
                let mask = 0x80 >> (position % 8);
                let one = code >> (self.len - 1 - at) & 1 == 1;
                *byte = if one { *byte | mask } else { *byte & !mask };
            }
        }
    }
}
