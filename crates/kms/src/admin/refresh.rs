//! `POST /refresh`: root keys are looked at now, and not when it is their turn.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};

use super::{Shown, of_type, text};

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

/// Asks all providers, or the one that the query names.
pub(super) fn answer(shown: &Shown, query: Option<&str>) -> Response<Full<Bytes>> {
    // Names of providers have no characters that are escaped in a query.
    let only = match query.filter(|query| !query.is_empty()).map(|query| query.split_once('=')) {
        None => None,
        Some(Some(("provider", name))) => Some(name),
        Some(_) => return text(StatusCode::BAD_REQUEST, "the one parameter is ?provider=NAME\n".into()),
    };
    let providers = shown.hosted.iter().filter(|hosted| only.is_none_or(|name| **hosted.name() == *name));
    let providers: Vec<_> = providers
        .map(|hosted| AskedOf { name: hosted.name().to_string(), refresh: hosted.provider().refresh() })
        .collect();
    if let (Some(name), true) = (only, providers.is_empty()) {
        let names: Vec<&str> = shown.hosted.iter().map(|hosted| &**hosted.name()).collect();
        return text(
            StatusCode::NOT_FOUND,
            format!("there is no provider {name:?}; there are {}\n", names.join(", ")),
        );
    }
    match serde_json::to_string_pretty(&Asked { providers }) {
        Ok(asked) => of_type(StatusCode::ACCEPTED, "application/json", asked + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
