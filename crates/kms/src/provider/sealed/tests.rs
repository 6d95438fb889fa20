#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{
    AcceptedCluster, Algorithm, Epoch, Lineage, LineagePrefix, ReadPolicy, ReadRule, Root, Suite, WritePolicy,
};
use tempfile::TempDir;

use super::super::opened::{CAPACITY, Readers};
use super::*;

const NOW: u64 = 1_800_000_000;
const PASSPHRASE: &str = "correct horse battery\n";

/// A state directory on a disk, and a secret that is not on it.
struct Place {
    disk: TempDir,
    secrets: TempDir,
}

impl Place {
    fn new() -> Self {
        let secrets = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Self { disk: tempfile::tempdir().unwrap(), secrets };
        place.deliver("credential", &[*b"0123456789abcdef"; 2].concat());
        place.deliver("words", PASSPHRASE.as_bytes());
        place
    }

    fn deliver(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.secrets.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        path
    }

    fn credential(&self) -> Protection {
        Protection::credential(self.secrets.path().join("credential"))
    }

    fn passphrase(&self) -> Protection {
        Protection::passphrase(self.secrets.path().join("words"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join("test").join(name)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.disk.path().join("test")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What a start finds, before any task runs.
    fn start(&self, protection: Protection, readers: ReadPolicy) -> SealedCache {
        SealedCache {
            store: Store::open(self.disk.path(), "test").unwrap(),
            protection,
            of: of("prod"),
            kept: Arc::new(Mutex::new(State::new(Readers::new(readers, Arc::new(|| NOW))))),
            key: ArcSwapOption::empty(),
            desk: Mutex::default(),
            doomed: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            problem: ArcSwapOption::empty(),
            wake: mpsc::channel(1).0,
        }
    }

    /// A run that opened these.
    fn seal(&self, protection: Protection, opened: &[(Digest, Core, LocalKek)]) {
        let cache = self.start(protection, readers(0));
        cache.bring_up_to_date().unwrap();
        for (annotation, core, kek) in opened.iter().rev() {
            let kept = Kept::opened(core.clone(), Arc::new(kek.clone()));
            lock(&cache.kept).put_first(*annotation, kept);
        }
        cache.note_change();
        cache.bring_up_to_date().unwrap();
    }
}

fn of(cluster: &str) -> CacheOf {
    CacheOf { cluster: cluster.parse().unwrap(), provider: "test".into() }
}

fn readers(min_version: u64) -> ReadPolicy {
    let rule = ReadRule {
        key: LineagePrefix::new("exec", ["a"]).unwrap(),
        algorithms: [Algorithm::EXEC].into(),
        min_version: Some(min_version),
    };
    ReadPolicy {
        cluster: "prod".parse().unwrap(),
        also_accept: Vec::new(),
        rules: vec![rule],
        origin: OriginPolicy::Signed(Vec::new()),
    }
}

/// A local KEK under a version of root key `a`.
fn opened(version: u8) -> (Digest, Core, LocalKek) {
    let (kek, version_text) = (LocalKek::generate(), version.to_string());
    let root =
        Root { lineage: Lineage::new("exec", ["a", &version_text]).unwrap(), algorithm: Algorithm::EXEC };
    let policy =
        WritePolicy::new(Suite::One, "prod".parse().unwrap(), Epoch(0), vec![root], Vec::new(), None);
    let core =
        Core { policy: policy.unwrap(), kek_id: kek.id(), created: 1, writer: "test/1".parse().unwrap() };
    ([version; 32], core, kek)
}

/// Which local KEKs a cache opens, in its order.
fn found(cache: &SealedCache) -> Vec<Digest> {
    let state = lock(&cache.kept);
    let opens = |(annotation, core, sealed): &(&Digest, &Core, &SealedKek)| {
        cache.open(annotation, core, sealed).is_some()
    };
    state.sealed().filter(opens).map(|(annotation, ..)| *annotation).collect()
}

#[test]
fn what_was_opened_is_there_at_the_next_start_in_its_order() {
    for kind in [Place::credential, Place::passphrase] {
        let (place, all) = (Place::new(), [opened(1), opened(2), opened(3)]);
        place.seal(kind(&place), &all);
        let cache = place.start(kind(&place), readers(0));
        cache.bring_up_to_date().unwrap();
        assert_eq!(found(&cache), all.each_ref().map(|(annotation, ..)| *annotation));
        assert_eq!((cache.counts().entries, cache.counts().damaged), (3, 0));
        for (annotation, core, kek) in &all {
            let sealed = *lock(&cache.kept).sealed().find(|(other, ..)| *other == annotation).unwrap().2;
            assert_eq!(cache.open(annotation, core, &sealed).unwrap().id(), kek.id());
        }
        for name in [KEY, CACHE] {
            let mode = fs::metadata(place.file(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}

#[test]
fn nothing_is_made_before_there_is_something_to_protect() {
    let place = Place::new();
    let cache = place.start(place.credential(), readers(0));
    cache.note_change();
    cache.bring_up_to_date().unwrap();
    assert!(!place.file(KEY).exists() && !place.file(CACHE).exists());
}

/// A host that has moved, or whose end date has passed while it was down.
#[test]
fn what_is_of_a_cluster_that_is_read_no_more_is_dropped_from_the_file_too() {
    let until = |until| {
        let mut policy = readers(0);
        policy.cluster = "moved".parse().unwrap();
        policy.also_accept.push(AcceptedCluster { cluster: "prod".parse().unwrap(), until });
        policy
    };
    let mut without = until(0);
    without.also_accept.clear();
    for (policy, reads) in [(until(NOW + 1), true), (until(NOW), false), (without, false)] {
        let place = Place::new();
        place.seal(place.credential(), &[opened(1)]);
        let cache = place.start(place.credential(), policy);
        cache.bring_up_to_date().unwrap();
        assert_eq!(found(&cache).len(), usize::from(reads));
        assert_eq!(cache.counts().entries, u64::from(reads));
        drop(cache);
        let cache = place.start(place.credential(), readers(0));
        cache.bring_up_to_date().unwrap();
        assert_eq!(found(&cache).len(), usize::from(reads));
    }
}

#[test]
fn what_is_read_no_more_is_dropped_from_the_file_too() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1), opened(2)]);
    let cache = place.start(place.credential(), readers(2));
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[2; 32]]);
    drop(cache);
    let cache = place.start(place.credential(), readers(0));
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[2; 32]], "not even for who reads all");
}

