//! Keys in a token, and what is done with them.

use std::collections::BTreeSet;

use aws_lc_rs::rand;
use aws_lc_rs::rsa::{
    OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey, PublicKeyComponents,
};
use casemate_keys::payload;
use cryptoki::context::Function;
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsOaepParams, PkcsOaepSource};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session;
use zeroize::Zeroizing;

use super::code::{self, Cure};
use super::sign::rsa_public;
use super::token::Trouble;
use super::{CkaId, Wrapping, Writes};
use crate::selection::{Candidate, Selection, choose};
use crate::{Class, Failure};

const RESTORE: &str =
    "restore the key to this token, or correct the ids in the configuration; `pkcs11-tool -O` lists keys";

/// `pkcs11-tool` lists these under an id that is not theirs.
pub(super) const RESTORE_RSA: &str = "restore the key to this token, or correct the ids in the configuration: an RSA key is named by the first 16 bytes of \
                           SHA-256 of its public key, not by its CKA_ID: docs/how-to/hsm.md#rsa-keys";

fn restore(wrapping: Wrapping) -> &'static str {
    if wrapping == Wrapping::RsaOaep { RESTORE_RSA } else { RESTORE }
}

const NONCE: usize = 12;
const TAG: usize = 16;
/// RFC 5649: one block more than what is wrapped, which fills its blocks.
const KWP: usize = payload::LEN + 8;

/// A key of a token, looked up for one call: handles are not kept, since what they lead to may be replaced.
#[derive(Debug)]
pub(super) struct Key<'a> {
    session: &'a Session,
    wrapping: Wrapping,
    id: CkaId,
    handle: ObjectHandle,
    label: Option<String>,
    /// Why it can't wrap and unwrap.
    disabled: Option<String>,
    /// Why it can't even unwrap.
    unreadable: Option<String>,
    /// Whether it may be used by C_WrapKey and C_UnwrapKey.
    wraps_keys: bool,
    /// Whether it is used by C_UnwrapKey.
    unwraps_keys: bool,
    public: Option<PublicKeyComponents<Vec<u8>>>,
}

/// Which of `keys` writes.
pub(super) fn observe(
    session: &Session,
    wrapping: Wrapping,
    keys: &BTreeSet<CkaId>,
    writes: &Writes,
) -> Result<CkaId, Trouble> {
    let label = match writes {
        Writes::Pinned(id) => return Key::enabled(session, wrapping, id).map(|key| key.id),
        Writes::Label(label) => label,
        Writes::Never => return readable(session, wrapping, keys),
    };
    let mut there = present(session, wrapping, keys)?;
    let candidates: Vec<Candidate> = there.iter().map(Key::candidate).collect();
    let place = choose(&candidates, &Selection::Label(label.clone())).map_err(|undecided| {
        let remedy = "set CKA_LABEL of exactly one enabled key that the configuration lists; until then the key that wrote goes on";
        let missing = keys.iter().filter(|id| !there.iter().any(|key| key.id == **id));
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        let mut what = undecided.to_string();
        if !missing.is_empty() {
            what += &format!("; the token does not have {}, which the configuration lists", missing.join(", "));
        }
        Trouble::Found(Failure::new(Class::Undecided, what, remedy))
    })?;
    Ok(there.swap_remove(place).id)
}

/// The first of `keys` that unwraps: enough to say that this root key can be read.
fn readable(session: &Session, wrapping: Wrapping, keys: &BTreeSet<CkaId>) -> Result<CkaId, Trouble> {
    let there = present(session, wrapping, keys)?;
    if let Some(key) = there.iter().find(|key| key.unreadable.is_none()) {
        key.opens_its_own()?;
        return Ok(key.id.clone());
    }
    match there.into_iter().find_map(|key| Some((key.id, key.unreadable?))) {
        Some((id, why)) => {
            let what = format!("key {id} can't be used for {wrapping}: {why}");
            Err(Trouble::Found(Failure::new(Class::Refused, what, "change the key's attributes")))
        }
        None => {
            let missing = keys.first().map(CkaId::lineage);
            let what =
                format!("the token has none of the {} keys for {wrapping} that are configured", keys.len());
            Err(Trouble::Found(Failure { missing, ..Failure::new(Class::Refused, what, restore(wrapping)) }))
        }
    }
}

/// Which of `keys` are not there. `there` is. That one can't be looked for is found out when it is needed: it must not keep
/// another one from being used.
pub(super) fn absent(
    session: &Session,
    wrapping: Wrapping,
    keys: &BTreeSet<CkaId>,
    there: &CkaId,
) -> BTreeSet<CkaId> {
    let is_absent = |id: &&CkaId| *id != there && matches!(Key::find(session, wrapping, id), Ok(None));
    keys.iter().filter(is_absent).cloned().collect()
}

