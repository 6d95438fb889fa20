//! What an outage does: one table, which the machine follows and from which the page of the documentation is made.
//! What a kube-apiserver makes of each row stands beside it as [`Seen`]: the page prints it, and the lab brings a real one
//! into each row and compares.
//!
//! kube-apiserver's behaviour hangs on what Status answers (KEP-3299): with `ok` and the same key id nothing changes; with
//! another `healthz` it is unready, and writes go on for ever; with an error it is unready, and writes fail three minutes
//! after the last good Status. Reads are asked of the plugin in all three cases.

use std::time::Duration;

/// What the admin has chosen for outages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// While root keys can't be asked, or answer with what can't be.
    pub policy: Policy,
    /// Once a root key says no for good.
    pub on_refused: OnRefused,
}

/// How long writing goes on while a root key is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// As if nothing were, until the outage has lasted that long; without a time, for as long as it lasts.
    Coast {
        /// When writing ends.
        until: Option<Duration>,
    },
    /// Unready at once, and writing ends when the outage has lasted that long.
    FailAfter(Duration),
    /// Writing ends at once.
    FailClosed,
}

/// What happens to opened local KEKs once a root key says no for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRefused {
    /// They go on to serve reads.
    #[default]
    KeepReads,
    /// They are wiped.
    Wipe,
}

/// In which state a provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing is active yet.
    Starting,
    /// The last probe of the active write policy succeeded.
    Well,
    /// A root key is unreachable, throttled or corrupt, or says no and has not yet done so often and long enough.
    Outage,
    /// That has lasted longer than the policy allows.
    OutageEnded,
    /// The key service does not accept who we are: this says nothing about the root key.
    Credential,
    /// A root key says no: three times over two minutes at least, to a caller that it knows.
    Refused,
    /// A root key with the name of the old one does not open what the old one wrapped.
    OtherKey,
    /// All that could write was active before another key id.
    Reused,
}

/// One line of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The state it is about.
    pub state: State,
    /// Under which rules.
    pub when: When,
    /// What Status answers, and with it whether Encrypt writes.
    pub status: Reply,
    /// What happens to opened local KEKs.
    pub reads: Reads,
    /// The label `state` of the metric `casemate_kms_state`.
    pub metric: &'static str,
    /// How loud the log is when the state begins.
    pub level: Level,
    /// What the log says then, for people.
    pub log: &'static str,
}

/// Under which rules a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Under all.
    Always,
    /// Under [`Policy::Coast`].
    Coast,
    /// Under [`Policy::FailAfter`].
    FailAfter,
    /// Under [`Policy::FailClosed`].
    FailClosed,
    /// Under [`OnRefused::KeepReads`].
    KeepReads,
    /// Under [`OnRefused::Wipe`].
    Wipe,
}

/// What Status answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `healthz: ok` and the active key id; Encrypt writes.
    Ok,
    /// Another `healthz` and the active key id; Encrypt writes.
    NotOk,
    /// A gRPC error; Encrypt is refused.
    Error,
}

/// What happens to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Opened local KEKs serve on.
    GoOn,
    /// Opened local KEKs are wiped when the state begins: each has to be opened by its root key again.
    Wiped,
}

/// What a kube-apiserver does that was ready when the state began. It holds on to what it has in memory: its key for
/// three minutes since the last good Status, what it has read for a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether `/readyz` answers with ok.
    pub ready: bool,
    /// Whether it writes while the state is new.
    pub writes_at_once: bool,
    /// Whether it writes once the state has lasted for more than three minutes.
    pub writes_after_three_minutes: bool,
    /// Whether it reads objects whose key it has in memory.
    pub reads_from_memory: bool,
    /// Whether it reads others, for which it asks the plugin, under a local KEK that a root key had opened before the state
    /// began.
    pub reads_by_asking: bool,
}

/// How loud a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Info,
    /// Look at it.
    Warn,
    /// Nothing is written.
    Error,
}

