//! The write policy: what new data is wrapped under. Its name is the key id.

use crate::names::sha256;
use crate::{Algorithm, ClusterId, DOMAIN, Epoch, Fingerprint, KeyId, Lineage, Suite, list};

/// The most root keys and the most recovery recipients of a policy.
pub const MAX_WRAPS_OF_A_KIND: usize = 4;

/// One root key version and how it wraps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// Which version of which root key.
    pub lineage: Lineage,
    /// How it wraps.
    pub algorithm: Algorithm,
}

impl Root {
    fn encoded(&self) -> Vec<u8> {
        list::encode([self.lineage.as_str(), &self.algorithm.number().to_string()])
    }
}

/// What new data of one cluster is wrapped under. Two policies are equal exactly if their key ids are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WritePolicy {
    suite: Suite,
    cluster: ClusterId,
    epoch: Epoch,
    roots: Vec<Root>,
    recipients: Vec<Fingerprint>,
    signer: Option<Lineage>,
}

/// A set of keys that is no write policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Neither none nor more than four root keys.
    #[error("a write policy has 1 to 4 root keys, found {found}")]
    RootCount {
        /// How many were given.
        found: usize,
    },
    /// More than four recovery recipients.
    #[error("a write policy has at most 4 recovery recipients, found {found}")]
    RecipientCount {
        /// How many were given.
        found: usize,
    },
    /// One lineage stands twice.
    #[error("root key {lineage} is named twice; name each once, with one algorithm")]
    DuplicateRoot {
        /// The doubled lineage.
        lineage: Lineage,
    },
    /// One recipient stands twice.
    #[error("recovery recipient with fingerprint {fingerprint} is named twice; name each once")]
    DuplicateRecipient {
        /// The doubled fingerprint.
        fingerprint: Fingerprint,
    },
}

impl WritePolicy {
    /// A policy of these keys, in any order.
    ///
    /// # Errors
    /// If there are none, too many, or a doubled one.
    pub fn new(
        suite: Suite,
        cluster: ClusterId,
        epoch: Epoch,
        mut roots: Vec<Root>,
        mut recipients: Vec<Fingerprint>,
        signer: Option<Lineage>,
    ) -> Result<Self, PolicyError> {
        roots.sort_by_key(Root::encoded);
        recipients.sort();
        let policy = Self { suite, cluster, epoch, roots, recipients, signer };
        policy.check_counts()?;
        for (index, root) in policy.roots.iter().enumerate() {
            if policy.roots[..index].iter().any(|other| other.lineage == root.lineage) {
                return Err(PolicyError::DuplicateRoot { lineage: root.lineage.clone() });
            }
        }
        for pair in policy.recipients.windows(2) {
            if pair[0] == pair[1] {
                return Err(PolicyError::DuplicateRecipient { fingerprint: pair[0] });
            }
        }
        Ok(policy)
    }

    fn check_counts(&self) -> Result<(), PolicyError> {
        if !(1..=MAX_WRAPS_OF_A_KIND).contains(&self.roots.len()) {
            return Err(PolicyError::RootCount { found: self.roots.len() });
        }
        if self.recipients.len() > MAX_WRAPS_OF_A_KIND {
            return Err(PolicyError::RecipientCount { found: self.recipients.len() });
        }
        Ok(())
    }

    /// The public name of this policy.
    pub fn key_id(&self) -> KeyId {
        let encoded = list::encode([
            format!("{DOMAIN}key-id").into_bytes(),
            self.suite.number().to_string().into_bytes(),
            self.cluster.as_str().as_bytes().to_vec(),
            self.epoch.to_string().into_bytes(),
            list::encode(self.roots.iter().map(Root::encoded)),
            list::encode(self.recipients.iter().map(|fingerprint| fingerprint.0)),
            self.signer.as_ref().map_or(Vec::new(), |signer| signer.as_str().as_bytes().to_vec()),
        ]);
        KeyId::new(&self.cluster, &sha256(&encoded))
    }

