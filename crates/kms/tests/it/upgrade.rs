//! One process follows another on the same listening socket, which a supervisor holds, while calls go on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::task::{JoinHandle, JoinSet};
use tonic::{Request, Status};

use crate::node::{Client, Stored, client_over, connect};
use crate::process::{Daemon, Host, encrypt, opens, program, until};
use crate::sockets::limits::{PREFACE, Stubborn, call_without_message};
use crate::sockets::passed::activate;

const DEK: [u8; 32] = [0x5d; 32];
/// What kube-apiserver gives a call if it is not told otherwise.
const DEADLINE: Duration = Duration::from_secs(3);
const UPGRADES: usize = 6;

/// What systemd does with a service and its socket.
struct Supervisor {
    host: Host,
    listener: UnixListener,
    /// The program, and the one that replaces it: a file of its own.
    versions: [PathBuf; 2],
    upgrades: usize,
    daemon: Option<Daemon>,
}

impl Supervisor {
    fn start() -> Self {
        let host = Host::new();
        let audit = format!("audit: {{path: {}}}\n", audit_log(&host).display());
        fs::write(host.config(), fs::read_to_string(host.config()).unwrap() + &audit).unwrap();
        let listener = UnixListener::bind(host.socket()).unwrap();
        let next = host.folder().join("casemate-kms-next");
        fs::copy(program(), &next).unwrap();
        let mut supervisor = Self { host, listener, versions: [program(), next], upgrades: 0, daemon: None };
        supervisor.launch();
        supervisor
    }

    fn launch(&mut self) {
        let version = &self.versions[self.upgrades % self.versions.len()];
        let command = activate(version, &self.host, &self.listener, "casemate");
        self.daemon = Some(self.host.serve_by(command));
    }

    /// Ends the process, and starts its successor when it has ended; gives the log of the one that ended.
    async fn upgrade(&mut self) -> String {
        let log = self.end().await;
        self.upgrades += 1;
        self.launch();
        log
    }

    async fn end(&mut self) -> String {
        let mut old = self.daemon.take().unwrap();
        old.signal(Signal::TERM);
        until("the process ends", async || !old.is_running()).await;
        let (ended, log) = old.end();
        assert!(ended.success(), "{log}");
        log
    }

    async fn client(&self) -> Client {
        connect(&self.host.socket()).await.unwrap()
    }
}

/// Calls without a pause, each with kube-apiserver's deadline.
struct Calls {
    over: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    /// Repeated, as every gRPC client may: they never left this one.
    unsent: Arc<AtomicU64>,
    workers: Vec<JoinHandle<()>>,
}

impl Calls {
    fn none() -> Self {
        Self { over: Arc::default(), served: Arc::default(), unsent: Arc::default(), workers: Vec::new() }
    }

    /// So many at a time on one connection, which is made anew when a process has ended.
    async fn on_one_connection(&mut self, supervisor: &Supervisor, at_a_time: usize) {
        let client = supervisor.client().await;
        for _ in 0..at_a_time {
            let (mut caller, mut stored) = (self.caller(client.clone()), None);
            self.workers.push(tokio::spawn(async move {
                while caller.goes_on() {
                    caller.round(&mut stored).await;
                }
            }));
        }
    }

    /// A connection for each call, so that some are made at any moment of an upgrade.
    fn on_many_connections(&mut self, supervisor: &Supervisor, at_a_time: usize) {
        let socket = supervisor.host.socket();
        for _ in 0..at_a_time {
            let (over, served, unsent) = (self.over.clone(), self.served.clone(), self.unsent.clone());
            let socket = socket.clone();
            self.workers.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let client = connect(&socket).await.expect("the socket is always there");
                    let (over, served, unsent) = (over.clone(), served.clone(), unsent.clone());
                    Caller { client, over, served, unsent }.served(&Asked::Status).await;
                }
            }));
        }
    }

    fn caller(&self, client: Client) -> Caller {
        let (over, served, unsent) = (self.over.clone(), self.served.clone(), self.unsent.clone());
        Caller { client, over, served, unsent }
    }

    async fn go_on(&self) {
        let now = self.served.load(Ordering::Relaxed);
        until("calls are served", async || {
            assert!(!self.workers.iter().any(JoinHandle::is_finished), "a call failed");
            self.served.load(Ordering::Relaxed) > now + 200
        })
        .await;
    }

    /// How many were served, and how many were repeated.
    async fn end(self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
        (self.served.load(Ordering::Relaxed), self.unsent.load(Ordering::Relaxed))
    }
}

