//! Watches root keys and carries out what the state machine decides.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use casemate_keys::{KeyId, WritePolicy};
use casemate_keyservice::Pace;
use casemate_kms_state::outage::{Level, Row, State};
use casemate_kms_state::{
    Action, Event, Ledger, LedgerDamage, Machine, Millis, Refusing, Standing as Decided, Trouble, TroubleKind,
};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod observation;
mod preparation;
mod rest;
mod succession;

pub use rest::{AT_MOST_EVERY, OBSERVE_EVERY, PROBE_EVERY};
pub use succession::{NotReady, Ready, Requests, Succession, succession};

use self::observation::{gravest, trouble};
use self::preparation::KekOrigin;
use self::rest::{Outcome, Rest, Turns, chance};
use super::kek::{Opening, Probed, record_of};
use super::opened::Wipes;
use super::snapshot::LEDGER_ENTRIES;
use super::{
    KekProblem, Moment, Provider, Snapshot, Standing, Store, StoreError, StoredRecord, WriteKek, Wrong,
};

/// The one task that changes what a provider writes under.
#[derive(Debug)]
pub struct Observer {
    provider: Arc<Provider>,
    machine: Machine,
    prepared: Option<Prepared>,
    writing: Option<Arc<WriteKek>>,
    /// What a successor will write under, and what wrote before it, until it takes over.
    activated: Option<(KeyId, Option<KeyId>)>,
    /// Nobody else must see that it looks.
    rehearsing: bool,
    /// What was opened is to be wiped as soon as it takes over.
    wipes: bool,
    ledger_unsaved: bool,
    started: Instant,
    turns: Turns,
    rest: Rest,
    read_keys_looked: Option<Instant>,
    /// What is noted on disk of the record.
    disowned: bool,
    looked: Moment,
    refreshed: u64,
    observed: Option<Moment>,
    wrong: Option<Wrong>,
    /// What was logged of the table of outages.
    row: Option<&'static Row>,
}

/// What would write if the machine said so.
#[derive(Debug)]
struct Prepared {
    kek: Arc<WriteKek>,
    /// How often all had been wiped when this began.
    begun: Wipes,
    /// Nobody else saves a record until it is known whether this one writes. A rehearsal has its turn already.
    _turn: Option<OwnedMutexGuard<()>>,
}

/// What the last run left.
struct Left {
    ledger: Ledger,
    damage: Option<LedgerDamage>,
    stored: Option<StoredRecord>,
}

impl Left {
    fn read(store: &Store) -> Result<Self, StoreError> {
        let (ledger, damage) = store.ledger()?;
        Ok(Self { ledger, damage, stored: store.record()? })
    }
}

impl Observer {
    /// Reads what the last run left. `accept_reuse` is a key id that may become active although another one was
    /// active since.
    ///
    /// # Errors
    /// If the state directory can't be read: to go on without the ledger could bring a key id back.
    pub fn new(provider: Arc<Provider>, accept_reuse: Option<KeyId>) -> Result<Self, StoreError> {
        let left = Left::read(&provider.store)?;
        Ok(Self::after(left, provider, accept_reuse))
    }

    /// The same, for those who must not wait for a disk that does not answer.
    ///
    /// # Errors
    /// As [`Observer::new`].
    pub async fn begin(provider: Arc<Provider>, accept_reuse: Option<KeyId>) -> Result<Self, StoreError> {
        let left = provider.store.work(Left::read).await?;
        Ok(Self::after(left, provider, accept_reuse))
    }

    fn after(left: Left, provider: Arc<Provider>, accept_reuse: Option<KeyId>) -> Self {
        let Left { ledger, damage, stored } = left;
        let damaged = damage.is_some();
        if let Some(damage) = damage {
            tracing::warn!(
                provider = %provider.name(), lines = ?damage.lines, torn_end = damage.torn_end,
                "the ledger of active key ids is damaged; these lines are left out, the file is kept as ledger.damaged"
            );
        }
        if let Some(last) =
            ledger.last().filter(|last| last.cluster_id() != provider.settings.cluster.as_str())
        {
            tracing::warn!(
                provider = %provider.name(),
                "this node wrote as cluster {} before, the configuration says {}: what was written then is refused \
                 unless alsoAccept lists that cluster",
                last.cluster_id(), provider.settings.cluster,
            );
        }
        let disowned = stored.as_ref().is_some_and(|stored| stored.is_disowned);
        let resumable = stored
            .and_then(|stored| record_of(&stored.bytes))
            .map(|record| record.core().policy.clone())
            .filter(|policy| provider.is_of_configuration(policy));
        Self {
            machine: Machine::new(ledger, resumable, accept_reuse).under(provider.settings.outage),
            looked: provider.watch.now(),
            refreshed: 0,
            observed: None,
            provider,
            prepared: None,
            writing: None,
            activated: None,
            rehearsing: false,
            wipes: false,
            // What could be read is the ledger from now on.
            ledger_unsaved: damaged,
            started: Instant::now(),
            turns: Turns::default(),
            rest: Rest::default(),
            read_keys_looked: None,
            disowned,
            wrong: None,
            row: None,
        }
    }

