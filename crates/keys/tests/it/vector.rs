//! The committed form of a known-answer vector (`vectors/README.md`).

use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm};
use casemate_keys::{Algorithm, ClusterId, LineagePrefix, ReadPolicy, ReadRule};
use serde::{Deserialize, Serialize};

use crate::peers::{Material, Peer, SigningPeer};

#[derive(Serialize, Deserialize)]
pub struct Vector {
    pub description: String,
    pub cluster_id: String,
    pub key_id: String,
    pub annotation: String,
    pub ciphertext: String,
    pub dek_source: String,
    pub local_kek: String,
    pub keys: Vec<Key>,
    pub recovery: Vec<Recovery>,
    pub signer: Option<SignerKey>,
}

#[derive(Serialize, Deserialize)]
pub struct Key {
    pub lineage: String,
    pub algorithm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub struct Recovery {
    pub recipient: String,
    pub identity: String,
}

#[derive(Serialize, Deserialize)]
pub struct SignerKey {
    pub lineage: String,
    pub algorithm: String,
    pub public_key: String,
    pub private_key: String,
}

impl Vector {
    pub fn peers(&self) -> Vec<Peer> {
        self.keys.iter().map(Key::peer).collect()
    }

    pub fn cluster(&self) -> ClusterId {
        self.cluster_id.parse().unwrap()
    }

    /// Reads exactly the root keys that the vector offers.
    pub fn read_policy(&self) -> ReadPolicy {
        let signers = self.signer.iter().map(|key| key.peer().signer).collect();
        read_policy(self.cluster(), &self.peers(), OriginPolicy::Signed(signers))
    }
}

pub fn read_policy(cluster: ClusterId, peers: &[Peer], origin: OriginPolicy) -> ReadPolicy {
    let rule = |peer: &Peer| ReadRule {
        key: LineagePrefix::exactly(&peer.root.lineage),
        algorithms: [peer.root.algorithm].into(),
        min_version: None,
    };
    ReadPolicy { cluster, also_accept: vec![], rules: peers.iter().map(rule).collect(), origin }
}

impl Key {
    pub fn of(peer: &Peer) -> Self {
        let mut key = Self {
            lineage: peer.root.lineage.to_string(),
            algorithm: peer.root.algorithm.to_string(),
            secret: None,
            key: None,
            private_key: None,
            payload: None,
        };
        match &peer.material {
            Material::Secret(bytes) => key.secret = Some(hex::encode(bytes)),
            Material::Key(bytes) => key.key = Some(hex::encode(bytes)),
            Material::Private(bytes) => key.private_key = Some(hex::encode(bytes)),
            Material::Payload(bytes) => key.payload = Some(hex::encode(bytes)),
        }
        key
    }

    fn peer(&self) -> Peer {
        let array = |text: &String| hex::decode(text).unwrap().try_into().unwrap();
        let material = if let Some(secret) = &self.secret {
            Material::Secret(array(secret))
        } else if let Some(key) = &self.key {
            Material::Key(array(key))
        } else if let Some(key) = &self.private_key {
            Material::Private(hex::decode(key).unwrap())
        } else {
            Material::Payload(hex::decode(self.payload.as_ref().unwrap()).unwrap())
        };
        Peer::new(&self.lineage, algorithm(&self.algorithm), material)
    }
}

impl SignerKey {
    pub fn of(peer: &SigningPeer) -> Self {
        let algorithm = match peer.signer.algorithm {
            SignatureAlgorithm::EcdsaP256 => "ecdsa-p256",
            _ => "rsa-pss-3072",
        };
        Self {
            lineage: peer.signer.lineage.to_string(),
            algorithm: algorithm.into(),
            public_key: hex::encode(&peer.signer.public_key),
            private_key: hex::encode(&peer.pkcs8),
        }
    }

    pub fn peer(&self) -> SigningPeer {
        let algorithm = match self.algorithm.as_str() {
            "ecdsa-p256" => SignatureAlgorithm::EcdsaP256,
            "rsa-pss-3072" => SignatureAlgorithm::RsaPss3072,
            other => panic!("no such signature algorithm: {other}"),
        };
        let peer = SigningPeer::new(&self.lineage, algorithm, hex::decode(&self.private_key).unwrap());
        assert_eq!(hex::encode(&peer.signer.public_key), self.public_key);
        peer
    }
}

pub fn algorithm(name: &str) -> Algorithm {
    (1..=10).filter_map(Algorithm::from_number).find(|algorithm| algorithm.name() == Some(name)).unwrap()
}
