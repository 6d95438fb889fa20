//! The sockets: who may connect, how many at a time, and what one connection may take.
//!
//! Map: `gate` (who is let in, which may change), `file` (bound with its mode before anyone can connect, never stolen, bound again when its file goes),
//! `passed` (bound by a service manager), `peers` (who is let in), `connection` (time limits of one), `limits` (of the
//! transport and of descriptors), [`authority`] (any `:authority`), `scrub` (buffers of a connection are wiped).

pub mod authority;
mod connection;
mod file;
mod gate;
mod limits;
mod passed;
mod peers;
mod scrub;

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use self::file::SocketFile;
use self::peers::{Seldom, user_and_group};
use crate::config::Endpoint;
use crate::traffic::{Counted, Traffic};

pub use self::connection::{Connection, PREFACE_WITHIN, Peer, TAKEN_WITHIN};
pub use self::file::FileAccess;
pub use self::gate::{Admission, Gate};
pub use self::limits::{
    ALIVE_EVERY, ALIVE_WITHIN, CALL_WITHIN, MAX_STREAMS, TooFewDescriptors, make_room, transport,
};
pub use self::passed::PassedSockets;
pub use self::peers::AllowedPeers;

/// Connections of one provider, if its configuration does not say how many.
pub const MAX_CONNECTIONS: u32 = 128;
/// How often the socket's file is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Accepted connections that wait for the server.
const BACKLOG: usize = 64;
/// Until the next try to accept, when the system has no descriptors left.
const BREATH: Duration = Duration::from_millis(50);

