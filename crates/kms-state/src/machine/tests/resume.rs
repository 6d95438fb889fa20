//! What happens when nobody can see which policy should write.

use TroubleKind::{Corrupt, Credential, Local, Refused, Throttled, Undecided, Unreachable};

use super::*;

fn missed(machine: &mut Machine, kind: TroubleKind) -> Vec<Action> {
    machine.handle(NOW, Event::NotObserved(trouble(kind)))
}

fn restarted(ledger: &[u64], resumable: Option<u64>) -> Machine {
    Machine::new(history(ledger), resumable.map(policy), None)
}

/// Through the resumption, up to the first probe.
fn resumed(look: Option<TroubleKind>, rules: Rules) -> Machine {
    let mut machine = restarted(&[1], Some(1)).under(rules);
    let look = look.map_or(Event::Observed(policy(1)), |kind| Event::NotObserved(trouble(kind)));
    assert_eq!(drive(&mut machine, 0, look), [id(1)]);
    machine
}

#[test]
fn undecided_is_reported_and_what_was_confirmed_last_writes_on() {
    let mut machine = running(1);
    for _ in 0..5 {
        assert_eq!(missed(&mut machine, Undecided), []);
        assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
        assert_eq!(machine.trouble(), Some(&trouble(Undecided)));
        assert_eq!(machine.row(NOW).state, State::Well);
    }
    // It is an answer: what was seen before and after was not seen twice in a row.
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), []);
    missed(&mut machine, Undecided);
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), []);
    // What was confirmed before stays so.
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), [Action::Prepare(policy(2))]);
    machine.handle(NOW, Event::NotPrepared(id(2), trouble(Throttled)));
    missed(&mut machine, Undecided);
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(2))), [id(2)]);
    assert_eq!(machine.trouble(), None);
}

#[test]
fn undecided_without_a_history_is_what_status_says() {
    let why = Trouble { kind: Undecided, message: "versions 3 and 4 carry the label `write`".into() };
    // Nothing was ever active; or the ledger was lost; or what could be resumed is not what was active last.
    for (ledger, resumable) in [(&[][..], None), (&[], Some(1)), (&[1, 2], None), (&[1, 2], Some(1))] {
        let mut machine = restarted(ledger, resumable);
        assert_eq!(machine.handle(NOW, Event::NotObserved(why.clone())), []);
        let refusing = Standing::Refusing(Refusing::NotReady(Some(why.clone())));
        assert_eq!(machine.standing(NOW), refusing, "{ledger:?}, {resumable:?}");
    }
}

#[test]
fn no_probe_takes_for_an_outage_what_no_root_key_is_to_blame_for() {
    let rules = Rules { policy: Policy::FailClosed, ..Rules::default() };
    for kind in [Undecided, Local] {
        let mut machine = running(1).under(rules);
        machine.handle(NOW, Event::Probed(Err(trouble(kind))));
        assert_eq!(machine.standing(NOW), Standing::Writing(id(1)), "{kind:?}");
        // Nor does it end one.
        machine.handle(NOW, Event::Probed(Err(trouble(Unreachable))));
        machine.handle(NOW, Event::Probed(Err(trouble(kind))));
        assert_eq!(machine.row(NOW).state, State::Outage, "{kind:?}");
    }
}

