//! Recovery recipients: what is written can be recovered, and a changed record on disk is not written with.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use casemate_keys::names::sha256;
use casemate_keys::origin::OriginPolicy;
use casemate_keys::{Algorithm, ReadRule, Record};
use casemate_keyservice::Failure;
use casemate_keyservice::file::{FileKey, FileKeyId, KeyFile, Keyring, Secret, Selection};
use casemate_recipients::Identity;
use jiff::Timestamp;
use tempfile::TempDir;

use super::kek::Reopened;
use super::*;

const DEK_SOURCE: [u8; 32] = [0x5e; 32];
const THEN: u64 = 1_800_000_000;

/// A node with a key file and a state directory.
struct Node {
    folder: TempDir,
    id: FileKeyId,
}

impl Node {
    fn new() -> Self {
        let (folder, id) = (tempfile::tempdir().unwrap(), FileKeyId::generate());
        let keyring = Keyring::new(id, None, Secret::generate(), Timestamp::now());
        KeyFile::at(folder.path().join("key")).create(&keyring).unwrap();
        Self { folder, id }
    }

    fn key(&self) -> Arc<Guarded> {
        Guarded::around(Box::new(FileKey::new(self.folder.path().join("key"), self.id, Selection::Latest)))
    }

    fn store(&self) -> Store {
        Store::open(&self.folder.path().join("state"), "test").unwrap()
    }

    fn record_file(&self) -> PathBuf {
        self.folder.path().join("state/test/record")
    }

    /// A start, up to the first Status.
    async fn start(&self, recipients: &[&Identity], epoch: u64) -> Arc<Provider> {
        let cluster: ClusterId = "prod".parse().unwrap();
        let rule = ReadRule {
            key: self.id.prefix(),
            algorithms: [Algorithm::FILE_AES256_GCM].into(),
            min_version: None,
        };
        let settings = Settings {
            name: "test".into(),
            cluster: cluster.clone(),
            epoch: Epoch(epoch),
            write_keys: vec![self.key()],
            read_only_keys: Vec::new(),
            key_names: Vec::new(),
            read_policy: ReadPolicy {
                cluster,
                also_accept: Vec::new(),
                rules: vec![rule],
                origin: OriginPolicy::Signed(Vec::new()),
            },
            signing: None,
            outage: casemate_kms_state::outage::Rules::default(),
            program: "test/1".parse().unwrap(),
            clock: Arc::new(|| THEN),
        };
        let recipients = recipients.iter().map(|identity| identity.recipient()).collect();
        let provider = Arc::new(Provider::new(settings, self.store()).recoverable_by(recipients));
        let mut observer = Observer::new(provider.clone(), None).unwrap();
        observer.look().await;
        provider
    }
}

async fn seal(provider: &Arc<Provider>) -> Encrypted {
    provider.encrypt(&DEK_SOURCE, &Told::default()).await.unwrap()
}

fn key_id(provider: &Provider) -> KeyId {
    provider.status(&Told::default()).unwrap()
}

/// What `identity` alone makes of a sealed DEK source.
fn recover(identity: &Identity, sealed: &Encrypted) -> Option<Vec<u8>> {
    let annotation = sealed.kek.annotation();
    let record = Record::decode(annotation).unwrap();
    let ours = identity.recipient().fingerprint();
    let (_, wrap) = record.recovery_wraps().find(|(fingerprint, _)| **fingerprint == ours)?;
    let kek = record.core().local_kek(&*identity.unwrap(wrap).unwrap()).unwrap();
    let suite = record.core().policy.suite();
    Some(kek.open(suite, &sha256(annotation), &sealed.ciphertext).unwrap().to_vec())
}

#[tokio::test]
async fn each_identity_alone_recovers_what_is_written() {
    let (node, identities) = (Node::new(), [(); 4].map(|()| Identity::generate()));
    let provider = node.start(&identities.each_ref(), 0).await;
    let sealed = seal(&provider).await;
    assert_eq!(sealed.kek.record().recovery_wraps().count(), 4);
    for identity in &identities {
        assert_eq!(recover(identity, &sealed).unwrap(), DEK_SOURCE);
    }
    assert_eq!(recover(&Identity::generate(), &sealed), None);
}

#[tokio::test]
async fn the_order_of_recipients_does_not_matter_and_which_they_are_does() {
    let (node, a, b) = (Node::new(), Identity::generate(), Identity::generate());
    let none = key_id(&*node.start(&[], 0).await);
    let both = node.start(&[&a, &b], 0).await;
    let ours = key_id(&both);
    let record = seal(&both).await.kek.annotation().to_vec();
    assert_ne!(ours, none, "adding recipients is a rotation that Status shows");
    drop(both);

    let turned = node.start(&[&b, &a], 0).await;
    assert_eq!((key_id(&turned), seal(&turned).await.kek.annotation()), (ours.clone(), &record[..]));
    drop(turned);

    let one = node.start(&[&b], 0).await;
    let sealed = seal(&one).await;
    assert!(![&ours, &none].contains(&&key_id(&one)), "and so is taking one away");
    assert_eq!((recover(&a, &sealed), recover(&b, &sealed)), (None, Some(DEK_SOURCE.to_vec())));
    drop((one, sealed));

    // Not back by itself, as with root keys; a raised epoch makes it a new policy.
    let back = node.start(&[&a, &b], 0).await;
    assert!(back.status(&Told::default()).unwrap_err().to_string().contains("raise `epoch`"));
    drop(back);
    let raised = node.start(&[&a, &b], 1).await;
    assert!(recover(&a, &seal(&raised).await).is_some());
}

