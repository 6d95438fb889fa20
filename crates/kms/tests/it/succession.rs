//! A provider's configuration changes beside what it serves: its successor takes over, or nothing happened.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use casemate_keys::{AcceptedCluster, Algorithm, ClusterId};
use casemate_keyservice::Class;
use casemate_kms::provider::{
    Encrypted, NotReady, Observer, Provider, Ready, Settings, Sighting, Standing, Store, Succession, Told,
    succession,
};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::double::{CAUSE, RootKeyDouble};
use crate::node::{Clock, Node, Stored, THEN, reading, settings};
use crate::process::until;

const DEK: [u8; 32] = [0x77; 32];

/// A provider whose observer runs.
pub(crate) struct Running {
    pub(crate) provider: Arc<Provider>,
    succession: Succession,
    folder: TempDir,
    _stop: DropGuard,
}

impl Running {
    pub(crate) async fn start(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &settings.name).unwrap();
        let provider = Arc::new(Provider::new(settings, store));
        let mut observer = Observer::new(provider.clone(), None).unwrap();
        observer.look().await;
        let (succession, requests) = succession();
        let stop = CancellationToken::new();
        tokio::spawn(observer.run(requests, stop.clone()));
        Self { provider, succession, folder, _stop: stop.drop_guard() }
    }

    pub(crate) async fn prepare(&self, settings: Settings) -> Result<Ready, NotReady> {
        self.succession.prepare(settings, Vec::new()).await
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        files(&self.folder.path().join("test"))
    }
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn double(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

async fn seal(provider: &Arc<Provider>) -> Stored {
    stored(&provider.encrypt(&DEK, &Told::default()).await.unwrap())
}

fn stored(sealed: &Encrypted) -> Stored {
    Stored {
        ciphertext: sealed.ciphertext.clone(),
        key_id: sealed.kek.key_id().to_string(),
        annotation: sealed.kek.annotation().to_vec(),
    }
}

fn writes(provider: &Provider) -> Option<String> {
    match &*provider.standing() {
        Standing::Writing(kek) | Standing::Failing(kek, _) => Some(kek.key_id().to_string()),
        Standing::Refusing(_) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn with_another_root_key_it_writes_at_once_and_reads_what_was_written() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let before = seal(&running.provider).await;

    let ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let successor = ready.provider().clone();
    let key_id = writes(&successor).unwrap();
    assert_ne!(key_id, before.key_id);
    // Until it begins, nothing is different.
    assert_eq!(writes(&running.provider).unwrap(), before.key_id);
    assert!(
        !String::from_utf8_lossy(&running.files()[&running.folder.path().join("test/ledger")])
            .contains(&key_id)
    );
    ready.begin();
    until("the ledger has it", async || {
        fs::read_to_string(running.folder.path().join("test/ledger")).unwrap().contains(&key_id)
    })
    .await;

    let after = seal(&successor).await;
    assert_eq!(after.key_id, key_id);
    for stored in [&before, &after] {
        assert_eq!(stored.open(&successor).await.unwrap().as_slice(), DEK);
    }
    assert_eq!(
        successor.opened_counts().opened,
        0,
        "nothing is asked again for what this process had opened"
    );
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_under_the_new_configuration_keeps_its_local_kek() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let before = seal(&running.provider).await;
    let ready = running.prepare(reading(&[&a], &[&b])).await.unwrap();
    let (successor, files) = (ready.provider().clone(), running.files());
    ready.begin();
    let after = seal(&successor).await;
    assert_eq!((&after.key_id, &after.annotation), (&before.key_id, &before.annotation));
    assert_eq!(running.files(), files);
    assert_eq!(b.calls().wrap, 0, "a key that only reads wraps nothing");
}

#[tokio::test(start_paused = true)]
async fn what_would_not_write_does_not_replace_what_writes() {
    let (a, broken) = (double("a"), double("broken"));
    let running = Running::start(settings(&[&a])).await;
    let (before, files) = (seal(&running.provider).await, running.files());
    broken.fails(Some(Class::Unreachable));
    let why = running.prepare(reading(&[&broken], &[&a])).await.unwrap_err().to_string();
    assert!(why.starts_with("it would not write: "), "{why}");
    assert_eq!((writes(&running.provider).unwrap(), running.files()), (before.key_id, files));

    // Once it answers, it does.
    broken.fails(None);
    assert!(running.prepare(reading(&[&broken], &[&a])).await.is_ok());
}

/// Whoever changes several providers may find that another one can't.
#[tokio::test(start_paused = true)]
async fn a_successor_that_never_begins_was_never_there() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let (before, files) = (seal(&running.provider).await, running.files());
    drop(running.prepare(reading(&[&b], &[&a])).await.unwrap());
    until("the record is what it was", async || running.files() == files).await;
    assert_eq!(seal(&running.provider).await.annotation, before.annotation);
    // A restart with the old configuration goes on where it was: its key id was never superseded.
    let folder = running.folder.path().to_owned();
    let Running { provider, succession, folder: kept, _stop } = running;
    drop((provider, succession, _stop));
    let mut restarted = None;
    until("the folder is free", async || {
        restarted = Store::open(&folder, "test").ok();
        restarted.is_some()
    })
    .await;
    drop(restarted);
    let node = Node::start_in(&folder, settings(&[&a])).await;
    assert_eq!(node.seal(&DEK).await.annotation, before.annotation);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn what_writes_must_stay_readable_whatever_is_said_to_be_gone() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let why = running.prepare(settings(&[&b])).await.unwrap_err().to_string();
    assert!(why.contains("could not be read any more; first write with another root key"), "{why}");

    // After it was moved behind the other one, it can go; what was opened under it goes too.
    let before = seal(&running.provider).await;
    let ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let second = ready.provider().clone();
    ready.begin();
    assert!(before.open(&second).await.is_ok());
    assert_eq!(second.opened_counts().held, 2);
    let policy = settings(&[&b]).read_policy;
    assert_eq!(second.unreadable_by(&policy).len(), 1, "it says whose records it has seen");
    let ready = running.prepare(settings(&[&b])).await.unwrap();
    let third = ready.provider().clone();
    ready.begin();
    until("it is dropped", async || third.opened_counts().held == 1).await;
    assert!(before.open(&third).await.is_err());
}

/// A Decrypt that began before the change ends after it.
#[tokio::test(start_paused = true)]
async fn what_is_opened_late_is_not_kept_if_it_is_read_no_more() {
    let staging = || "staging".parse::<ClusterId>().unwrap();
    let accepting = |keys: Settings, until: u64| {
        let mut settings = keys;
        settings.read_policy.also_accept.push(AcceptedCluster { cluster: staging(), until });
        settings
    };
    let at_least = |version: u64, keys: Settings| {
        let mut settings = keys;
        settings.read_policy.rules[1].min_version = Some(version);
        settings
    };
    let (a, b) = (double("a"), double("b"));
    let both = || reading(&[&a], &[&b]);
    let mut of_staging = settings(&[&b]);
    of_staging.cluster = staging();
    of_staging.read_policy.cluster = staging();
    let ours = Node::start(settings(&[&b])).await.seal(&DEK).await;
    let theirs = Node::start(of_staging).await.seal(&DEK).await;
    for (record, before, after, passes, kept) in [
        (&ours, both(), both(), 0, true),
        (&ours, both(), settings(&[&a]), 0, false),
        (&ours, both(), at_least(2, both()), 0, false),
        (&theirs, accepting(both(), THEN + 9), accepting(both(), THEN + 9), 8, true),
        (&theirs, accepting(both(), THEN + 9), accepting(both(), THEN + 9), 9, false),
        (&theirs, accepting(both(), THEN + 9), both(), 0, false),
    ] {
        let (mut before, mut after) = (before, after);
        let clock = Clock::of(&mut before);
        after.clock = before.clock.clone();
        let running = Running::start(before).await;
        let asked = b.calls().unwrap;
        b.open_gate(false);
        let (provider, stored) = (running.provider.clone(), record.clone());
        let opening = tokio::spawn(async move { stored.open(&provider).await.map(drop) });
        until("it asks", async || b.calls().unwrap > asked).await;
        let ready = running.prepare(after).await.unwrap();
        let successor = ready.provider().clone();
        ready.begin();
        clock.advance(passes);
        b.open_gate(true);
        opening.await.unwrap().unwrap();
        assert_eq!(successor.opened_counts().held, 1 + u64::from(kept), "{passes} {kept}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_opened_of_a_cluster_that_is_read_no_more_is_dropped() {
    let a = double("a");
    let (mut of_staging, mut accepting) = (settings(&[&a]), settings(&[&a]));
    let cluster: ClusterId = "staging".parse().unwrap();
    of_staging.cluster = cluster.clone();
    of_staging.read_policy.cluster = cluster.clone();
    accepting.read_policy.also_accept.push(AcceptedCluster { cluster, until: THEN + 1 });
    let theirs = Node::start(of_staging).await.seal(&DEK).await;
    let running = Running::start(accepting).await;
    theirs.open(&running.provider).await.unwrap();
    assert_eq!(running.provider.opened_counts().held, 2);
    let ready = running.prepare(settings(&[&a])).await.unwrap();
    let successor = ready.provider().clone();
    ready.begin();
    assert_eq!(successor.opened_counts().held, 1);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_write_takes_what_it_gets() {
    let (a, b) = (double("a"), double("b"));
    a.fails(Some(Class::Unreachable));
    b.fails(Some(Class::Unreachable));
    let running = Running::start(settings(&[&a])).await;
    assert_eq!(writes(&running.provider), None);
    let ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let successor = ready.provider().clone();
    ready.begin();
    b.fails(None);
    until("it heals", async || writes(&successor).is_some()).await;
}

/// Configuration A, B, A: the key id of A was active before that of B.
#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_put_back_needs_a_raised_epoch() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(reading(&[&a], &[&b])).await;
    running.prepare(reading(&[&b], &[&a])).await.unwrap().begin();
    let why = running.prepare(reading(&[&a], &[&b])).await.unwrap_err().to_string();
    assert!(why.contains("raise `epoch`"), "{why}");
    let mut raised = reading(&[&a], &[&b]);
    raised.epoch = casemate_keys::Epoch(1);
    running.prepare(raised).await.unwrap().begin();
}

/// What a connection was told still writes for ten seconds, but not what nobody could read.
#[tokio::test(start_paused = true)]
async fn what_was_told_does_not_write_once_nothing_reads_it() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let told = Told::default();
    running.provider.status(&told).unwrap();
    let ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let second = ready.provider().clone();
    ready.begin();
    let sealed = second.encrypt(&DEK, &told).await.unwrap();
    assert_ne!(Some(sealed.kek.key_id().to_string()), writes(&second), "it keeps to what was told");
    let ready = running.prepare(settings(&[&b])).await.unwrap();
    let third = ready.provider().clone();
    ready.begin();
    let sealed = third.encrypt(&DEK, &told).await.unwrap();
    assert_eq!(Some(sealed.kek.key_id().to_string()), writes(&third));
    assert_eq!(stored(&sealed).open(&third).await.unwrap().as_slice(), DEK);
}

/// The same root keys, reached in another way: a key file at another path.
#[tokio::test(start_paused = true)]
async fn a_root_key_that_answers_must_answer_then_too() {
    let (a, b, c) = (double("a"), double("b"), double("c"));
    let running = Running::start(reading(&[&a], &[&b])).await;
    let files = running.files();
    let (elsewhere_a, elsewhere_b) = (double("a"), double("b"));
    for elsewhere in [&elsewhere_a, &elsewhere_b] {
        elsewhere.fails(Some(Class::Unreachable));
    }
    for changed in [
        reading(&[&elsewhere_a], &[&b]),
        reading(&[&a], &[&elsewhere_b]),
        reading(&[&c], &[&elsewhere_a, &b]),
        reading(&[&a, &elsewhere_b], &[]),
    ] {
        let why = running.prepare(changed).await.unwrap_err().to_string();
        assert!(why.contains("answers now and would not any more") && why.contains(CAUSE), "{why}");
    }
    assert_eq!(running.files(), files);
    // What does not answer now may be looked for elsewhere, and an outage keeps nobody from adding a reader.
    b.fails(Some(Class::Unreachable));
    drop(running.prepare(reading(&[&a], &[&elsewhere_b])).await.unwrap());
    a.fails(Some(Class::Unreachable));
    drop(running.prepare(reading(&[&elsewhere_a], &[&b, &c])).await.unwrap());
}

fn listed(name: &str, versions: &[u32]) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT).listing(versions))
}

