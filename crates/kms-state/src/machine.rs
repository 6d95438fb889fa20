//! The state machine of one provider.

use std::time::Duration;

use casemate_keys::{KeyId, WritePolicy};

use crate::outage::{self, OnRefused, Reads, Reply, Row, Rules, State};
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
    /// What should write could not be found out. Of several root keys, [`Trouble::gravest`] counts.
    NotObserved(Trouble),
    /// A local KEK was wrapped and opened again under this policy, and what a restart needs is on disk.
    Prepared(KeyId),
    /// That failed.
    NotPrepared(KeyId, Trouble),
    /// This node's record of this policy was opened by every one of its root keys.
    RecordOpened(KeyId),
    /// A root key of this policy is well and says that this node's record of it is none of its own: *same name, other
    /// key*. To make a new local KEK instead would write what no other node can read.
    RecordNotOpened(KeyId),
    /// What [`Machine::to_probe`] names was tried with the prober's own payload: wrapped, opened again, by every one of its
    /// root keys. Whatever is wrong with one of them is wrong with the policy; of several, [`Trouble::gravest`] counts.
    Probed(Result<(), Trouble>),
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Observe once more, now: nothing is active and the first sighting alone does not confirm.
    ObserveAgain,
    /// Get a local KEK under this policy and answer [`Event::Prepared`], [`Event::NotPrepared`] or
    /// [`Event::RecordNotOpened`].
    ///
    /// If this node's record is of this policy, it is re-opened: one root key that opens it is enough while others can't be
    /// asked, and a sealed cache while none can. One that says no makes it [`Event::NotPrepared`], one that is well and
    /// does not open it [`Event::RecordNotOpened`]. A new local KEK is made only if there is no such record (or it is too
    /// old, or damaged), and takes every root key.
    Prepare(WritePolicy),
    /// Switch: what was prepared writes from now on, and Status names it.
    Activate(KeyId),
    /// Wipe all opened local KEKs, the one that writes too. What may write again comes as [`Action::Prepare`].
    WipeOpened,
}

/// What Status and Encrypt do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Encrypt writes under this key id and Status names it with `ok`.
    Writing(KeyId),
    /// Encrypt writes under this key id and Status names it, with another `healthz` than `ok`.
    Failing(KeyId),
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
    /// A root key is out, and the outage policy says so.
    Outage(Trouble),
    /// The root keys of this policy don't open what was written under it: they are others of the same name.
    OtherKey(KeyId),
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    rules: Rules,
    ledger: Ledger,
    /// What was active before the restart, if the configuration still allows it; or before opened local KEKs were wiped.
    resumable: Option<WritePolicy>,
    accept_reuse: Option<KeyId>,
    active: Option<WritePolicy>,
    /// Whether what is active was resumed and no probe has told since how its root keys are: one of them was enough.
    unprobed: bool,
    /// Those whose record their root keys did not open, of what is active or was on its way; until they do, or another
    /// policy is active.
    other_keys: Vec<KeyId>,
    candidate: Option<Candidate>,
    reuse: Option<KeyId>,
    trouble: Option<Trouble>,
    failing: Option<Failing>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Candidate {
    policy: WritePolicy,
    sightings: u8,
    preparing: bool,
}

