//! What an answer's status and shape mean.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::http::Reply;
use crate::{Class, Failure};

/// Whether an answer comes from a server that serves, rather than from one that is sealed, standing by, or broken.
pub(super) fn is_served(status: u16) -> bool {
    // 412: a standby that has not caught up. 472, 473: a replica that does not serve.
    !matches!(status, 412 | 472 | 473 | 500..)
}

pub(super) fn is_denied(reply: &Reply) -> bool {
    matches!(reply.status, 401 | 403)
}

/// Answers that the service can't have given, so that another address may be asked: the page of a load balancer.
pub(super) fn expect_shape(reply: &Reply, asked: &str) -> Result<(), Failure> {
    if reply.status == 204 || has_shape(&reply.body) {
        return Ok(());
    }
    expect_service(reply, asked)?;
    Err(corrupt(asked, "neither data nor errors"))
}

/// Whether a body is an object with one of the fields in which the service answers.
fn has_shape(body: &[u8]) -> bool {
    let fields: Option<BTreeMap<Cow<'_, str>, IgnoredAny>> = serde_json::from_slice(body).ok();
    fields.is_some_and(|fields| ["data", "auth", "errors"].iter().any(|field| fields.contains_key(*field)))
}

/// Answers that say nothing about the key: too many calls, or something else than OpenBao or Vault that answers.
pub(super) fn expect_service(reply: &Reply, path: &str) -> Result<(), Failure> {
    match reply.status {
        200 => Ok(()),
        429 => {
            let what = format!("{path} answers 429: too many calls");
            let remedy = "raise the rate limit quota of this path, or find out who else uses it up";
            Err(Failure { retry_after: reply.retry_after, ..Failure::new(Class::Throttled, what, remedy) })
        }
        204 | 400.. if reply.status == 204 || errors(&reply.body).is_some() => Ok(()),
        status => {
            let what = format!("{path} answers {status}, not in the way of OpenBao or Vault");
            let remedy =
                "see what answers at this address: a proxy or load balancer may stand before the service";
            Err(Failure::new(Class::Unreachable, what, remedy))
        }
    }
}

/// The first of the errors that the service tells, in one line, if the body is of that shape.
pub(super) fn errors(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<String>,
    }
    let Errors { errors } = serde_json::from_slice(body).ok()?;
    let first = errors.into_iter().next().unwrap_or_default();
    Some(first.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// The `data` of an answer.
pub(super) fn data<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct Envelope<T> {
        data: T,
    }
    serde_json::from_slice::<Envelope<T>>(body).ok().map(|envelope| envelope.data)
}

/// A body to send.
pub(super) fn json(body: &impl Serialize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    // Larger than any that is sent: a buffer that grows leaves copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(4096));
    serde_json::to_writer(&mut *out, body).map_err(|_| {
        Failure::new(
            Class::Corrupt,
            "a request can't be written as JSON",
            "report this as a defect of Casemate",
        )
    })?;
    Ok(out)
}

pub(super) fn corrupt(whose: &str, what: &str) -> Failure {
    let remedy = "see what answers at the configured addresses: it is not the service that holds this key, or it is \
                  damaged";
    Failure::new(Class::Corrupt, format!("{whose}: the answer has {what}"), remedy)
}

/// The token is accepted, and may not do this; or there is no such path, which the service answers in the same way.
pub(super) fn denied(path: &str, right: &str) -> Failure {
    let what = format!("permission denied on path {path}, with a token that the service accepts");
    let remedy = format!(
        "see that `namespace`, `mount` and `key` are spelled as in the service, which answers so of what it does not have, too; if \
         they are, give its policy the capability {right:?} on this path"
    );
    Failure::new(Class::Refused, what, remedy)
}

/// A path as a policy of the root namespace names it.
pub(super) fn shown(namespace: &str, path: &[&str]) -> String {
    let path = path.strip_prefix(&["v1"]).unwrap_or(path).join("/");
    match namespace {
        "" => path,
        namespace => format!("{path} (namespace {namespace})"),
    }
}

pub(super) fn namespace_shown(namespace: &str) -> String {
    match namespace {
        "" => "the root namespace".to_owned(),
        namespace => format!("namespace {namespace:?}"),
    }
}
