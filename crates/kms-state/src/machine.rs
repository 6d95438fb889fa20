//! The state machine of one provider.

use casemate_keys::{KeyId, WritePolicy};

use crate::{Ledger, Millis, Trouble, TroubleKind};

/// How often a write policy is seen before it is prepared.
const SIGHTINGS: u8 = 2;
/// A root key that says no this often, over at least [`REFUSED_FOR`], stops new writes.
const REFUSALS: u32 = 3;
/// See [`REFUSALS`].
const REFUSED_FOR: u64 = 120_000;

/// What the shell saw or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// By configuration and key services, this is what should write now.
    Observed(WritePolicy),
    /// What should write could not be found out.
    NotObserved(Trouble),
    /// A local KEK was wrapped and opened again under this policy, and what a restart needs is on disk.
    Prepared(KeyId),
    /// That failed.
    NotPrepared(KeyId, Trouble),
    /// The active policy was tried with the prober's own payload: wrapped, opened again.
    Probed(Result<(), Trouble>),
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Observe once more, now: nothing is active and the first sighting alone does not confirm.
    ObserveAgain,
    /// Get a local KEK under this policy (re-open the current record or make one) and answer
    /// [`Event::Prepared`] or [`Event::NotPrepared`].
    Prepare(WritePolicy),
    /// Switch: what was prepared writes from now on, and Status names it.
    Activate(KeyId),
}

/// What Status and Encrypt do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Encrypt writes under this key id and Status names it with `ok`.
    Writing(KeyId),
    /// Encrypt is refused and Status answers with an error. Reads go on.
    Refusing(Refusing),
}

/// Why nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusing {
    /// Nothing was active yet; what stands in the way, if anything.
    NotReady(Option<Trouble>),
    /// The root key of the active policy has said no for two minutes.
    RootRefused(Trouble),
    /// The only key id to be had was active before and another one since.
    Reuse(KeyId),
}

/// How far a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How often it was seen in a row; twice confirms it.
    pub sightings: u8,
    /// Whether a local KEK is being made under it.
    pub preparing: bool,
}

/// Decides which write policy is active. See the crate's promises.
#[derive(Clone, Debug)]
pub struct Machine {
    ledger: Ledger,
    /// What was active before the restart, if the configuration still allows it.
    resumable: Option<WritePolicy>,
    accept_reuse: Option<KeyId>,
    active: Option<WritePolicy>,
    candidate: Option<Candidate>,
    reuse: Option<KeyId>,
    trouble: Option<Trouble>,
    refused: Option<Refused>,
}

#[derive(Clone, Debug)]
struct Candidate {
    policy: WritePolicy,
    sightings: u8,
    preparing: bool,
}

#[derive(Clone, Debug)]
struct Refused {
    since: Millis,
    last: Millis,
    times: u32,
    trouble: Trouble,
}

impl Machine {
    /// A machine of a node with this history. `resumable` is the policy of the record on disk if it is one of
    /// the present configuration; `accept_reuse` a key id that the admin allows once more.
    pub fn new(ledger: Ledger, resumable: Option<WritePolicy>, accept_reuse: Option<KeyId>) -> Self {
        Self {
            ledger,
            resumable,
            accept_reuse,
            active: None,
            candidate: None,
            reuse: None,
            trouble: None,
            refused: None,
        }
    }

    /// A machine of the same node after its configuration changed so that what is active is not of it any more: the same
    /// history, and nothing is active.
    #[must_use]
    pub fn of_other_configuration(&self) -> Self {
        Self::new(self.ledger.clone(), None, self.accept_reuse.clone())
    }

