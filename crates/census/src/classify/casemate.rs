//! Our own record in a value: every key that opens it.
use std::collections::{BTreeMap, BTreeSet};

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{
    CIPHERTEXT_OVERHEAD, KeyId, LineagePrefix, RECORD_ANNOTATION, ReadPolicy, ReadRule, Record, RecordError,
    Refusal, Sealed, Suite,
};
use prost::bytes::Bytes;

/// What the annotation `record.casemate.dev` says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Casemate {
    /// Local KEK, root keys with their lineages, recovery fingerprints, signer, wraps; `None` if it is no record.
    pub record: Option<Box<Record>>,
    /// Bytes of the annotation's value.
    pub bytes: usize,
    /// Why `casemate-kms` refuses the value. Then no key opens it as it stands.
    pub faults: Vec<RecordFault>,
}

/// Why `casemate-kms` refuses a record, or what goes with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// No record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The key id is that of another write policy.
    #[error("the key id is not that of the record's write policy, {derived}")]
    KeyId {
        /// Whose it should be.
        derived: KeyId,
    },
    /// The ciphertext can't be the record's.
    #[error("the encrypted DEK source: {0}")]
    Ciphertext(Refusal),
    /// Key id and ciphertext have our form, and the annotation is not there: it was cut off or renamed.
    #[error("key id and ciphertext are of casemate-kms, but the annotation {RECORD_ANNOTATION} is missing")]
    Missing,
    /// Other annotations beside it.
    #[error("{count} annotations beside {RECORD_ANNOTATION}")]
    Others {
        /// How many.
        count: usize,
    },
}

impl Casemate {
    /// Reads what a plugin answered to Encrypt, or what was kept of it; `None` if nothing of it is ours.
    pub fn read(key_id: &str, ciphertext: &[u8], annotations: &BTreeMap<String, Bytes>) -> Option<Self> {
        match annotations.get(RECORD_ANNOTATION) {
            Some(value) => Some(Self::of(value, key_id, ciphertext, annotations.len() - 1)),
            None if key_id.parse::<KeyId>().is_ok() && suite_of(ciphertext).is_some() => {
                Some(Self { record: None, bytes: 0, faults: vec![RecordFault::Missing] })
            }
            None => None,
        }
    }

    /// Of the annotation's value, beside which others stand.
    fn of(value: &[u8], key_id: &str, ciphertext: &[u8], others: usize) -> Self {
        let mut faults = Vec::new();
        if others > 0 {
            faults.push(RecordFault::Others { count: others });
        }
        let bytes = value.len();
        let record = match Record::decode(value) {
            Ok(record) => record,
            Err(error) => {
                faults.push(error.into());
                return Self { record: None, bytes, faults };
            }
        };
        let derived = record.core().policy.key_id();
        let refusal = refusal(&record, derived.as_str(), value, ciphertext);
        if derived.as_str() != key_id {
            faults.push(RecordFault::KeyId { derived });
        }
        faults.extend(refusal.map(RecordFault::Ciphertext));
        Self { record: Some(Box::new(record)), bytes, faults }
    }
}

/// The suite of a ciphertext of ours, if `bytes` have the length that a DEK source of kube-apiserver gives one.
pub fn suite_of(bytes: &[u8]) -> Option<Suite> {
    let length = bytes.len().checked_sub(CIPHERTEXT_OVERHEAD)?;
    Suite::from_number(u32::from(*bytes.first()?)).filter(|_| [16, 24, 32].contains(&length))
}

/// What Decrypt itself says of this ciphertext with this record, were everything in the record configured.
fn refusal(record: &Record, key_id: &str, value: &[u8], ciphertext: &[u8]) -> Option<Refusal> {
    let policy = &record.core().policy;
    let rules = policy.roots().iter().map(|root| ReadRule {
        key: LineagePrefix::exactly(&root.lineage),
        algorithms: BTreeSet::from([root.algorithm]),
        min_version: None,
    });
    let read = ReadPolicy {
        cluster: policy.cluster().clone(),
        also_accept: Vec::new(),
        rules: rules.collect(),
        origin: OriginPolicy::AcceptUnproven,
    };
    read.check(&Sealed { ciphertext, key_id, annotations: &[(RECORD_ANNOTATION, value)] }, 0).err()
}
