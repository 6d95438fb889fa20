#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::http::{Address, Tls};
use crate::transit::RoleId;

const LOGIN_PATH: &str = "/v1/auth/approle/login";

/// A server on this machine that says what it is told to, and counts what it is asked.
#[derive(Clone)]
struct Server {
    address: Address,
    asked: Arc<std::sync::Mutex<Vec<String>>>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Server {
    /// `answer` gives status and body for a path; nothing, if it says nothing ever.
    async fn start(answer: impl Fn(&str) -> Option<(u16, Value)> + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let server = Self { address, asked: Arc::default(), open: Arc::default(), most: Arc::default() };
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, answer) = (accepting.clone(), answer.clone());
                tokio::spawn(async move {
                    server.most.fetch_max(server.open.fetch_add(1, SeqCst) + 1, SeqCst);
                    server.serve(stream, answer).await;
                    server.open.fetch_sub(1, SeqCst);
                });
            }
        });
        server
    }

    async fn serve(&self, mut stream: TcpStream, answer: impl Fn(&str) -> Option<(u16, Value)>) {
        let (mut read, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let head = read.windows(4).position(|end| end == b"\r\n\r\n");
            let whole = head.filter(|head| read.len() >= head + 4 + length(&read[..*head]));
            if whole.is_some() {
                let request = String::from_utf8(std::mem::take(&mut read)).unwrap();
                let path = request.split(' ').nth(1).unwrap().to_owned();
                let said = answer(&path);
                self.asked.lock().unwrap().push(path);
                let Some((status, body)) = said else { continue };
                let body = body.to_string();
                let text = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(count) => read.extend_from_slice(&chunk[..count]),
            }
        }
    }

    fn logins(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| *path == LOGIN_PATH).count()
    }
}

fn length(head: &[u8]) -> usize {
    let head = std::str::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split_once("content-length: ").map(|(_, rest)| rest.split("\r\n").next().unwrap());
    length.map_or(0, |text| text.parse().unwrap())
}

/// A session by AppRole, with a secret id in a file that goes with the folder.
fn session(servers: &[&Server]) -> (Session, tempfile::TempDir) {
    let (caller, folder) = caller(servers);
    (Sessions::default().of(caller), folder)
}

fn caller(servers: &[&Server]) -> (Caller, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let secret_id_file = folder.path().join("secret-id");
    std::fs::write(&secret_id_file, "of-one-use").unwrap();
    let caller = Caller {
        addresses: servers.iter().map(|server| server.address.clone()).collect(),
        tls: Tls::default(),
        auth: Auth::AppRole {
            mount: "approle".into(),
            role_id: RoleId::Text("role".into()),
            secret_id_file,
            wrapped: false,
        },
        namespace: String::new(),
    };
    (caller, folder)
}

fn granted(token: &str) -> Option<(u16, Value)> {
    Some((200, json!({"auth": {"client_token": token, "lease_duration": 3600, "renewable": true}})))
}

fn errors(status: u16) -> Option<(u16, Value)> {
    Some((status, json!({"errors": ["planted"]})))
}

#[tokio::test(start_paused = true)]
async fn where_nobody_answers_logins_do_not_pile_up() {
    let server = Server::start(|_| None).await;
    let (session, _folder) = session(&[&server]);
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    let (whole, mut made) = (Duration::from_secs(600), 0);
    while start.elapsed() < whole {
        let session = session.clone();
        calls.spawn(async move { timeout(Duration::from_millis(2500), session.token()).await });
        made += 1;
        sleep(Duration::from_millis(250)).await;
        while calls.try_join_next().is_some() {}
    }
    // Calls of the last moment, one login, and what the connection needs.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 50, "{tasks} tasks for {made} calls");
    while let Some(call) = calls.join_next().await {
        let failure = call.unwrap().map(|token| token.map(drop).unwrap_err().class);
        assert!(failure.is_err() || failure == Ok(Class::Unreachable));
    }
    // One ends by its own limit, and the next waits for a moment: not a tenth of these are expected.
    let (logins, at_once) = (server.logins(), server.most.load(SeqCst));
    assert!((2..600).contains(&logins), "{logins} logins for {made} calls in {whole:?}");
    assert_eq!(at_once, 1, "logins at a time");
}

