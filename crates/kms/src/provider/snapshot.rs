//! What the observer knows, for those who look from outside.

use casemate_keys::{KeyId, WritePolicy};
use casemate_kms_state::outage::{self, Row, Rules, State};
use casemate_kms_state::{Entry, Progress, TroubleKind};

use super::watch::{Moment, Sighting};

/// How much of the ledger is shown.
pub(super) const LEDGER_ENTRIES: usize = 10;

/// One immutable picture, replaced whole after each look at the root keys.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the last look ended; before the first one, when the provider was made. Each call of a look has its deadline,
    /// so that this moves on unless the observer hangs.
    pub looked: Moment,
    /// How often a look had been asked for when that one began.
    pub refreshed: u64,
    /// When what should write was last found out.
    pub observed: Option<Moment>,
    /// What is on its way to write, and how far it is.
    pub candidate: Option<(WritePolicy, Progress)>,
    /// What should write and may not, because another key id was active since.
    pub refused_reuse: Option<KeyId>,
    /// What it follows of the table of outages.
    pub row: &'static Row,
    /// What is wrong, if anything.
    pub trouble: Option<Wrong>,
    /// The key ids that were active last on this node, oldest first.
    pub ledger: Vec<Entry>,
    /// How many there are in all.
    pub ledger_entries: usize,
    /// Whether the ledger on disk is behind.
    pub ledger_unsaved: bool,
    /// Each root key, in the order of the configuration.
    pub root_keys: Vec<Sighting>,
}

/// What is wrong, and since when it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What follows from it.
    pub kind: TroubleKind,
    /// What happened and what to do.
    pub message: String,
    /// Seconds since 1970.
    pub since: u64,
}

impl Snapshot {
    pub(super) fn before_the_first_look(now: Moment, root_keys: Vec<Sighting>) -> Self {
        Self {
            looked: now,
            refreshed: 0,
            observed: None,
            candidate: None,
            refused_reuse: None,
            row: outage::row(State::Starting, &Rules::default()),
            trouble: None,
            ledger: Vec::new(),
            ledger_entries: 0,
            ledger_unsaved: false,
            root_keys,
        }
    }
}
