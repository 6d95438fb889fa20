//! One node: the machine, and a shell around it that does as little as can be.

use super::super::*;
use super::service::{Config, Health, Keys, Service, Wanted, id, plain, policy, trouble};
use super::truth::Truth;

/// Where the model's time always stands: instead of it, everything in the machine ages.
pub(super) const NOW: Millis = Millis(10_000_000);
/// What goes by with each probe.
const MINUTE: u64 = 60_000;
/// Older than this is all the same: every limit is below.
const OLD: u64 = 180_000;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Deliver(Config),
    /// It looks which policy should write.
    Observe(Service),
    /// What it was to prepare is done or fails.
    Answer(Service),
    /// A minute goes by, and it tries its own wrap and its record.
    Probe(Service),
    /// Somebody has written into etcd what no key opens, and a client reads it for some minutes.
    ReadPlanted,
    Restart,
    RestartWithoutLedger,
}

/// What is the same for all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub rules: Rules,
    /// Whether local KEKs are sealed on disk too, so that they open without a root key.
    pub cache: bool,
    pub mutation: Mutation,
}

/// A fault in machine, shell or admin that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    None,
    /// Confirmed after one sighting.
    OneSighting,
    /// No answer is taken for version 0.
    MissingIsAValue,
    /// A label on two versions is taken for the higher one.
    UndecidedIsAValue,
    /// A label on two versions is taken for an outage.
    UndecidedIsAnOutage,
    /// A lost credential counts as a no.
    WipeOnExpiredToken,
    /// What does not open, whoever wrote it, counts as a no.
    EtcdMovesTheBreaker,
    /// A look that is refused counts as a no to its own wraps.
    RefusedLookIsAProbe,
    /// Once it has refused a key id, it refuses all.
    LedgerRefusesForEver,
    /// A node that may not re-use a key id raises the epoch by itself.
    OwnEpoch,
    /// The ledger is not asked.
    ReturningKeyId,
    /// Told to be prepared before there is a local KEK.
    NamedBeforeItWrites,
    /// A new local KEK where the record does not open.
    OtherKeyIsRemade,
    /// The other key wraps well, so all is well.
    ProbeHealsOtherKey,
    /// One of two root keys opens the record, so all is well.
    OneOpensForBoth,
    /// Nothing is resumed unseen.
    NeverResumes,
    /// Resumed whatever the ledger names last.
    ResumesAnother,
    /// Resumed although the root key says no.
    ResumesUnderRefused,
    /// Resumed, or healed, although the record was found not to open.
    ResumesOtherKey,
    /// Resumed after opened local KEKs were wiped, as if nobody had said no.
    ResumesWiped,
    /// While nothing is active, no probe finds out that a root key stays with its no.
    OnlyTheActiveIsProbed,
    /// Ok before anybody has probed what was resumed.
    OkBeforeItIsProbed,
    /// A new local KEK is wrapped by those root keys that are up.
    OneWrapIsMissing,
    /// The admin does not wait until all nodes read with a root key before one writes with it.
    WritesBeforeReaders,
}

/// A local KEK, or the record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Kek {
    pub policy: Wanted,
    /// Which of the keys with A's name.
    pub born: u8,
    /// Which root keys open it.
    pub wraps: Keys,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) machine: Machine,
    delivered: Config,
    /// What Encrypt seals with.
    pub(super) writing: Option<Kek>,
    preparing: Option<Wanted>,
    /// On disk.
    pub(super) record: Option<Kek>,
    /// On disk, if there is a cache: opens without a root key.
    sealed: Option<Kek>,
    pub(super) ledger: Ledger,
    pub(super) truth: Truth,
}

