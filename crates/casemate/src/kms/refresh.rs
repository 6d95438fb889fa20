//! `casemate kms refresh`: root keys are looked at now, and not when it is their turn.
use std::time::Duration;

use casemate_kms::admin::refresh::{Asked, AskedOf, TooSoon};
use casemate_kms::admin::status::{Document, ProviderStatus};
use hyper::{Method, StatusCode};
use serde::Serialize;
use tokio::time::Instant;

use super::admin::{ask, candidate_text, document, other, troubles, understood};
use super::socket::Socket;
use super::timeout;
use crate::output::{Exit, Failure, Output};

pub(super) const ABOUT: &str = "\
Have a casemate-kms look at its root keys now.

It looks at files every 10 seconds by itself, and at key services every 200 seconds. After a rotation nobody needs to wait \
that long: asked on each node, all nodes write under the new version some seconds later. Nothing else changes: what is seen \
has to be seen twice as ever. However often it is asked for, there is a look every 5 seconds at most; of key services, \
ten are granted one after the other, then one every two minutes.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  asked for; with --wait: each provider has looked, writes, and nothing is wrong or on its way
  1  with --wait: it has looked, and does not write, or something is wrong
  2  the command line is wrong, or no provider has that name
  3  the admin socket can't be reached, the look has not ended in time, or it was asked for too often";

/// Between two looks at `/status`.
const BETWEEN: Duration = Duration::from_millis(200);

/// `casemate kms refresh`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The admin socket of the casemate-kms
    #[arg(long, value_name = "URL")]
    admin: Socket,

    /// The one provider whose root keys are looked at; all if left out
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// Wait until it has looked and what it saw writes, this long at most, and say which key id writes
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "1m", value_parser = timeout)]
    wait: Option<Duration>,

    /// How long each call may take, such as 3s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = timeout)]
    timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error("{said}; see `name` below `providers` in the configuration")]
    NoSuchProvider { said: String },
    #[error(
        "the casemate-kms at {socket} does not know how to look when it is asked ({code}): it is an older one, which looks \
         every 10 seconds; upgrade it"
    )]
    Older { socket: Socket, code: StatusCode },
    #[error(
        "nothing was asked for: the root keys of provider {} were looked at as often as can be asked for, and somebody may \
         pay for each look; ask again in {} s, or wait: it looks by itself, every 200 s at least",
        soon.provider, soon.retry_after_seconds
    )]
    TooSoon { soon: TooSoon },
    #[error(
        "provider {provider} has not ended its look after {waited:?}: its root keys are slow or out, see `casemate kms \
         status --admin {socket}`; --wait=2m waits longer"
    )]
    NotEnded { socket: Socket, provider: String, waited: Duration },
    #[error(
        "provider {provider} is gone, or the program was restarted meanwhile: it looks when it starts; see `casemate kms \
         status --admin {socket}`"
    )]
    Gone { socket: Socket, provider: String },
}

/// What a provider came to.
#[derive(Debug, Serialize)]
struct Outcome {
    provider: String,
    /// Null if nothing does.
    writes: Option<String>,
    /// What is seen and does not write yet.
    on_its_way: Option<String>,
    wrong: Vec<String>,
}

impl Outcome {
    fn of(provider: &ProviderStatus) -> Self {
        Self {
            provider: provider.name.clone(),
            writes: provider.next_write.as_ref().map(|next| next.key_id.clone()),
            on_its_way: provider.candidate.as_ref().map(|candidate| candidate.key_id.clone()),
            wrong: troubles(provider),
        }
    }

    fn is_well(&self) -> bool {
        self.writes.is_some() && self.on_its_way.is_none() && self.wrong.is_empty()
    }

    fn rows(&self, provider: &ProviderStatus) -> Vec<[String; 2]> {
        let writes = match &self.writes {
            Some(key_id) => format!("writes under key id {key_id}"),
            None => "does not write".into(),
        };
        let mut rows = vec![[self.provider.clone(), writes]];
        rows.extend(
            provider
                .candidate
                .as_ref()
                .map(|candidate| ["  to write soon".into(), candidate_text(candidate)]),
        );
        rows.extend(self.wrong.iter().map(|text| ["  wrong".into(), text.clone()]));
        rows
    }
}

