//! Who gets in.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use casemate_kms::config::{Endpoint, Mode};
use casemate_kms::socket::{Admission, AllowedPeers, FileAccess, Socket, SocketError};
use rustix::process::Signal;

use super::{
    DEK, NOBODY, Served, as_another_user, client_of, connect_to_name, free_name, is_refused, key_id, own_gid,
    own_uid,
};
use crate::node::{Client, client_over, endpoint};
use crate::process::{Host, encrypt, set_mode, until};

fn users(uids: &[u32]) -> Admission {
    let peers = AllowedPeers { uids: uids.to_vec(), gids: Vec::new() };
    Admission { peers: Some(peers), ..Admission::default() }
}

fn groups(gids: &[u32]) -> Admission {
    let peers = AllowedPeers { uids: Vec::new(), gids: gids.to_vec() };
    Admission { peers: Some(peers), ..Admission::default() }
}

#[tokio::test]
async fn an_abstract_socket_serves_whom_its_list_names_and_nobody_else() {
    for (admission, served) in [
        (users(&[own_uid()]), true),
        (users(&[own_uid() + 1]), false),
        (groups(&[own_gid() + 1, own_gid()]), true),
        (groups(&[own_gid() + 1]), false),
    ] {
        let told = format!("{admission:?}");
        let name = free_name();
        let at: Endpoint = format!("unix:///@{name}").parse().unwrap();
        let server = Served::on(Socket::bind(&at, admission).await.unwrap()).await;
        let stream = connect_to_name(&name).unwrap();
        let connections = server.node.provider.traffic().connections();
        if served {
            assert!(!key_id(&mut client_of(stream).await).await.is_empty(), "{told}");
            assert_eq!((connections.accepted(), connections.refused_peers()), (1, 0), "{told}");
        } else {
            let refused = tokio::task::spawn_blocking(move || is_refused(&stream)).await.unwrap();
            assert!(refused, "{told}");
            assert_eq!((connections.accepted(), connections.refused_peers()), (0, 1), "{told}");
        }
    }
}

#[tokio::test]
async fn an_abstract_name_is_not_bound_without_a_list_nor_twice() {
    let at: Endpoint = format!("unix:///@{}", free_name()).parse().unwrap();
    let error = Socket::bind(&at, Admission::default()).await.unwrap_err();
    assert!(matches!(error, SocketError::NoPeers { .. }), "{error}");

    let first = Socket::bind(&at, users(&[own_uid()])).await.unwrap();
    let error = Socket::bind(&at, users(&[own_uid()])).await.unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.contains("stop it"), "{error}");
    drop(first);
    until("its end frees the name", async || Socket::bind(&at, users(&[own_uid()])).await.is_ok()).await;
}

#[tokio::test]
async fn a_list_counts_for_a_path_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kms.sock");
    let server = Served::on(Socket::bind(&endpoint(&path), users(&[own_uid() + 1])).await.unwrap()).await;
    let stream = UnixStream::connect(&path).unwrap();
    assert!(tokio::task::spawn_blocking(move || is_refused(&stream)).await.unwrap());
    assert_eq!(server.node.provider.traffic().connections().refused_peers(), 1);
}

