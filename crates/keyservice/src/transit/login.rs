//! What each way to log in sends, and what comes back.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::service::{Request, Service};
use super::session::WrappedSecretId;
use super::{Auth, RoleId, answer, secret_file};
use crate::http::{Reply, sha256};
use crate::{Class, Failure};

/// What lasts longer than ten years is renewed after that.
const LONGEST_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What the files of an [`Auth`] hold now.
pub(super) struct Credentials {
    /// Role id, if the method has one in a file or the configuration.
    role_id: Option<Zeroizing<String>>,
    /// Token, secret id or JWT.
    secret: Option<Zeroizing<String>>,
    /// Files that others than their owner can use.
    pub(super) exposed: Vec<String>,
}

impl Credentials {
    /// Of all that is sent, with these certificates.
    pub(super) fn digest(&self, certificates: Option<[u8; 32]>) -> [u8; 32] {
        let part =
            |text: &Option<Zeroizing<String>>| text.as_ref().map_or([0; 32], |text| sha256(text.as_bytes()));
        sha256(&[part(&self.role_id), part(&self.secret), certificates.unwrap_or_default()].concat())
    }

    /// Whether `token` is what the file holds.
    pub(super) fn is_token(&self, token: &str) -> bool {
        self.secret.as_ref().is_some_and(|secret| secret.as_str() == token)
    }
}

/// A token as the service granted it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) token: Zeroizing<String>,
    /// How long it holds from now; `None` if for ever.
    pub(super) lasts: Option<Duration>,
    pub(super) renewable: bool,
}

/// A secret id that came wrapped.
pub(super) struct Unwrapped {
    /// Of the wrapping token.
    digest: [u8; 32],
    secret_id: Zeroizing<String>,
}

/// A login that came to nothing.
pub(super) struct NotGranted {
    pub(super) failure: Failure,
    /// Whether the service counts it, and locks who logs in after some.
    pub(super) counts: bool,
}

impl From<Failure> for NotGranted {
    fn from(failure: Failure) -> Self {
        Self { failure, counts: false }
    }
}

impl Auth {
    /// Reads the files. Off the threads that serve: a disk may hang.
    pub(super) async fn credentials(&self) -> Result<Credentials, Failure> {
        let auth = self.clone();
        tokio::task::spawn_blocking(move || auth.read()).await.unwrap_or_else(|_| {
            let what = "reading the credential files was broken off";
            Err(Failure::new(Class::Unreachable, what, "try again; the program may be stopping").unasked())
        })
    }

    fn read(&self) -> Result<Credentials, Failure> {
        let (role_id, secret) = match self {
            Self::TokenFile { path } => (None, Some(secret_file::read(path)?)),
            Self::AppRole { role_id, secret_id_file, .. } => {
                let role_id = match role_id {
                    RoleId::Text(text) => Zeroizing::new(text.clone()),
                    RoleId::File(path) => secret_file::read(path)?.text,
                };
                (Some(role_id), Some(secret_file::read(secret_id_file)?))
            }
            Self::Jwt { jwt_file: path, .. } | Self::Kubernetes { token_file: path, .. } => {
                (None, Some(secret_file::read(path)?))
            }
            Self::Certificate { .. } => (None, None),
        };
        let exposed = secret.iter().filter_map(|secret| secret.exposed.clone()).collect();
        Ok(Credentials { role_id, secret: secret.map(|secret| secret.text), exposed })
    }

    /// What the service answers to a login that sent these secrets.
    pub(super) fn grant(&self, reply: &Reply, shown: &str, secrets: &[&str]) -> Result<Grant, NotGranted> {
        match reply.status {
            200 => granted(&reply.body).ok_or_else(|| answer::corrupt(shown, "no token").into()),
            204 => Err(answer::corrupt(shown, "no content").into()),
            status => {
                let said = said(reply, secrets);
                let what = format!("login by {} at {shown} answers {status}{said}", self.name());
                // Of the ways to log in that are here, the service locks this one.
                let counts = matches!(self, Self::AppRole { .. }) && matches!(status, 400 | 401 | 403);
                Err(NotGranted {
                    failure: Failure::new(Class::Credential, what, self.remedy(status)),
                    counts,
                })
            }
        }
    }