#[test]
fn what_was_active_last_is_resumed_unseen_unless_a_root_key_says_otherwise() {
    struct Case {
        kind: TroubleKind,
        ledger: &'static [u64],
        resumable: Option<u64>,
        resumes: bool,
    }
    let case = |kind, ledger, resumable, resumes| Case { kind, ledger, resumable, resumes };
    let cases = [
        case(Unreachable, &[1, 2], Some(2), true),
        case(Throttled, &[1, 2], Some(2), true),
        case(Credential, &[1, 2], Some(2), true),
        case(Undecided, &[1, 2], Some(2), true),
        case(Refused, &[1, 2], Some(2), false),
        case(Corrupt, &[1, 2], Some(2), false),
        case(Local, &[1, 2], Some(2), false),
        // The record is not of what was active last, or there is none, or nobody knows what was.
        case(Unreachable, &[1, 2], Some(1), false),
        case(Unreachable, &[1, 2], Some(3), false),
        case(Unreachable, &[1, 2], None, false),
        case(Unreachable, &[], Some(2), false),
    ];
    for Case { kind, ledger, resumable, resumes } in cases {
        let mut machine = restarted(ledger, resumable);
        let expected = if resumes { vec![Action::Prepare(policy(2))] } else { vec![] };
        assert_eq!(missed(&mut machine, kind), expected, "{kind:?}, {ledger:?}, {resumable:?}");
        let refusing = Standing::Refusing(Refusing::NotReady(Some(trouble(kind))));
        assert_eq!(machine.standing(NOW), refusing, "{kind:?}, {ledger:?}, {resumable:?}");
    }
    // Another configuration has no history of its own.
    let other = &mut restarted(&[1], Some(1)).of_other_configuration();
    assert_eq!(missed(other, Unreachable), []);
}

#[test]
fn what_can_not_be_resumed_is_tried_at_each_look_and_nothing_is_lost() {
    let mut machine = restarted(&[1], Some(1));
    for _ in 0..3 {
        assert_eq!(missed(&mut machine, Unreachable), [Action::Prepare(policy(1))]);
        // One at a time.
        assert_eq!(missed(&mut machine, Unreachable), []);
        machine.handle(NOW, Event::NotPrepared(id(1), trouble(Unreachable)));
        assert_eq!(machine.standing(NOW), Standing::Refusing(Refusing::NotReady(Some(trouble(Unreachable)))));
    }
    // Once it is seen, it is as ever: one sighting.
    assert_eq!(drive(&mut machine.clone(), 0, Event::Observed(policy(1))), [id(1)]);
    // And so is another one: two.
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), [Action::ObserveAgain]);
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), [Action::Prepare(policy(2))]);
    // While that is made, nobody goes back.
    assert_eq!(missed(&mut machine, Unreachable), []);
    machine.handle(NOW, Event::NotPrepared(id(2), trouble(Unreachable)));
    assert_eq!(missed(&mut machine, Unreachable), [Action::Prepare(policy(1))]);
    assert_eq!(machine.handle(NOW, Event::Prepared(id(1))), [Action::Activate(id(1))]);
    machine.handle(NOW, Event::Probed(Ok(())));
    assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));
    machine.handle(NOW, Event::Observed(policy(2)));
    assert_eq!(drive(&mut machine, 0, Event::Observed(policy(2))), [id(2)]);
}

#[test]
fn the_first_probe_tells_how_what_was_resumed_stands() {
    let time = Duration::from_secs(120);
    let out = |kind| Standing::Refusing(Refusing::Outage(trouble(kind)));
    let (writing, failing) = (Standing::Writing(id(1)), Standing::Failing(id(1)));
    let cases = [
        (Policy::Coast { until: None }, Unreachable, writing.clone()),
        (Policy::Coast { until: Some(time) }, Throttled, writing.clone()),
        (Policy::FailAfter(time), Unreachable, failing.clone()),
        (Policy::FailClosed, Unreachable, out(Unreachable)),
        (Policy::FailClosed, Credential, writing.clone()),
        (Policy::FailAfter(time), Refused, failing),
    ];
    for (policy, kind, expected) in cases {
        // Seen or not: to open the record, one root key of several is enough.
        for look in [Some(Unreachable), Some(Undecided), None] {
            let mut machine = resumed(look, Rules { policy, ..Rules::default() });
            // Under `failClosed`, an ok before it would be one too many.
            let waiting = Standing::Refusing(Refusing::NotReady(look.map(trouble)));
            assert_eq!(machine.standing(NOW), waiting, "{policy:?}");
            machine.handle(NOW, Event::Probed(Err(trouble(kind))));
            assert_eq!(machine.standing(NOW), expected, "{policy:?}, {kind:?}");
            machine.handle(NOW, Event::Probed(Ok(())));
            assert_eq!(machine.standing(NOW), writing, "{policy:?}, {kind:?}");
        }
    }
}

