//! Three nodes in all interleavings: what they see, restarts, lost ledgers, failures, keys that are activated, rolled back
//! and made again, and a move from one root key to another. The machine under test is the real one; node and world around
//! it are as small as they can be.
//!
//! * [`service`]: two root keys, how they are and what is wanted of them.
//! * [`node`]: one node, and what it is told; [`truth`]: what must hold for it after each step.
//! * [`plan`]: the steps of an admin who moves from one root key to another.
//! * [`world`]: nodes, the admin and the key service; all that can happen, breadth first.
//!
//! Nodes meet only in the world, so that a node's step is computed once and looked up ever after: a node is a number.
//! That nodes agree in the end is stated of every single state, by a fault-free schedule that starts there: a search for
//! cycles would be another program, and one that misses some proves nothing. In the same way it is stated of every state
//! of a node that what writes goes on after a restart, whatever its root keys answer then.
#![allow(clippy::unwrap_used)]

mod node;
mod plan;
mod service;
mod truth;
mod world;

use std::time::Instant;

use node::{Mutation, Setup};
use plan::Order;
use world::{Bounds, Explored, Model};

use crate::outage::{OnRefused, Policy, Rules};

const TWO_MINUTES: std::time::Duration = std::time::Duration::from_secs(120);
/// Unready, then an error, and reads wiped: every kind of answer.
const STRICT: Rules = Rules { policy: Policy::FailAfter(TWO_MINUTES), on_refused: OnRefused::Wipe };
/// What is written goes on for as long as anything lets it.
const LENIENT: Rules = Rules { policy: Policy::Coast { until: None }, on_refused: OnRefused::KeepReads };
const CLOSED: Rules = Rules { policy: Policy::FailClosed, on_refused: OnRefused::Wipe };
/// For what one node finds by itself.
const ONE: Bounds = Bounds::new(1, 2, 1);
/// `./dev test model-deep`
const DEEP: bool = cfg!(feature = "model-deep");

#[test]
fn three_nodes_keep_every_promise_in_all_interleavings() {
    let Explored { states, .. } = explored(STRICT, Bounds::new(3, 1, 1));
    assert!(states > 500_000, "only {states} states: what is not reached is not checked");
    explored(STRICT, Bounds::new(3, 2, 0));
    if DEEP {
        explored(STRICT, Bounds::new(2, 2, 1));
        explored(LENIENT, Bounds::new(3, 1, 1).redundant());
    }
}

#[test]
fn one_node_keeps_every_promise_for_longer_under_all_rules() {
    let policies = [
        Policy::Coast { until: None },
        Policy::Coast { until: Some(TWO_MINUTES) },
        Policy::FailAfter(TWO_MINUTES),
        Policy::FailClosed,
    ];
    for policy in policies {
        for on_refused in [OnRefused::KeepReads, OnRefused::Wipe] {
            let Explored { states, .. } = explored(Rules { policy, on_refused }, ONE);
            assert!(states > 5_000, "only {states} states");
        }
    }
    explored(STRICT, if DEEP { Bounds::new(1, 3, 2) } else { Bounds::new(1, 2, 2) });
}

#[test]
fn one_node_with_two_root_keys_keeps_every_promise() {
    for rules in [STRICT, LENIENT, CLOSED] {
        let Explored { states, .. } = explored(rules, Bounds::new(1, 1, 2).redundant());
        assert!(states > 10_000, "only {states} states");
    }
}

#[test]
fn who_waits_for_all_nodes_moves_to_another_root_key_and_everything_is_read() {
    let careful = |nodes, faults| Bounds::new(nodes, 0, faults).moving(Order::Careful);
    for (rules, bounds) in [(STRICT, careful(3, 0)), (LENIENT, careful(2, 1))] {
        let Explored { states, lacking } = explored(rules, bounds);
        assert!(states > 1_000 && lacking == 0, "{states} states, {lacking} lacking");
    }
    if DEEP {
        explored(STRICT, careful(3, 1));
    }
}

