//! What should write now, by configuration and root keys.

use std::sync::Arc;

use casemate_keys::{Fingerprint, Lineage, Root, Suite, WritePolicy};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Class, Failure, Pace};
use casemate_kms_state::{Trouble, TroubleKind};
use casemate_recipients::Recipient;
use tokio_util::task::AbortOnDropHandle;

use super::AT_MOST_EVERY;
use crate::provider::{Provider, root_key};

impl Provider {
    /// What should write now, by configuration and root keys. All must answer: a policy without one of them
    /// is another policy.
    pub(super) async fn observe(&self) -> Result<WritePolicy, Vec<Failure>> {
        let (mut roots, mut failures) = (Vec::new(), Vec::new());
        for version in self.versions_of(&self.settings.write_keys).await {
            match version {
                Ok(root) => roots.push(root),
                Err(failure) => failures.push(failure),
            }
        }
        if !failures.is_empty() {
            return Err(failures);
        }
        // What could not be read back must not be written.
        for root in &roots {
            self.settings.read_policy.may_ask(root).map_err(|reason| {
                let what = format!("root key {} should write and {reason}", root.lineage);
                vec![Failure::new(
                    Class::Refused,
                    what,
                    "deliver the current key file, or correct minReadVersion",
                )]
            })?;
        }
        let (cluster, epoch, signer) =
            (self.settings.cluster.clone(), self.settings.epoch, self.signer().cloned());
        if let Some(root) = roots.iter().find(|root| signer.is_none() && root.algorithm.is_asymmetric()) {
            let what = format!(
                "root key {} should write, and a wrap under it does not prove who made it",
                root.lineage
            );
            return Err(vec![Failure::new(Class::Refused, what, "add a `signer`, which signs records")]);
        }
        WritePolicy::new(Suite::One, cluster, epoch, roots, self.fingerprints(), signer).map_err(|error| {
            vec![Failure::new(Class::Corrupt, error.to_string(), "correct rootKeys or recoveryRecipients")]
        })
    }

    /// Which version of each writes. All are asked at once: a slow one costs the others nothing.
    pub(super) async fn versions_of(&self, keys: &[Arc<Guarded>]) -> Vec<Result<Root, Failure>> {
        let version_of = |key: Arc<Guarded>| async move { key.observe().await };
        let asked: Vec<_> =
            keys.iter().map(|key| AbortOnDropHandle::new(tokio::spawn(version_of(key.clone())))).collect();
        let mut versions = Vec::with_capacity(keys.len());
        for (key, asked) in keys.iter().zip(asked) {
            let version = asked.await.unwrap_or_else(|ended| match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Failure::new(Class::Unreachable, "the program is stopping", "start it again")),
            });
            self.watch.observed(key.prefix(), &version);
            versions.push(version);
        }
        versions
    }

    /// Whether nobody pays for a look: all root keys that write are files.
    pub(super) fn is_local(&self) -> bool {
        self.settings.write_keys.iter().all(|key| key.pace() == Pace::Local)
    }

    /// Somebody wants its root keys to be looked at now. However often that is, they are looked at every few seconds at
    /// most.
    pub(super) async fn look_is_wanted(&self) {
        tokio::select! {
            () = self.refreshes.wanted.notified() => {}
            () = self.answers_again() => {}
        }
        let looked = self.snapshot().looked.instant;
        tokio::time::sleep_until(looked + AT_MOST_EVERY).await;
    }

    fn signer(&self) -> Option<&Lineage> {
        self.settings.signing.as_ref().map(|signing| signing.lineage())
    }

    fn fingerprints(&self) -> Vec<Fingerprint> {
        self.recipients.iter().map(Recipient::fingerprint).collect()
    }

    /// Whether this policy could be written by the present configuration, under whatever versions.
    pub(super) fn is_of_configuration(&self, policy: &WritePolicy) -> bool {
        policy.suite() == Suite::One
            && *policy.cluster() == self.settings.cluster
            && policy.epoch() == self.settings.epoch
            && same_set(policy.recipients(), self.fingerprints())
            && policy.signer() == self.signer()
            && policy.roots().len() == self.settings.write_keys.len()
            && policy.roots().iter().all(|root| root_key(&self.settings.write_keys, root).is_some())
    }
}

/// `sorted` is.
fn same_set(sorted: &[Fingerprint], mut other: Vec<Fingerprint>) -> bool {
    other.sort();
    other == sorted
}

/// Which of what several root keys have is told.
pub(super) fn gravest(failures: &[Failure]) -> Trouble {
    Trouble::gravest(failures.iter().map(trouble)).expect("what failed has a failure")
}

pub(super) fn trouble(failure: &Failure) -> Trouble {
    let kind = match failure.class {
        Class::Throttled => TroubleKind::Throttled,
        Class::Credential => TroubleKind::Credential,
        Class::Refused => TroubleKind::Refused,
        Class::Undecided => TroubleKind::Undecided,
        // Only wraps of our own come this way.
        Class::Corrupt | Class::NotOpened => TroubleKind::Corrupt,
        // Of a class that is younger than this table, nothing is known.
        _ => TroubleKind::Unreachable,
    };
    Trouble { kind, message: failure.to_string() }
}
