//! Root keys in a token that is reached by a PKCS#11 module.
//!
//! The module is foreign code: it runs in a process of its own, the *host*, which may hang, crash or leak without
//! taking this one along.
//!
//! * [`Pkcs11Key`]: the root key; [`Pkcs11Signer`]: a key that signs. Each asks a host, which it starts by way of
//!   [`Launch`] and replaces when it must. [`HeldHosts`]: by which it goes on with it under a changed configuration.
//! * [`HostConfig`]: what a host loads, and what it may touch. [`Pkcs11Config`]: a root key behind one.
//! * [`serve`]: the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use casemate_keys::{Algorithm, Lineage, LineagePrefix};
use serde::{Deserialize, Serialize};

mod client;
mod code;
mod frame;
mod guard;
mod host;
mod key;
mod leeway;
mod pin;
mod sharing;
mod sign;
mod token;
mod wraps;

#[doc(hidden)]
pub use frame::heard;
pub use host::serve;
pub use key::{Pkcs11Key, Pkcs11Signer};
pub use sharing::HeldHosts;

/// Starts hosts of one token.
pub trait Launch: fmt::Debug + Send + Sync {
    /// Starts a host: the process, and the other end of its socket. May block for a moment.
    ///
    /// # Errors
    /// Whatever keeps it from being started.
    fn launch(&self) -> io::Result<(Box<dyn Running>, UnixStream)>;
}

/// A host that was started. It also ends by itself when the other end of its socket is closed.
pub trait Running: fmt::Debug + Send + Sync {
    /// Ends it, at once; says how it had ended by itself, if it had. May block for a moment.
    fn end(&self) -> Option<String>;
}

/// How long a module may take before its host is replaced.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a call.
    pub call: Duration,
    /// For the first one, in which it is loaded, finds its device and logs in.
    pub start: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { call: Duration::from_millis(2500), start: Duration::from_secs(20) }
    }
}

/// A root key in a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Config {
    /// The host that reaches the token.
    pub host: HostConfig,
    /// How the key wraps.
    pub wrapping: Wrapping,
    /// All versions of this root key. PKCS#11 knows no versions: they are keys of their own, which the admin lists,
    /// and adds to at each rotation. What is not listed is neither read nor written with.
    pub keys: BTreeSet<CkaId>,
    /// Which one of them writes.
    pub writes: Writes,
}

/// What a host loads, and what it may touch. Said before the daemon confines itself: a change needs a restart.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostConfig {
    /// The module: a shared library. Its folder can be read.
    pub module: PathBuf,
    /// Which token.
    pub token: TokenSelector,
    /// The user PIN, and nothing else: read at each login. Its folder can be read. A systemd credential is a file, too.
    pub pin_file: PathBuf,
    /// Where it is remembered which PINs were tried, so that a wrong one does not lock the token. It can be written.
    pub guard_folder: PathBuf,
    /// What else the module reads and writes: its token folder, its configuration, device files.
    pub folders: Vec<PathBuf>,
    /// Whether the module speaks to its device over a network.
    pub network: bool,
    /// What the module reads from its environment, for example `SOFTHSM2_CONF`. There is nothing else in it. Vendors let a
    /// password be there.
    pub environment: BTreeMap<String, String>,
}

/// Which token, of all that the module shows. Exactly one must fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TokenSelector {
    /// By label: a clone of an HSM has the same.
    Label(String),
    /// By serial number.
    Serial(String),
}

/// How a key in a token wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Wrapping {
    /// AES-256-GCM.
    AesGcm,
    /// AES key wrap with padding (RFC 5649).
    AesKwp,
    /// RSA-OAEP with SHA-256. Records need a signer.
    RsaOaep,
}

/// Which key writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Writes {
    /// The one with this CKA_LABEL.
    Label(String),
    /// This one.
    Pinned(CkaId),
    /// None: they only read. One that is there and unwraps is then what is observed.
    Never,
}

/// What a key is known by in records: its CKA_ID of 16 to 64 random bytes; of an RSA key, the first 16 bytes of
/// SHA-256 of its SubjectPublicKeyInfo.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CkaId(Vec<u8>);

/// A text that is no id of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not the id of a key for Casemate: it is {MIN_ID} to {MAX_ID} random bytes in lower-case hex. A shorter \
     one may be another key's on another token: give the key a new one (`openssl rand -hex {MIN_ID}`)"
)]
pub struct CkaIdError {
    /// What was found, shortened.
    pub found: String,
}

const MIN_ID: usize = 16;
const MAX_ID: usize = 64;

impl CkaId {
    /// The bytes of CKA_ID.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How records name this key.
    pub fn lineage(&self) -> Lineage {
        Lineage::new("pkcs11", [self.to_string()]).expect("hex digits are a field")
    }
}

impl Pkcs11Config {
    /// The lineages of all versions.
    pub fn prefix(&self) -> LineagePrefix {
        LineagePrefix::one_of(self.keys.iter().map(CkaId::lineage))
    }
}

impl fmt::Debug for HostConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { module, token, pin_file, guard_folder, folders, network, environment } = self;
        f.debug_struct("HostConfig")
            .field("module", module)
            .field("token", token)
            .field("pin_file", pin_file)
            .field("guard_folder", guard_folder)
            .field("folders", folders)
            .field("network", network)
            // Their values may be secret.
            .field("environment", &environment.keys())
            .finish()
    }
}

impl Wrapping {
    /// How records name it.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::AesGcm => Algorithm::PKCS11_AES256_GCM,
            Self::AesKwp => Algorithm::PKCS11_AES_KWP,
            Self::RsaOaep => Algorithm::RSA_OAEP_SHA256,
        }
    }

    fn of(algorithm: Algorithm) -> Option<Self> {
        [Self::AesGcm, Self::AesKwp, Self::RsaOaep]
            .into_iter()
            .find(|wrapping| wrapping.algorithm() == algorithm)
    }
}

impl fmt::Display for Wrapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm().fmt(f)
    }
}

impl FromStr for CkaId {
    type Err = CkaIdError;

    fn from_str(text: &str) -> Result<Self, CkaIdError> {
        let error = || CkaIdError { found: text.chars().take(2 * MAX_ID + 1).collect() };
        let bytes = hex::decode(text).map_err(|_| error())?;
        let lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        if lower && (MIN_ID..=MAX_ID).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(error()) }
    }
}

impl TryFrom<String> for CkaId {
    type Error = CkaIdError;

    fn try_from(text: String) -> Result<Self, CkaIdError> {
        text.parse()
    }
}

impl From<CkaId> for String {
    fn from(id: CkaId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for CkaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for CkaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TokenSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => write!(f, "label {label:?}"),
            Self::Serial(serial) => write!(f, "serial number {serial:?}"),
        }
    }
}