#[test]
fn every_flipped_bit_is_refused() {
    let (place, all) = (Place::new(), [opened(1)]);
    place.seal(place.credential(), &all);
    let peek = || peek_sealed_cache(place.disk.path(), &place.credential(), &of("prod"));
    for name in [KEY, CACHE] {
        let whole = [KEY, CACHE].map(|name| (name, fs::read(place.file(name)).unwrap()));
        let bytes = fs::read(place.file(name)).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(place.file(name), &flipped).unwrap();
            if let Ok(Some(peeked)) = peek() {
                assert!(peeked.entries == 0 && peeked.damaged > 0, "{name}, bit {bit}: it was accepted");
            }
            // The same at a start, which writes what it finds: some of them.
            if bit % 211 == 0 {
                let cache = place.start(place.credential(), readers(0));
                let done = cache.bring_up_to_date();
                assert_eq!(found(&cache), [[0; 32]; 0], "{name}, bit {bit}: it was accepted");
                assert!(done.is_err() || cache.counts().damaged > 0, "{name}, bit {bit}: nobody is told");
                if done.is_err() {
                    assert_eq!(fs::read(place.file(name)).unwrap(), flipped, "it may be right");
                }
                for (name, bytes) in &whole {
                    fs::write(place.file(name), bytes).unwrap();
                }
            }
        }
        fs::write(place.file(name), &bytes).unwrap();
    }
    assert_eq!(peek().unwrap().unwrap().entries, 1, "and whole it opens");
}

