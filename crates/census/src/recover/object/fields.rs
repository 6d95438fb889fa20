//! Which fields a message has, whatever they hold.
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The fields of a message that are known: told as YAML, or left out on purpose.
pub(super) struct Fields {
    numbers: &'static [u32],
    messages: &'static [(u32, &'static Fields)],
}

/// An entry of a map.
const ENTRY: Fields = Fields { numbers: &[1, 2], messages: &[] };
const TYPE_META: Fields = Fields { numbers: &[1, 2], messages: &[] };
pub(super) const UNKNOWN: Fields = Fields { numbers: &[1, 2, 3, 4], messages: &[(1, &TYPE_META)] };
const OWNER_REFERENCE: Fields = Fields { numbers: &[1, 3, 4, 5, 6, 7], messages: &[] };
const TIME: Fields = Fields { numbers: &[1, 2], messages: &[] };
/// Left out: `selfLink` (4) and `resourceVersion` (6), which API servers write themselves, and `managedFields` (17).
const OBJECT_META: Fields = Fields {
    numbers: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17],
    messages: &[(8, &TIME), (9, &TIME), (11, &ENTRY), (12, &ENTRY), (13, &OWNER_REFERENCE)],
};
pub(super) const SECRET: Fields =
    Fields { numbers: &[1, 2, 3, 5], messages: &[(1, &OBJECT_META), (2, &ENTRY)] };
pub(super) const CONFIG_MAP: Fields =
    Fields { numbers: &[1, 2, 3, 4], messages: &[(1, &OBJECT_META), (2, &ENTRY), (3, &ENTRY)] };

impl Fields {
    /// Whether these are all that `message` has; not, if it is none.
    pub(super) fn are_all_of(&self, mut message: &[u8]) -> bool {
        while !message.is_empty() {
            if self.next(&mut message).is_none() {
                return false;
            }
        }
        true
    }

    /// Steps over one field that is known.
    fn next(&self, message: &mut &[u8]) -> Option<()> {
        let (number, kind) = decode_key(message).ok()?;
        if !self.numbers.contains(&number) {
            return None;
        }
        let inner = self.messages.iter().find(|(of, _)| *of == number && kind == WireType::LengthDelimited);
        let Some((_, fields)) = inner else {
            return skip_field(kind, number, message, DecodeContext::default()).ok();
        };
        let length = usize::try_from(decode_varint(message).ok()?).ok()?;
        let (inner, rest) = message.split_at_checked(length)?;
        *message = rest;
        fields.are_all_of(inner).then_some(())
    }
}