#[test]
fn who_does_not_wait_gets_a_report_that_heals() {
    let hasty = |nodes, faults| Bounds::new(nodes, 0, faults).moving(Order::Hasty);
    for (rules, bounds) in [(STRICT, hasty(2, 0)), (LENIENT, hasty(2, 1))] {
        let Explored { states, lacking } = explored(rules, bounds);
        assert!(states > 1_000 && lacking > 100, "{states} states, {lacking} lacking");
    }
    if DEEP {
        explored(STRICT, hasty(3, 0));
    }
}

fn explored(rules: Rules, bounds: Bounds) -> Explored {
    let started = Instant::now();
    let mut model = Model::new(Setup { rules, cache: true, mutation: Mutation::None });
    let explored = model.explore(bounds).unwrap_or_else(|found| panic!("{rules:?}: {found}"));
    let (nodes, took) = (model.nodes(), started.elapsed());
    println!("{bounds:?}, {rules:?}: {explored:?}, {nodes} states of a node, {took:.1?}");
    explored
}

#[test]
fn each_planted_fault_is_found() {
    let two_keys = Bounds::new(1, 0, 2).redundant();
    let moving = Bounds::new(2, 0, 1).moving(Order::Careful);
    let cases = [
        (Mutation::OneSighting, STRICT, ONE, "was not seen twice"),
        (Mutation::MissingIsAValue, STRICT, ONE, "was not seen twice"),
        (Mutation::UndecidedIsAValue, STRICT, ONE, "was not seen twice"),
        (Mutation::UndecidedIsAnOutage, STRICT, ONE, "Outage although its last probe"),
        (Mutation::WipeOnExpiredToken, STRICT, ONE, "Outage although its last probe"),
        (Mutation::EtcdMovesTheBreaker, STRICT, ONE, "without three refusals"),
        (Mutation::RefusedLookIsAProbe, STRICT, ONE, "Outage although its last probe"),
        (Mutation::LedgerRefusesForEver, STRICT, ONE, "a calm schedule ends"),
        (Mutation::OwnEpoch, STRICT, ONE, "a calm schedule ends"),
        (Mutation::ReturningKeyId, STRICT, ONE, "was active before another one"),
        (Mutation::NamedBeforeItWrites, STRICT, ONE, "no local KEK of it"),
        (Mutation::OtherKeyIsRemade, STRICT, ONE, "under another key"),
        (Mutation::ProbeHealsOtherKey, STRICT, ONE, "although its root key is another one"),
        (Mutation::OneOpensForBoth, LENIENT, two_keys, "although its root key is another one"),
        (Mutation::NeverResumes, STRICT, ONE, "goes on after a restart"),
        (Mutation::ResumesAnother, STRICT, Bounds::new(1, 2, 2), "was not seen twice"),
        (Mutation::ResumesUnderRefused, STRICT, Bounds::new(1, 0, 2), "although its root key says no"),
        (Mutation::ResumesOtherKey, LENIENT, two_keys, "although its root key is another one"),
        (Mutation::ResumesWiped, STRICT, two_keys, "said no three times"),
        (Mutation::OnlyTheActiveIsProbed, STRICT, ONE, "outlives a root key's no"),
        (Mutation::OkBeforeItIsProbed, STRICT, ONE, "resumed and not probed"),
        (Mutation::OneWrapIsMissing, LENIENT, moving, "can't read"),
        (Mutation::WritesBeforeReaders, STRICT, moving, "can't read"),
    ];
    for (mutation, rules, bounds, expected) in cases {
        let mut model = Model::new(Setup { rules, cache: true, mutation });
        let Err(found) = model.explore(bounds) else { panic!("{mutation:?} was not found") };
        println!("{mutation:?}: {found}\n");
        assert!(found.contains(expected), "{mutation:?} was found as something else: {found}");
    }
}