/// What probes of one policy said since the last good one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failing {
    of: KeyId,
    latest: Trouble,
    /// Since when it is more than a matter of our credential.
    outage_since: Option<Millis>,
    refusals: Option<Refusals>,
    /// Whether opened local KEKs were wiped for it.
    wiped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Refusals {
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
            rules: Rules::default(),
            ledger,
            resumable,
            accept_reuse,
            active: None,
            unprobed: false,
            other_keys: Vec::new(),
            candidate: None,
            reuse: None,
            trouble: None,
            failing: None,
        }
    }

    /// The same with these rules for outages, from the next event on.
    #[must_use]
    pub fn under(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// A machine of the same node after its configuration changed so that what is active is not of it any more: the same
    /// history, and nothing is active.
    #[must_use]
    pub fn of_other_configuration(&self) -> Self {
        Self::new(self.ledger.clone(), None, self.accept_reuse.clone()).under(self.rules)
    }

    /// A machine of the same node after its configuration changed while nothing was active: what was active last is resumed
    /// if it `fits`.
    #[must_use]
    pub fn starting_under(&self, fits: impl FnOnce(&WritePolicy) -> bool) -> Self {
        let resumable = self.resumable.clone().filter(fits);
        let is_of_it = |failing: &Failing| resumable.as_ref().is_some_and(|it| it.key_id() == failing.of);
        Self {
            other_keys: self.other_keys.clone(),
            failing: self.failing.clone().filter(is_of_it),
            resumable,
            ..self.of_other_configuration()
        }
    }

    /// How long it is until the outage that is going on has lasted as long as the policy allows, if that is still to come.
    pub fn outage_ends_in(&self, now: Millis) -> Option<Duration> {
        let since = self.failing.as_ref()?.outage_since?;
        let lasts = Duration::from_millis(now.0.saturating_sub(since.0));
        self.rules.policy.time()?.checked_sub(lasts).filter(|left| !left.is_zero())
    }

    /// Takes in what the shell saw at `now`; returns what it is to do, in order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Action> {
        match event {
            Event::Observed(policy) => self.observed(policy),
            Event::NotObserved(trouble) => self.not_observed(trouble),
            Event::Prepared(key_id) => self.prepared(&key_id),
            Event::NotPrepared(key_id, trouble) => {
                // The next sighting tries again.
                if let Some(candidate) = self.candidate_of(&key_id) {
                    candidate.preparing = false;
                    self.trouble = Some(trouble);
                }
                Vec::new()
            }
            Event::RecordOpened(key_id) => {
                self.record_opens(&key_id, true);
                Vec::new()
            }
            Event::RecordNotOpened(key_id) => {
                self.record_opens(&key_id, false);
                Vec::new()
            }
            Event::Probed(result) => self.probed(now, result),
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
            self.candidate = Some(Candidate::new(policy, sightings));
        }
        self.advance_candidate()
    }

    fn advance_candidate(&mut self) -> Vec<Action> {
        let Some(candidate) = &mut self.candidate else { return Vec::new() };
        candidate.sightings = candidate.sightings.saturating_add(1).min(SIGHTINGS);
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
        let Some(policy) = self.last_active() else {
            self.candidate = None;
            return Vec::new();
        };
        if self.candidate.as_ref().is_none_or(|candidate| candidate.policy != policy) {
            self.candidate = Some(Candidate::new(policy, SIGHTINGS - 1));
        }
        self.advance_candidate()
    }

    fn not_observed(&mut self, trouble: Trouble) -> Vec<Action> {
        let kind = trouble.kind;
        self.trouble = Some(trouble);
        if kind == TroubleKind::Undecided {
            // That is an answer, and it was not the candidate: twice in a row begins anew.
            self.candidate.take_if(|candidate| candidate.sightings < SIGHTINGS);
        }
        if kind.says_nothing_of_the_last_one() { self.resume_unseen() } else { Vec::new() }
    }

    /// What was active last was confirmed in its time: it goes on although nobody can see what should write.
    fn resume_unseen(&mut self) -> Vec<Action> {
        let is_preparing = self.candidate.as_ref().is_some_and(|candidate| candidate.preparing);
        // A root key that says no has said so of this one; and one that is another opens nothing, whoever else does.
        let policy = self
            .last_active()
            .filter(|policy| !is_preparing && self.refusal().is_none() && !self.is_other_key(policy));
        let Some(policy) = policy else { return Vec::new() };
        self.candidate = Some(Candidate::new(policy, SIGHTINGS));
        self.advance_candidate()
    }

    /// What was active before the restart, if nothing is active yet and it was the last one.
    fn last_active(&self) -> Option<WritePolicy> {
        let resumable = self.resumable.as_ref().filter(|_| self.active.is_none());
        resumable.filter(|policy| self.ledger.last() == Some(&policy.key_id())).cloned()
    }

    fn prepared(&mut self, key_id: &KeyId) -> Vec<Action> {
        let of_it = |candidate: &mut Candidate| {
            candidate.sightings >= SIGHTINGS && candidate.policy.key_id() == *key_id
        };
        // An answer about a candidate that is no longer wanted changes nothing.
        let Some(candidate) = self.candidate.take_if(of_it) else { return Vec::new() };
        // That it could be opened heals nothing of what was known of it: only a probe does, or its record.
        self.unprobed = self.resumable.take().as_ref() == Some(&candidate.policy);
        if !self.unprobed {
            self.failing = None;
        }
        self.other_keys.retain(|other| other == key_id);
        self.active = Some(candidate.policy);
        vec![Action::Activate(key_id.clone())]
    }

    fn record_opens(&mut self, key_id: &KeyId, opens: bool) {
        let is_active = self.active.as_ref().is_some_and(|active| active.key_id() == *key_id);
        let candidate = self.candidate_of(key_id);
        if !is_active && candidate.is_none() {
            return;
        }
        if let Some(candidate) = candidate {
            // The next sighting tries again.
            candidate.preparing &= opens;
        }
        self.other_keys.retain(|other| other != key_id);
        if !opens {
            self.other_keys.push(key_id.clone());
        }
    }

    fn probed(&mut self, now: Millis, result: Result<(), Trouble>) -> Vec<Action> {
        let Some(key_id) = self.to_probe().map(WritePolicy::key_id) else { return Vec::new() };
        match (result, self.failing.take_if(|failing| failing.of == key_id)) {
            (Err(trouble), failing) if !trouble.kind.is_of_root_keys() => {
                self.failing = failing;
                self.trouble = Some(trouble);
                return Vec::new();
            }
            (Ok(()), _) => self.failing = None,
            (Err(trouble), Some(mut failing)) => {
                failing.again(now, trouble);
                self.failing = Some(failing);
            }
            (Err(trouble), None) => self.failing = Some(Failing::new(key_id, now, trouble)),
        }
        self.unprobed = false;
        if self.row(now).reads == Reads::GoOn {
            return Vec::new();
        }
        let Some(failing) = &mut self.failing else { return Vec::new() };
        let was_wiped = std::mem::replace(&mut failing.wiped, true);
        match self.active.take() {
            // What is wiped does not write. If its root keys open it again, it goes on like after a restart.
            Some(active) => self.resumable = Some(active),
            // What was opened since was opened by a root key, and nothing writes.
            None if was_wiped => return Vec::new(),
            None => {}
        }
        vec![Action::WipeOpened]
    }

    /// The policy whose root keys are to be probed: what is active. While nothing is, and a root key says no, what was active
    /// last or is on its way: a process that is started then finds out, too, that it stays with its no.
    pub fn to_probe(&self) -> Option<&WritePolicy> {
        let says_no = |trouble: &Trouble| trouble.kind == TroubleKind::Refused;
        let is_doubtful = self.failing.is_some() || self.trouble.as_ref().is_some_and(says_no);
        let known = self.resumable.as_ref().or(self.candidate()).filter(|_| is_doubtful);
        self.active.as_ref().or(known)
    }

    fn candidate_of(&mut self, key_id: &KeyId) -> Option<&mut Candidate> {
        self.candidate.as_mut().filter(|candidate| candidate.policy.key_id() == *key_id)
    }

    /// Notes in the ledger that `key_id` became active; says whether its file has to be written.
    pub fn note_active(&mut self, key_id: &KeyId, unix_seconds: u64) -> bool {
        self.ledger.note(key_id, unix_seconds)
    }

    /// What Status and Encrypt do at `now`.
    pub fn standing(&self, now: Millis) -> Standing {
        let state = self.state(now);
        match (outage::row(state, &self.rules).status, &self.active) {
            (Reply::Ok, Some(active)) => Standing::Writing(active.key_id()),
            (Reply::NotOk, Some(active)) => Standing::Failing(active.key_id()),
            _ => Standing::Refusing(self.refusing(state)),
        }
    }

    /// The row of the table of outages that it follows at `now`.
    pub fn row(&self, now: Millis) -> &'static Row {
        outage::row(self.state(now), &self.rules)
    }

    fn state(&self, now: Millis) -> State {
        // A root key that was put back lacks what was active last. That it says no to it is the lesser part of it, unless
        // nothing is read any more.
        let was_put_back = self.active.is_none() && self.reuse.is_some();
        if self.refusal().is_some() && !(was_put_back && self.rules.on_refused == OnRefused::KeepReads) {
            return State::Refused;
        }
        if self.active.as_ref().or(self.candidate()).is_some_and(|policy| self.is_other_key(policy)) {
            return State::OtherKey;
        }
        if self.active.is_none() {
            return if self.reuse.is_some() { State::Reused } else { State::Starting };
        }
        match &self.failing {
            _ if self.unprobed => State::Starting,
            None => State::Well,
            Some(failing) if failing.latest.kind == TroubleKind::Credential => State::Credential,
            Some(failing) if failing.lasts_longer_than(self.rules.policy.time(), now) => State::OutageEnded,
            Some(_) => State::Outage,
        }
    }

    /// Why [`Machine::standing`] names no key id in this state.
    fn refusing(&self, state: State) -> Refusing {
        let failing = self.failing.as_ref().map(|failing| &failing.latest);
        let reason = match state {
            State::Refused => self.refusal().cloned().map(Refusing::RootRefused),
            State::Outage | State::OutageEnded => failing.cloned().map(Refusing::Outage),
            State::OtherKey => self.other_key().map(Refusing::OtherKey),
            State::Reused => self.reuse.clone().map(Refusing::Reuse),
            State::Starting | State::Well | State::Credential => None,
        };
        reason.unwrap_or_else(|| Refusing::NotReady(self.trouble.clone()))
    }

    /// What a root key says that has said no for two minutes.
    fn refusal(&self) -> Option<&Trouble> {
        let refusals = self.failing.as_ref()?.refusals.as_ref()?;
        refusals.stop_writes().then_some(&refusals.trouble)
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

    /// The key id of what is active, or else on its way, if its root keys are others of the same name.
    pub fn other_key(&self) -> Option<KeyId> {
        let mut policies = self.active.iter().chain(self.candidate());
        policies.find(|policy| self.is_other_key(policy)).map(WritePolicy::key_id)
    }

    fn is_other_key(&self, policy: &WritePolicy) -> bool {
        !self.other_keys.is_empty() && self.other_keys.contains(&policy.key_id())
    }

    /// What is wrong: what probes say, or else what came since the last good observation.
    pub fn trouble(&self) -> Option<&Trouble> {
        let failing = self.failing.as_ref();
        self.refusal().or(self.trouble.as_ref()).or(failing.map(|failing| &failing.latest))
    }

    /// Which key ids were active on this node.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Candidate {
    fn new(policy: WritePolicy, sightings: u8) -> Self {
        Self { policy, sightings, preparing: false }
    }
}

