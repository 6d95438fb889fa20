//! Root keys in the Transit engine of OpenBao or Vault.
//!
//! A key is named by namespace, mount and name; each of its versions by its number and creation time, so that a key
//! that was deleted and made anew, or that another service holds under the same name, is another root. Transit
//! does not tell when it ignores a parameter: who prepares a local KEK proves that its associated data is bound.
//!
//! * [`TransitConfig`]: which key, where, and who asks. [`TransitKey`]: the key service. [`Sessions`]: logins that keys share.
//! * `service`: calls, whichever of the addresses answers. `session`: the token, its renewal and how it is got
//!   again. `login`: what each way to log in sends. `key`: what the service says of a key. `answer`: what an
//!   answer's status means. `fed`: all that comes of answers, for fuzzing.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use casemate_keys::{Algorithm, Digest, Lineage, LineagePrefix, Root, payload};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::http::Reply;
use crate::selection::Candidate;
use crate::{Answer, Class, Failure, RootKey};

mod answer;
mod config;
#[doc(hidden)]
pub mod fed;
mod key;
mod login;
mod secret_file;
mod service;
mod session;

pub use config::{Auth, ConfigError, RoleId, Selection, TransitConfig};
pub use session::Sessions;

use key::{KeyState, Version};
use service::Request;
use session::{Caller, Session};

/// The shortest and the longest wrap: nonce, payload and tag of the ciphers that are accepted.
const WRAP: std::ops::RangeInclusive<usize> = 12 + payload::LEN + 16..=24 + payload::LEN + 16;

/// A root key in Transit.
pub struct TransitKey {
    prefix: LineagePrefix,
    place: Place,
    selection: Selection,
    session: Session,
}

/// Which key.
#[derive(Clone, Debug)]
struct Place {
    namespace: String,
    mount: String,
    key: String,
}

impl TransitKey {
    /// The key of this configuration, with a session of its own. Nothing is read or asked yet.
    ///
    /// # Errors
    /// If a name, path or address can't be one.
    pub fn new(config: TransitConfig) -> Result<Self, ConfigError> {
        Self::sharing(config, &Sessions::default())
    }

    /// The same, with the one of `sessions` that logs in as this configuration does.
    ///
    /// # Errors
    /// As [`TransitKey::new`].
    pub fn sharing(config: TransitConfig, sessions: &Sessions) -> Result<Self, ConfigError> {
        let config = config.checked()?;
        let place =
            Place { namespace: config.namespace.unwrap_or_default(), mount: config.mount, key: config.key };
        let prefix = place.prefix()?;
        let session = sessions.of(Caller {
            addresses: config.addresses,
            tls: config.tls,
            auth: config.auth,
            namespace: config.auth_namespace.unwrap_or_else(|| place.namespace.clone()),
        });
        Ok(Self { prefix, place, selection: config.selection, session })
    }

    /// One call about the key, with a token that holds: one that turns out not to is replaced, once.
    async fn ask(&self, call: &KeyCall) -> Result<Reply, Failure> {
        let path = self.place.path(call.operation);
        let token = self.session.token().await?;
        let reply = self.send(call, &path, &token).await?;
        if !answer::is_denied(&reply) {
            return Ok(reply);
        }
        let Some(token) = self.session.replacement(&token).await? else { return Ok(reply) };
        self.send(call, &path, &token).await
    }

    async fn send(&self, call: &KeyCall, path: &[&str], token: &session::Token) -> Result<Reply, Failure> {
        let request = Request {
            method: call.method.clone(),
            path,
            namespace: &self.place.namespace,
            token: Some(token.header()),
            body: call.body.clone(),
        };
        let reply = self.session.service().ask(request).await?;
        answer::expect_service(&reply, &self.place.shown(path))?;
        match reply.status {
            // Whatever is asked of a key is answered by something, or by a no.
            204 => Err(answer::corrupt(&self.place.shown(path), "no content")),
            _ => Ok(reply),
        }
    }

    /// What the service says of the key.
    async fn state(&self) -> Result<KeyState, Failure> {
        let reply = self.ask(&KeyCall::read()).await?;
        match reply.status {
            200 => KeyState::parse(&reply.body, &self.place),
            404 => Err(self.place.missing_key()),
            status => Err(self.no(Operation::Keys, status)),
        }
    }