/// The keys that are there, of those that are configured.
pub(super) fn versions(
    session: &Session,
    wrapping: Wrapping,
    keys: &BTreeSet<CkaId>,
) -> Result<Vec<Candidate>, Trouble> {
    Ok(present(session, wrapping, keys)?.iter().map(Key::candidate).collect())
}

fn present<'a>(
    session: &'a Session,
    wrapping: Wrapping,
    keys: &BTreeSet<CkaId>,
) -> Result<Vec<Key<'a>>, Trouble> {
    let found = keys.iter().filter_map(|id| Key::find(session, wrapping, id).transpose());
    found.collect()
}

/// A token that shows none of its keys may have been pulled: there are modules that see its objects go, and see neither
/// that it is gone nor that it is back, until they are loaded anew.
pub(super) fn doubt(
    trouble: Trouble,
    session: &Session,
    wrapping: Wrapping,
    keys: &BTreeSet<CkaId>,
) -> Trouble {
    match trouble {
        Trouble::Found(failure) if present(session, wrapping, keys).is_ok_and(|found| found.is_empty()) => {
            Trouble::Passing(failure, Cure::Host)
        }
        other => other,
    }
}

impl<'a> Key<'a> {
    /// The key `id`, if it is there. It may be one that only unwraps.
    pub(super) fn present(session: &'a Session, wrapping: Wrapping, id: &CkaId) -> Result<Self, Trouble> {
        Self::find(session, wrapping, id)?.ok_or_else(|| {
            let what = format!("the token has no key {id} for {wrapping}");
            Trouble::Found(Failure {
                missing: Some(id.lineage()),
                ..Failure::new(Class::Refused, what, restore(wrapping))
            })
        })
    }

    /// The key `id`, if it is there and may wrap and unwrap.
    pub(super) fn enabled(session: &'a Session, wrapping: Wrapping, id: &CkaId) -> Result<Self, Trouble> {
        let key = Self::present(session, wrapping, id)?;
        if let Some(why) = &key.disabled {
            let what = format!("key {id} can't be used for {wrapping}: {why}");
            let remedy = "change the key's attributes, or let another key write";
            return Err(Trouble::Found(Failure::new(Class::Refused, what, remedy)));
        }
        Ok(key)
    }

    /// The key `id`, if it is there.
    fn find(session: &'a Session, wrapping: Wrapping, id: &CkaId) -> Result<Option<Self>, Trouble> {
        let mut found = match wrapping {
            Wrapping::AesGcm | Wrapping::AesKwp => Self::secret_keys(session, wrapping, id)?,
            Wrapping::RsaOaep => Self::rsa_keys(session, id)?,
        };
        let first = found.pop();
        if !found.is_empty() {
            let what = format!(
                "the token has {} keys with id {id}: which one is meant can't be told",
                found.len() + 1
            );
            let remedy = "give all but one of them another CKA_ID";
            return Err(Trouble::Found(Failure::new(Class::Refused, what, remedy)));
        }
        Ok(first)
    }

