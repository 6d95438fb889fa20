//! Opened local KEKs: one call for all who wait, a bounded cache, and what ends and restarts do to it.

use std::sync::Arc;

use casemate_keys::{LocalKek, Record};
use casemate_keyservice::Class;
use casemate_kms::provider::Provider;
use prost::bytes::Bytes;
use tonic::Status;

use crate::double::CAUSE;
use crate::grpc::{DEK, decrypt, double};
use crate::node::{Node, Plugin, Stored, connect, settings};

async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to this");
}

fn spawn_open(provider: &Arc<Provider>, stored: &Stored) -> tokio::task::JoinHandle<Result<Vec<u8>, String>> {
    let (provider, stored) = (provider.clone(), stored.clone());
    tokio::spawn(async move {
        let opened = stored.open(&provider).await;
        opened.map(|plaintext| plaintext.to_vec()).map_err(|error| error.to_string())
    })
}

#[tokio::test]
async fn many_decrypts_of_one_record_are_one_unwrap() {
    let key = double("a");
    let good = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    // Of a class that is not retried.
    for fails in [None, Some(Class::Credential)] {
        let node = Node::start(settings(&[&key])).await;
        key.fails(fails);
        key.open_gate(false);
        let before = key.calls().unwrap;
        let first = spawn_open(&node.provider, &good);
        until(|| key.calls().unwrap == before + 1).await;
        let waiting: Vec<_> = (0..200).map(|_| spawn_open(&node.provider, &good)).collect();
        until(|| node.provider.opened_counts().joined == 200).await;
        // The one that began it goes away; those who wait must not suffer.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        key.open_gate(true);
        for opened in waiting {
            match (opened.await.unwrap(), fails) {
                (Ok(plaintext), None) => assert_eq!(plaintext, DEK),
                (Err(error), Some(_)) => assert!(error.contains(CAUSE), "{error}"),
                (other, _) => panic!("{other:?}"),
            }
        }
        assert_eq!(key.calls().unwrap, before + 1);
        let counts = node.provider.opened_counts();
        let expected = if fails.is_some() { (0, 1) } else { (1, 0) };
        assert_eq!((counts.opened, counts.failed), expected);
        // Nothing of it stays behind that would keep a later caller from asking again.
        key.fails(None);
        assert!(node.open(&good).await.is_ok());
        assert_eq!(key.calls().unwrap, before + 1 + expected.1);
    }
}

#[tokio::test]
async fn a_stop_lets_calls_in_flight_finish() {
    let key = double("a");
    let good = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    let plugin = Plugin::serve(settings(&[&key])).await;
    let (socket, before) = (plugin.socket.clone(), key.calls().unwrap);
    key.open_gate(false);
    let calls: Vec<_> = decrypts_of(&plugin, &good, 20).await;
    until(|| key.calls().unwrap == before + 1).await;
    until(|| plugin.node.provider.opened_counts().joined == 19).await;
    let stopped = tokio::spawn(plugin.stop());
    until(|| !socket.exists()).await;
    assert!(connect(&socket).await.is_err());
    key.open_gate(true);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), DEK.as_slice());
    }
    stopped.await.unwrap();
}

/// Decrypts of `stored`, each on a connection of its own.
async fn decrypts_of(
    plugin: &Plugin,
    stored: &Stored,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<Bytes, Status>>> {
    let mut calls = Vec::new();
    for _ in 0..count {
        let (mut client, request) = (plugin.client().await, stored.request());
        calls.push(tokio::spawn(async move { decrypt(&mut client, request).await }));
    }
    calls
}

#[tokio::test]
async fn what_opens_nothing_takes_no_place_in_the_cache() {
    let (a, b) = (double("a"), double("b"));
    let node = Node::start(settings(&[&a, &b])).await;
    let good = node.seal(DEK).await;
    let held = node.provider.opened_counts().held;
    // Who writes etcd can change the second wrap as often as they like: the first still opens.
    for planted in 0..50_u8 {
        let record = good.record();
        let mut wraps: Vec<_> = record.wraps().map(|(_, wrap)| wrap.to_vec()).collect();
        wraps[1] = vec![planted; 92];
        let changed = Record::new(record.core().clone(), wraps, Vec::new(), None).unwrap();
        let planted = Stored { annotation: changed.encode(), ..good.clone() };
        assert!(node.open(&planted).await.unwrap_err().to_string().contains("restore the object"));
    }
    assert_eq!(node.provider.opened_counts().held, held);
    assert!(node.open(&good).await.is_ok());
}

#[tokio::test]
async fn a_restarted_node_asks_once_for_what_it_writes_under() {
    let (key, folder) = (double("a"), tempfile::tempdir().unwrap());
    let node = Node::start_in(folder.path(), settings(&[&key])).await;
    let stored = node.seal(DEK).await;
    drop(node);
    let before = key.calls();
    let node = Node::start_in(folder.path(), settings(&[&key])).await;
    assert!(node.open(&stored).await.is_ok());
    assert_eq!(node.seal(DEK).await.annotation, stored.annotation);
    let (now, probe) = (key.calls(), 1);
    assert_eq!(
        (now.observe, now.wrap, now.unwrap),
        (before.observe + 1, before.wrap + 1, before.unwrap + 1 + probe)
    );
}

#[tokio::test]
async fn the_cache_is_bounded_and_counted() {
    const CAPACITY: u64 = 4096;
    let key = double("a");
    let node = Node::start(settings(&[&key])).await;
    let kek = LocalKek::generate();
    // Different wraps of one local KEK are different records.
    let forge = || Stored::forged(&[(&key, &kek)], |_| {}, DEK);
    let first = forge();
    assert!(node.open(&first).await.is_ok());
    assert_eq!(node.provider.opened_counts().held, 2, "its own and the first");
    for _ in 2..CAPACITY {
        assert!(node.open(&forge()).await.is_ok());
    }
    assert!(node.open(&first).await.is_ok());
    let full = node.provider.opened_counts();
    assert_eq!((full.held, full.evicted, full.opened, full.hits), (CAPACITY, 0, CAPACITY - 1, 1));
    for _ in 0..10 {
        assert!(node.open(&forge()).await.is_ok());
    }
    let counts = node.provider.opened_counts();
    assert_eq!((counts.held, counts.evicted), (CAPACITY, 10));
    let calls = key.calls().unwrap;
    assert!(node.open(&first).await.is_ok());
    assert_eq!(key.calls().unwrap, calls, "what was used lately stays");
    assert!(node.open(&node.seal(DEK).await).await.is_ok(), "what writes needs no place in it");
}
