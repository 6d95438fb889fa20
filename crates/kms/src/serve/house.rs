//! All that runs: a room for each provider (its observer, and a door where callers come in), the admin socket, the audit
//! log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use casemate_daemon::confine::Folders;
use casemate_daemon::notify;
use casemate_keys::{Epoch, KeyId};
use casemate_keyservice::RootKey;
use casemate_keyservice::guarded::Guarded;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, interval, timeout};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use super::farewell::Farewell;
use super::reach::Named;
use super::takeover::Refused;
use super::{PartError, ServeError, unix_seconds};
use crate::admin::{Admin, Shown};
use crate::audit::Audit;
use crate::config::{Config, Endpoint, ProviderConfig, SealedCacheConfig, Source};
use crate::grpc::Service;
use crate::hosted::Hosted;
use crate::key_services::{KeyServices, NotHere};
use crate::provider::{Observer, Provider, Settings, Store, Succession, succession};
use crate::rejected::Rejections;
use crate::reload::Configured;
use crate::socket::{Admission, Gate, PassedSockets, Socket, make_room, transport};
use crate::traffic::Traffic;

/// How long the first calls wait for the first look at root keys.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How long calls in flight may take after a stop was asked for. Others wait meanwhile for the next process, and
/// kube-apiserver waits 3 s.
const LAST_CALLS: Duration = Duration::from_secs(2);
/// How long peers that do not hang up keep a stopped server from its end, when nothing goes on: one that reads slowly
/// must not keep a new process from starting.
const LAST_REPLIES: Duration = Duration::from_millis(500);

pub(super) struct House {
    pub(super) source: Source,
    pub(super) config: Config,
    pub(super) configured: Configured,
    pub(super) services: KeyServices,
    pub(super) confined_to: Option<Folders>,
    pub(super) named: Arc<ArcSwap<Named>>,
    pub(super) rooms: Vec<Room>,
    pub(super) admin: Option<Door>,
    pub(super) audit: Option<Audit>,
    pub(super) refused: Option<Refused>,
    /// When it was last tried to start what could not be started.
    pub(super) rest_tried: Instant,
    shown: Arc<ArcSwap<Shown>>,
    pub(super) tasks: JoinSet<Result<(), ServeError>>,
    pub(super) stop: CancellationToken,
}

/// One provider.
pub(super) struct Room {
    pub(super) hosted: Arc<Hosted>,
    pub(super) succession: Succession,
    pub(super) door: Door,
    /// Of its observer.
    stop: CancellationToken,
}

/// One socket.
pub(super) struct Door {
    pub(super) endpoint: Endpoint,
    pub(super) gate: Gate,
    stop: CancellationToken,
}

/// What a room begins with: all that can fail has not.
pub(super) struct Foundation {
    socket: Socket,
    provider: Arc<Provider>,
    observer: Observer,
}

impl House {
    /// Opens all that `config` says.
    pub(super) async fn open(
        source: Source,
        config: Config,
        accept_reuse: Option<KeyId>,
        mut passed: PassedSockets,
        services: KeyServices,
        confined_to: Option<Folders>,
        stop: CancellationToken,
    ) -> Result<Self, ServeError> {
        make_room_for(&config)?;
        let admin_socket = match &config.admin {
            Some(admin) => Some(listen(&mut passed, "admin", &admin.endpoint, admin.admission()).await?),
            None => None,
        };
        let mut foundations = Vec::new();
        let mut failed = Vec::new();
        for provider in &config.providers {
            let before = passed.len();
            match Foundation::lay(&config, provider, &services, &mut passed, accept_reuse.clone()).await {
                Ok(foundation) => foundations.push(foundation),
                // Another process serves it, or a service manager's socket is lost: both are for a new start.
                Err(error) if error.is_in_use() || passed.len() < before => return Err(error.into()),
                Err(error) => failed.push((provider.name.to_string(), error)),
            }
        }
        if foundations.is_empty()
            && let Some((_, error)) = failed.pop()
        {
            return Err(error.into());
        }
        passed.close_rest();
        // After the state directories, of which one process at a time has the lock.
        let audit = begin_audit(&config)?;

        let named = Arc::new(ArcSwap::from_pointee(Named::by(&config, source.path())));
        let mut house = Self {
            configured: Configured::at_start(&source, unix_seconds()),
            source,
            config,
            services,
            confined_to,
            named,
            rooms: Vec::new(),
            admin: None,
            audit,
            refused: None,
            rest_tried: Instant::now(),
            shown: Arc::default(),
            tasks: JoinSet::new(),
            stop,
        };
        if let Some(socket) = admin_socket {
            house.admin = Some(house.open_admin(socket));
        }
        let starting = Arc::new(AtomicUsize::new(foundations.len()));
        for foundation in foundations {
            let starting = starting.clone();
            let room = house.open_room(foundation, move || {
                if starting.fetch_sub(1, Ordering::AcqRel) == 1 {
                    notify::ready();
                }
            });
            house.rooms.push(room);
        }
        for (name, error) in failed {
            house.note_not_started(name, &error);
        }
        house.show();
        Ok(house)
    }

