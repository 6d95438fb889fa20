//! What keys were: a watch that begins where etcd was compacted.
//!
//! A value that was overwritten or deleted and not compacted away is what some change since the last compaction replaced;
//! and each change of a watch comes with what it replaced. So the watch alone shows all of the past, and nothing of it
//! has to be remembered.
use casemate_wire::etcd::event::EventType;
use casemate_wire::etcd::{Event, KeyValue, UNBOUNDED, WatchCreateRequest, WatchResponse};
use tokio::time::{Instant, sleep};

use super::client::Watching;
use super::pace::Pace;
use super::{Client, Error, PageFault, page};
use crate::classify::{Name, is_encrypted};
use crate::mvcc::{Standing, is_under};
use crate::survey::{Survey, Surveyor, Unseen};

/// What is known of the past.
pub(super) struct Past {
    /// Up to where etcd is compacted, if it was ever and shows it.
    pub(super) compacted: Option<u64>,
    /// Past values.
    pub(super) survey: Survey,
    /// How many encrypted ones there are outside of the prefix.
    pub(super) outside_encrypted: u64,
    /// What is not known.
    pub(super) unseen: Option<Unseen>,
}

/// How often to begin again, since etcd was compacted or a member went away.
const ATTEMPTS: u32 = 10;

/// What comes of one watch.
enum Outcome {
    Complete,
    /// Nothing before this revision is there any more.
    Compacted(i64),
    /// What a change replaced is missing: etcd was compacted meanwhile.
    Lost,
    /// It ended early.
    Ended(String),
}

/// All values that were overwritten or deleted up to `newest`.
pub(super) async fn look(client: &mut Client, prefix: &str, newest: i64, pace: &Pace) -> Result<Past, Error> {
    let (mut start, mut compacted) = (1, None);
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        // Then there is no past, and no change that the watch would end with.
        if start > newest || newest <= 1 {
            let survey = Surveyor::new(prefix).into_survey();
            return Ok(Past { compacted, survey, outside_encrypted: 0, unseen: None });
        }
        let create = WatchCreateRequest {
            key: UNBOUNDED.into(),
            range_end: UNBOUNDED.into(),
            start_revision: start,
            prev_kv: true,
            fragment: true,
        };
        let mut reader = Reader::new(prefix, start, newest);
        let outcome = match client.watch(create).await {
            Ok(watching) => reader.read(client, watching, pace).await?,
            Err(Error::Denied { .. }) => Outcome::Ended("this user may not watch all keys".to_owned()),
            Err(Error::Unanswered { failures }) => {
                why = failures.first().map(ToString::to_string).unwrap_or_default();
                client.turn();
                continue;
            }
            Err(error) => return Err(error),
        };
        match outcome {
            Outcome::Complete => {
                let mut survey = reader.surveyor.into_survey();
                survey.past = reader.past;
                let outside_encrypted = reader.outside_encrypted;
                return Ok(Past { compacted, survey, outside_encrypted, unseen: None });
            }
            Outcome::Compacted(revision) => {
                compacted = Some(revision.unsigned_abs());
                start = revision + 1;
            }
            Outcome::Lost => start = 1,
            Outcome::Ended(text) => {
                why = text;
                break;
            }
        }
    }
    if why.is_empty() {
        why = "etcd was compacted again and again meanwhile".to_owned();
    }
    let survey = Surveyor::new(prefix).into_survey();
    Ok(Past { compacted, survey, outside_encrypted: 0, unseen: Some(Unseen::Past { since: compacted, why }) })
}

/// Reads changes in their order.
struct Reader<'a> {
    prefix: &'a str,
    at: i64,
    newest: i64,
    surveyor: Surveyor,
    past: u64,
    outside_encrypted: u64,
}

impl<'a> Reader<'a> {
    fn new(prefix: &'a str, start: i64, newest: i64) -> Self {
        Self { prefix, at: start, newest, surveyor: Surveyor::new(prefix), past: 0, outside_encrypted: 0 }
    }

    async fn read(&mut self, client: &Client, mut watching: Watching, pace: &Pace) -> Result<Outcome, Error> {
        loop {
            let begun = Instant::now();
            let answer = match watching.next().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(Outcome::Ended("the watch gave no more".to_owned())),
                Err(status) => {
                    let text = format!("the watch broke with code {:?}", status.code());
                    return Ok(Outcome::Ended(text));
                }
            };
            if answer.compact_revision > 0 {
                return Ok(Outcome::Compacted(answer.compact_revision));
            }
            if answer.canceled {
                let text = answer.cancel_reason.escape_debug().to_string();
                return Ok(Outcome::Ended(format!("etcd ended the watch: {text}")));
            }
            let wrong = |fault| Error::Page { endpoint: client.endpoint().to_owned(), fault };
            if let Some(outcome) = self.take(&answer).map_err(wrong)? {
                return Ok(outcome);
            }
            let pause = pace.pause(bytes(&answer), begun.elapsed());
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }

    /// Counts what the changes of an answer replaced; an outcome if it is the last one.
    fn take(&mut self, answer: &WatchResponse) -> Result<Option<Outcome>, PageFault> {
        for event in &answer.events {
            let Some(pair) = &event.kv else { continue };
            let wrong = || PageFault::Change { key: shown(pair), revision: pair.mod_revision };
            if pair.mod_revision < self.at {
                return Err(wrong());
            }
            self.at = pair.mod_revision;
            if pair.mod_revision > self.newest {
                return Ok(Some(Outcome::Complete));
            }
            if !is_under(prefix(self.prefix), &pair.key) {
                let before = event.prev_kv.as_ref().is_some_and(|before| is_encrypted(&before.value));
                self.outside_encrypted += u64::from(before);
                continue;
            }
            match &event.prev_kv {
                Some(before) if before.key == pair.key && before.mod_revision < pair.mod_revision => {
                    self.surveyor.add(&page::item(before), Standing::Past);
                    self.past += 1;
                }
                Some(_) => return Err(wrong()),
                None if replaces(event, pair) => return Ok(Some(Outcome::Lost)),
                None => {}
            }
        }
        // A revision is in one answer, or in fragments of it.
        Ok((self.at >= self.newest && !answer.events.is_empty() && !answer.fragment)
            .then_some(Outcome::Complete))
    }
}

/// Whether there was something before it.
fn replaces(event: &Event, pair: &KeyValue) -> bool {
    event.r#type() == EventType::Delete || pair.version > 1
}

fn prefix(prefix: &str) -> &[u8] {
    prefix.strip_suffix('/').unwrap_or(prefix).as_bytes()
}

fn bytes(answer: &WatchResponse) -> u64 {
    let pairs = answer.events.iter().flat_map(|event| event.kv.iter().chain(&event.prev_kv));
    pairs.map(|pair| (pair.key.len() + pair.value.len()) as u64).sum()
}

fn shown(pair: &KeyValue) -> String {
    Name::new(&pair.key).to_string()
}