#[test]
fn changed_salts_and_iterations_are_refused() {
    let place = Place::new();
    place.seal(place.passphrase(), &[opened(1)]);
    let bytes = fs::read(place.file(KEY)).unwrap();
    let entries = fs::read(place.file(CACHE)).unwrap();
    let header = bytes.len() - casemate_keys::SEALED_LEN;
    for at in [header - 21, header - 20, header - 17, header - 16, header - 1] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(place.file(KEY), changed).unwrap();
        let cache = place.start(place.passphrase(), readers(0));
        let done = cache.bring_up_to_date();
        assert_eq!(found(&cache), [[0; 32]; 0], "byte {at}");
        assert!(done.is_err() || cache.counts().damaged > 0, "byte {at}");
        fs::write(place.file(KEY), &bytes).unwrap();
        fs::write(place.file(CACHE), &entries).unwrap();
    }
    let cache = place.start(place.passphrase(), readers(0));
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[1; 32]], "and as they were they open");
}

/// A disk that loses bytes, or a version after this one.
#[test]
fn a_sealing_key_that_can_not_be_read_is_kept_aside_with_what_it_opens() {
    let whole = Place::new();
    whole.seal(whole.credential(), &[opened(1)]);
    let [key, entries] = [KEY, CACHE].map(|name| fs::read(whole.file(name)).unwrap());
    let newer = [b"casemate sealing key 2\n", &key[23..]].concat();
    for damaged in [key[..key.len() - 1].to_vec(), Vec::new(), newer, vec![7; MAX_KEY_LEN + 1]] {
        let place = Place::new();
        place.seal(place.credential(), &[]);
        for (name, bytes) in [(KEY, &damaged), (CACHE, &entries)] {
            fs::write(place.file(name), bytes).unwrap();
        }
        let aside = [KEY, CACHE].map(|name| place.file(&format!("{name}.damaged")));
        let kept = || aside.each_ref().map(|file| fs::read(file).unwrap());
        // The second start finds neither, and what was kept.
        for _ in 0..2 {
            let cache = place.start(place.credential(), readers(0));
            cache.bring_up_to_date().unwrap();
            assert_eq!(found(&cache), [[0; 32]; 0]);
            assert!(!place.file(KEY).exists() && !place.file(CACHE).exists());
            assert_eq!(kept(), [damaged.clone(), entries.clone()]);
        }
        // It begins anew, and leaves them.
        place.seal(place.credential(), &[opened(2)]);
        assert_eq!(kept(), [damaged.clone(), entries.clone()]);
        // With a good copy of the key, all is as it was.
        fs::write(place.file(KEY), &key).unwrap();
        fs::rename(&aside[1], place.file(CACHE)).unwrap();
        let cache = place.start(place.credential(), readers(0));
        cache.bring_up_to_date().unwrap();
        assert_eq!(found(&cache), [[1; 32]]);
        // A wipe destroys what was kept, too.
        cache.doom();
        cache.bring_up_to_date().unwrap();
        assert_eq!(place.files(), [""; 0]);
    }
}

#[tokio::test]
async fn what_a_cache_has_left_is_destroyed_where_none_is_configured() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1)]);
    for name in
        ["sealing-key.new", "sealed-cache.new", "sealing-key.damaged", "sealed-cache.damaged", "record"]
    {
        fs::write(place.file(name), b"some").unwrap();
    }
    let store = Store::open(place.disk.path(), "test").unwrap();
    assert!(are_there(&store));
    destroy_leftovers(store.clone()).await;
    assert!(!are_there(&store));
    assert_eq!(place.files(), ["record"]);
}

#[test]
fn a_torn_file_gives_what_is_before_the_tear() {
    let (place, all) = (Place::new(), [opened(1), opened(2), opened(3)]);
    place.seal(place.credential(), &all);
    let bytes = fs::read(place.file(CACHE)).unwrap();
    let entry = (bytes.len() - 24) / 3;
    let lengths = (0..bytes.len()).filter(|length| (length + 2) % entry.min(24) < 4 || length % 101 == 0);
    for length in lengths {
        fs::write(place.file(CACHE), &bytes[..length]).unwrap();
        let cache = place.start(place.credential(), readers(0));
        cache.bring_up_to_date().unwrap();
        let whole = length.saturating_sub(24) / entry;
        assert_eq!(found(&cache).len(), whole, "{length}");
        let torn = length < 24 || (length - 24) % entry != 0;
        assert_eq!(cache.counts().damaged, u64::from(torn), "{length}");
        let aside = place.file("sealed-cache.damaged");
        assert_eq!(aside.exists(), length < 24, "{length}: what is no such file is kept aside");
        let _ = fs::remove_file(aside);
    }
}