    /// Takes in what the shell saw at `now`; returns what it is to do, in order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Action> {
        match event {
            Event::Observed(policy) => self.observed(policy),
            Event::NotObserved(trouble) => {
                self.trouble = Some(trouble);
                Vec::new()
            }
            Event::Prepared(key_id) => self.prepared(&key_id),
            Event::NotPrepared(key_id, trouble) => {
                // The next sighting tries again.
                if let Some(candidate) = self.candidate_of(&key_id) {
                    candidate.preparing = false;
                    self.trouble = Some(trouble);
                }
                Vec::new()
            }
            Event::Probed(result) => {
                self.probed(now, result);
                Vec::new()
            }
        }
    }

    fn observed(&mut self, policy: WritePolicy) -> Vec<Action> {
        let key_id = policy.key_id();
        self.trouble = None;
        self.reuse = None;
        if self.active.as_ref() == Some(&policy) {
            self.candidate = None;
            return Vec::new();
        }
        if self.refuses(&key_id) {
            self.reuse = Some(key_id);
            return self.fall_back_to_history();
        }
        // After a restart, what was active needs no second sighting: it was confirmed in its time.
        let confirmed_before = self.active.is_none() && self.ledger.last() == Some(&key_id);
        if self.candidate.as_ref().is_none_or(|candidate| candidate.policy != policy) {
            let sightings = if confirmed_before { SIGHTINGS - 1 } else { 0 };
            self.candidate = Some(Candidate { policy, sightings, preparing: false });
        }
        self.advance_candidate()
    }

    fn advance_candidate(&mut self) -> Vec<Action> {
        let Some(candidate) = &mut self.candidate else { return Vec::new() };
        candidate.sightings = candidate.sightings.saturating_add(1);
        if candidate.preparing {
            Vec::new()
        } else if candidate.sightings >= SIGHTINGS {
            candidate.preparing = true;
            vec![Action::Prepare(candidate.policy.clone())]
        } else if self.active.is_none() {
            vec![Action::ObserveAgain]
        } else {
            Vec::new()
        }
    }

    /// What should write was active before another one. The last active one goes on, if it can.
    fn fall_back_to_history(&mut self) -> Vec<Action> {
        let last = self.resumable.clone().filter(|policy| self.ledger.last() == Some(&policy.key_id()));
        match (&self.active, last) {
            (None, Some(policy)) => {
                if self.candidate.as_ref().is_none_or(|candidate| candidate.policy != policy) {
                    self.candidate = Some(Candidate { policy, sightings: SIGHTINGS - 1, preparing: false });
                }
                self.advance_candidate()
            }
            _ => {
                self.candidate = None;
                Vec::new()
            }
        }
    }

    fn prepared(&mut self, key_id: &KeyId) -> Vec<Action> {
        // An answer about a candidate that is no longer wanted changes nothing.
        if self.candidate_of(key_id).is_none_or(|candidate| candidate.sightings < SIGHTINGS) {
            return Vec::new();
        }
        self.active = self.candidate.take().map(|candidate| candidate.policy);
        self.resumable = None;
        self.refused = None;
        vec![Action::Activate(key_id.clone())]
    }

    fn probed(&mut self, now: Millis, result: Result<(), Trouble>) {
        match result {
            Ok(()) => self.refused = None,
            Err(trouble) if trouble.kind == TroubleKind::Refused => match &mut self.refused {
                Some(refused) => {
                    refused.times = refused.times.saturating_add(1);
                    refused.last = now;
                    refused.trouble = trouble;
                }
                None => self.refused = Some(Refused { since: now, last: now, times: 1, trouble }),
            },
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    fn candidate_of(&mut self, key_id: &KeyId) -> Option<&mut Candidate> {
        self.candidate.as_mut().filter(|candidate| candidate.policy.key_id() == *key_id)
    }

    /// Notes in the ledger that `key_id` became active; says whether its file has to be written.
    pub fn note_active(&mut self, key_id: &KeyId, unix_seconds: u64) -> bool {
        self.ledger.note(key_id, unix_seconds)
    }

    /// What Status and Encrypt do now.
    pub fn standing(&self) -> Standing {
        match &self.active {
            Some(active) => match &self.refused {
                Some(refused) if refused.stops_writes() => {
                    Standing::Refusing(Refusing::RootRefused(refused.trouble.clone()))
                }
                _ => Standing::Writing(active.key_id()),
            },
            None => Standing::Refusing(match &self.reuse {
                Some(key_id) => Refusing::Reuse(key_id.clone()),
                None => Refusing::NotReady(self.trouble.clone()),
            }),
        }
    }

    /// The active policy.
    pub fn active(&self) -> Option<&WritePolicy> {
        self.active.as_ref()
    }

    /// The policy that is on its way to be active.
    pub fn candidate(&self) -> Option<&WritePolicy> {
        self.candidate.as_ref().map(|candidate| &candidate.policy)
    }

    /// How far [`Machine::candidate`] is.
    pub fn progress(&self) -> Option<Progress> {
        let progress = |candidate: &Candidate| Progress {
            sightings: candidate.sightings.min(SIGHTINGS),
            preparing: candidate.preparing,
        };
        self.candidate.as_ref().map(progress)
    }

    /// The key id that should write and was refused because it was active before another one.
    pub fn refused_reuse(&self) -> Option<&KeyId> {
        self.reuse.as_ref()
    }

    /// Whether it would refuse `key_id`, because it was active before another one.
    pub fn refuses(&self, key_id: &KeyId) -> bool {
        self.ledger.was_superseded(key_id) && self.accept_reuse.as_ref() != Some(key_id)
    }

    /// The last trouble since the last good observation.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.refused.as_ref().map(|refused| &refused.trouble).or(self.trouble.as_ref())
    }

    /// Which key ids were active on this node.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Refused {
    fn stops_writes(&self) -> bool {
        self.times >= REFUSALS && self.last.0.saturating_sub(self.since.0) >= REFUSED_FOR
    }
}

#[cfg(test)]
mod tests;