    fn secret_keys(session: &'a Session, wrapping: Wrapping, id: &CkaId) -> Result<Vec<Self>, Trouble> {
        let doing = Trouble::call("looking for a key");
        let template = [
            Attribute::Class(ObjectClass::SECRET_KEY),
            Attribute::Token(true),
            Attribute::Id(id.bytes().to_vec()),
        ];
        let handles = session.find_objects(&template).map_err(&doing)?;
        let wanted = [
            AttributeType::Label,
            AttributeType::KeyType,
            AttributeType::ValueLen,
            AttributeType::Encrypt,
            AttributeType::Decrypt,
            AttributeType::Wrap,
            AttributeType::Unwrap,
        ];
        let look = |handle| {
            let mut key = Self {
                session,
                wrapping,
                id: id.clone(),
                handle,
                label: None,
                disabled: None,
                unreadable: None,
                wraps_keys: false,
                unwraps_keys: false,
                public: None,
            };
            let (mut ciphers, mut wraps, mut aes, mut bytes) = ([false; 2], [false; 2], false, None);
            for attribute in session.get_attributes(handle, &wanted).map_err(&doing)? {
                match attribute {
                    Attribute::Label(label) => key.label = Some(String::from_utf8_lossy(&label).into_owned()),
                    Attribute::KeyType(kind) => aes = kind == KeyType::AES,
                    Attribute::ValueLen(length) => bytes = usize::try_from(*length).ok(),
                    Attribute::Encrypt(may) => ciphers[0] = may,
                    Attribute::Decrypt(may) => ciphers[1] = may,
                    Attribute::Wrap(may) => wraps[0] = may,
                    Attribute::Unwrap(may) => wraps[1] = may,
                    _ => {}
                }
            }
            key.wraps_keys = wraps == [true; 2];
            let may_cipher = ciphers == [true; 2];
            key.unwraps_keys = key.wraps_keys || wraps[1] && !may_cipher;
            key.unreadable = match wrapping {
                _ if !aes => Some("it is no AES key".into()),
                _ if bytes.is_some_and(|bytes| bytes != 32) => Some("it is no AES key of 256 bits".into()),
                Wrapping::AesKwp if !wraps[1] && !ciphers[1] => Some("CKA_UNWRAP is false".into()),
                Wrapping::AesGcm if !ciphers[1] => Some("CKA_DECRYPT is false".into()),
                _ => None,
            };
            key.disabled = match wrapping {
                _ if key.unreadable.is_some() => key.unreadable.clone(),
                Wrapping::AesKwp if !key.wraps_keys && !may_cipher => {
                    Some("CKA_WRAP or CKA_UNWRAP is false".into())
                }
                Wrapping::AesGcm if !may_cipher => Some("CKA_ENCRYPT or CKA_DECRYPT is false".into()),
                _ => None,
            };
            Ok(key)
        };
        handles.into_iter().map(look).collect()
    }

    /// RSA keys are told by their public half, whatever CKA_ID says.
    fn rsa_keys(session: &'a Session, id: &CkaId) -> Result<Vec<Self>, Trouble> {
        let doing = Trouble::call("looking for an RSA key");
        let template = [
            Attribute::Class(ObjectClass::PRIVATE_KEY),
            Attribute::Token(true),
            Attribute::KeyType(KeyType::RSA),
        ];
        let mut keys = Vec::new();
        for handle in session.find_objects(&template).map_err(&doing)? {
            let Some((_, public)) = rsa_public(session, handle)?.filter(|(known, _)| known == id.bytes())
            else {
                continue;
            };
            let (mut label, mut decrypts) = (None, false);
            let wanted = [AttributeType::Label, AttributeType::Decrypt];
            for attribute in session.get_attributes(handle, &wanted).map_err(&doing)? {
                match attribute {
                    Attribute::Label(text) => label = Some(String::from_utf8_lossy(&text).into_owned()),
                    Attribute::Decrypt(may) => decrypts = may,
                    _ => {}
                }
            }
            keys.push(Self {
                session,
                wrapping: Wrapping::RsaOaep,
                id: id.clone(),
                handle,
                label,
                disabled: (!decrypts).then(|| "CKA_DECRYPT is false".into()),
                unreadable: (!decrypts).then(|| "CKA_DECRYPT is false".into()),
                wraps_keys: false,
                unwraps_keys: false,
                public: Some(public),
            });
        }
        Ok(keys)
    }

    fn candidate(&self) -> Candidate {
        Candidate {
            version: self.id.to_string(),
            labels: self.label.iter().cloned().collect(),
            current: false,
            disabled: self.disabled.clone(),
        }
    }

    /// The wrap of a payload.
    pub(super) fn wrap(&self, associated: &[u8], payload: &[u8]) -> Result<Vec<u8>, Trouble> {
        let (wrap, expected) = match self.wrapping {
            Wrapping::AesGcm => (self.seal(associated, payload)?, NONCE + payload::LEN + TAG),
            Wrapping::AesKwp => (self.wrap_padded(payload)?, KWP),
            Wrapping::RsaOaep => return self.encrypt_oaep(payload),
        };
        if wrap.len() != expected {
            let what = format!(
                "key {} made a wrap of {} bytes where {} makes {expected}",
                self.id,
                wrap.len(),
                self.wrapping
            );
            let remedy = "this module does something else by this mechanism's name: use the other algorithm for this token";
            return Err(Trouble::Found(Failure::new(Class::Refused, what, remedy)));
        }
        Ok(wrap)
    }

    /// The payload of a wrap.
    pub(super) fn unwrap(&self, associated: &[u8], wrap: &[u8]) -> Result<Zeroizing<Vec<u8>>, Trouble> {
        let opened = match self.wrapping {
            Wrapping::AesGcm => self.open(associated, wrap),
            Wrapping::AesKwp => self.unwrap_padded(wrap),
            Wrapping::RsaOaep => self.decrypt_oaep(wrap),
        };
        opened.map_err(|trouble| match trouble.code() {
            Some(code) if code::blames_ciphertext(code) => self.not_opened(wrap),
            _ => trouble,
        })
    }