#[test]
fn more_than_memory_holds_is_not_taken_in() {
    let (annotation, core, kek) = opened(1);
    let sealed = SealingKey::generate().seal(&kek, &of("prod"), &annotation, &core);
    let annotations: Vec<Digest> =
        (0..CAPACITY.get() + 5).map(|number| casemate_keys::names::sha256(&number.to_be_bytes())).collect();
    let bytes = format::render_cache(annotations.iter().map(|one| (one, &core, &sealed)));
    let (entries, refused) = format::parse_cache(&bytes).unwrap();
    assert_eq!((entries.len(), refused), (CAPACITY.get(), 5));
    assert_eq!(entries[0].annotation, annotations[0], "those used last are kept");
    let twice = format::render_cache([(&annotation, &core, &sealed); 2].into_iter());
    assert_eq!(format::parse_cache(&twice).unwrap().1, 1, "each has one entry");

    let place = Place::new();
    place.seal(place.credential(), &[]);
    fs::write(place.file(CACHE), vec![7; MAX_CACHE_LEN + 1]).unwrap();
    place.seal(place.credential(), &[opened(1)]);
    fs::write(place.file(CACHE), vec![7; MAX_CACHE_LEN + 1]).unwrap();
    let cache = place.start(place.credential(), readers(0));
    cache.bring_up_to_date().unwrap();
    assert!(place.file("sealed-cache.damaged").exists(), "it is not read into memory");
}

#[test]
fn another_secret_opens_nothing_and_destroys_nothing() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1)]);
    let files = || [KEY, CACHE].map(|name| fs::read(place.file(name)).unwrap());
    let before = files();
    let other = Protection::credential(place.deliver("other", b"another one that has 32 bytes...."));
    let absent = Protection::credential(place.secrets.path().join("absent"));
    for (protection, says) in [
        (other, "does not open"),
        (absent, "can't be read"),
        (place.passphrase(), "made with a credential, and sealedCache names a passphrase"),
    ] {
        let cache = place.start(protection, readers(0));
        for _ in 0..2 {
            cache.note_change();
            let error = cache.bring_up_to_date().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            // What is opened meanwhile must not take its place.
            let (annotation, core, kek) = opened(9);
            lock(&cache.kept).put_first(annotation, Kept::opened(core, Arc::new(kek)));
        }
        assert_eq!(files(), before, "{says}");
    }
}

#[test]
fn what_comes_late_is_taken_in_behind_what_was_opened_meanwhile() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1), opened(2)]);
    let late = Protection::credential(place.secrets.path().join("late"));
    let cache = place.start(late, readers(0));
    assert!(cache.bring_up_to_date().is_err());
    let (annotation, core, kek) = opened(9);
    lock(&cache.kept).put_first(annotation, Kept::opened(core, Arc::new(kek)));
    cache.note_change();
    place.deliver("late", &[*b"0123456789abcdef"; 2].concat());
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[9; 32], [1; 32], [2; 32]]);
    assert_eq!(cache.counts().entries, 3);
}