    /// Observes until `stop`, and makes way for the successors that are asked for.
    pub async fn run(mut self, mut requests: Requests, stop: CancellationToken) {
        let mut wanted = false;
        loop {
            self.look().await;
            self.look_at_read_keys().await;
            let rest = match self.machine.candidate() {
                // Who wants to know what is new wants it confirmed, too.
                Some(_) if wanted => AT_MOST_EVERY,
                _ => self.rest.after(self.outcome(), chance()),
            };
            // What an outage policy ends, it ends on time.
            let rest = self.machine.outage_ends_in(self.now()).map_or(rest, |end| rest.min(end));
            let next = Instant::now() + rest;
            wanted = false;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(next) => break,
                    () = self.provider.look_is_wanted() => {
                        wanted = true;
                        break;
                    }
                    request = requests.next() => if self.prepare_successor(request).await { break },
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    /// What the last look came to.
    fn outcome(&self) -> Outcome {
        if self.provider.is_local() {
            Outcome::Local
        } else if self.machine.row(self.now()).state != State::Well {
            Outcome::Trouble
        } else if self.machine.trouble().is_some() {
            Outcome::Oddity
        } else if self.machine.candidate().is_some() {
            Outcome::News
        } else {
            Outcome::Well
        }
    }

    /// One observation with all that follows from it.
    pub async fn look(&mut self) {
        // What begins is told before what comes of it.
        self.note_state();
        let asked_for = self.provider.refreshes();
        // Once more at most: a root key that names another version each time must not hold up anybody.
        for _ in 0..2 {
            let event = match self.provider.observe().await {
                Ok(policy) => {
                    self.observed = Some(self.provider.watch.now());
                    Event::Observed(policy)
                }
                Err(failures) => Event::NotObserved(gravest(&failures)),
            };
            if !self.take_in(event).await {
                break;
            }
        }
        if let Some(kek) = self.kek_in_use() {
            self.probe(&kek).await;
        } else {
            self.probe_what_says_no().await;
        }
        if self.ledger_unsaved && !self.rehearsing {
            self.save_ledger().await;
        }
        if asked_for != self.refreshed && !self.rehearsing {
            // Who asks for a look means all of them, and is told that it has ended when it has.
            self.read_keys_looked = None;
            self.look_at_read_keys().await;
        }
        self.looked = self.provider.watch.now();
        self.refreshed = asked_for;
        self.publish();
    }

    /// What writes, or would if nothing forbade it.
    fn kek_in_use(&self) -> Option<Arc<WriteKek>> {
        let active = self.machine.active()?.key_id();
        // A renewed local KEK is in the standing only.
        let renewed = self.provider.standing().writes().cloned();
        [renewed, self.writing.clone()].into_iter().flatten().find(|kek| *kek.key_id() == active)
    }

    async fn probe(&mut self, kek: &WriteKek) {
        let opening = if self.provider.is_local() { Opening::Both } else { self.turns.next() };
        let Probed { record_opens, failures } = self.provider.keyholder.probe(kek, opening).await;
        if let Some(opens) = record_opens {
            let key_id = kek.key_id().clone();
            let event = if opens { Event::RecordOpened(key_id) } else { Event::RecordNotOpened(key_id) };
            self.take_in(event).await;
        }
        let result = if failures.is_empty() { Ok(()) } else { Err(gravest(&failures)) };
        self.take_in(Event::Probed(result)).await;
    }

    /// While nothing is active: whether a root key stays with its no.
    async fn probe_what_says_no(&mut self) {
        // A rehearsal is over before that can be known.
        let policy = self.machine.to_probe().filter(|_| !self.rehearsing && self.machine.active().is_none());
        let Some(policy) = policy.cloned() else { return };
        let failures = self.provider.keyholder.prove_all(&policy).await;
        let result = if failures.is_empty() { Ok(()) } else { Err(gravest(&failures)) };
        self.take_in(Event::Probed(result)).await;
    }

    /// One look at the root keys that only read. Nothing follows from it: it is for those who look from outside,
    /// before a read fails.
    ///
    /// One that somebody pays for is not looked at more often than those that write are while all is well, but when somebody
    /// asks for it.
    pub async fn look_at_read_keys(&mut self) {
        let keys = &self.provider.settings.read_only_keys;
        // A look that comes a little early is one of those.
        let remote = PROBE_EVERY.saturating_sub(OBSERVE_EVERY);
        let every = if keys.iter().any(|key| key.pace() == Pace::Remote) { remote } else { Duration::ZERO };
        let is_due = self.read_keys_looked.is_none_or(|looked| looked.elapsed() >= every);
        if !keys.is_empty() && is_due {
            self.provider.versions_of(keys).await;
            self.read_keys_looked = Some(Instant::now());
            self.show();
        }
    }

    /// Handles one event and its actions; says whether to observe again at once.
    async fn take_in(&mut self, event: Event) -> bool {
        let mut again = false;
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.note_owner(&event).await;
            for action in self.machine.handle(self.now(), event) {
                match action {
                    Action::ObserveAgain => again = true,
                    Action::Prepare(policy) => {
                        self.show();
                        events.extend(self.prepare(&policy).await);
                    }
                    Action::Activate(key_id) => self.activate(&key_id).await,
                    Action::WipeOpened => {
                        (self.writing, self.prepared) = (None, None);
                        // Nobody waits for a disk to be told so.
                        self.publish();
                        self.wipe().await;
                    }
                }
            }
        }
        // What was not wanted any more when it was ready.
        self.prepared = None;
        again
    }

    /// What a rehearsal would wipe is what serves now: that waits until it takes over.
    async fn wipe(&mut self) {
        self.wipes = self.rehearsing;
        if !self.rehearsing {
            self.provider.wipe().await;
        }
    }

    /// So that a later run, which may find no root key to ask, does not write with the record of another key.
    async fn note_owner(&mut self, event: &Event) {
        let is_disowned = match event {
            Event::RecordOpened(_) => false,
            Event::RecordNotOpened(_) => true,
            _ => return,
        };
        if self.rehearsing || self.disowned == is_disowned {
            return;
        }
        let _turn = self.turn_to_save().await;
        match self.provider.store.work(move |store| store.note_disowned(is_disowned)).await {
            Ok(()) => self.disowned = is_disowned,
            // The next look tries again.
            Err(problem) => {
                tracing::error!(provider = %self.provider.name(), %problem, "whose record it is can't be noted");
            }
        }
    }

    async fn prepare(&mut self, policy: &WritePolicy) -> Vec<Event> {
        let key_id = policy.key_id();
        self.prepared = None;
        let turn = self.turn_to_save().await;
        let begun = self.provider.opened.wipes();
        match self.provider.kek_for(policy).await {
            Ok((kek, origin)) => {
                self.prepared = Some(Prepared { kek, begun, _turn: turn });
                // That was noted of the record before.
                self.disowned &= origin != KekOrigin::Made;
                let opened = (origin == KekOrigin::Record).then(|| Event::RecordOpened(key_id.clone()));
                opened.into_iter().chain([Event::Prepared(key_id)]).collect()
            }
            Err(KekProblem::OtherKey) => vec![Event::RecordNotOpened(key_id)],
            Err(problem) => {
                let found = match &problem {
                    KekProblem::Root(failure) => trouble(failure),
                    other => Trouble { kind: TroubleKind::Local, message: other.to_string() },
                };
                vec![Event::NotPrepared(key_id, found)]
            }
        }
    }

    /// Among those who save a record; `None` if this one has its turn already.
    async fn turn_to_save(&self) -> Option<OwnedMutexGuard<()>> {
        let has_it = self.rehearsing || self.prepared.is_some();
        if has_it { None } else { Some(self.provider.renewal.clone().lock_owned().await) }
    }

    async fn activate(&mut self, key_id: &KeyId) {
        let Some(prepared) = self.prepared.take().filter(|it| it.kek.key_id() == key_id) else { return };
        let kek = prepared.kek.clone();
        let before = self.writing.replace(kek.clone()).map(|kek| kek.key_id().clone());
        if self.rehearsing {
            self.activated = Some((key_id.clone(), before));
        } else {
            self.provider.opened.keep_begun(&kek, prepared.begun);
            self.note_activation(key_id, before.as_ref()).await;
        }
        self.publish();
    }

    async fn note_activation(&mut self, key_id: &KeyId, before: Option<&KeyId>) {
        let before = before.map(KeyId::as_str);
        tracing::info!(provider = %self.provider.name(), %key_id, before, "this key id writes from now on");
        if self.machine.note_active(key_id, (self.provider.settings.clock)()) {
            self.save_ledger().await;
        }
    }

    /// The ledger is one of two guards (the machine in memory is the other): a full disk does not stop a
    /// rotation, and the file is tried again at each look.
    async fn save_ledger(&mut self) {
        let ledger = self.machine.ledger().clone();
        let saved = self.provider.store.work(move |store| store.save_ledger(&ledger)).await;
        self.ledger_unsaved = saved.is_err();
        if let Err(problem) = saved {
            tracing::error!(provider = %self.provider.name(), %problem, "the ledger of active key ids is not saved");
        }
    }

    fn publish(&mut self) {
        let standing = match (self.machine.standing(self.now()), &self.writing) {
            (Decided::Writing(key_id), Some(kek)) if *kek.key_id() == key_id => {
                Standing::Writing(kek.clone())
            }
            (Decided::Failing(key_id), Some(kek)) if *kek.key_id() == key_id => {
                let why = self.machine.trouble().map(|trouble| trouble.message.clone());
                Standing::Failing(kek.clone(), why.unwrap_or_default())
            }
            (Decided::Writing(_) | Decided::Failing(_), _) => {
                Standing::Refusing("the local KEK is being prepared".into())
            }
            (Decided::Refusing(why), _) => Standing::Refusing(explain(&why)),
        };
        self.note_what_is_wrong();
        self.note_state();
        self.show();
        // A renewed local KEK of the same policy stays.
        let before = self.provider.standing.rcu(|current| match (current.writes(), standing.writes()) {
            (Some(current), Some(new)) if current.key_id() == new.key_id() => standing.with(current.clone()),
            _ => standing.clone(),
        });
        self.retire(&before, &standing);
    }

    /// What wrote `before` and does not write `now` was told a moment ago.
    fn retire(&self, before: &Standing, now: &Standing) {
        self.provider.retired.drop_old();
        let key_id = |standing: &Standing| standing.writes().map(|kek| kek.key_id().clone());
        if let Some(kek) = before.writes()
            && key_id(before) != key_id(now)
        {
            self.provider.retired.put(kek.clone());
        }
    }

    /// For those who look from outside.
    fn show(&self) {
        let machine = &self.machine;
        let entries = machine.ledger().entries();
        let snapshot = Snapshot {
            looked: self.looked,
            refreshed: self.refreshed,
            observed: self.observed,
            candidate: machine.candidate().cloned().zip(machine.progress()),
            refused_reuse: machine.refused_reuse().cloned(),
            row: machine.row(self.now()),
            trouble: self.wrong.clone(),
            ledger: entries[entries.len().saturating_sub(LEDGER_ENTRIES)..].to_vec(),
            ledger_entries: entries.len(),
            ledger_unsaved: self.ledger_unsaved,
            root_keys: self.provider.watch.sightings(),
        };
        self.provider.snapshot.store(Arc::new(snapshot));
    }

    /// Each state is logged when it begins, as loud as the table says.
    fn note_state(&mut self) {
        let row = self.machine.row(self.now());
        if self.rehearsing || self.row.replace(row) == Some(row) {
            return;
        }
        let (provider, state) = (self.provider.name(), row.metric);
        match row.level {
            Level::Info => tracing::info!(%provider, state, "{}", row.log),
            Level::Warn => tracing::warn!(%provider, state, "{}", row.log),
            Level::Error => tracing::error!(%provider, state, "{}", row.log),
        }
    }

    /// Each trouble is logged when it begins, and its end.
    fn note_what_is_wrong(&mut self) {
        let reuse = self.machine.refused_reuse().map(|key_id| Trouble {
            kind: TroubleKind::Refused,
            message: explain(&Refusing::Reuse(key_id.clone())),
        });
        if self.rehearsing {
            return;
        }
        let wrong = reuse.or_else(|| self.machine.trouble().cloned());
        let said = self.wrong.as_ref().map(|wrong| &wrong.message);
        if wrong.as_ref().map(|wrong| &wrong.message) == said {
            return;
        }
        let provider = self.provider.name();
        match &wrong {
            Some(wrong) => tracing::warn!(%provider, "{}", wrong.message),
            None => tracing::info!(%provider, "root keys are as they should be again"),
        }
        let since = (self.provider.settings.clock)();
        self.wrong = wrong.map(|Trouble { kind, message }| Wrong { kind, message, since });
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

fn explain(why: &Refusing) -> String {
    match why {
        Refusing::NotReady(None) => "it is starting; ask again in a moment".into(),
        Refusing::NotReady(Some(trouble)) => trouble.message.clone(),
        Refusing::RootRefused(trouble) => {
            format!("its root key has refused to wrap for two minutes ({}); reads go on", trouble.message)
        }
        Refusing::Outage(trouble) => {
            format!(
                "a root key is out and the outage policy forbids to write ({}); reads go on",
                trouble.message
            )
        }
        Refusing::OtherKey(key_id) => format!(
            "the root keys of {key_id} do not open what this node wrote under it: a root key was made again, or restored, \
             under the same name. Bring the old one back, or raise `epoch` on all nodes to write with the new one"
        ),
        Refusing::Reuse(key_id) => format!(
            "key id {key_id} should write, but it was active before and another one since: an older key file, \
             configuration or pinned version was put back. Deliver the current one, or raise `epoch` on all nodes, or start with \
             --accept-reuse {key_id}"
        ),
    }
}
