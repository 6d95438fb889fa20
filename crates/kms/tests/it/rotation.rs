//! Three nodes, each with its own copy of the key file, through rotations and everything that happens to copies.
//! The clock is simulated: no test waits.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use casemate_keys::{Algorithm, ReadRule};
use casemate_keyservice::file::{FileKey, FileKeyId, Haste, KeyFile, Keyring, Secret, Selection, StoreError};
use casemate_keyservice::guarded::Guarded;
use casemate_kms::provider::{Observer, Provider, Settings, Store, Told, succession};
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::node::{Stored, settings_of};
use crate::process::{deliver, set_mode};

const DEK: [u8; 32] = [0x5a; 32];

/// Random numbers that a failing run can be repeated with.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The admin's own copy.
struct Admin {
    folder: TempDir,
    id: FileKeyId,
}

impl Admin {
    fn new() -> Self {
        let (folder, id) = (tempfile::tempdir().unwrap(), FileKeyId::generate());
        let admin = Self { folder, id };
        let keyring = Keyring::new(id, None, Secret::generate(), Timestamp::now());
        admin.file().create(&keyring).unwrap();
        admin
    }

    fn file(&self) -> KeyFile {
        KeyFile::at(self.folder.path().join("main.key"))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.file().path()).unwrap()
    }

    fn stage(&self) {
        let staged = |keyring: &mut Keyring| {
            keyring.stage(Secret::generate(), Timestamp::now()).unwrap();
            Ok::<_, StoreError>(())
        };
        self.file().update(staged).unwrap();
    }

    fn activate(&self) {
        let activated = |keyring: &mut Keyring| {
            let number = keyring.highest();
            keyring.activate(number, Timestamp::now(), Haste::Now).unwrap();
            Ok::<_, StoreError>(())
        };
        self.file().update(activated).unwrap();
    }

    fn rotate(&self) {
        self.stage();
        self.activate();
    }
}

/// A control plane node: key file, state directory, and a provider that observes.
struct Node {
    folder: TempDir,
    id: FileKeyId,
    provider: Arc<Provider>,
    stop: CancellationToken,
    observing: Option<JoinHandle<()>>,
}

impl Node {
    async fn new(admin: &Admin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        deliver(&admin.bytes(), &folder.path().join("main.key"));
        Self::start(folder, admin.id).await
    }

    async fn start(folder: TempDir, id: FileKeyId) -> Self {
        let provider = Arc::new(Provider::new(settings(folder.path(), id), store(folder.path())));
        let mut observer = Observer::new(provider.clone(), None).unwrap();
        observer.look().await;
        let stop = CancellationToken::new();
        let observing = Some(tokio::spawn(observer.run(succession().1, stop.clone())));
        Self { folder, id, provider, stop, observing }
    }

    /// A new process on what the old one left.
    async fn restart(mut self) -> Self {
        self.stop.cancel();
        self.observing.take().unwrap().await.unwrap();
        let Self { folder, id, provider, .. } = self;
        drop(provider);
        Self::start(folder, id).await
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("main.key")
    }

    fn get(&self, bytes: &[u8]) {
        deliver(bytes, &self.key());
    }

    fn key_id(&self) -> Result<String, String> {
        self.provider.status(&Told::default()).map(|id| id.to_string()).map_err(|error| error.to_string())
    }

    async fn seal(&self) -> Stored {
        seal(&self.provider, &Told::default()).await
    }

    async fn read(&self, stored: &Stored) -> Result<(), String> {
        read(&self.provider, stored).await
    }
}

fn settings(folder: &Path, id: FileKeyId) -> Settings {
    let key = Guarded::around(Box::new(FileKey::new(folder.join("main.key"), id, Selection::Latest)));
    let rule =
        ReadRule { key: id.prefix(), algorithms: [Algorithm::FILE_AES256_GCM].into(), min_version: None };
    settings_of(vec![key], vec![rule])
}

fn store(folder: &Path) -> Store {
    Store::open(&folder.join("state"), "test").unwrap()
}

async fn seal(provider: &Arc<Provider>, told: &Told) -> Stored {
    let sealed = provider.encrypt(&DEK, told).await.unwrap();
    Stored {
        ciphertext: sealed.ciphertext,
        key_id: sealed.kek.key_id().to_string(),
        annotation: sealed.kek.annotation().to_vec(),
    }
}

