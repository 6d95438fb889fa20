//! Opens values.
use std::num::NonZeroUsize;
use std::sync::Arc;

use casemate_keys::names::sha256;
use casemate_keys::{Digest, LocalKek, RECORD_ANNOTATION, Record, Sealed};
use casemate_wire::kms_v2::stored::{self, EncryptedDekSourceType, EncryptedObject};
use lru::LruCache;
use zeroize::Zeroizing;

use super::local::Missed;
use super::{LocalKeys, Origin, Shape, cipher};
use crate::classify::{Claim, Class, Classifier, KmsV2, source_of};
use crate::survey::{Encryption, Key};

/// How many local KEKs, and how many DEK sources, are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not 0");

/// Opens what a key outside of this process has to open.
pub trait Unwrapper {
    /// The local KEK of `record`, a record of `casemate-kms` that is canonical and has the key id of `sealed`.
    ///
    /// # Errors
    /// Why not.
    fn local_kek(&mut self, record: &Record, sealed: &Sealed<'_>) -> Result<Unwrapped, NotOpened>;

    /// What a plugin that speaks KMS v2, and that the EncryptionConfiguration calls `provider`, answers to Decrypt.
    ///
    /// # Errors
    /// Why not.
    fn dek_source(
        &mut self,
        provider: &str,
        object: &EncryptedObject,
    ) -> Result<Zeroizing<Vec<u8>>, NotOpened>;

    /// What a plugin that speaks KMS v1 answers to Decrypt.
    ///
    /// # Errors
    /// Why not.
    fn kms_v1_key(&mut self, provider: &str, encrypted: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotOpened>;
}

/// An opened local KEK.
pub struct Unwrapped {
    /// The key.
    pub kek: LocalKek,
    /// What opened it.
    pub by: Key,
    /// Whether that says who made the record.
    pub origin: Origin,
}

/// Why a value stays closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotOpened {
    /// It contradicts its own mark, or its record is refused by whoever reads it: no key opens it.
    #[error("no key opens it: {0}")]
    Broken(String),
    /// None of the keys that would open it was given.
    #[error("no key was given that opens it")]
    NoKey,
    /// A key was given that should, and it does not.
    #[error("{0}")]
    Refused(String),
    /// Who has the key could not be asked.
    #[error("{0}")]
    Unreachable(String),
}

impl NotOpened {
    /// Of two ways that both did not open: the one that tells more. Who could not be asked might have opened it.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoKey, other) => other,
            (Self::Refused(_) | Self::Broken(_), other @ Self::Unreachable(_)) => other,
            (first, _) => first,
        }
    }
}

/// What was in a value.
pub struct Opened {
    /// The object, as kube-apiserver stores it where it does not encrypt.
    pub object: Zeroizing<Vec<u8>>,
    /// What opened it; `None` if it was in the clear.
    pub by: Option<Key>,
    /// Whether whoever writes etcd could have made it; `None` where the provider's kind leaves nothing to tell.
    pub origin: Option<Origin>,
}

/// A value that stays closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Why.
    pub why: NotOpened,
    /// Any one of these keys would open it; none if no key does.
    pub opened_by: Vec<Key>,
}

/// Opens values. Each local KEK and DEK source is asked for once.
pub struct Opener<U> {
    local: LocalKeys,
    unwrapper: U,
    classifier: Classifier,
    keks: LruCache<Digest, Arc<Result<Unwrapped, NotOpened>>>,
    sources: LruCache<Digest, Arc<Result<Source, NotOpened>>>,
}

/// An opened DEK source.
#[derive(Clone)]
struct Source {
    bytes: Zeroizing<Vec<u8>>,
    by: Key,
    origin: Option<Origin>,
}

impl<U: Unwrapper> Opener<U> {
    /// One with these keys.
    pub fn new(local: LocalKeys, unwrapper: U) -> Self {
        Self {
            local,
            unwrapper,
            classifier: Classifier::new(),
            keks: LruCache::new(KEPT),
            sources: LruCache::new(KEPT),
        }
    }