/// What is counted of its root keys goes on.
fn goes_on(before: &Provider, after: &Provider) -> Vec<bool> {
    let (before, after) = (before.snapshot(), after.snapshot());
    let same = |(one, other): (&Sighting, &Sighting)| {
        Arc::ptr_eq(&one.observed, &other.observed) && Arc::ptr_eq(&one.opened, &other.opened)
    };
    before.root_keys.iter().zip(&after.root_keys).map(same).collect()
}

/// So keys in a token are rotated.
#[tokio::test(start_paused = true)]
async fn a_root_key_with_a_longer_list_of_keys_is_the_same_one() {
    let short = listed("a", &[1]);
    let running = Running::start(settings(&[&short])).await;
    short.fails(Some(Class::Unreachable));
    running.provider.settings().write_keys[0].observe().await.unwrap_err();
    short.fails(None);
    let counts = |provider: &Provider| provider.settings().write_keys[0].condition().counts;
    let before = counts(&running.provider);
    assert!(before.retries > 0);

    let longer = listed("a", &[1, 2]);
    longer.fails(Some(Class::Unreachable));
    let error = running.prepare(settings(&[&longer])).await.unwrap_err().to_string();
    assert!(error.starts_with("a root key answers now and would not any more"), "{error}");
    longer.fails(None);
    let ready = running.prepare(settings(&[&longer])).await.unwrap();
    let successor = ready.provider().clone();
    assert!(counts(&successor).retries >= before.retries);
    assert_eq!(goes_on(&running.provider, &successor), [true]);
    let seen = successor.snapshot().root_keys[0].clone();
    assert!(seen.last_good.is_some() && seen.root == Some(short.root()));
}

