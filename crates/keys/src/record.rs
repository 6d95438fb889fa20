//! The record of one local KEK: the value of the one annotation, in etcd beside the data.

use std::fmt;

use prost::Message;

use crate::names::{NameError, sha256};
use crate::policy::MAX_WRAPS_OF_A_KIND;
use crate::{
    Algorithm, DOMAIN, Digest, Epoch, Fingerprint, KekId, LineageError, LocalKek, PolicyError, Root, Suite,
    WritePolicy, Writer, payload,
};

#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub)]
mod generated;

/// The longest record.
pub const MAX_RECORD_LEN: usize = 8192;
/// The longest core.
pub const MAX_CORE_LEN: usize = 2048;
/// The longest wrap.
pub const MAX_WRAP_LEN: usize = 2048;
/// The longest origin signature: RSA-PSS-3072 has 384 bytes.
const MAX_SIGNATURE_LEN: usize = 384;

/// What a record says of itself, bound by every wrap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Core {
    /// What the local KEK is wrapped under.
    pub policy: WritePolicy,
    /// Which local KEK.
    pub kek_id: KekId,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Which program made it.
    pub writer: Writer,
}

/// One local KEK's public part: core, wraps and, where a root is asymmetric, an origin signature.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Record {
    core: Core,
    wraps: Vec<Vec<u8>>,
    recovery_wraps: Vec<Vec<u8>>,
    origin_signature: Option<Vec<u8>>,
}

/// Bytes that are no record, or parts that don't make one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Longer than the format allows.
    #[error("{what} has {found} bytes; at most {most} are accepted")]
    TooLong {
        /// Record, core, wrap or signature.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// A wrap without bytes.
    #[error("a wrap is empty")]
    EmptyWrap,
    /// Not protobuf of this schema.
    #[error("not a record: {reason}")]
    Malformed {
        /// What the decoder said.
        reason: String,
    },
    /// Another encoding than the one that is accepted.
    #[error(
        "{what} is not canonical: a field is unknown, doubled, out of order, defaulted, or a number is padded"
    )]
    NotCanonical {
        /// Record or core.
        what: &'static str,
    },
    /// A suite of a later version.
    #[error("suite {found} is not known to this version; upgrade before you read this")]
    Suite {
        /// Its number.
        found: u32,
    },
    /// A name is not of its form.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A lineage is not of its form.
    #[error(transparent)]
    Lineage(#[from] LineageError),
    /// A root without an algorithm.
    #[error("root key {lineage} has no algorithm")]
    NoAlgorithm {
        /// Which root.
        lineage: crate::Lineage,
    },
    /// A digest of another length than 32 bytes.
    #[error("{what} has {found} bytes; it has 32")]
    DigestLength {
        /// Which digest.
        what: &'static str,
        /// Its length.
        found: usize,
    },
    /// Its keys make no write policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Not one wrap for each root or recipient.
    #[error("{found} {what} for {keys} keys; each key has one")]
    WrapCount {
        /// Wraps or recovery wraps.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        keys: usize,
    },
    /// A signature without a signer, or a signer without a signature.
    #[error("an origin signature goes with a signer: one of them is missing")]
    Signature,
}

impl Core {
    /// The one encoding.
    pub fn encode(&self) -> Vec<u8> {
        let policy = &self.policy;
        generated::Core {
            suite: u32::from(policy.suite().number()),
            cluster_id: policy.cluster().as_str().to_owned(),
            epoch: policy.epoch().0,
            roots: policy.roots().iter().map(encode_root).collect(),
            recipients: policy.recipients().iter().map(|fingerprint| fingerprint.0.to_vec()).collect(),
            kek_id: self.kek_id.0.to_vec(),
            created: self.created,
            writer: self.writer.as_str().to_owned(),
            signer: policy.signer().map_or_else(String::new, |signer| signer.as_str().to_owned()),
        }
        .encode_to_vec()
    }

    /// D of the format: what wraps and their associated data bind.
    pub fn digest(&self) -> Digest {
        sha256(&self.encode())
    }

    /// The local KEK of an unwrapped payload; `None` if it is not this record's. Says nothing about who made the record.
    pub fn local_kek(&self, unwrapped: &[u8]) -> Option<LocalKek> {
        payload::decode(unwrapped, &self.digest()).filter(|kek| kek.id() == self.kek_id)
    }

    /// Parses what [`Core::encode`] made.
    ///
    /// # Errors
    /// [`RecordError`], if it is anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        limit("core", bytes.len(), MAX_CORE_LEN)?;
        let core = generated::Core::decode(bytes).map_err(malformed)?;
        let suite = Suite::from_number(core.suite).ok_or(RecordError::Suite { found: core.suite })?;
        let roots = core.roots.iter().map(decode_root).collect::<Result<_, _>>()?;
        let recipients = core
            .recipients
            .iter()
            .map(|bytes| digest_of("a recipient fingerprint", bytes).map(Fingerprint))
            .collect::<Result<_, _>>()?;
        let signer = match core.signer.as_str() {
            "" => None,
            signer => Some(signer.parse()?),
        };
        let cluster = core.cluster_id.parse()?;
        let decoded = Self {
            policy: WritePolicy::new(suite, cluster, Epoch(core.epoch), roots, recipients, signer)?,
            kek_id: KekId(digest_of("a local KEK id", &core.kek_id)?),
            created: core.created,
            writer: core.writer.parse()?,
        };
        if decoded.encode() != bytes {
            return Err(RecordError::NotCanonical { what: "core" });
        }
        Ok(decoded)
    }
}

