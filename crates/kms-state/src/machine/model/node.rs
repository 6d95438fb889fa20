//! One node: the machine, a shell around it that does as little as can be, and the promises.

use std::cell::RefCell;
use std::collections::HashMap;

use casemate_keys::{Algorithm, Epoch, Root, Suite};

use super::super::*;

/// Where the model's time always stands: instead of it, everything in the machine ages.
pub(super) const NOW: Millis = Millis(10_000_000);
/// What goes by with each probe.
const MINUTE: u64 = 60_000;
/// Older than this is all the same: every limit is below.
const OLD: u64 = 180_000;

/// What the admin wants, as it was delivered to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub epoch: u8,
    pub version: u8,
}

/// How the key service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Health {
    Up,
    Unreachable,
    Credential,
    Refused,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Deliver(Wanted),
    /// It looks which policy should write.
    Observe(Health),
    /// What it was to prepare is done or fails; `born` is which of the keys with this name is there.
    Answer(Health, u8),
    /// A minute goes by, and it tries its own wrap and its record.
    Probe(Health, u8),
    /// Somebody has written into etcd what no key opens, and a client reads it for some minutes.
    ReadPlanted,
    Restart,
    RestartWithoutLedger,
}

/// A fault in machine or shell that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    None,
    /// Confirmed after one sighting.
    OneSighting,
    /// No answer is taken for version 0.
    MissingIsAValue,
    /// A lost credential counts as a no.
    WipeOnExpiredToken,
    /// What does not open, whoever wrote it, counts as a no.
    EtcdMovesTheBreaker,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kek {
    policy: Wanted,
    born: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    machine: Machine,
    delivered: Wanted,
    /// What Encrypt seals with.
    writing: Option<Kek>,
    preparing: Option<Wanted>,
    /// On disk.
    record: Option<Kek>,
    ledger: Ledger,
    /// What really happened, whatever machine and ledger make of it.
    truth: Truth,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Truth {
    /// Key ids in the order in which they became active, since the ledger was lost.
    history: Vec<Wanted>,
    /// What it saw last, and how often in a row since it started.
    seen: Option<(Wanted, u8)>,
    /// How often the root key said no to its own wraps since it last said yes, up to three.
    refusals: u8,
    credential: bool,
    /// It was told that the root keys of these policies are others.
    other_keys: Vec<Wanted>,
}

impl Node {
    pub(super) fn new(rules: Rules, delivered: Wanted) -> Self {
        Self {
            machine: Machine::new(Ledger::default(), None, None).under(rules),
            delivered,
            writing: None,
            preparing: None,
            record: None,
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

    pub(super) fn delivered(&self) -> Wanted {
        self.delivered
    }

    /// The node after `step`, or which promise that breaks.
    pub(super) fn after(&self, step: Step, mutation: Mutation) -> Result<Self, String> {
        let mut node = self.clone();
        match step {
            Step::Deliver(wanted) => node.deliver(wanted),
            Step::Observe(health) => node.observe(health, mutation)?,
            Step::Answer(health, born) => node.answer(health, born, mutation)?,
            Step::Probe(health, born) => node.probe(health, born, mutation)?,
            Step::ReadPlanted => {
                for _ in 0..3 {
                    node.pass_time();
                    if mutation == Mutation::EtcdMovesTheBreaker {
                        node.tell(Event::Probed(Err(trouble(TroubleKind::Refused))))?;
                    }
                }
            }
            Step::Restart => node.restart(),
            Step::RestartWithoutLedger => {
                node.ledger = Ledger::default();
                node.truth.history.clear();
                node.restart();
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

    /// Whether it says, and rightly, why `wanted` does not write here.
    pub(super) fn says_why_not(&self, wanted: Wanted) -> bool {
        let history = &self.truth.history;
        let superseded = history.contains(&wanted) && history.last() != Some(&wanted);
        let reuse = superseded && self.machine.refused_reuse() == Some(&id(wanted));
        let other_key =
            self.truth.other_keys.iter().any(|other| self.machine.other_key() == Some(id(*other)));
        reuse || other_key
    }

    fn deliver(&mut self, wanted: Wanted) {
        let epoch = std::mem::replace(&mut self.delivered, wanted).epoch;
        if epoch != wanted.epoch {
            // As at a reload: another configuration.
            self.machine = self.machine.of_other_configuration();
            self.preparing = None;
            self.writing = None;
            self.truth = Truth { history: self.truth.history.clone(), ..Truth::default() };
        }
    }

    fn restart(&mut self) {
        let resumable =
            self.record.map(|kek| kek.policy).filter(|policy| policy.epoch == self.delivered.epoch);
        self.machine =
            Machine::new(self.ledger.clone(), resumable.map(policy), None).under(self.machine.rules);
        (self.preparing, self.writing) = (None, None);
        self.truth = Truth { history: self.truth.history.clone(), ..Truth::default() };
    }

    fn observe(&mut self, health: Health, mutation: Mutation) -> Result<(), String> {
        if let Some(kind) = health.trouble() {
            if mutation == Mutation::MissingIsAValue {
                return self.tell(Event::Observed(policy(Wanted { version: 0, ..self.delivered })));
            }
            return self.tell(Event::NotObserved(trouble(kind)));
        }
        let mut wanted = self.delivered;
        match mutation {
            Mutation::LedgerRefusesForEver if self.machine.refused_reuse().is_some() => return Ok(()),
            Mutation::OwnEpoch if self.has_moved_on_from(wanted) => wanted.epoch += 1,
            Mutation::ReturningKeyId => self.machine.accept_reuse = Some(id(wanted)),
            _ => {}
        }
        let before = self.truth.seen.filter(|(seen, _)| *seen == wanted).map_or(0, |(_, times)| times);
        self.truth.seen = Some((wanted, (before + 1).min(2)));
        self.tell(Event::Observed(policy(wanted)))?;
        if mutation == Mutation::OneSighting {
            self.tell(Event::Observed(policy(wanted)))?;
        }
        Ok(())
    }

    fn answer(&mut self, health: Health, born: u8, mutation: Mutation) -> Result<(), String> {
        let Some(wanted) = self.preparing.take() else { return Ok(()) };
        if mutation == Mutation::NamedBeforeItWrites {
            return self.tell(Event::Prepared(id(wanted)));
        }
        if let Some(kind) = health.trouble() {
            return self.tell(Event::NotPrepared(id(wanted), trouble(kind)));
        }
        let of_it = self.record.filter(|record| record.policy == wanted);
        if of_it.is_some_and(|record| record.born != born) {
            if mutation != Mutation::OtherKeyIsRemade {
                self.truth.is_other_key(wanted);
                return self.tell(Event::RecordNotOpened(id(wanted)));
            }
            return Err(format!("{wanted:?} is written under another key than its record"));
        }
        self.record = Some(Kek { policy: wanted, born });
        self.tell(Event::Prepared(id(wanted)))
    }

    fn probe(&mut self, health: Health, born: u8, mutation: Mutation) -> Result<(), String> {
        self.pass_time();
        let Some(active) = self.machine.active().cloned() else { return Ok(()) };
        self.truth.credential = health == Health::Credential;
        if let Some(kind) = health.trouble() {
            if health == Health::Refused {
                self.truth.refusals = (self.truth.refusals + 1).min(3);
            }
            let taken_for = match (kind, mutation) {
                (TroubleKind::Credential, Mutation::WipeOnExpiredToken) => TroubleKind::Refused,
                _ => kind,
            };
            return self.tell(Event::Probed(Err(trouble(taken_for))));
        }
        self.truth.refusals = 0;
        if let Some(record) = self.record.filter(|record| policy(record.policy) == active) {
            let event = if record.born == born {
                self.truth.other_keys.retain(|other| *other != record.policy);
                Event::RecordOpened(active.key_id())
            } else {
                self.truth.is_other_key(record.policy);
                Event::RecordNotOpened(active.key_id())
            };
            self.tell(event)?;
        }
        if mutation == Mutation::ProbeHealsOtherKey {
            self.tell(Event::RecordOpened(active.key_id()))?;
        }
        self.tell(Event::Probed(Ok(())))
    }

    /// What the shell does with what the machine says.
    fn tell(&mut self, event: Event) -> Result<(), String> {
        for action in self.machine.handle(NOW, event) {
            match action {
                // It looks again at any time.
                Action::ObserveAgain => {}
                Action::Prepare(wanted) => self.preparing = Some(plain(&wanted)),
                Action::Activate(key_id) => self.activate(&key_id)?,
                Action::WipeOpened => {
                    self.writing = None;
                    if self.truth.refusals < 3 {
                        return Err("local KEKs are wiped without three refusals".into());
                    }
                }
            }
        }
        Ok(())
    }

    fn activate(&mut self, key_id: &KeyId) -> Result<(), String> {
        let wanted = plain(self.machine.active().unwrap());
        let truth = &mut self.truth;
        if truth.history.last() != Some(&wanted) {
            if truth.history.contains(&wanted) {
                return Err(format!("{wanted:?} writes and was active before another one"));
            }
            if truth.seen != Some((wanted, 2)) {
                return Err(format!("{wanted:?} writes and was not seen twice: {:?}", truth.seen));
            }
            truth.history.push(wanted);
            truth.refusals = 0;
            truth.other_keys.clear();
        }
        truth.credential = false;
        self.writing = self.record.filter(|record| record.policy == wanted);
        self.machine.note_active(key_id, 0);
        self.ledger = self.machine.ledger().clone();
        Ok(())
    }

    fn keeps_its_promises(&self) -> Result<(), String> {
        let (machine, truth) = (&self.machine, &self.truth);
        let named = match machine.standing(NOW) {
            Standing::Writing(key_id) | Standing::Failing(key_id) => Some(key_id),
            Standing::Refusing(_) => None,
        };
        if let Some(key_id) = &named {
            let active = machine.active().map(WritePolicy::key_id);
            if self.writing.map(|kek| id(kek.policy)).as_ref() != Some(key_id) {
                return Err(format!("Status names {key_id} and there is no local KEK of it"));
            }
            if active.as_ref() != Some(key_id) || self.ledger.last() != Some(key_id) {
                return Err(format!("Status names {key_id}, active is {active:?}: two at once"));
            }
            if truth.other_keys.iter().any(|other| id(*other) == *key_id) {
                return Err(format!("Status names {key_id} although its root key is another one"));
            }
        }
        if machine.row(NOW).state == State::Refused && truth.refusals < 3 {
            return Err("writes stop without three refusals".into());
        }
        let other_key = machine.other_key().is_some();
        if truth.credential
            && truth.refusals == 0
            && machine.active().is_some()
            && !other_key
            && named.is_none()
        {
            return Err("writes stop for a lost credential".into());
        }
        Ok(())
    }

    fn has_moved_on_from(&self, wanted: Wanted) -> bool {
        self.ledger.was_superseded(&id(wanted))
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

impl Truth {
    fn is_other_key(&mut self, policy: Wanted) {
        if !self.other_keys.contains(&policy) {
            self.other_keys.push(policy);
        }
    }
}

impl Health {
    fn trouble(self) -> Option<TroubleKind> {
        match self {
            Self::Up => None,
            Self::Unreachable => Some(TroubleKind::Unreachable),
            Self::Credential => Some(TroubleKind::Credential),
            Self::Refused => Some(TroubleKind::Refused),
        }
    }
}

fn policy(wanted: Wanted) -> WritePolicy {
    known(wanted).0
}

fn id(wanted: Wanted) -> KeyId {
    known(wanted).1
}

/// Made once: the model asks a million times.
fn known(wanted: Wanted) -> (WritePolicy, KeyId) {
    thread_local!(static KNOWN: RefCell<HashMap<Wanted, (WritePolicy, KeyId)>> = RefCell::default());
    KNOWN.with_borrow_mut(|known| known.entry(wanted).or_insert_with(|| make(wanted)).clone())
}

fn make(wanted: Wanted) -> (WritePolicy, KeyId) {
    let lineage = format!("transit:ns/mount/name/{}/1", wanted.version).parse().unwrap();
    let root = Root { lineage, algorithm: Algorithm::FILE_AES256_GCM };
    let epoch = Epoch(wanted.epoch.into());
    let policy =
        WritePolicy::new(Suite::One, "prod".parse().unwrap(), epoch, vec![root], vec![], None).unwrap();
    let key_id = policy.key_id();
    (policy, key_id)
}

fn plain(policy: &WritePolicy) -> Wanted {
    let version = policy.roots()[0].lineage.as_str().split('/').nth(3).unwrap();
    Wanted { epoch: u8::try_from(policy.epoch().0).unwrap(), version: version.parse().unwrap() }
}

fn trouble(kind: TroubleKind) -> Trouble {
    Trouble { kind, message: String::new() }
}
