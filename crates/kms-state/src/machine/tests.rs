#![allow(clippy::unwrap_used)]

use casemate_keys::{Algorithm, Epoch, KeyId, Root, Suite, WritePolicy};
use proptest::prelude::*;

use super::*;
use crate::outage::{OnRefused, Policy};

mod hour;
mod resume;

/// For rules without a time, any moment will do.
const NOW: Millis = Millis(0);

fn policy(version: u64) -> WritePolicy {
    let lineage = format!("file:aa/{version}/00").parse().unwrap();
    let root = Root { lineage, algorithm: Algorithm::FILE_AES256_GCM };
    WritePolicy::new(Suite::One, "prod".parse().unwrap(), Epoch(0), vec![root], vec![], None).unwrap()
}

fn id(version: u64) -> KeyId {
    policy(version).key_id()
}

fn fresh() -> Machine {
    Machine::new(Ledger::default(), None, None)
}

fn history(versions: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for version in versions {
        ledger.note(&id(*version), 0);
    }
    ledger
}

fn trouble(kind: TroubleKind) -> Trouble {
    Trouble { kind, message: "no".into() }
}

/// Carries out every action at once, as a shell whose key service always answers.
fn drive(machine: &mut Machine, now: u64, event: Event) -> Vec<KeyId> {
    let mut activated = Vec::new();
    let mut queue = vec![event];
    while let Some(event) = queue.pop() {
        for action in machine.handle(Millis(now), event.clone()) {
            match action {
                Action::ObserveAgain => queue.push(event.clone()),
                Action::Prepare(policy) => queue.push(Event::Prepared(policy.key_id())),
                Action::Activate(key_id) => {
                    machine.note_active(&key_id, now);
                    activated.push(key_id);
                }
                Action::WipeOpened => {}
            }
        }
    }
    activated
}

fn running(version: u64) -> Machine {
    let mut machine = fresh();
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(version))), [id(version)]);
    machine
}

#[test]
fn a_first_start_sees_twice_prepares_and_writes() {
    let mut machine = fresh();
    assert_eq!(machine.standing(NOW), Standing::Refusing(Refusing::NotReady(None)));
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(1))), [Action::ObserveAgain]);
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(1))), [Action::Prepare(policy(1))]);
    // While it is prepared, more sightings start nothing.
    assert_eq!(machine.handle(Millis(1), Event::Observed(policy(1))), []);
    assert_eq!(machine.handle(Millis(2), Event::Prepared(id(1))), [Action::Activate(id(1))]);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
}

#[test]
fn a_rotation_needs_two_sightings() {
    let mut machine = running(1);
    assert_eq!(machine.progress(), None);
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), []);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
    assert_eq!(machine.progress(), Some(Progress { sightings: 1, preparing: false }));
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), [Action::Prepare(policy(2))]);
    assert_eq!(machine.progress(), Some(Progress { sightings: 2, preparing: true }));
    machine.handle(Millis(0), Event::NotPrepared(id(2), trouble(TroubleKind::Unreachable)));
    assert_eq!(machine.progress(), Some(Progress { sightings: 2, preparing: false }));
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(2))), [id(2)]);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));
    assert_eq!(machine.progress(), None);
}

#[test]
fn a_glimpse_is_forgotten() {
    let mut machine = running(1);
    for _ in 0..3 {
        assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), []);
        assert_eq!(machine.handle(Millis(0), Event::Observed(policy(1))), []);
    }
    // Another candidate starts to count anew.
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), []);
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(3))), []);
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), []);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
}

#[test]
fn a_missing_observation_is_no_value() {
    let mut machine = running(1);
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), []);
    for _ in 0..5 {
        assert_eq!(machine.handle(Millis(0), Event::NotObserved(trouble(TroubleKind::Unreachable))), []);
    }
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
    assert!(machine.trouble().is_some());
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(2))), [id(2)]);
    assert_eq!(machine.trouble(), None);
}

#[test]
fn what_can_not_be_prepared_does_not_write_and_is_tried_again() {
    let mut machine = running(1);
    machine.handle(Millis(0), Event::Observed(policy(2)));
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), [Action::Prepare(policy(2))]);
    machine.handle(Millis(0), Event::NotPrepared(id(2), trouble(TroubleKind::Unreachable)));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
    assert_eq!(machine.handle(Millis(0), Event::Observed(policy(2))), [Action::Prepare(policy(2))]);
    // The answer comes after the admin changed his mind: nothing happens.
    machine.handle(Millis(0), Event::Observed(policy(1)));
    assert_eq!(machine.handle(Millis(0), Event::Prepared(id(2))), []);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
}

