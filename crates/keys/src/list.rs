//! `list(…)`: the injective encoding of several byte strings as one.
//!
//! For each item its length as 32-bit big-endian, then its bytes. A list inside a list is one item.
//! Numbers are ASCII decimal. Without the lengths two different policies could share a key id.

/// Encodes `items` as one byte string that no other sequence of items encodes to.
///
/// # Panics
/// If an item is longer than 4 GiB, which no input of a bounded size can be.
pub fn encode<I>(items: I) -> Vec<u8>
where
    I: IntoIterator,
    I::Item: AsRef<[u8]>,
{
    let mut out = Vec::new();
    for item in items {
        let item = item.as_ref();
        let length = u32::try_from(item.len()).expect("an item is shorter than 4 GiB");
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(item);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_make_it_injective() {
        assert_eq!(encode(["ab", ""]), b"\0\0\0\x02ab\0\0\0\0");
        assert_ne!(encode(["ab", "c"]), encode(["a", "bc"]));
        assert_ne!(encode([encode(["a"]), encode(["b"])]), encode([encode(["a", "b"])]));
    }
}
