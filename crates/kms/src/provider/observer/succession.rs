//! A provider's configuration changes while it serves: its successor is made ready beside it, and takes its place only
//! when whoever asked says so. So several providers change together or not at all, and what can't write does not
//! replace what can.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::WritePolicy;
use casemate_kms_state::Refusing;
use casemate_recipients::Recipient;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Observer, explain, gravest};
use crate::provider::{Provider, Settings, Standing, Store};

/// How long anybody waits for a successor. Each of its calls and files has a deadline of its own, which is much shorter.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// Asks the observer of one provider for a successor.
#[derive(Clone, Debug)]
pub struct Succession(mpsc::Sender<Request>);

/// Where that observer hears of it.
#[derive(Debug)]
pub struct Requests(mpsc::Receiver<Request>);

pub(super) struct Request {
    settings: Settings,
    recipients: Vec<Recipient>,
    answer: oneshot::Sender<Result<Ready, NotReady>>,
}

/// A successor that waits for its turn. Dropped, it never was.
#[derive(Debug)]
pub struct Ready {
    provider: Arc<Provider>,
    /// Until it is noted.
    note: Option<oneshot::Sender<Noted>>,
    begin: oneshot::Sender<()>,
}

type Noted = oneshot::Sender<()>;

/// Why there is no successor; the provider goes on as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(String);

/// A way to ask one observer, and its end of it.
pub fn succession() -> (Succession, Requests) {
    let (asking, asked) = mpsc::channel(1);
    (Succession(asking), Requests(asked))
}

impl Succession {
    /// A successor with these settings, for the same state directory.
    ///
    /// # Errors
    /// [`NotReady`] if it would refuse to write while the provider writes (or after a restart), could not read what is
    /// written now, or would have no answer of a root key that answers now.
    pub async fn prepare(&self, settings: Settings, recipients: Vec<Recipient>) -> Result<Ready, NotReady> {
        let ended = || NotReady("its observer has ended".into());
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.0.send(Request { settings, recipients, answer }).await.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())?
        };
        timeout(READY_WITHIN, asked).await.unwrap_or_else(|_| {
            Err(NotReady(format!(
                "it was not ready within {} s: see what the log says of its root keys and of the state directory",
                READY_WITHIN.as_secs()
            )))
        })
    }
}

