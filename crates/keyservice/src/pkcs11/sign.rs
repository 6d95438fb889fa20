//! Signatures by a key in a token: what proves where a record with a wrap under an RSA key comes from.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa::PublicKeyComponents;
use casemate_keys::names::sha256;
use casemate_keys::origin::SignatureAlgorithm;
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session;
use serde::{Deserialize, Serialize};

use super::CkaId;
use super::token::Trouble;
use super::wraps::{RESTORE_RSA, without_zeros};
use crate::{Class, Failure};

/// How a key in a token signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Signing {
    EcdsaP256,
    RsaPss3072,
}

impl Signing {
    pub(super) fn of(algorithm: SignatureAlgorithm) -> Option<Self> {
        match algorithm {
            SignatureAlgorithm::EcdsaP256 => Some(Self::EcdsaP256),
            SignatureAlgorithm::RsaPss3072 => Some(Self::RsaPss3072),
            _ => None,
        }
    }
}

/// The signature of `message` as records hold it.
pub(super) fn sign(
    session: &Session,
    signing: Signing,
    key: &CkaId,
    message: &[u8],
) -> Result<Vec<u8>, Trouble> {
    let found = match signing {
        Signing::EcdsaP256 => {
            private_keys(session, &[Attribute::KeyType(KeyType::EC), Attribute::Id(key.bytes().to_vec())])?
        }
        Signing::RsaPss3072 => rsa_keys(session, key)?,
    };
    let refused = |what: String, remedy: &str| Trouble::Found(Failure::new(Class::Refused, what, remedy));
    let handle = match found[..] {
        [handle] => handle,
        [] => {
            let what = format!("the token has no key {key} that signs");
            let remedy = match signing {
                Signing::EcdsaP256 => "restore the key to this token, or correct the signer's id",
                Signing::RsaPss3072 => RESTORE_RSA,
            };
            let failure = Failure::new(Class::Refused, what, remedy);
            return Err(Trouble::Found(Failure { missing: Some(key.lineage()), ..failure }));
        }
        _ => {
            let what = format!("the token has {} keys {key} that sign", found.len());
            return Err(refused(what, "give all but one of them another CKA_ID"));
        }
    };
    let doing = Trouble::call("signing");
    match signing {
        Signing::EcdsaP256 => {
            let raw = session.sign(&Mechanism::Ecdsa, handle, &sha256(message)).map_err(&doing)?;
            let (r, s) = raw.split_at_checked(32).filter(|(_, s)| s.len() == 32).ok_or_else(|| {
                let what = format!("key {key} made a signature of {} bytes, not of 64", raw.len());
                refused(what, "a signer is an EC key on P-256")
            })?;
            Ok(der(r, s))
        }
        Signing::RsaPss3072 => {
            let params = PkcsPssParams {
                hash_alg: MechanismType::SHA256,
                mgf: PkcsMgfType::MGF1_SHA256,
                s_len: 32.into(),
            };
            let signature =
                session.sign(&Mechanism::Sha256RsaPkcsPss(params), handle, message).map_err(&doing)?;
            if signature.len() == 384 {
                return Ok(signature);
            }
            let what = format!("key {key} made a signature of {} bytes, not of 384", signature.len());
            Err(refused(what, "an RSA key that signs has 3072 bits"))
        }
    }
}

fn private_keys(session: &Session, kind: &[Attribute]) -> Result<Vec<ObjectHandle>, Trouble> {
    let mut template =
        vec![Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Token(true), Attribute::Sign(true)];
    template.extend_from_slice(kind);
    session.find_objects(&template).map_err(Trouble::call("looking for a key that signs"))
}

fn rsa_keys(session: &Session, id: &CkaId) -> Result<Vec<ObjectHandle>, Trouble> {
    let mut found = Vec::new();
    for handle in private_keys(session, &[Attribute::KeyType(KeyType::RSA)])? {
        if rsa_public(session, handle)?.is_some_and(|(known, _)| known == id.bytes()) {
            found.push(handle);
        }
    }
    Ok(found)
}

/// The public half of an RSA key, and what the key is known by.
pub(super) type RsaPublic = ([u8; 16], PublicKeyComponents<Vec<u8>>);

/// Of a private key; `None` if its public half is not to be had, or can't be a key.
pub(super) fn rsa_public(session: &Session, private: ObjectHandle) -> Result<Option<RsaPublic>, Trouble> {
    let wanted = [AttributeType::Modulus, AttributeType::PublicExponent];
    let mut public = PublicKeyComponents { n: Vec::new(), e: Vec::new() };
    let doing = Trouble::call("looking at an RSA key");
    for attribute in session.get_attributes(private, &wanted).map_err(doing)? {
        match attribute {
            Attribute::Modulus(bytes) => public.n = without_zeros(bytes),
            Attribute::PublicExponent(bytes) => public.e = without_zeros(bytes),
            _ => {}
        }
    }
    let Ok(spki) = AsDer::<PublicKeyX509Der<'_>>::as_der(&public) else { return Ok(None) };
    let mut id = [0; 16];
    id.copy_from_slice(&sha256(spki.as_ref())[..16]);
    Ok(Some((id, public)))
}

/// An ECDSA signature on P-256 in DER: a sequence of two integers, which all fit one byte of length.
fn der(r: &[u8], s: &[u8]) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    let content = [integer(r), integer(s)].concat();
    [&[SEQUENCE, content.len() as u8][..], &content].concat()
}

fn integer(number: &[u8]) -> Vec<u8> {
    const INTEGER: u8 = 2;
    let mut digits = without_zeros(number.to_vec());
    // A set first bit would make it negative, and nothing is no number.
    if digits.first().is_none_or(|first| first & 0x80 != 0) {
        digits.insert(0, 0);
    }
    [&[INTEGER, digits.len() as u8][..], &digits].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_positive_and_minimal() {
        let (mut small, mut large) = ([0; 32], [0; 32]);
        (small[31], large[0]) = (5, 0x80);
        let encoded = der(&small, &large);
        assert_eq!(encoded[..8], [0x30, 38, 2, 1, 5, 2, 33, 0]);
        assert_eq!((encoded.len(), encoded[8]), (40, 0x80));
        assert_eq!(integer(&[0; 32]), [2, 1, 0]);
    }
}
