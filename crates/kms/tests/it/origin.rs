//! Root keys that wrap by RSA: whoever knows the public half can make a wrap, so records under them are signed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use casemate_keys::names::sha256;
use casemate_keys::origin::{OriginPolicy, Signer};
use casemate_keys::{
    Algorithm, Core, Epoch, LocalKek, Record, Root, Suite, WritePolicy, origin_message, payload,
};
use casemate_keyservice::Class;
use casemate_keyservice::guarded::DEADLINE;
use casemate_kms::provider::{MAX_KEK_AGE, Settings, Standing, Told, succession};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::double::{CAUSE, RootKeyDouble, guarded};
use crate::node::{CLUSTER, Clock, Node, Stored, THEN, settings_of};

use pairs::{RsaPair, SignerPair};

mod pairs;

const DEK: [u8; 32] = [0x0a; 32];
/// A Secret that an attacker would like to be read.
const PLANTED: [u8; 32] = [0xbd; 32];

/// Writes and reads with `rsa`, signed by `signer`.
fn settings(rsa: &RsaPair, signer: &SignerPair) -> Settings {
    let mut settings = reader(rsa, vec![signer.pinned()]);
    settings.write_keys = std::mem::take(&mut settings.read_only_keys);
    settings.signing = Some(signer.signing());
    settings
}

/// Reads with `rsa` what these have signed.
fn reader(rsa: &RsaPair, signers: Vec<Signer>) -> Settings {
    let mut settings = settings_of(vec![], vec![rsa.rule()]);
    settings.read_only_keys = vec![rsa.guarded()];
    settings.read_policy.origin = OriginPolicy::Signed(signers);
    settings
}

/// The same where nothing has to be signed.
fn accepting(mut settings: Settings) -> Settings {
    settings.read_policy.origin = OriginPolicy::AcceptUnproven;
    settings
}

fn policy(roots: Vec<Root>, signer: Option<&Signer>) -> WritePolicy {
    let signer = signer.map(|signer| signer.lineage.clone());
    WritePolicy::new(Suite::One, CLUSTER.parse().unwrap(), Epoch(0), roots, vec![], signer).unwrap()
}

/// A record that somebody made who has the public half of `rsa` alone, in the name of `named`.
fn plant(rsa: &RsaPair, named: Option<&Signer>, sign: impl Fn(&[u8]) -> Vec<u8>) -> (Record, LocalKek) {
    let kek = LocalKek::generate();
    let policy = policy(vec![rsa.root()], named);
    let core = Core { policy, kek_id: kek.id(), created: THEN, writer: "forger/1".parse().unwrap() };
    let wraps = vec![rsa.wrap_of(payload::encode(&kek, &core.digest()).as_slice())];
    let signature = named.map(|_| sign(&origin_message(&core, &wraps, &[])));
    (Record::new(core, wraps, vec![], signature).unwrap(), kek)
}

fn with_signature(record: &Record, signature: Vec<u8>) -> Record {
    let wraps = record.wraps().map(|(_, wrap)| wrap.to_vec()).collect();
    Record::new(record.core().clone(), wraps, vec![], Some(signature)).unwrap()
}

fn refuses(node: &Node) -> String {
    match &*node.provider.standing() {
        Standing::Refusing(why) => why.clone(),
        standing => panic!("it writes: {standing:?}"),
    }
}

