//! What a KMS v2 plugin left in a value: all that names the key.
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use casemate_keys::Digest;
use casemate_keys::names::sha256;
use casemate_wire::kms_v2::limits;
use casemate_wire::kms_v2::stored::{
    self, EncryptedDekSourceType, EncryptedObject, StoredError, StoredValue,
};
use lru::LruCache;

use super::casemate::Casemate;
use super::{Claim, Class, Malformation, Malformed, Name};

/// What all values under one DEK source have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KmsV2 {
    /// What the EncryptionConfiguration calls the plugin.
    pub provider: Name,
    /// The key id that the plugin gave.
    pub key_id: Name,
    /// What kube-apiserver handed to the plugin, as the plugin encrypted it.
    pub dek_source: DekSource,
    /// Whatever else the plugin wanted to be kept, by name.
    pub annotations: Vec<Annotation>,
    /// What our record says, if there is one.
    pub casemate: Option<Casemate>,
}

/// An encrypted DEK source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DekSource {
    /// What it is.
    pub kind: DekSourceKind,
    /// Bytes of it, encrypted.
    pub bytes: usize,
    /// SHA-256 of it, encrypted: one for each start of an API server and key id.
    pub digest: Digest,
    /// The version of a Vault or OpenBao Transit key, where the plugin kept the form in which Transit answers.
    pub transit_version: Option<u32>,
}

/// What kube-apiserver makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DekSourceKind {
    /// The key of an object itself, as Kubernetes 1.27 and 1.28 have it.
    AesGcmKey,
    /// A seed, from which each write gets a key of its own.
    Seed,
}

/// One annotation of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Annotation {
    /// Its name.
    pub name: Name,
    /// Bytes of its value.
    pub bytes: usize,
    /// Its value, for those few that are known to be made for people.
    pub says: Option<Name>,
}

/// Annotations of which the value is told: how and where Azure's kubernetes-kms encrypted.
const TOLD: [&str; 4] = [
    "algorithm.azure.akv.io",
    "date.azure.akv.io",
    "version.azure.akv.io",
    "x-ms-keyvault-region.azure.akv.io",
];

/// The longest value that is told.
const TOLD_MAX: usize = 64;

/// A value with the mark of KMS v2.
pub(super) fn classify(
    value: &[u8],
    known: &mut LruCache<Digest, Arc<KmsV2>>,
) -> Result<Class, Box<Malformed>> {
    let stored = stored::parse(value).map_err(|error| broken(value, error))?;
    // kube-apiserver's checks: those of the object's data are of this value, the others of all that share its source.
    let faults = stored.faults();
    if !faults.is_empty() {
        return Err(Box::new(Malformed {
            claims: Claim::KmsV2,
            name: Some(Name::new(stored.provider.as_bytes())),
            key_id: Some(Name::new(stored.object.key_id.as_bytes())),
            reasons: faults.into_iter().map(Malformation::Refused).collect(),
        }));
    }
    let source = source(&stored);
    if let Some(known) = known.get(&source) {
        return Ok(Class::KmsV2(known.clone()));
    }
    let read = Arc::new(KmsV2::new(stored.provider, &stored.object));
    known.put(source, read.clone());
    Ok(Class::KmsV2(read))
}

fn broken(value: &[u8], error: StoredError) -> Box<Malformed> {
    let name = value[stored::PREFIX.len()..].split(|byte| *byte == b':').next().map(Name::new);
    let name = name.filter(|_| !matches!(error, StoredError::Provider));
    let broken = Malformed::new(Claim::KmsV2, Malformation::Stored(error));
    match name {
        Some(name) => broken.of(name),
        None => broken,
    }
}

/// Tells values apart by everything but their data.
pub(crate) fn source(StoredValue { provider, object }: &StoredValue<'_>) -> Digest {
    let mut context = Context::new(&SHA256);
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    part(provider.as_bytes());
    part(object.key_id.as_bytes());
    part(&object.encrypted_dek_source);
    part(&object.encrypted_dek_source_type.to_be_bytes());
    for (name, value) in &object.annotations {
        part(name.as_bytes());
        part(value);
    }
    let digest = context.finish();
    let mut source = [0; 32];
    source.copy_from_slice(digest.as_ref());
    source
}

impl KmsV2 {
    /// Of a value that kube-apiserver does not refuse.
    fn new(provider: &str, object: &EncryptedObject) -> Self {
        let sealed = &object.encrypted_dek_source;
        Self {
            provider: Name::new(provider.as_bytes()),
            key_id: Name::new(object.key_id.as_bytes()),
            dek_source: DekSource {
                kind: match EncryptedDekSourceType::try_from(object.encrypted_dek_source_type) {
                    Ok(EncryptedDekSourceType::AesGcmKey) => DekSourceKind::AesGcmKey,
                    _ => DekSourceKind::Seed,
                },
                bytes: sealed.len(),
                digest: sha256(sealed),
                transit_version: transit_version(sealed),
            },
            annotations: object
                .annotations
                .iter()
                .map(|(name, value)| Annotation::new(name, value))
                .collect(),
            casemate: Casemate::read(&object.key_id, sealed, &object.annotations),
        }
    }
}

impl Annotation {
    fn new(name: &str, value: &[u8]) -> Self {
        let told = TOLD.contains(&name) && value.len() <= TOLD_MAX;
        let says = Some(Name::new(value)).filter(|says| told && matches!(says, Name::Shown(_)));
        Self { name: Name::new(name.as_bytes()), bytes: value.len(), says }
    }
}

/// N of `vault:vN:`.
fn transit_version(sealed: &[u8]) -> Option<u32> {
    let rest = sealed.strip_prefix(b"vault:v")?;
    let end = rest.iter().take(11).position(|byte| *byte == b':')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

const _: () = assert!(TOLD_MAX <= limits::KEY_ID_MAX);