#[tokio::test(start_paused = true)]
async fn a_call_of_many_that_goes_away_leaves_the_login_to_the_others() {
    let server = Server::start(|path| if path == LOGIN_PATH { granted("t") } else { None }).await;
    let (session, _folder) = session(&[&server]);
    let turn = session.0.turn.lock().await;
    assert!(timeout(Duration::from_secs(2), session.token()).await.is_err());
    let others: JoinSet<_> = (0..20)
        .map(|_| {
            let session = session.clone();
            async move { session.token().await.map(|token| token.text.to_string()).unwrap() }
        })
        .collect();
    tokio::task::yield_now().await;
    drop(turn);
    assert!(others.join_all().await.iter().all(|token| token == "t"));
    assert_eq!(server.logins(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_hour_with_a_secret_id_that_is_refused_is_few_logins_and_another_one_is_tried_at_once() {
    let server = Server::start(|path| if path == LOGIN_PATH { errors(400) } else { None }).await;
    let (session, folder) = session(&[&server]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3600) {
        let failure = session.token().await.map(drop).unwrap_err();
        assert_eq!(failure.class, Class::Credential, "{failure}");
        let left = failure.retry_after.unwrap();
        assert!(!left.is_zero() && left <= patience::LONG * 5 / 4, "{left:?}");
        sleep(Duration::from_secs(3)).await;
    }
    // Three soon, then one each 16 to 20 minutes.
    assert!((5..=6).contains(&server.logins()), "{} logins", server.logins());
    let before = server.logins();
    std::fs::write(folder.path().join("secret-id"), "another").unwrap();
    session.token().await.map(drop).unwrap_err();
    assert_eq!(server.logins(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn an_admin_has_a_refused_login_tried_again_and_a_session_remembers_refusals() {
    let server = Server::start(|path| if path == LOGIN_PATH { errors(403) } else { None }).await;
    let (own, _folder) = session(&[&server]);
    let sessions = Sessions::default();
    let caller = || Caller {
        addresses: vec![server.address.clone()],
        tls: Tls::default(),
        auth: own.0.auth.clone(),
        namespace: String::new(),
    };
    // Nobody holds it in between, as when a changed configuration is tried and refused.
    for _ in 0..10 {
        sessions.of(caller()).token().await.map(drop).unwrap_err();
    }
    assert_eq!(server.logins(), 1);
    for _ in 0..10 {
        sessions.try_again();
        sessions.of(caller()).token().await.map(drop).unwrap_err();
    }
    assert_eq!(server.logins(), 2);
}

#[tokio::test]
async fn who_is_sealed_has_used_nothing_up_and_the_next_address_is_asked() {
    let health = |sealed: bool| Some((503, json!({"initialized": true, "sealed": sealed, "standby": true})));
    // What the first answers to login, what it says of its health, and whether the second is asked.
    for (status, sealed, is_asked) in [
        (503, Some(true), true),
        (503, Some(false), false),
        (503, None, false),
        (500, Some(false), false),
        (472, Some(false), true),
    ] {
        let first = Server::start(move |path| match path {
            LOGIN_PATH => errors(status),
            "/v1/sys/health" => sealed.map_or(errors(404), health),
            _ => None,
        });
        let first = first.await;
        let second = Server::start(|path| if path == LOGIN_PATH { granted("t") } else { None }).await;
        let (session, _folder) = session(&[&first, &second]);
        let outcome = session.token().await.map(|token| token.text.to_string());
        let what = format!("{status}, sealed: {sealed:?}");
        assert_eq!(first.logins(), 1, "{what}");
        assert_eq!(second.logins(), usize::from(is_asked), "{what}");
        match outcome {
            Ok(token) => assert!(is_asked && token == "t", "{what}"),
            Err(failure) => assert!(!is_asked && failure.class == Class::Unreachable, "{what}: {failure}"),
        }
    }
}

#[tokio::test]
async fn a_standby_that_sends_elsewhere_has_used_nothing_up() {
    // A redirect to no address that is configured.
    let first = Server::start(|path| if path == LOGIN_PATH { errors(307) } else { None }).await;
    let second = Server::start(|path| if path == LOGIN_PATH { granted("t") } else { None }).await;
    let (session, _folder) = session(&[&first, &second]);
    assert_eq!(*session.token().await.ok().unwrap().text, "t");
    assert_eq!((first.logins(), second.logins()), (1, 1));
}

#[tokio::test]
async fn who_ends_ends_the_tokens_that_it_logged_in_for_and_no_others() {
    const REVOKED: &str = "/v1/auth/token/revoke-self";
    let server = Server::start(|path| match path {
        LOGIN_PATH => granted("mine"),
        // The right may be missing.
        REVOKED => errors(403),
        _ => Some((200, json!({"data": {"ttl": 3600, "renewable": true}}))),
    })
    .await;
    let revoked = || server.asked.lock().unwrap().iter().filter(|path| *path == REVOKED).count();
    let sessions = Sessions::default();
    let (by_role, folder) = caller(&[&server]);
    let path = folder.path().join("secret-id");
    let by_token = Caller { auth: Auth::TokenFile { path }, ..by_role.clone() };
    let (role, token) = (sessions.of(by_role), sessions.of(by_token));
    token.token().await.unwrap();
    sessions.log_out().await;
    assert_eq!(revoked(), 0, "one that delivers a token file, or never logged in");
    role.token().await.unwrap();
    sessions.log_out().await;
    sessions.log_out().await;
    assert_eq!(revoked(), 1);
}

#[tokio::test]
async fn who_ends_does_not_wait_for_a_service_that_is_gone() {
    let server = Server::start(|path| if path == LOGIN_PATH { granted("mine") } else { None }).await;
    let sessions = Sessions::default();
    let (caller, _folder) = caller(&[&server]);
    sessions.of(caller).token().await.unwrap();
    tokio::time::pause();
    let start = Instant::now();
    sessions.log_out().await;
    assert!(start.elapsed() < Duration::from_secs(3));
}

/// TCP to the broadcast address has no route on any Linux; a port that nobody listens on is another matter.
#[tokio::test]
async fn where_this_machine_has_no_way_the_remedy_names_the_unit() {
    let (mut caller, _folder) = caller(&[]);
    let mut remedy = async |address: &str| {
        caller.addresses = vec![address.parse().unwrap()];
        let failure = Sessions::default().of(caller.clone()).token().await.map(drop).unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "{failure}");
        failure.to_string()
    };
    let barred = remedy("https://255.255.255.255:8200").await;
    assert!(barred.contains("under systemd the unit must allow it (PrivateNetwork="), "{barred}");
    let closed = remedy("http://127.0.0.1:1").await;
    assert!(!closed.contains("systemd"), "{closed}");
}

#[tokio::test(start_paused = true)]
async fn what_was_found_here_or_is_remembered_was_not_asked() {
    let server = Server::start(|path| if path == LOGIN_PATH { errors(400) } else { None }).await;
    let failed = async |session: &Session| session.token().await.map(drop).unwrap_err();
    let (refused, _folder) = session(&[&server]);
    assert!(!failed(&refused).await.unasked, "it was refused");
    assert!(failed(&refused).await.unasked, "that is remembered");

    let (undelivered, folder) = session(&[&server]);
    std::fs::remove_file(folder.path().join("secret-id")).unwrap();
    assert!(failed(&undelivered).await.unasked);
    // Nor with a CA file that is not there, at whichever address.
    let (mut caller, folder) = caller(&[&server, &server]);
    caller.tls.ca_file = Some(folder.path().join("ca.pem"));
    let failure = failed(&Sessions::default().of(caller)).await;
    assert!(failure.unasked && failure.class == Class::Credential, "{failure}");
    assert_eq!(server.logins(), 1);

    // Nobody is there: it was tried, and that is remembered for a moment.
    let (mut caller, _folder) = self::caller(&[]);
    caller.addresses = vec!["http://127.0.0.1:1".parse().unwrap()];
    let session = Sessions::default().of(caller);
    assert!(!failed(&session).await.unasked);
    assert!(failed(&session).await.unasked);
}