    /// Once a role is locked, the service answers 403, with a good secret id too.
    fn remedy(&self, status: u16) -> String {
        let remedy = match self {
            Self::TokenFile { .. } => "write a new token into the file",
            Self::AppRole { mount, .. } => {
                let may_be_locked = match status {
                    403 => format!(
                        "the role may be locked after refused logins, of any node and of any command: nothing helps then but a \
                         quarter of an hour without one, or `bao auth tune -user-lockout-disable=true {mount}/`. Otherwise "
                    ),
                    _ => String::new(),
                };
                return format!(
                    "{may_be_locked}see that role id and secret id are of the same role, that the secret id has neither \
                     expired nor been destroyed or used up, and where it may be used from; then write a new one into its file, \
                     which is tried at once"
                );
            }
            Self::Jwt { .. } | Self::Kubernetes { .. } => {
                "see that the token in the file has not expired, is valid already by this service's clock, and has the \
                 issuer, audience and subject that the role wants"
            }
            Self::Certificate { .. } => {
                "see that a certificate role trusts the authority of the client certificate and that it has not expired"
            }
        };
        remedy.to_owned()
    }
}

/// Who logs in, where.
pub(super) struct Login<'a> {
    pub(super) service: &'a Service,
    pub(super) auth: &'a Auth,
    pub(super) namespace: &'a str,
}

