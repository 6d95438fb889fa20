//! Where a root key that says no for good costs what was opened: nothing writes or reads with it any more.

use std::sync::Arc;
use std::time::Duration;

use casemate_keyservice::Class;
use casemate_kms::provider::{Provider, Store, Told};
use casemate_kms_state::outage::{OnRefused, Policy, State};
use tokio::time::advance;

use crate::double::RootKeyDouble;
use crate::grpc::{DEK, double};
use crate::node::{Clock, Node, settings};
use crate::sealed_cache::{Delivered, with_a_peers_record, writes};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_under_a_no_destroys_what_is_sealed_once_it_stays() {
    for on_refused in [OnRefused::Wipe, OnRefused::KeepReads] {
        let (host, key) = (Delivered::new(), double("a"));
        let (node, stored) = with_a_peers_record(&host, &key).await;
        drop(node);
        key.fails(Some(Class::Refused));
        let configured = || {
            let mut settings = settings(&[&key]);
            settings.outage.on_refused = on_refused;
            settings
        };
        let mut node = host.start(configured()).await;
        for minute in 0..2 {
            assert!(!writes(&node));
            for stored in &stored {
                assert!(node.open(stored).await.is_ok(), "minute {minute}: not yet often and long enough");
            }
            assert!(host.has_cache());
            advance(MINUTE).await;
            node.observer.look().await;
        }
        assert_eq!(node.provider.snapshot().row.state, State::Refused, "{on_refused:?}");
        let reads = on_refused == OnRefused::KeepReads;
        for stored in &stored {
            assert_eq!(node.open(stored).await.is_ok(), reads, "{on_refused:?}");
        }
        assert_eq!(host.has_cache(), reads, "{on_refused:?}");
        drop(node);

        key.fails(Some(Class::Unreachable));
        let node = host.start(configured()).await;
        assert_eq!(node.open(&stored[0]).await.is_ok(), reads, "nor does an outage after it: {on_refused:?}");
        drop(node);

        // It is as well as ever once it is allowed again.
        key.fails(None);
        let node = host.start(configured()).await;
        assert!(writes(&node) && node.open(&stored[1]).await.is_ok(), "{on_refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_under_a_no_that_ends_in_time_costs_nothing() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, stored) = with_a_peers_record(&host, &key).await;
    drop(node);
    let mut wipe = settings(&[&key]);
    wipe.outage.on_refused = OnRefused::Wipe;
    key.fails(Some(Class::Refused));
    let mut node = host.start(wipe).await;
    for class in [Some(Class::Refused), Some(Class::Unreachable), None, Some(Class::Refused), None] {
        advance(MINUTE).await;
        key.fails(class);
        node.observer.look().await;
    }
    assert!(writes(&node) && host.has_cache());
    assert_eq!(node.seal(DEK).await.key_id, stored[0].key_id);
}

async fn refusing(policy: Policy) -> (Arc<RootKeyDouble>, Node) {
    let key = double("a");
    let mut settings = settings(&[&key]);
    settings.outage.policy = policy;
    settings.outage.on_refused = OnRefused::Wipe;
    let mut node = Node::start(settings).await;
    key.fails(Some(Class::Refused));
    for _ in 0..2 {
        node.observer.look().await;
        advance(MINUTE).await;
    }
    (key, node)
}

async fn rotate(node: &mut Node, key: &RootKeyDouble, version: u32) {
    key.version_writes(version);
    for _ in 0..2 {
        node.observer.look().await;
    }
}

async fn sealed_under(provider: &Arc<Provider>, told: &Told) -> String {
    provider.encrypt(DEK, told).await.unwrap().kek.key_id().to_string()
}

/// That a connection was told of it a moment ago does not bring it back.
#[tokio::test(start_paused = true)]
async fn what_was_told_before_a_wipe_does_not_write_after_it() {
    let (key, mut node) = refusing(Policy::default()).await;
    let told = Told::default();
    let wiped = node.provider.status(&told).unwrap().to_string();
    node.observer.look().await;
    assert!(node.provider.encrypt(DEK, &told).await.is_err());
    key.fails(None);
    rotate(&mut node, &key, 2).await;
    let active = node.provider.status(&Told::default()).unwrap().to_string();
    assert_ne!(active, wiped);
    assert_eq!(sealed_under(&node.provider, &told).await, active);
}

/// Nor does it if it had left its place to another one before the wipe.
#[tokio::test(start_paused = true)]
async fn what_was_told_before_a_rotation_and_a_wipe_does_not_write_after_them() {
    let (key, mut node) = refusing(Policy::default()).await;
    let told = Told::default();
    let wiped = node.provider.status(&told).unwrap().to_string();
    node.observer.look().await;
    assert!(!writes(&node));
    // It is opened again under the same key id, which a new Status tells; the old one told of what is wiped.
    key.fails(None);
    node.observer.look().await;
    node.observer.look().await;
    let told_again = Told::default();
    assert_eq!(node.provider.status(&told_again).unwrap().to_string(), wiped);
    rotate(&mut node, &key, 2).await;
    let active = node.provider.status(&Told::default()).unwrap().to_string();
    assert_eq!(sealed_under(&node.provider, &told).await, active);
    assert_eq!(
        sealed_under(&node.provider, &told_again).await,
        wiped,
        "an ordinary switch keeps to what was told"
    );
    advance(Duration::from_secs(10)).await;
    assert_eq!(sealed_under(&node.provider, &told_again).await, active);
}

/// What a restart finds is what writes, whoever saves a record at the same time.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_ends_late_does_not_replace_the_record_of_what_took_its_place() {
    let (key, folder) = (double("a"), tempfile::tempdir().unwrap());
    let mut settings = settings(&[&key]);
    let clock = Clock::of(&mut settings);
    let mut node = Node::start_in(folder.path(), settings).await;
    let provider = node.provider.clone();
    clock.advance(100 * 24 * 3600);
    key.version_writes(2);
    node.observer.look().await;
    key.is_slow(Duration::from_millis(500));
    let looking = tokio::spawn(async move {
        node.observer.look().await;
        node
    });
    // It has seen nothing yet; the renewal takes one call more than a new local KEK.
    tokio::time::sleep(Duration::from_millis(300)).await;
    provider.encrypt(DEK, &Told::default()).await.unwrap();
    let node = looking.await.unwrap();
    let active = node.provider.status(&Told::default()).unwrap();
    // All that was under way has ended.
    key.is_slow(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stored = Store::peek_record(folder.path(), "test").unwrap().unwrap();
    assert_eq!(stored.record().unwrap().core().policy.key_id(), active);
    assert!(stored.is_whole);
}