impl Record {
    /// A record of these parts, in the order of the policy's roots and recipients.
    ///
    /// # Errors
    /// If counts or lengths are not those of the format.
    pub fn new(
        core: Core,
        wraps: Vec<Vec<u8>>,
        recovery_wraps: Vec<Vec<u8>>,
        origin_signature: Option<Vec<u8>>,
    ) -> Result<Self, RecordError> {
        count("wraps", wraps.len(), core.policy.roots().len())?;
        count("recovery wraps", recovery_wraps.len(), core.policy.recipients().len())?;
        for wrap in wraps.iter().chain(&recovery_wraps) {
            limit("a wrap", wrap.len(), MAX_WRAP_LEN)?;
            if wrap.is_empty() {
                return Err(RecordError::EmptyWrap);
            }
        }
        // An empty signature would be left out of the encoding.
        let signed = origin_signature.as_ref().is_some_and(|signature| !signature.is_empty());
        if core.policy.signer().is_some() != signed {
            return Err(RecordError::Signature);
        }
        if let Some(signature) = &origin_signature {
            limit("the origin signature", signature.len(), MAX_SIGNATURE_LEN)?;
        }
        limit("core", core.encode().len(), MAX_CORE_LEN)?;
        let origin_signature = origin_signature.filter(|signature| !signature.is_empty());
        let record = Self { core, wraps, recovery_wraps, origin_signature };
        limit("record", record.encode().len(), MAX_RECORD_LEN)?;
        Ok(record)
    }

    /// The one encoding: the annotation's value.
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.core, &self.wraps, &self.recovery_wraps, self.origin_signature.as_deref())
    }

    /// Reads an annotation's value.
    ///
    /// # Errors
    /// If it is not exactly what [`Record::encode`] would make of it.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        limit("record", bytes.len(), MAX_RECORD_LEN)?;
        let record = generated::Record::decode(bytes).map_err(malformed)?;
        let core = Core::decode(&record.core)?;
        let decoded = Self::new(core, record.wraps, record.recovery_wraps, Some(record.origin_signature))?;
        if decoded.encode() != bytes {
            return Err(RecordError::NotCanonical { what: "record" });
        }
        Ok(decoded)
    }

    /// What all wraps bind.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The wrap under each root, in the policy's order.
    pub fn wraps(&self) -> impl Iterator<Item = (&Root, &[u8])> {
        self.core.policy.roots().iter().zip(self.wraps.iter().map(Vec::as_slice))
    }

    /// The wrap under each recovery recipient, in the policy's order.
    pub fn recovery_wraps(&self) -> impl Iterator<Item = (&Fingerprint, &[u8])> {
        self.core.policy.recipients().iter().zip(self.recovery_wraps.iter().map(Vec::as_slice))
    }

    /// The signature of the policy's signer, if it has one.
    pub fn origin_signature(&self) -> Option<&[u8]> {
        self.origin_signature.as_deref()
    }

    /// What the origin signature signs.
    pub fn origin_message(&self) -> Vec<u8> {
        origin_message(&self.core, &self.wraps, &self.recovery_wraps)
    }
}

/// What a signer signs before there is a record: `casemate.dev/v1/origin` ‖ 00 ‖ SHA-256 of fields 1
/// to 3 as encoded.
pub fn origin_message(core: &Core, wraps: &[Vec<u8>], recovery_wraps: &[Vec<u8>]) -> Vec<u8> {
    let unsigned = sha256(&encode(core, wraps, recovery_wraps, None));
    [DOMAIN.as_bytes(), b"origin\0", &unsigned].concat()
}

fn encode(core: &Core, wraps: &[Vec<u8>], recovery_wraps: &[Vec<u8>], signature: Option<&[u8]>) -> Vec<u8> {
    generated::Record {
        core: core.encode(),
        wraps: wraps.to_vec(),
        recovery_wraps: recovery_wraps.to_vec(),
        origin_signature: signature.map_or_else(Vec::new, <[u8]>::to_vec),
    }
    .encode_to_vec()
}

fn encode_root(root: &Root) -> generated::Root {
    generated::Root {
        lineage: root.lineage.as_str().to_owned(),
        // A number that came out of a record fits; constants do.
        algorithm: i32::try_from(root.algorithm.number()).unwrap_or_default(),
    }
}

fn decode_root(root: &generated::Root) -> Result<Root, RecordError> {
    let lineage: crate::Lineage = root.lineage.parse()?;
    match Algorithm::from_number(root.algorithm) {
        Some(algorithm) => Ok(Root { lineage, algorithm }),
        None => Err(RecordError::NoAlgorithm { lineage }),
    }
}

fn digest_of(what: &'static str, bytes: &[u8]) -> Result<Digest, RecordError> {
    bytes.try_into().map_err(|_| RecordError::DigestLength { what, found: bytes.len() })
}

fn limit(what: &'static str, found: usize, most: usize) -> Result<(), RecordError> {
    if found > most { Err(RecordError::TooLong { what, found, most }) } else { Ok(()) }
}

fn count(what: &'static str, found: usize, keys: usize) -> Result<(), RecordError> {
    debug_assert!(keys <= MAX_WRAPS_OF_A_KIND);
    if found == keys { Ok(()) } else { Err(RecordError::WrapCount { what, found, keys }) }
}

fn malformed(error: prost::DecodeError) -> RecordError {
    RecordError::Malformed { reason: error.to_string() }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("policy", &self.policy)
            .field("kek_id", &self.kek_id)
            .field("created", &self.created)
            .field("writer", &self.writer)
            .finish()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("core", &self.core).finish_non_exhaustive()
    }
}
