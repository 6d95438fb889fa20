//! A root key that answers as a test tells it, and remembers when it was asked.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, Root, payload};
use casemate_keyservice::{Answer, Class, Failure, Pace, RootKey};
use tokio::time::Instant;
use zeroize::Zeroizing;

pub(crate) const CORE: Digest = [3; 32];
pub(crate) const PAYLOAD: [u8; payload::LEN] = [7; payload::LEN];
/// A wrap that opens.
pub(crate) const GOOD: &[u8] = b"good";

/// What it does when it is asked.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    Well,
    Fails(Failure),
    FailsAfter(Duration, Failure),
    Takes(Duration),
    Hangs,
}

#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    prefix: LineagePrefix,
    pace: Pace,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    script: Script,
    /// A version that is not there.
    lacks: Option<Lineage>,
    asked: Vec<Instant>,
    in_flight: usize,
    most_in_flight: usize,
}

impl Scripted {
    pub(crate) fn new(pace: Pace) -> Self {
        let state =
            State { script: Script::Well, lacks: None, asked: Vec::new(), in_flight: 0, most_in_flight: 0 };
        let prefix = LineagePrefix::new("exec", ["scripted"]).unwrap();
        Self { prefix, pace, state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn is(&self, script: Script) {
        self.state().script = script;
    }

    pub(crate) fn fails(&self, class: Class) {
        self.is(Script::Fails(failure(class)));
    }

    pub(crate) fn lacks(&self, version: Option<Lineage>) {
        self.state().lacks = version;
    }

    pub(crate) fn calls(&self) -> usize {
        self.state().asked.len()
    }

    /// When it was asked, and forgets it.
    pub(crate) fn take_asked(&self) -> Vec<Instant> {
        std::mem::take(&mut self.state().asked)
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.state().most_in_flight
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn answer(&self) -> Result<(), Failure> {
        let script = {
            let mut state = self.state();
            state.asked.push(Instant::now());
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
            state.script.clone()
        };
        let _landing = Landing(self);
        match script {
            Script::Well => Ok(()),
            Script::Fails(failure) => Err(failure),
            Script::FailsAfter(time, failure) => {
                tokio::time::sleep(time).await;
                Err(failure)
            }
            Script::Takes(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Script::Hangs => std::future::pending().await,
        }
    }
}

struct Landing<'a>(&'a Scripted);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
    }
}

pub(crate) fn root() -> Root {
    Root { lineage: "exec:scripted/1".parse().unwrap(), algorithm: Algorithm::EXEC }
}

pub(crate) fn failure(class: Class) -> Failure {
    Failure::new(class, "scripted", "write another script")
}

impl RootKey for Scripted {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(async { self.answer().await.map(|()| root()) })
    }

    fn wrap<'a>(&'a self, _: &'a Root, _: &'a Digest, _: &'a [u8; payload::LEN]) -> Answer<'a, Vec<u8>> {
        Box::pin(async { self.answer().await.map(|()| GOOD.to_vec()) })
    }

    fn unwrap<'a>(&'a self, root: &'a Root, _: &'a Digest, wrap: &'a [u8]) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(async move {
            self.answer().await?;
            if self.state().lacks.as_ref() == Some(&root.lineage) {
                return Err(Failure { missing: Some(root.lineage.clone()), ..failure(Class::Refused) });
            }
            if wrap == GOOD { Ok(PAYLOAD.to_vec().into()) } else { Err(failure(Class::NotOpened)) }
        })
    }

    fn binds_associated_data(&self, _: &Root) -> bool {
        true
    }
}
