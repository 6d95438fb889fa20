//! Where a protobuf message breaks: the decoder says why, but not where.
use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The offset of the first field of `message` that can't be read, and the reason. A message whose frame is
/// whole breaks within a field; then the decoder's own words name the field.
pub(super) fn of_the_break(message: &[u8], error: &DecodeError) -> (usize, String) {
    let mut rest = message;
    while !rest.is_empty() {
        let at = message.len() - rest.len();
        if let Err(reason) = skip(&mut rest) {
            return (at, reason);
        }
    }
    (0, error.to_string())
}

fn skip(rest: &mut &[u8]) -> Result<(), String> {
    let (number, wire_type) =
        decode_key(rest).map_err(|_| "what stands there is no field of protobuf".to_owned())?;
    let cut = |wanted: u64, found: usize| {
        format!("field {number} says that it has {wanted} bytes, and {found} follow")
    };
    if wire_type == WireType::LengthDelimited {
        let length = decode_varint(rest).map_err(|_| format!("field {number} ends in its length"))?;
        return match usize::try_from(length) {
            Ok(length) if length <= rest.len() => {
                rest.advance(length);
                Ok(())
            }
            _ => Err(cut(length, rest.len())),
        };
    }
    skip_field(wire_type, number, rest, DecodeContext::default())
        .map_err(|_| format!("field {number} is cut off, or is of no type that the message has"))
}