#[tokio::test]
async fn a_recipient_that_was_taken_away_gets_nothing_more_after_a_restart() {
    let (node, a) = (Node::new(), Identity::generate());
    let with = node.start(&[&a], 0).await;
    drop((seal(&with).await, with));
    // The record of the last run is there, but is not what this configuration writes.
    let sealed = seal(&node.start(&[], 0).await).await;
    assert_eq!(sealed.kek.record().recovery_wraps().count(), 0);
}

fn writes_on(reopened: Result<Reopened, Failure>) -> bool {
    matches!(reopened, Ok(Reopened::Kek { .. }))
}

#[tokio::test]
async fn no_changed_bit_of_a_stored_record_is_written_with() {
    let (node, identity) = (Node::new(), Identity::generate());
    let provider = node.start(&[&identity], 0).await;
    let kek = seal(&provider).await.kek;
    let (policy, stored, length) = (kek.record().core().policy.clone(), kek.stored(), kek.annotation().len());
    assert_eq!(std::fs::read(node.record_file()).unwrap(), stored);
    assert_eq!(stored.len(), length + 32);

    let reopens = async |stored: &[u8]| writes_on(provider.keyholder.reopen(&policy, stored).await);
    assert!(reopens(&stored).await);
    for bit in 0..stored.len() * 8 {
        let mut changed = stored.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // A damaged lineage may name a root key that can't be asked; that is no local KEK either.
        assert!(!reopens(&changed).await, "bit {bit} of {}", stored.len() * 8);
    }
    assert!(!reopens(&stored[..length]).await, "without its tag");
    // A whole recovery wrap of somebody else, in a record that opens like any other.
    let (wraps, other) =
        (kek.record().wraps().map(|(_, wrap)| wrap.to_vec()).collect(), Identity::generate());
    let theirs = other.recipient().wrap(&[7; 64]).unwrap();
    let planted = Record::new(kek.record().core().clone(), wraps, vec![theirs], None).unwrap().encode();
    assert!(!reopens(&[&planted, &stored[length..]].concat()).await);
    assert!(!reopens(&planted).await);
}

/// Opening proves all of it: no tag is needed, and none is taken for part of it.
#[tokio::test]
async fn without_recovery_wraps_the_stored_record_is_the_record() {
    let node = Node::new();
    let provider = node.start(&[], 0).await;
    let kek = seal(&provider).await.kek;
    let (policy, stored) = (kek.record().core().policy.clone(), kek.annotation());
    assert_eq!(std::fs::read(node.record_file()).unwrap(), stored);
    for (bytes, reopened) in [(stored.to_vec(), true), ([stored, &[0; 32]].concat(), false)] {
        assert_eq!(writes_on(provider.keyholder.reopen(&policy, &bytes).await), reopened);
    }
    for bit in 0..stored.len() * 8 {
        let mut changed = stored.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let reopened = provider.keyholder.reopen(&policy, &changed).await;
        assert!(!writes_on(reopened), "bit {bit} of {}", stored.len() * 8);
    }
}

#[tokio::test]
async fn after_damage_on_disk_what_is_written_can_be_recovered() {
    let (node, identity) = (Node::new(), Identity::generate());
    let first = seal(&node.start(&[&identity], 0).await).await;
    let file = std::fs::read(node.record_file()).unwrap();
    let in_recovery_wrap = first.kek.annotation().len() - 5;
    let flipped = |at: usize| {
        let mut bytes = file.clone();
        bytes[at] ^= 1;
        bytes
    };
    let without_tag = file[..file.len() - 32].to_vec();
    for damaged in [flipped(in_recovery_wrap), flipped(file.len() - 1), without_tag, file[..10].to_vec()] {
        std::fs::write(node.record_file(), damaged).unwrap();
        let next = seal(&node.start(&[&identity], 0).await).await;
        assert_eq!(next.kek.key_id(), first.kek.key_id());
        assert_ne!(next.kek.annotation(), first.kek.annotation());
        assert_eq!(recover(&identity, &next).unwrap(), DEK_SOURCE);
    }
    // Undamaged, it goes on.
    std::fs::write(node.record_file(), &file).unwrap();
    let next = seal(&node.start(&[&identity], 0).await).await;
    assert_eq!(next.kek.annotation(), first.kek.annotation());
}