/// One that calls, one call after the other.
struct Caller {
    client: Client,
    over: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    unsent: Arc<AtomicU64>,
}

impl Caller {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Status, Encrypt, and Decrypt of what was encrypted, by this process or the one before.
    async fn round(&mut self, stored: &mut Option<Stored>) {
        self.served(&Asked::Status).await;
        if let Some(stored) = stored.take() {
            self.served(&Asked::Decrypt(stored)).await;
        }
        *stored = self.served(&Asked::Encrypt).await;
    }

    /// Until it is served. A call may be queued in the client while its connection ends, which no server can help; it
    /// has not left, so it is repeated (gRPC's own clients do so by themselves: gRFC A6, transparent retries).
    async fn served(&mut self, asked: &Asked) -> Option<Stored> {
        loop {
            match asked.of(&mut self.client).await {
                Ok(stored) => {
                    self.served.fetch_add(1, Ordering::Relaxed);
                    return stored;
                }
                Err(status) if was_not_taken(&status) => drop(self.unsent.fetch_add(1, Ordering::Relaxed)),
                Err(status) => panic!("{status:?}"),
            }
        }
    }
}

enum Asked {
    Status,
    Encrypt,
    Decrypt(Stored),
}

impl Asked {
    async fn of(&self, client: &mut Client) -> Result<Option<Stored>, Status> {
        match self {
            Self::Status => client.status(with_deadline(StatusRequest {})).await.map(|_| None),
            Self::Encrypt => encrypt(client, &DEK).await.map(Some),
            Self::Decrypt(stored) => {
                let reply = client.decrypt(with_deadline(stored.request())).await?;
                assert_eq!(reply.into_inner().plaintext, DEK.as_slice());
                Ok(None)
            }
        }
    }
}