impl Failing {
    fn new(of: KeyId, now: Millis, trouble: Trouble) -> Self {
        let mut failing =
            Self { of, latest: trouble.clone(), outage_since: None, refusals: None, wiped: false };
        failing.again(now, trouble);
        failing
    }

    fn again(&mut self, now: Millis, trouble: Trouble) {
        self.latest = trouble.clone();
        if trouble.kind != TroubleKind::Credential {
            self.outage_since.get_or_insert(now);
        }
        if trouble.kind != TroubleKind::Refused {
            return;
        }
        match &mut self.refusals {
            Some(refusals) => {
                let times = refusals.times.saturating_add(1).min(REFUSALS);
                *refusals = Refusals { since: refusals.since, last: now, times, trouble };
            }
            None => self.refusals = Some(Refusals { since: now, last: now, times: 1, trouble }),
        }
    }

    fn lasts_longer_than(&self, time: Option<Duration>, now: Millis) -> bool {
        let lasts = |since: Millis| Duration::from_millis(now.0.saturating_sub(since.0));
        self.outage_since.zip(time).is_some_and(|(since, time)| lasts(since) >= time)
    }
}

impl Refusals {
    fn stop_writes(&self) -> bool {
        self.times >= REFUSALS && self.last.0.saturating_sub(self.since.0) >= REFUSED_FOR
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
