//! The token of all calls: shared, renewed before it ends, got again when it is not accepted any more.
//!
//! Nothing runs in the background: a call that comes when two thirds of the token's life are over starts its renewal
//! and goes on with the token that it has. Only a call that finds none waits for one.
//!
//! * `flight`: one login at a time. `patience`: when one that came to nothing is tried again. `sharing`: who shares a
//!   session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use reqwest::header::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::Auth;
use super::login::{Grant, Login, NotGranted, Unwrapped, header};
use super::service::Service;
use crate::http::Http;
use crate::{Class, Failure};
use flight::Flight;
use patience::Patience;

mod flight;
mod patience;
mod sharing;

pub(super) use sharing::Caller;
pub use sharing::Sessions;

/// How long a login may take, whoever waits for it.
const LOGIN: Duration = Duration::from_secs(20);

/// The secret id that came wrapped last, if one did. Held by who unwraps: it opens once.
pub(super) type WrappedSecretId = Mutex<Option<Unwrapped>>;

/// Who we are to the service. Cheap to clone.
#[derive(Clone)]
pub(super) struct Session(Arc<Inner>);

struct Inner {
    service: Service,
    auth: Auth,
    namespace: String,
    wrapped: Arc<WrappedSecretId>,
    current: ArcSwapOption<Token>,
    flight: Flight<Arc<Token>>,
    /// Held by the one login or renewal that is made.
    turn: Mutex<()>,
    patience: std::sync::Mutex<Patience>,
    warned: AtomicBool,
}

/// A token that was accepted.
pub(super) struct Token {
    text: Zeroizing<String>,
    header: HeaderValue,
    /// `None`: it holds for ever.
    life: Option<Life>,
}

#[derive(Clone, Copy)]
struct Life {
    /// How long it lasted when it was new.
    whole: Duration,
    ends: Instant,
    /// When to do something about it.
    due: Instant,
    renewable: bool,
}

impl Token {
    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// `since`: before it was asked for.
    pub(super) fn new(grant: Grant, since: Instant) -> Result<Self, Failure> {
        let life = grant.lasts.map(|lasts| Life {
            whole: lasts,
            ends: since + lasts,
            due: since + lasts * 2 / 3,
            renewable: grant.renewable,
        });
        Ok(Self { header: header(&grant.token)?, text: grant.token, life })
    }

    fn with(&self, life: Life) -> Self {
        Self { text: self.text.clone(), header: self.header.clone(), life: Some(life) }
    }

    fn has_ended(&self) -> bool {
        self.life.is_some_and(|life| life.ends <= Instant::now())
    }

    fn is_due(&self) -> bool {
        self.life.is_some_and(|life| life.due <= Instant::now())
    }
}

impl Session {
    fn new(caller: Caller, wrapped: Arc<WrappedSecretId>) -> Self {
        let Caller { addresses, tls, auth, namespace } = caller;
        let service = Service::new(Http::new(addresses, tls));
        Self(Arc::new(Inner {
            service,
            auth,
            namespace,
            wrapped,
            current: ArcSwapOption::empty(),
            flight: Flight::default(),
            turn: Mutex::default(),
            patience: std::sync::Mutex::default(),
            warned: AtomicBool::new(false),
        }))
    }

    /// The service that it is a session of.
    pub(super) fn service(&self) -> &Service {
        &self.0.service
    }

    /// Whether there is another one like this.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether it knows what the next one would have to ask for: a token, or that the service refuses it.
    fn is_worth_keeping(&self) -> bool {
        let holds_a_token = self.0.current.load().as_ref().is_some_and(|token| !token.has_ended());
        holds_a_token || self.0.patience().matters(Instant::now())
    }

    /// See [`Sessions::try_again`].
    fn try_again(&self) {
        self.0.patience().try_again(Instant::now());
    }

    /// A token that holds, as far as is known.
    pub(super) async fn token(&self) -> Result<Arc<Token>, Failure> {
        match self.0.current.load_full() {
            Some(token) if !token.has_ended() => {
                if token.is_due() {
                    self.0.start_refresh(&token);
                }
                Ok(token)
            }
            _ => self.log_in(None).await,
        }
    }

    /// Another token, if `denied` is not accepted any more; `None` if it is.
    pub(super) async fn replacement(&self, denied: &Arc<Token>) -> Result<Option<Arc<Token>>, Failure> {
        if self.0.is_current(denied) && self.0.login().look_up(&denied.text).await?.is_some() {
            return Ok(None);
        }
        self.log_in(Some(denied)).await.map(Some)
    }

    /// Ends the token, if it came of a login: one in a file is somebody else's.
    async fn log_out(&self) {
        if matches!(self.0.auth, Auth::TokenFile { .. }) {
            return;
        }
        if let Some(token) = self.0.current.swap(None) {
            // It ends by itself, only later.
            let _ = self.0.login().revoke(&token.text).await;
        }
    }

