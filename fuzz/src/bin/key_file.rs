//! A key file: any bytes as they are, and any body with the checksum that belongs to it, so that the parser behind
//! the checksum is reached too. What is accepted comes back the same.
#![no_main]

use casemate_keys::names::sha256;
use casemate_keyservice::file::text::{parse, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut whole = bytes.to_vec();
    if let Some(end) = find(bytes, b"checksum: ") {
        whole.truncate(end);
    }
    let digest: String = sha256(&whole).iter().map(|byte| format!("{byte:02x}")).collect();
    whole.extend_from_slice(format!("checksum: sha256:{digest}\n").as_bytes());
    for file in [bytes, &whole] {
        if let Ok(keyring) = parse(file) {
            let again = parse(render(&keyring).as_bytes()).unwrap();
            assert_eq!(render(&again).as_str(), render(&keyring).as_str());
            assert!(keyring.lineage(keyring.active()).is_some());
        }
    }
});

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).rposition(|part| part == what)
}
