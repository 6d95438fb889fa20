//! Which key writes, and what Status may say: decisions without I/O, clock or async.
//!
//! The shell (`casemate-kms`) observes root keys and feeds what it saw into a [`Machine`]; the machine answers
//! with [`Action`]s to carry out and with its [`Standing`]. Time comes in as [`Millis`] of any monotonic clock.
//!
//! What it promises:
//! * A write policy becomes active only after it was seen twice and a local KEK was wrapped and opened again
//!   under it (*proposed → confirmed → active*); or at once, if it was the last active one before a restart. That one
//!   needs not even be seen while root keys can't be asked; it writes once a probe has told which row of the table holds.
//! * A key id that was active before another one is never active again by itself: the [`Ledger`] refuses.
//! * An observation that is missing or failed changes no key: it is trouble to report, not a value. So is one that fits
//!   no version or several.
//! * [`Standing`] never names a key id under which Encrypt would not write.
//! * Only probes with a payload of the prober's own move an outage: of the active write policy or, while none is active
//!   and a root key says no, of the one that was ([`Machine::to_probe`]). No event tells what bytes from etcd did: whoever
//!   writes etcd could stop all writes.
//! * A root key that no longer opens this node's record is another key: nothing is written under that policy any more,
//!   however well it wraps, until every root key opens the record.
//!
//! Map: [`Machine`] decides, [`outage::TABLE`] says what follows from a state, [`Ledger`] remembers, [`Trouble`] is what
//! can be wrong.
//!
//! `machine/model` goes through all interleavings on three nodes, and finds each of a list of planted faults.

mod ledger;
mod machine;
pub mod outage;

pub use ledger::{Entry, Ledger, LedgerDamage};
pub use machine::{Action, Event, Machine, Progress, Refusing, Standing};

/// Milliseconds of a monotonic clock with any origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// What went wrong with a root key, or with making a local KEK under it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trouble {
    /// What may be concluded from it.
    pub kind: TroubleKind,
    /// For people: what happened and what to do.
    pub message: String,
}

/// The classes of trouble that lead to different decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TroubleKind {
    /// No answer.
    Unreachable,
    /// It asks to slow down.
    Throttled,
    /// It does not accept who we are. Nothing is known about the root key.
    Credential,
    /// It knows us and says no. Repeated over two minutes, it stops new writes.
    Refused,
    /// It is well, and does not say which of its versions is to write. That is no outage: what was confirmed last goes on.
    Undecided,
    /// It answered with something that can't be.
    Corrupt,
    /// This node could not keep what a restart needs: no root key is to blame.
    Local,
}

impl Trouble {
    /// Which of what several root keys have counts for all of them: what leads furthest, and of equals the first.
    pub fn gravest(troubles: impl IntoIterator<Item = Self>) -> Option<Self> {
        troubles
            .into_iter()
            .min_by_key(|trouble| TroubleKind::GRAVEST_FIRST.iter().position(|kind| *kind == trouble.kind))
    }
}

impl TroubleKind {
    /// A lost credential must not hide an outage, nor an outage that another root key says no.
    const GRAVEST_FIRST: [Self; 7] = [
        Self::Refused,
        Self::Corrupt,
        Self::Unreachable,
        Self::Throttled,
        Self::Credential,
        Self::Undecided,
        Self::Local,
    ];

    /// Whether, in place of an observation, it leaves open that what was active last should write.
    fn says_nothing_of_the_last_one(self) -> bool {
        match self {
            Self::Unreachable | Self::Throttled | Self::Credential | Self::Undecided => true,
            Self::Refused | Self::Corrupt | Self::Local => false,
        }
    }

    /// Whether, in place of a probe's success, it says that something is wrong with a root key or the way to it.
    fn is_of_root_keys(self) -> bool {
        !matches!(self, Self::Undecided | Self::Local)
    }
}
