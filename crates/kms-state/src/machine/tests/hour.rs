//! A root key is down for an hour: what Status answers, every ten seconds, and that the same key id is back.

use TroubleKind::{Corrupt, Credential, Refused, Throttled, Undecided, Unreachable};

use super::*;

/// When it goes, when it is back, and when it is enough. In minutes, each with one look and one probe.
const DOWN: std::ops::Range<u64> = 5..65;
const END: u64 = 75;
const RESTART: u64 = 25;

/// What happens in that hour.
#[derive(Clone, Copy, Debug)]
struct Hour {
    /// What looks and probes find, by turns.
    found: &'static [TroubleKind],
    /// Whether looks find it too.
    seen: bool,
    restart: bool,
}

/// What Status answers for how many minutes.
type Answers = Vec<(&'static str, u64)>;

fn through(hour: Hour, rules: Rules) -> Answers {
    let mut machine = running(1).under(rules);
    let mut answers = Vec::new();
    for minute in 0..END {
        let now = minute * 60_000;
        let found = hour.found[usize::try_from(minute).unwrap() % hour.found.len()];
        let is_down = DOWN.contains(&minute);
        let probed = if is_down && found != Undecided { Err(trouble(found)) } else { Ok(()) };
        if hour.restart && minute == RESTART {
            let (ledger, _) = Ledger::parse(machine.ledger().render().as_bytes());
            machine = Machine::new(ledger, Some(policy(1)), None).under(rules);
        }
        let look = if is_down && hour.seen {
            Event::NotObserved(trouble(found))
        } else {
            Event::Observed(policy(1))
        };
        let before = answer(&machine, now);
        for action in machine.handle(Millis(now), look) {
            // The other root key opens the record, unless this one says no.
            assert_eq!(action, Action::Prepare(policy(1)));
            let event = match &probed {
                Err(no) if no.kind == Refused => Event::NotPrepared(id(1), no.clone()),
                _ => Event::Prepared(id(1)),
            };
            machine.handle(Millis(now), event);
        }
        assert_eq!(answer(&machine, now), before, "only a probe changes the answer: {hour:?}, {rules:?}");
        machine.handle(Millis(now), Event::Probed(probed));
        answers.extend((0..6).map(|tenth| answer(&machine, now + tenth * 10_000)));
    }
    assert_eq!(machine.ledger().entries().len(), 1, "another key id was active");
    let runs = answers.chunk_by(|one, next| one == next);
    runs.map(|run| (run[0], run.len() as u64 / 6)).collect()
}

/// As kube-apiserver hears it; never under another key id.
fn answer(machine: &Machine, now: u64) -> &'static str {
    match machine.standing(Millis(now)) {
        Standing::Writing(key_id) if key_id == id(1) => "ok",
        Standing::Failing(key_id) if key_id == id(1) => "not ok",
        Standing::Refusing(_) => "error",
        other => panic!("{other:?}"),
    }
}

fn minutes_of(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

#[test]
fn under_each_policy_without_flapping_and_back_under_the_same_key_id() {
    let coast = Policy::Coast { until: None };
    let coast_for_30 = Policy::Coast { until: Some(minutes_of(30)) };
    let fail_after_10 = Policy::FailAfter(minutes_of(10));
    let all = [coast, coast_for_30, fail_after_10, Policy::FailClosed];
    let well: Answers = vec![("ok", END)];

    let out = [
        (coast, well.clone()),
        (coast_for_30, vec![("ok", 35), ("error", 30), ("ok", 10)]),
        (fail_after_10, vec![("ok", 5), ("not ok", 10), ("error", 50), ("ok", 10)]),
        (Policy::FailClosed, vec![("ok", 5), ("error", 60), ("ok", 10)]),
    ];
    // A process forgets how long the outage has lasted: its time begins anew.
    let out_and_restarted = [
        (coast, well.clone()),
        (coast_for_30, vec![("ok", 55), ("error", 10), ("ok", 10)]),
        (
            fail_after_10,
            vec![("ok", 5), ("not ok", 10), ("error", 10), ("not ok", 10), ("error", 30), ("ok", 10)],
        ),
        (Policy::FailClosed, vec![("ok", 5), ("error", 60), ("ok", 10)]),
    ];
    // Three noes over two minutes: then no policy counts any more.
    let refused = [
        (coast, vec![("ok", 7), ("error", 58), ("ok", 10)]),
        (coast_for_30, vec![("ok", 7), ("error", 58), ("ok", 10)]),
        (fail_after_10, vec![("ok", 5), ("not ok", 2), ("error", 58), ("ok", 10)]),
        (Policy::FailClosed, vec![("ok", 5), ("error", 60), ("ok", 10)]),
    ];
    let nothing = all.map(|policy| (policy, well.clone()));
    let hour = |found, seen, restart| Hour { found, seen, restart };
    let cases = [
        (hour(&[Unreachable], true, false), &out),
        (hour(&[Unreachable], false, false), &out),
        (hour(&[Corrupt], true, false), &out),
        // What it is called may change with each call; that it is out does not.
        (hour(&[Unreachable, Throttled, Corrupt], true, false), &out),
        (hour(&[Unreachable], true, true), &out_and_restarted),
        (hour(&[Throttled, Unreachable], true, true), &out_and_restarted),
        (hour(&[Unreachable], false, true), &out_and_restarted),
        (hour(&[Refused], true, false), &refused),
        (hour(&[Refused], false, false), &refused),
        (hour(&[Credential], true, false), &nothing),
        (hour(&[Credential], true, true), &nothing),
        (hour(&[Undecided], true, false), &nothing),
        (hour(&[Undecided], true, true), &nothing),
    ];
    for (hour, expected) in cases {
        for ((policy, expected), on_refused) in
            expected.iter().flat_map(|row| [OnRefused::KeepReads, OnRefused::Wipe].map(|wipe| (row, wipe)))
        {
            let found = through(hour, Rules { policy: *policy, on_refused });
            assert_eq!(found, *expected, "{hour:?} under {policy:?}, {on_refused:?}");
        }
    }
}
