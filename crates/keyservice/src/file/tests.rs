#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;

const CORE: Digest = [7; 32];
const PAYLOAD: [u8; payload::LEN] = [5; payload::LEN];

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A node's folder with its copy of the key file.
struct Node {
    _folder: TempDir,
    file: KeyFile,
    id: FileKeyId,
}

impl Node {
    fn with(keyring: &Keyring) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::at(folder.path().join("root.key"));
        file.create(keyring).unwrap();
        Self { _folder: folder, file, id: keyring.id() }
    }

    fn new() -> Self {
        Self::with(&Keyring::new(FileKeyId::generate(), None, Secret::generate(), at(1_000)))
    }

    fn key(&self, selection: Selection) -> FileKey {
        FileKey::new(self.file.path(), self.id, selection)
    }

    fn latest(&self) -> FileKey {
        self.key(Selection::Latest)
    }

    fn rotate(&self) -> u32 {
        self.file
            .update(|keyring| {
                let number = keyring.stage(Secret::generate(), at(2_000)).unwrap();
                keyring.activate(number, at(2_000), Haste::Now).unwrap();
                Ok::<_, StoreError>(number)
            })
            .unwrap()
    }

    fn retire(&self, number: u32) {
        let retired = self.file.update(|keyring| {
            keyring.retire(number, at(1_700_000_000)).unwrap();
            Ok::<_, StoreError>(())
        });
        retired.unwrap();
    }

    fn deliver_to(&self, other: &Self) {
        fs::copy(self.file.path(), other.file.path()).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.file.path()).unwrap()
    }
}

#[tokio::test]
async fn what_a_version_wraps_it_unwraps() {
    let node = Node::new();
    let key = node.latest();
    let first = key.observe().await.unwrap();
    assert!(key.prefix().rest(&first.lineage).unwrap().starts_with("1/"));
    let wrap = key.wrap(&first, &CORE, &PAYLOAD).await.unwrap();
    assert_eq!(wrap.len(), payload::LEN + gcm::OVERHEAD);

    node.rotate();
    let second = key.observe().await.unwrap();
    assert_ne!(first, second);
    assert_eq!(key.unwrap(&first, &CORE, &wrap).await.unwrap().as_slice(), PAYLOAD);
    assert_eq!(key.unwrap(&second, &CORE, &wrap).await.unwrap_err().class, Class::NotOpened);
    assert_eq!(key.unwrap(&first, &[8; 32], &wrap).await.unwrap_err().class, Class::NotOpened);
    assert_eq!(node.key(Selection::Pinned(1)).observe().await.unwrap(), first);
}

#[tokio::test]
async fn every_way_to_damage_the_file_has_its_class_and_heals_on_delivery() {
    let node = Node::new();
    let good = Node::with(&node.file.read().unwrap());
    let key = node.latest();
    let root = key.observe().await.unwrap();
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
    let path = node.file.path().to_owned();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let whole = node.bytes();

    type Damage<'a> = Box<dyn Fn() + 'a>;
    let cases: Vec<(&str, Damage<'_>, Class, &str)> = vec![
        ("removed", Box::new(|| fs::remove_file(&path).unwrap()), Class::Unreachable, "there is no key file"),
        ("emptied", Box::new(|| fs::write(&path, "").unwrap()), Class::Corrupt, "it is empty"),
        (
            "truncated",
            Box::new(|| fs::write(&path, &whole[..whole.len() / 2]).unwrap()),
            Class::Corrupt,
            "it was cut off",
        ),
        (
            "changed",
            Box::new(|| {
                let mut bytes = whole.clone();
                bytes[whole.len() / 2] ^= 1;
                fs::write(&path, bytes).unwrap();
            }),
            Class::Corrupt,
            "it was changed",
        ),
        ("world-readable", Box::new(|| mode(0o604)), Class::Credential, "mode 0604"),
        ("group-readable", Box::new(|| mode(0o640)), Class::Credential, "mode 0640"),
        (
            "another cluster's",
            Box::new(|| Node::new().deliver_to(&node)),
            Class::Corrupt,
            "the configuration names",
        ),
        (
            "a folder",
            Box::new(|| {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }),
            Class::Corrupt,
            "not a regular file",
        ),
    ];
    for (name, damage, class, text) in cases {
        damage();
        for failure in [
            key.observe().await.unwrap_err(),
            key.wrap(&root, &CORE, &PAYLOAD).await.unwrap_err(),
            key.unwrap(&root, &CORE, &wrap).await.unwrap_err(),
        ] {
            let shown = failure.to_string();
            assert_eq!(failure.class, class, "{name}: {shown}");
            assert!(shown.contains(text) && shown.contains(path.to_str().unwrap()), "{name}: {shown}");
            assert_eq!(failure.missing, None);
        }
        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
        }
        good.deliver_to(&node);
        mode(0o600);
        assert_eq!(key.unwrap(&root, &CORE, &wrap).await.unwrap().as_slice(), PAYLOAD, "{name}: healed");
    }
}

