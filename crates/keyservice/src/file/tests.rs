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
    assert_eq!(key.unwrap(&second, &CORE, &wrap).await.unwrap_err().class, Class::Corrupt);
    assert_eq!(key.unwrap(&first, &[8; 32], &wrap).await.unwrap_err().class, Class::Corrupt);
    assert_eq!(node.key(Selection::Pinned(1)).observe().await.unwrap(), first);
}