    /// A token other than `instead_of`. It is got in a task of its own: what came wrapped must be kept, even if the
    /// caller has given up.
    async fn log_in(&self, instead_of: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let login = || {
            let (inner, instead_of) = (Arc::clone(&self.0), instead_of.cloned());
            move || async move { inner.log_in(instead_of).await }
        };
        let shared = self.0.flight.share(login()).await;
        match (&shared.outcome, instead_of) {
            // One that was landing when this caller came, with the token that was denied since.
            (Ok(token), Some(denied)) if shared.is_joined && *token.text == *denied.text => {
                self.0.flight.share(login()).await.outcome
            }
            _ => shared.outcome,
        }
    }
}

impl Inner {
    fn login(&self) -> Login<'_> {
        Login { service: &self.service, auth: &self.auth, namespace: &self.namespace }
    }

    fn is_current(&self, token: &Token) -> bool {
        self.current.load().as_ref().is_some_and(|current| *current.text == *token.text)
    }

    /// Every state of it is valid, whatever panicked.
    fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token other than `instead_of`, which may have been got by a renewal meanwhile.
    async fn log_in(&self, instead_of: Option<Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let _turn = self.turn.lock().await;
        if let Some(current) = self.current.load_full() {
            // By its text: a token that was renewed is the same.
            let is_other = instead_of.is_none_or(|old| *old.text != *current.text);
            if is_other && !current.has_ended() {
                return Ok(current);
            }
        }
        self.log_in_now().await
    }

    /// For who holds the turn.
    async fn log_in_now(&self) -> Result<Arc<Token>, Failure> {
        let credentials = self.auth.credentials().await?;
        let digest = credentials.digest(self.service.certificates().await);
        if let Some(failure) = self.patience().answer(&digest, Instant::now()) {
            return Err(failure);
        }
        let since = Instant::now();
        let login = self.login();
        let attempt = tokio::time::timeout(LOGIN, login.run(&credentials, &self.wrapped)).await;
        let grant = attempt.unwrap_or_else(|_| {
            let what = format!("no answer to login by {} within {} s", self.auth.name(), LOGIN.as_secs());
            Err(Failure::new(Class::Unreachable, what, "see that OpenBao or Vault is well").into())
        });
        match grant.and_then(|grant| Token::new(grant, since).map_err(NotGranted::from)) {
            Ok(token) => {
                self.patience().granted();
                if !self.warned.swap(true, Ordering::Relaxed) {
                    for exposed in &credentials.exposed {
                        tracing::warn!("{exposed}: chmod 0600");
                    }
                }
                let token = Arc::new(token);
                self.current.store(Some(Arc::clone(&token)));
                Ok(token)
            }
            Err(NotGranted { mut failure, counts }) => {
                for exposed in &credentials.exposed {
                    failure.what = format!("{} ({exposed})", failure.what);
                }
                if failure.class == Class::Unreachable {
                    return Err(failure);
                }
                // Certificates may have been read again meanwhile.
                let digest = credentials.digest(self.service.certificates().await);
                Err(self.patience().failed(digest, failure, counts, Instant::now(), chance()))
            }
        }
    }

    /// Renews the token in a task of its own, or gets another one. Calls go on with the one they have.
    fn start_refresh(self: &Arc<Self>, token: &Arc<Token>) {
        let Some(life) = token.life else { return };
        // Taken by whoever moves the time at which it is due.
        let rest = life.ends.saturating_duration_since(Instant::now());
        let later = Life { due: Instant::now() + (rest / 3).max(Duration::from_secs(1)), ..life };
        let taken = Arc::new(token.with(later));
        let before = self.current.compare_and_swap(&Some(Arc::clone(token)), Some(Arc::clone(&taken)));
        if before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, token)) {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(failure) = inner.refresh(&taken, later).await {
                tracing::warn!("the token of Transit could not be renewed yet: {failure}");
            }
        });
    }

    async fn refresh(&self, token: &Arc<Token>, life: Life) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        if !self.is_current(token) {
            return Ok(());
        }
        if life.renewable && !self.file_has_other(token).await {
            let since = Instant::now();
            if let Some(grant) = self.login().renew(&token.text).await?
                && let Some(lasts) = grant.lasts
            {
                let whole = life.whole.max(lasts);
                let renewed = Life {
                    whole,
                    ends: since + lasts,
                    due: since + lasts * 2 / 3,
                    renewable: grant.renewable,
                };
                self.current.store(Some(Arc::new(token.with(renewed))));
                // Less than was granted at first: its greatest age is near.
                let is_capped = lasts < whole * 2 / 3;
                if !is_capped || matches!(self.auth, Auth::TokenFile { .. }) {
                    return Ok(());
                }
            }
        }
        self.log_in_now().await.map(drop)
    }

    /// Whether the token file was given another token.
    async fn file_has_other(&self, token: &Token) -> bool {
        matches!(self.auth, Auth::TokenFile { .. })
            && self.auth.credentials().await.is_ok_and(|now| !now.is_token(&token.text))
    }
}

/// Between 0 and 1, unlike on other nodes.
fn chance() -> f64 {
    let mut byte = [0];
    // Without it, nodes come at once, and that is all.
    let _ = aws_lc_rs::rand::fill(&mut byte);
    f64::from(byte[0]) / 255.0
}

#[cfg(test)]
mod tests;