    /// How `value` is encrypted.
    pub fn classify(&mut self, value: &[u8]) -> Class {
        self.classifier.classify(value)
    }

    /// Opens `value`, which is of `class` and stands in etcd under `path`.
    ///
    /// # Errors
    /// Why it stays closed, and which keys would open it.
    pub fn open(&mut self, path: &[u8], value: &[u8], class: &Class) -> Result<Opened, Closed> {
        let opened = match class {
            Class::PlainProtobuf | Class::PlainJson | Class::PlainOther => {
                Ok(Opened { object: Zeroizing::new(value.to_vec()), by: None, origin: None })
            }
            Class::Local { .. } => self
                .local
                .open(path, value)
                .map_err(NotOpened::from)
                .map(|(object, by)| Opened { object, by: Some(by), origin: None }),
            Class::KmsV1 { .. } => self.open_kms_v1(path, value),
            Class::KmsV2(kms) => self.open_kms_v2(path, value, kms),
            Class::Malformed(malformed) => {
                // A name of a local key may have a colon, which a value alone does not tell from the name's end.
                if let Claim::Local(_) = malformed.claims
                    && let Ok((object, by)) = self.local.open(path, value)
                {
                    return Ok(Opened { object, by: Some(by), origin: None });
                }
                let reasons: Vec<String> = malformed.reasons.iter().map(ToString::to_string).collect();
                Err(NotOpened::Broken(reasons.join("; ")))
            }
        };
        opened.map_err(|why| Closed { opened_by: needs(class, &why), why })
    }

    /// The unwrapper, to end it.
    pub fn into_unwrapper(self) -> U {
        self.unwrapper
    }

    fn open_kms_v1(&mut self, path: &[u8], value: &[u8]) -> Result<Opened, NotOpened> {
        let broken = || NotOpened::Broken("it breaks".to_owned());
        let rest = value.strip_prefix(b"k8s:enc:kms:v1:").ok_or_else(broken)?;
        let end = rest.iter().position(|byte| *byte == b':').ok_or_else(broken)?;
        let provider = std::str::from_utf8(&rest[..end]).map_err(|_| broken())?;
        let (length, body) = rest[end + 1..].split_first_chunk().ok_or_else(broken)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (encrypted, sealed) = body.split_at_checked(length).ok_or_else(broken)?;
        let digest = digest_of(&[b"v1", provider.as_bytes(), encrypted]);
        let unwrapper = &mut self.unwrapper;
        let source = self.sources.get_or_insert(digest, || {
            Arc::new(unwrapper.kms_v1_key(provider, encrypted).map(|bytes| Source {
                bytes,
                by: Key::KmsV1(provider.to_owned()),
                origin: None,
            }))
        });
        let source = source.as_ref().as_ref().map_err(Clone::clone)?;
        // Kubernetes wrote CBC before 1.25, and reads both: a value in CBC does not open as GCM.
        let object = cipher::open_gcm(&source.bytes, path, sealed).or_else(|| {
            cipher::open_cbc(&source.bytes, sealed).filter(|object| Shape::of(object) != Shape::Other)
        });
        let object = object.ok_or_else(|| unauthentic("the plugin's key"))?;
        Ok(Opened { object, by: Some(source.by.clone()), origin: None })
    }

    fn open_kms_v2(&mut self, path: &[u8], value: &[u8], kms: &KmsV2) -> Result<Opened, NotOpened> {
        let stored = stored::parse(value).map_err(|error| NotOpened::Broken(error.to_string()))?;
        let digest = source_of(&stored);
        let source = match self.sources.get(&digest) {
            Some(known) => known.clone(),
            None => {
                let source = Arc::new(self.source(stored.provider, &stored.object, kms));
                self.sources.put(digest, source.clone());
                source
            }
        };
        let source = source.as_ref().as_ref().map_err(Clone::clone)?;
        let sealed = &stored.object.encrypted_data;
        let object = match EncryptedDekSourceType::try_from(stored.object.encrypted_dek_source_type) {
            Ok(EncryptedDekSourceType::AesGcmKey) => cipher::open_gcm(&source.bytes, path, sealed),
            Ok(EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed) => {
                cipher::open_under_seed(&source.bytes, path, sealed)
            }
            Err(_) => None,
        };
        let object = object.ok_or_else(|| unauthentic("its DEK source"))?;
        Ok(Opened { object, by: Some(source.by.clone()), origin: source.origin })
    }

