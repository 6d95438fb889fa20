//! The checks of Decrypt: what may be tried of a record, decided before any cache or remote call.

use std::collections::BTreeSet;

use crate::kek::check_ciphertext;
use crate::names::sha256;
use crate::origin::{OriginPolicy, Unproven};
use crate::{
    Algorithm, ClusterId, Digest, KekError, KeyId, LineagePrefix, LocalKek, RECORD_ANNOTATION, Record,
    RecordError, Root, payload,
};

/// What this configuration may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPolicy {
    /// The configured cluster.
    pub cluster: ClusterId,
    /// Other clusters whose data is read for a time, for example while moving.
    pub also_accept: Vec<AcceptedCluster>,
    /// Root keys that may be asked, each with its algorithms.
    pub rules: Vec<ReadRule>,
    /// What wraps under asymmetric keys need.
    pub origin: OriginPolicy,
}

/// Another cluster whose data may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedCluster {
    /// Which one.
    pub cluster: ClusterId,
    /// Until when, in seconds since 1970.
    pub until: u64,
}

/// One root key that may be asked to unwrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRule {
    /// Its lineage up to the version.
    pub key: LineagePrefix,
    /// How wraps under it may be made.
    pub algorithms: BTreeSet<Algorithm>,
    /// Versions below this are not read (after a leak). Versions are the field after the prefix.
    pub min_version: Option<u64>,
}

/// What kube-apiserver hands to Decrypt, as it stands in etcd.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    /// The sealed DEK source.
    pub ciphertext: &'a [u8],
    /// The key id under which it was written.
    pub key_id: &'a str,
    /// All annotations.
    pub annotations: &'a [(&'a str, &'a [u8])],
}

/// A ciphertext whose record may be opened.
#[derive(Clone, Debug)]
pub struct Readable {
    record: Record,
    annotation: Digest,
    core: Digest,
    attempts: Vec<Attempt>,
    skipped: Vec<(Root, Skipped)>,
}

/// One wrap that may be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which root key to ask, and how it wraps.
    pub root: Root,
    /// The wrapped payload.
    pub wrap: Vec<u8>,
}

/// Why a wrap is not tried here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Skipped {
    /// No rule covers its lineage.
    #[error("is not configured here, for writing or under readKeys")]
    UnknownRoot,
    /// A rule covers it, with other algorithms.
    #[error("may not be read with this algorithm")]
    OtherAlgorithm,
    /// The version is below the rule's minimum.
    #[error("is below the configured minReadVersion {minimum}")]
    BelowMinimum {
        /// The configured minimum.
        minimum: u64,
    },
    /// Anybody with the public key could have made it.
    #[error("is asymmetric and the record's origin is not proven: {0}")]
    Origin(#[from] Unproven),
}

/// Why a ciphertext is refused without asking any key service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Not the one annotation, or others beside it.
    #[error(
        "annotations {found:?} are not Casemate's; there is exactly one, {RECORD_ANNOTATION}. \
         Another KMS provider wrote this: keep that provider in the EncryptionConfiguration until the data is migrated"
    )]
    Annotations {
        /// Their names, at most eight.
        found: Vec<String>,
    },
    /// The annotation's value is no record.
    #[error("annotation {RECORD_ANNOTATION}: {0}")]
    Record(#[from] RecordError),
    /// Written for another cluster.
    #[error(
        "written by cluster {found}, this is {ours}; if the data was moved, list {found} under alsoAccept, with an end date"
    )]
    OtherCluster {
        /// The record's cluster.
        found: ClusterId,
        /// The configured cluster.
        ours: ClusterId,
    },
    /// The record is of another write policy than the key id says.
    #[error("key id {found:?} does not belong to the record, whose write policy is {derived}")]
    OtherKeyId {
        /// The key id of the request, shortened.
        found: String,
        /// What the record derives to.
        derived: KeyId,
    },
    /// The ciphertext can't be of this record.
    #[error(transparent)]
    Ciphertext(#[from] KekError),
    /// No wrap may be tried.
    #[error("no root key of the record can be used here: {}", describe(roots))]
    NoReadableRoot {
        /// Each root with the reason.
        roots: Vec<(Root, Skipped)>,
    },
}

impl ReadPolicy {
    /// Decides whether and how `sealed` may be opened, at `now` (seconds since 1970).
    ///
    /// # Errors
    /// [`Refusal`]; then nothing is to be asked of any key service or cache.
    pub fn check(&self, sealed: &Sealed<'_>, now: u64) -> Result<Readable, Refusal> {
        let [(RECORD_ANNOTATION, value)] = sealed.annotations else {
            let found =
                sealed.annotations.iter().take(8).map(|(name, _)| name.chars().take(80).collect()).collect();
            return Err(Refusal::Annotations { found });
        };
        let record = Record::decode(value)?;
        let policy = &record.core().policy;
        if !self.accepts(policy.cluster(), now) {
            return Err(Refusal::OtherCluster {
                found: policy.cluster().clone(),
                ours: self.cluster.clone(),
            });
        }
        let derived = policy.key_id();
        if derived.as_str() != sealed.key_id {
            return Err(Refusal::OtherKeyId { found: sealed.key_id.chars().take(100).collect(), derived });
        }
        check_ciphertext(policy.suite(), sealed.ciphertext)?;

        let (mut attempts, mut skipped) = (Vec::new(), Vec::new());
        // Verified once, and only if a wrap needs it.
        let origin = std::cell::OnceCell::new();
        for (root, wrap) in record.wraps() {
            let verdict = self.may_ask(root).and_then(|()| {
                if !root.algorithm.is_asymmetric() {
                    return Ok(());
                }
                origin.get_or_init(|| self.origin.check(&record)).clone().map_err(Skipped::Origin)
            });
            match verdict {
                Ok(()) => attempts.push(Attempt { root: root.clone(), wrap: wrap.to_vec() }),
                Err(reason) => skipped.push((root.clone(), reason)),
            }
        }
        if attempts.is_empty() {
            return Err(Refusal::NoReadableRoot { roots: skipped });
        }
        let core = record.core().digest();
        Ok(Readable { annotation: sha256(value), core, record, attempts, skipped })
    }

