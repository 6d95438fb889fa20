//! Two root keys, A and B, how they are, and what is wanted of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use casemate_keys::{Algorithm, Epoch, Root, Suite};

use super::super::*;

/// Some of the two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Keys(u8);

impl Keys {
    pub(super) const A: Self = Self(1);
    pub(super) const B: Self = Self(2);
    pub(super) const BOTH: Self = Self(3);
    pub(super) const NONE: Self = Self(0);

    pub(super) fn each(self) -> impl Iterator<Item = Self> {
        [Self::A, Self::B].into_iter().filter(move |key| self.and(*key) != Self::NONE)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["none", "A", "B", "A+B"][usize::from(self.0)])
    }
}

/// The write policy that configuration and labels ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub epoch: u8,
    pub version: u8,
    pub keys: Keys,
}

/// What the admin wants, as it is delivered to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub wanted: Wanted,
    /// `readKeys`, and those that write.
    pub reads: Keys,
}

/// How a root key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Health {
    Up,
    Unreachable,
    Credential,
    Refused,
    /// Well, and its label is on two versions.
    Undecided,
}

/// How both are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Service {
    pub a: Health,
    pub b: Health,
    /// How often A was made again under its name.
    pub born: u8,
}

impl Service {
    pub(super) fn well(born: u8) -> Self {
        Self { a: Health::Up, b: Health::Up, born }
    }

    pub(super) fn of(self, key: Keys) -> Health {
        if key == Keys::A { self.a } else { self.b }
    }

    /// What is said instead of the versions that should write.
    pub(super) fn not_seen(self, keys: Keys) -> Option<Trouble> {
        Trouble::gravest(keys.each().filter_map(|key| self.of(key).trouble()).map(trouble))
    }

    /// What is said to wraps and unwraps.
    pub(super) fn not_usable(self, keys: Keys) -> Option<Trouble> {
        let kinds = keys.each().filter_map(|key| self.of(key).trouble());
        Trouble::gravest(kinds.filter(|kind| *kind != TroubleKind::Undecided).map(trouble))
    }

    /// Those that wrap and open.
    pub(super) fn usable(self, keys: Keys) -> Keys {
        keys.each()
            .filter(|key| self.not_usable(*key).is_none())
            .fold(Keys::NONE, |all, key| Keys(all.0 | key.0))
    }
}

impl Health {
    fn trouble(self) -> Option<TroubleKind> {
        match self {
            Self::Up => None,
            Self::Unreachable => Some(TroubleKind::Unreachable),
            Self::Credential => Some(TroubleKind::Credential),
            Self::Refused => Some(TroubleKind::Refused),
            Self::Undecided => Some(TroubleKind::Undecided),
        }
    }
}

pub(super) fn trouble(kind: TroubleKind) -> Trouble {
    Trouble { kind, message: String::new() }
}

pub(super) fn policy(wanted: Wanted) -> WritePolicy {
    known(wanted).0
}

pub(super) fn id(wanted: Wanted) -> KeyId {
    known(wanted).1
}

/// Made once: the model asks a million times.
fn known(wanted: Wanted) -> (WritePolicy, KeyId) {
    thread_local!(static KNOWN: RefCell<HashMap<Wanted, (WritePolicy, KeyId)>> = RefCell::default());
    KNOWN.with_borrow_mut(|known| known.entry(wanted).or_insert_with(|| make(wanted)).clone())
}

fn make(wanted: Wanted) -> (WritePolicy, KeyId) {
    let root = |key| {
        let name = if key == Keys::A { "a" } else { "b" };
        let lineage = format!("transit:ns/mount/{name}/{}/1", wanted.version).parse().unwrap();
        Root { lineage, algorithm: Algorithm::TRANSIT }
    };
    let (epoch, roots) = (Epoch(wanted.epoch.into()), wanted.keys.each().map(root).collect());
    let policy = WritePolicy::new(Suite::One, "prod".parse().unwrap(), epoch, roots, vec![], None).unwrap();
    let key_id = policy.key_id();
    (policy, key_id)
}

pub(super) fn plain(policy: &WritePolicy) -> Wanted {
    let field = |root: &Root, index| root.lineage.as_str().split('/').nth(index).unwrap().to_owned();
    let key = |root| if field(root, 2) == "a" { Keys::A } else { Keys::B };
    Wanted {
        epoch: u8::try_from(policy.epoch().0).unwrap(),
        version: field(&policy.roots()[0], 3).parse().unwrap(),
        keys: policy.roots().iter().map(key).fold(Keys::NONE, |all, key| Keys(all.0 | key.0)),
    }
}
