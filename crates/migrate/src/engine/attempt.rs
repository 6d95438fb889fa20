//! One attempt to write one object.
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::pace::Sign;
use crate::source::Item;
use crate::targets::Target;
use crate::verdict::{Cause, Reply, Silence, Verdict, after_read, of_write};

/// An object, and how often it was tried.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) item: Item,
    /// How often it failed by itself.
    pub(super) tries: u32,
    /// How often others were quicker.
    pub(super) conflicts: u32,
    /// How often the answer to it was that the server is too busy.
    pub(super) waits: u32,
    /// How often that was so although the server served reads of it.
    pub(super) idle_waits: u32,
}

/// After so many waits, a read tells whether it is the server.
const WAITS: u32 = 2;

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) work: Work,
    pub(super) verdict: Verdict,
    /// Of [`Verdict::Wait`]: whether the server serves reads meanwhile. A webhook can say that it is too busy, too, and is not
    /// asked about reads.
    pub(super) is_served: bool,
    /// Whether a server wrote it.
    pub(super) is_written: bool,
    pub(super) signs: Vec<Sign>,
}

impl Work {
    pub(super) fn new(item: Item) -> Self {
        Self { item, tries: 0, conflicts: 0, waits: 0, idle_waits: 0 }
    }

    /// Writes it; where an answer leaves it open what happened, a read tells.
    pub(super) async fn attempt(mut self, api: Api, target: Target) -> Outcome {
        let mut signs = Vec::new();
        let Item { namespace, name, uid, version, stored, .. } = &self.item;
        let (namespace, stored) = (namespace.as_deref(), stored.as_deref());
        let mut is_written = false;
        let (cause, version) = match version {
            Some(version) => {
                let begun = Instant::now();
                let answer = api.write(&target, namespace, name, uid.as_deref(), version).await;
                let (answer, object) = split(answer);
                signs.push(sign(&answer, begun.elapsed()));
                match of_write(&answer) {
                    Verdict::Ask(cause) => (cause, Some(version.clone())),
                    verdict => {
                        is_written = object.is_some_and(|object| object.resource_version != *version);
                        let is_wait = matches!(verdict, Verdict::Wait { .. }) && answer.is_ok();
                        let is_served = is_wait && self.waits >= WAITS && {
                            let (answer, _) = split(api.read(&target, namespace, name).await);
                            of_write(&answer) == Verdict::Done
                        };
                        return Outcome { work: self, verdict, is_served, is_written, signs };
                    }
                }
            }
            // As one that changed since it was seen.
            None => (Cause::Refused { code: 409, reason: String::new() }, None),
        };
        let begun = Instant::now();
        let (answer, object) = split(api.read(&target, namespace, name).await);
        signs.push(sign(&answer, begun.elapsed()));
        let found = object.as_ref().map(|object| &object.resource_version);
        let verdict = after_read(&answer, found != version.as_ref(), cause, stored);
        if let (Verdict::Changed, Some(object)) = (&verdict, object) {
            self.item.uid = Some(object.uid).filter(|uid| !uid.is_empty());
            self.item.version = Some(object.resource_version);
        }
        Outcome { work: self, verdict, is_served: false, is_written, signs }
    }
}

fn split<T>(answer: Result<(Reply, Option<T>), Silence>) -> (Result<Reply, Silence>, Option<T>) {
    match answer {
        Ok((reply, object)) => (Ok(reply), object),
        Err(silence) => (Err(silence), None),
    }
}

fn sign(answer: &Result<Reply, Silence>, took: Duration) -> Sign {
    match answer {
        Ok(reply) if reply.code == 429 => Sign::Throttled { after: reply.after },
        Ok(reply) if [502, 503].contains(&reply.code) => Sign::Unreached,
        Err(Silence::Connection) => Sign::Unreached,
        _ => Sign::Answered(took),
    }
}
