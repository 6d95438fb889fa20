//! A socket that is a file: bound with mode, owner and group before anyone can connect, never stolen, bound again
//! when the file goes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use tokio::net::{UnixListener, UnixStream};

use super::SocketError;
use crate::config::Mode;

/// Whom the system lets connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// Permissions.
    pub mode: Mode,
    /// User id of the owner, if it is not the one of this process. Needs root.
    pub owner: Option<u32>,
    /// Group id, if it is not the one of this process. Needs root, or to be in that group.
    pub group: Option<u32>,
}

/// The file of a bound socket. Dropped, it is removed, if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Identity,
    /// Why the file that was lost is not bound again yet, as it was logged.
    lost: Option<String>,
    /// Held as long as this process serves the path, so that two starts can't both find it free.
    _turn: File,
}

const GIVEN_OWNER: &str = "given its owner and group (root may; others only a group of their own)";
const GIVEN_MODE: &str = "given its mode";

/// Device and inode.
type Identity = (u64, u64);

impl SocketFile {
    /// Binds `path`. A file left by a killed process is removed, once a connect shows that nobody listens.
    pub(super) async fn bind(path: &Path, access: FileAccess) -> Result<(UnixListener, Self), SocketError> {
        let turn = take_turn(path)?;
        let (listener, identity) = bind_at(path, access).await?;
        Ok((listener, Self { path: path.to_owned(), identity, lost: None, _turn: turn }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A new listener, if the file is gone or another one.
    pub(super) async fn bind_again_if_lost(&mut self, access: FileAccess) -> Option<UnixListener> {
        if identity(&self.path).ok() == Some(self.identity) {
            return None;
        }
        match bind_at(&self.path, access).await {
            Ok((listener, identity)) => {
                tracing::warn!(socket = %self.path.display(), "the socket's file was gone; it is bound again");
                (self.identity, self.lost) = (identity, None);
                Some(listener)
            }
            Err(error) => {
                let why = Some(error.to_string());
                if self.lost != why {
                    tracing::error!(%error, "the socket's file is gone and can't be bound again yet");
                    self.lost = why;
                }
                None
            }
        }
    }
}

impl Drop for SocketFile {
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

/// Binds in a folder that only we can enter, says who may connect, and moves the file to its place.
async fn bind_at(path: &Path, access: FileAccess) -> Result<(UnixListener, Identity), SocketError> {
    let system = |action| move |source| SocketError::System { path: path.to_owned(), action, source };
    remove_stale(path).await?;

    let folder = suffixed(path, ".new");
    let _ = fs::remove_dir_all(&folder);
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(system("prepared"))?;
    let aside = folder.join("s");
    let bound = (|| {
        let listener = UnixListener::bind(&aside).map_err(system("bound"))?;
        if access.owner.is_some() || access.group.is_some() {
            chown(&aside, access.owner, access.group).map_err(system(GIVEN_OWNER))?;
        }
        fs::set_permissions(&aside, fs::Permissions::from_mode(access.mode.0)).map_err(system(GIVEN_MODE))?;
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

/// Changes who can connect to a socket that is in its place.
pub(super) fn give_access(path: &Path, access: FileAccess) -> Result<(), SocketError> {
    let system = |action| move |source| SocketError::System { path: path.to_owned(), action, source };
    let owner = access.owner.unwrap_or(rustix::process::geteuid().as_raw());
    let group = access.group.unwrap_or(rustix::process::getegid().as_raw());
    let found = fs::symlink_metadata(path).map_err(system("looked at"))?;
    // Nobody whom the new mode does not mean gets in between.
    let both = found.mode() & access.mode.0 & 0o777;
    fs::set_permissions(path, fs::Permissions::from_mode(both)).map_err(system(GIVEN_MODE))?;
    if (found.uid(), found.gid()) != (owner, group) {
        chown(path, Some(owner), Some(group)).map_err(system(GIVEN_OWNER))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(access.mode.0)).map_err(system(GIVEN_MODE))
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

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
