//! The wall clock is set, by a day, both ways.
//!
//! In the library, whose clock is a setting: the clock of a machine is everybody's, and a time namespace shifts only the
//! clocks that count from the start. Deadlines, looks and the age of a Status count on such a clock anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use casemate_keys::Algorithm;
use casemate_wire::kms_v2::StatusRequest;

use crate::double::RootKeyDouble;
use crate::node::{Node, Plugin, Stored, THEN, settings};
use crate::process::{encrypt, opens};

const DAY: u64 = 24 * 3600;
const DEK: [u8; 32] = *b"<the one DEK source of the test>";

#[tokio::test(start_paused = true)]
async fn a_day_forward_or_back_moves_nothing() {
    let key = Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT));
    let clock = Arc::new(AtomicU64::new(THEN));
    let shown = clock.clone();
    let with_clock = || {
        let (mut settings, shown) = (settings(&[&key]), shown.clone());
        settings.clock = Arc::new(move || shown.load(Ordering::SeqCst));
        settings
    };
    let mut plugin = Plugin::serve(with_clock()).await;
    let mut client = plugin.client().await;
    let first = encrypt(&mut client, &DEK).await.unwrap();
    let mut all: Vec<Stored> = vec![first.clone()];
    for now in [THEN + DAY, THEN - DAY, THEN, THEN - DAY, THEN + DAY, 0, THEN] {
        clock.store(now, Ordering::SeqCst);
        plugin.node.observer.look().await;
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        assert_eq!((status.healthz.as_str(), &status.key_id), ("ok", &first.key_id), "at {now}");
        let stored = encrypt(&mut client, &DEK).await.unwrap();
        assert_eq!(stored.annotation, first.annotation, "no new local KEK at {now}");
        all.push(stored);
        for stored in &all {
            opens(&mut client, stored, &DEK).await;
        }
    }

    // A rotation while the clock is behind: the new key id writes, and the old one does not come back with the clock.
    clock.store(THEN - DAY, Ordering::SeqCst);
    key.version_writes(2);
    plugin.node.observer.look().await;
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    plugin.node.observer.look().await;
    let rotated = encrypt(&mut plugin.client().await, &DEK).await.unwrap();
    assert_ne!(rotated.key_id, first.key_id);
    for now in [THEN + DAY, THEN - DAY] {
        clock.store(now, Ordering::SeqCst);
        plugin.node.observer.look().await;
        let mut client = plugin.client().await;
        assert_eq!(client.status(StatusRequest {}).await.unwrap().into_inner().key_id, rotated.key_id);
        all.push(encrypt(&mut client, &DEK).await.unwrap());
    }
    plugin.stop().await;

    // A process that has seen none of it, at each of these times.
    for now in [THEN - DAY, THEN, THEN + DAY] {
        clock.store(now, Ordering::SeqCst);
        let node = Node::start(with_clock()).await;
        for stored in &all {
            assert_eq!(**node.open(stored).await.unwrap(), DEK);
        }
    }
}

/// Its record was made "tomorrow": it is not gone on with if clocks can't differ so much, and read all the same.
#[tokio::test(start_paused = true)]
async fn a_restart_after_the_clock_went_back_writes_and_reads() {
    let key = Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT));
    let folder = tempfile::tempdir().unwrap();
    let mut settings_at = Vec::new();
    for now in [THEN, THEN - DAY, THEN + DAY] {
        let mut settings = settings(&[&key]);
        settings.clock = Arc::new(move || now);
        settings_at.push(settings);
    }
    let mut all = Vec::new();
    for settings in settings_at {
        let node = Node::start_in(folder.path(), settings).await;
        all.push(node.seal(&DEK).await);
        assert_eq!(all[0].key_id, all[all.len() - 1].key_id);
        for stored in &all {
            assert_eq!(**node.open(stored).await.unwrap(), DEK);
        }
    }
}