/// Every state under all rules.
pub const TABLE: [Row; 11] = [
    Row {
        state: State::Starting,
        when: When::Always,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "starting",
        level: Level::Info,
        log: "nothing is active yet: root keys are looked at and a local KEK is made",
    },
    Row {
        state: State::Well,
        when: When::Always,
        status: Reply::Ok,
        reads: Reads::GoOn,
        metric: "well",
        level: Level::Info,
        log: "root keys are as they should be",
    },
    Row {
        state: State::Outage,
        when: When::Coast,
        status: Reply::Ok,
        reads: Reads::GoOn,
        metric: "outage",
        level: Level::Warn,
        log: "a root key is out: writing goes on with the local KEK in memory",
    },
    Row {
        state: State::Outage,
        when: When::FailAfter,
        status: Reply::NotOk,
        reads: Reads::GoOn,
        metric: "outage",
        level: Level::Warn,
        log: "a root key is out: unready, and writing goes on until the configured time ends",
    },
    Row {
        state: State::Outage,
        when: When::FailClosed,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "outage",
        level: Level::Error,
        log: "a root key is out: nothing is written until it is back",
    },
    Row {
        state: State::OutageEnded,
        when: When::Always,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "outage_ended",
        level: Level::Error,
        log: "a root key is out for longer than configured: nothing is written until it is back",
    },
    // Under all rules: an expired token must cost neither writes nor reads.
    Row {
        state: State::Credential,
        when: When::Always,
        status: Reply::Ok,
        reads: Reads::GoOn,
        metric: "credential",
        level: Level::Warn,
        log: "the key service does not accept our credential: renew it; writing goes on meanwhile",
    },
    Row {
        state: State::Refused,
        when: When::KeepReads,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "refused",
        level: Level::Error,
        log: "a root key has said no for two minutes: nothing is written; allow it again, or write with another",
    },
    Row {
        state: State::Refused,
        when: When::Wipe,
        status: Reply::Error,
        reads: Reads::Wiped,
        metric: "refused",
        level: Level::Error,
        log: "a root key has said no for two minutes: nothing is written and opened local KEKs are wiped",
    },
    Row {
        state: State::OtherKey,
        when: When::Always,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "other_key",
        level: Level::Error,
        log: "a root key of the same name is another key: nothing is written; bring the old one back, or raise `epoch` \
              on all nodes",
    },
    Row {
        state: State::Reused,
        when: When::Always,
        status: Reply::Error,
        reads: Reads::GoOn,
        metric: "reused",
        level: Level::Error,
        log: "the key id that should write was active before another one: deliver the current key, or raise `epoch` on \
              all nodes",
    },
];

/// The row of `state` under `rules`.
pub fn row(state: State, rules: &Rules) -> &'static Row {
    TABLE
        .iter()
        .find(|row| row.state == state && row.when.holds(rules))
        .expect("a test looks up every state under all rules")
}

impl Row {
    /// What a kube-apiserver does.
    pub const fn seen(&self) -> Seen {
        Seen {
            ready: matches!(self.status, Reply::Ok),
            writes_at_once: true,
            writes_after_three_minutes: !matches!(self.status, Reply::Error),
            reads_from_memory: true,
            // A process that starts has opened nothing yet.
            reads_by_asking: matches!(self.reads, Reads::GoOn) && !matches!(self.state, State::Starting),
        }
    }
}

impl Policy {
    /// How long an outage may last before writing ends; `None` without an end of its own.
    pub(crate) fn time(&self) -> Option<Duration> {
        match self {
            Self::Coast { until } => *until,
            Self::FailAfter(time) => Some(*time),
            Self::FailClosed => None,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::Coast { until: None }
    }
}

impl When {
    fn holds(self, rules: &Rules) -> bool {
        match self {
            Self::Always => true,
            Self::Coast => matches!(rules.policy, Policy::Coast { .. }),
            Self::FailAfter => matches!(rules.policy, Policy::FailAfter(_)),
            Self::FailClosed => rules.policy == Policy::FailClosed,
            Self::KeepReads => rules.on_refused == OnRefused::KeepReads,
            Self::Wipe => rules.on_refused == OnRefused::Wipe,
        }
    }
}

#[cfg(test)]
mod page;