#[test]
fn neither_what_was_wiped_nor_another_key_is_resumed_unseen() {
    let no = Some(Refused);
    let rules = Rules { on_refused: OnRefused::Wipe, ..Rules::default() };
    let (mut machine, _, actions) = minutes(rules, &[no, no, no]);
    assert_eq!(actions, [Action::WipeOpened]);
    assert_eq!(missed(&mut machine, Unreachable), []);
    assert_eq!(machine.row(NOW).state, State::Refused);

    // Its own root key has spoken. That it is out since, or that another one was seen once, makes it no better.
    let mut machine = restarted(&[1], Some(1));
    assert_eq!(machine.handle(NOW, Event::Observed(policy(1))), [Action::Prepare(policy(1))]);
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    assert_eq!(missed(&mut machine, Unreachable), []);
    assert_eq!(machine.standing(NOW), Standing::Refusing(Refusing::OtherKey(id(1))));
    assert_eq!(machine.handle(NOW, Event::Observed(policy(2))), [Action::ObserveAgain]);
    assert_eq!(missed(&mut machine, Unreachable), []);
    // So has it if it does so while it is resumed.
    let mut machine = restarted(&[1], Some(1));
    missed(&mut machine, Undecided);
    machine.handle(NOW, Event::RecordNotOpened(id(1)));
    assert_eq!(missed(&mut machine, Undecided), []);
    assert_eq!(machine.standing(NOW), Standing::Refusing(Refusing::OtherKey(id(1))));
}

#[test]
fn a_look_that_is_refused_stops_no_writes_while_probes_succeed() {
    let rules = Rules { policy: Policy::FailClosed, on_refused: OnRefused::Wipe };
    let mut machine = running(1).under(rules);
    for minute in 0..60 {
        let now = Millis(minute * 60_000);
        // The right to read what a key is may be gone; the key wraps and opens.
        assert_eq!(machine.handle(now, Event::NotObserved(trouble(Refused))), []);
        assert_eq!(machine.handle(now, Event::Probed(Ok(()))), []);
        assert_eq!(machine.standing(now), Standing::Writing(id(1)));
        assert_eq!(machine.trouble(), Some(&trouble(Refused)));
    }
}

#[test]
fn of_several_root_keys_the_gravest_trouble_counts() {
    let gravest = |kinds: &[TroubleKind]| {
        Trouble::gravest(kinds.iter().map(|kind| trouble(*kind))).map(|trouble| trouble.kind)
    };
    assert_eq!(gravest(&[]), None);
    // An expired token of one must not hide that the other is out; nor an outage that one says no.
    assert_eq!(gravest(&[Credential, Unreachable]), Some(Unreachable));
    assert_eq!(gravest(&[Throttled, Refused, Unreachable]), Some(Refused));
    assert_eq!(gravest(&[Unreachable, Corrupt]), Some(Corrupt));
    assert_eq!(gravest(&[Undecided, Credential]), Some(Credential));
    let [first, second] = ["a", "b"].map(|message| Trouble { kind: Throttled, message: message.into() });
    assert_eq!(Trouble::gravest([first.clone(), second]), Some(first));
}

