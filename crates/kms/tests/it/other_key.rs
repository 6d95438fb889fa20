//! Same name, other key: a root key that was deleted and made again, or restored, with nothing in its name to tell.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use casemate_keys::Algorithm;
use casemate_keyservice::Class;
use casemate_kms::provider::{Standing, Told};
use casemate_kms_state::outage::State;

use crate::double::{Calls, RootKeyDouble};
use crate::node::{Node, settings};

const DEK: [u8; 32] = [0x5a; 32];

async fn refuses(node: &Node) -> bool {
    let told = Told::default();
    let refused = node.provider.status(&told).is_err() && node.provider.encrypt(&DEK, &told).await.is_err();
    let says_why =
        matches!(&*node.provider.standing(), Standing::Refusing(why) if why.contains("under the same name"));
    refused && says_why && node.provider.snapshot().row.state == State::OtherKey
}

fn double() -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT))
}

async fn restarted(folder: &Path, key: &Arc<RootKeyDouble>) -> Node {
    Node::start_in(folder, settings(&[key])).await
}

#[tokio::test]
async fn nothing_is_written_under_it_and_what_is_open_is_read() {
    let (key, folder) = (double(), tempfile::tempdir().unwrap());
    let mut node = restarted(folder.path(), &key).await;
    let stored = node.seal(&DEK).await;
    key.is_made_again(1);
    // What was just made is opened in one look, the record in the other.
    node.observer.look().await;
    node.observer.look().await;
    assert!(refuses(&node).await);
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
    for _ in 0..4 {
        node.observer.look().await;
        assert!(refuses(&node).await, "that it wraps and opens well heals nothing");
    }

    // A restart does not make it forget, with its ledger or without.
    drop(node);
    let wraps = key.calls().wrap;
    let node = restarted(folder.path(), &key).await;
    assert!(refuses(&node).await);
    assert!(node.open(&stored).await.is_err());
    assert!(key.calls().wrap > wraps, "it was asked whether it is well");
    drop(node);
    fs::remove_file(folder.path().join("test/ledger")).unwrap();
    let mut node = restarted(folder.path(), &key).await;
    assert!(refuses(&node).await);

    // The old one is back.
    key.is_made_again(0);
    node.observer.look().await;
    assert_eq!(node.seal(&DEK).await.key_id, stored.key_id);
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
}

#[tokio::test]
async fn a_raised_epoch_writes_with_it() {
    let (key, folder) = (double(), tempfile::tempdir().unwrap());
    let before = restarted(folder.path(), &key).await.seal(&DEK).await;
    key.is_made_again(1);
    assert!(refuses(&restarted(folder.path(), &key).await).await);
    let mut settings = settings(&[&key]);
    settings.epoch.0 += 1;
    let node = Node::start_in(folder.path(), settings).await;
    assert_ne!(node.seal(&DEK).await.key_id, before.key_id);
    assert!(node.open(&before).await.is_err(), "only the old key reads that");
}

#[tokio::test]
async fn damage_on_disk_and_an_outage_are_not_another_key() {
    let (key, folder) = (double(), tempfile::tempdir().unwrap());
    let before = restarted(folder.path(), &key).await.seal(&DEK).await;
    let record = folder.path().join("test/record");
    let mut damaged = fs::read(&record).unwrap();
    let in_wrap = damaged.len() - 3;
    damaged[in_wrap] ^= 1;
    fs::write(&record, damaged).unwrap();
    let mut node = restarted(folder.path(), &key).await;
    let after = node.seal(&DEK).await;
    assert_eq!(after.key_id, before.key_id);
    assert_ne!(after.annotation, before.annotation, "a new local KEK took its place");

    for class in [Class::Unreachable, Class::Throttled, Class::Credential, Class::Corrupt] {
        key.fails(Some(class));
        node.observer.look().await;
        node.observer.look().await;
        assert_ne!(node.provider.snapshot().row.state, State::OtherKey, "{class:?}");
    }
    key.fails(None);
    node.observer.look().await;
    assert_eq!(node.seal(&DEK).await.key_id, before.key_id);
}

#[tokio::test]
async fn one_of_two_root_keys_is_another_one() {
    let (a, b) = (double(), Arc::new(RootKeyDouble::new("b", Algorithm::TRANSIT)));
    let mut node = Node::start(settings(&[&a, &b])).await;
    let stored = node.seal(&DEK).await;
    b.is_made_again(1);
    node.observer.look().await;
    node.observer.look().await;
    assert!(refuses(&node).await, "what is written must be opened by each alone");
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
}

/// The other one of two opens the record, and says nothing of the one that is another key.
#[tokio::test]
async fn a_restart_in_an_outage_does_not_write_with_it() {
    let (a, b) = (double(), Arc::new(RootKeyDouble::new("b", Algorithm::TRANSIT)));
    let folder = tempfile::tempdir().unwrap();
    let start = async || Node::start_in(folder.path(), settings(&[&a, &b])).await;
    let mut node = start().await;
    let stored = node.seal(&DEK).await;
    b.is_made_again(1);
    node.observer.look().await;
    node.observer.look().await;
    drop(node);
    b.fails(Some(Class::Unreachable));
    let mut node = start().await;
    assert!(node.provider.encrypt(&DEK, &Told::default()).await.is_err());
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
    // The right one is back: it is noted, and the next outage stops nothing.
    b.fails(None);
    b.is_made_again(0);
    node.observer.look().await;
    assert_eq!(node.seal(&DEK).await.annotation, stored.annotation);
    drop(node);
    b.fails(Some(Class::Unreachable));
    assert_eq!(start().await.seal(&DEK).await.annotation, stored.annotation);
}

#[tokio::test]
async fn a_look_while_all_is_well_is_three_calls() {
    let key = double();
    let mut node = Node::start(settings(&[&key])).await;
    for _ in 0..4 {
        let Calls { observe, wrap, unwrap } = key.calls();
        node.observer.look().await;
        assert_eq!(key.calls(), Calls { observe: observe + 1, wrap: wrap + 1, unwrap: unwrap + 1 });
    }
}
