//! How kube-apiserver encrypts an object, once its key is there; both ways.
//!
//! | kind | layout | binds the object's key in etcd |
//! |---|---|---|
//! | aescbc | IV(16) ‖ AES-CBC with PKCS #7 | no, and nothing else: it is not authenticated |
//! | aesgcm | nonce(12) ‖ AES-GCM ‖ tag(16) | yes |
//! | secretbox | nonce(24) ‖ tag(16) ‖ XSalsa20 | no |
//! | KMS v2, AES key | nonce(12) ‖ AES-GCM ‖ tag(16) | yes |
//! | KMS v2, seed | info(32) ‖ nonce(12) ‖ AES-256-GCM ‖ tag(16), its key HKDF-Expand(SHA-256, seed, info) | yes |
//! | KMS v1 | as aesgcm; before Kubernetes 1.25 as aescbc | as these |
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, RandomizedNonceKey, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Key, Nonce as SecretboxNonce, XSalsa20Poly1305};
use zeroize::Zeroizing;

use crate::classify::Cipher;

/// What was encrypted.
pub(super) type Plain = Zeroizing<Vec<u8>>;

const IV: usize = 16;
const GCM_NONCE: usize = 12;
const SECRETBOX_NONCE: usize = 24;
/// Bytes of a seed, and of what each write derives a key with.
pub(super) const SEED: usize = 32;

/// Opens what a local key encrypted for `path`, the object's key in etcd; `None` if it does not.
pub(super) fn open(cipher: Cipher, key: &[u8], path: &[u8], sealed: &[u8]) -> Option<Plain> {
    match cipher {
        Cipher::AesCbc => open_cbc(key, sealed),
        Cipher::AesGcm => open_gcm(key, path, sealed),
        Cipher::SecretBox => open_secretbox(key, sealed),
    }
}

/// Encrypts as [`open`] opens; `None` if the key has no fitting length: for aesgcm 16 or 32 bytes.
pub(super) fn seal(cipher: Cipher, key: &[u8], path: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    match cipher {
        Cipher::AesCbc => seal_cbc(key, plain),
        Cipher::AesGcm => seal_gcm(key, path, plain),
        Cipher::SecretBox => {
            let nonce: [u8; SECRETBOX_NONCE] = random()?;
            let cipher = XSalsa20Poly1305::new(Key::from_slice(exactly_32(key)?));
            let sealed = cipher.encrypt(SecretboxNonce::from_slice(&nonce), plain).ok()?;
            Some([&nonce[..], &sealed].concat())
        }
    }
}

/// Opens what was encrypted under a seed for `path`.
pub(super) fn open_under_seed(seed: &[u8], path: &[u8], sealed: &[u8]) -> Option<Plain> {
    let (info, sealed) = sealed.split_at_checked(SEED)?;
    open_gcm(&*derived(seed, info)?, path, sealed)
}

/// Encrypts as [`open_under_seed`] opens: each call under a key of its own.
pub(super) fn seal_under_seed(seed: &[u8], path: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let info: [u8; SEED] = random()?;
    let sealed = seal_gcm(&*derived(seed, &info)?, path, plain)?;
    Some([&info[..], &sealed].concat())
}

pub(super) fn open_gcm(key: &[u8], aad: &[u8], sealed: &[u8]) -> Option<Plain> {
    let (nonce, body) = sealed.split_at_checked(GCM_NONCE)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut body = Zeroizing::new(body.to_vec());
    let length = opening_key(key)?.open_in_place(nonce, Aad::from(aad), &mut body).ok()?.len();
    body.truncate(length);
    Some(body)
}

#[expect(clippy::disallowed_methods, reason = "it only opens; keys of 24 bytes have no other way")]
fn opening_key(key: &[u8]) -> Option<LessSafeKey> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        32 => &aead::AES_256_GCM,
        _ => return None,
    };
    UnboundKey::new(algorithm, key).ok().map(LessSafeKey::new)
}

/// Not with a key of 24 bytes.
fn seal_gcm(key: &[u8], aad: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        32 => &aead::AES_256_GCM,
        _ => return None,
    };
    let key = RandomizedNonceKey::new(algorithm, key).ok()?;
    let mut sealed = [&[0; GCM_NONCE], plain].concat();
    let sealing = key.seal_in_place_separate_tag(Aad::from(aad), &mut sealed[GCM_NONCE..]);
    let (nonce, tag) = sealing.map(|(nonce, tag)| (*nonce.as_ref(), tag)).ok()?;
    sealed[..GCM_NONCE].copy_from_slice(&nonce);
    sealed.extend_from_slice(tag.as_ref());
    Some(sealed)
}

pub(super) fn open_cbc(key: &[u8], sealed: &[u8]) -> Option<Plain> {
    let (iv, body) = sealed.split_first_chunk::<IV>()?;
    if body.is_empty() || !body.len().is_multiple_of(IV) {
        return None;
    }
    let mut body = Zeroizing::new(body.to_vec());
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(cbc_key(key)?).ok()?;
    let context = DecryptionContext::Iv128(FixedLength::from(iv));
    let length = key.decrypt(&mut body, context).ok()?.len();
    body.truncate(length);
    Some(body)
}

fn seal_cbc(key: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let iv: [u8; IV] = random()?;
    let mut body = plain.to_vec();
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(cbc_key(key)?).ok()?;
    key.less_safe_encrypt(&mut body, EncryptionContext::Iv128(FixedLength::from(&iv))).ok()?;
    Some([&iv[..], &body].concat())
}

fn cbc_key(key: &[u8]) -> Option<UnboundCipherKey> {
    let algorithm = match key.len() {
        16 => &AES_128,
        24 => &AES_192,
        32 => &AES_256,
        _ => return None,
    };
    UnboundCipherKey::new(algorithm, key).ok()
}

fn open_secretbox(key: &[u8], sealed: &[u8]) -> Option<Plain> {
    let (nonce, body) = sealed.split_at_checked(SECRETBOX_NONCE)?;
    let cipher = XSalsa20Poly1305::new(Key::from_slice(exactly_32(key)?));
    cipher.decrypt(SecretboxNonce::from_slice(nonce), body).ok().map(Zeroizing::new)
}

fn exactly_32(key: &[u8]) -> Option<&[u8]> {
    (key.len() == 32).then_some(key)
}

/// A key of 32 bytes.
fn derived(seed: &[u8], info: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    struct Bytes32;

    impl KeyType for Bytes32 {
        fn len(&self) -> usize {
            32
        }
    }

    // kube-apiserver accepts no other length; a much longer one would be none of HKDF's.
    if seed.len() != SEED {
        return None;
    }
    let mut key = Zeroizing::new([0; 32]);
    Prk::new_less_safe(HKDF_SHA256, seed).expand(&[info], Bytes32).ok()?.fill(&mut *key).ok()?;
    Some(key)
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).ok()?;
    Some(bytes)
}
