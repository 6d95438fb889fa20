//! A stand-in for a key service that does what a test tells it to: no real one fails on request.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, ReadRule, Root, gcm, payload};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Answer, Class, Failure, Pace, RootKey};
use tokio::sync::watch;
use zeroize::Zeroizing;

/// What the failures of the double say: a test finds it in the error that a client gets.
pub(crate) const CAUSE: &str = "the double was told to fail";
pub(crate) const REMEDY: &str = "tell it to work again";

/// A scripted root key. It counts every call.
#[derive(Debug)]
pub(crate) struct RootKeyDouble {
    prefix: LineagePrefix,
    name: String,
    algorithm: Algorithm,
    script: Mutex<Script>,
    gate: watch::Sender<bool>,
    calls: [AtomicU64; 3],
}

#[derive(Clone, Debug)]
struct Script {
    version: u32,
    delay: Duration,
    fails: Option<Class>,
    lie: Option<Lie>,
    born: u8,
    pace: Pace,
}

/// How it is wrong without saying so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Unwraps to 64 other bytes.
    OtherPayload,
    /// Unwraps to one byte less.
    ShortPayload,
    /// Binds no associated data, though it says it does.
    IgnoresAssociatedData,
    /// Opens with the right associated data, and has no answer with any other.
    SilentOnOtherData,
    /// Makes wraps of this length, which it opens all the same.
    WrapOf(usize),
    /// Names another version each time it is asked which one writes.
    Flaps,
}

/// Calls since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) observe: u64,
    pub(crate) wrap: u64,
    pub(crate) unwrap: u64,
}

impl RootKeyDouble {
    /// The double `name`, at version 1. The same name and version always wraps under the same secret.
    pub(crate) fn new(name: &str, algorithm: Algorithm) -> Self {
        let script =
            Script { version: 1, delay: Duration::ZERO, fails: None, lie: None, born: 0, pace: Pace::Remote };
        Self {
            prefix: LineagePrefix::new("exec", [name]).unwrap(),
            name: name.to_owned(),
            algorithm,
            script: Mutex::new(script),
            gate: watch::Sender::new(true),
            calls: Default::default(),
        }
    }

    /// As keys in a token are: these versions are all there is, since the configuration lists them.
    pub(crate) fn listing(self, versions: &[u32]) -> Self {
        let lineages = versions.iter().map(|version| self.root_of(*version).lineage);
        Self { prefix: LineagePrefix::one_of(lineages), ..self }
    }

    pub(crate) fn version_writes(&self, version: u32) {
        self.script().version = version;
    }

    pub(crate) fn is_slow(&self, delay: Duration) {
        self.script().delay = delay;
    }

    pub(crate) fn fails(&self, class: Option<Class>) {
        self.script().fails = class;
    }

    pub(crate) fn lies(&self, lie: Option<Lie>) {
        self.script().lie = lie;
    }

    /// Nobody pays for its calls.
    pub(crate) fn is_local(&self) {
        self.script().pace = Pace::Local;
    }

    /// Somebody has made it again under its name (or has brought the first one back, 0): nothing tells them apart but what
    /// they open.
    pub(crate) fn is_made_again(&self, born: u8) {
        self.script().born = born;
    }

    /// While closed, calls to wrap and unwrap are counted and wait.
    pub(crate) fn open_gate(&self, open: bool) {
        self.gate.send_replace(open);
    }

    pub(crate) fn calls(&self) -> Calls {
        let [observe, wrap, unwrap] = [0, 1, 2].map(|index: usize| self.calls[index].load(Ordering::SeqCst));
        Calls { observe, wrap, unwrap }
    }

    /// What it writes as now.
    pub(crate) fn root(&self) -> Root {
        self.root_of(self.script().version)
    }

    pub(crate) fn rule(&self) -> ReadRule {
        ReadRule { key: self.prefix.clone(), algorithms: [self.algorithm].into(), min_version: None }
    }

    /// A wrap as this key makes them, for records that nobody should have made.
    pub(crate) fn wrap_of(&self, root: &Root, core: &Digest, payload: &[u8; payload::LEN]) -> Vec<u8> {
        let born = self.script().born;
        gcm::seal(&secret(root, born), &self.bound_data(core), payload)
    }

    fn root_of(&self, version: u32) -> Root {
        let fields = [self.name.clone(), version.to_string()];
        Root { lineage: Lineage::new("exec", fields).unwrap(), algorithm: self.algorithm }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn bound_data(&self, core: &Digest) -> Vec<u8> {
        let binds = self.says_it_binds() && self.script().lie != Some(Lie::IgnoresAssociatedData);
        if binds { payload::associated_data(core) } else { Vec::new() }
    }

    fn says_it_binds(&self) -> bool {
        !self.algorithm.is_asymmetric()
    }

    async fn answer(&self, call: usize) -> Result<Script, Failure> {
        self.calls[call].fetch_add(1, Ordering::SeqCst);
        let script = self.script().clone();
        if call > 0 {
            self.gate.subscribe().wait_for(|open| *open).await.unwrap();
        }
        if !script.delay.is_zero() {
            tokio::time::sleep(script.delay).await;
        }
        match script.fails {
            Some(class) => Err(Failure::new(class, CAUSE, REMEDY)),
            None => Ok(script),
        }
    }
}

/// Of a lineage, so that two doubles of the same name share their keys, as two nodes do.
fn secret(root: &Root, born: u8) -> Digest {
    casemate_keys::names::sha256(&[root.lineage.as_str().as_bytes(), &[born]].concat())
}

/// The double as a provider holds it. The test goes on to tell it what to do.
pub(crate) fn guarded(double: &Arc<RootKeyDouble>) -> Arc<Guarded> {
    Guarded::around(Box::new(Shared(double.clone())))
}

/// What a provider and a test have both.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<RootKeyDouble>);

impl Deref for Shared {
    type Target = RootKeyDouble;

    fn deref(&self) -> &RootKeyDouble {
        &self.0
    }
}

impl RootKey for Shared {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn pace(&self) -> Pace {
        self.script().pace
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(async move {
            let script = self.answer(0).await?;
            if script.lie == Some(Lie::Flaps) {
                assert!(self.calls().observe < 1000, "it is asked without end");
                self.script().version += 1;
            }
            Ok(self.root_of(script.version))
        })
    }

    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        Box::pin(async move {
            let script = self.answer(1).await?;
            let mut wrap = self.wrap_of(root, core, payload);
            if let Some(Lie::WrapOf(length)) = script.lie {
                wrap.resize(length, 0);
            }
            Ok(wrap)
        })
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(async move {
            let script = self.answer(2).await?;
            let wrap = match script.lie {
                Some(Lie::WrapOf(_)) => &wrap[..payload::LEN + gcm::OVERHEAD],
                _ => wrap,
            };
            let opened = gcm::open(&secret(root, script.born), &self.bound_data(core), wrap);
            match (opened, script.lie) {
                (Ok(mut payload), Some(Lie::OtherPayload)) => {
                    payload[0] ^= 1;
                    Ok(payload)
                }
                (Ok(mut payload), Some(Lie::ShortPayload)) => {
                    payload.pop();
                    Ok(payload)
                }
                (Ok(payload), _) => Ok(payload),
                (Err(_), Some(Lie::SilentOnOtherData)) => {
                    Err(Failure::new(Class::Unreachable, CAUSE, REMEDY))
                }
                (Err(error), _) => Err(Failure::new(Class::NotOpened, error.to_string(), REMEDY)),
            }
        })
    }

    fn binds_associated_data(&self, _: &Root) -> bool {
        self.says_it_binds()
    }
}
