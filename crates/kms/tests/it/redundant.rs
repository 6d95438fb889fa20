//! Records under two root keys, one of which is out.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::Algorithm;
use casemate_keyservice::Class;
use casemate_keyservice::guarded::BreakerState;
use casemate_kms::provider::{OBSERVE_EVERY, succession};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::double::{Calls, RootKeyDouble};
use crate::node::{Node, Stored, settings};

const DEK: [u8; 32] = [0x5e; 32];

fn double(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

fn breaker(node: &Node) -> BreakerState {
    node.provider.settings().write_keys[0].condition().breaker
}

/// Records of other nodes, each under its own local KEK.
async fn records<const N: usize>(first: &Arc<RootKeyDouble>, second: &Arc<RootKeyDouble>) -> [Stored; N] {
    let mut records = Vec::new();
    for _ in 0..N {
        records.push(Node::start(settings(&[first, second])).await.seal(&DEK).await);
    }
    records.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_up_is_asked_first() {
    let (first, second) = (double("a"), double("b"));
    let stored: [Stored; 3] = records(&first, &second).await;
    let mut node = Node::start(settings(&[&first, &second])).await;
    let before = [first.calls().unwrap, second.calls().unwrap];
    assert_eq!(**node.open(&stored[0]).await.unwrap(), DEK);
    assert_eq!([first.calls().unwrap, second.calls().unwrap], [before[0] + 1, before[1]], "equals: in order");

    // It hangs: each call would take as long as it may.
    first.is_slow(Duration::from_secs(3600));
    node.observer.look().await;
    assert_eq!(breaker(&node), BreakerState::Open);
    let (before, started) = (first.calls(), Instant::now());
    for stored in &stored[1..] {
        assert_eq!(**node.open(stored).await.unwrap(), DEK);
    }
    assert_eq!((first.calls(), started.elapsed()), (before, Duration::ZERO), "nobody waits for it");

    // With both out, each is tried once.
    second.fails(Some(Class::Unreachable));
    node.observer.look().await;
    node.observer.look().await;
    first.is_slow(Duration::ZERO);
    first.fails(Some(Class::Unreachable));
    let [unseen] = records(&double("a"), &double("b")).await;
    let before = [first.calls().unwrap, second.calls().unwrap];
    node.open(&unseen).await.unwrap_err();
    assert_eq!([first.calls().unwrap, second.calls().unwrap], before.map(|calls| calls + 1));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_succeeds_ends_the_wait_for_the_next_look() {
    let (key, same) = (double("a"), double("a"));
    let stored = Node::start(settings(&[&same])).await.seal(&DEK).await;
    let Node { provider, observer, .. } = Node::start(settings(&[&key])).await;
    let stop = CancellationToken::new();
    let (_succession, requests) = succession();
    let running = tokio::spawn(observer.run(requests, stop.clone()));
    key.fails(Some(Class::Unreachable));
    let guarded = provider.settings().write_keys[0].clone();
    let is = |state: BreakerState| guarded.condition().breaker == state;
    while !is(BreakerState::Open) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // In the middle between two looks.
    let calls = key.calls();
    while key.calls() == calls {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(OBSERVE_EVERY / 2).await;
    assert!(is(BreakerState::Open));
    key.fails(None);
    let before @ Calls { observe, .. } = key.calls();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(key.calls(), before, "nobody looks yet");
    assert_eq!(**stored.open(&provider).await.unwrap(), DEK);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(key.calls().observe > observe && is(BreakerState::Closed), "{:?}", key.calls());
    stop.cancel();
    running.await.unwrap();
}
