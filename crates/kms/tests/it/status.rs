//! What Status promises: the key id of Encrypt, at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use casemate_keys::Algorithm;
use casemate_kms::provider::{MAX_KEK_AGE, STATUS_HOLDS, Told};
use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use tokio::time::{Instant, advance};

use crate::double::RootKeyDouble;
use crate::node::{Client, Clock, Node, Plugin, settings};

const DEK: [u8; 32] = [0x5a; 32];

fn key() -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT))
}

async fn status(client: &mut Client) -> String {
    client.status(StatusRequest {}).await.unwrap().into_inner().key_id
}

async fn encrypt(client: &mut Client) -> String {
    let request = EncryptRequest { plaintext: DEK.to_vec().into(), uid: String::new() };
    client.encrypt(request).await.unwrap().into_inner().key_id
}

/// Two looks: seen twice is confirmed.
async fn rotate(key: &RootKeyDouble, node: &mut Node, version: u32) {
    key.version_writes(version);
    node.observer.look().await;
    node.observer.look().await;
}

#[tokio::test(start_paused = true)]
async fn an_encrypt_keeps_to_the_status_of_its_connection_for_ten_seconds() {
    // Holds the clock: it moves only when told, whatever waits for the socket.
    let (_held, wait) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || wait.recv());

    let key = key();
    let mut plugin = Plugin::serve(settings(&[&key])).await;
    let (mut told, mut untold, mut expired) =
        (plugin.client().await, plugin.client().await, plugin.client().await);
    let before = status(&mut expired).await;
    advance(Duration::from_secs(5)).await;
    assert_eq!(status(&mut told).await, before);

    rotate(&key, &mut plugin.node, 2).await;
    let after = status(&mut plugin.client().await).await;
    assert_ne!(before, after);
    assert_eq!(encrypt(&mut untold).await, after);
    assert_eq!(encrypt(&mut told).await, before);
    advance(Duration::from_millis(4999)).await;
    assert_eq!(encrypt(&mut expired).await, before);
    advance(Duration::from_millis(1)).await;
    assert_eq!(encrypt(&mut expired).await, after);
    assert_eq!(encrypt(&mut told).await, before);
    advance(Duration::from_secs(5)).await;
    assert_eq!(encrypt(&mut told).await, after);

    // A new Status is kept to at once.
    assert_eq!(status(&mut told).await, after);
    rotate(&key, &mut plugin.node, 3).await;
    rotate(&key, &mut plugin.node, 4).await;
    assert_eq!(encrypt(&mut told).await, after);
    assert_ne!(status(&mut told).await, after);
    assert_ne!(encrypt(&mut told).await, after);
}