#[tokio::test]
async fn a_node_that_was_skipped_names_what_it_misses() {
    let (node, skipped) = (Node::new(), Node::new());
    node.deliver_to(&skipped);
    let (key, late) = (node.latest(), FileKey::new(skipped.file.path(), node.id, Selection::Latest));
    node.rotate();
    let root = key.observe().await.unwrap();
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();

    let failure = late.unwrap(&root, &CORE, &wrap).await.unwrap_err();
    assert_eq!((failure.class, failure.missing.as_ref()), (Class::Refused, Some(&root.lineage)));
    let shown = failure.to_string();
    for part in
        ["version 2", "deliver the current key file to this node", skipped.file.path().to_str().unwrap()]
    {
        assert!(shown.contains(part), "{shown}");
    }
    let pinned = FileKey::new(skipped.file.path(), node.id, Selection::Pinned(2));
    assert_eq!(pinned.observe().await.unwrap_err().class, Class::Refused);

    node.deliver_to(&skipped);
    assert_eq!(late.unwrap(&root, &CORE, &wrap).await.unwrap().as_slice(), PAYLOAD);
    assert_eq!(pinned.observe().await.unwrap(), root);
}

#[tokio::test]
async fn copies_that_were_changed_apart_do_not_mix() {
    let (one, two) = (Node::new(), Node::new());
    one.deliver_to(&two);
    let two_key = FileKey::new(two.file.path(), one.id, Selection::Latest);
    one.rotate();
    two.rotate();
    let root = one.latest().observe().await.unwrap();
    let wrap = one.latest().wrap(&root, &CORE, &PAYLOAD).await.unwrap();
    let failure = two_key.unwrap(&root, &CORE, &wrap).await.unwrap_err();
    assert_eq!((failure.class, failure.missing.as_ref()), (Class::Refused, Some(&root.lineage)));
    assert!(failure.what.contains("changed apart"), "{failure}");
}

#[tokio::test]
async fn a_retired_version_says_when() {
    let node = Node::new();
    let key = node.latest();
    let root = key.observe().await.unwrap();
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
    node.rotate();
    node.retire(1);
    for failure in [
        key.unwrap(&root, &CORE, &wrap).await.unwrap_err(),
        key.wrap(&root, &CORE, &PAYLOAD).await.unwrap_err(),
        node.key(Selection::Pinned(1)).observe().await.unwrap_err(),
    ] {
        assert_eq!((failure.class, &failure.missing), (Class::Refused, &None));
        assert!(failure.what.contains("retired at 2023-11-14T22:13:20Z"), "{failure}");
    }
}

#[tokio::test]
async fn what_is_no_wrap_of_this_key_is_refused() {
    let node = Node::new();
    let key = node.latest();
    let root = key.observe().await.unwrap();
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
    for place in 0..wrap.len() {
        let mut changed = wrap.clone();
        changed[place] ^= 1;
        let failure = key.unwrap(&root, &CORE, &changed).await.unwrap_err();
        assert_eq!(failure.class, Class::NotOpened, "{place}");
    }
    for length in [0, 1, 28, wrap.len() - 1] {
        assert_eq!(key.unwrap(&root, &CORE, &wrap[..length]).await.unwrap_err().class, Class::NotOpened);
    }

    let refused = async |root: Root| {
        let failure = key.unwrap(&root, &CORE, &wrap).await.unwrap_err();
        assert_eq!(failure.class, Class::Refused, "{root:?}: {failure}");
    };
    refused(Root { algorithm: Algorithm::TRANSIT, ..root.clone() }).await;
    let (id, check) = (node.id.to_string(), node.file.read().unwrap().version(1).unwrap().check().to_owned());
    for lineage in [
        format!("file:{id}"),
        format!("file:{id}/1"),
        format!("file:{id}/01/{check}"),
        format!("file:{id}/0/{check}"),
        format!("file:{id}/1/{check}/1"),
        format!("file:{id}/4294967297/{check}"),
        format!("file:{}/1/{check}", FileKeyId::generate()),
        format!("transit:{id}/1/{check}"),
    ] {
        refused(Root { lineage: lineage.parse().unwrap(), ..root.clone() }).await;
    }
}

#[tokio::test]
async fn nothing_shows_a_secret() {
    let node = Node::new();
    let text = String::from_utf8(node.bytes()).unwrap();
    let secret = text.split("secret: \"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(secret.len(), 44);
    let key = node.latest();
    let root = key.observe().await.unwrap();
    let mut shown = format!("{key:?} {root:?} {:?}", node.file.read().unwrap());
    for damaged in
        [text.replace("secret", "geheim"), text.replace("checksum", "sum"), text.replace("active", "x")]
    {
        fs::write(node.file.path(), damaged).unwrap();
        let failure = key.observe().await.unwrap_err();
        shown += &format!("{failure} {failure:?}");
    }
    assert!(!shown.contains(&secret[..8]), "{shown}");
}
