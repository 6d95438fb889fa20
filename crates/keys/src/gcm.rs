//! AES-256-GCM with a nonce that the crypto module chooses: nonce(12) ‖ ciphertext ‖ tag(16).

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use zeroize::Zeroizing;

/// Length of the nonce in front.
pub const NONCE_LEN: usize = 12;
/// What sealing adds: nonce and tag.
pub const OVERHEAD: usize = NONCE_LEN + 16;

/// Authentication failed; nothing more can or should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("authentication failed: another key, other associated data, or changed bytes")]
pub struct Unauthentic;

/// Seals `plaintext`, binding `aad`.
pub fn seal(key: &[u8; 32], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(plaintext.len() + OVERHEAD);
    append_sealed(key, aad, plaintext, &mut out);
    out
}

/// [`seal`], appended to `out`.
pub fn append_sealed(key: &[u8; 32], aad: &[u8], plaintext: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + NONCE_LEN, 0);
    out.extend_from_slice(plaintext);
    let (nonce, tag) = module_key(key)
        .seal_in_place_separate_tag(Aad::from(aad), &mut out[start + NONCE_LEN..])
        .map(|(nonce, tag)| (*nonce.as_ref(), tag))
        .expect("sealing a few kilobytes fails only when the system has no randomness");
    out[start..start + NONCE_LEN].copy_from_slice(&nonce);
    out.extend_from_slice(tag.as_ref());
}

/// Opens what [`seal`] made under the same key and associated data.
///
/// # Errors
/// [`Unauthentic`] for anything else, whatever the reason.
pub fn open(key: &[u8; 32], aad: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unauthentic> {
    let (nonce, body) = sealed.split_at_checked(NONCE_LEN).ok_or(Unauthentic)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unauthentic)?;
    let mut body = Zeroizing::new(body.to_vec());
    let length =
        module_key(key).open_in_place(nonce, Aad::from(aad), &mut body).map_err(|_| Unauthentic)?.len();
    body.truncate(length);
    Ok(body)
}

fn module_key(key: &[u8; 32]) -> RandomizedNonceKey {
    RandomizedNonceKey::new(&AES_256_GCM, key).expect("32 bytes are an AES-256 key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_and_data_open() {
        let sealed = seal(&[1; 32], b"aad", b"secret");
        assert_eq!(sealed.len(), 6 + OVERHEAD);
        assert_eq!(open(&[1; 32], b"aad", &sealed).as_deref().map(Vec::as_slice), Ok(&b"secret"[..]));
        assert_eq!(open(&[2; 32], b"aad", &sealed), Err(Unauthentic));
        assert_eq!(open(&[1; 32], b"other", &sealed), Err(Unauthentic));
        for length in 0..sealed.len() {
            assert_eq!(open(&[1; 32], b"aad", &sealed[..length]), Err(Unauthentic));
        }
    }
}
