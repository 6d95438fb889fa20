//! `mvccpb.KeyValue`, in place: a copy of each value would be most of the work of a scan.
use std::fmt;

/// One key with its value. Borrowed: whoever keeps any of it decides so.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The revision that made the key.
    pub create_revision: i64,
    /// The revision that wrote this value.
    pub mod_revision: i64,
    /// How often it was written since it was made.
    pub version: i64,
    /// The value: anything, plaintext too.
    pub value: &'a [u8],
    /// The lease that it goes with; 0 if none.
    pub lease: i64,
}

impl<'a> KeyValue<'a> {
    /// Reads one, as proto3 says: the last of a doubled field counts, unknown fields are stepped over.
    ///
    /// # Errors
    /// The offset of the field that breaks.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, usize> {
        let mut fields = Fields { bytes, at: 0 };
        let mut parsed = Self::default();
        while fields.at < bytes.len() {
            let at = fields.at;
            parsed.field(&mut fields).ok_or(at)?;
        }
        Ok(parsed)
    }

    fn field(&mut self, fields: &mut Fields<'a>) -> Option<()> {
        const VARINT: u32 = 0;
        const FIXED_64: u32 = 1;
        const BYTES: u32 = 2;
        const FIXED_32: u32 = 5;

        let tag = u32::try_from(fields.varint()?).ok()?;
        match (tag >> 3, tag & 7) {
            (1, BYTES) => self.key = fields.bytes()?,
            (2, VARINT) => self.create_revision = fields.varint()? as i64,
            (3, VARINT) => self.mod_revision = fields.varint()? as i64,
            (4, VARINT) => self.version = fields.varint()? as i64,
            (5, BYTES) => self.value = fields.bytes()?,
            (6, VARINT) => self.lease = fields.varint()? as i64,
            // Those of a later version. The known ones have no other form.
            (7.., VARINT) => fields.varint().map(drop)?,
            (7.., BYTES) => fields.bytes().map(drop)?,
            (7.., FIXED_64) => fields.take(8).map(drop)?,
            (7.., FIXED_32) => fields.take(4).map(drop)?,
            _ => return None,
        }
        Some(())
    }
}

/// What is left to read.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                // The tenth byte has room for one bit.
                return (shift < 63 || byte <= 1).then_some(number);
            }
        }
        None
    }
}

impl fmt::Debug for KeyValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &String::from_utf8_lossy(self.key))
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("value", &format_args!("<{} bytes hidden>", self.value.len()))
            .field("lease", &self.lease)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    /// The same message by the library that everything else uses.
    #[derive(Clone, PartialEq, Message)]
    struct Reference {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(int64, tag = "2")]
        create_revision: i64,
        #[prost(int64, tag = "3")]
        mod_revision: i64,
        #[prost(int64, tag = "4")]
        version: i64,
        #[prost(bytes = "vec", tag = "5")]
        value: Vec<u8>,
        #[prost(int64, tag = "6")]
        lease: i64,
    }

    fn same(parsed: &KeyValue<'_>, reference: &Reference) -> bool {
        let Reference { key, create_revision, mod_revision, version, value, lease } = reference;
        let numbers = (parsed.create_revision, parsed.mod_revision, parsed.version, parsed.lease);
        numbers == (*create_revision, *mod_revision, *version, *lease)
            && (parsed.key, parsed.value) == (&key[..], &value[..])
    }

    fn any_reference() -> impl Strategy<Value = Reference> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        (bytes(), any::<[i64; 4]>(), bytes()).prop_map(|(key, numbers, value)| {
            let [create_revision, mod_revision, version, lease] = numbers;
            Reference { key, create_revision, mod_revision, version, value, lease }
        })
    }

    proptest! {
        #[test]
        fn it_is_read_as_prost_reads_it(reference in any_reference(), later in any::<(u32, u64)>()) {
            let mut bytes = reference.encode_to_vec();
            prop_assert!(same(&KeyValue::parse(&bytes).unwrap(), &reference));
            // A field of a later version, and a doubled one.
            prost::encoding::uint64::encode(7 + later.0 % 1000, &later.1, &mut bytes);
            prost::encoding::int64::encode(6, &5, &mut bytes);
            let reference = Reference { lease: 5, ..reference };
            prop_assert!(same(&KeyValue::parse(&bytes).unwrap(), &reference));
        }

        #[test]
        fn what_is_read_of_any_bytes_prost_reads_alike(
            reference in any_reference(), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut bytes = reference.encode_to_vec();
            if !bytes.is_empty() {
                *at.get_mut(&mut bytes) = byte;
            }
            if let Ok(parsed) = KeyValue::parse(&bytes) {
                prop_assert!(same(&parsed, &Reference::decode(&bytes[..]).unwrap()));
            }
        }
    }

    #[test]
    fn a_break_is_told_with_its_place_and_debug_hides_the_value() {
        let whole = Reference { key: b"/a".into(), value: b"SECRET".into(), ..Reference::default() };
        let bytes = whole.encode_to_vec();
        assert_eq!(KeyValue::parse(&bytes[..bytes.len() - 1]), Err(4));
        assert_eq!(KeyValue::parse(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Err(0));
        assert_eq!(KeyValue::parse(&[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), Err(0));
        // A tag of more than 32 bits is none, whatever its lower ones say.
        assert_eq!(KeyValue::parse(&[0x90, 0x80, 0x80, 0x80, 0x10, 1]), Err(0));
        let shown = format!("{:?}", KeyValue::parse(&bytes).unwrap());
        assert!(shown.contains("/a") && !shown.contains("SECRET"), "{shown}");
    }
}
