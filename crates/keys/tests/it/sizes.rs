//! What a record costs in etcd, for each object: the budgets of the format.

use casemate_keys::{
    Algorithm, Core, Epoch, Fingerprint, LocalKek, Record, Root, Suite, WritePolicy, payload,
};

use crate::peers::{Material, Peer, SigningPeer};
use crate::sample::{self, Sample};
use crate::vectors::{committed, named};

const SYMMETRIC: usize = 576;
const RSA_2048: usize = 768;
const RSA_4096: usize = 1280;
const RECIPIENT: usize = 500;

/// The length of a record at its longest but for the lineages: longest cluster id and writer, largest epoch.
fn largest(peer: &Peer, recovery: &[Vec<u8>], signer: Option<&SigningPeer>) -> usize {
    let kek = LocalKek::generate();
    let recipients = (0..recovery.len()).map(|n| Fingerprint([n as u8; 32])).collect();
    let signer_lineage = signer.map(|signer| signer.signer.lineage.clone());
    let roots: Vec<Root> = vec![peer.root.clone()];
    let cluster = "c".repeat(63).parse().unwrap();
    let core = Core {
        policy: WritePolicy::new(Suite::One, cluster, Epoch(u64::MAX), roots, recipients, signer_lineage)
            .unwrap(),
        writer: format!("w/{}", "1".repeat(30)).parse().unwrap(),
        ..sample::core(Suite::One, std::slice::from_ref(peer), vec![], None, &kek)
    };
    let digest = core.digest();
    let wrap = peer.wrap(&digest, &*payload::encode(&kek, &digest));
    let signature = signer.map(|signer| signer.sign(b"any message"));
    Record::new(core, vec![wrap], recovery.to_vec(), signature).unwrap().encode().len()
}

fn within(what: &str, found: usize, budget: usize) {
    println!("{what}: {found} bytes, budget {budget}");
    assert!(found <= budget, "{what}: {found} bytes, budget {budget}");
}

#[test]
fn symmetric_roots() {
    // What is written now is as long as what version 1 wrote.
    let mut compared = 0;
    for (name, vector) in committed() {
        if vector.signer.is_none() && vector.recovery.is_empty() {
            let (before, now) =
                (vector.stored().annotation.len(), Sample::of(&vector.peers()).annotation.len());
            println!("{name}: {now} bytes");
            assert_eq!(before, now, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 10);

    within("file", largest(&Peer::file(&"4f".repeat(16), u32::MAX, [1; 32]), &[], None), SYMMETRIC);
    let name = "k".repeat(63);
    let transit = format!("transit:team-a%2Fteam-b/{name}/{name}/4294967295/1796000000");
    let key = Material::Key([1; 32]);
    within("Transit", largest(&Peer::new(&transit, Algorithm::TRANSIT, key.clone()), &[], None), SYMMETRIC);
    for algorithm in [Algorithm::PKCS11_AES256_GCM, Algorithm::PKCS11_AES_KWP, Algorithm::TPM_SEALED] {
        let lineage = format!("any:{}", "4f".repeat(32));
        within(
            &algorithm.to_string(),
            largest(&Peer::new(&lineage, algorithm, key.clone()), &[], None),
            SYMMETRIC,
        );
    }
}

#[test]
fn rsa_roots() {
    let signer = |vector: &str| named(vector).signer.unwrap().peer();
    let root = |vector: &str| named(vector).peers().remove(0);
    let (small, large) = (root("rsa-2048-ecdsa"), root("rsa-4096-pss"));
    let (ecdsa, pss) = (signer("rsa-2048-ecdsa"), signer("rsa-4096-pss"));
    within("RSA-2048, unsigned", largest(&small, &[], None), RSA_2048);
    within("RSA-2048, ECDSA", largest(&small, &[], Some(&ecdsa)), RSA_2048);
    within("RSA-4096, unsigned", largest(&large, &[], None), RSA_4096);
    within("RSA-4096, ECDSA", largest(&large, &[], Some(&ecdsa)), RSA_4096);
    within("RSA-4096, RSA-PSS-3072", largest(&large, &[], Some(&pss)), RSA_4096);
}

#[test]
fn each_recovery_recipient() {
    let peer = Peer::file(&"4f".repeat(16), 1, [1; 32]);
    let record = named("recovery").record();
    let age: Vec<_> = record.recovery_wraps().map(|(_, wrap)| wrap.to_vec()).collect();
    let mut before = largest(&peer, &[], None);
    for recipients in 1..=4 {
        let recovery: Vec<_> = age.iter().cycle().take(recipients).cloned().collect();
        let length = largest(&peer, &recovery, None);
        within(&format!("age recipient {recipients}"), length - before, RECIPIENT);
        before = length;
    }
}

#[test]
fn a_ciphertext_of_a_seed() {
    assert_eq!(named("file").stored().ciphertext.len(), 93);
}
