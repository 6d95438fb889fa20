//! Every row of the table of outages, with a real kube-apiserver and a root key that is really out: what the page
//! `docs/reference/outages.md` says that kube-apiserver does, at once and after three minutes.
#![allow(clippy::panic, clippy::unwrap_used)]

#[path = "it/outage/drill.rs"]
mod drill;
#[path = "it/outage/fault.rs"]
mod fault;

use std::time::Duration;

use casemate_kms_state::outage::TABLE;

/// kube-apiserver writes with what it has for three minutes after the last good Status.
const LONGER_THAN_THREE_MINUTES: Duration = Duration::from_secs(200);

#[test]
fn a_real_kube_apiserver_does_what_the_table_says_in_every_row() {
    let drills = drill::all();
    for row in &TABLE {
        assert!(drills.iter().any(|drill| drill.row() == row), "no drill for {row:?}");
    }
    drill::side_by_side(&drills, Some(LONGER_THAN_THREE_MINUTES));
}
