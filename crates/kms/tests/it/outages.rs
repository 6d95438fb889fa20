//! Outages under each policy, as kube-apiserver is told of them.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::Algorithm;
use casemate_keyservice::Class;
use casemate_kms::provider::Told;
use casemate_kms_state::outage::{OnRefused, Policy, Rules, State};
use casemate_wire::kms_v2::{HEALTHZ_OK, StatusRequest};
use tokio::time::advance;
use tonic::Code;

use crate::double::RootKeyDouble;
use crate::node::{Node, Plugin, settings};

const DEK: [u8; 32] = [0x5a; 32];
const FIVE_MINUTES: Duration = Duration::from_secs(300);

/// What Status says: ok, not ok, or an error; Encrypt must fit.
async fn answer(node: &Node) -> &'static str {
    let told = Told::default();
    let (health, encrypted) = (node.provider.health(&told), node.provider.encrypt(&DEK, &told).await);
    match (health, encrypted) {
        (Ok(health), Ok(encrypted)) if *encrypted.kek.key_id() == health.key_id => {
            if health.ok {
                "ok"
            } else {
                "not ok"
            }
        }
        (Err(_), Err(_)) => "error",
        other => panic!("Status and Encrypt differ: {other:?}"),
    }
}

async fn started(policy: Policy, on_refused: OnRefused) -> (Arc<RootKeyDouble>, Node) {
    let key = Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT));
    let mut settings = settings(&[&key]);
    settings.outage = Rules { policy, on_refused };
    let node = Node::start(settings).await;
    (key, node)
}

#[tokio::test(start_paused = true)]
async fn each_policy_answers_as_its_row_says() {
    let cases = [
        (Policy::Coast { until: None }, ["ok", "ok"]),
        (Policy::Coast { until: Some(FIVE_MINUTES) }, ["ok", "error"]),
        (Policy::FailAfter(FIVE_MINUTES), ["not ok", "error"]),
        (Policy::FailClosed, ["error", "error"]),
    ];
    for (policy, expected) in cases {
        for class in [Class::Unreachable, Class::Throttled, Class::Corrupt] {
            let (key, mut node) = started(policy, OnRefused::Wipe).await;
            let stored = node.seal(&DEK).await;
            key.fails(Some(class));
            for expected in expected {
                node.observer.look().await;
                assert_eq!(answer(&node).await, expected, "{policy:?}, {class:?}");
                assert_eq!(**node.open(&stored).await.unwrap(), DEK, "{policy:?}, {class:?}");
                advance(FIVE_MINUTES).await;
            }
            key.fails(None);
            node.observer.look().await;
            assert_eq!(answer(&node).await, "ok", "{policy:?}, {class:?}");
        }
        // An expired token stops nothing and wipes nothing.
        let (key, mut node) = started(policy, OnRefused::Wipe).await;
        let stored = node.seal(&DEK).await;
        key.fails(Some(Class::Credential));
        for _ in 0..4 {
            node.observer.look().await;
            assert_eq!(answer(&node).await, "ok", "{policy:?}");
            assert_eq!(node.provider.snapshot().row.state, State::Credential);
            advance(FIVE_MINUTES).await;
        }
        assert_eq!(**node.open(&stored).await.unwrap(), DEK);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_wipes_only_if_told_so_and_comes_back_under_the_same_key_id() {
    for (on_refused, reads) in [(OnRefused::KeepReads, true), (OnRefused::Wipe, false)] {
        let (key, mut node) = started(Policy::default(), on_refused).await;
        let stored = node.seal(&DEK).await;
        key.fails(Some(Class::Refused));
        for minute in 0..3 {
            assert_eq!(answer(&node).await, "ok", "minute {minute}: not yet often and long enough");
            node.observer.look().await;
            advance(Duration::from_secs(60)).await;
        }
        assert_eq!(answer(&node).await, "error");
        assert_eq!(node.open(&stored).await.is_ok(), reads, "{on_refused:?}");
        node.observer.look().await;
        assert_eq!(answer(&node).await, "error", "it stays so");
        key.fails(None);
        node.observer.look().await;
        assert_eq!(answer(&node).await, "ok", "{on_refused:?}");
        assert_eq!(node.seal(&DEK).await.key_id, stored.key_id);
        assert_eq!(**node.open(&stored).await.unwrap(), DEK);
    }
}

#[tokio::test]
async fn over_the_socket_not_ok_names_the_same_key_id() {
    let key = Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT));
    let mut settings = settings(&[&key]);
    settings.outage.policy = Policy::FailAfter(FIVE_MINUTES);
    let mut plugin = Plugin::serve(settings).await;
    let mut client = plugin.client().await;
    let well = client.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(well.healthz, HEALTHZ_OK);
    key.fails(Some(Class::Unreachable));
    plugin.node.observer.look().await;
    let failing = client.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((failing.healthz.as_str(), failing.key_id), ("not ok", well.key_id));
    plugin.stop().await;

    let mut closed = crate::node::settings(&[&key]);
    closed.outage.policy = Policy::FailClosed;
    key.fails(None);
    let mut plugin = Plugin::serve(closed).await;
    key.fails(Some(Class::Unreachable));
    plugin.node.observer.look().await;
    let error = plugin.client().await.status(StatusRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("the outage policy forbids to write"), "{error}");
}