#[test]
fn never_back_and_the_report_says_so() {
    let mut machine = running(1);
    machine.handle(Millis(0), Event::Observed(policy(2)));
    drive(&mut machine, 0, Event::Observed(policy(2)));
    for _ in 0..4 {
        assert_eq!(machine.handle(Millis(0), Event::Observed(policy(1))), []);
        assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));
        assert_eq!(machine.refused_reuse(), Some(&id(1)));
    }
    // It heals: the next version comes as usual.
    machine.handle(Millis(0), Event::Observed(policy(3)));
    assert_eq!(machine.refused_reuse(), None);
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(3))), [id(3)]);
}

#[test]
fn restarts() {
    struct Case {
        name: &'static str,
        ledger: &'static [u64],
        resumable: Option<u64>,
        accept_reuse: Option<u64>,
        observed: u64,
        first: Vec<Action>,
        end: Standing,
    }
    let cases = [
        Case {
            name: "as before: one sighting is enough",
            ledger: &[1, 2],
            resumable: Some(2),
            accept_reuse: None,
            observed: 2,
            first: vec![Action::Prepare(policy(2))],
            end: Standing::Writing(id(2)),
        },
        Case {
            name: "rotated while it was down",
            ledger: &[1, 2],
            resumable: Some(2),
            accept_reuse: None,
            observed: 3,
            first: vec![Action::ObserveAgain],
            end: Standing::Writing(id(3)),
        },
        Case {
            name: "an older copy was restored, the record on disk still opens",
            ledger: &[1, 2],
            resumable: Some(2),
            accept_reuse: None,
            observed: 1,
            first: vec![Action::Prepare(policy(2))],
            end: Standing::Writing(id(2)),
        },
        Case {
            name: "an older copy was restored and there is no record",
            ledger: &[1, 2],
            resumable: None,
            accept_reuse: None,
            observed: 1,
            first: vec![],
            end: Standing::Refusing(Refusing::Reuse(id(1))),
        },
        Case {
            name: "a record that is not the last active one is not resumed",
            ledger: &[1, 2, 3],
            resumable: Some(2),
            accept_reuse: None,
            observed: 1,
            first: vec![],
            end: Standing::Refusing(Refusing::Reuse(id(1))),
        },
        Case {
            name: "the admin accepts the re-use",
            ledger: &[1, 2],
            resumable: None,
            accept_reuse: Some(1),
            observed: 1,
            first: vec![Action::ObserveAgain],
            end: Standing::Writing(id(1)),
        },
        Case {
            name: "the ledger is lost",
            ledger: &[],
            resumable: Some(2),
            accept_reuse: None,
            observed: 2,
            first: vec![Action::ObserveAgain],
            end: Standing::Writing(id(2)),
        },
    ];
    for case in cases {
        let machine =
            || Machine::new(history(case.ledger), case.resumable.map(policy), case.accept_reuse.map(id));
        assert_eq!(
            machine().handle(Millis(0), Event::Observed(policy(case.observed))),
            case.first,
            "{}",
            case.name
        );
        let mut machine = machine();
        drive(&mut machine, 0, Event::Observed(policy(case.observed)));
        drive(&mut machine, 0, Event::Observed(policy(case.observed)));
        machine.handle(NOW, Event::Probed(Ok(())));
        assert_eq!(machine.standing(NOW), case.end, "{}", case.name);
    }
}

#[test]
fn a_root_that_says_no_stops_writes_after_three_times_over_two_minutes() {
    let mut machine = running(1);
    let refuse = |machine: &mut Machine, at| {
        machine.handle(Millis(at), Event::Probed(Err(trouble(TroubleKind::Refused))));
        machine.standing(NOW)
    };
    assert_eq!(refuse(&mut machine, 0), Standing::Writing(id(1)));
    assert_eq!(refuse(&mut machine, 1_000), Standing::Writing(id(1)));
    assert_eq!(refuse(&mut machine, 119_999), Standing::Writing(id(1)));
    let stopped = Standing::Refusing(Refusing::RootRefused(trouble(TroubleKind::Refused)));
    assert_eq!(refuse(&mut machine, 120_000), stopped);
    // Trouble that says nothing about the root leaves it so; a success heals.
    machine.handle(Millis(130_000), Event::Probed(Err(trouble(TroubleKind::Unreachable))));
    assert_eq!(machine.standing(NOW), stopped);
    machine.handle(Millis(140_000), Event::Probed(Ok(())));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
    // Two refusals far apart are two, not three.
    assert_eq!(refuse(&mut machine, 200_000), Standing::Writing(id(1)));
    assert_eq!(refuse(&mut machine, 900_000), Standing::Writing(id(1)));
}

