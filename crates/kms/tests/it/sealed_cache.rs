//! The sealed cache: a host that starts while no root key answers.

mod program;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use casemate_keyservice::Class;
use casemate_kms::provider::{Error, Protection, SealedCounts, Settings, StoreError, Told};
use casemate_kms_state::outage::OnRefused;
use tempfile::TempDir;
use tokio::time::advance;

use crate::double::RootKeyDouble;
use crate::grpc::{DEK, double};
use crate::node::{Node, Stored, reading, settings};

/// A host: its disk, and what is delivered to it in memory alone.
pub(crate) struct Delivered {
    pub(crate) disk: TempDir,
    secrets: TempDir,
}

impl Delivered {
    pub(crate) fn new() -> Self {
        let place =
            Self { disk: tempfile::tempdir().unwrap(), secrets: tempfile::tempdir_in("/dev/shm").unwrap() };
        place.deliver("credential", b"32 bytes that look like random..");
        place
    }

    pub(crate) fn deliver(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.secrets.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn credential(&self) -> Protection {
        Protection::credential(self.secrets.path().join("credential"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join("test").join(name)
    }

    /// What this host would be if it had never had a cache.
    fn copy_without_cache(&self) -> TempDir {
        let other = tempfile::tempdir().unwrap();
        fs::create_dir(other.path().join("test")).unwrap();
        for entry in fs::read_dir(self.file("")).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if !name.starts_with("seal") {
                fs::copy(entry.path(), other.path().join("test").join(name)).unwrap();
            }
        }
        other
    }

    pub(crate) fn has_cache(&self) -> bool {
        ["sealing-key", "sealed-cache"].iter().any(|name| self.file(name).exists())
    }

    pub(crate) async fn start(&self, settings: Settings) -> Node {
        self.start_with(settings, Some(self.credential())).await
    }

    async fn start_with(&self, settings: Settings, protection: Option<Protection>) -> Node {
        start_in(self.disk.path(), settings, protection).await
    }
}

/// What writes the cache of the run before may not have let go of the folder yet.
async fn start_in(folder: &Path, settings: Settings, protection: Option<Protection>) -> Node {
    let free = || {
        !matches!(casemate_kms::provider::Store::open(folder, &settings.name), Err(StoreError::InUse { .. }))
    };
    until(free).await;
    Node::start_keeping_sealed(folder, settings, protection).await
}

async fn until(done: impl Fn() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        // Both clocks: that of the disk, and that of the tests that stands still until everybody waits.
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(10))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to this");
}

fn sealed(node: &Node) -> SealedCounts {
    node.provider.sealed_counts().unwrap()
}

/// All that `node` has opened is in its file.
async fn is_saved(node: &Node, entries: u64) {
    until(|| sealed(node).saved && sealed(node).entries == entries).await;
}

pub(crate) fn writes(node: &Node) -> bool {
    node.provider.health(&Told::default()).is_ok_and(|health| health.ok)
}

/// A node with what it wrote, and what a peer wrote and it has read.
pub(crate) async fn with_a_peers_record(host: &Delivered, key: &Arc<RootKeyDouble>) -> (Node, [Stored; 2]) {
    let peers = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    let node = host.start(settings(&[key])).await;
    let own = node.seal(DEK).await;
    assert!(node.open(&peers).await.is_ok());
    is_saved(&node, 2).await;
    (node, [own, peers])
}

#[tokio::test]
async fn a_host_starts_while_its_root_key_is_down() {
    for class in [Class::Unreachable, Class::Throttled, Class::Credential] {
        let (host, key) = (Delivered::new(), double("a"));
        let (node, stored) = with_a_peers_record(&host, &key).await;
        drop(node);
        key.fails(Some(class));

        let elsewhere = host.copy_without_cache();
        let without = start_in(elsewhere.path(), settings(&[&key]), None).await;
        for stored in &stored {
            assert!(matches!(without.open(stored).await, Err(Error::NotOpened { .. })), "{class:?}");
        }
        assert!(!writes(&without));
        drop(without);

        let before = key.calls().unwrap;
        let node = host.start(settings(&[&key])).await;
        let asked = key.calls().unwrap - before;
        for stored in &stored {
            assert_eq!(**node.open(stored).await.unwrap(), *DEK, "{class:?}");
        }
        assert_eq!(key.calls().unwrap - before, asked, "nothing is asked for what was opened before");
        assert!(writes(&node), "{class:?}: {:?}", node.provider.standing());
        let now = node.seal(DEK).await;
        assert_eq!((&now.annotation, &now.key_id), (&stored[0].annotation, &stored[0].key_id));
        assert_eq!(node.provider.opened_counts().sealed_hits, 2);
        assert_eq!(node.provider.opened_counts().opened, 0);

        // A record that nobody here has opened stays closed until the root key is back.
        let late = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
        assert!(node.open(&late).await.is_err());
        key.fails(None);
        assert!(node.open(&late).await.is_ok());
        is_saved(&node, 3).await;
    }
}

#[tokio::test]
async fn only_the_record_that_writes_is_chosen_for_writing() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, [own, peers]) = with_a_peers_record(&host, &key).await;
    drop(node);
    key.fails(Some(Class::Unreachable));
    // Bytes of a record that was never opened here.
    let unknown = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    let record = host.file("record");
    assert_eq!(fs::read(&record).unwrap(), own.annotation);
    fs::write(&record, &unknown.annotation).unwrap();
    let node = host.start(settings(&[&key])).await;
    assert!(!writes(&node), "its local KEK is nowhere");
    assert!(node.open(&peers).await.is_ok());
    drop(node);

    // Without its record there is nothing to write with, whatever is in the cache.
    fs::remove_file(&record).unwrap();
    let node = host.start(settings(&[&key])).await;
    assert!(!writes(&node));
    assert!(node.open(&own).await.is_ok());
}