    /// Why the service said no to a call with `version`, if that is the key's state. `None` if the key is well.
    async fn why_not(&self, version: &Version<'_>) -> Result<(), Failure> {
        let state = self.state().await?;
        let found = state.version(version.number, &self.place).map_err(|failure| version.missing(failure))?;
        if found != *version.lineage {
            return Err(version.other(&found));
        }
        Ok(())
    }

    /// A no that the state of the key does not explain.
    fn no(&self, operation: Operation, status: u16) -> Failure {
        let path = self.place.shown(&self.place.path(operation));
        match status {
            401 | 403 => answer::denied(&path, operation.right()),
            _ => Failure::new(
                Class::Refused,
                format!("{path} answers {status}, and the state of the key does not say why"),
                "see the log of OpenBao or Vault, and what it audits",
            ),
        }
    }

    fn version<'a>(&self, root: &'a Root) -> Result<Version<'a>, Failure> {
        if root.algorithm != Algorithm::TRANSIT {
            let what = format!("Transit wraps with {}, not {}", Algorithm::TRANSIT, root.algorithm);
            return Err(Failure::new(
                Class::Refused,
                what,
                "correct the algorithms of this key in the configuration",
            ));
        }
        Version::parse(&root.lineage, &self.prefix)
    }

    async fn wrap(
        &self,
        root: &Root,
        core: &Digest,
        payload: Zeroizing<Vec<u8>>,
    ) -> Result<Vec<u8>, Failure> {
        let version = self.version(root)?;
        let call = KeyCall::post(
            Operation::Encrypt,
            &Encrypt {
                plaintext: Zeroizing::new(BASE64.encode(&payload[..])),
                associated_data: BASE64.encode(payload::associated_data(core)),
                key_version: version.number,
            },
        )?;
        let reply = self.ask(&call).await?;
        match reply.status {
            200 => {
                let sealed = Sealed::parse(&reply.body).ok_or_else(|| {
                    answer::corrupt(&self.place.shown(&self.place.path(Operation::Encrypt)), "no ciphertext")
                })?;
                sealed.wrap(&version)
            }
            401 | 403 => Err(self.no(Operation::Encrypt, reply.status)),
            status => {
                self.why_not(&version).await?;
                Err(self.no(Operation::Encrypt, status))
            }
        }
    }

    async fn unwrap(&self, root: &Root, core: &Digest, wrap: &[u8]) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let version = self.version(root)?;
        let call = KeyCall::post(
            Operation::Decrypt,
            &Decrypt {
                ciphertext: version.ciphertext(wrap),
                associated_data: BASE64.encode(payload::associated_data(core)),
            },
        )?;
        let reply = self.ask(&call).await?;
        match reply.status {
            200 => opened(&reply.body).ok_or_else(|| {
                answer::corrupt(
                    &self.place.shown(&self.place.path(Operation::Decrypt)),
                    "no plaintext of a payload's length",
                )
            }),
            401 | 403 => Err(self.no(Operation::Decrypt, reply.status)),
            400 => {
                self.why_not(&version).await?;
                let what = format!("a wrap of {} bytes does not open under {}", wrap.len(), root.lineage);
                let remedy =
                    "the record was changed or belongs to another wrap; restore the object from a backup";
                Err(Failure::new(Class::NotOpened, what, remedy))
            }
            status => {
                self.why_not(&version).await?;
                Err(self.no(Operation::Decrypt, status))
            }
        }
    }
}

impl fmt::Debug for TransitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransitKey")
            .field("place", &self.place)
            .field("selection", &self.selection)
            .field("service", self.session.service())
            .finish_non_exhaustive()
    }
}

impl RootKey for TransitKey {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(async move {
            let state = self.state().await?;
            let lineage = state.selected(self.selection, &self.place)?;
            Ok(Root { lineage, algorithm: Algorithm::TRANSIT })
        })
    }

    fn versions(&self) -> Answer<'_, Vec<Candidate>> {
        Box::pin(async move { Ok(self.state().await?.candidates(self.selection)) })
    }

    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        let payload = Zeroizing::new(payload.to_vec());
        Box::pin(self.wrap(root, core, payload))
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(self.unwrap(root, core, wrap))
    }

    fn binds_associated_data(&self, _root: &Root) -> bool {
        true
    }
}