#[tokio::test(start_paused = true)]
async fn of_a_root_key_that_is_split_one_part_goes_on() {
    let (a, both) = (double("a"), listed("b", &[1, 2]));
    let running = Running::start(reading(&[&a], &[&both])).await;
    let parts = [listed("b", &[2]), listed("b", &[1])];
    parts[0].version_writes(2);
    let ready = running.prepare(reading(&[&a], &[&parts[0], &parts[1]])).await.unwrap();
    assert_eq!(goes_on(&running.provider, ready.provider()), [true, true]);
    let (before, after) = (running.provider.snapshot(), ready.provider().snapshot());
    assert!(!Arc::ptr_eq(&before.root_keys[1].opened, &after.root_keys[2].opened), "it would count twice");
    assert_eq!(after.root_keys[1].root, None, "the version that it named is the other's now");
}

/// Another service has a key of that name, which answers as well as the right one.
#[tokio::test(start_paused = true)]
async fn who_does_not_open_what_is_written_does_not_take_over() {
    let (a, elsewhere, b) = (double("a"), double("a"), double("b"));
    elsewhere.is_made_again(1);
    let running = Running::start(settings(&[&a])).await;
    for changed in [settings(&[&elsewhere]), settings(&[&elsewhere, &b]), reading(&[&b], &[&elsewhere])] {
        let why = running.prepare(changed).await.unwrap_err().to_string();
        assert!(why.contains("could not be opened any more"), "{why}");
    }
    drop(running.prepare(settings(&[&a, &b])).await.unwrap());
    // In an outage nobody can tell, and nothing is lost that opened now.
    a.fails(Some(Class::Unreachable));
    drop(running.prepare(settings(&[&elsewhere])).await.unwrap());
}