/// Another user, who connects without a pause while the socket is bound again and again: what the mode forbids is
/// forbidden from the first moment on, and what owner or group allow is allowed.
#[test]
fn mode_owner_and_group_are_right_before_anyone_can_connect() {
    const OTHER_GROUP: u32 = 54_321;
    const ROUNDS: usize = 300;
    let owned = |mode, owner, group| FileAccess { mode: Mode(mode), owner, group };
    for (access, may) in [
        (owned(0o600, None, None), false),
        (owned(0o660, None, None), false),
        (owned(0o660, None, Some(OTHER_GROUP)), true),
        (owned(0o600, Some(NOBODY), None), true),
        (owned(0o600, None, Some(OTHER_GROUP)), false),
    ] {
        if !own_is_root() && access != owned(0o600, None, None) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755);
        let path = folder.path().join("kms.sock");
        let (ended, at) = (AtomicBool::new(false), &path);
        let (in_, out) = std::thread::scope(|scope| {
            // Also if a round fails.
            let end = SetAtEnd(&ended);
            let looking = scope.spawn(|| {
                let look = || {
                    let (mut in_, mut out) = (0_u64, 0_u64);
                    while !ended.load(Ordering::Relaxed) {
                        match UnixStream::connect(at) {
                            Ok(_) => in_ += 1,
                            Err(error) if error.kind() == ErrorKind::PermissionDenied => out += 1,
                            // Not there yet, or not any more.
                            Err(_) => {}
                        }
                    }
                    (in_, out)
                };
                if own_is_root() { as_another_user(OTHER_GROUP, look) } else { look() }
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for round in 0..ROUNDS {
                let admission = Admission { access, ..Admission::default() };
                let bound = runtime.block_on(bind(&endpoint(at), &admission));
                let found = fs::metadata(at).unwrap();
                assert_eq!(found.permissions().mode() & 0o7777, access.mode.0, "round {round}");
                assert_eq!(found.uid(), access.owner.unwrap_or(own_uid()));
                assert_eq!(found.gid(), access.group.unwrap_or(own_gid()));
                drop(bound);
            }
            drop(end);
            looking.join().unwrap()
        });
        match (may, own_is_root()) {
            (true, _) => assert!(in_ > 0 && out == 0, "{access:?}: {in_} in, {out} out"),
            (false, true) => assert!(in_ == 0 && out > 0, "{access:?}: {in_} in, {out} out"),
            (false, false) => {}
        }
    }
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A child that another test starts at this moment holds what was just closed until it is its own program.
async fn bind(at: &Endpoint, admission: &Admission) -> Socket {
    let mut bound = None;
    until("bound", async || match Socket::bind(at, admission.clone()).await {
        Ok(socket) => bound.insert(socket).endpoint() == at,
        Err(SocketError::InUse { .. }) => false,
        Err(error) => panic!("{error}"),
    })
    .await;
    bound.unwrap()
}

fn own_is_root() -> bool {
    own_uid() == 0
}

#[test]
fn without_a_list_an_abstract_endpoint_is_an_error_of_the_configuration() {
    let host = Host::new();
    let text = fs::read_to_string(host.config()).unwrap();
    let path = host.socket().display().to_string();
    fs::write(host.config(), text.replace(&path, "/@kms")).unwrap();
    for verb in ["serve", "check"] {
        let output = host.run(&[verb]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("config.yaml:7: endpoint:") && told.contains("allowedPeers"), "{told}");
    }
}

#[tokio::test]
async fn the_program_serves_an_abstract_socket_and_says_little_of_those_it_refuses() {
    let (host, name) = (Host::new(), free_name());
    let text = fs::read_to_string(host.config()).unwrap();
    let path = host.socket().display().to_string();
    fs::write(host.config(), text.replace(&path, &format!("/@{name}"))).unwrap();
    host.set(&format!("allowedPeers: {{uids: [{}]}}", own_uid()));
    let checked = host.run(&["check"]);
    assert!(checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("is abstract"));

    let mut daemon = host.serve();
    let mut client = None;
    until("it serves", async || {
        assert!(daemon.is_running());
        client = healthy(&name).await;
        client.is_some()
    })
    .await;
    let mut client = client.unwrap();
    if own_is_root() {
        let refused = as_another_user(NOBODY, || {
            (0..50).filter(|_| is_refused(&connect_to_name(&name).unwrap())).count()
        });
        assert_eq!(refused, 50);
    }
    encrypt(&mut client, &DEK).await.unwrap();
    daemon.signal(Signal::TERM);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("not in allowedPeers")).collect();
    assert_eq!(lines.len(), usize::from(own_is_root()), "{log}");
    assert!(lines.iter().all(|line| line.contains("uid=65534") && line.contains(&name)), "{log}");
    assert!(log.contains(&format!("endpoint=unix:///@{name}")), "{log}");
}

async fn healthy(name: &str) -> Option<Client> {
    let stream = connect_to_name(name).ok()?;
    stream.set_nonblocking(true).ok()?;
    let mut client = client_over(tokio::net::UnixStream::from_std(stream).ok()?).await.ok()?;
    encrypt(&mut client, &DEK).await.ok()?;
    Some(client)
}