    pub(super) fn not_opened(&self, wrap: &[u8]) -> Trouble {
        let what = format!("a wrap of {} bytes does not open under key {}", wrap.len(), self.id);
        let remedy = "the record was changed, or another key made it that had this id; restore the object from a backup";
        Trouble::Found(Failure::new(Class::NotOpened, what, remedy))
    }

    /// Whether this key opens what it wraps, now: an unwrapping that failed with a code that may mean anything is then the
    /// wrap's fault. Bytes from etcd must not make a token look ill. `None`: a key that only unwraps can't be asked.
    pub(super) fn is_well(&self, associated: &[u8]) -> Option<bool> {
        if self.disabled.is_some() {
            return None;
        }
        let mut sample = Zeroizing::new([0; payload::LEN]);
        if rand::fill(&mut sample[..]).is_err() {
            return None;
        }
        let opened = self.wrap(associated, &sample[..]).and_then(|wrap| match self.wrapping {
            Wrapping::AesGcm => self.open(associated, &wrap),
            Wrapping::AesKwp => self.unwrap_padded(&wrap),
            Wrapping::RsaOaep => self.decrypt_oaep(&wrap),
        });
        Some(opened.is_ok_and(|opened| opened[..] == sample[..]))
    }

    /// Whether the token can unwrap by RSA-OAEP with SHA-256: its mechanism's name does not say so, and with the public half
    /// there is something to try. Of other keys nothing is tried.
    fn opens_its_own(&self) -> Result<(), Trouble> {
        if self.wrapping == Wrapping::RsaOaep {
            self.decrypt_oaep(&self.encrypt_oaep(&[0; payload::LEN])?)?;
        }
        Ok(())
    }

    /// With a nonce of ours, or, where the token wants to choose, its own.
    fn seal(&self, associated: &[u8], payload: &[u8]) -> Result<Vec<u8>, Trouble> {
        let mut nonce = [0; NONCE];
        rand::fill(&mut nonce).map_err(|_| out_of_randomness())?;
        match self.seal_with(&mut nonce, associated, payload) {
            Err(trouble) if trouble.code().is_some_and(wants_own_nonce) => {
                let mut nonce = [0; NONCE];
                let wrap = self.seal_with(&mut nonce, associated, payload)?;
                if nonce == [0; NONCE] {
                    let what =
                        format!("key {} takes no nonce from outside, and gives none of its own", self.id);
                    let remedy = "use AES key wrap (`aes-kwp`) for this token";
                    return Err(Trouble::Found(Failure::new(Class::Refused, what, remedy)));
                }
                Ok(wrap)
            }
            sealed => sealed,
        }
    }

    fn seal_with(
        &self,
        nonce: &mut [u8; NONCE],
        associated: &[u8],
        payload: &[u8],
    ) -> Result<Vec<u8>, Trouble> {
        let doing = Trouble::call("wrapping by AES-GCM");
        let params = GcmParams::new(nonce, associated, (TAG as u64 * 8).into()).map_err(&doing)?;
        let sealed =
            self.session.encrypt(&Mechanism::AesGcm(params), self.handle, payload).map_err(&doing)?;
        // The token may have replaced it.
        Ok([&nonce[..], &sealed].concat())
    }

    fn open(&self, associated: &[u8], wrap: &[u8]) -> Result<Zeroizing<Vec<u8>>, Trouble> {
        let doing = Trouble::call("unwrapping by AES-GCM");
        if wrap.len() != NONCE + payload::LEN + TAG {
            return Err(self.not_opened(wrap));
        }
        let (nonce, sealed) = wrap.split_at(NONCE);
        let mut nonce = nonce.to_vec();
        let params = GcmParams::new(&mut nonce, associated, (TAG as u64 * 8).into()).map_err(&doing)?;
        let opened = self.session.decrypt(&Mechanism::AesGcm(params), self.handle, sealed).map_err(&doing)?;
        Ok(Zeroizing::new(opened))
    }

    fn wrap_padded(&self, payload: &[u8]) -> Result<Vec<u8>, Trouble> {
        let doing = Trouble::call("wrapping by AES key wrap");
        if !self.wraps_keys {
            return self.session.encrypt(&Mechanism::AesKeyWrapPad, self.handle, payload).map_err(&doing);
        }
        let mut template = session_object();
        template.push(Attribute::Value(payload.to_vec()));
        let made = self.session.create_object(&template);
        wipe(&mut template);
        let held = Held {
            session: self.session,
            handle: made.map_err(Trouble::call("handing a payload to the token"))?,
        };
        self.session.wrap_key(&Mechanism::AesKeyWrapPad, self.handle, held.handle).map_err(&doing)
    }

