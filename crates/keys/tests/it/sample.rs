//! Records made of peers, valid ones and ones that a careful writer would never make.

use casemate_keys::{
    ClusterId, Core, Digest, Epoch, Fingerprint, KeyId, LocalKek, RECORD_ANNOTATION, Record, Root, Sealed,
    Suite, WritePolicy, origin_message, payload,
};

use crate::peers::{Peer, SigningPeer};

pub const SEED: [u8; 32] = [0x5e; 32];
pub const CREATED: u64 = 1_796_000_000;

pub struct Sample {
    pub kek: LocalKek,
    pub record: Record,
    pub annotation: Vec<u8>,
    pub ciphertext: Vec<u8>,
    pub key_id: KeyId,
}

/// A recovery recipient and how to wrap under it.
pub type Recipient<'a> = (Fingerprint, &'a dyn Fn(&[u8]) -> Vec<u8>);

impl Sample {
    pub fn of(peers: &[Peer]) -> Self {
        Self::with(Suite::One, peers, &[], None)
    }

    pub fn with(
        suite: Suite,
        peers: &[Peer],
        recipients: &[Recipient<'_>],
        signer: Option<&SigningPeer>,
    ) -> Self {
        let kek = LocalKek::generate();
        let core = core(suite, peers, recipients.iter().map(|(f, _)| *f).collect(), signer, &kek);
        let digest = core.digest();
        let payload = payload::encode(&kek, &digest);
        let wraps =
            core.policy.roots().iter().map(|root| peer(peers, root).wrap(&digest, &*payload)).collect();
        let recovery = |fingerprint| recipients.iter().find(|(f, _)| f == fingerprint).unwrap().1(&*payload);
        let recovery = core.policy.recipients().iter().map(recovery).collect();
        Self::assemble(kek, core, wraps, recovery, signer)
    }

    /// A record of these parts, whether they belong together or not, sealed with `kek`.
    pub fn assemble(
        kek: LocalKek,
        core: Core,
        wraps: Vec<Vec<u8>>,
        recovery: Vec<Vec<u8>>,
        signer: Option<&SigningPeer>,
    ) -> Self {
        let signature = signer.map(|signer| signer.sign(&origin_message(&core, &wraps, &recovery)));
        let (suite, key_id) = (core.policy.suite(), core.policy.key_id());
        let record = Record::new(core, wraps, recovery, signature).unwrap();
        let annotation = record.encode();
        let ciphertext = kek.seal(suite, &sha256(&annotation), &SEED).unwrap();
        Self { kek, record, annotation, ciphertext, key_id }
    }

    pub fn sealed<R>(&self, use_it: impl FnOnce(&Sealed<'_>) -> R) -> R {
        let annotations = [(RECORD_ANNOTATION, self.annotation.as_slice())];
        use_it(&Sealed {
            ciphertext: &self.ciphertext,
            key_id: self.key_id.as_str(),
            annotations: &annotations,
        })
    }
}

pub fn core(
    suite: Suite,
    peers: &[Peer],
    recipients: Vec<Fingerprint>,
    signer: Option<&SigningPeer>,
    kek: &LocalKek,
) -> Core {
    let roots: Vec<Root> = peers.iter().map(|peer| peer.root.clone()).collect();
    let signer = signer.map(|signer| signer.signer.lineage.clone());
    Core {
        policy: WritePolicy::new(suite, cluster(), Epoch(0), roots, recipients, signer).unwrap(),
        kek_id: kek.id(),
        created: CREATED,
        writer: "casemate-keys/0.1.0".parse().unwrap(),
    }
}

pub fn cluster() -> ClusterId {
    "vectors.example".parse().unwrap()
}

pub fn peer<'a>(peers: &'a [Peer], root: &Root) -> &'a Peer {
    peers.iter().find(|peer| peer.root == *root).unwrap()
}

pub fn sha256(bytes: &[u8]) -> Digest {
    casemate_keys::names::sha256(bytes)
}