    /// By its record; else by whoever has the plugin's socket.
    fn source(&mut self, provider: &str, object: &EncryptedObject, kms: &KmsV2) -> Result<Source, NotOpened> {
        let by_record = match &kms.casemate {
            None => Err(NotOpened::NoKey),
            Some(casemate) => match (&casemate.record, casemate.faults.as_slice()) {
                (Some(record), []) => self.by_record(record, object),
                (_, faults) => {
                    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                    Err(NotOpened::Broken(format!("casemate-kms refuses it: {}", faults.join("; "))))
                }
            },
        };
        let why = match by_record {
            Ok(source) => return Ok(source),
            Err(why) => why,
        };
        match self.unwrapper.dek_source(provider, object) {
            Ok(bytes) => Ok(Source { bytes, by: Key::KmsV2(provider.to_owned()), origin: None }),
            Err(other) => Err(why.or(other)),
        }
    }

    fn by_record(&mut self, record: &Record, object: &EncryptedObject) -> Result<Source, NotOpened> {
        let value = object
            .annotations
            .get(RECORD_ANNOTATION)
            .ok_or_else(|| NotOpened::Broken(format!("its annotation {RECORD_ANNOTATION} is missing")))?;
        let annotation = sha256(value);
        let sealed = Sealed {
            ciphertext: &object.encrypted_dek_source,
            key_id: &object.key_id,
            annotations: &[(RECORD_ANNOTATION, value)],
        };
        let unwrapper = &mut self.unwrapper;
        let kek = self.keks.get_or_insert(annotation, || {
            let unwrapped = unwrapper.local_kek(record, &sealed);
            Arc::new(unwrapped.and_then(|unwrapped| match unwrapped.kek.id() == record.core().kek_id {
                true => Ok(unwrapped),
                false => Err(NotOpened::Refused("what opened is not the record's local KEK".to_owned())),
            }))
        });
        let Unwrapped { kek, by, origin } = kek.as_ref().as_ref().map_err(Clone::clone)?;
        let suite = record.core().policy.suite();
        let bytes = kek.open(suite, &annotation, &object.encrypted_dek_source).map_err(|error| {
            NotOpened::Refused(format!("its local KEK opens, its DEK source does not: {error}"))
        })?;
        Ok(Source { bytes, by: by.clone(), origin: Some(*origin) })
    }
}

/// Keys that a person can have.
fn needs(class: &Class, why: &NotOpened) -> Vec<Key> {
    if matches!(why, NotOpened::Broken(_)) {
        return Vec::new();
    }
    let mut keys = Encryption::of(class).keys();
    keys.retain(|key| !matches!(key, Key::KeyId(_) | Key::LocalKek(_)));
    keys
}

fn unauthentic(key: &str) -> NotOpened {
    NotOpened::Refused(format!(
        "{key} opens, and the object does not open with it: bytes of it were changed, or it stood under another key in etcd"
    ))
}

fn digest_of(parts: &[&[u8]]) -> Digest {
    let mut all = Vec::new();
    for part in parts {
        all.extend((part.len() as u64).to_be_bytes());
        all.extend_from_slice(part);
    }
    sha256(&all)
}

impl From<Missed> for NotOpened {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::NoKey => Self::NoKey,
            Missed::WrongKey => Self::Refused(
                "a key of its name was given and does not open it: it is another key, bytes of the value were changed, or it \
                 stood under another key in etcd"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
