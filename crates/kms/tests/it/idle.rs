//! What an hour costs in which nobody asks the plugin anything, on a simulated clock.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::Algorithm;
use casemate_keyservice::guarded::Guarded;
use casemate_kms::provider::{Settings, succession};
use tokio_util::sync::CancellationToken;

use crate::double::{Calls, RootKeyDouble, guarded};
use crate::node::{Node, settings, settings_of};

const AN_HOUR: Duration = Duration::from_secs(3600);
/// For each root key: what a shared key service is asked by each of many nodes.
const MOST: u64 = 60;

/// Starts a node, and lets its observer run for an hour. Answers what these were asked in it.
async fn an_hour(settings: Settings, doubles: &[&Arc<RootKeyDouble>]) -> Vec<Calls> {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start_in(folder.path(), settings).await;
    let before: Vec<_> = doubles.iter().map(|double| double.calls()).collect();
    let (_asking, asked) = succession();
    let stop = CancellationToken::new();
    let running = tokio::spawn(node.observer.run(asked, stop.clone()));
    tokio::time::sleep(AN_HOUR).await;
    stop.cancel();
    running.await.unwrap();
    let asked = |(double, before): (&&Arc<RootKeyDouble>, Calls)| {
        let now = double.calls();
        Calls {
            observe: now.observe - before.observe,
            wrap: now.wrap - before.wrap,
            unwrap: now.unwrap - before.unwrap,
        }
    };
    doubles.iter().zip(before).map(asked).collect()
}

fn all(calls: Calls) -> u64 {
    calls.observe + calls.wrap + calls.unwrap
}

#[tokio::test(start_paused = true)]
async fn an_idle_hour_asks_each_root_key_sixty_times_at_most_and_tries_both_directions() {
    let [a, b] = ["a", "b"].map(|name| Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT)));
    for doubles in [&[&a][..], &[&a, &b]] {
        for calls in an_hour(settings(doubles), doubles).await {
            assert!(all(calls) <= MOST, "{calls:?}");
            // Two looks take less than seven minutes.
            assert!(calls.observe.min(calls.wrap).min(calls.unwrap) > 3600 / 210, "{calls:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_root_key_that_only_reads_is_asked_no_more_often() {
    let [writes, reads] =
        ["writes", "reads"].map(|name| Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT)));
    let only_reads: Arc<Guarded> = guarded(&reads);
    let mut settings = settings_of(vec![guarded(&writes)], vec![writes.rule(), reads.rule()]);
    settings.read_only_keys = vec![only_reads];
    let calls = an_hour(settings, &[&writes, &reads]).await;
    assert!(calls.iter().all(|calls| all(*calls) <= MOST), "{calls:?}");
    assert_eq!((calls[1].wrap, calls[1].unwrap), (0, 0), "nothing is wrapped with what only reads");
    assert!(calls[1].observe > 3600 / 210, "{calls:?}");
}