#[test]
fn a_process_that_is_started_under_a_no_finds_out_that_it_stays() {
    let rules = |on_refused| Rules { on_refused, ..Rules::default() };
    let no = |machine: &mut Machine, minute: u64| {
        machine.handle(Millis(minute * 60_000), Event::Probed(Err(trouble(Refused))))
    };
    let root_refused = Standing::Refusing(Refusing::RootRefused(trouble(Refused)));
    // What is said no to: the look, or to open what was written, or to wrap what would be new.
    for (look, resumable) in [(true, Some(1)), (false, Some(1)), (false, None)] {
        let looks = |machine: &mut Machine| {
            if look {
                assert_eq!(missed(machine, Refused), []);
            } else {
                let actions = machine.handle(NOW, Event::Observed(policy(1)));
                assert!(!actions.is_empty());
                machine.handle(NOW, Event::NotPrepared(id(1), trouble(Refused)));
            }
            assert_eq!(machine.to_probe(), Some(&policy(1)));
        };
        let mut machine = restarted(&[1], resumable).under(rules(OnRefused::Wipe));
        assert_eq!(machine.to_probe(), None, "nobody said no");
        for minute in 0..2 {
            looks(&mut machine);
            assert_eq!(no(&mut machine, minute), [], "not yet often and long enough");
            assert_eq!(machine.row(NOW).state, State::Starting);
        }
        looks(&mut machine);
        assert_eq!(no(&mut machine, 2), [Action::WipeOpened]);
        assert_eq!(machine.standing(NOW), root_refused);
        // Once: what is opened after it was opened by a root key.
        assert_eq!(no(&mut machine, 3), []);
        assert_eq!(missed(&mut machine, Unreachable), [], "nor does an outage bring it back");
        machine.handle(NOW, Event::Probed(Ok(())));
        assert_eq!(drive(&mut machine, 0, Event::Observed(policy(1))), [id(1)]);
        machine.handle(NOW, Event::Probed(Ok(())));
        assert_eq!(machine.standing(NOW), Standing::Writing(id(1)));

        // Reads go on until the rules say otherwise.
        let mut machine = restarted(&[1], resumable).under(rules(OnRefused::KeepReads));
        for minute in 0..3 {
            looks(&mut machine);
            assert_eq!(no(&mut machine, minute), []);
        }
        assert_eq!(machine.standing(NOW), root_refused);
        let mut machine = machine.under(rules(OnRefused::Wipe));
        assert_eq!(no(&mut machine, 3), [Action::WipeOpened]);
    }
    // Any other trouble asks for no probe while nothing is active.
    for kind in [Unreachable, Throttled, Credential, Corrupt, Undecided, Local] {
        let mut machine = restarted(&[], Some(1));
        missed(&mut machine, kind);
        assert_eq!(machine.to_probe(), None, "{kind:?}");
        assert_eq!(no(&mut machine, 0), [], "{kind:?}");
    }
}

#[test]
fn a_root_key_that_was_put_back_is_reported_as_that_however_long_it_lasts() {
    for (on_refused, at_last) in [(OnRefused::KeepReads, State::Reused), (OnRefused::Wipe, State::Refused)] {
        let mut machine = restarted(&[1, 2], Some(2)).under(Rules { on_refused, ..Rules::default() });
        for minute in 0..5 {
            let now = Millis(minute * 60_000);
            machine.handle(now, Event::Observed(policy(1)));
            machine.handle(now, Event::NotPrepared(id(2), trouble(Refused)));
            machine.handle(now, Event::Probed(Err(trouble(Refused))));
            let expected = if minute < 2 { State::Reused } else { at_last };
            assert_eq!(machine.row(now).state, expected, "{on_refused:?}, minute {minute}");
        }
    }
}

#[test]
fn what_one_policy_was_refused_counts_for_no_other() {
    let mut machine = restarted(&[], None).under(Rules { on_refused: OnRefused::Wipe, ..Rules::default() });
    let no = Event::Probed(Err(trouble(Refused)));
    for (version, minute) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        for _ in 0..2 {
            machine.handle(NOW, Event::Observed(policy(version)));
        }
        machine.handle(NOW, Event::NotPrepared(id(version), trouble(Refused)));
        assert_eq!(machine.handle(Millis(minute * 60_000), no.clone()), []);
    }
    assert_eq!(machine.handle(Millis(240_000), no), [Action::WipeOpened]);
}
