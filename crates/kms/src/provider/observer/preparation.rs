//! A local KEK to write with: the one of the last run, or a new one.

use std::sync::Arc;

use casemate_keys::WritePolicy;

use crate::provider::kek::Reopened;
use crate::provider::{KekProblem, Provider, Store, WriteKek};

impl Provider {
    /// A local KEK to write with under `policy`: the one of the last run if it still fits, else a new one. While a root
    /// key can't be asked, what is due for replacement serves on.
    pub(super) async fn kek_for(
        &self,
        policy: &WritePolicy,
    ) -> Result<(Arc<WriteKek>, KekOrigin), KekProblem> {
        let stored = self.store.work(Store::record).await?;
        let made = |kek| (kek, KekOrigin::Made);
        let Some(stored) = stored else { return self.new_kek(policy).await.map(made) };
        let reopened = match self.keyholder.reopen(policy, &stored.bytes).await {
            Err(failure) if failure.class.could_not_be_asked() && !stored.is_disowned => {
                let held = self
                    .keyholder
                    .reopen_held(policy, &stored.bytes, |annotation| self.opened.held(annotation));
                let Some(kek) = held else { return Err(failure.into()) };
                tracing::warn!(
                    provider = %self.name(), %failure,
                    "no root key could be asked for the local KEK that writes: it is what was opened before"
                );
                return Ok((Arc::new(kek), KekOrigin::OpenedBefore));
            }
            reopened => reopened?,
        };
        match reopened {
            Reopened::Kek { kek, by_all, is_old } => {
                let origin = if by_all { KekOrigin::Record } else { KekOrigin::RecordInPart };
                if stored.is_disowned && !by_all {
                    return Err(KekProblem::OtherKey);
                }
                if !is_old {
                    return Ok((kek, origin));
                }
                match self.new_kek(policy).await {
                    Err(KekProblem::Root(failure)) if failure.class.could_not_be_asked() => {
                        tracing::warn!(provider = %self.name(), %failure, "the local KEK is due for replacement and serves on");
                        Ok((kek, origin))
                    }
                    made_or_not => made_or_not.map(made),
                }
            }
            // As it was written: it is not the record that is wrong. To make another one would hide that.
            Reopened::NotOpened(root) if stored.is_whole => {
                self.keyholder.prove(&root).await?;
                Err(KekProblem::OtherKey)
            }
            Reopened::NotOpened(_) | Reopened::Unfit => self.new_kek(policy).await.map(made),
        }
    }
}

/// Where a local KEK to write with comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KekOrigin {
    /// It is new.
    Made,
    /// Every root key has opened the record.
    Record,
    /// Some have; the others could not be asked.
    RecordInPart,
    /// None could be asked: it was opened before, maybe by a process before this one.
    OpenedBefore,
}