#[tokio::test]
async fn what_is_written_is_signed_and_read_by_whoever_pins_the_signer() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    let node = Node::start(settings(&rsa, &signer)).await;
    let stored = node.seal(&DEK).await;
    let record = stored.record();
    assert_eq!(record.core().policy, policy(vec![rsa.root()], Some(&signer.pinned())));
    assert!(signer.pinned().verifies(&record.origin_message(), record.origin_signature().unwrap()));
    assert!(stored.annotation.len() <= 768, "{} bytes with each object", stored.annotation.len());
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
    assert_eq!(signer.signed(), 1);

    // Other nodes have the public half only.
    let other = Node::start(reader(&rsa, vec![SignerPair::new("older").pinned(), signer.pinned()])).await;
    assert_eq!(**other.open(&stored).await.unwrap(), DEK);

    // Another signer is another write policy.
    let next = SignerPair::new("next");
    let changed = Node::start(settings(&rsa, &next)).await;
    assert_ne!(changed.seal(&DEK).await.key_id, stored.key_id);
    let unwraps = rsa.unwraps();
    assert!(changed.open(&stored).await.unwrap_err().to_string().contains("is not pinned"));
    assert_eq!(rsa.unwraps(), unwraps);
    let mut both = settings(&rsa, &next);
    both.read_policy.origin = OriginPolicy::Signed(vec![next.pinned(), signer.pinned()]);
    assert_eq!(**Node::start(both).await.open(&stored).await.unwrap(), DEK);
}

#[tokio::test]
async fn who_has_the_public_half_of_a_root_key_can_plant_nothing() {
    let (rsa, signer, forger) = (RsaPair::new(), SignerPair::new("s"), SignerPair::new("forger"));
    let node = Node::start(settings(&rsa, &signer)).await;
    let genuine = node.seal(&DEK).await.record();
    let taken = genuine.origin_signature().unwrap();
    let (pinned, theirs) = (signer.pinned(), forger.pinned());
    let planted = [
        ("unsigned", plant(&rsa, None, |_| vec![])),
        ("signed by its forger", plant(&rsa, Some(&theirs), |message| forger.signature_of(message))),
        ("in the signer's name", plant(&rsa, Some(&pinned), |message| forger.signature_of(message))),
        ("with a genuine signature", plant(&rsa, Some(&pinned), |_| taken.to_vec())),
    ];
    let unwraps = rsa.unwraps();
    for (what, (record, kek)) in &planted {
        let stored = Stored::under(record, kek, &PLANTED);
        let refused = node.open(&stored).await.expect_err(what).to_string();
        assert!(refused.contains("origin is not proven"), "{what}: {refused}");
    }
    assert_eq!(rsa.unwraps(), unwraps, "nobody was asked");

    // It is what can be had by asking for it.
    let accepting = Node::start(accepting(reader(&rsa, vec![]))).await;
    for (what, (record, kek)) in &planted {
        assert_eq!(**accepting.open(&Stored::under(record, kek, &PLANTED)).await.expect(what), PLANTED);
    }
}

#[tokio::test]
async fn every_byte_of_a_signature_counts() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    let node = Node::start(settings(&rsa, &signer)).await;
    let stored = node.seal(&DEK).await;
    node.open(&stored).await.unwrap();
    let record = stored.record();
    let (good, unwraps) = (record.origin_signature().unwrap().to_vec(), rsa.unwraps());
    for byte in 0..good.len() {
        let mut signature = good.clone();
        signature[byte] ^= 1 << (byte % 8);
        let annotation = with_signature(&record, signature).encode();
        let refused = node.open(&Stored { annotation, ..stored.clone() }).await.unwrap_err().to_string();
        assert!(refused.contains("does not verify"), "byte {byte}: {refused}");
    }
    assert_eq!(rsa.unwraps(), unwraps);
}

/// As `WriteKek` keeps it: the record, and what its local KEK says of it.
fn write_state(folder: &Path, record: &Record, kek: &LocalKek) {
    let annotation = record.encode();
    let stored = [&annotation[..], &kek.record_tag(&sha256(&annotation))].concat();
    fs::write(folder.join("test/record"), stored).unwrap();
}

