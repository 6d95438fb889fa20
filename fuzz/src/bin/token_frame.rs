//! What the daemon and a process that holds a PKCS#11 module say to each other, as either side hears it: any bytes, of
//! which frames are read until one is none. What is understood is the same when it is written and read again.
#![no_main]

use casemate_keyservice::pkcs11::heard;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let frames = heard(bytes);
    assert_eq!(heard(&frames.concat()), frames);
});
