//! What a root key wraps: local KEK (32) ‖ SHA-256(core) (32), every kind alike.
//!
//! The digest binds a wrap to its record also where the key service knows no associated data (RSA,
//! key wrap); services that do know it get [`associated_data`] besides.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroizing;

use crate::{DOMAIN, Digest, LocalKek};

/// Length of a payload.
pub const LEN: usize = 64;

/// A payload; wiped when dropped, never shown. It does not move: what is moved leaves a copy behind on the stack.
pub struct Payload(Box<Zeroizing<[u8; LEN]>>);

impl Deref for Payload {
    type Target = [u8; LEN];

    fn deref(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Payload(…)")
    }
}

/// The payload to wrap for `kek` in the record whose core has this digest.
pub fn encode(kek: &LocalKek, core: &Digest) -> Payload {
    let mut out = Payload(Box::new(Zeroizing::new([0; LEN])));
    out.0[..32].copy_from_slice(kek.bytes());
    out.0[32..].copy_from_slice(core);
    out
}

/// The local KEK of an unwrapped payload, if it belongs to the record whose core has this digest.
pub(crate) fn decode(payload: &[u8], core: &Digest) -> Option<LocalKek> {
    let payload: &[u8; LEN] = payload.try_into().ok()?;
    let (kek, digest) = payload.split_at(32);
    aws_lc_rs::constant_time::verify_slices_are_equal(digest, core).ok()?;
    LocalKek::from_bytes(kek)
}

/// The associated data of a wrap at key services that bind some: `casemate.dev/v1/wrap` ‖ 00 ‖ digest.
pub fn associated_data(core: &Digest) -> Vec<u8> {
    [DOMAIN.as_bytes(), b"wrap\0", core].concat()
}