    /// Which algorithms seal DEK sources.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Whose data it is.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// The configured epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Root keys in the order of records.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// Fingerprints of recovery recipients in the order of records.
    pub fn recipients(&self) -> &[Fingerprint] {
        &self.recipients
    }

    /// The key that signs records, if any.
    pub fn signer(&self) -> Option<&Lineage> {
        self.signer.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(lineage: &str, algorithm: Algorithm) -> Root {
        Root { lineage: lineage.parse().unwrap(), algorithm }
    }

    fn policy(roots: Vec<Root>, recipients: Vec<Fingerprint>) -> Result<WritePolicy, PolicyError> {
        WritePolicy::new(Suite::One, "prod".parse().unwrap(), Epoch(0), roots, recipients, None)
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let (a, b) = (root("file:aa/1/00", Algorithm::FILE_AES256_GCM), root("exec:b/1", Algorithm::EXEC));
        let base = policy(vec![a.clone(), b.clone()], vec![]).unwrap();
        assert_eq!(base, policy(vec![b.clone(), a.clone()], vec![]).unwrap());
        // Sorted by the encoded list, whose length comes first: the shorter lineage leads.
        assert_eq!(base.roots(), [b.clone(), a.clone()]);

        let mut ids = vec![base.key_id()];
        let (suite, cluster) = (Suite::One, base.cluster.clone());
        let all = vec![a.clone(), b.clone()];
        let signer = Some("exec:s".parse().unwrap());
        ids.push(
            WritePolicy::new(Suite::Two, cluster.clone(), Epoch(0), all.clone(), vec![], None)
                .unwrap()
                .key_id(),
        );
        ids.push(
            WritePolicy::new(suite, "prof".parse().unwrap(), Epoch(0), all.clone(), vec![], None)
                .unwrap()
                .key_id(),
        );
        ids.push(
            WritePolicy::new(suite, cluster.clone(), Epoch(1), all.clone(), vec![], None).unwrap().key_id(),
        );
        ids.push(WritePolicy::new(suite, cluster.clone(), Epoch(0), all, vec![], signer).unwrap().key_id());
        ids.push(policy(vec![a.clone()], vec![]).unwrap().key_id());
        ids.push(
            policy(vec![Root { algorithm: Algorithm::EXEC, ..a.clone() }, b.clone()], vec![])
                .unwrap()
                .key_id(),
        );
        ids.push(policy(vec![a.clone(), b.clone()], vec![Fingerprint([1; 32])]).unwrap().key_id());
        ids.push(policy(vec![a, b], vec![Fingerprint([1; 32]), Fingerprint([2; 32])]).unwrap().key_id());
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn none_doubled_and_too_many_are_refused() {
        let numbered = |n: usize| root(&format!("file:aa/{n}/00"), Algorithm::FILE_AES256_GCM);
        assert_eq!(policy(vec![], vec![]), Err(PolicyError::RootCount { found: 0 }));
        assert!(policy((0..4).map(numbered).collect(), vec![]).is_ok());
        assert_eq!(policy((0..5).map(numbered).collect(), vec![]), Err(PolicyError::RootCount { found: 5 }));
        let twice = vec![numbered(1), Root { algorithm: Algorithm::EXEC, ..numbered(1) }];
        assert!(matches!(policy(twice, vec![]), Err(PolicyError::DuplicateRoot { .. })));
        let fingerprints = |n: u8| (0..n).map(|i| Fingerprint([i; 32])).collect();
        assert_eq!(policy(vec![numbered(1)], fingerprints(5)), Err(PolicyError::RecipientCount { found: 5 }));
        let same = vec![Fingerprint([1; 32]); 2];
        assert!(matches!(policy(vec![numbered(1)], same), Err(PolicyError::DuplicateRecipient { .. })));
    }
}
