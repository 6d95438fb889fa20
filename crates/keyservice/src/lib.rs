//! Root keys, wherever they live: one trait, one module a key service.
//!
//! What this crate promises:
//! * A root key wraps and unwraps [payloads](casemate_keys::payload); it never sees DEK sources.
//! * Every failure has a [`Class`], from which the caller decides what an outage does. The class comes from
//!   codes and facts, never from the wording of a message.
//! * Addresses come from configuration only; a record can't make a key service be called that is not configured.
//!
//! Map:
//! * [`RootKey`]: what every key service answers. [`RecordSigner`]: a key that signs. [`Failure`]: how they don't answer.
//! * [`guarded`]: a root key with deadlines, retries, a breaker and limits, as the daemon holds it.
//! * [`file`]: versioned root keys in one file.
//! * `pkcs11`: root keys in an HSM, by its PKCS#11 module (feature `pkcs11`).
//! * `transit`: root keys in OpenBao or Vault, over `http` (feature `transit`).
//! * [`selection`]: which version writes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use casemate_keys::{Digest, Lineage, LineagePrefix, Root, payload};
use zeroize::Zeroizing;

use self::selection::Candidate;

pub mod file;
pub mod guarded;
#[cfg(feature = "transit")]
pub mod http;
#[cfg(feature = "pkcs11")]
pub mod pkcs11;
pub mod selection;
#[cfg(feature = "transit")]
pub mod transit;

/// What a key service answers, in its own time: callers set the deadline.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// One root key in all its versions.
///
/// Implementations may be slow, throttled, absent or wrong: callers bound each call, and check what comes back
/// ([`casemate_keys::Readable::local_kek`]). Dropping an answer abandons the call.
pub trait RootKey: fmt::Debug + Send + Sync {
    /// What the lineages of all its versions begin with. Known from configuration alone.
    fn prefix(&self) -> &LineagePrefix;

    /// How often it may be asked while nothing happens.
    fn pace(&self) -> Pace {
        Pace::Remote
    }

    /// Which version writes now, by the configured selection. This is an observation, not a decision: the
    /// caller confirms it before anything is written under it.
    ///
    /// [`Class::Undecided`] if the service is well and the selection fits none of its versions, or several.
    fn observe(&self) -> Answer<'_, Root>;

    /// Configured versions that the service did not have when it was last observed: what is written under them elsewhere
    /// could not be read here. As the admin knows them, and for people: nothing follows from them.
    fn absent(&self) -> Vec<String> {
        Vec::new()
    }

    /// All versions that the service shows, for people: nothing follows from them. A service that can't list any tells the
    /// one that writes.
    fn versions(&self) -> Answer<'_, Vec<Candidate>> {
        Box::pin(async {
            let version = self.observe().await?.lineage.to_string();
            Ok(vec![Candidate { version, labels: Vec::new(), current: true, disabled: None }])
        })
    }

    /// Wraps a payload under exactly this version, binding the digest of the core where the service can.
    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>>;

    /// Unwraps what [`RootKey::wrap`] made under this version with the same digest.
    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>>;

    /// Whether the service binds associated data, so that another digest must make it fail.
    fn binds_associated_data(&self, root: &Root) -> bool;
}

/// A key that signs records: what proves where those with a wrap under an asymmetric key come from. What verifies its
/// signatures is [`casemate_keys::origin::Signer`].
pub trait RecordSigner: fmt::Debug + Send + Sync {
    /// What records name as their signer. Known from configuration alone.
    fn lineage(&self) -> &Lineage;

    /// The signature of a [record's message](casemate_keys::Record::origin_message), as records hold it.
    fn sign<'a>(&'a self, message: &'a [u8]) -> Answer<'a, Vec<u8>>;
}

/// What is said of a root key with [`absent`](RootKey::absent) versions, after its name.
pub fn lists_absent(ids: &[String]) -> String {
    format!(
        "keys lists {}, which the token does not have: what other nodes write under it could not be read here; make it on \
         this token, or correct the id",
        ids.join(", ")
    )
}

/// How often a root key may be asked while nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pace {
    /// Every few seconds: it is a file.
    Local,
    /// At most 60 calls an hour: somebody pays for each, or shares the service.
    Remote,
}

/// How a key service failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Failure {
    /// What the caller may conclude.
    pub class: Class,
    /// What happened and where. Never a secret.
    pub what: String,
    /// What the operator can do.
    pub remedy: String,
    /// The root key version that was asked for and is not there.
    pub missing: Option<Lineage>,
    /// When the service said to come back.
    pub retry_after: Option<Duration>,
    /// Whether nobody was asked: it was found here (a token file can't be read), or is remembered. It says nothing of how
    /// the service is now.
    pub unasked: bool,
}

/// What a failure says about the root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Class {
    /// No answer: network, a missing file, an overloaded server.
    Unreachable,
    /// The service asks to slow down.
    Throttled,
    /// It does not accept who we are, or we don't accept how it is protected.
    Credential,
    /// It knows us and says no: disabled, destroyed, denied, or not there.
    Refused,
    /// It is well, and its versions don't say which one is to write: none or several carry the write label, or one
    /// that is disabled.
    Undecided,
    /// It answered, with something that can't be: what it holds is damaged, or another key's.
    Corrupt,
    /// It is well, and the wrap that was handed in does not open under this version with this digest. Such a wrap
    /// may come from etcd: it says nothing about the root key.
    NotOpened,
}

impl Class {
    /// Whether the root key could not be asked, so that nothing is known of it.
    pub fn could_not_be_asked(self) -> bool {
        matches!(self, Self::Unreachable | Self::Throttled | Self::Credential)
    }
}

impl Failure {
    /// A failure of `class`: what happened, and what to do.
    pub fn new(class: Class, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (what, remedy) = (what.into(), remedy.into());
        Self { class, what, remedy, missing: None, retry_after: None, unasked: false }
    }

    /// The same, of one for which nobody was asked.
    #[must_use]
    pub fn unasked(self) -> Self {
        Self { unasked: true, ..self }
    }
}