impl Login<'_> {
    /// Gets a token. A secret id that comes wrapped is kept in `kept`, since it can't be got again.
    pub(super) async fn run(
        &self,
        credentials: &Credentials,
        kept: &WrappedSecretId,
    ) -> Result<Grant, NotGranted> {
        let role_id = credentials.role_id.as_ref().map_or("", |text| text.as_str());
        let secret = credentials.secret.as_ref().map_or("", |text| text.as_str());
        match self.auth {
            Auth::TokenFile { path } => {
                let looked = self.look_up(secret).await?;
                looked.ok_or_else(|| {
                    let what = format!(
                        "the service does not accept the token in {}: it has expired, was revoked, belongs to another \
                         service or namespace, or may not look itself up",
                        path.display()
                    );
                    let remedy = "write a new token into the file, of a policy that allows `read` on \
                                  auth/token/lookup-self";
                    Failure::new(Class::Credential, what, remedy).into()
                })
            }
            Auth::AppRole { mount, wrapped, .. } => {
                #[derive(Serialize)]
                struct Body<'a> {
                    role_id: &'a str,
                    secret_id: &'a str,
                }
                let secret_id = if *wrapped {
                    self.unwrap(mount, secret, kept).await?
                } else {
                    Zeroizing::new(secret.to_owned())
                };
                let body = Body { role_id, secret_id: &secret_id };
                self.log_in(mount, &body, &[role_id, &secret_id]).await
            }
            Auth::Jwt { mount, role, .. } | Auth::Kubernetes { mount, role, .. } => {
                #[derive(Serialize)]
                struct Body<'a> {
                    role: &'a str,
                    jwt: &'a str,
                }
                self.log_in(mount, &Body { role, jwt: secret }, &[secret]).await
            }
            Auth::Certificate { mount, role } => {
                #[derive(Serialize)]
                struct Body<'a> {
                    #[serde(skip_serializing_if = "Option::is_none")]
                    name: Option<&'a str>,
                }
                self.log_in(mount, &Body { name: role.as_deref() }, &[]).await
            }
        }
    }

    async fn log_in(
        &self,
        mount: &str,
        body: &impl Serialize,
        secrets: &[&str],
    ) -> Result<Grant, NotGranted> {
        let mut path = vec!["v1", "auth"];
        path.extend(mount.split('/'));
        path.push("login");
        let shown = answer::shown(self.namespace, &path);
        let reply = match self.auth {
            // Its secret id may be good for one login.
            Auth::AppRole { .. } => self.post_once(&path, None, body).await?,
            _ => self.post(&path, None, body).await?,
        };
        self.auth.grant(&reply, &shown, secrets)
    }

    /// What the service says of a token; `None` if it does not accept it.
    pub(super) async fn look_up(&self, token: &str) -> Result<Option<Grant>, Failure> {
        let path = ["v1", "auth", "token", "lookup-self"];
        let request = Request {
            method: Method::GET,
            path: &path,
            namespace: self.namespace,
            token: Some(header(token)?),
            body: None,
        };
        let shown = answer::shown(self.namespace, &path);
        let reply = self.service.ask(request).await?;
        answer::expect_service(&reply, &shown)?;
        match reply.status {
            200 => looked(&reply.body, token)
                .map(Some)
                .ok_or_else(|| answer::corrupt(&shown, "no description of a token")),
            _ => Ok(None),
        }
    }

    /// Prolongs a token; `None` if the service does not.
    pub(super) async fn renew(&self, token: &str) -> Result<Option<Grant>, Failure> {
        let path = ["v1", "auth", "token", "renew-self"];
        let reply = self.post(&path, Some(header(token)?), &serde_json::json!({})).await?;
        match reply.status {
            200 => {
                let shown = answer::shown(self.namespace, &path);
                granted(&reply.body).map(Some).ok_or_else(|| answer::corrupt(&shown, "no token"))
            }
            _ => Ok(None),
        }
    }

    /// Ends a token. Whether the service did is no matter: it ends by itself.
    pub(super) async fn revoke(&self, token: &str) -> Result<(), Failure> {
        let path = ["v1", "auth", "token", "revoke-self"];
        self.post(&path, Some(header(token)?), &serde_json::json!({})).await.map(drop)
    }

    /// The secret id that this token wraps.
    async fn unwrap(
        &self,
        mount: &str,
        token: &str,
        kept: &WrappedSecretId,
    ) -> Result<Zeroizing<String>, Failure> {
        #[derive(Serialize)]
        struct Lookup<'a> {
            token: &'a str,
        }
        #[derive(Deserialize)]
        struct Wrapping {
            creation_path: String,
        }
        #[derive(Deserialize)]
        struct SecretId {
            secret_id: Zeroizing<String>,
        }
        let digest = sha256(token.as_bytes());
        let mut kept = kept.lock().await;
        if let Some(known) = kept.as_ref().filter(|known| known.digest == digest) {
            return Ok(known.secret_id.clone());
        }
        let used = || {
            let what = "the wrapping token in the secret id file was used already, or has expired";
            let remedy = "if no process of yours has used it, somebody may have intercepted the secret id: destroy it, \
                          find out who read the file, and deliver a new wrapping token; a restarted process needs a \
                          new one too";
            Failure::new(Class::Credential, what, remedy)
        };
        // Where it was made, first: who intercepts a secret id may wrap another one in its place.
        let path = ["v1", "sys", "wrapping", "lookup"];
        let reply = self.post(&path, None, &Lookup { token }).await?;
        if reply.status != 200 {
            return Err(used());
        }
        let shown = answer::shown(self.namespace, &path);
        let Wrapping { creation_path } = answer::data(&reply.body)
            .ok_or_else(|| answer::corrupt(&shown, "no description of a wrapping token"))?;
        if !makes_secret_ids(&creation_path, self.namespace, mount) {
            let what = format!(
                "the wrapping token in the secret id file was not made at auth/{mount}/role/ROLE/secret-id but at {:?}",
                creation_path.chars().take(100).collect::<String>()
            );
            let remedy = "somebody may have put their own in its place: find out who wrote the file, destroy the \
                          secret id, and deliver a new one";
            return Err(Failure::new(Class::Credential, what, remedy));
        }
        let path = ["v1", "sys", "wrapping", "unwrap"];
        let reply = self.post_once(&path, Some(header(token)?), &serde_json::json!({})).await?;
        if reply.status != 200 {
            return Err(used());
        }
        let shown = answer::shown(self.namespace, &path);
        let SecretId { secret_id } =
            answer::data(&reply.body).ok_or_else(|| answer::corrupt(&shown, "no secret id"))?;
        *kept = Some(Unwrapped { digest, secret_id: secret_id.clone() });
        Ok(secret_id)
    }

    async fn post(
        &self,
        path: &[&str],
        token: Option<HeaderValue>,
        body: &impl Serialize,
    ) -> Result<Reply, Failure> {
        let request = self.request(path, token, answer::json(body)?);
        self.expected(self.service.ask(request).await?, path)
    }

    /// What the service does once only.
    async fn post_once(
        &self,
        path: &[&str],
        token: Option<HeaderValue>,
        body: &impl Serialize,
    ) -> Result<Reply, Failure> {
        let request = self.request(path, token, answer::json(body)?);
        self.expected(self.service.ask_once(request).await?, path)
    }

    fn request<'a>(
        &'a self,
        path: &'a [&'a str],
        token: Option<HeaderValue>,
        body: Zeroizing<Vec<u8>>,
    ) -> Request<'a> {
        Request { method: Method::POST, path, namespace: self.namespace, token, body: Some(body) }
    }

    fn expected(&self, reply: Reply, path: &[&str]) -> Result<Reply, Failure> {
        answer::expect_service(&reply, &answer::shown(self.namespace, path))?;
        Ok(reply)
    }
}