    /// Whether data of `cluster` is read at `now` (seconds since 1970), by whatever root key.
    pub fn accepts(&self, cluster: &ClusterId, now: u64) -> bool {
        *cluster == self.cluster
            || self.also_accept.iter().any(|other| other.cluster == *cluster && now < other.until)
    }

    /// Whether a wrap under `root` may be handed to its key service.
    ///
    /// # Errors
    /// Why not; the rule that comes closest speaks.
    pub fn may_ask(&self, root: &Root) -> Result<(), Skipped> {
        let mut reason = Skipped::UnknownRoot;
        for rule in &self.rules {
            let Some(rest) = rule.key.rest(&root.lineage) else { continue };
            if !rule.algorithms.contains(&root.algorithm) {
                reason = Skipped::OtherAlgorithm;
                continue;
            }
            match rule.min_version {
                Some(minimum) if version(rest).is_none_or(|version| version < minimum) => {
                    reason = Skipped::BelowMinimum { minimum };
                }
                _ => return Ok(()),
            }
        }
        Err(reason)
    }
}

/// The version in what follows a rule's prefix: its first field, in canonical decimal.
fn version(rest: &str) -> Option<u64> {
    let field = rest.split('/').next()?;
    let version: u64 = field.parse().ok()?;
    (version.to_string() == field).then_some(version)
}

impl Readable {
    /// The record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// SHA-256 of the annotation's value: what caches of opened local KEKs are keyed by.
    pub fn annotation(&self) -> &Digest {
        &self.annotation
    }

    /// SHA-256 of the core: what key services bind as associated data.
    pub fn core(&self) -> &Digest {
        &self.core
    }

    /// Wraps to try, in the record's order; never empty.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Wraps that are not tried, with reasons.
    pub fn skipped(&self) -> &[(Root, Skipped)] {
        &self.skipped
    }

    /// The local KEK of a payload that a key service unwrapped; `None` if it is not this record's.
    pub fn local_kek(&self, unwrapped: &[u8]) -> Option<LocalKek> {
        payload::decode(unwrapped, &self.core).filter(|kek| kek.id() == self.record.core().kek_id)
    }

    /// Opens the ciphertext with the record's local KEK.
    ///
    /// # Errors
    /// [`KekError`].
    pub fn open(&self, kek: &LocalKek, ciphertext: &[u8]) -> Result<zeroize::Zeroizing<Vec<u8>>, KekError> {
        kek.open(self.record.core().policy.suite(), &self.annotation, ciphertext)
    }
}

fn describe(roots: &[(Root, Skipped)]) -> String {
    let each: Vec<_> = roots
        .iter()
        .map(|(root, reason)| format!("{} ({}) {reason}", root.lineage, root.algorithm))
        .collect();
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Core, Epoch, Suite, WritePolicy};

    /// A record of `suite` whose one wrap nobody can open: enough for what is checked before that.
    fn record(suite: Suite, kek: &LocalKek) -> Record {
        let root = Root { lineage: "exec:a".parse().unwrap(), algorithm: Algorithm::EXEC };
        let cluster = "prod".parse().unwrap();
        let core = Core {
            policy: WritePolicy::new(suite, cluster, Epoch(0), vec![root], vec![], None).unwrap(),
            kek_id: kek.id(),
            created: 1,
            writer: "test/1".parse().unwrap(),
        };
        Record::new(core, vec![vec![1]], vec![], None).unwrap()
    }

    #[test]
    fn a_ciphertext_of_another_suite_than_its_record_is_refused() {
        let rule = ReadRule {
            key: LineagePrefix::exactly(&"exec:a".parse().unwrap()),
            algorithms: [Algorithm::EXEC].into(),
            min_version: None,
        };
        let policy = ReadPolicy {
            cluster: "prod".parse().unwrap(),
            also_accept: vec![],
            rules: vec![rule],
            origin: OriginPolicy::Signed(vec![]),
        };
        let kek = LocalKek::generate();
        for (of_record, of_ciphertext) in [
            (Suite::One, Suite::One),
            (Suite::Two, Suite::Two),
            (Suite::One, Suite::Two),
            (Suite::Two, Suite::One),
        ] {
            let record = record(of_record, &kek);
            let value = record.encode();
            let key_id = record.core().policy.key_id();
            let ciphertext = kek.seal(of_ciphertext, &sha256(&value), &[5; 32]).unwrap();
            let sealed = Sealed {
                ciphertext: &ciphertext,
                key_id: key_id.as_str(),
                annotations: &[(RECORD_ANNOTATION, &value)],
            };
            let checked = policy.check(&sealed, 0);
            if of_record == of_ciphertext {
                assert_eq!(*checked.unwrap().open(&kek, &ciphertext).unwrap(), [5; 32]);
            } else {
                let found = of_ciphertext.number();
                let expected = KekError::Suite { found, record: of_record };
                assert_eq!(checked.unwrap_err(), Refusal::Ciphertext(expected));
            }
        }
    }
}