#[test]
fn secrets_that_protect_nothing_are_refused() {
    let place = Place::new();
    let refused = |protection: &Protection| {
        let cache = place.start(protection.clone(), readers(0));
        let (annotation, core, kek) = opened(1);
        lock(&cache.kept).put_first(annotation, Kept::opened(core, Arc::new(kek)));
        cache.note_change();
        cache.bring_up_to_date().unwrap_err().to_string()
    };
    let on_disk = place.disk.path().join("credential");
    fs::write(&on_disk, [*b"0123456789abcdef"; 2].concat()).unwrap();
    fs::set_permissions(&on_disk, Permissions::from_mode(0o400)).unwrap();
    let open = place.deliver("open", &[*b"0123456789abcdef"; 2].concat());
    fs::set_permissions(&open, Permissions::from_mode(0o404)).unwrap();
    let of_group = place.deliver("group", &[*b"0123456789abcdef"; 2].concat());
    fs::set_permissions(&of_group, Permissions::from_mode(0o460)).unwrap();
    for (protection, says) in [
        (Protection::credential(&on_disk), "on the same file system"),
        (Protection::passphrase(&on_disk), "on the same file system"),
        (Protection::credential(&open), "lets others read"),
        (Protection::credential(&of_group), "lets others read"),
        (Protection::credential(place.secrets.path()), "no regular file"),
        (Protection::credential(place.deliver("short", &[7; 31])), "31 bytes; from 32 to 4096"),
        (Protection::credential(place.deliver("zeroes", &[0; 64])), "1 different bytes"),
        (Protection::credential(place.deliver("long", &[7; 20_000])), "bytes; from 32 to 4096"),
        (Protection::passphrase(place.deliver("brief", b"thirteen long\n")), "13 bytes; from 14"),
        (Protection::passphrase(place.deliver("lines", b"one line of it\nand another")), "one line"),
    ] {
        let error = refused(&protection);
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("line of it"), "{error}");
        assert!(!place.file(KEY).exists());
    }
}

#[test]
fn ends_of_lines_are_no_part_of_a_passphrase() {
    let place = Place::new();
    place.seal(place.passphrase(), &[opened(1)]);
    for text in ["correct horse battery", "correct horse battery\r\n"] {
        let cache =
            place.start(Protection::passphrase(place.deliver(text.trim_end(), text.as_bytes())), readers(0));
        cache.bring_up_to_date().unwrap();
        assert_eq!(found(&cache), [[1; 32]]);
        let _ = fs::remove_file(place.secrets.path().join(text.trim_end()));
    }
}

#[test]
fn destroyed_is_destroyed_and_begins_anew_with_another_key() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1)]);
    let before = fs::read(place.file(KEY)).unwrap();
    let cache = place.start(place.credential(), readers(0));
    cache.bring_up_to_date().unwrap();
    cache.doom();
    assert_eq!(found(&cache), [[0; 32]; 0], "in memory at once");
    cache.bring_up_to_date().unwrap();
    assert!(!place.file(KEY).exists() && !place.file(CACHE).exists());
    cache.note_change();
    cache.bring_up_to_date().unwrap();
    assert!(!place.file(KEY).exists(), "not before a root key has opened something");

    let (annotation, core, kek) = opened(2);
    lock(&cache.kept).put_first(annotation, Kept::opened(core, Arc::new(kek)));
    cache.note_change();
    cache.bring_up_to_date().unwrap();
    assert_ne!(fs::read(place.file(KEY)).unwrap(), before);
    drop(cache);
    let cache = place.start(place.credential(), readers(0));
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[2; 32]]);
}

#[test]
fn a_wipe_that_was_cut_off_leaves_nothing_of_use() {
    let place = Place::new();
    place.seal(place.credential(), &[opened(1)]);
    fs::remove_file(place.file(KEY)).unwrap();
    let cache = place.start(place.credential(), readers(0));
    cache.bring_up_to_date().unwrap();
    assert_eq!(found(&cache), [[0; 32]; 0]);
    assert!(!place.file(CACHE).exists());
}

#[test]
fn a_look_from_beside_changes_nothing() {
    let place = Place::new();
    let peek = |of: &CacheOf| peek_sealed_cache(place.disk.path(), &place.credential(), of);
    assert_eq!(peek(&of("prod")).unwrap(), None);
    place.seal(place.credential(), &[opened(1), opened(2)]);
    let peeked = peek(&of("prod")).unwrap().unwrap();
    assert_eq!((peeked.entries, peeked.damaged, peeked.written.is_some()), (2, 0, true));
    let error = peek(&of("staging")).unwrap_err().to_string();
    assert!(
        error.contains("another cluster or provider") || error.contains("cluster or provider"),
        "{error}"
    );
    let mut bytes = fs::read(place.file(CACHE)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(place.file(CACHE), &bytes).unwrap();
    let peeked = peek(&of("prod")).unwrap().unwrap();
    assert_eq!((peeked.entries, peeked.damaged), (1, 1));
    assert_eq!(fs::read(place.file(CACHE)).unwrap(), bytes);
}
