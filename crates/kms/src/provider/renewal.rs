//! A local KEK to write with is made, and replaced when it is old.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::WritePolicy;
use casemate_keyservice::Failure;

use super::{MAX_KEK_AGE, Provider, Standing, StoreError, WriteKek};

/// How long an Encrypt waits for a replacement before it goes on with the old local KEK.
const RENEWAL_WAIT: Duration = Duration::from_secs(1);

impl Provider {
    /// The active local KEK, replaced if it is too old. While its root keys can't be asked, it serves on.
    pub(super) async fn fresh(self: &Arc<Self>, kek: Arc<WriteKek>) -> Arc<WriteKek> {
        let age = (self.settings.clock)().saturating_sub(kek.record().core().created);
        if age <= MAX_KEK_AGE.as_secs() {
            return kek;
        }
        // One replaces it; whoever comes meanwhile goes on with the old one.
        let Ok(turn) = self.renewal.clone().try_lock_owned() else { return kek };
        let (provider, old) = (self.clone(), kek.clone());
        // A task of its own, so that a slow key service gets to its end although nobody waits for it that long.
        let renewal = tokio::spawn(async move {
            let _turn = turn;
            provider.renew(old).await
        });
        match tokio::time::timeout(RENEWAL_WAIT, renewal).await {
            Ok(Ok(renewed)) => renewed,
            _ => kek,
        }
    }

    /// What writes instead of `kek`, if that is still what writes; else `kek` itself.
    async fn renew(&self, kek: Arc<WriteKek>) -> Arc<WriteKek> {
        let begun = self.opened.wipes();
        let writes = |standing: &Standing| standing.writes().is_some_and(|now| Arc::ptr_eq(now, &kek));
        // What took its place while it waited for its turn has its record on disk.
        if !writes(&self.standing.load()) {
            return kek;
        }
        // A new record would hide it, and others could not read what is written with it.
        if self.keyholder.is_another_keys(&kek).await {
            self.refresh();
            return kek;
        }
        let new = match self.new_kek(&kek.record().core().policy).await {
            Ok(new) => new,
            Err(problem) => {
                tracing::warn!(provider = %self.name(), %problem, "the local KEK is due for replacement and serves on");
                return kek;
            }
        };
        self.opened.keep_begun(&new, begun);
        let before = self.standing.rcu(|standing| {
            if writes(standing) { Arc::new(standing.with(new.clone())) } else { standing.clone() }
        });
        if writes(&before) { new } else { kek }
    }

    /// Makes a local KEK under `policy` and keeps its record, so that a restart finds it.
    pub(super) async fn new_kek(&self, policy: &WritePolicy) -> Result<Arc<WriteKek>, KekProblem> {
        let kek = Arc::new(self.keyholder.make(policy, &self.recipients).await?);
        let record = kek.stored();
        self.store.work(move |store| store.save_record(&record)).await?;
        Ok(kek)
    }
}

/// Why there is no local KEK to write with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KekProblem {
    /// A root key failed.
    #[error(transparent)]
    Root(#[from] Failure),
    /// A root key is another one than the one that wrapped this node's record.
    #[error("a root key does not open what it wrapped: it is another key of that name")]
    OtherKey,
    /// The record could not be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}
