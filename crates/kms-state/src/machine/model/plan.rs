//! How an admin moves from root key A to B: the steps, and what is waited for before each.

use super::node::{Kek, Node};
use super::service::{Config, Keys, Wanted};

/// Of A, once it is destroyed, nothing opens any more.
pub(super) const DESTROYED: u8 = u8::MAX;
/// What is written with, and what else is read with.
const STEPS: [(Keys, Keys); 5] = [
    (Keys::A, Keys::A),
    (Keys::A, Keys::BOTH),
    (Keys::BOTH, Keys::BOTH),
    (Keys::B, Keys::BOTH),
    (Keys::B, Keys::B),
];

/// Who moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Who waits for all nodes before each step.
    Careful,
    /// Who waits for none, and only does not destroy what the census says is needed.
    Hasty,
}

/// The configuration of a step.
pub(super) fn config(step: u8) -> Config {
    let (keys, reads) = STEPS[usize::from(step)];
    Config { wanted: Wanted { epoch: 0, version: 1, keys }, reads }
}

/// Whether the next step may follow on this one.
pub(super) fn may_go_on(order: Order, step: u8, nodes: &[&Node], data: &[Kek]) -> bool {
    let next = usize::from(step) + 1;
    if next >= STEPS.len() {
        return false;
    }
    let told = nodes.iter().all(|node| node.delivered() == config(step));
    // All data is wrapped by what is read with afterwards.
    let migrated = data.iter().all(|kek| kek.policy.keys.and(STEPS[next].1) != Keys::NONE);
    order == Order::Hasty || told && migrated
}

/// Whether A may be destroyed: after the last step, and if nothing needs it.
pub(super) fn may_destroy(order: Order, step: u8, nodes: &[&Node], data: &[Kek]) -> bool {
    let told = nodes.iter().all(|node| node.delivered() == config(step));
    let unneeded = data.iter().all(|kek| kek.policy.keys.and(Keys::B) != Keys::NONE);
    usize::from(step) + 1 == STEPS.len() && unneeded && (order == Order::Hasty || told)
}
