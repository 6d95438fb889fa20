//! The unix socket: bound with its mode before anyone can connect, never stolen, bound again when its file goes.

pub mod authority;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use self::authority::AnyAuthority;
use crate::config::Mode;
use crate::provider::Told;
use crate::traffic::{Counted, Traffic};

/// How often the socket's file is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Accepted connections that wait for the server.
const BACKLOG: usize = 64;

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

/// A bound socket that may be lost and bound again.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    mode: Mode,
    listener: UnixListener,
    /// Device and inode of the file that is ours.
    identity: (u64, u64),
    /// Why the file that was lost is not bound again yet, as it was logged.
    lost: Option<String>,
    /// Held as long as this process serves the path, so that two starts can't both find it free.
    _turn: File,
}

impl Socket {
    /// Binds `path`. A file left by a killed process is removed, once a connect shows that nobody listens.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn bind(path: &Path, mode: Mode) -> Result<Self, SocketError> {
        let turn = take_turn(path)?;
        let (listener, identity) = bind_at(path, mode).await?;
        Ok(Self { path: path.to_owned(), mode, listener, identity, lost: None, _turn: turn })
    }

    /// Where it is bound.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts until `stop`, then removes the file if it is still this process's.
    pub fn serve(self, stop: CancellationToken) -> ReceiverStream<io::Result<Connection>> {
        let (accepted, connections) = mpsc::channel(BACKLOG);
        tokio::spawn(self.accept(accepted, |stream| Ok(Connection::new(stream)), stop));
        ReceiverStream::new(connections)
    }

    /// The same for connections that speak something else than KMS v2.
    pub fn serve_plain(self, stop: CancellationToken) -> mpsc::Receiver<UnixStream> {
        let (accepted, connections) = mpsc::channel(1);
        tokio::spawn(self.accept(accepted, |stream| stream, stop));
        connections
    }

    async fn accept<C>(
        mut self,
        accepted: mpsc::Sender<C>,
        connection: fn(UnixStream) -> C,
        stop: CancellationToken,
    ) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = look.tick() => self.bind_again_if_lost().await,
                stream = self.listener.accept() => match stream {
                    Ok((stream, _)) => {
                        if accepted.send(connection(stream)).await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: those who are served must not suffer from a busy loop.
                        tracing::warn!(socket = %self.path.display(), %error, "a connection was not accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
    }

    async fn bind_again_if_lost(&mut self) {
        if identity(&self.path).ok() == Some(self.identity) {
            return;
        }
        match bind_at(&self.path, self.mode).await {
            Ok((listener, identity)) => {
                tracing::warn!(socket = %self.path.display(), "the socket's file was gone; it is bound again");
                (self.listener, self.identity, self.lost) = (listener, identity, None);
            }
            Err(error) => {
                let why = Some(error.to_string());
                if self.lost != why {
                    tracing::error!(%error, "the socket's file is gone and can't be bound again yet");
                    self.lost = why;
                }
            }
        }
    }
}

impl Drop for Socket {
    /// Before the lock is let go: nobody else can have bound the path.
    fn drop(&mut self) {
        if identity(&self.path).ok() == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One at a time may bind: the lock is the system's, so a killed process leaves none.
fn take_turn(path: &Path) -> Result<File, SocketError> {
    let lock = suffixed(path, ".lock");
    let system = |source| SocketError::System { path: lock.clone(), action: "locked", source };
    let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&lock).map_err(
        |source| match (source.kind(), path.parent()) {
            (ErrorKind::NotFound, Some(folder)) => SocketError::NoFolder { folder: folder.to_owned() },
            _ => system(source),
        },
    )?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(SocketError::InUse { path: path.to_owned(), pid: listener_of(path) })
        }
        Err(errno) => Err(system(errno.into())),
    }
}

/// Binds in a folder that only we can enter, gives the file its mode, and moves it to its place.
async fn bind_at(path: &Path, mode: Mode) -> Result<(UnixListener, (u64, u64)), SocketError> {
    let system = |action| move |source| SocketError::System { path: path.to_owned(), action, source };
    remove_stale(path).await?;

    let folder = suffixed(path, ".new");
    let _ = fs::remove_dir_all(&folder);
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(system("prepared"))?;
    let aside = folder.join("s");
    let bound = (|| {
        let listener = UnixListener::bind(&aside).map_err(system("bound"))?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(mode.0)).map_err(system("given its mode"))?;
        let identity = identity(&aside).map_err(system("looked at"))?;
        match renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => Ok((listener, identity)),
            Err(rustix::io::Errno::EXIST) => Err(SocketError::InUse { path: path.to_owned(), pid: None }),
            Err(errno) => Err(system("moved to its place")(errno.into())),
        }
    })();
    let _ = fs::remove_dir_all(&folder);
    bound
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let system = |action| move |source| SocketError::System { path: path.to_owned(), action, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(system("looked at")(source)),
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(stream) => {
            let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
            Err(SocketError::InUse { path: path.to_owned(), pid })
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(system("removed"))?;
            tracing::info!(socket = %path.display(), "removed the socket that an ended process left");
            Ok(())
        }
        // A full backlog or no permission: somebody may be there.
        Err(source) => Err(system("tried for a listener")(source)),
    }
}

fn listener_of(path: &Path) -> Option<i32> {
    let stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// One connection of kube-apiserver.
#[derive(Debug)]
pub struct Connection {
    stream: AnyAuthority<UnixStream>,
    peer: Peer,
    _counted: Option<Counted>,
}

/// Who is at the other end, and what it was told.
#[derive(Clone, Default)]
pub struct Peer {
    /// Its process id, if the system tells.
    pub process: Option<i32>,
    pub(crate) told: Arc<Told>,
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        let process = stream.peer_cred().ok().and_then(|cred| cred.pid());
        let peer = Peer { process, told: Arc::default() };
        Self { stream: AnyAuthority::new(stream), peer, _counted: None }
    }

    /// Counts among `traffic` as long as it lives.
    #[must_use]
    pub fn counted(mut self, traffic: &Arc<Traffic>) -> Self {
        self._counted = Some(Counted::new(traffic.clone()));
        self
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("process", &self.process).finish_non_exhaustive()
    }
}
