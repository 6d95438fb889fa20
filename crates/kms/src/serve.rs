//! From configuration to serving, through its changes, to an orderly end.
//!
//! Map: `house` (all that runs, and how its parts start and end), `farewell` (how a connection ends then), `takeover` (a
//! changed configuration, in two steps), `reach` (what a confined process can't reach any more).

mod farewell;
mod house;
mod reach;
mod takeover;

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use casemate_daemon::confine::{Enforced, OutOfReach};
use casemate_daemon::notify;
use casemate_keys::KeyId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::house::House;
use crate::audit::AuditError;
use crate::config::{Config, Source};
use crate::key_services::{KeyServices, NotHere};
use crate::provider::StoreError;
use crate::reload::watch;
use crate::socket::{PassedSockets, SocketError, TooFewDescriptors};

/// A part that can't be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The limit of open files.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// A root key.
    #[error(transparent)]
    RootKey(#[from] NotHere),
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PartError {
    /// Whether another process has what it needs.
    fn is_in_use(&self) -> bool {
        matches!(self, Self::Socket(SocketError::InUse { .. }) | Self::Store(StoreError::InUse { .. }))
    }
}

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A part of it.
    #[error(transparent)]
    Part(#[from] PartError),
    /// Nobody can connect any more.
    #[error(transparent)]
    CutOff(#[from] OutOfReach),
    /// A task of the daemon panicked.
    #[error("{task} ended unexpectedly: {reason}; please report this")]
    Ended {
        /// Which task.
        task: String,
        /// What is known.
        reason: String,
    },
    /// The transport.
    #[error("provider {provider}: the server ended: {source}")]
    Transport {
        /// Which provider.
        provider: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// How a process serves, beside what its configuration says.
#[derive(Debug, Default)]
pub struct Start {
    /// A key id that may become active although another one was active since.
    pub accept_reuse: Option<KeyId>,
    /// Sockets that a service manager has bound: used where their name or endpoint is that of a provider.
    pub passed: PassedSockets,
    /// What was started for root keys.
    pub services: KeyServices,
    /// What the process is confined to, if it is.
    pub enforced: Option<Enforced>,
}

/// Serves all providers of `config`, which was read from `source`, until `stop`; then lets calls in flight finish.
///
/// Takes over what the file says later, of itself and whenever it is `asked`.
///
/// # Errors
/// If one can't be started. A root key that does not answer is no reason: the provider then refuses to write, says
/// why, and heals.
pub async fn serve(
    source: Source,
    config: Config,
    start: Start,
    asked: mpsc::Receiver<()>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let mut readings = watch(PathBuf::from(source.path()), asked);
    let Start { accept_reuse, passed, services, enforced } = start;
    let confined_to = enforced.as_ref().map(Enforced::folders);
    let mut house =
        House::open(source, config, accept_reuse, passed, services, confined_to, stop.clone()).await?;
    let mut cut_off = pin!(reach::watch(enforced, house.named.clone()));
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            ended = house.next_ended() => match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    // One that ends by itself takes the others along: a supervisor starts all anew.
                    stop.cancel();
                    outcome = Err(error);
                }
            },
            cut_off = &mut cut_off, if !stop.is_cancelled() => {
                // Whoever supervises this starts a process that can be reached.
                tracing::warn!("stopping, since nobody can connect any more: calls in flight are finished");
                notify::stopping();
                stop.cancel();
                outcome = Err(cut_off.into());
            }
            Some(reading) = readings.recv(), if !stop.is_cancelled() => {
                if reading.asked {
                    notify::reloading();
                }
                let told = reading.asked;
                // What is half done is of no use to a process that ends.
                tokio::select! {
                    () = house.look_at(reading) => {}
                    () = stop.cancelled() => {}
                }
                if told {
                    notify::ready();
                }
            }
        }
    }
    house.close().await;
    outcome
}

/// The clock of records.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
