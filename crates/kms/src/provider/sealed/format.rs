//! The two files of the sealed cache. Each has one encoding; whatever is anything else is refused.

use casemate_keys::{
    CacheOf, Core, Digest, MAX_CORE_LEN, MIN_ITERATIONS, Protector, SALT_LEN, SEALED_LEN, SealedKek,
    SealingKey, WeakSecret,
};

use super::super::opened::CAPACITY;
use super::secret::SecretKind;

const KEY_MAGIC: &[u8] = b"casemate sealing key 1\n";
const CACHE_MAGIC: &[u8] = b"casemate sealed cache 1\n";
const CREDENTIAL: u8 = 1;
const PASSPHRASE: u8 = 2;
const DIGEST_LEN: usize = size_of::<Digest>();

/// The longest sealing key file.
pub(super) const MAX_KEY_LEN: usize = KEY_MAGIC.len() + 1 + 4 + SALT_LEN + SEALED_LEN;
/// The longest cache file.
pub(super) const MAX_CACHE_LEN: usize =
    CACHE_MAGIC.len() + CAPACITY.get() * (2 + DIGEST_LEN + MAX_CORE_LEN + SEALED_LEN);

/// How the protector of a sealing key is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
    Credential,
    Passphrase { salt: [u8; SALT_LEN], iterations: u32 },
}

/// One local KEK of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) annotation: Digest,
    pub(super) core: Core,
    pub(super) sealed: SealedKek,
}

impl Entry {
    /// Whether it is whole.
    pub(super) fn opens(&self, key: &SealingKey, of: &CacheOf) -> bool {
        key.open(&self.sealed, of, &self.annotation, &self.core).is_some()
    }
}

impl KeyForm {
    /// For a new sealing key.
    pub(super) fn new(kind: SecretKind) -> Self {
        match kind {
            SecretKind::Credential => Self::Credential,
            SecretKind::Passphrase => {
                let mut salt = [0; SALT_LEN];
                aws_lc_rs::rand::fill(&mut salt).expect("the system has randomness");
                Self::Passphrase { salt, iterations: MIN_ITERATIONS }
            }
        }
    }

    pub(super) fn kind(&self) -> SecretKind {
        match self {
            Self::Credential => SecretKind::Credential,
            Self::Passphrase { .. } => SecretKind::Passphrase,
        }
    }

    pub(super) fn protector(&self, secret: &[u8]) -> Result<Protector, WeakSecret> {
        match self {
            Self::Credential => Protector::of_credential(secret),
            Self::Passphrase { salt, iterations } => Protector::of_passphrase(secret, salt, *iterations),
        }
    }

    /// What stands before the sealed key, and is bound by it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = KEY_MAGIC.to_vec();
        match self {
            Self::Credential => out.push(CREDENTIAL),
            Self::Passphrase { salt, iterations } => {
                out.push(PASSPHRASE);
                out.extend(iterations.to_be_bytes());
                out.extend(salt);
            }
        }
        out
    }
}

pub(super) fn render_key(form: &KeyForm, sealed: &SealedKek) -> Vec<u8> {
    let mut out = form.encode();
    out.extend(sealed);
    out
}

pub(super) fn parse_key(bytes: &[u8]) -> Option<(KeyForm, SealedKek)> {
    let mut rest = bytes.strip_prefix(KEY_MAGIC)?;
    let form = match take::<1>(&mut rest)? {
        [CREDENTIAL] => KeyForm::Credential,
        [PASSPHRASE] => {
            let iterations = u32::from_be_bytes(take(&mut rest)?);
            KeyForm::Passphrase { salt: take(&mut rest)?, iterations }
        }
        _ => return None,
    };
    let sealed = take(&mut rest)?;
    rest.is_empty().then_some((form, sealed))
}

/// In this order, the one used last first.
pub(super) fn render_cache<'a>(
    entries: impl Iterator<Item = (&'a Digest, &'a Core, &'a SealedKek)>,
) -> Vec<u8> {
    let mut out = CACHE_MAGIC.to_vec();
    for (annotation, core, sealed) in entries {
        let core = core.encode();
        let length = u16::try_from(core.len()).expect("a core has at most 2048 bytes");
        out.extend(length.to_be_bytes());
        out.extend(annotation);
        out.extend(core);
        out.extend(sealed);
    }
    out
}

/// What can be told apart without a key, and how many entries could not; `None` if this is no such file.
pub(super) fn parse_cache(bytes: &[u8]) -> Option<(Vec<Entry>, u64)> {
    let mut rest = bytes.strip_prefix(CACHE_MAGIC)?;
    let (mut entries, mut damaged) = (Vec::<Entry>::new(), 0);
    let mut seen = std::collections::HashSet::new();
    while !rest.is_empty() {
        // Where the end of an entry is lost, so are those behind it.
        let Some((annotation, core, sealed)) = next(&mut rest) else {
            damaged += 1;
            break;
        };
        match Core::decode(core) {
            Ok(core) if entries.len() < CAPACITY.get() && seen.insert(annotation) => {
                entries.push(Entry { annotation, core, sealed });
            }
            _ => damaged += 1,
        }
    }
    Some((entries, damaged))
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<(Digest, &'a [u8], SealedKek)> {
    let length = usize::from(u16::from_be_bytes(take(rest)?));
    let annotation = take(rest)?;
    let (core, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some((annotation, core, take(rest)?))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}