/// What can be asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Keys,
    Encrypt,
    Decrypt,
}

impl Operation {
    fn segment(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }

    /// The capability that a policy must give.
    fn right(self) -> &'static str {
        match self {
            Self::Keys => "read",
            Self::Encrypt | Self::Decrypt => "update",
        }
    }
}

struct KeyCall {
    method: Method,
    operation: Operation,
    body: Option<Zeroizing<Vec<u8>>>,
}

impl KeyCall {
    fn read() -> Self {
        Self { method: Method::GET, operation: Operation::Keys, body: None }
    }

    fn post(operation: Operation, body: &impl Serialize) -> Result<Self, Failure> {
        Ok(Self { method: Method::POST, operation, body: Some(answer::json(body)?) })
    }
}

impl Place {
    fn prefix(&self) -> Result<LineagePrefix, ConfigError> {
        LineagePrefix::new("transit", [&self.namespace, &self.mount, &self.key])
            .map_err(|error| ConfigError::new("key", &self.key, error.to_string()))
    }

    fn lineage(&self, number: u32, created: i64) -> Result<Lineage, Failure> {
        let (number, created) = (number.to_string(), created.to_string());
        Lineage::new("transit", [&self.namespace, &self.mount, &self.key, &number, &created])
            .map_err(|error| Failure::new(Class::Corrupt, error.to_string(), "rename the key"))
    }

    fn path(&self, operation: Operation) -> Vec<&str> {
        let mount = self.mount.split('/');
        std::iter::once("v1").chain(mount).chain([operation.segment(), &self.key]).collect()
    }

    /// A path as a policy names it.
    fn shown(&self, path: &[&str]) -> String {
        answer::shown(&self.namespace, path)
    }

    fn missing_key(&self) -> Failure {
        let what = format!(
            "there is no key {:?} in mount {:?} of {}",
            self.key,
            self.mount,
            answer::namespace_shown(&self.namespace)
        );
        let remedy = "correct `namespace`, `mount` and `key` in the configuration; a key that was deleted must be \
                      restored from a backup, one that is made anew under its name is another key";
        Failure::new(Class::Refused, what, remedy)
    }
}

#[derive(Serialize)]
struct Encrypt {
    plaintext: Zeroizing<String>,
    associated_data: String,
    key_version: u32,
}

#[derive(Serialize)]
struct Decrypt {
    ciphertext: String,
    associated_data: String,
}

#[derive(Deserialize)]
struct Sealed {
    ciphertext: String,
    key_version: Option<u64>,
}

impl Sealed {
    fn parse(body: &[u8]) -> Option<Self> {
        answer::data(body)
    }

    /// The wrap, if it is one of exactly this version.
    fn wrap(self, version: &Version<'_>) -> Result<Vec<u8>, Failure> {
        let corrupt = |what: &str| answer::corrupt(&format!("encrypt with {}", version.lineage), what);
        let prefix = version.ciphertext_prefix();
        if self.key_version.is_some_and(|number| number != u64::from(version.number)) {
            return Err(corrupt("a ciphertext of another version"));
        }
        let Some(text) = self.ciphertext.strip_prefix(&prefix) else {
            return Err(corrupt(&format!("a ciphertext that does not begin with {prefix}")));
        };
        let wrap = BASE64.decode(text).map_err(|_| corrupt("a ciphertext that is not base64"))?;
        if !WRAP.contains(&wrap.len()) {
            return Err(corrupt(&format!(
                "a ciphertext of {} bytes, which no cipher makes of a payload",
                wrap.len()
            )));
        }
        Ok(wrap)
    }
}

/// The payload in the answer to decrypt.
fn opened(body: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    #[derive(Deserialize)]
    struct Opened {
        plaintext: Zeroizing<String>,
    }
    let opened: Opened = answer::data(body)?;
    let payload = Zeroizing::new(BASE64.decode(opened.plaintext.as_bytes()).ok()?);
    (payload.len() == payload::LEN).then_some(payload)
}

/// Every file that a configuration has read, so that a process that confines itself can keep them.
impl TransitConfig {
    /// Files of credentials and certificates.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.auth.files().into_iter().chain(self.tls.files())
    }
}

#[cfg(test)]
mod tests;