impl Node {
    pub(super) fn new(rules: Rules, delivered: Config) -> Self {
        Self {
            machine: Machine::new(Ledger::default(), None, None).under(rules),
            delivered,
            writing: None,
            preparing: None,
            record: None,
            sealed: None,
            ledger: Ledger::default(),
            truth: Truth::default(),
        }
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    pub(super) fn is_active(&self) -> bool {
        self.machine.active().is_some()
    }

    pub(super) fn delivered(&self) -> Config {
        self.delivered
    }

    /// The node after `step`, or which promise that breaks.
    pub(super) fn after(&self, step: Step, setup: &Setup) -> Result<Self, String> {
        let mut node = self.clone();
        match step {
            Step::Deliver(config) => node.deliver(config),
            Step::Observe(service) => node.observe(service, setup)?,
            Step::Answer(service) => node.answer(service, setup)?,
            Step::Probe(service) => node.probe(service, setup)?,
            Step::ReadPlanted => {
                for _ in 0..3 {
                    node.pass_time();
                    if setup.mutation == Mutation::EtcdMovesTheBreaker {
                        node.tell(Event::Probed(Err(trouble(TroubleKind::Refused))), setup)?;
                    }
                }
            }
            Step::Restart => node.restart(setup),
            Step::RestartWithoutLedger => {
                node.ledger = Ledger::default();
                node.truth.history.clear();
                node.restart(setup);
            }
        }
        node.keeps_its_promises()?;
        Ok(node)
    }

    /// What it writes under, if Status says that all is well.
    pub(super) fn writes(&self) -> Option<Wanted> {
        match self.machine.standing(NOW) {
            Standing::Writing(_) => self.writing.map(|kek| kek.policy),
            _ => None,
        }
    }

    /// What is in etcd of it as soon as somebody writes.
    pub(super) fn seals_with(&self) -> Option<Kek> {
        match self.machine.standing(NOW) {
            Standing::Writing(_) | Standing::Failing(_) => self.writing,
            Standing::Refusing(_) => None,
        }
    }

    /// Which root keys it would have to be told of to read this; none if it reads it.
    pub(super) fn lacks(&self, kek: Kek, born: u8) -> Keys {
        let open = kek.opens_with(born);
        if open.and(self.delivered.reads) == Keys::NONE { open } else { Keys::NONE }
    }

    /// What opens from the disk without a root key, and may: the policy of it is probed.
    pub(super) fn is_sealed_and_probed(&self) -> bool {
        let known = self.machine.active().or(self.machine.resumable.as_ref());
        self.sealed.is_some_and(|kek| known == Some(&policy(kek.policy)))
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// What a restart could write with again.
    pub(super) fn can_resume(&self) -> Option<Kek> {
        self.seals_with().filter(|kek| self.record == Some(*kek))
    }

    fn deliver(&mut self, config: Config) {
        let before = std::mem::replace(&mut self.delivered, config).wanted;
        if (before.epoch, before.keys) != (config.wanted.epoch, config.wanted.keys) {
            // As at a start with another configuration: what can be written with is made first.
            self.machine = self.machine.of_other_configuration();
            self.preparing = None;
            self.writing = None;
            self.truth = self.truth.of_new_process();
        }
    }

    fn restart(&mut self, setup: &Setup) {
        let now = self.delivered.wanted;
        let of_configuration = |policy: &Wanted| (policy.epoch, policy.keys) == (now.epoch, now.keys);
        let resumable = self.record.map(|kek| kek.policy).filter(of_configuration);
        let mut ledger = self.ledger.clone();
        if setup.mutation == Mutation::ResumesAnother
            && let Some(resumable) = resumable.filter(|_| ledger.last().is_some())
        {
            ledger.note(&id(resumable), 0);
        }
        self.machine = Machine::new(ledger, resumable.map(policy), None).under(self.machine.rules);
        (self.preparing, self.writing) = (None, None);
        self.truth = self.truth.of_new_process();
    }

    fn observe(&mut self, service: Service, setup: &Setup) -> Result<(), String> {
        let mut wanted = self.delivered.wanted;
        if let Some(found) = service.not_seen(wanted.keys) {
            self.truth.did_not_see(found.kind);
            let told = match (setup.mutation, found.kind) {
                (Mutation::MissingIsAValue, _) => Event::Observed(policy(Wanted { version: 0, ..wanted })),
                (Mutation::UndecidedIsAValue, TroubleKind::Undecided) => {
                    Event::Observed(policy(Wanted { version: wanted.version + 1, ..wanted }))
                }
                (Mutation::RefusedLookIsAProbe, TroubleKind::Refused) => Event::Probed(Err(found)),
                (Mutation::NeverResumes, _) if !self.is_active() => return Ok(()),
                (Mutation::ResumesUnderRefused, TroubleKind::Refused) => {
                    Event::NotObserved(trouble(TroubleKind::Unreachable))
                }
                _ => Event::NotObserved(found),
            };
            if setup.mutation == Mutation::ResumesOtherKey {
                self.machine.other_keys.clear();
            }
            if setup.mutation == Mutation::ResumesWiped && !self.is_active() {
                self.machine.failing = None;
            }
            return self.tell(told, setup);
        }
        match setup.mutation {
            Mutation::LedgerRefusesForEver if self.machine.refused_reuse().is_some() => return Ok(()),
            Mutation::OwnEpoch if self.ledger.was_superseded(&id(wanted)) => wanted.epoch += 1,
            Mutation::ReturningKeyId => self.machine.accept_reuse = Some(id(wanted)),
            _ => {}
        }
        self.truth.saw(wanted);
        self.tell(Event::Observed(policy(wanted)), setup)?;
        if setup.mutation == Mutation::OneSighting {
            self.tell(Event::Observed(policy(wanted)), setup)?;
        }
        Ok(())
    }

    fn answer(&mut self, service: Service, setup: &Setup) -> Result<(), String> {
        let Some(wanted) = self.preparing.take() else { return Ok(()) };
        if setup.mutation == Mutation::NamedBeforeItWrites {
            return self.tell(Event::Prepared(id(wanted)), setup);
        }
        let out = service.not_usable(wanted.keys);
        let Some(record) = self.record.filter(|record| record.policy == wanted) else {
            let usable = service.usable(wanted.keys);
            if let Some(found) = out
                && (setup.mutation != Mutation::OneWrapIsMissing || usable == Keys::NONE)
            {
                return self.tell(Event::NotPrepared(id(wanted), found), setup);
            }
            self.record = Some(Kek::new(wanted, service.born, usable));
            self.truth.reopened = false;
            return self.tell(Event::Prepared(id(wanted)), setup);
        };
        match out {
            _ if record.is_of_other_key(service) => {
                if setup.mutation == Mutation::OtherKeyIsRemade {
                    return Err(format!("{wanted:?} is written under another key than its record"));
                }
                self.finds_another_key(wanted, setup)
            }
            Some(found)
                if found.kind == TroubleKind::Refused
                    || service.usable(wanted.keys) == Keys::NONE && self.sealed != Some(record) =>
            {
                self.tell(Event::NotPrepared(id(wanted), found), setup)
            }
            _ => {
                self.truth.reopened = true;
                self.tell(Event::Prepared(id(wanted)), setup)
            }
        }
    }

    fn probe(&mut self, service: Service, setup: &Setup) -> Result<(), String> {
        self.pass_time();
        let Some(probed) = self.machine.to_probe().cloned() else { return Ok(()) };
        if setup.mutation == Mutation::OnlyTheActiveIsProbed && !self.is_active() {
            return Ok(());
        }
        let wanted = plain(&probed);
        let out = service.not_usable(wanted.keys);
        // What is not active is tried with what is of no use to anybody alone.
        if let Some(record) = self.record.filter(|record| self.is_active() && record.policy == wanted) {
            if record.is_of_other_key(service) {
                self.finds_another_key(wanted, setup)?;
            } else if out.is_none() {
                self.truth.other_keys.retain(|other| *other != wanted);
                self.tell(Event::RecordOpened(probed.key_id()), setup)?;
            } else if setup.mutation == Mutation::OneOpensForBoth && service.usable(wanted.keys) != Keys::NONE
            {
                self.tell(Event::RecordOpened(probed.key_id()), setup)?;
            }
        }
        if setup.mutation == Mutation::ProbeHealsOtherKey && out.is_none() {
            self.tell(Event::RecordOpened(probed.key_id()), setup)?;
        }
        self.truth.probed(wanted, out.as_ref());
        let is_undecided = wanted.keys.each().any(|key| service.of(key) == Health::Undecided);
        let told = match (setup.mutation, out) {
            (Mutation::WipeOnExpiredToken, Some(found)) if found.kind == TroubleKind::Credential => {
                Err(trouble(TroubleKind::Refused))
            }
            (Mutation::UndecidedIsAnOutage, None) if is_undecided => Err(trouble(TroubleKind::Unreachable)),
            (_, Some(found)) => Err(found),
            (_, None) => Ok(()),
        };
        self.tell(Event::Probed(told), setup)
    }

    fn finds_another_key(&mut self, wanted: Wanted, setup: &Setup) -> Result<(), String> {
        self.truth.is_other_key(wanted);
        // No restart is to write with it before its root keys have had their say.
        self.sealed = None;
        self.tell(Event::RecordNotOpened(id(wanted)), setup)
    }

    /// What the shell does with what the machine says.
    fn tell(&mut self, event: Event, setup: &Setup) -> Result<(), String> {
        for action in self.machine.handle(NOW, event) {
            match action {
                // It looks again at any time.
                Action::ObserveAgain => {}
                Action::Prepare(wanted) => {
                    let wanted = plain(&wanted);
                    self.truth.may_prepare(wanted)?;
                    self.preparing = Some(wanted);
                }
                Action::Activate(key_id) => self.activate(&key_id, setup)?,
                Action::WipeOpened => {
                    // The key that seals them is gone with them.
                    (self.writing, self.sealed) = (None, None);
                    self.truth.may_stop("local KEKs are wiped")?;
                }
            }
        }
        Ok(())
    }

    fn activate(&mut self, key_id: &KeyId, setup: &Setup) -> Result<(), String> {
        let wanted = plain(self.machine.active().unwrap());
        self.truth.activates(wanted)?;
        match setup.mutation {
            Mutation::OkBeforeItIsProbed => self.machine.unprobed = false,
            Mutation::ResumesWiped => self.machine.failing = None,
            _ => {}
        }
        self.writing = self.record.filter(|record| record.policy == wanted);
        self.sealed = self.writing.filter(|_| setup.cache);
        self.machine.note_active(key_id, 0);
        self.ledger = self.machine.ledger().clone();
        Ok(())
    }

    fn pass_time(&mut self) {
        let age = |moment: Millis, by: u64| Millis(moment.0.saturating_sub(by).max(NOW.0 - OLD));
        let Some(failing) = &mut self.machine.failing else { return };
        failing.outage_since = failing.outage_since.map(|since| age(since, MINUTE));
        if let Some(refusals) = &mut failing.refusals {
            // What lies between them counts, however long ago it was.
            let between = (refusals.last.0 - refusals.since.0).min(REFUSED_FOR);
            refusals.last = age(refusals.last, MINUTE);
            refusals.since = Millis(refusals.last.0 - between);
        }
    }
}

impl Kek {
    fn new(policy: Wanted, born: u8, wraps: Keys) -> Self {
        let born = if policy.keys.and(Keys::A) == Keys::A { born } else { 0 };
        Self { policy, born, wraps }
    }

    /// Which root keys open it, now that A was made again so often.
    pub(super) fn opens_with(self, born: u8) -> Keys {
        if self.born == born { self.wraps } else { self.wraps.without(Keys::A) }
    }

    /// Whether a root key that can be asked says that this is none of its own.
    fn is_of_other_key(self, service: Service) -> bool {
        self.born != service.born && service.usable(self.policy.keys).and(Keys::A) == Keys::A
    }
}
