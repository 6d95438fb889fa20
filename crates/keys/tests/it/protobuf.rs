//! Protobuf's wire format by hand, to write what no encoder would.

/// One field as it stands on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub number: u64,
    pub value: Value,
    /// Bytes of continuation that pad the tag.
    pub padded_tag: usize,
    /// The same for the value's varint, or for its length.
    pub padded_value: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    /// Wire types 3 and 4.
    Group(Vec<Field>),
    Fixed32([u8; 4]),
}

impl Field {
    pub fn new(number: u64, value: Value) -> Self {
        Self { number, value, padded_tag: 0, padded_value: 0 }
    }

    pub fn varint(number: u64, value: u64) -> Self {
        Self::new(number, Value::Varint(value))
    }

    pub fn bytes(number: u64, value: impl AsRef<[u8]>) -> Self {
        Self::new(number, Value::Bytes(value.as_ref().to_vec()))
    }

    fn encode_to(&self, out: &mut Vec<u8>) {
        let tag = |kind| self.number << 3 | kind;
        match &self.value {
            Value::Varint(value) => {
                varint(tag(0), self.padded_tag, out);
                varint(*value, self.padded_value, out);
            }
            Value::Fixed64(value) => {
                varint(tag(1), self.padded_tag, out);
                out.extend_from_slice(value);
            }
            Value::Bytes(value) => {
                varint(tag(2), self.padded_tag, out);
                varint(value.len() as u64, self.padded_value, out);
                out.extend_from_slice(value);
            }
            Value::Group(fields) => {
                varint(tag(3), self.padded_tag, out);
                out.extend_from_slice(&encode(fields));
                varint(tag(4), self.padded_tag, out);
            }
            Value::Fixed32(value) => {
                varint(tag(5), self.padded_tag, out);
                out.extend_from_slice(value);
            }
        }
    }
}

pub fn encode(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|field| field.encode_to(&mut out));
    out
}

fn varint(mut value: u64, padding: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    if padding == 0 {
        out.push(value as u8);
    } else {
        out.push(value as u8 | 0x80);
        out.resize(out.len() + padding - 1, 0x80);
        out.push(0);
    }
}

/// The fields of a message that a sane encoder wrote: varints and byte strings. `None` for anything else.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes)?;
        fields.push(match tag & 7 {
            0 => Field::varint(tag >> 3, take_varint(&mut bytes)?),
            2 => {
                let length = take_varint(&mut bytes)?;
                let (value, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
                bytes = rest;
                Field::bytes(tag >> 3, value)
            }
            _ => return None,
        });
    }
    Some(fields)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