#[tokio::test]
async fn what_is_written_with_again_is_proven_first() {
    let (rsa, signer, forger) = (RsaPair::new(), SignerPair::new("s"), SignerPair::new("forger"));
    let folder = tempfile::tempdir().unwrap();
    let restarted = || Node::start_in(folder.path(), settings(&rsa, &signer));
    let stored = restarted().await.seal(&DEK).await;
    // Nobody has to sign for that.
    signer.fails(Some(Class::Unreachable));
    assert_eq!(restarted().await.seal(&DEK).await.annotation, stored.annotation);
    assert_eq!(signer.signed(), 1);
    signer.fails(None);

    // A forger can write the state directory, and knows the local KEK of what is there.
    let (record, kek) = plant(&rsa, Some(&signer.pinned()), |message| forger.signature_of(message));
    write_state(folder.path(), &record, &kek);
    let unwraps = rsa.unwraps();
    let node = restarted().await;
    let after = node.seal(&DEK).await;
    assert_ne!(after.annotation, record.encode(), "what its forger can read is written");
    assert_eq!((signer.signed(), after.key_id), (2, stored.key_id));
    // What it made and what the probe asks; not what was planted.
    assert_eq!(rsa.unwraps(), unwraps + 2);
    // The same by the genuine signer would do: that is all that keeps it out.
    let (record, kek) = plant(&rsa, Some(&signer.pinned()), |message| signer.signature_of(message));
    write_state(folder.path(), &record, &kek);
    drop(node);
    assert_eq!(restarted().await.seal(&DEK).await.annotation, record.encode());
}

#[tokio::test]
async fn what_is_accepted_unproven_is_never_written_with() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    let folder = tempfile::tempdir().unwrap();
    let restarted = || Node::start_in(folder.path(), accepting(settings(&rsa, &signer)));
    let first = restarted().await.seal(&DEK).await;
    let (record, kek) = plant(&rsa, Some(&signer.pinned()), |_| vec![7; 70]);
    let planted = Stored::under(&record, &kek, &PLANTED);
    let node = restarted().await;
    let second = node.seal(&DEK).await;
    assert_ne!(second.annotation, first.annotation);
    assert_eq!(**node.open(&planted).await.unwrap(), PLANTED);
    drop(node);
    write_state(folder.path(), &record, &kek);
    let node = restarted().await;
    let third = node.seal(&DEK).await;
    assert!(![&first, &second, &planted].iter().any(|before| before.annotation == third.annotation));
    assert_eq!(third.key_id, first.key_id);
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_does_not_sign_is_an_outage_when_a_local_kek_is_due() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    let mut configured = settings(&rsa, &signer);
    let clock = Clock::of(&mut configured);
    signer.fails(Some(Class::Credential));
    let mut node = Node::start(configured).await;
    assert!(refuses(&node).contains(CAUSE));
    signer.fails(None);
    signer.hangs(true);
    let started = Instant::now();
    node.observer.look().await;
    assert!(started.elapsed() < 2 * DEADLINE && refuses(&node).contains("did not answer"));
    signer.hangs(false);
    node.observer.look().await;
    let stored = node.seal(&DEK).await;

    // What is there serves on, also when it is due.
    signer.fails(Some(Class::Unreachable));
    node.observer.look().await;
    assert_eq!(node.seal(&DEK).await.annotation, stored.annotation);
    clock.advance(MAX_KEK_AGE.as_secs() + 1);
    assert_eq!(node.seal(&DEK).await.annotation, stored.annotation);
    signer.fails(None);
    let renewed = node.seal(&DEK).await;
    assert_ne!(renewed.annotation, stored.annotation);
    assert_eq!(renewed.key_id, stored.key_id);
    assert_eq!(**node.open(&renewed).await.unwrap(), DEK);
}

#[tokio::test]
async fn a_signer_of_another_pair_than_the_pinned_one_writes_nothing() {
    let (rsa, signer, other) = (RsaPair::new(), SignerPair::new("s"), SignerPair::new("s"));
    assert_eq!(signer.pinned().lineage, other.pinned().lineage);
    let mut configured = settings(&rsa, &signer);
    configured.signing = Some(other.signing_as(&signer.pinned()));
    let node = Node::start(configured).await;
    let why = refuses(&node);
    assert!(why.contains("publicKey") && why.contains("one pair"), "{why}");
    assert!(node.provider.encrypt(&DEK, &Told::default()).await.is_err());
}

#[tokio::test]
async fn without_a_signer_an_rsa_key_does_not_write() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    for origin in [OriginPolicy::AcceptUnproven, OriginPolicy::Signed(vec![signer.pinned()])] {
        let mut configured = settings(&rsa, &signer);
        configured.signing = None;
        configured.read_policy.origin = origin;
        let node = Node::start(configured).await;
        assert!(refuses(&node).contains("`signer`"));
    }
}

