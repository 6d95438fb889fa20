//! `POST /refresh`: root keys are looked at now, and not when it is their turn.
//!
//! Somebody may pay for each call to a key service. So wishes are counted: [`AT_ONCE`], then one each [`EVERY`], which is 40
//! in an hour at most. Those that come before the look of the last one has ended are free, so a counted one brings two looks
//! at most. That is below 300 calls an hour for each root key, with what a provider does by itself, whoever has the socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use casemate_keyservice::Pace;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Shown, of_type, text};
use crate::provider::Provider;

/// Wishes that are granted one after the other, of each provider with root keys in key services.
pub const AT_ONCE: u32 = 10;
/// How often one more is, from then on.
pub const EVERY: Duration = Duration::from_secs(120);

/// What was asked for.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Asked {
    /// Each provider whose root keys will be looked at.
    pub providers: Vec<AskedOf>,
}

/// A look at the root keys of one provider.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AskedOf {
    /// Its configured name.
    pub name: String,
    /// The number of the wish: it is fulfilled when `refreshes.done` of `/status` is no less.
    pub refresh: u64,
}

/// Nothing was asked for: somebody asked too often.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TooSoon {
    /// Of which provider.
    pub provider: String,
    /// When to ask again, in seconds from now.
    pub retry_after_seconds: u64,
}

/// What is left of the wishes that are granted.
#[derive(Debug, Default)]
pub(super) struct Allowance(Mutex<BTreeMap<String, Spent>>);

/// Of one provider.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// The last wish that was counted.
    last: u64,
    /// When all of them are there again.
    whole_at: Instant,
}

impl Allowance {
    /// Asks each provider, or none.
    fn ask(&self, providers: &[(&str, Arc<Provider>)]) -> Result<Asked, TooSoon> {
        let now = Instant::now();
        // Every state of it is valid, whatever panicked.
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = |(name, provider): &&(&str, Arc<Provider>)| {
            let snapshot = provider.snapshot();
            // Files are looked at every few seconds anyway.
            let is_paid_for = snapshot.root_keys.iter().any(|seen| seen.key.pace() == Pace::Remote);
            is_paid_for && spent.get(*name).is_none_or(|spent| snapshot.refreshed >= spent.last)
        };
        let counted: Vec<&str> = providers.iter().filter(counted).map(|(name, _)| *name).collect();
        let spare = EVERY * (AT_ONCE - 1);
        let waits = counted.iter().filter_map(|name| {
            let wait = spent.get(*name)?.whole_at.saturating_duration_since(now).saturating_sub(spare);
            (!wait.is_zero()).then_some((wait, *name))
        });
        if let Some((wait, provider)) = waits.max() {
            let retry_after_seconds = wait.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX);
            return Err(TooSoon { provider: provider.to_owned(), retry_after_seconds });
        }
        let asked = providers.iter().map(|(name, provider)| {
            let refresh = provider.refresh();
            if counted.contains(name) {
                let whole_at = spent.get(*name).map_or(now, |spent| spent.whole_at.max(now)) + EVERY;
                spent.insert((*name).to_owned(), Spent { last: refresh, whole_at });
            }
            AskedOf { name: (*name).to_owned(), refresh }
        });
        Ok(Asked { providers: asked.collect() })
    }
}

/// Asks all providers, or the one that the query names.
pub(super) fn answer(shown: &Shown, allowance: &Allowance, query: Option<&str>) -> Response<Full<Bytes>> {
    // Names of providers have no characters that are escaped in a query.
    let only = match query.filter(|query| !query.is_empty()).map(|query| query.split_once('=')) {
        None => None,
        Some(Some(("provider", name))) => Some(name),
        Some(_) => return text(StatusCode::BAD_REQUEST, "the one parameter is ?provider=NAME\n".into()),
    };
    let providers = shown.hosted.iter().filter(|hosted| only.is_none_or(|name| **hosted.name() == *name));
    let providers: Vec<_> = providers.map(|hosted| (&**hosted.name(), hosted.provider())).collect();
    if let (Some(name), true) = (only, providers.is_empty()) {
        let names: Vec<&str> = shown.hosted.iter().map(|hosted| &**hosted.name()).collect();
        return text(
            StatusCode::NOT_FOUND,
            format!("there is no provider {name:?}; there are {}\n", names.join(", ")),
        );
    }
    match allowance.ask(&providers) {
        Ok(asked) => {
            shown.key_services.try_again();
            json(StatusCode::ACCEPTED, &asked)
        }
        Err(soon) => {
            let mut refused = json(StatusCode::TOO_MANY_REQUESTS, &soon);
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from(soon.retry_after_seconds));
            refused
        }
    }
}

fn json(code: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string_pretty(body) {
        Ok(body) => of_type(code, "application/json", body + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
