//! What stands around a root key, against one that answers as it is told. All on a simulated clock.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::Root;
use casemate_keyservice::guarded::{
    BreakerState, Counts, DEADLINE, FAILURES_AT_ONCE, Guarded, LONGEST_WAIT, MISSING_FOR, OWN_PLACES,
    REMEMBERED_FOR, RETRIES, STORED_PLACES, WANTED_EVERY,
};
use casemate_keyservice::{Class, Failure, Pace};
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use crate::scripted::{CORE, GOOD, PAYLOAD, Script, Scripted, failure, root};

const EVERY_CLASS: [Class; 7] = [
    Class::Unreachable,
    Class::Throttled,
    Class::Credential,
    Class::Refused,
    Class::Undecided,
    Class::Corrupt,
    Class::NotOpened,
];

fn remote() -> (Scripted, Arc<Guarded>) {
    let key = Scripted::new(Pace::Remote);
    (key.clone(), Guarded::around(Box::new(key)))
}

/// The root key is out, and the daemon itself has found out.
async fn out() -> (Scripted, Arc<Guarded>) {
    let (key, guarded) = remote();
    key.fails(Class::Unreachable);
    for _ in 0..2 {
        own(&guarded).await.unwrap_err();
    }
    assert_eq!(guarded.condition().breaker, BreakerState::Open);
    key.take_asked();
    (key, guarded)
}

async fn own(guarded: &Guarded) -> Result<(), Failure> {
    guarded.wrap(&root(), &CORE, &PAYLOAD).await.map(|_| ())
}

async fn stored(guarded: &Guarded, wrap: &[u8]) -> Result<(), Failure> {
    guarded.unwrap_stored(&root(), &CORE, wrap).await.map(|payload| assert_eq!(*payload, PAYLOAD))
}

fn planted(number: u32) -> Vec<u8> {
    [b"planted", number.to_string().as_bytes()].concat()
}

/// Many stored calls of a wrap that opens, at once.
fn flood(guarded: &Arc<Guarded>, calls: usize) -> JoinSet<Result<(), Failure>> {
    let mut flood = JoinSet::new();
    for _ in 0..calls {
        let guarded = guarded.clone();
        flood.spawn(async move { stored(&guarded, GOOD).await });
    }
    flood
}

fn throttled(seconds: u64) -> Failure {
    Failure { retry_after: Some(Duration::from_secs(seconds)), ..failure(Class::Throttled) }
}