#[tokio::test]
async fn an_aes_wrap_beside_is_its_own_proof() {
    let (rsa, signer) = (RsaPair::new(), SignerPair::new("s"));
    let aes = Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT));
    let both = || {
        let mut settings = settings(&rsa, &signer);
        settings.write_keys.push(guarded(&aes));
        settings.read_policy.rules.push(aes.rule());
        settings
    };
    let folder = tempfile::tempdir().unwrap();
    let stored = Node::start_in(folder.path(), both()).await.seal(&DEK).await;
    let record = stored.record();
    assert_eq!((record.wraps().count(), record.origin_signature().is_some()), (2, true));

    // Each alone opens it, the RSA key if the signer is pinned.
    let mut aes_only = settings_of(vec![], vec![aes.rule()]);
    aes_only.read_only_keys = vec![guarded(&aes)];
    assert_eq!(**Node::start(aes_only).await.open(&stored).await.unwrap(), DEK);
    assert_eq!(**Node::start(reader(&rsa, vec![signer.pinned()])).await.open(&stored).await.unwrap(), DEK);
    assert!(Node::start(reader(&rsa, vec![])).await.open(&stored).await.is_err());

    // A signature that went bad takes the RSA wrap out; what is written with is made anew.
    let mut bad = record.origin_signature().unwrap().to_vec();
    bad[10] ^= 1;
    let damaged = with_signature(&record, bad).encode();
    let state = folder.path().join("test/record");
    let tag = fs::read(&state).unwrap().split_off(damaged.len());
    fs::write(&state, [damaged.clone(), tag].concat()).unwrap();
    let (signed, node) = (signer.signed(), Node::start_in(folder.path(), both()).await);
    let after = node.seal(&DEK).await;
    assert!(after.annotation != stored.annotation && after.annotation != damaged);
    assert_eq!((signer.signed(), after.key_id), (signed + 1, stored.key_id.clone()));
    assert_eq!(**node.open(&stored).await.unwrap(), DEK);
}

#[tokio::test(start_paused = true)]
async fn a_signer_changes_while_it_serves() {
    let (rsa, old, new) = (RsaPair::new(), SignerPair::new("old"), SignerPair::new("new"));
    let Node { provider, observer, _folder, .. } = Node::start(settings(&rsa, &old)).await;
    let (asks, requests) = succession();
    let stop = CancellationToken::new();
    let running = tokio::spawn(observer.run(requests, stop.clone()));
    let before = seal(&provider).await;

    // One that forgets the old one could not read what is written now.
    let refused = asks.prepare(settings(&rsa, &new), vec![]).await.unwrap_err().to_string();
    assert!(refused.contains("could not be read any more"), "{refused}");
    let both = || {
        let mut settings = settings(&rsa, &new);
        settings.read_policy.origin = OriginPolicy::Signed(vec![new.pinned(), old.pinned()]);
        settings
    };
    // One that does not sign does not take over.
    new.fails(Some(Class::Refused));
    assert!(asks.prepare(both(), vec![]).await.unwrap_err().to_string().contains(CAUSE));
    new.fails(None);
    let mut ready = asks.prepare(both(), vec![]).await.unwrap();
    let next = ready.provider().clone();
    ready.note().await;
    ready.begin();
    let after = seal(&next).await;
    assert_ne!(after.key_id, before.key_id);
    assert_eq!(**before.open(&next).await.unwrap(), DEK);
    assert_eq!(**after.open(&next).await.unwrap(), DEK);
    stop.cancel();
    running.await.unwrap();
}

async fn seal(provider: &Arc<casemate_kms::provider::Provider>) -> Stored {
    let sealed = provider.encrypt(&DEK, &Told::default()).await.unwrap();
    let (key_id, annotation) = (sealed.kek.key_id().to_string(), sealed.kek.annotation().to_vec());
    Stored { ciphertext: sealed.ciphertext, key_id, annotation }
}