#[tokio::test(start_paused = true)]
async fn status_makes_no_call_and_does_not_wait() {
    let key = key();
    let mut node = Node::start(settings(&[&key])).await;
    key.is_slow(Duration::from_secs(3600));
    let (calls, started) = (key.calls(), Instant::now());
    for _ in 0..1000 {
        node.provider.status(&Told::default()).unwrap();
    }
    assert_eq!((key.calls(), started.elapsed()), (calls, Duration::ZERO));
    // Also while the observer waits for an answer, and after it got none.
    let provider = node.provider.clone();
    tokio::select! {
        biased;
        () = node.observer.look() => panic!("the root key does not answer"),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    assert!(provider.status(&Told::default()).is_ok());
    let started = Instant::now();
    node.observer.look().await;
    assert!(provider.status(&Told::default()).is_ok());
    assert!(started.elapsed() < Duration::from_secs(10), "calls are bounded");
}

#[tokio::test(start_paused = true)]
async fn before_anything_can_be_written_status_names_no_key_id() {
    let key = key();
    key.is_slow(Duration::from_secs(3600));
    let mut node = Node::start(settings(&[&key])).await;
    let error = node.provider.status(&Told::default()).unwrap_err().to_string();
    assert!(error.contains("did not answer within 2500 ms"), "{error}");
    assert!(node.provider.encrypt(&DEK, &Told::default()).await.is_err());
    key.is_slow(Duration::ZERO);
    node.observer.look().await;
    node.observer.look().await;
    assert!(node.provider.status(&Told::default()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_old_local_kek_is_replaced_at_an_encrypt() {
    let key = key();
    let mut settings = settings(&[&key]);
    let clock = Clock::of(&mut settings);
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start_in(folder.path(), settings).await;
    let first = node.seal(&DEK).await;
    clock.advance(MAX_KEK_AGE.as_secs());
    assert_eq!(node.seal(&DEK).await.annotation, first.annotation);

    clock.advance(1);
    let second = node.seal(&DEK).await;
    assert_ne!(second.annotation, first.annotation);
    assert_eq!(second.key_id, first.key_id, "it is the same write policy");
    node.observer.look().await;
    assert_eq!(node.seal(&DEK).await.annotation, second.annotation, "a look does not bring the old one back");
    assert_eq!(std::fs::read(folder.path().join("test/record")).unwrap(), second.annotation);

    // While the root key does not answer, the old one serves on, and nobody waits long.
    clock.advance(MAX_KEK_AGE.as_secs() + 1);
    key.is_slow(Duration::from_secs(3600));
    let started = Instant::now();
    assert_eq!(node.seal(&DEK).await.annotation, second.annotation);
    assert!(started.elapsed() <= Duration::from_secs(1), "{:?}", started.elapsed());
    key.is_slow(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_ne!(node.seal(&DEK).await.annotation, second.annotation);
    for stored in [&first, &second] {
        assert_eq!(**node.open(stored).await.unwrap(), DEK);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_replacement_is_finished_behind_the_back_of_the_one_who_asked() {
    let key = key();
    let mut settings = settings(&[&key]);
    let clock = Clock::of(&mut settings);
    let node = Node::start(settings).await;
    let first = node.seal(&DEK).await;
    clock.advance(MAX_KEK_AGE.as_secs() + 1);
    // Four calls of a second each: more than an Encrypt waits, less than a call may take.
    key.is_slow(Duration::from_secs(1));
    assert_eq!(node.seal(&DEK).await.annotation, first.annotation);
    let calls = key.calls();
    tokio::time::sleep(Duration::from_secs(6)).await;
    key.is_slow(Duration::ZERO);
    assert_ne!(node.seal(&DEK).await.annotation, first.annotation);
    assert_eq!(key.calls().wrap, calls.wrap + 1, "it was there already, made once");
}

#[tokio::test(start_paused = true)]
async fn many_encrypts_replace_an_old_local_kek_once() {
    let key = key();
    let mut settings = settings(&[&key]);
    let clock = Clock::of(&mut settings);
    let node = Node::start(settings).await;
    clock.advance(MAX_KEK_AGE.as_secs() + 1);
    key.is_slow(Duration::from_millis(10));
    let before = key.calls().wrap;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let provider = node.provider.clone();
            tokio::spawn(async move { provider.encrypt(&DEK, &Told::default()).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert_eq!(key.calls().wrap, before + 1);
    assert_eq!(node.provider.counts().encrypted.load(Ordering::Relaxed), 100);
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_was_told_does_not_outlive_the_right_to_write() {
    let key = key();
    let mut node = Node::start(settings(&[&key])).await;
    let told = Told::default();
    key.fails(Some(casemate_keyservice::Class::Refused));
    for _ in 0..13 {
        node.observer.look().await;
        let _ = node.provider.status(&told);
        advance(Duration::from_secs(10) - Duration::from_millis(1)).await;
    }
    advance(STATUS_HOLDS).await;
    node.observer.look().await;
    assert!(node.provider.status(&told).is_err());
    assert!(node.provider.encrypt(&DEK, &told).await.is_err());
}
