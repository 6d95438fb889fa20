//! What really happened to a node, whatever machine and ledger make of it; and the promises.

use super::super::*;
use super::node::{NOW, Node};
use super::service::{Wanted, id};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Truth {
    /// Key ids in the order in which they became active, since the ledger was lost.
    pub(super) history: Vec<Wanted>,
    /// What it saw last, and how often in a row since it started.
    seen: Option<(Wanted, u8)>,
    /// Whether its last look was answered with a no.
    was_refused: bool,
    /// What was probed last.
    probed: Option<Wanted>,
    /// How often the root key said no to these wraps since it last said yes, up to three.
    refusals: u8,
    /// What its last probe found, if it failed.
    failing: Option<TroubleKind>,
    /// Whether what was prepared last was opened, by whichever root key could be asked, and not made by all.
    pub(super) reopened: bool,
    /// Whether what is active was resumed so and not probed since.
    untried: bool,
    /// It was told that the root keys of these policies are others.
    pub(super) other_keys: Vec<Wanted>,
}

impl Truth {
    pub(super) fn of_new_process(&self) -> Self {
        Self { history: self.history.clone(), ..Self::default() }
    }

    pub(super) fn saw(&mut self, wanted: Wanted) {
        let before = self.seen.filter(|(seen, _)| *seen == wanted).map_or(0, |(_, times)| times);
        self.seen = Some((wanted, (before + 1).min(2)));
        self.was_refused = false;
    }

    pub(super) fn did_not_see(&mut self, kind: TroubleKind) {
        if kind == TroubleKind::Undecided {
            self.seen = self.seen.filter(|(_, times)| *times >= 2);
        }
        self.was_refused = kind == TroubleKind::Refused;
    }

    pub(super) fn probed(&mut self, wanted: Wanted, trouble: Option<&Trouble>) {
        if self.probed.replace(wanted) != Some(wanted) {
            self.refusals = 0;
        }
        self.failing = trouble.map(|trouble| trouble.kind);
        self.untried = false;
        match self.failing {
            Some(TroubleKind::Refused) => self.refusals = (self.refusals + 1).min(3),
            Some(_) => {}
            None => self.refusals = 0,
        }
    }

    pub(super) fn is_other_key(&mut self, policy: Wanted) {
        if !self.other_keys.contains(&policy) {
            self.other_keys.push(policy);
        }
    }

    pub(super) fn may_prepare(&self, wanted: Wanted) -> Result<(), String> {
        if self.seen == Some((wanted, 2)) {
            return Ok(());
        }
        if self.history.last() != Some(&wanted) {
            return Err(format!("{wanted:?} is prepared and was not seen twice: {:?}", self.seen));
        }
        if self.was_refused {
            return Err(format!("{wanted:?} is resumed although its root key says no"));
        }
        Ok(())
    }

    pub(super) fn may_stop(&self, what: &str) -> Result<(), String> {
        if self.refusals < 3 { Err(format!("{what} without three refusals")) } else { Ok(()) }
    }

    pub(super) fn activates(&mut self, wanted: Wanted) -> Result<(), String> {
        let is_resumed = self.history.last() == Some(&wanted);
        self.untried = is_resumed && self.reopened;
        if !is_resumed {
            if self.history.contains(&wanted) {
                return Err(format!("{wanted:?} writes and was active before another one"));
            }
            if self.seen != Some((wanted, 2)) {
                return Err(format!("{wanted:?} writes and was not seen twice: {:?}", self.seen));
            }
            self.history.push(wanted);
            (self.refusals, self.failing) = (0, None);
            self.other_keys.clear();
        }
        Ok(())
    }
}

impl Node {
    /// Whether it says, and rightly, why `wanted` does not write here.
    pub(super) fn says_why_not(&self, wanted: Wanted) -> bool {
        let (machine, truth) = (&self.machine, &self.truth);
        let superseded = truth.history.contains(&wanted) && truth.history.last() != Some(&wanted);
        let reuse = superseded && machine.refused_reuse() == Some(&id(wanted));
        reuse || truth.other_keys.iter().any(|other| machine.other_key() == Some(id(*other)))
    }

    pub(super) fn keeps_its_promises(&self) -> Result<(), String> {
        let (machine, truth) = (&self.machine, &self.truth);
        let named = match machine.standing(NOW) {
            Standing::Writing(key_id) | Standing::Failing(key_id) => Some(key_id),
            Standing::Refusing(_) => None,
        };
        if let Some(key_id) = &named {
            self.may_name(key_id)?;
        }
        let state = machine.row(NOW).state;
        match state {
            State::Refused => truth.may_stop("writes stop")?,
            State::Outage | State::OutageEnded => {
                if matches!(truth.failing, None | Some(TroubleKind::Credential)) {
                    return Err(format!("{state:?} although its last probe found {:?}", truth.failing));
                }
            }
            _ => {}
        }
        let is_credential = truth.failing == Some(TroubleKind::Credential) && truth.refusals == 0;
        if is_credential && machine.active().is_some() && machine.other_key().is_none() && named.is_none() {
            return Err("writes stop for a lost credential".into());
        }
        Ok(())
    }

    fn may_name(&self, key_id: &KeyId) -> Result<(), String> {
        let (machine, truth) = (&self.machine, &self.truth);
        let active = machine.active().map(WritePolicy::key_id);
        if self.writing.map(|kek| id(kek.policy)).as_ref() != Some(key_id) {
            return Err(format!("Status names {key_id} and there is no local KEK of it"));
        }
        if active.as_ref() != Some(key_id) || self.ledger.last() != Some(key_id) {
            return Err(format!("Status names {key_id}, active is {active:?}: two at once"));
        }
        if truth.other_keys.iter().any(|other| id(*other) == *key_id) {
            return Err(format!("Status names {key_id} although its root key is another one"));
        }
        if truth.refusals >= 3 {
            return Err(format!("Status names {key_id} although its root key said no three times"));
        }
        if truth.untried {
            return Err(format!("Status names {key_id}, which was resumed and not probed"));
        }
        Ok(())
    }
}
