//! What the admin socket tells when a root key is slow, refuses, or an older one comes back.

use std::time::Duration;

use casemate_keyservice::Class;
use casemate_kms::admin::OBSERVER_HANGS_AFTER;
use tokio::time::advance;

use super::{DEK, Window, double, value};
use crate::double::{CAUSE, Lie, REMEDY};
use crate::node::{Clock, Node, settings};

#[tokio::test(start_paused = true)]
async fn a_slow_root_key_is_told_from_one_that_is_well() {
    let (slow, well) = (double("slow"), double("well"));
    let mut settings = settings(&[&slow, &well]);
    settings.key_names = vec!["first".into(), "second".into()];
    let clock = Clock::of(&mut settings);
    let mut node = Node::start(settings).await;
    let window = Window::open([node.provider.clone()]).await;
    clock.advance(60);
    slow.is_slow(Duration::from_secs(3600));
    node.observer.look().await;

    let status = window.status().await;
    assert!(status.writing, "it writes on with what it has");
    let [first, second] = &status.root_keys[..] else { panic!("{status:?}") };
    assert_eq!((first.state.as_str(), second.state.as_str()), ("failing", "ok"));
    let error = first.last_error.as_ref().unwrap();
    assert_eq!((error.class.as_str(), error.time.as_str()), ("unreachable", "2027-01-15T08:01:00Z"));
    assert_eq!(first.failing_since.as_deref(), Some("2027-01-15T08:01:00Z"));
    assert_eq!(first.last_good.as_deref(), Some("2027-01-15T08:00:00Z"));
    assert_eq!(second.last_good.as_deref(), Some("2027-01-15T08:01:00Z"), "it was asked all the same");
    let trouble = status.trouble.unwrap();
    assert_eq!((trouble.kind.as_str(), trouble.since.as_str()), ("passing", "2027-01-15T08:01:00Z"));
    assert!(trouble.message.contains("did not answer within 2500 ms"), "{}", trouble.message);
    assert_eq!(window.get("/readyz").await, (200, "ok\n".into()));

    let metrics = window.metrics().await;
    let of =
        |name: &str, key: &str| value(&metrics, &format!(r#"{name}{{provider="test",root_key="{key}"}}"#));
    assert_eq!(of("casemate_kms_root_key_failing", "first"), Some(1.0));
    assert_eq!(of("casemate_kms_root_key_failing", "second"), Some(0.0));
    assert!(of("casemate_kms_root_key_observation_age_seconds", "first") >= Some(2.5), "{metrics}");

    // It heals, and what was wrong last stays to be looked at.
    slow.is_slow(Duration::ZERO);
    clock.advance(60);
    node.observer.look().await;
    let status = window.status().await;
    let first = &status.root_keys[0];
    assert_eq!((first.state.as_str(), first.failing_since.as_deref()), ("ok", None));
    assert_eq!(first.last_good.as_deref(), Some("2027-01-15T08:02:00Z"));
    assert_eq!(first.last_error.as_ref().unwrap().class, "unreachable");
    assert!(status.trouble.is_none());
}

#[tokio::test(start_paused = true)]
async fn status_answers_while_a_look_is_stuck() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let window = Window::open([node.provider.clone()]).await;
    key.open_gate(false);
    let mut look = std::pin::pin!(node.observer.look());
    tokio::select! {
        () = &mut look => panic!("the gate is closed"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    assert!(window.status().await.writing);
    assert_eq!(window.get("/livez").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_root_key_that_refuses_is_not_ready_and_alive() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let stored = node.seal(&DEK).await;
    let window = Window::open([node.provider.clone()]).await;
    key.fails(Some(Class::Refused));
    for _ in 0..14 {
        node.observer.look().await;
        advance(Duration::from_secs(10)).await;
    }
    let status = window.status().await;
    assert!(!status.writing && status.next_write.is_none());
    let why = status.not_writing_because.unwrap();
    assert!(why.contains("has refused to wrap for two minutes") && why.contains(REMEDY), "{why}");
    assert_eq!(status.root_keys[0].last_error.as_ref().unwrap().class, "refused");
    assert_eq!(status.trouble.unwrap().kind, "refused");
    let (code, body) = window.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.starts_with("[-] provider test: does not write: ") && body.contains(CAUSE), "{body}");
    assert_eq!(window.get("/livez").await, (200, "ok\n".into()));
    let metrics = window.metrics().await;
    assert_eq!(value(&metrics, r#"casemate_kms_writing{provider="test"}"#), Some(0.0));
    assert!(!metrics.contains("key_id_hash=\"sha256"), "nothing writes, so there is no key id");
    let refused =
        r#"casemate_kms_root_key_observations_total{provider="test",root_key="exec:a/",class="refused"}"#;
    assert_eq!(value(&metrics, refused), Some(28.0), "each look asks for the version and wraps");
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
}

#[tokio::test]
async fn a_root_key_that_names_its_version_and_can_not_wrap_is_failing() {
    let key = double("a");
    let mut settings = settings(&[&key]);
    let clock = Clock::of(&mut settings);
    let mut node = Node::start(settings).await;
    let window = Window::open([node.provider.clone()]).await;
    key.lies(Some(Lie::OtherPayload));
    for _ in 0..2 {
        node.observer.look().await;
        let root = window.status().await.root_keys.remove(0);
        assert_eq!((root.state.as_str(), root.last_error.unwrap().class.as_str()), ("failing", "corrupt"));
        let since = root.failing_since.as_deref();
        assert_eq!(since, Some("2027-01-15T08:00:00Z"), "naming its version does not make it well");
        clock.advance(10);
    }
    key.lies(None);
    node.observer.look().await;
    assert_eq!(window.status().await.root_keys[0].state, "ok");
}

#[tokio::test]
async fn a_key_id_that_came_back_is_told() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let window = Window::open([node.provider.clone()]).await;
    let first = window.status().await.next_write.unwrap().key_id;
    for version in [2, 1] {
        key.version_writes(version);
        node.observer.look().await;
        node.observer.look().await;
    }
    let status = window.status().await;
    assert!(status.writing, "version 2 goes on");
    assert_ne!(status.next_write.unwrap().key_id, first);
    assert_eq!(status.refused_reuse.unwrap().key_id, first);
    let trouble = status.trouble.unwrap();
    assert_eq!(trouble.kind, "refused");
    assert!(trouble.message.contains("raise `epoch` on all nodes"), "{}", trouble.message);
    let refused = r#"casemate_kms_reuse_refused{provider="test"}"#;
    assert_eq!(value(&window.metrics().await, refused), Some(1.0));
    key.version_writes(2);
    node.observer.look().await;
    assert!(window.status().await.refused_reuse.is_none());
    assert_eq!(value(&window.metrics().await, refused), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_hangs_is_not_alive() {
    let mut node = Node::start(settings(&[&double("a")])).await;
    let window = Window::open([node.provider.clone()]).await;
    advance(OBSERVER_HANGS_AFTER - Duration::from_secs(1)).await;
    assert_eq!(window.get("/livez").await.0, 200);
    advance(Duration::from_secs(1)).await;
    let (code, body) = window.get("/livez").await;
    assert!(code == 503 && body.contains("restart the program"), "{code} {body}");
    node.observer.look().await;
    assert_eq!(window.get("/livez").await.0, 200);
}
