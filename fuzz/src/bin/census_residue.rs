//! Any bytes, looked through for plaintext objects: the first two say in which parts. What is found is the same however
//! they come, and each copy begins at a place of its own.
#![no_main]

use casemate_census::residue::{Place, Search};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(([low, high], bytes)) = bytes.split_first_chunk::<2>() else { return };
    let part = 1 + usize::from(u16::from_le_bytes([*low, *high]));
    let all = "*.*".parse().expect("it is a pattern");
    let search = Search::new(vec![all], "/registry");
    let whole = search.bytes(Place::OtherFile, &bytes.to_vec(), bytes.len() as u64, |_, _| ());
    let whole = whole.expect("memory can be read");
    let (mut scanner, mut offset) = (search.scanner(Place::OtherFile), 7);
    for part in bytes.chunks(part) {
        scanner.feed(offset, part);
        offset += part.len() as u64;
    }
    let found = scanner.finish();
    assert_eq!((found.copies, &found.by_resource), (whole.copies, &whole.by_resource));
    assert!(whole.copies <= bytes.len() as u64 && whole.written <= whole.bytes);
    assert_eq!(whole.bytes, bytes.len() as u64);
});