fn with_deadline<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// As hyper says it of what it still had in its queue when the server said that it takes no more, or what it sent after
/// the last call that the server said it takes. That it is so is shown by the audit log.
fn was_not_taken(status: &Status) -> bool {
    let text = format!("{status:?}");
    text.contains(r#"hyper::Error(Canceled, "connection closed")"#)
        || text.contains(r#"GoAway(b"", NO_ERROR, Remote)"#)
}

/// Outcomes of all calls that reached a process, by its audit log.
fn recorded(host: &Host) -> BTreeMap<String, u64> {
    let mut outcomes = BTreeMap::new();
    for line in fs::read_to_string(audit_log(host)).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["event"] == "call" {
            *outcomes.entry(line["outcome"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        assert_ne!(line["event"], "gap", "{line}");
    }
    outcomes
}

fn audit_log(host: &Host) -> PathBuf {
    host.folder().join("audit.log")
}

#[tokio::test]
async fn a_new_process_takes_over_the_socket_and_no_call_is_refused() {
    let mut supervisor = Supervisor::start();
    let mut calls = Calls::none();
    for _ in 0..3 {
        calls.on_one_connection(&supervisor, 8).await;
    }
    calls.on_many_connections(&supervisor, 4);
    for _ in 0..UPGRADES {
        calls.go_on().await;
        let log = supervisor.upgrade().await;
        assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    }
    calls.go_on().await;
    let (served, unsent) = calls.end().await;
    let log = supervisor.end().await;
    assert!(!log.contains("ERROR"), "{log}");
    // One line each: nothing was begun and given up, and what was repeated had never arrived.
    let recorded = recorded(&supervisor.host);
    assert_eq!(recorded, BTreeMap::from([("OK".to_owned(), served)]), "{unsent} were repeated");
}

/// Two at once would overwrite each other's history: the second one goes before it has looked or written anything.
#[tokio::test]
async fn a_process_that_comes_while_the_old_one_serves_changes_nothing_and_goes() {
    let mut supervisor = Supervisor::start();
    let stored = encrypt(&mut supervisor.client().await, &DEK).await.unwrap();
    let files = supervisor.host.state_files();
    let command = activate(&supervisor.versions[1], &supervisor.host, &supervisor.listener, "casemate");
    let mut early = supervisor.host.serve_by(command);
    until("it goes", async || !early.is_running()).await;
    let (ended, log) = early.end();
    assert!(!ended.success() && log.contains("another process uses this folder"), "{log}");
    assert_eq!(supervisor.host.state_files(), files);
    // The one that was there serves on, and the next one when it has ended.
    opens(&mut supervisor.client().await, &stored, &DEK).await;
    supervisor.upgrade().await;
    opens(&mut supervisor.client().await, &stored, &DEK).await;
    supervisor.end().await;
}

/// They have a place each, and don't hang up.
#[tokio::test]
async fn peers_that_do_not_hang_up_make_nobody_else_wait_for_long() {
    let mut supervisor = Supervisor::start();
    let mut calls = Calls::none();
    calls.on_one_connection(&supervisor, 4).await;
    for _ in 0..UPGRADES / 2 {
        calls.go_on().await;
        let mut silent = Vec::new();
        for begun in [&[][..], &PREFACE[..12], PREFACE, &call_without_message()] {
            let mut peer = UnixStream::connect(supervisor.host.socket()).await.unwrap();
            peer.write_all(begun).await.unwrap();
            silent.push(peer);
        }
        let reads = Arc::new(AtomicBool::new(true));
        let stream = UnixStream::connect(supervisor.host.socket()).await.unwrap();
        let mut slow = client_over(Stubborn { stream, reads: reads.clone() }).await.unwrap();
        // Not one of the calls that are counted: it is refused, and has a line of its own.
        assert!(slow.encrypt(EncryptRequest::default()).await.is_err());
        reads.store(false, Ordering::Relaxed);
        let asking: Vec<_> = (0..100)
            .map(|_| {
                let mut slow = slow.clone();
                tokio::spawn(async move { slow.encrypt(EncryptRequest::default()).await.is_ok() })
            })
            .collect();
        let log = supervisor.upgrade().await;
        assert!(log.contains("did not hang up"), "{log}");
        asking.iter().for_each(JoinHandle::abort);
    }
    calls.go_on().await;
    let (served, unsent) = calls.end().await;
    supervisor.end().await;
    let recorded = recorded(&supervisor.host);
    assert_eq!(recorded["OK"], served, "{recorded:?}, {unsent} were repeated");
}

/// A peer that reads nothing knows of no end, and goes on calling.
#[tokio::test]
async fn a_peer_that_calls_on_and_on_does_not_keep_a_process() {
    let mut supervisor = Supervisor::start();
    let reads = Arc::new(AtomicBool::new(true));
    let stream = UnixStream::connect(supervisor.host.socket()).await.unwrap();
    let mut slow = client_over(Stubborn { stream, reads: reads.clone() }).await.unwrap();
    assert!(slow.encrypt(EncryptRequest::default()).await.is_err());
    reads.store(false, Ordering::Relaxed);
    let calling = tokio::spawn(async move {
        let mut calls = JoinSet::new();
        loop {
            let mut slow = slow.clone();
            calls.spawn(async move { slow.encrypt(EncryptRequest::default()).await.is_ok() });
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let log = supervisor.upgrade().await;
    assert!(log.contains("did not hang up"), "{log}");
    calling.abort();
    let mut calls = Calls::none();
    calls.on_one_connection(&supervisor, 1).await;
    calls.go_on().await;
    calls.end().await;
}