impl Requests {
    /// The next one; waits for ever if nobody can ask any more.
    pub(super) async fn next(&mut self) -> Request {
        match self.0.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Ready {
    /// The successor.
    pub fn provider(&self) -> &Arc<Provider> {
        &self.provider
    }

    /// Notes in the ledger what it will write under: before anybody is told, so that what wrote before does not come back
    /// whenever the process is killed. A ledger that can't be saved stops no change, as it stops no rotation.
    pub async fn note(&mut self) {
        let Some(note) = self.note.take() else { return };
        let (noted, done) = oneshot::channel();
        // An observer that is gone has ended with the process.
        if note.send(noted).is_ok() {
            let _ = done.await;
        }
    }

    /// It is what answers next; its observer goes on with it.
    pub fn begin(self) {
        self.provider.opened.retain_readable_by(&self.provider.settings.read_policy);
        // Only now: one that is tried again and again would push out what is read.
        if let Some(kek) = self.provider.standing().writes() {
            self.provider.opened.keep(kek);
        }
        // An observer that is gone has ended with the process.
        let _ = self.begin.send(());
    }
}

impl Observer {
    /// Makes a successor ready, and waits until it is wanted or not; says whether it took over.
    pub(super) async fn prepare_successor(&mut self, request: Request) -> bool {
        // Neither makes a record meanwhile.
        let _turn = self.provider.renewal.clone().lock_owned().await;
        let mut next = self.successor(request.settings, request.recipients);
        let ready = self.rehearse(&mut next).await;
        let ((note, noting), (begin, wanted)) = (oneshot::channel::<Noted>(), oneshot::channel());
        let answer = ready.map(|()| Ready { provider: next.provider.clone(), note: Some(note), begin });
        let is_ready = answer.is_ok();
        if request.answer.send(answer).is_ok() && is_ready && next.has_its_turn(noting, wanted).await {
            next.retire(&self.provider.standing(), &next.provider.standing());
            *self = next;
            if self.wipes {
                self.wipe().await;
            }
            true
        } else {
            self.undo(&next).await;
            false
        }
    }

    fn successor(&self, settings: Settings, recipients: Vec<Recipient>) -> Self {
        let provider = Arc::new(self.provider.successor(settings, recipients));
        let goes_on = self.machine.active().is_some_and(|active| provider.can_go_on_with(active));
        let machine = match self.machine.active() {
            Some(_) if goes_on => self.machine.clone(),
            Some(_) => self.machine.of_other_configuration(),
            None => self.machine.starting_under(|policy| provider.can_go_on_with(policy)),
        };
        if goes_on {
            provider.standing.store(self.provider.standing());
        }
        let machine = machine.under(provider.settings.outage);
        Self {
            provider,
            machine,
            prepared: None,
            writing: self.writing.clone(),
            activated: None,
            rehearsing: true,
            wipes: false,
            ledger_unsaved: self.ledger_unsaved,
            started: self.started,
            turns: self.turns,
            rest: self.rest,
            read_keys_looked: None,
            disowned: self.disowned,
            looked: self.looked,
            refreshed: self.refreshed,
            observed: self.observed,
            wrong: self.wrong.clone(),
            row: self.row,
        }
    }

    /// Whether `next` can take the place of this one.
    async fn rehearse(&self, next: &mut Self) -> Result<(), NotReady> {
        let lost = self.machine.active().filter(|active| !next.provider.reads(active));
        if let Some(active) = lost {
            let roots: Vec<_> = active.roots().iter().map(|root| root.lineage.as_str()).collect();
            return Err(NotReady(format!(
                "what is written now, under root key {}, could not be read any more; first write with another root key \
                 and keep this one under readKeys, migrate, then take it out",
                roots.join(", ")
            )));
        }
        self.keeps_answers(next).await?;
        self.keeps_opening(next).await?;
        if next.machine.active().is_some() {
            self.still_writes(next).await?;
            next.show();
            return Ok(());
        }
        next.look().await;
        match (&*self.provider.standing(), &*next.provider.standing()) {
            (Standing::Writing(_) | Standing::Failing(..), Standing::Refusing(why)) => {
                Err(NotReady(format!("it would not write: {why}")))
            }
            // What does not write loses nothing.
            _ => Ok(()),
        }
    }

    /// What answers now must answer then: at another path there may be no file. What does not answer now loses nothing,
    /// and keeps nobody from another change.
    async fn keeps_answers(&self, next: &Self) -> Result<(), NotReady> {
        for key in next.provider.settings.root_keys() {
            let mut now = self.provider.settings.root_keys();
            let Some(now) = now.find(|now| now.prefix().overlaps(key.prefix())) else { continue };
            if let Err(failure) = key.observe().await
                && now.observe().await.is_ok()
            {
                return Err(NotReady(format!("a root key answers now and would not any more: {failure}")));
            }
        }
        Ok(())
    }

    /// What is written now must open then: at another address there may be another key of that name.
    async fn keeps_opening(&self, next: &Self) -> Result<(), NotReady> {
        let Some(kek) = self.kek_in_use() else { return Ok(()) };
        match next.provider.keyholder.opens(&kek).await {
            Err(failure) if self.provider.keyholder.opens(&kek).await.is_ok() => Err(NotReady(format!(
                "what is written now could not be opened any more after a restart: {failure}"
            ))),
            _ => Ok(()),
        }
    }

    /// What goes on now must go on after a restart too, when nothing but the configuration says what writes.
    async fn still_writes(&self, next: &Self) -> Result<(), NotReady> {
        let refused = |why: String| Err(NotReady(format!("after a restart it would not write: {why}")));
        match next.provider.observe().await {
            Ok(policy) => {
                let key_id = policy.key_id();
                let is_news = self.machine.refused_reuse() != Some(&key_id);
                if is_news && next.machine.refuses(&key_id) {
                    return refused(explain(&Refusing::Reuse(key_id)));
                }
                Ok(())
            }
            Err(failures) if self.provider.observe().await.is_ok() => refused(gravest(&failures).message),
            Err(_) => Ok(()),
        }
    }

    /// Says whether it took over.
    async fn has_its_turn(
        &mut self,
        noting: oneshot::Receiver<Noted>,
        wanted: oneshot::Receiver<()>,
    ) -> bool {
        if let Ok(noted) = noting.await {
            self.note_activated().await;
            let _ = noted.send(());
        }
        if wanted.await.is_err() {
            return false;
        }
        self.note_activated().await;
        self.rehearsing = false;
        self.provider.store.forget_rehearsed();
        self.publish();
        true
    }

    async fn note_activated(&mut self) {
        // Without it a restart makes a new local KEK, and that is all.
        if let Err(problem) = self.provider.store.work(Store::adopt).await {
            tracing::warn!(provider = %self.provider.name(), %problem, "a restart will make a new local KEK");
        }
        if let Some((key_id, before)) = self.activated.take() {
            self.note_activation(&key_id, before.as_ref()).await;
        }
    }

    /// What `next` has left for a restart is not what writes.
    async fn undo(&mut self, next: &Self) {
        if next.machine.ledger() != self.machine.ledger() {
            self.save_ledger().await;
        }
        if let Err(problem) = next.provider.store.work(Store::take_back).await {
            tracing::warn!(provider = %self.provider.name(), %problem, "a restart will make a new local KEK");
        }
    }
}

impl Provider {
    /// Whether what wrote until now may go on under this configuration.
    fn can_go_on_with(&self, active: &WritePolicy) -> bool {
        self.is_of_configuration(active)
            && active.roots().iter().all(|root| self.settings.read_policy.may_ask(root).is_ok())
    }
}