/// A socket that could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another program serves it.
    #[error("{}: another program{} is serving this socket; stop it, or choose another endpoint", path.display(), process(*pid))]
    InUse {
        /// Which socket.
        path: PathBuf,
        /// The program, if it could be told.
        pid: Option<i32>,
    },
    /// Something that is no socket is in its place.
    #[error("{}: there is a file of another kind in the socket's place; it is left alone: move it away", path.display())]
    NotASocket {
        /// Which socket.
        path: PathBuf,
    },
    /// Nowhere to bind.
    #[error("{}: there is no such folder for the socket; make it, with mode 0700 or as kube-apiserver needs it", folder.display())]
    NoFolder {
        /// Which folder.
        folder: PathBuf,
    },
    /// Everybody on the host, containers too, could connect.
    #[error(
        "{endpoint}: an abstract socket has no mode, so it is not served without a list of peers (allowedPeers)"
    )]
    NoPeers {
        /// Which socket.
        endpoint: Endpoint,
    },
    /// The system refused.
    #[error("{}: can't be {action}: {source}", path.display())]
    System {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn process(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// A socket that listens.
#[derive(Debug)]
pub struct Socket {
    endpoint: Endpoint,
    listener: UnixListener,
    /// Of one that is bound here as a file: it may be lost and bound again.
    file: Option<SocketFile>,
    gate: Gate,
    log: Seldom,
}

/// Kinds of log lines that are no uid.
const FULL: u64 = 1 << 32;
const NOT_ACCEPTED: u64 = 1 << 33;
const UNKNOWN_PEER: u64 = 1 << 34;

impl Socket {
    /// Binds `endpoint`. A file left by a killed process is removed, once a connect shows that nobody listens.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn bind(endpoint: &Endpoint, admission: Admission) -> Result<Self, SocketError> {
        let (listener, file) = match (endpoint.path(), endpoint.abstract_name()) {
            (Some(path), _) => {
                let (listener, file) = SocketFile::bind(path, admission.access).await?;
                (listener, Some(file))
            }
            (None, Some(_)) if admission.peers.is_none() => {
                return Err(SocketError::NoPeers { endpoint: endpoint.clone() });
            }
            (None, name) => (bind_abstract(name.unwrap_or_default())?, None),
        };
        let path = file.as_ref().map(SocketFile::path);
        let gate = Gate::new(endpoint, admission, path, endpoint.abstract_name().is_some())?;
        Ok(Self { endpoint: endpoint.clone(), listener, file, gate, log: Seldom::default() })
    }

    /// Takes a socket that somebody else has bound and removes; who can connect is theirs to say too.
    ///
    /// # Errors
    /// [`SocketError::NoPeers`] of an abstract one, [`SocketError::System`].
    pub fn passed(
        listener: StdListener,
        endpoint: &Endpoint,
        admission: Admission,
    ) -> Result<Self, SocketError> {
        // The name of a passed one need not be the endpoint.
        let is_abstract = listener.local_addr().is_ok_and(|address| address.as_abstract_name().is_some());
        let gate = Gate::passed(endpoint, admission, is_abstract)?;
        let listener = listening(listener).map_err(|source| SocketError::System {
            path: endpoint.as_path().to_owned(),
            action: "taken over",
            source,
        })?;
        Ok(Self { endpoint: endpoint.clone(), listener, file: None, gate, log: Seldom::default() })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Says who is let in from now on.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Accepts until `stop`, as many as are admitted, then removes the file if it is still this process's.
    pub fn serve(
        self,
        traffic: Arc<Traffic>,
        stop: CancellationToken,
    ) -> ReceiverStream<io::Result<Connection>> {
        let (accepted, connections) = mpsc::channel(BACKLOG);
        let (gate, counted) = (self.gate.clone(), traffic.clone());
        let place = move |stream| {
            let most = u64::from(gate.admission().max_connections);
            // One task accepts, so that nobody else takes the last place in between.
            let free = counted.connections().open() < most;
            free.then(|| Ok(Connection::new(stream, Counted::new(counted.clone()))))
        };
        tokio::spawn(self.accept(accepted, place, traffic, stop));
        ReceiverStream::new(connections)
    }

    /// The same for connections that speak something else than KMS v2; who receives them says how many.
    pub fn serve_plain(self, stop: CancellationToken) -> mpsc::Receiver<UnixStream> {
        let (accepted, connections) = mpsc::channel(1);
        tokio::spawn(self.accept(accepted, Some, Arc::default(), stop));
        connections
    }

    async fn accept<C>(
        mut self,
        accepted: mpsc::Sender<C>,
        place: impl Fn(UnixStream) -> Option<C>,
        traffic: Arc<Traffic>,
        stop: CancellationToken,
    ) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = look.tick() => self.bind_again_if_lost().await,
                stream = self.listener.accept() => match stream {
                    Ok((stream, _)) if !self.allows(&stream) => traffic.connections().refuse_peer(),
                    Ok((stream, _)) => match place(stream) {
                        Some(connection) => {
                            if accepted.send(connection).await.is_err() {
                                break;
                            }
                        }
                        None => {
                            traffic.connections().refuse_excess();
                            self.log_full();
                        }
                    },
                    Err(error) => {
                        // Out of descriptors, most likely: those who are served must not suffer from a busy loop.
                        if let Some(more) = self.log.worth_a_line(NOT_ACCEPTED) {
                            tracing::warn!(socket = %self.endpoint, %error, more, "a connection was not accepted");
                        }
                        tokio::time::sleep(BREATH).await;
                    }
                },
            }
        }
    }

    /// Whether the peer is on the list, if there is one. One that the system does not know is not.
    fn allows(&mut self, stream: &UnixStream) -> bool {
        let admission = self.gate.admission();
        let Some(peers) = &admission.peers else { return true };
        let peer = user_and_group(stream);
        let allowed = peer.is_some_and(|(uid, gid)| peers.allow(uid, gid));
        if !allowed {
            let (uid, gid) = peer.unzip();
            if let Some(more) = self.log.worth_a_line(uid.map_or(UNKNOWN_PEER, u64::from)) {
                tracing::warn!(
                    socket = %self.endpoint, uid, gid, more,
                    "a peer that is not in allowedPeers was refused; more of this user are counted for a minute"
                );
            }
        }
        allowed
    }

    fn log_full(&mut self) {
        if let Some(more) = self.log.worth_a_line(FULL) {
            tracing::warn!(
                socket = %self.endpoint, max_connections = self.gate.admission().max_connections, more,
                "a connection was refused, all places are taken; more are counted for a minute"
            );
        }
    }

    async fn bind_again_if_lost(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Some(listener) = file.bind_again_if_lost(self.gate.admission().access).await {
            self.listener = listener;
        }
    }
}

/// The system lets one at a time bind a name, and frees it when the process ends.
fn bind_abstract(name: &str) -> Result<UnixListener, SocketError> {
    let path = || PathBuf::from(format!("/@{name}"));
    let system = |source| SocketError::System { path: path(), action: "bound", source };
    let address = SocketAddr::from_abstract_name(name).map_err(system)?;
    let listener = StdListener::bind_addr(&address).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => SocketError::InUse { path: path(), pid: listener_at(&address) },
        _ => system(source),
    })?;
    listening(listener).map_err(system)
}

fn listening(listener: StdListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn listener_at(address: &SocketAddr) -> Option<i32> {
    let stream = StdStream::connect_addr(address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}