#[tokio::test]
async fn an_old_local_kek_serves_on_through_a_restart() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, [own, _]) = with_a_peers_record(&host, &key).await;
    drop(node);
    key.fails(Some(Class::Unreachable));
    let mut old = settings(&[&key]);
    let clock = crate::node::Clock::of(&mut old);
    clock.advance(200 * 24 * 3600);
    let node = host.start(old).await;
    assert!(writes(&node), "{:?}", node.provider.standing());
    assert_eq!(node.seal(DEK).await.annotation, own.annotation);
}

#[tokio::test(start_paused = true)]
async fn another_credential_opens_nothing_until_the_right_one_is_delivered() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, stored) = with_a_peers_record(&host, &key).await;
    drop(node);
    key.fails(Some(Class::Unreachable));
    let other = host.deliver("later", b"another credential of 32 bytes..");
    let node = host.start_with(settings(&[&key]), Some(Protection::credential(&other))).await;
    assert!(node.open(&stored[0]).await.is_err());
    let problem = sealed(&node).problem.unwrap();
    assert!(problem.contains("does not open with what"), "{problem}");
    host.deliver("later", b"32 bytes that look like random..");
    for _ in 0..100 {
        if sealed(&node).problem.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for stored in &stored {
        assert!(node.open(stored).await.is_ok());
    }
}

