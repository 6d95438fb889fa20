//! Outages of a root key, as a real kube-apiserver lives through them: three telling rows of the table. All of them, and
//! what is left after three minutes, are in `./dev test outage-slow`.

mod drill;
mod fault;

use casemate_kms_state::outage::{State, When};

#[test]
fn a_real_kube_apiserver_does_what_the_table_says_while_three_states_are_new() {
    let telling =
        [(State::Outage, When::Coast), (State::Outage, When::FailClosed), (State::Credential, When::Always)];
    let drills: Vec<_> = drill::all()
        .into_iter()
        .filter(|drill| telling.contains(&(drill.row().state, drill.row().when)))
        .collect();
    assert_eq!(drills.len(), telling.len());
    drill::side_by_side(&drills, None);
}
