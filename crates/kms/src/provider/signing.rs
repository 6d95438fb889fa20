//! What signs the records that a provider writes.

use casemate_keys::Lineage;
use casemate_keys::origin::{SignatureAlgorithm, Signer};
use casemate_keyservice::guarded::DEADLINE;
use casemate_keyservice::{Class, Failure, RecordSigner};
use tokio::time::timeout;

/// A key that signs, and the public half that is pinned for it.
#[derive(Debug)]
pub struct Signing {
    key: Box<dyn RecordSigner>,
    pinned: Signer,
}

impl Signing {
    /// By this key, whose public half (DER) is said to be `public_key`.
    pub fn new(key: Box<dyn RecordSigner>, algorithm: SignatureAlgorithm, public_key: Vec<u8>) -> Self {
        let pinned = Signer { lineage: key.lineage().clone(), algorithm, public_key };
        Self { key, pinned }
    }

    /// What records name as their signer.
    pub fn lineage(&self) -> &Lineage {
        &self.pinned.lineage
    }

    /// What verifies what it signs.
    pub fn pinned(&self) -> &Signer {
        &self.pinned
    }

    /// The signature of `message`: only one that verifies, for another would be found when it is read.
    ///
    /// # Errors
    /// Those of the key, [`Class::Unreachable`] after [`DEADLINE`], and [`Class::Corrupt`] if it is another key.
    pub async fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Failure> {
        let lineage = self.lineage();
        let signature = timeout(DEADLINE, self.key.sign(message)).await.unwrap_or_else(|_| {
            let what = format!("signer {lineage} did not answer within {} ms", DEADLINE.as_millis());
            Err(Failure::new(Class::Unreachable, what, "check the key service and the way to it"))
        })?;
        if self.pinned.verifies(message, &signature) {
            return Ok(signature);
        }
        let what = format!(
            "what signer {lineage} signs does not verify with the publicKey that is configured for it"
        );
        Err(Failure::new(
            Class::Corrupt,
            what,
            "correct publicKey or the key of the signer: they are not of one pair",
        ))
    }
}