/// It would go on, and refuse to write after a restart.
#[tokio::test(start_paused = true)]
async fn a_version_that_wrote_before_or_is_not_read_does_not_take_over() {
    let a = double("a");
    let running = Running::start(settings(&[&a])).await;
    let first = writes(&running.provider).unwrap();
    a.version_writes(2);
    running.provider.refresh();
    until("version 2 writes", async || writes(&running.provider).unwrap() != first).await;
    let (now, pinned) = (writes(&running.provider), double("a"));
    let why = running.prepare(settings(&[&pinned])).await.unwrap_err().to_string();
    assert!(why.contains(&first) && why.contains("raise `epoch`"), "{why}");
    pinned.version_writes(3);
    let mut next_only = settings(&[&pinned]);
    next_only.read_policy.rules[0].min_version = Some(4);
    let why = running.prepare(next_only).await.unwrap_err().to_string();
    assert!(why.contains("could not be read any more"), "{why}");
    pinned.version_writes(1);
    let mut raised = settings(&[&pinned]);
    raised.read_policy.rules[0].min_version = Some(2);
    let why = running.prepare(raised).await.unwrap_err().to_string();
    assert!(why.contains("minReadVersion 2"), "{why}");
    assert_eq!(writes(&running.provider), now);
}

/// A configuration that can't be taken over is tried again every ten seconds.
#[tokio::test(start_paused = true)]
async fn successors_that_never_begin_leave_nothing_in_memory() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let held = running.provider.opened_counts().held;
    for _ in 0..3 {
        drop(running.prepare(reading(&[&b], &[&a])).await.unwrap());
    }
    assert_eq!(running.provider.opened_counts().held, held);
}

/// Whatever is killed after the first answer: what wrote before does not come back.
#[tokio::test(start_paused = true)]
async fn the_ledger_has_a_key_id_before_it_is_told() {
    let (a, b) = (double("a"), double("b"));
    let running = Running::start(settings(&[&a])).await;
    let (before, files) = (writes(&running.provider), running.files());
    let mut ready = running.prepare(reading(&[&b], &[&a])).await.unwrap();
    let key_id = writes(ready.provider()).unwrap();
    ready.note().await;
    let ledger = &running.files()[&running.folder.path().join("test/ledger")];
    assert!(String::from_utf8_lossy(ledger).contains(&key_id));
    assert_eq!(writes(&running.provider), before);
    // It may still not get its turn.
    drop(ready);
    until("all is what it was", async || running.files() == files).await;
}