    /// Tries once more to start what could not be started: the others did not wait for it.
    pub(super) async fn start_the_rest(&mut self) {
        if self.configured.not_started.is_empty() {
            return;
        }
        let mut none = PassedSockets::default();
        for at in 0..self.config.providers.len() {
            let provider = &self.config.providers[at];
            let name = provider.name.to_string();
            if !self.configured.not_started.contains_key(&name) {
                continue;
            }
            match Foundation::lay(&self.config, provider, &self.services, &mut none, None).await {
                Ok(foundation) => {
                    let room = self.open_room(foundation, || {});
                    self.rooms.insert(at.min(self.rooms.len()), room);
                    self.configured.not_started.remove(&name);
                }
                Err(error) => self.note_not_started(name, &error),
            }
        }
        self.show();
    }

    fn note_not_started(&mut self, name: String, error: &PartError) {
        let why = error.to_string();
        if self.configured.not_started.get(&name) != Some(&why) {
            tracing::error!(provider = name, "it can't be started, the others serve without it: {why}");
            self.configured.not_started.insert(name, why);
        }
    }

    /// Waits for a task that ends; `None` when all have.
    pub(super) async fn next_ended(&mut self) -> Option<Result<(), ServeError>> {
        let ended = self.tasks.join_next().await?;
        Some(ended.unwrap_or_else(|ended| Err(unexpected("a server".into(), &ended))))
    }

    /// Ends what ends last.
    pub(super) async fn close(self) {
        if let Some(audit) = self.audit {
            audit.stop().await;
        }
    }

    /// Lets those who look from outside see what is there now.
    pub(super) fn show(&self) {
        self.shown.store(Arc::new(Shown {
            hosted: self.rooms.iter().map(|room| room.hosted.clone()).collect(),
            audit: self.audit.as_ref().map(Audit::recorder),
            configuration: Some(self.configured.clone()),
            key_services: self.services.clone(),
        }));
    }

    /// The observer looks, then the door opens; `opened` is told.
    pub(super) fn open_room(
        &mut self,
        foundation: Foundation,
        opened: impl FnOnce() + Send + 'static,
    ) -> Room {
        let Foundation { socket, provider, mut observer } = foundation;
        let recorder = self.audit.as_ref().map(Audit::recorder);
        let hosted = Arc::new(Hosted::new(provider, recorder));
        let (succession, requests) = succession();
        let stop = self.stop.child_token();
        // So that the first Status finds an answer; but Status never waits for a key service that is slow.
        let (looked, first_look) = oneshot::channel();
        let observe_until = stop.clone();
        let observing = async move {
            observer.look().await;
            let _ = looked.send(());
            observer.run(requests, observe_until).await;
        };
        self.watch_over(format!("the observer of provider {}", hosted.name()), observing);
        let begin = async move {
            let _ = timeout(FIRST_LOOK, first_look).await;
            opened();
        };
        let door = self.open_door(&hosted, socket, begin);
        Room { hosted, succession, door, stop }
    }

    /// Serves `hosted` on `socket`, once `begin` is over.
    pub(super) fn open_door(
        &mut self,
        hosted: &Arc<Hosted>,
        socket: Socket,
        begin: impl Future<Output = ()> + Send + 'static,
    ) -> Door {
        let (hosted, stop) = (hosted.clone(), self.stop.child_token());
        let door =
            Door { endpoint: socket.endpoint().clone(), gate: socket.gate().clone(), stop: stop.clone() };
        self.tasks.spawn(async move {
            begin.await;
            let (name, traffic) = (hosted.name().clone(), hosted.provider().traffic().clone());
            tracing::info!(provider = &*name, endpoint = %socket.endpoint(), "serving");
            let until = stop.clone();
            let connections = socket
                .serve(traffic.clone(), stop.clone())
                .map(move |connection| connection.map(|it| Farewell::new(it, until.clone())));
            let serving = transport()
                .layer(Rejections::of(hosted.clone()))
                .add_service(Service::server(hosted))
                // Not at a stop, which would drop those that were accepted and not served yet, but when the last of them
                // is served: a stop ends the stream of connections.
                .serve_with_incoming_shutdown(connections, std::future::pending());
            tokio::select! {
                served = serving => match served {
                    Ok(()) if stop.is_cancelled() => Ok(()),
                    Ok(()) => Err(ServeError::Ended {
                        task: format!("the server of provider {name}"),
                        reason: "it accepts no more".into(),
                    }),
                    Err(source) => Err(ServeError::Transport { provider: name.to_string(), source }),
                },
                () = last_calls(&stop, &traffic) => {
                    tracing::warn!(
                        provider = &*name,
                        connections = traffic.connections().open(),
                        calls = traffic.in_flight(),
                        "the end comes for peers that did not hang up when they were told to"
                    );
                    Ok(())
                }
            }
        });
        door
    }