#[tokio::test]
async fn a_copy_is_of_no_use_to_another_cluster_or_provider() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, _) = with_a_peers_record(&host, &key).await;
    drop(node);
    let mut others_cluster = settings(&[&key]);
    others_cluster.cluster = "staging".parse().unwrap();
    let mut others_provider = settings(&[&key]);
    others_provider.name = "other".into();
    for settings in [others_cluster, others_provider] {
        let other = tempfile::tempdir().unwrap();
        let folder = other.path().join(&settings.name);
        fs::create_dir(&folder).unwrap();
        for name in ["sealing-key", "sealed-cache"] {
            fs::copy(host.file(name), folder.join(name)).unwrap();
        }
        let node = start_in(other.path(), settings, Some(host.credential())).await;
        let problem = sealed(&node).problem.unwrap();
        assert!(problem.contains("cluster or provider"), "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wipe_destroys_what_is_on_disk_too() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, stored) = with_a_peers_record(&host, &key).await;
    drop(node);
    let mut wipe = settings(&[&key]);
    wipe.outage.on_refused = OnRefused::Wipe;
    let mut node = host.start(wipe).await;
    key.fails(Some(Class::Refused));
    for _ in 0..4 {
        assert!(host.file("sealing-key").exists(), "it was not refused often and long enough");
        advance(Duration::from_secs(60)).await;
        node.observer.look().await;
        if !writes(&node) {
            break;
        }
    }
    assert!(node.open(&stored[0]).await.is_err());
    assert!(!host.file("sealing-key").exists() && !host.file("sealed-cache").exists());
    drop(node);

    key.fails(Some(Class::Unreachable));
    let node = host.start(settings(&[&key])).await;
    for stored in &stored {
        assert!(node.open(stored).await.is_err(), "nor does an outage after it");
    }
    drop(node);

    // What a root key opens again begins a new one.
    key.fails(None);
    let node = host.start(settings(&[&key])).await;
    assert!(node.open(&stored[1]).await.is_ok());
    is_saved(&node, 2).await;
    drop(node);
    key.fails(Some(Class::Unreachable));
    let node = host.start(settings(&[&key])).await;
    assert!(node.open(&stored[1]).await.is_ok());
}

/// Reads with `b` only: whoever lists it is never refused there.
fn wiping(a: &Arc<RootKeyDouble>, b: &Arc<RootKeyDouble>) -> Settings {
    let mut settings = reading(&[a], &[b]);
    settings.outage.on_refused = OnRefused::Wipe;
    settings
}

/// Refused often and long enough, but for one look.
async fn nearly_wiped(node: &mut Node, key: &RootKeyDouble) {
    key.fails(Some(Class::Refused));
    for _ in 0..2 {
        node.observer.look().await;
        advance(Duration::from_secs(60)).await;
    }
    assert!(writes(node) || node.provider.opened_counts().held > 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_being_opened_during_a_wipe_is_not_kept_after_it() {
    let (host, a, b) = (Delivered::new(), double("a"), double("b"));
    let peers = Node::start(settings(&[&b])).await.seal(DEK).await;
    for protection in [None, Some(host.credential())] {
        b.open_gate(true);
        a.fails(None);
        let mut node = start_in(&host.disk.path().join("of"), wiping(&a, &b), protection).await;
        nearly_wiped(&mut node, &a).await;
        let before = b.calls().unwrap;
        b.open_gate(false);
        let (provider, stored) = (node.provider.clone(), peers.clone());
        let opening = tokio::spawn(async move { stored.open(&provider).await.map(drop) });
        until_now(|| b.calls().unwrap > before).await;
        node.observer.look().await;
        assert_eq!(node.provider.opened_counts().held, 0, "it is wiped");
        let (provider, stored, before) = (node.provider.clone(), peers.clone(), b.calls().unwrap);
        let after = tokio::spawn(async move { stored.open(&provider).await.map(drop) });
        until_now(|| b.calls().unwrap > before).await;
        b.open_gate(true);
        assert!(after.await.unwrap().is_ok(), "who asks after it asks anew");
        assert!(opening.await.unwrap().is_ok(), "who asked before gets an answer");
        assert_eq!(node.provider.opened_counts().held, 1, "of the two, the one that was asked for after it");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_being_made_during_a_wipe_is_not_kept_after_it() {
    let (a, b) = (double("a"), double("b"));
    let mut settings = wiping(&a, &b);
    let clock = crate::node::Clock::of(&mut settings);
    let mut node = Node::start(settings).await;
    nearly_wiped(&mut node, &a).await;
    clock.advance(100 * 24 * 3600);
    let before = a.calls().wrap;
    a.fails(None);
    a.is_slow(Duration::from_millis(100));
    let provider = node.provider.clone();
    // Long enough for its renewal, which it waits for.
    let sealing = tokio::spawn(async move { provider.encrypt(DEK, &Told::default()).await.map(drop) });
    // It looks first whether the root key is the one that it was.
    tokio::time::sleep(Duration::from_millis(100)).await;
    until_now(|| a.calls().wrap > before).await;
    a.is_slow(Duration::ZERO);
    a.fails(Some(Class::Refused));
    node.observer.look().await;
    assert_eq!(node.provider.opened_counts().held, 0, "it is wiped");
    a.fails(None);
    let (asked, sealed) = (a.calls().unwrap, sealing.await.unwrap());
    assert!(matches!(sealed, Err(Error::NotWriting { .. })), "what is wiped seals nothing: {sealed:?}");
    assert!(a.calls().unwrap > asked, "it was made");
    assert_eq!(node.provider.opened_counts().held, 0);
}

/// Until other tasks have done it, without letting any time pass.
async fn until_now(done: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to this");
}

#[tokio::test]
async fn a_start_without_it_leaves_nothing_for_the_day_it_is_configured_again() {
    let (host, key) = (Delivered::new(), double("a"));
    let (node, stored) = with_a_peers_record(&host, &key).await;
    drop(node);
    assert!(host.has_cache());
    let node = host.start_with(settings(&[&key]), None).await;
    assert!(!host.has_cache());
    assert!(node.open(&stored[1]).await.is_ok());
    drop(node);
    key.fails(Some(Class::Unreachable));
    let node = host.start(settings(&[&key])).await;
    for stored in &stored {
        assert!(node.open(stored).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wipe_destroys_what_an_earlier_configuration_left() {
    let (host, a, b) = (Delivered::new(), double("a"), double("b"));
    let mut node = host.start_with(wiping(&a, &b), None).await;
    nearly_wiped(&mut node, &a).await;
    // As if they could not be removed at the start.
    for name in ["sealing-key", "sealed-cache"] {
        fs::write(host.file(name), b"of another day").unwrap();
    }
    node.observer.look().await;
    assert_eq!(node.provider.opened_counts().held, 0);
    assert!(!host.has_cache());
}

#[tokio::test(start_paused = true)]
async fn without_wipe_it_stays_and_reads_go_on() {
    let (host, key) = (Delivered::new(), double("a"));
    let (mut node, stored) = with_a_peers_record(&host, &key).await;
    key.fails(Some(Class::Refused));
    for _ in 0..4 {
        node.observer.look().await;
        advance(Duration::from_secs(60)).await;
    }
    assert!(!writes(&node));
    drop(node);
    let node = host.start(settings(&[&key])).await;
    assert!(node.open(&stored[0]).await.is_ok());
    assert!(!writes(&node), "a root key that says no is no outage: nothing is written in its place");
}