fn counts(guarded: &Guarded) -> Counts {
    guarded.condition().counts
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_by_the_deadline() {
    let (key, guarded) = remote();
    key.is(Script::Hangs);
    let started = Instant::now();
    let own = [
        guarded.observe().await.unwrap_err(),
        guarded.wrap(&root(), &CORE, &PAYLOAD).await.unwrap_err(),
        guarded.unwrap_own(&root(), &CORE, GOOD).await.unwrap_err(),
        stored(&guarded, GOOD).await.unwrap_err(),
    ];
    assert_eq!(started.elapsed(), DEADLINE * 4);
    for failure in own {
        assert_eq!(failure.class, Class::Unreachable);
        assert!(failure.what.contains("did not answer within 2500 ms"), "{failure}");
    }
    // Also if it waits for a place first.
    let (key, guarded) = remote();
    key.is(Script::Hangs);
    let started = Instant::now();
    let ended = flood(&guarded, 3 * STORED_PLACES).join_all().await;
    assert!(ended.iter().all(Result::is_err));
    assert_eq!(started.elapsed(), DEADLINE);
    assert_eq!(guarded.condition().stored_in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_retried_with_growing_jittered_delays() {
    let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
    for _ in 0..50 {
        let (key, guarded) = remote();
        key.fails(Class::Unreachable);
        let answer = stored(&guarded, GOOD).await;
        assert_eq!(answer, Err(failure(Class::Unreachable)), "the reason itself, not a deadline");
        let asked = key.take_asked();
        assert_eq!(asked.len(), 1 + RETRIES);
        assert_eq!(counts(&guarded).retries, RETRIES as u64);
        for (index, pair) in asked.windows(2).enumerate() {
            let (base, delay) = (Duration::from_millis(50 << index), pair[1] - pair[0]);
            // The clock of the runtime is one of milliseconds.
            assert!(base <= delay && delay <= base * 2 + Duration::from_millis(2), "{index}: {delay:?}");
        }
        least = least.min(asked[1] - asked[0]);
        most = most.max(asked[1] - asked[0]);
    }
    assert!(most - least > Duration::from_millis(5), "all came at the same moment: {least:?} to {most:?}");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_is_not_retried() {
    for class in EVERY_CLASS.into_iter().filter(|class| *class != Class::Unreachable) {
        let (key, guarded) = remote();
        key.fails(class);
        assert_eq!(own(&guarded).await, Err(failure(class)));
        assert_eq!(stored(&guarded, GOOD).await, Err(failure(class)));
        assert_eq!((key.calls(), counts(&guarded).retries), (2, 0), "{class:?}");
    }
    // Nor a file.
    let key = Scripted::new(Pace::Local);
    let guarded = Guarded::around(Box::new(key.clone()));
    key.fails(Class::Unreachable);
    own(&guarded).await.unwrap_err();
    assert_eq!(key.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_begins_only_while_there_is_time() {
    let (key, guarded) = remote();
    key.is(Script::FailsAfter(Duration::from_millis(1100), failure(Class::Unreachable)));
    let started = Instant::now();
    let cut_off = own(&guarded).await.unwrap_err();
    assert_eq!((started.elapsed(), key.take_asked().len()), (DEADLINE, 3));
    assert!(cut_off.what.contains("2500 ms (the attempt before: scripted)"), "{cut_off}");
    key.is(Script::FailsAfter(Duration::from_millis(2480), failure(Class::Unreachable)));
    assert_eq!(stored(&guarded, GOOD).await, Err(failure(Class::Unreachable)));
    assert_eq!(key.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_kept_to_if_it_fits() {
    let (key, guarded) = remote();
    let short = Failure { retry_after: Some(Duration::from_millis(700)), ..failure(Class::Throttled) };
    key.is(Script::Fails(short));
    stored(&guarded, GOOD).await.unwrap_err();
    let asked = key.take_asked();
    assert_eq!(asked.len(), 4, "three waits of 700 ms fit into 2500");
    assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(700)));

    key.is(Script::Fails(throttled(30)));
    let started = Instant::now();
    assert_eq!(own(&guarded).await, Err(throttled(30)));
    assert_eq!((started.elapsed(), key.take_asked().len()), (Duration::ZERO, 1));
    // Own calls wait that long, stored ones are let through.
    key.is(Script::Well);
    advance(Duration::from_secs(29)).await;
    let answered = own(&guarded).await.unwrap_err();
    assert_eq!((answered.class, answered.retry_after), (Class::Throttled, Some(Duration::from_secs(1))));
    assert_eq!((key.calls(), counts(&guarded).fast_failures), (0, 1));
    stored(&guarded, GOOD).await.unwrap();
    advance(Duration::from_secs(1)).await;
    own(&guarded).await.unwrap();
    assert_eq!(guarded.condition().breaker, BreakerState::Closed, "it has answered all the time");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_more_time_than_is_reasonable() {
    let (key, guarded) = remote();
    key.is(Script::Fails(throttled(24 * 3600)));
    own(&guarded).await.unwrap_err();
    key.is(Script::Well);
    advance(LONGEST_WAIT).await;
    own(&guarded).await.unwrap();
    // What stored calls are told does not hold back own ones: any number of them can be caused by whoever writes etcd.
    key.is(Script::Fails(throttled(3600)));
    stored(&guarded, GOOD).await.unwrap_err();
    key.is(Script::Well);
    own(&guarded).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn where_it_throttles_own_calls_give_way() {
    let (key, guarded) = remote();
    key.is(Script::Hangs);
    let reading = flood(&guarded, 1);
    tokio::task::yield_now().await;
    assert_eq!(guarded.condition().stored_in_flight, 1);
    key.is(Script::Fails(throttled(1)));
    key.take_asked();
    own(&guarded).await.unwrap_err();
    assert_eq!(key.take_asked().len(), 1);
    // With nobody to give way to, it is retried.
    drop(reading);
    advance(Duration::from_secs(1)).await;
    tokio::task::yield_now().await;
    own(&guarded).await.unwrap_err();
    assert_eq!(key.take_asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn neither_kind_of_call_waits_for_the_other() {
    let (key, guarded) = remote();
    key.is(Script::Hangs);
    let mut reading = flood(&guarded, 500);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(key.most_in_flight(), STORED_PLACES);
    assert_eq!(guarded.condition().stored_in_flight, STORED_PLACES as u64);
    key.is(Script::Well);
    let started = Instant::now();
    own(&guarded).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    reading.shutdown().await;
    assert_eq!(guarded.condition().stored_in_flight, 0, "places come back when callers go away");

    key.is(Script::Hangs);
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let guarded = guarded.clone();
        asking.spawn(async move { own(&guarded).await });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(guarded.condition().own_in_flight, OWN_PLACES as u64);
    key.is(Script::Well);
    let started = Instant::now();
    stored(&guarded, GOOD).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn bytes_from_etcd_never_move_the_breaker() {
    let (key, guarded) = remote();
    for number in 0..1000 {
        stored(&guarded, &planted(number)).await.unwrap_err();
    }
    assert_eq!(guarded.condition().breaker, BreakerState::Closed);
    assert_eq!(key.calls(), FAILURES_AT_ONCE as usize, "nobody pays for more");
    assert_eq!(counts(&guarded).limited, 1000 - u64::from(FAILURES_AT_ONCE));
    let refused = stored(&guarded, &planted(1000)).await.unwrap_err();
    assert!(refused.class == Class::Throttled && refused.what.contains("did not open"), "{refused}");
    own(&guarded).await.unwrap();
    // Not by silence either, be it of any class.
    for class in EVERY_CLASS {
        advance(Duration::from_secs(60)).await;
        key.fails(class);
        for number in 0..20 {
            stored(&guarded, &planted(number)).await.unwrap_err();
        }
        assert_eq!(guarded.condition().breaker, BreakerState::Closed, "{class:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_plants_at_once_gets_no_more_than_places_on_top() {
    let (key, guarded) = remote();
    key.is(Script::Takes(Duration::from_millis(5)));
    let mut planting = JoinSet::new();
    for number in 0..1000 {
        let guarded = guarded.clone();
        planting.spawn(async move { stored(&guarded, &planted(number)).await });
    }
    assert!(planting.join_all().await.iter().all(Result::is_err));
    assert!(key.calls() <= FAILURES_AT_ONCE as usize + STORED_PLACES, "{}", key.calls());
}

#[tokio::test(start_paused = true)]
async fn what_opens_is_never_limited() {
    let (key, guarded) = remote();
    for _ in 0..1000 {
        stored(&guarded, GOOD).await.unwrap();
    }
    assert_eq!((key.calls(), counts(&guarded)), (1000, Counts::default()));
}

#[tokio::test(start_paused = true)]
async fn what_did_not_open_is_not_tried_again_for_a_while() {
    let (key, guarded) = remote();
    for _ in 0..10 {
        assert_eq!(stored(&guarded, b"planted").await, Err(failure(Class::NotOpened)));
    }
    assert_eq!((key.calls(), counts(&guarded).negative_hits), (1, 9));
    advance(REMEMBERED_FOR).await;
    stored(&guarded, b"planted").await.unwrap_err();
    assert_eq!(key.calls(), 2);
    // What may heal is tried each time.
    key.fails(Class::Refused);
    for _ in 0..3 {
        stored(&guarded, GOOD).await.unwrap_err();
    }
    assert_eq!(key.calls(), 5);
    key.is(Script::Well);
    stored(&guarded, GOOD).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_missing_version_is_in_nobodys_way_and_heals() {
    let (key, guarded) = remote();
    let absent = Root { lineage: "exec:scripted/999".parse().unwrap(), ..root() };
    key.lacks(Some(absent.lineage.clone()));
    key.is(Script::Takes(Duration::from_millis(200)));
    // 100 times a second, for two minutes, each another record, so that twenty are under way before the first is answered.
    let mut reading = JoinSet::new();
    for number in 0..12_000u32 {
        let (reader, record) = (guarded.clone(), absent.clone());
        let wrap = number.to_be_bytes();
        reading.spawn(async move { reader.unwrap_stored(&record, &CORE, &wrap).await.map(|_| ()) });
        if number % 100 == 99 {
            stored(&guarded, GOOD).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        while let Some(read) = reading.try_join_next() {
            assert_eq!(read.unwrap().unwrap_err().missing.as_ref(), Some(&absent.lineage));
        }
    }
    assert_eq!(counts(&guarded).limited, 0);
    assert!(counts(&guarded).negative_hits > 11_000, "{:?}", counts(&guarded));
    reading.join_all().await;
    key.lacks(None);
    let delivered = Instant::now();
    while guarded.unwrap_stored(&absent, &CORE, GOOD).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(delivered.elapsed() <= MISSING_FOR + Duration::from_millis(210), "{:?}", delivered.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_out_is_tried_by_one_at_a_time() {
    let (key, guarded) = out().await;
    key.is(Script::Hangs);
    advance(Duration::from_secs(34)).await;
    let mut reading = flood(&guarded, 50);
    let started = Instant::now();
    for _ in 0..49 {
        let failure = reading.join_next().await.unwrap().unwrap().unwrap_err();
        assert_eq!((failure.class, started.elapsed()), (Class::Unreachable, Duration::ZERO));
        assert!(failure.what.contains("exec:scripted/ has been out for 34 s"), "{failure}");
    }
    assert_eq!((key.calls(), counts(&guarded).fast_failures), (1, 49));
    // The one that tries is not retried, and the next one may try.
    reading.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(started.elapsed(), DEADLINE);
    key.fails(Class::Unreachable);
    for _ in 0..3 {
        stored(&guarded, GOOD).await.unwrap_err();
    }
    assert_eq!(key.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn reads_come_back_at_once_and_tell_the_daemon() {
    let (key, guarded) = out().await;
    key.is(Script::Well);
    let is_wanted = async || timeout(Duration::from_millis(1), guarded.wanted()).await.is_ok();
    assert!(!is_wanted().await);
    stored(&guarded, GOOD).await.unwrap();
    assert_eq!(guarded.condition().breaker, BreakerState::Open, "it was no own call");
    assert!(is_wanted().await);
    // Not at each of them.
    stored(&guarded, GOOD).await.unwrap();
    assert!(!is_wanted().await);
    advance(WANTED_EVERY).await;
    stored(&guarded, b"planted").await.unwrap_err();
    assert!(!is_wanted().await);
    stored(&guarded, GOOD).await.unwrap();
    assert!(is_wanted().await);
    // Two answers to own calls end it; from the first one on, all are let in.
    own(&guarded).await.unwrap();
    assert_eq!(guarded.condition().breaker, BreakerState::HalfOpen);
    key.is(Script::Takes(Duration::from_millis(10)));
    assert!(flood(&guarded, 50).join_all().await.iter().all(Result::is_ok));
    own(&guarded).await.unwrap();
    assert_eq!(guarded.condition().breaker, BreakerState::Closed);
    advance(WANTED_EVERY).await;
    stored(&guarded, GOOD).await.unwrap();
    assert!(!is_wanted().await);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_out_is_read_by_all_who_come() {
    let key = Scripted::new(Pace::Local);
    let guarded = Guarded::around(Box::new(key.clone()));
    key.fails(Class::Unreachable);
    for _ in 0..2 {
        own(&guarded).await.unwrap_err();
    }
    assert_eq!(guarded.condition().breaker, BreakerState::Open);
    key.is(Script::Takes(Duration::from_millis(10)));
    assert!(flood(&guarded, 50).join_all().await.iter().all(Result::is_ok));
    assert!(timeout(Duration::from_millis(1), guarded.wanted()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_cheapest_is_the_one_that_answers_soonest() {
    let ((quick_key, quick), (slow_key, slow), (failing_key, failing)) = (remote(), remote(), remote());
    quick_key.is(Script::Takes(Duration::from_millis(5)));
    slow_key.is(Script::Takes(Duration::from_millis(200)));
    failing_key.fails(Class::Refused);
    assert_eq!(quick.cost(), slow.cost(), "nothing is known");
    for guarded in [&quick, &slow, &failing] {
        let _ = stored(guarded, GOOD).await;
    }
    let (_, open) = out().await;
    assert!(quick.cost() < slow.cost() && slow.cost() < failing.cost() && failing.cost() < open.cost());
    // It is found out again whether that is still so.
    advance(Duration::from_secs(60)).await;
    assert_eq!(quick.cost(), failing.cost());
}

#[tokio::test(start_paused = true)]
async fn counts_go_on_under_another_configuration() {
    let (_, before) = remote();
    stored(&before, b"planted").await.unwrap_err();
    stored(&before, b"planted").await.unwrap_err();
    let (_, after) = remote();
    after.succeed(&before);
    for guarded in [&before, &after] {
        stored(guarded, b"other").await.unwrap_err();
        stored(guarded, b"other").await.unwrap_err();
    }
    assert_eq!((counts(&before).negative_hits, counts(&after).negative_hits), (3, 3));
}