#[test]
fn a_new_key_heals_a_refused_one() {
    let mut machine = running(1);
    for at in [0, 60_000, 120_000] {
        machine.handle(Millis(at), Event::Probed(Err(trouble(TroubleKind::Refused))));
    }
    assert!(matches!(machine.standing(NOW), Standing::Refusing(_)));
    machine.handle(Millis(130_000), Event::Observed(policy(2)));
    drive(&mut machine, 130_000, Event::Observed(policy(2)));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));
}

/// What a root key answers, minute after minute, to a machine under `rules`.
fn minutes(rules: Rules, answers: &[Option<TroubleKind>]) -> (Machine, Vec<Standing>, Vec<Action>) {
    let (mut machine, mut actions) = (running(1).under(rules), Vec::new());
    let mut answer = |(minute, kind): (u64, &Option<TroubleKind>)| {
        let now = Millis(minute * 60_000);
        let result = kind.map_or(Ok(()), |kind| Err(trouble(kind)));
        actions.extend(machine.handle(now, Event::Probed(result)));
        machine.standing(now)
    };
    let standings = (0..).zip(answers).map(&mut answer).collect();
    (machine, standings, actions)
}

#[test]
fn outages_of_every_class_under_every_policy() {
    use TroubleKind::{Corrupt, Credential, Refused, Throttled, Unreachable};
    let two_minutes = Duration::from_secs(120);
    let (writing, failing) = (Standing::Writing(id(1)), Standing::Failing(id(1)));
    let out = |kind| Standing::Refusing(Refusing::Outage(trouble(kind)));
    let no = Standing::Refusing(Refusing::RootRefused(trouble(Refused)));
    for kind in [Unreachable, Throttled, Corrupt] {
        let answers = [Some(kind), Some(kind), Some(kind), None];
        let cases = [
            (Policy::Coast { until: None }, vec![&writing; 4]),
            (Policy::Coast { until: Some(two_minutes) }, vec![&writing, &writing, &out(kind), &writing]),
            (Policy::FailAfter(two_minutes), vec![&failing, &failing, &out(kind), &writing]),
            (Policy::FailClosed, vec![&out(kind), &out(kind), &out(kind), &writing]),
        ]
        .map(|(policy, expected)| (policy, expected.into_iter().cloned().collect::<Vec<_>>()));
        for (policy, expected) in cases {
            let (_, found, actions) = minutes(Rules { policy, on_refused: OnRefused::Wipe }, &answers);
            assert_eq!((found, actions), (expected, vec![]), "{kind:?} under {policy:?}");
        }
    }
    for policy in [Policy::default(), Policy::FailAfter(two_minutes), Policy::FailClosed] {
        // A lost credential coasts, with any end and for any time; it neither proves nor ends an outage.
        let rules = Rules { policy, on_refused: OnRefused::Wipe };
        let (_, found, actions) = minutes(rules, &[Some(Credential); 30]);
        assert_eq!((found, actions), (vec![writing.clone(); 30], vec![]), "{policy:?}");
        let (_, found, _) = minutes(rules, &[Some(Throttled), Some(Credential), Some(Throttled)]);
        let last = if policy == Policy::default() { writing.clone() } else { out(Throttled) };
        assert_eq!(found[1..], [writing.clone(), last], "{policy:?}");
        // Until it has said no often and long enough, it is as if it were out; then the policy counts no more.
        let rules = Rules { policy, on_refused: OnRefused::KeepReads };
        let (_, found, actions) =
            minutes(rules, &[Some(Refused), Some(Refused), Some(Refused), Some(Unreachable), None]);
        assert_eq!(
            (&found[2..], actions),
            (&[no.clone(), no.clone(), writing.clone()][..], vec![]),
            "{policy:?}"
        );
    }
}

