//! What OpenBao or Vault answers: to reading a key, encrypt, decrypt, login and look-up of a token.
//!
//! Input: what is answered (1 byte), the status (1 byte), the body. What is accepted has the form that is promised; what
//! is not says so in one line, which shows no secret.
#![no_main]

use casemate_keys::payload;
use casemate_keyservice::transit::fed::{Asked, Fed, SECRETS, feed};
use libfuzzer_sys::fuzz_target;

const ASKED: [Asked; 5] = [Asked::Key, Asked::Encrypt, Asked::Decrypt, Asked::Login, Asked::LookUp];
const STATUSES: [u16; 8] = [200, 204, 307, 400, 403, 404, 429, 503];

fuzz_target!(|bytes: &[u8]| {
    let [asked, status, body @ ..] = bytes else { return };
    let asked = ASKED[usize::from(*asked) % ASKED.len()];
    let status = STATUSES[usize::from(*status) % STATUSES.len()];
    match feed(asked, status, body) {
        Ok(Fed::Key { latest, told }) => {
            assert!(told.contains(&latest) && told.iter().all(|lineage| is_version(lineage)), "{told:?}");
        }
        Ok(Fed::Wrap(wrap)) => assert!((payload::LEN + 28..=payload::LEN + 40).contains(&wrap.len())),
        Ok(Fed::Payload(payload)) => assert_eq!(payload.len(), payload::LEN),
        Ok(Fed::Token(_)) => assert_eq!(status, 200),
        Ok(Fed::No) => assert_ne!(status, 200),
        Err(failure) => {
            let told = format!("{failure} {failure:?}");
            assert!(!told.contains(char::is_control) && told.len() < 4000, "{told:?}");
            let repeats = |secret: &&str| failure.what.contains(*secret);
            assert!(asked != Asked::Login || !SECRETS.iter().any(repeats), "{told}");
        }
    }
});

/// A version from 1 on, made before the year 10000.
fn is_version(lineage: &str) -> bool {
    let rest = lineage.strip_prefix("transit:/transit/casemate/").unwrap_or_default();
    let Some((number, created)) = rest.split_once('/') else { return false };
    number.parse().is_ok_and(|number: u32| number > 0)
        && created.parse().is_ok_and(|at: i64| (1..253_402_300_800).contains(&at))
}