/// Whether `path` is where secret ids of a role in this mount are made. Exactly: below another mount, who may write
/// there chooses what the rest of a path is.
pub(super) fn makes_secret_ids(path: &str, namespace: &str, mount: &str) -> bool {
    let inside = path.strip_prefix(namespace).and_then(|path| path.strip_prefix('/')).unwrap_or(path);
    inside
        .strip_prefix("auth/")
        .and_then(|path| path.strip_prefix(mount))
        .and_then(|path| path.strip_prefix("/role/"))
        .and_then(|path| path.strip_suffix("/secret-id"))
        .is_some_and(|role| !role.is_empty() && !role.contains('/'))
}

/// A token as a header, never shown.
pub(super) fn header(token: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(token).map_err(|_| {
        let what = "a token holds characters that no token has";
        Failure::new(Class::Credential, what, "write a new token into its file")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The description of this token in the answer to a look-up.
pub(super) fn looked(body: &[u8], token: &str) -> Option<Grant> {
    #[derive(Deserialize)]
    struct Looked {
        ttl: u64,
        #[serde(default)]
        renewable: bool,
        /// Null, if it never ends.
        expire_time: Option<String>,
    }
    let looked: Looked = answer::data(body)?;
    let ends = looked.ttl > 0 || looked.expire_time.is_some();
    Some(Grant {
        token: Zeroizing::new(token.to_owned()),
        lasts: ends.then(|| lasting(looked.ttl)),
        renewable: looked.renewable,
    })
}

/// The token in an answer to login or renewal.
fn granted(body: &[u8]) -> Option<Grant> {
    #[derive(Deserialize)]
    struct Envelope {
        auth: Granted,
    }
    #[derive(Deserialize)]
    struct Granted {
        client_token: Zeroizing<String>,
        lease_duration: u64,
        #[serde(default)]
        renewable: bool,
    }
    let Envelope { auth } = serde_json::from_slice(body).ok()?;
    let lasts = (auth.lease_duration > 0).then(|| lasting(auth.lease_duration));
    (!auth.client_token.is_empty()).then_some(Grant {
        token: auth.client_token,
        lasts,
        renewable: auth.renewable,
    })
}

/// No longer than can be reckoned with.
fn lasting(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST_LIFE)
}

/// What the service says, unless it repeats what it was told.
fn said(reply: &Reply, secrets: &[&str]) -> String {
    match answer::errors(&reply.body) {
        Some(text)
            if !text.is_empty()
                && !secrets.iter().any(|secret| !secret.is_empty() && text.contains(secret)) =>
        {
            format!(" ({:?})", text.chars().take(200).collect::<String>())
        }
        _ => String::new(),
    }
}
