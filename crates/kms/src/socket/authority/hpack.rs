//! One header block, walked far enough to find the values of `:authority` (RFC 7541, section 6).

use super::huffman::{Code, accepted};

/// The entry of the static table whose name it is. Clients name it so, since the dynamic table comes after.
const STATIC_INDEX: u32 = 1;
const NAME: &[u8] = b":authority";
/// The same, Huffman-coded and padded.
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// What stands for a character that is not accepted, where nothing is coded.
const PLAIN: u8 = b'-';

/// The place in a header block.
#[derive(Debug, Default)]
pub(super) struct Walk {
    at: At,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    /// The first byte of a field.
    #[default]
    Field,
    /// A further byte of an integer, which counts `shift` bits up.
    Integer { value: u32, shift: u32, what: Integer },
    /// The first byte of a name that is spelled out.
    NameLength,
    /// In such a name; `authority` as long as it can be ours.
    Name { left: u32, coded: bool, authority: bool },
    /// The first byte of a value.
    ValueLength { authority: bool },
    /// In a value.
    Value { left: u32, characters: Characters },
    /// Not understood: up to the end of the block.
    Lost,
}

/// What an integer says.
#[derive(Clone, Copy, Debug)]
enum Integer {
    /// An entry that is the whole field, or the size of a table.
    Complete,
    /// The entry that has the name, or 0.
    Name,
    NameLength {
        coded: bool,
    },
    ValueLength {
        coded: bool,
        authority: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Characters {
    /// Of another field.
    Other,
    Plain,
    Coded(Code),
}

impl Walk {
    /// Takes the byte at `index` and changes what has to be, there or before. `open` is where bytes begin that may
    /// still be changed.
    pub(super) fn byte(&mut self, bytes: &mut [u8], index: usize, open: &mut Option<usize>) {
        let byte = bytes[index];
        self.at = match self.at {
            At::Field => match byte {
                0x80.. => Integer::Complete.begin(byte, 7),
                0x40.. => Integer::Name.begin(byte, 6),
                0x20.. => Integer::Complete.begin(byte, 5),
                _ => Integer::Name.begin(byte, 4),
            },
            At::Integer { value, shift, what } => what.go_on(byte, value, shift),
            At::NameLength => Integer::NameLength { coded: byte & 0x80 != 0 }.begin(byte, 7),
            At::Name { left, coded, authority } => {
                let name = if coded { NAME_CODED } else { NAME };
                let expected = name.len().checked_sub(left as usize).and_then(|at| name.get(at));
                let authority = authority && expected == Some(&byte);
                match left - 1 {
                    0 => At::ValueLength { authority },
                    left => At::Name { left, coded, authority },
                }
            }
            At::ValueLength { authority } => {
                Integer::ValueLength { coded: byte & 0x80 != 0, authority }.begin(byte, 7)
            }
            At::Value { left, mut characters } => {
                match &mut characters {
                    Characters::Other => {}
                    Characters::Plain if accepted(byte) => {}
                    Characters::Plain => bytes[index] = PLAIN,
                    Characters::Coded(code) => code.byte(bytes, index, open),
                }
                match left - 1 {
                    0 => {
                        // What is left of the last byte is padding.
                        *open = None;
                        At::Field
                    }
                    left => At::Value { left, characters },
                }
            }
            At::Lost => At::Lost,
        };
    }

    /// The character at hand passes as it is: it is too far apart.
    pub(super) fn let_go(&mut self) {
        if let At::Value { characters: Characters::Coded(code), .. } = &mut self.at {
            code.let_go();
        }
    }
}

impl Integer {
    /// An integer that begins in the last `bits` bits of `byte`.
    fn begin(self, byte: u8, bits: u32) -> At {
        let all = (1 << bits) - 1;
        match u32::from(byte) & all {
            value if value == all => At::Integer { value, shift: 0, what: self },
            value => self.is(value),
        }
    }

    fn go_on(self, byte: u8, value: u32, shift: u32) -> At {
        /// Beyond any table and any header of ours.
        const MOST: u32 = 21;

        if shift > MOST {
            return At::Lost;
        }
        let value = value + (u32::from(byte & 0x7f) << shift);
        if byte & 0x80 != 0 { At::Integer { value, shift: shift + 7, what: self } } else { self.is(value) }
    }

    fn is(self, value: u32) -> At {
        match self {
            Integer::Complete => At::Field,
            Integer::Name if value == 0 => At::NameLength,
            Integer::Name => At::ValueLength { authority: value == STATIC_INDEX },
            Integer::NameLength { .. } if value == 0 => At::ValueLength { authority: false },
            Integer::NameLength { coded } => {
                let len = if coded { NAME_CODED.len() } else { NAME.len() };
                At::Name { left: value, coded, authority: value as usize == len }
            }
            Integer::ValueLength { .. } if value == 0 => At::Field,
            Integer::ValueLength { coded, authority } => At::Value {
                left: value,
                characters: match (authority, coded) {
                    (false, _) => Characters::Other,
                    (true, false) => Characters::Plain,
                    (true, true) => Characters::Coded(Code::default()),
                },
            },
        }
    }
}
