//! From configuration to serving, and to an orderly end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use casemate_daemon::notify;
use casemate_keys::{Epoch, KeyId};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::Admin;
use crate::audit::{Audit, AuditError};
use crate::config::{Config, Endpoint, ProviderConfig};
use crate::contained::Contained;
use crate::grpc::Service;
use crate::provider::{Observer, Provider, Settings, Store, StoreError};
use crate::rejected::Rejections;
use crate::socket::{Admission, PassedSockets, Socket, SocketError, TooFewDescriptors, make_room, transport};

/// How long the first calls wait for the first look at root keys.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How long calls in flight may take after a stop was asked for.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The limit of open files.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
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

/// Serves all providers of `config`, on `passed` sockets where their name or endpoint is there, until `stop`; then lets calls in flight finish.
///
/// # Errors
/// If one can't be started. A root key that does not answer is no reason: the provider then refuses to write, says
/// why, and heals.
pub async fn serve(
    config: &Config,
    accept_reuse: Option<KeyId>,
    mut passed: PassedSockets,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    make_room(config.providers.iter().map(|provider| u64::from(provider.max_connections.0)).sum())?;
    let admin_socket = match &config.admin {
        Some(admin) => Some(listen(&mut passed, "admin", &admin.endpoint, admin.admission()).await?),
        None => None,
    };
    let mut bound = Vec::new();
    for provider_config in &config.providers {
        // First, so that a second start changes nothing before it is refused. Who connects meanwhile waits.
        let (name, admission) = (provider_config.name.as_str(), provider_config.admission());
        let socket = listen(&mut passed, name, &provider_config.endpoint, admission).await?;
        let provider = Arc::new(provider(config, provider_config)?);
        let observer = Observer::new(provider.clone(), accept_reuse.clone())?;
        bound.push((provider, observer, socket));
    }
    passed.close_rest();
    // After the state directories, of which one process at a time has the lock.
    let audit = config.audit.as_ref().map(Audit::start).transpose()?;

    if let Some(socket) = admin_socket {
        let shown = bound.iter().map(|(provider, ..)| provider.clone());
        let admin = Admin::new(shown, audit.as_ref().map(Audit::recorder));
        let stop = stop.clone();
        tracing::info!(endpoint = %socket.endpoint(), "the admin socket is open");
        tokio::spawn(async move {
            admin.serve(socket, stop.clone()).await;
            // Who looks from outside sees nothing any more; those who are served must not suffer from it.
            if !stop.is_cancelled() {
                tracing::error!("the admin socket ended unexpectedly; please report this");
            }
        });
    }

    let starting = Arc::new(AtomicUsize::new(bound.len()));
    let mut servers = JoinSet::new();
    for (provider, mut observer, socket) in bound {
        let recorder = audit.as_ref().map(Audit::recorder);
        let (name, stop, starting) = (provider.name().to_owned(), stop.clone(), starting.clone());
        servers.spawn(async move {
            // So that the first Status finds an answer; but Status never waits for a key service that is slow.
            let (looked, first_look) = oneshot::channel();
            let observe_until = stop.clone();
            let mut observing = tokio::spawn(async move {
                observer.look().await;
                let _ = looked.send(());
                observer.run(observe_until).await;
            });
            let _ = timeout(FIRST_LOOK, first_look).await;
            tracing::info!(provider = name, endpoint = %socket.endpoint(), "serving");
            if starting.fetch_sub(1, Ordering::AcqRel) == 1 {
                notify::ready();
            }
            let connections = socket.serve(provider.traffic().clone(), stop.clone());
            let rejections = Rejections::of(&provider, recorder.clone());
            let server =
                transport().layer(rejections).add_service(Service::audited_server(provider, recorder));
            let stopped = stop.clone();
            let serving =
                server.serve_with_incoming_shutdown(connections, async move { stopped.cancelled().await });
            let deadline = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_CALLS).await;
            };
            let served = tokio::select! {
                served = serving => served.map_err(|source| ServeError::Transport { provider: name, source }),
                () = deadline => Ok(()),
                // Nobody would see root keys change any more.
                ended = panicked(&mut observing) => Err(ServeError::Ended {
                    task: format!("the observer of provider {name}"),
                    reason: ended.to_string(),
                }),
            };
            observing.abort();
            served
        });
    }
    let mut outcome = Ok(());
    while let Some(ended) = servers.join_next().await {
        // One that ends by itself takes the others along: a supervisor starts all anew.
        stop.cancel();
        outcome = match ended {
            Ok(Ok(())) => outcome,
            Ok(Err(error)) => Err(error),
            Err(ended) => Err(ServeError::Ended { task: "a server".into(), reason: ended.to_string() }),
        };
    }
    if let Some(audit) = audit {
        audit.stop().await;
    }
    outcome
}

/// What a service manager has bound is taken as it is.
async fn listen(
    passed: &mut PassedSockets,
    name: &str,
    endpoint: &Endpoint,
    admission: Admission,
) -> Result<Socket, SocketError> {
    match passed.take(name, endpoint) {
        Some(listener) => Socket::passed(listener, endpoint, admission),
        None => Socket::bind(endpoint, admission).await,
    }
}

/// Waits for a task that panics; one that ends well is waited for forever.
async fn panicked(task: &mut JoinHandle<()>) -> JoinError {
    match task.await {
        Ok(()) => std::future::pending().await,
        Err(ended) => ended,
    }
}

fn provider(config: &Config, provider: &ProviderConfig) -> Result<Provider, StoreError> {
    let store = Store::open(&config.state_directory, provider.name.as_str())?;
    let cluster = config.cluster_id.0.clone();
    let settings = Settings {
        name: provider.name.as_str().to_owned(),
        epoch: Epoch(provider.epoch),
        write_keys: provider.write_keys().into_iter().map(Contained::around).collect(),
        read_only_keys: provider.read_only_keys().into_iter().map(Contained::around).collect(),
        key_names: provider.key_names(),
        read_policy: provider.read_policy(&cluster),
        program: concat!("casemate-kms/", env!("CARGO_PKG_VERSION"))
            .parse()
            .expect("a short program/version"),
        clock: Arc::new(unix_seconds),
        cluster,
    };
    Ok(Provider::new(settings, store).recoverable_by(provider.recipients()))
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
