//! Sockets that a service manager has bound.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use casemate_kms::socket::{Admission, AllowedPeers, Socket, SocketError};
use rustix::process::Signal;

use super::{DEK, Served, connect_to_name, free_name, key_id};
use crate::node::{connect, endpoint};
use crate::process::{Host, encrypt, program, until};

/// Starts `program` with `listener` as its descriptor 3, as systemd would.
pub(crate) fn activate(program: &Path, host: &Host, listener: &UnixListener, name: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES="$2" exec "$0" serve --config "$1""#,
        ])
        .arg(program)
        .arg(host.config())
        .arg(name)
        .stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
    command
}

fn launcher(host: &Host, listener: &UnixListener, name: &str) -> Command {
    activate(&program(), host, listener, name)
}

#[tokio::test]
async fn a_passed_socket_is_served_and_left_in_its_place_for_the_next_one() {
    // By its path, and by its name though its path is another.
    for (at, name) in [("kms.sock", "unknown"), ("elsewhere.sock", "casemate")] {
        let host = Host::new();
        let path = host.folder().join(at);
        let listener = UnixListener::bind(&path).unwrap();
        // Who connects before there is a program waits.
        let early = tokio::spawn({
            let path = path.clone();
            async move { key_id(&mut connect(&path).await.unwrap()).await }
        });
        let mut first = host.serve_by(launcher(&host, &listener, name));
        assert!(!early.await.unwrap().is_empty(), "{name}");
        let stored = served(&path).await;

        first.signal(Signal::TERM);
        // In the hole between both.
        until("it ends", async || !first.is_running()).await;
        let waiting = UnixStream::connect(&path).unwrap();
        let second = host.serve_by(launcher(&host, &listener, name));
        let mut client = super::client_of(waiting).await;
        crate::process::opens(&mut client, &stored, &DEK).await;
        second.signal(Signal::TERM);
        let (status, log) = second.end();
        assert!(status.success(), "{log}");
        assert!(path.exists(), "{log}");
        let left: Vec<_> =
            fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|file| file.to_string_lossy().contains(".lock")), "{left:?}");
        assert!(log.contains("serving") && !log.contains("is closed"), "{log}");
    }
}

async fn served(path: &Path) -> crate::node::Stored {
    let mut stored = None;
    until("served", async || {
        let Ok(mut client) = connect(path).await else { return false };
        stored = encrypt(&mut client, &DEK).await.ok();
        stored.is_some()
    })
    .await;
    stored.unwrap()
}

#[tokio::test]
async fn by_systemd_itself() {
    let host = Host::new();
    let found = Command::new("systemd-socket-activate").arg("--version").stdout(Stdio::null()).status();
    let mut command = if found.is_ok_and(|status| status.success()) {
        let mut command = Command::new("systemd-socket-activate");
        command.arg("--listen").arg(host.socket()).arg("--fdname=casemate").arg(program());
        command.args(["serve", "--config"]).arg(host.config());
        command
    } else {
        launcher(&host, &UnixListener::bind(host.socket()).unwrap(), "casemate")
    };
    command.env_remove("NOTIFY_SOCKET");
    let mut daemon = host.serve_by(command);
    let mut client = daemon.healthy().await;
    encrypt(&mut client, &DEK).await.unwrap();
    daemon.signal(Signal::TERM);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
    assert!(host.socket().exists());
}

#[tokio::test]
async fn what_no_provider_wants_is_closed_and_named() {
    let host = Host::new();
    let stray = host.folder().join("stray.sock");
    let listener = UnixListener::bind(&stray).unwrap();
    let mut daemon = host.serve_by(launcher(&host, &listener, "misspelled"));
    drop(listener);
    daemon.healthy().await;
    until("closed", async || UnixStream::connect(&stray).is_err()).await;
    let log = daemon.kill();
    assert!(log.contains("misspelled") && log.contains("FileDescriptorName="), "{log}");
}

#[tokio::test]
async fn what_was_meant_for_another_process_is_not_taken() {
    let host = Host::new();
    let listener = UnixListener::bind(host.folder().join("other.sock")).unwrap();
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"exec 3<&0 0</dev/null; LISTEN_PID=1 LISTEN_FDS=1 LISTEN_FDNAMES=casemate exec "$0" serve --config "$1""#,
        ])
        .arg(program())
        .arg(host.config())
        .stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
    let mut daemon = host.serve_by(command);
    encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let log = daemon.kill();
    assert!(log.contains("endpoint=unix://") && !log.contains("is closed"), "{log}");
}

/// By a configuration that changes while it is served.
#[tokio::test]
async fn an_abstract_one_keeps_its_list_of_peers() {
    let folder = tempfile::tempdir().unwrap();
    let name = SocketAddr::from_abstract_name(free_name()).unwrap();
    let listed =
        Admission { peers: Some(AllowedPeers { uids: vec![0], gids: vec![] }), ..Admission::default() };
    let socket = Socket::passed(
        UnixListener::bind_addr(&name).unwrap(),
        &endpoint(&folder.path().join("kms.sock")),
        listed.clone(),
    )
    .unwrap();
    let refused = socket.gate().admit(Admission::default());
    assert!(matches!(refused, Err(SocketError::NoPeers { .. })), "{refused:?}");
    assert_eq!(*socket.gate().admission(), listed);
}

#[tokio::test(start_paused = true)]
async fn a_passed_one_is_never_bound_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kms.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Served::on(Socket::passed(listener, &endpoint(&path), Admission::default()).unwrap()).await;
    let mut client = connect(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!path.exists());
    assert!(!key_id(&mut client).await.is_empty());
    fs::write(&path, "of somebody else").unwrap();
    drop(server);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(path.exists());
}

#[tokio::test]
async fn a_passed_abstract_one_needs_its_list_whatever_the_endpoint_says() {
    use std::os::linux::net::SocketAddrExt;
    let (folder, name) = (tempfile::tempdir().unwrap(), free_name());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    assert!(connect_to_name(&name).is_ok());
    let at = endpoint(&folder.path().join("kms.sock"));
    let error = Socket::passed(listener, &at, Admission::default()).unwrap_err();
    assert!(matches!(error, SocketError::NoPeers { .. }), "{error}");
    until("closed", async || connect_to_name(&name).is_err()).await;
}