    /// Shows on `socket` what goes on.
    pub(super) fn open_admin(&self, socket: Socket) -> Door {
        let (admin, stop) = (Admin::new(self.shown.clone()), self.stop.child_token());
        let door =
            Door { endpoint: socket.endpoint().clone(), gate: socket.gate().clone(), stop: stop.clone() };
        tracing::info!(endpoint = %socket.endpoint(), "the admin socket is open");
        tokio::spawn(async move {
            admin.serve(socket, stop.clone()).await;
            // Who looks from outside sees nothing any more; those who are served must not suffer from it.
            if !stop.is_cancelled() {
                tracing::error!("the admin socket ended unexpectedly; please report this");
            }
        });
        door
    }

    /// A task whose panic ends the process. Nobody would see root keys change any more.
    fn watch_over(&mut self, task: String, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let working = tokio::spawn(work);
            let abort = working.abort_handle();
            tokio::select! {
                ended = working => match ended {
                    Ok(()) => Ok(()),
                    Err(ended) => Err(unexpected(task, &ended)),
                },
                // A look at a slow key service must not hold up the end.
                () = stop.cancelled() => {
                    abort.abort();
                    Ok(())
                }
            }
        });
    }
}

impl Room {
    /// Nobody is served any more.
    pub(super) fn close(self) {
        self.stop.cancel();
        self.door.close();
    }
}

impl Door {
    /// Nobody else comes in; calls in flight are finished, and the socket's file goes.
    pub(super) fn close(self) {
        self.stop.cancel();
    }
}

impl Foundation {
    /// Binds the socket first, so that a second start changes nothing before it is refused. Who connects meanwhile waits.
    pub(super) async fn lay(
        config: &Config,
        provider: &ProviderConfig,
        services: &KeyServices,
        passed: &mut PassedSockets,
        accept_reuse: Option<KeyId>,
    ) -> Result<Self, PartError> {
        let socket = listen(passed, provider.name.as_str(), &provider.endpoint, provider.admission()).await?;
        let store = Store::open_in_time(&config.state_directory, provider.name.as_str()).await?;
        let settings = settings(config, provider, services)?;
        let protection = provider.sealed_cache.as_ref().and_then(SealedCacheConfig::protection);
        let provider = Provider::new(settings, store).recoverable_by(provider.recipients());
        let provider = Arc::new(provider.keeping_sealed(protection).await);
        let observer = Observer::begin(provider.clone(), accept_reuse).await?;
        Ok(Self { socket, provider, observer })
    }
}

/// After a stop: until nothing has happened for a while, and not for ever.
async fn last_calls(stop: &CancellationToken, traffic: &Traffic) {
    const LOOKS: u32 = 5;

    stop.cancelled().await;
    let nothing_more = async {
        let mut looks = interval(LAST_REPLIES / LOOKS);
        let (mut before, mut alike) = (None, 0);
        while alike < LOOKS {
            looks.tick().await;
            let now = (traffic.in_flight(), traffic.answered(), traffic.connections().open());
            alike = if traffic.in_flight() == 0 && before == Some(now) { alike + 1 } else { 0 };
            before = Some(now);
        }
    };
    let _ = timeout(LAST_CALLS, nothing_more).await;
}

/// What a service manager has bound is taken as it is.
pub(super) async fn listen(
    passed: &mut PassedSockets,
    name: &str,
    endpoint: &Endpoint,
    admission: Admission,
) -> Result<Socket, PartError> {
    Ok(match passed.take(name, endpoint) {
        Some(listener) => Socket::passed(listener, endpoint, admission)?,
        None => Socket::bind(endpoint, admission).await?,
    })
}

/// Begins the audit log, if there is to be one.
pub(super) fn begin_audit(config: &Config) -> Result<Option<Audit>, PartError> {
    Ok(config.audit.as_ref().map(Audit::start).transpose()?)
}

/// Sees that all connections of `config` fit.
pub(super) fn make_room_for(config: &Config) -> Result<(), PartError> {
    Ok(make_room(connections(config))?)
}

/// All connections that may be open at a time.
fn connections(config: &Config) -> u64 {
    config.providers.iter().map(|provider| u64::from(provider.max_connections.0)).sum()
}

/// What a provider is configured to be.
pub(super) fn settings(
    config: &Config,
    provider: &ProviderConfig,
    services: &KeyServices,
) -> Result<Settings, NotHere> {
    let cluster = config.cluster_id.0.clone();
    let state = &*config.state_directory;
    let services = &services.of(provider.name.as_str());
    let guarded = |keys: Vec<Box<dyn RootKey>>| keys.into_iter().map(Guarded::around).collect();
    Ok(Settings {
        name: provider.name.as_str().to_owned(),
        epoch: Epoch(provider.epoch),
        write_keys: guarded(provider.write_keys(services, state)?),
        read_only_keys: guarded(provider.read_only_keys(services, state)?),
        key_names: provider.key_names(),
        read_policy: provider.read_policy(&cluster),
        signing: provider.signing(services, state)?.map(Arc::new),
        outage: provider.outage(),
        program: concat!("casemate-kms/", env!("CARGO_PKG_VERSION"))
            .parse()
            .expect("a short program/version"),
        clock: Arc::new(unix_seconds),
        cluster,
    })
}

fn unexpected(task: String, ended: &JoinError) -> ServeError {
    ServeError::Ended { task, reason: ended.to_string() }
}