#[test]
fn the_time_of_an_outage_does_not_begin_with_a_lost_credential() {
    let rules = Rules { policy: Policy::FailAfter(Duration::from_secs(120)), ..Rules::default() };
    let (credential, out) = (Some(TroubleKind::Credential), Some(TroubleKind::Unreachable));
    let (_, found, _) = minutes(rules, &[credential, credential, credential, out, out]);
    assert_eq!(found[2..], [Standing::Writing(id(1)), Standing::Failing(id(1)), Standing::Failing(id(1))]);
}

#[test]
fn an_end_comes_without_a_probe() {
    let rules = Rules { policy: Policy::FailAfter(Duration::from_secs(120)), ..Rules::default() };
    let (machine, _, _) = minutes(rules, &[Some(TroubleKind::Unreachable)]);
    assert_eq!(machine.standing(Millis(119_999)), Standing::Failing(id(1)));
    let ended = Standing::Refusing(Refusing::Outage(trouble(TroubleKind::Unreachable)));
    assert_eq!(machine.standing(Millis(120_000)), ended);
    assert_eq!(machine.row(Millis(120_000)).state, State::OutageEnded);
}

#[test]
fn wiped_is_opened_again_before_it_writes() {
    let no = Some(TroubleKind::Refused);
    let rules = Rules { on_refused: OnRefused::Wipe, ..Rules::default() };
    let (mut machine, _, actions) = minutes(rules, &[no, no, no]);
    assert_eq!(actions, [Action::WipeOpened]);
    let stopped = Standing::Refusing(Refusing::RootRefused(trouble(TroubleKind::Refused)));
    assert_eq!(machine.standing(NOW), stopped);
    // As after a restart: one sighting is enough, and while the root key says no, it stays so.
    assert_eq!(machine.handle(NOW, Event::Observed(policy(1))), [Action::Prepare(policy(1))]);
    machine.handle(NOW, Event::NotPrepared(id(1), trouble(TroubleKind::Refused)));
    assert_eq!(machine.standing(NOW), stopped);
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(1))), [id(1)]);
    // That it opens is not that it wraps: what it was wiped for, only a good probe ends.
    assert_eq!(machine.standing(NOW), stopped);
    assert_eq!(machine.handle(NOW, Event::Probed(Ok(()))), []);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
}

#[test]
fn same_name_other_key() {
    let other = |version| Standing::Refusing(Refusing::OtherKey(id(version)));
    // While it writes: until it opens again. That the other key wraps well proves nothing.
    let mut machine = running(1);
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    machine.handle(NOW, Event::Probed(Ok(())));
    machine.handle(NOW, Event::Observed(policy(1)));
    assert_eq!((machine.standing(NOW), machine.other_key()), (other(1), Some(id(1))));
    machine.handle(NOW, Event::RecordOpened(id(1)));
    assert_eq!((machine.standing(NOW), machine.other_key()), (Standing::Writing(id(1)), None));
    // Or until another policy is confirmed: one sighting of it is not enough to write under the old one again.
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    machine.handle(NOW, Event::Observed(policy(2)));
    assert_eq!(machine.standing(NOW), other(1));
    drive(&mut machine, 0, Event::Observed(policy(2)));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));
    // What is said of a policy that is neither active nor on its way changes nothing.
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));

    // After a restart: nothing is written, each look tries again, and another policy is as good as ever.
    let mut machine = Machine::new(history(&[1]), Some(policy(1)), None);
    for _ in 0..3 {
        assert_eq!(machine.handle(NOW, Event::Observed(policy(1))), [Action::Prepare(policy(1))]);
        machine.handle(NOW, Event::RecordNotOpened(id(1)));
        assert_eq!(machine.standing(NOW), other(1));
    }
    // Another root key, or a sealed cache, may open the record: that heals nothing, the record itself does.
    let mut healed = machine.clone();
    assert_eq!(drive(&mut healed, 0, Event::Observed(policy(1))), [id(1)]);
    assert_eq!(healed.standing(NOW), other(1));
    healed.handle(NOW, Event::Probed(Ok(())));
    assert_eq!(healed.standing(NOW), other(1));
    healed.handle(NOW, Event::RecordOpened(id(1)));
    assert_eq!(healed.standing(NOW), Standing::Writing(id(1)));
    // An epoch makes another configuration of it, of which nothing is known.
    assert_eq!(machine.of_other_configuration().other_key(), None);
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(2))), [id(2)]);
    assert_eq!(machine.standing(NOW), Standing::Writing(id(2)));

    // It does not take the ledger to know: the record is on disk.
    let mut machine = Machine::new(Ledger::default(), Some(policy(1)), None);
    assert_eq!(machine.handle(NOW, Event::Observed(policy(1))), [Action::ObserveAgain]);
    assert_eq!(machine.handle(NOW, Event::Observed(policy(1))), [Action::Prepare(policy(1))]);
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    assert_eq!(machine.standing(NOW), other(1));

    // What is on its way is not what writes: that of the one says nothing of the other, both ways.
    let mut machine = running(1);
    machine.handle(NOW, Event::Observed(policy(2)));
    machine.handle(NOW, Event::Observed(policy(2)));
    machine.handle(NOW, Event::RecordNotOpened(id(2)));
    assert_eq!((machine.standing(NOW), machine.other_key()), (Standing::Writing(id(1)), Some(id(2))));
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    machine.handle(NOW, Event::RecordOpened(id(2)));
    assert_eq!((machine.standing(NOW), machine.other_key()), (other(1), Some(id(1))));
}

