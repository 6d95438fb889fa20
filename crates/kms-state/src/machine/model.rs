//! Three nodes in all interleavings: what they see, restarts, lost ledgers, failures, keys that are activated, rolled back
//! and made again. The machine under test is the real one; node and world around it are as small as they can be.
//!
//! * [`node`]: one node, what it is told and what must hold for it after each step.
//! * [`world`]: three of them, the admin and the key service; all that can happen, breadth first.
//!
//! Nodes meet only in the world, so that a node's step is computed once and looked up ever after: a node is a number.
//! That nodes agree in the end is stated of every single state, by a fault-free schedule that starts there: a search for
//! cycles would be another program, and one that misses some proves nothing.
#![allow(clippy::unwrap_used)]

mod node;
mod world;

use std::time::Instant;

use node::Mutation;
use world::{Bounds, Model};

use crate::outage::{OnRefused, Policy, Rules};

const TWO_MINUTES: std::time::Duration = std::time::Duration::from_secs(120);
/// Unready, then an error, and reads wiped: every kind of answer.
const STRICT: Rules = Rules { policy: Policy::FailAfter(TWO_MINUTES), on_refused: OnRefused::Wipe };
/// For what one node finds by itself.
const ONE: Bounds = Bounds::new(1, 2, 1);
/// `./dev test model-deep`
const DEEP: bool = cfg!(feature = "model-deep");

#[test]
fn three_nodes_keep_every_promise_in_all_interleavings() {
    let states = explored(STRICT, Bounds::new(3, 1, 1)) + explored(STRICT, Bounds::new(3, 2, 0));
    assert!(states > 500_000, "only {states} states: what is not reached is not checked");
    if DEEP {
        explored(STRICT, Bounds::new(2, 2, 1));
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
            let states = explored(Rules { policy, on_refused }, ONE);
            assert!(states > 5_000, "only {states} states");
        }
    }
    explored(STRICT, if DEEP { Bounds::new(1, 3, 2) } else { Bounds::new(1, 2, 2) });
}

fn explored(rules: Rules, bounds: Bounds) -> usize {
    let started = Instant::now();
    let mut model = Model::new(rules, Mutation::None);
    let states = model.explore(bounds).unwrap_or_else(|found| panic!("{rules:?}: {found}"));
    let (nodes, took) = (model.nodes(), started.elapsed());
    println!("{bounds:?}, {rules:?}: {states} states, {nodes} of a node, {took:.1?}");
    states
}

#[test]
fn each_planted_fault_is_found() {
    let cases = [
        (Mutation::OneSighting, "was not seen twice"),
        (Mutation::MissingIsAValue, "was not seen twice"),
        (Mutation::WipeOnExpiredToken, "without three refusals"),
        (Mutation::EtcdMovesTheBreaker, "without three refusals"),
        (Mutation::LedgerRefusesForEver, "a calm schedule ends"),
        (Mutation::OwnEpoch, "a calm schedule ends"),
        (Mutation::ReturningKeyId, "was active before another one"),
        (Mutation::NamedBeforeItWrites, "no local KEK of it"),
        (Mutation::OtherKeyIsRemade, "under another key"),
        (Mutation::ProbeHealsOtherKey, "although its root key is another one"),
    ];
    for (mutation, expected) in cases {
        let mut model = Model::new(STRICT, mutation);
        let found = model.explore(ONE).expect_err(&format!("{mutation:?} was not found"));
        println!("{mutation:?}: {found}\n");
        assert!(found.contains(expected), "{mutation:?} was found as something else: {found}");
    }
}