    fn unwrap_padded(&self, wrap: &[u8]) -> Result<Zeroizing<Vec<u8>>, Trouble> {
        let doing = Trouble::call("unwrapping by AES key wrap");
        if wrap.len() != KWP {
            return Err(self.not_opened(wrap));
        }
        if !self.unwraps_keys {
            let opened =
                self.session.decrypt(&Mechanism::AesKeyWrapPad, self.handle, wrap).map_err(&doing)?;
            return Ok(Zeroizing::new(opened));
        }
        let opened = self.session.unwrap_key(&Mechanism::AesKeyWrapPad, self.handle, wrap, &session_object());
        let held = Held { session: self.session, handle: opened.map_err(&doing)? };
        let doing = Trouble::call("reading a payload from the token");
        let attributes = self.session.get_attributes(held.handle, &[AttributeType::Value]).map_err(&doing)?;
        let value = attributes.into_iter().find_map(|attribute| match attribute {
            Attribute::Value(value) => Some(Zeroizing::new(value)),
            _ => None,
        });
        value.ok_or_else(|| {
            let what = format!("the token does not show what key {} unwrapped", self.id);
            let remedy = "allow CKA_EXTRACTABLE for session objects on the token, or use AES-GCM (`aes-gcm`)";
            Trouble::Found(Failure::new(Class::Refused, what, remedy))
        })
    }

    /// The public operation needs no token.
    fn encrypt_oaep(&self, payload: &[u8]) -> Result<Vec<u8>, Trouble> {
        let refused = || {
            let what = format!("key {} can't wrap by RSA-OAEP", self.id);
            Trouble::Found(Failure::new(Class::Refused, what, "use an RSA key of 2048 to 8192 bits"))
        };
        let public = self.public.clone().ok_or_else(refused)?;
        let public: PublicEncryptingKey = public.try_into().map_err(|_| refused())?;
        let public = OaepPublicEncryptingKey::new(public).map_err(|_| refused())?;
        let mut wrap = vec![0; public.ciphertext_size()];
        let written =
            public.encrypt(&OAEP_SHA256_MGF1SHA256, payload, &mut wrap, None).map_err(|_| refused())?;
        Ok(written.to_vec())
    }

    fn decrypt_oaep(&self, wrap: &[u8]) -> Result<Zeroizing<Vec<u8>>, Trouble> {
        let params =
            PkcsOaepParams::new(MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, PkcsOaepSource::empty());
        let opened = self.session.decrypt(&Mechanism::RsaPkcsOaep(params), self.handle, wrap);
        opened.map(Zeroizing::new).map_err(|error| match error {
            // Before it has seen a ciphertext: it does not do this at all.
            Error::Pkcs11(
                RvError::ArgumentsBad | RvError::MechanismParamInvalid | RvError::MechanismInvalid,
                Function::DecryptInit,
            ) => {
                let what =
                    format!("the token does not unwrap by RSA-OAEP with SHA-256, as key {} is to", self.id);
                let remedy = "use an AES key on this token";
                Trouble::Found(Failure::new(Class::Refused, what, remedy))
            }
            error => Trouble::Call { error, doing: "unwrapping by RSA-OAEP with SHA-256" },
        })
    }
}

/// What a payload is while the token holds it: for this session only, and readable.
fn session_object() -> Vec<Attribute> {
    vec![
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::GENERIC_SECRET),
        Attribute::Token(false),
        Attribute::Sensitive(false),
        Attribute::Extractable(true),
    ]
}

/// A session object that is destroyed whatever happens.
struct Held<'a> {
    session: &'a Session,
    handle: ObjectHandle,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // If not, it goes with the session, and the count of sessions and memory says so.
        let _ = self.session.destroy_object(self.handle);
    }
}

fn wipe(template: &mut Vec<Attribute>) {
    for attribute in template.drain(..) {
        if let Attribute::Value(value) = attribute {
            drop(Zeroizing::new(value));
        }
    }
}

fn wants_own_nonce(code: RvError) -> bool {
    matches!(code, RvError::ArgumentsBad | RvError::MechanismParamInvalid)
}

pub(super) fn without_zeros(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}

fn out_of_randomness() -> Trouble {
    let remedy = "restart; if it happens again, look at the kernel's log";
    Trouble::Found(Failure::new(Class::Unreachable, "the system gives no random bytes", remedy))
}