#[derive(Clone, Debug)]
enum Step {
    See(u64),
    Miss,
    Prepared(u64),
    NotPrepared(u64),
    Probe(bool),
    Restart { record: Option<u64> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let version = || 1..4u64;
    let step = prop_oneof![
        6 => version().prop_map(Step::See),
        1 => Just(Step::Miss),
        4 => version().prop_map(Step::Prepared),
        1 => version().prop_map(Step::NotPrepared),
        1 => any::<bool>().prop_map(Step::Probe),
        1 => proptest::option::of(version()).prop_map(|record| Step::Restart { record }),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever comes in whatever order, over restarts: no key id returns, and Status names only what was
    /// prepared in this life of the process.
    #[test]
    fn no_key_id_ever_returns(steps in steps()) {
        let mut machine = fresh();
        let mut history: Vec<KeyId> = Vec::new();
        let mut prepared: Vec<KeyId> = Vec::new();
        for (now, step) in (0..).zip(steps) {
            let actions = match step {
                Step::See(version) => machine.handle(Millis(now), Event::Observed(policy(version))),
                Step::Miss => machine.handle(Millis(now), Event::NotObserved(trouble(TroubleKind::Unreachable))),
                Step::Prepared(version) => {
                    prepared.push(id(version));
                    machine.handle(Millis(now), Event::Prepared(id(version)))
                }
                Step::NotPrepared(version) => {
                    machine.handle(Millis(now), Event::NotPrepared(id(version), trouble(TroubleKind::Unreachable)))
                }
                Step::Probe(works) => {
                    let result = if works { Ok(()) } else { Err(trouble(TroubleKind::Refused)) };
                    machine.handle(Millis(now), Event::Probed(result))
                }
                Step::Restart { record } => {
                    let (ledger, damage) = Ledger::parse(machine.ledger().render().as_bytes());
                    prop_assert!(damage.is_none());
                    prepared.clear();
                    machine = Machine::new(ledger, record.map(policy), None);
                    vec![]
                }
            };
            for action in actions {
                if let Action::Activate(key_id) = action {
                    prop_assert!(history.last() == Some(&key_id) || !history.contains(&key_id));
                    machine.note_active(&key_id, now);
                    if history.last() != Some(&key_id) {
                        history.push(key_id);
                    }
                }
            }
            if let Standing::Writing(key_id) = machine.standing(NOW) {
                prop_assert!(prepared.contains(&key_id));
                prop_assert_eq!(history.last(), Some(&key_id));
            }
        }
    }

    /// From every state, three calm observations of a key that may write make it active.
    #[test]
    fn calm_heals(steps in steps(), goal in 4..6u64) {
        let mut machine = fresh();
        for (now, step) in (0..).zip(steps) {
            match step {
                Step::See(version) => { drive(&mut machine, now, Event::Observed(policy(version))); }
                Step::Miss => { machine.handle(Millis(now), Event::NotObserved(trouble(TroubleKind::Unreachable))); }
                Step::NotPrepared(version) => {
                    machine.handle(Millis(now), Event::NotPrepared(id(version), trouble(TroubleKind::Refused)));
                }
                Step::Probe(false) => { machine.handle(Millis(now), Event::Probed(Err(trouble(TroubleKind::Refused)))); }
                _ => {}
            }
        }
        for _ in 0..3 {
            drive(&mut machine, 1_000, Event::Observed(policy(goal)));
        }
        machine.handle(Millis(2_000), Event::Probed(Ok(())));
        prop_assert_eq!(machine.standing(NOW), Standing::Writing(id(goal)));
    }
}