/// Asks, and waits if that is wanted.
pub(super) async fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let Args { admin, provider, wait, timeout } = args;
    let path = match &provider {
        Some(name) => format!("/refresh?provider={}", escaped(name)),
        None => "/refresh".into(),
    };
    let asked: Asked = match ask(&admin, timeout, Method::POST, &path).await? {
        (StatusCode::ACCEPTED, text) => understood(&admin, &text)?,
        (StatusCode::NOT_FOUND, said) if provider.is_some() && said.starts_with(b"there is no provider") => {
            let said = String::from_utf8_lossy(&said).trim_end().to_owned();
            return Err(Failure::new(Exit::Usage, &RefreshError::NoSuchProvider { said }));
        }
        (StatusCode::TOO_MANY_REQUESTS, text) => {
            let soon = understood(&admin, &text)?;
            return Err(Failure::new(Exit::Unknown, &RefreshError::TooSoon { soon }));
        }
        (code @ (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED), _) => {
            return Err(Failure::new(Exit::Unknown, &RefreshError::Older { socket: admin, code }));
        }
        (code, _) => return Err(other(&admin, code)),
    };
    let Some(wait) = wait else {
        let rows = asked.providers.iter().map(|of| [of.name.clone(), "looks at its root keys".into()]);
        output.answer(&asked, rows.collect::<Vec<_>>())?;
        return Ok(Exit::Yes);
    };
    let document = waited(&admin, timeout, &asked, wait).await?;
    let of_asked = |of: &AskedOf| document.providers.iter().find(|provider| provider.name == of.name);
    let looked: Vec<_> = asked.providers.iter().filter_map(of_asked).collect();
    let outcomes: Vec<_> = looked.iter().map(|provider| Outcome::of(provider)).collect();
    let rows = outcomes.iter().zip(&looked).flat_map(|(outcome, provider)| outcome.rows(provider));
    output.answer(&outcomes, rows.collect::<Vec<_>>())?;
    Ok(if outcomes.iter().all(Outcome::is_well) { Exit::Yes } else { Exit::No })
}

/// What `/status` says once each look has ended and nothing is on its way; when time is up, what it says then.
async fn waited(
    admin: &Socket,
    timeout: Duration,
    asked: &Asked,
    wait: Duration,
) -> Result<Document, Failure> {
    let until = Instant::now() + wait;
    loop {
        let document = document(admin, timeout).await?;
        let mut settled = true;
        for of in &asked.providers {
            let found = document.providers.iter().find(|provider| provider.name == of.name);
            let done = found.and_then(|provider| provider.refreshes.as_ref());
            let Some((provider, refreshes)) = found.zip(done).filter(|(_, known)| known.asked >= of.refresh)
            else {
                let gone = RefreshError::Gone { socket: admin.clone(), provider: of.name.clone() };
                return Err(Failure::new(Exit::Unknown, &gone));
            };
            let ended = refreshes.done >= of.refresh;
            if !ended && Instant::now() >= until {
                let (socket, provider) = (admin.clone(), of.name.clone());
                let late = RefreshError::NotEnded { socket, provider, waited: wait };
                return Err(Failure::new(Exit::Unknown, &late));
            }
            // What was seen twice and is not being prepared could not be.
            let comes = provider.candidate.as_ref().is_some_and(|new| new.sightings < 2 || new.preparing);
            settled &= ended && !comes;
        }
        if settled || Instant::now() >= until {
            return Ok(document);
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Names of providers have no other characters than these; what else was typed is no such name.
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => escaped.push(byte.into()),
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_to_look_at_next_is_a_command_that_can_be_run() {
        let (socket, provider): (Socket, _) = ("unix:///run/admin.sock".parse().unwrap(), "a".to_owned());
        for error in [
            RefreshError::Gone { socket: socket.clone(), provider: provider.clone() },
            RefreshError::NotEnded { socket, provider, waited: Duration::from_secs(60) },
        ] {
            let told = error.to_string();
            assert!(told.contains("see `casemate kms status --admin unix:///run/admin.sock`"), "{told}");
        }
    }
}