async fn read(provider: &Provider, stored: &Stored) -> Result<(), String> {
    match stored.open(provider).await {
        Ok(plaintext) if **plaintext == DEK => Ok(()),
        Ok(_) => panic!("another plaintext"),
        Err(error) => Err(error.to_string()),
    }
}

/// What kube-apiservers do all the time: Status, Encrypt on the same connection, reads of what anybody wrote.
struct Load {
    written: Arc<Mutex<Vec<Stored>>>,
    /// The key ids of each node as its Status named them, without repetitions in a row.
    seen: Vec<Arc<Mutex<Vec<String>>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(nodes: &[Node], seed: u64) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen: Vec<_> = nodes.iter().map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
        let mut tasks = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let (provider, written, seen) = (node.provider.clone(), written.clone(), seen[index].clone());
            let mut random = Random(seed + 977 * (index as u64 + 1));
            tasks.push(tokio::spawn(async move {
                let told = Told::default();
                loop {
                    let named = provider.status(&told).unwrap().to_string();
                    {
                        let mut seen = seen.lock().unwrap();
                        if seen.last() != Some(&named) {
                            seen.push(named.clone());
                        }
                    }
                    sleep(Duration::from_millis(random.below(9_900))).await;
                    let stored = seal(&provider, &told).await;
                    assert_eq!(stored.key_id, named, "Encrypt keeps to its Status");
                    let read_again = {
                        let mut written = written.lock().unwrap();
                        written.push(stored);
                        let count = written.len() as u64;
                        [count - 1, random.below(count), random.below(count)]
                            .map(|at| written[usize::try_from(at).unwrap()].clone())
                    };
                    for stored in &read_again {
                        read(&provider, stored).await.unwrap();
                    }
                    sleep(Duration::from_millis(random.below(2_000))).await;
                }
            }));
        }
        Self { written, seen, tasks }
    }

    async fn end(self) -> (Vec<Stored>, Vec<Vec<String>>) {
        for task in self.tasks {
            assert!(!task.is_finished(), "a writer or reader failed: {:?}", task.await);
            task.abort();
            let _ = task.await;
        }
        let written = std::mem::take(&mut *self.written.lock().unwrap());
        (written, self.seen.iter().map(|seen| seen.lock().unwrap().clone()).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn ten_rotations_under_load_in_any_order_and_late() {
    for seed in [1, 2, 3] {
        let admin = Admin::new();
        let mut random = Random(seed * 0x9e37_79b9);
        let nodes = [Node::new(&admin).await, Node::new(&admin).await, Node::new(&admin).await];
        let load = Load::on(&nodes, seed);
        for _ in 0..10 {
            admin.stage();
            let staged = admin.bytes();
            for node in &nodes {
                sleep(Duration::from_millis(random.below(5_000))).await;
                node.get(&staged);
            }
            admin.activate();
            let activated = admin.bytes();
            let mut order = [0, 1, 2];
            order.swap(0, usize::try_from(random.below(3)).unwrap());
            order.swap(1, 1 + usize::try_from(random.below(2)).unwrap());
            for index in order {
                sleep(Duration::from_millis(random.below(40_000))).await;
                nodes[index].get(&activated);
            }
            let delivered = Instant::now();
            while !agree(&nodes) {
                assert!(delivered.elapsed() <= Duration::from_secs(60), "seed {seed}: they do not agree");
                sleep(Duration::from_secs(1)).await;
            }
        }
        sleep(Duration::from_secs(15)).await;
        let (written, seen) = load.end().await;
        for seen in &seen {
            let distinct: HashSet<_> = seen.iter().collect();
            assert_eq!(seen.len(), 11, "seed {seed}: once per activation: {seen:?}");
            assert_eq!(distinct.len(), 11, "seed {seed}: never back: {seen:?}");
            assert_eq!(seen, &nodes_order(&written, seen), "seed {seed}");
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: the same on all nodes");

        // Everything ever written is read by every node, by those that have seen nothing too.
        let fresh = Node::new(&admin).await;
        for node in nodes.iter().chain([&fresh]) {
            for stored in &written {
                node.read(stored).await.unwrap();
            }
        }
        // One opening for each local KEK, whatever came of it.
        let records: HashSet<_> = written.iter().map(|stored| &stored.annotation).collect();
        assert!(fresh.provider.opened_counts().opened <= records.len() as u64);
    }
}

/// The key ids of `seen`, as far as anything was written under them, in the order of `seen`.
fn nodes_order(written: &[Stored], seen: &[String]) -> Vec<String> {
    let used: HashSet<_> = written.iter().map(|stored| stored.key_id.as_str()).collect();
    seen.iter().filter(|key_id| used.contains(key_id.as_str())).cloned().collect()
}

fn agree(nodes: &[Node]) -> bool {
    let ids: HashSet<_> = nodes.iter().map(Node::key_id).collect();
    ids.len() == 1 && ids.iter().all(Result::is_ok)
}

#[tokio::test(start_paused = true)]
async fn restarts_in_the_middle_of_rotations() {
    let admin = Admin::new();
    let mut nodes = vec![Node::new(&admin).await, Node::new(&admin).await, Node::new(&admin).await];
    let mut random = Random(0xfeed);
    let mut written = Vec::new();
    for round in 0..6 {
        admin.stage();
        for node in &nodes {
            node.get(&admin.bytes());
        }
        admin.activate();
        let index = round % 3;
        nodes[index].get(&admin.bytes());
        // Before, between and after the two sightings.
        sleep(Duration::from_millis(random.below(25_000))).await;
        let before = nodes[index].key_id().unwrap();
        let node = nodes.remove(index).restart().await;
        nodes.insert(index, node);
        let after = nodes[index].key_id().unwrap();
        written.push(nodes[index].seal().await);
        let active = nodes[index].seal().await.key_id;
        assert_eq!(after, active);
        assert!(after != before || written.iter().any(|stored| stored.key_id == before));
        for node in &nodes {
            node.get(&admin.bytes());
        }
        sleep(Duration::from_secs(60)).await;
        assert!(agree(&nodes));
        assert_eq!(nodes[index].key_id().unwrap(), after, "a restarted node has it already");
        for node in &nodes {
            written.push(node.seal().await);
            for stored in &written {
                node.read(stored).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_skipped_names_what_it_misses_and_heals() {
    let admin = Admin::new();
    let (writer, skipped) = (Node::new(&admin).await, Node::new(&admin).await);
    let first = writer.seal().await;
    admin.rotate();
    writer.get(&admin.bytes());
    sleep(Duration::from_secs(60)).await;
    let second = writer.seal().await;
    assert_ne!(first.key_id, second.key_id);
    for _ in 0..2 {
        let error = skipped.read(&second).await.unwrap_err();
        for told in [second.key_id.as_str(), "version 2 is not in key file", "deliver the current key file"] {
            assert!(error.contains(told), "{error}");
        }
        assert!(error.contains(&skipped.key().display().to_string()), "{error}");
        skipped.read(&first).await.unwrap();
        assert_eq!(skipped.key_id().unwrap(), first.key_id, "it goes on with what it has");
        sleep(Duration::from_secs(600)).await;
    }
    skipped.get(&admin.bytes());
    skipped.read(&second).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(skipped.key_id().unwrap(), second.key_id);
}

#[tokio::test(start_paused = true)]
async fn a_copy_from_a_backup_stops_writing_in_time_and_heals() {
    let admin = Admin::new();
    let backup = admin.bytes();
    let (node, other) = (Node::new(&admin).await, Node::new(&admin).await);
    let first = node.seal().await;
    admin.rotate();
    for node in [&node, &other] {
        node.get(&admin.bytes());
    }
    sleep(Duration::from_secs(60)).await;
    let second = node.seal().await;

    // Restored under a running process: the key id does not go back, then writing stops.
    node.get(&backup);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.key_id().unwrap(), second.key_id, "it coasts");
    other.read(&node.seal().await).await.unwrap();
    sleep(Duration::from_secs(120)).await;
    let refused = node.key_id().unwrap_err();
    for told in ["refused to wrap", "version 2 is not in key file", "deliver"] {
        assert!(refused.contains(told), "{refused}");
    }
    assert!(node.provider.encrypt(&DEK, &Told::default()).await.is_err());
    for stored in [&first, &second] {
        node.read(stored).await.unwrap();
    }
    // After a restart it is refused at once, and by name.
    let node = node.restart().await;
    let refused = node.key_id().unwrap_err();
    for told in [first.key_id.as_str(), "raise `epoch`", "--accept-reuse"] {
        assert!(refused.contains(told), "{refused}");
    }
    assert!(node.read(&second).await.unwrap_err().contains("version 2 is not in key file"));
    // Between two looks: one that it falls into may find the record closed and the version there.
    sleep(Duration::from_secs(5)).await;
    node.get(&admin.bytes());
    node.read(&second).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.key_id().unwrap(), second.key_id);
    assert_eq!(node.seal().await.annotation, second.annotation, "its local KEK is the one it had");
}

/// What happens to a key file, and what the error of a record that was never opened must say.
type Fault = (&'static str, fn(&Node), &'static str);

const FAULTS: &[Fault] = &[
    ("removed", |node| fs::remove_file(node.key()).unwrap(), "there is no key file"),
    ("emptied", |node| fs::write(node.key(), "").unwrap(), "it is empty"),
    (
        "truncated",
        |node| {
            let whole = fs::read(node.key()).unwrap();
            fs::write(node.key(), &whole[..whole.len() / 2]).unwrap();
        },
        "it was cut off",
    ),
    ("another cluster's", |node| node.get(&Admin::new().bytes()), "holds key"),
    ("world-readable", |node| set_mode(&node.key(), 0o644), "mode 0644"),
];

#[tokio::test(start_paused = true)]
async fn a_key_file_that_breaks_during_an_activation() {
    for (what, break_it, told) in FAULTS {
        let admin = Admin::new();
        let (node, other) = (Node::new(&admin).await, Node::new(&admin).await);
        let first = node.seal().await;
        let peers = other.seal().await;
        admin.rotate();
        let whole = admin.bytes();
        // Seen once, not yet confirmed.
        node.get(&whole);
        sleep(Duration::from_secs(6)).await;
        break_it(&node);
        for _ in 0..3 {
            sleep(Duration::from_secs(100)).await;
            assert_eq!(node.key_id().unwrap(), first.key_id, "{what}: it coasts");
            let stored = node.seal().await;
            node.read(&stored).await.unwrap();
            other.read(&stored).await.unwrap();
            node.read(&first).await.unwrap();
            let error = node.read(&peers).await.unwrap_err();
            assert!(error.contains(told), "{what}: {error}");
        }
        // A restart meanwhile can't write, and says why.
        let node = node.restart().await;
        let error = node.key_id().unwrap_err();
        assert!(error.contains("main.key"), "{what}: {error}");
        assert!(node.read(&first).await.is_err(), "{what}");

        node.get(&whole);
        sleep(Duration::from_secs(60)).await;
        assert_ne!(node.key_id().unwrap(), first.key_id, "{what}: it went on to the new version");
        for stored in [&first, &peers, &node.seal().await] {
            node.read(stored).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_was_cut_off_by_a_full_disk_leaves_the_old_file() {
    let admin = Admin::new();
    let node = Node::new(&admin).await;
    let first = node.seal().await;
    admin.rotate();
    // As `cp` to another name does, before the rename that never comes.
    let bytes = admin.bytes();
    fs::write(node.key().with_extension("delivery"), &bytes[..bytes.len() / 3]).unwrap();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(node.seal().await.annotation, first.annotation);
    node.get(&bytes);
    sleep(Duration::from_secs(60)).await;
    assert_ne!(node.seal().await.key_id, first.key_id);
}

#[tokio::test(start_paused = true)]
async fn no_room_for_the_record_during_an_activation() {
    let admin = Admin::new();
    let node = Node::new(&admin).await;
    let first = node.seal().await;
    // A folder in the place of the file that is written aside: no write succeeds, also for root.
    let aside = node.folder.path().join("state/test/record.new");
    fs::create_dir(&aside).unwrap();
    admin.rotate();
    node.get(&admin.bytes());
    sleep(Duration::from_secs(300)).await;
    assert_eq!(
        node.key_id().unwrap(),
        first.key_id,
        "what a restart could not find again is not written under"
    );
    node.read(&node.seal().await).await.unwrap();
    fs::remove_dir(&aside).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_ne!(node.key_id().unwrap(), first.key_id);

    // No room for the ledger: the rotation goes on, and it is noted when there is room.
    let aside = node.folder.path().join("state/test/ledger.new");
    fs::create_dir(&aside).unwrap();
    admin.rotate();
    node.get(&admin.bytes());
    sleep(Duration::from_secs(60)).await;
    let third = node.seal().await.key_id;
    let lines = || fs::read_to_string(node.folder.path().join("state/test/ledger")).unwrap().lines().count();
    assert_eq!(lines(), 2);
    fs::remove_dir(&aside).unwrap();
    sleep(Duration::from_secs(30)).await;
    assert_eq!((lines(), node.key_id().unwrap()), (3, third));
}
