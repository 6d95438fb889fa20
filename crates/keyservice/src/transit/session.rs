//! The token of all calls: shared, renewed before it ends, got again when it is not accepted any more.
//!
//! Nothing runs in the background: a call that comes when two thirds of the token's life are over starts its renewal
//! and goes on with the token that it has. Only a call that finds none waits for one.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use reqwest::header::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::Auth;
use super::login::{Grant, Login, Unwrapped, header};
use super::service::Service;
use crate::http::Http;
use crate::{Class, Failure};

mod sharing;

pub(super) use sharing::Caller;
pub use sharing::Sessions;

/// How long a login may take, whoever waits for it.
const LOGIN: Duration = Duration::from_secs(20);
/// The first pause after a login that was refused, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

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
    state: Mutex<State>,
}

/// What only one login or renewal at a time touches.
#[derive(Default)]
struct State {
    refused: Option<Refusal>,
    warned: bool,
}

/// A login that was refused, and when the same credentials may be tried again.
struct Refusal {
    credentials: [u8; 32],
    failure: Failure,
    until: Instant,
    pauses: ExponentialBackoff,
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
    fn new(grant: Grant, since: Instant) -> Result<Self, Failure> {
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
        let (current, state) = (ArcSwapOption::empty(), Mutex::default());
        Self(Arc::new(Inner { service, auth, namespace, wrapped, current, state }))
    }

    /// The service that it is a session of.
    pub(super) fn service(&self) -> &Service {
        &self.0.service
    }

    /// Whether there is another one like this.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn holds_a_token(&self) -> bool {
        self.0.current.load().as_ref().is_some_and(|token| !token.has_ended())
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
        self.log_in(Some(Arc::clone(denied))).await.map(Some)
    }

    /// In a task of its own: a wrapped secret id that was got must be kept, even if the caller has given up.
    async fn log_in(&self, instead_of: Option<Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move { inner.log_in(instead_of).await }).await.unwrap_or_else(|_| {
            let what = "a login was broken off";
            Err(Failure::new(Class::Unreachable, what, "try again; the program may be stopping"))
        })
    }
}

impl Inner {
    fn login(&self) -> Login<'_> {
        Login { service: &self.service, auth: &self.auth, namespace: &self.namespace }
    }

    fn is_current(&self, token: &Token) -> bool {
        self.current.load().as_ref().is_some_and(|current| *current.text == *token.text)
    }

    /// A token other than `instead_of`, which may have been got by another caller meanwhile.
    async fn log_in(&self, instead_of: Option<Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let mut state = self.state.lock().await;
        if let Some(current) = self.current.load_full() {
            // By its text: a token that was renewed is the same.
            let is_other = instead_of.is_none_or(|old| *old.text != *current.text);
            if is_other && !current.has_ended() {
                return Ok(current);
            }
        }
        self.log_in_now(&mut state).await
    }

    async fn log_in_now(&self, state: &mut State) -> Result<Arc<Token>, Failure> {
        let credentials = self.auth.credentials(self.service.certificates()).await?;
        if let Some(refusal) = &state.refused
            && refusal.credentials == credentials.digest
            && Instant::now() < refusal.until
        {
            return Err(refusal.failure.clone());
        }
        let since = Instant::now();
        let login = self.login();
        let attempt = tokio::time::timeout(LOGIN, login.run(&credentials, &self.wrapped)).await;
        let grant = attempt.unwrap_or_else(|_| {
            let what = format!("no answer to login by {} within {} s", self.auth.name(), LOGIN.as_secs());
            Err(Failure::new(Class::Unreachable, what, "see that OpenBao or Vault is well"))
        });
        match grant.and_then(|grant| Token::new(grant, since)) {
            Ok(token) => {
                state.refused = None;
                if !std::mem::replace(&mut state.warned, true) {
                    for exposed in &credentials.exposed {
                        tracing::warn!("{exposed}: chmod 0600");
                    }
                }
                let token = Arc::new(token);
                self.current.store(Some(Arc::clone(&token)));
                Ok(token)
            }
            Err(mut failure) => {
                for exposed in &credentials.exposed {
                    failure.what = format!("{} ({exposed})", failure.what);
                }
                if failure.class != Class::Unreachable {
                    state.refuse(credentials.digest, &failure);
                }
                Err(failure)
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
        let mut state = self.state.lock().await;
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
        self.log_in_now(&mut state).await.map(drop)
    }

    /// Whether the token file was given another token.
    async fn file_has_other(&self, token: &Token) -> bool {
        matches!(self.auth, Auth::TokenFile { .. })
            && self.auth.credentials(None).await.is_ok_and(|now| !now.is_token(&token.text))
    }
}

impl State {
    fn refuse(&mut self, credentials: [u8; 32], failure: &Failure) {
        let mut pauses = match self.refused.take() {
            Some(refusal) if refusal.credentials == credentials => refusal.pauses,
            _ => ExponentialBuilder::new()
                .with_min_delay(PAUSES.0)
                .with_max_delay(PAUSES.1)
                .without_max_times()
                .with_jitter()
                .build(),
        };
        let pause = pauses.next().unwrap_or(PAUSES.1).max(failure.retry_after.unwrap_or_default());
        let failure = failure.clone();
        self.refused = Some(Refusal { credentials, failure, until: Instant::now() + pause, pauses });
    }
}
