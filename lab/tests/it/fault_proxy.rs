//! What the fault proxy does, as a client without any cleverness sees it.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use casemate_lab::{
    FaultProxy, Lab, OpenBao,
    fault_proxy::{Canned, Mode, Times},
};
use serde_json::json;

const NEVER: Duration = Duration::from_secs(3600);

/// A server that answers with the path it was asked for. It ends with the test's process.
struct Server {
    address: String,
    answered: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answered = Arc::new(AtomicUsize::new(0));
        let counted = answered.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let counted = counted.clone();
                // A client that goes away is no concern of the server.
                thread::spawn(move || serve(&client?, &counted));
            }
        });
        Self { address, answered }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }
}

fn serve(client: &TcpStream, answered: &AtomicUsize) -> io::Result<()> {
    let mut lines = BufReader::new(client);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if lines.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            if let Some(said) = line.strip_prefix("Content-Length: ") {
                length = said.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        lines.read_exact(&mut vec![0; length])?;
        let path = first.split(' ').nth(1).unwrap();
        answered.fetch_add(1, Ordering::SeqCst);
        let (head, body) = match path {
            "/chunks" => {
                ("Transfer-Encoding: chunked", "3\r\n/ch\r\n4;why=not\r\nunks\r\n0\r\n\r\n".to_owned())
            }
            "/until-closed" => ("Connection: close", path.to_owned()),
            _ => (&*format!("Content-Length: {}", path.len()), path.to_owned()),
        };
        { client }.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes())?;
        // It says nothing of it, as one that restarts, or closes idle connections.
        if matches!(path, "/until-closed" | "/and-gone") {
            return Ok(());
        }
    }
}

fn connect(proxy: &FaultProxy) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(proxy.address().trim_start_matches("http://"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

fn send(mut stream: &TcpStream, path: &str) {
    let text = format!("POST {path} HTTP/1.1\r\nHost: lab\r\nContent-Length: 4\r\n\r\nwork");
    stream.write_all(text.as_bytes()).unwrap();
}

/// What comes until an answer with a body of the path's length is whole, or the connection is over.
fn receive(mut stream: &TcpStream, path: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    let whole = format!("\r\n\r\n{path}");
    while !all.ends_with(whole.as_bytes()) && stream.read(&mut byte).unwrap() == 1 {
        all.extend(byte);
    }
    String::from_utf8(all).unwrap()
}

/// One request over a connection of its own.
fn ask(proxy: &FaultProxy, path: &str) -> String {
    let stream = connect(proxy).unwrap();
    send(&stream, path);
    receive(&stream, path)
}

/// Everything that comes, until the end.
fn all(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is an end too; that nothing comes is none.
    if let Err(error) = stream.read_to_end(&mut all) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    all
}

/// Nothing has come after a while that is long for loopback. (Who holds it back does so for ever.)
fn is_silent(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let silent = stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    silent
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..600 {
        if reached() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("not reached: {what}");
}

fn start() -> (Server, FaultProxy) {
    let server = Server::start();
    let proxy = FaultProxy::http(&server.address).unwrap();
    (server, proxy)
}

#[test]
fn what_passes_is_what_was_sent_and_is_counted() {
    let (server, proxy) = start();
    let stream = connect(&proxy).unwrap();
    for path in ["/a", "/b?version=1", "/a", "/and-gone", "/a"] {
        send(&stream, path);
        let expected = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
        assert_eq!(receive(&stream, path), expected);
    }
    send(&stream, "/chunks");
    assert!(receive(&stream, "3\r\n/ch\r\n4;why=not\r\nunks\r\n0\r\n\r\n").ends_with("0\r\n\r\n"));
    send(&stream, "/until-closed");
    assert!(all(&stream).ends_with(b"\r\n\r\n/until-closed"));

    assert_eq!((proxy.connections(), server.answered()), (1, 7));
    assert_eq!(proxy.requests()[&("POST".to_owned(), "/a".to_owned())], 3);
    assert_eq!((proxy.requests_to("/b"), proxy.requests_to("/")), (1, 7));
    proxy.forget_counts();
    assert_eq!((proxy.connections(), proxy.requests_to("/")), (0, 0));
    FaultProxy::http("nowhere").unwrap_err();
}

#[test]
fn it_refuses_or_cuts_and_comes_back_on_its_address() {
    let (_server, proxy) = start();
    for mode in [Mode::Refuse, Mode::Cut] {
        let open = connect(&proxy).unwrap();
        send(&open, "/a");
        receive(&open, "/a");
        proxy.set_mode(mode).unwrap();
        assert_eq!(all(&open), b"");
        match connect(&proxy) {
            Err(error) => assert_eq!((mode, error.kind()), (Mode::Refuse, io::ErrorKind::ConnectionRefused)),
            Ok(stream) => assert_eq!((mode, all(&stream)), (Mode::Cut, Vec::new())),
        }
        proxy.set_mode(Mode::Pass).unwrap();
        assert!(ask(&proxy, "/a").ends_with("/a"));
    }
    let open = connect(&proxy).unwrap();
    drop(proxy);
    assert_eq!(all(&open), b"");
}

#[test]
fn in_a_black_hole_nothing_comes_and_a_new_connection_is_out_of_it() {
    let (server, proxy) = start();
    proxy.set_mode(Mode::BlackHole).unwrap();
    let stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    assert!(is_silent(&stream));
    proxy.set_mode(Mode::Pass).unwrap();
    assert!(is_silent(&stream));
    assert_eq!(server.answered(), 0);
    assert!(ask(&proxy, "/a").ends_with("/a"));
}

#[test]
fn a_delay_has_a_direction() {
    let (server, proxy) = start();
    for (request, answer, answered) in [(NEVER, Duration::ZERO, 0), (Duration::ZERO, NEVER, 1)] {
        proxy.set_mode(Mode::Delay { request, answer }).unwrap();
        let stream = connect(&proxy).unwrap();
        send(&stream, "/a");
        until("the server had answered", || server.answered() == answered);
        assert!(is_silent(&stream));
        assert_eq!(server.answered(), answered);
    }
    let short = Duration::from_millis(5);
    proxy.set_mode(Mode::Delay { request: short, answer: short }).unwrap();
    assert!(ask(&proxy, "/a").ends_with("/a"));
}

#[test]
fn a_held_answer_comes_when_it_is_let_go() {
    let (server, proxy) = start();
    proxy.set_mode(Mode::Hold).unwrap();
    let stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    until("the server had answered", || server.answered() == 1);
    assert!(is_silent(&stream));
    proxy.set_mode(Mode::Pass).unwrap();
    assert!(receive(&stream, "/a").ends_with("/a"));
}

#[test]
fn it_answers_by_itself_throttled_or_as_it_was_told() {
    let (server, proxy) = start();
    proxy.set_mode(Mode::Throttle { retry_after: Some(7) }).unwrap();
    let stream = connect(&proxy).unwrap();
    for _ in 0..2 {
        send(&stream, "/a");
        let said = receive(&stream, r#"{"errors":["slow down"]}"#);
        assert!(said.starts_with("HTTP/1.1 429 ") && said.contains("\r\nRetry-After: 7\r\n"), "{said}");
    }
    proxy.set_mode(Mode::Throttle { retry_after: None }).unwrap();
    send(&stream, "/a");
    assert!(!receive(&stream, r#"{"errors":["slow down"]}"#).contains("Retry-After"));
    proxy.set_mode(Mode::Pass).unwrap();
    assert_eq!((server.answered(), proxy.requests_to("/a")), (0, 3));

    proxy.answer("/a", Canned::json(503, &json!({"errors": ["sealed"]})), Times::Once);
    proxy.answer("/b", Canned { status: 200, headers: vec![], body: vec![] }, Times::Always);
    let whole = r#"{"errors":["sealed"]}"#;
    send(&stream, "/a?query");
    assert!(receive(&stream, whole).starts_with("HTTP/1.1 503 "));
    send(&stream, "/a");
    assert!(receive(&stream, "/a").starts_with("HTTP/1.1 200 OK"));
    for _ in 0..3 {
        send(&stream, "/b");
        assert!(receive(&stream, "").contains("Content-Length: 0"));
    }
    assert_eq!(server.answered(), 1);
    proxy.forget_answers();
    assert!(ask(&proxy, "/b").ends_with("\r\n\r\n/b"));
}

#[test]
fn answers_are_wrong_short_half_closed_or_slow() {
    let (_server, proxy) = start();
    proxy.set_mode(Mode::WrongBytes).unwrap();
    let mut stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    let mut answer = [0; 40];
    stream.read_exact(&mut answer).unwrap();
    let wrong = [&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"[..], &[!b'/', !b'a']].concat();
    assert_eq!(answer[..], wrong);

    proxy.set_mode(Mode::CutAfter { bytes: 10 }).unwrap();
    let stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    assert_eq!(all(&stream), b"HTTP/1.1 2");

    proxy.set_mode(Mode::HalfClosed).unwrap();
    let stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    assert_eq!(all(&stream), b"");
    // It still listens: nothing is reset.
    for _ in 0..3 {
        send(&stream, "/a");
    }
    assert!(stream.take_error().unwrap().is_none());

    proxy.set_mode(Mode::Drip { every: Duration::from_millis(20) }).unwrap();
    let mut stream = connect(&proxy).unwrap();
    send(&stream, "/a");
    let mut whole = [0; 40];
    let first = stream.read(&mut whole).unwrap();
    assert!(first < whole.len());
    stream.read_exact(&mut whole[first..]).unwrap();
    assert!(whole.ends_with(b"/a"));
}

#[test]
fn an_answer_of_100_mib_is_as_long_as_it_says_or_does_not_say() {
    let (_server, proxy) = start();
    let bytes = 100 << 20;
    for announced in [true, false] {
        proxy.set_mode(Mode::Flood { bytes, announced }).unwrap();
        let stream = connect(&proxy).unwrap();
        send(&stream, "/a");
        let mut lines = BufReader::new(&stream);
        let (mut said, mut line) = (false, String::new());
        while line != "\r\n" {
            line.clear();
            lines.read_line(&mut line).unwrap();
            said |= line == format!("Content-Length: {bytes}\r\n");
        }
        assert_eq!(said, announced);
        assert_eq!(io::copy(&mut lines.take(bytes), &mut io::sink()).unwrap(), bytes);
    }
}

#[test]
fn what_is_not_http_passes_too_and_fails_too() {
    let server = Server::start();
    // Its answers are bytes like any others.
    let proxy = FaultProxy::bytes(&server.address).unwrap();
    let sound = ask(&proxy, "/a");
    assert!(sound.ends_with("\r\n\r\n/a"), "{sound}");
    assert_eq!((proxy.connections(), proxy.requests_to("/")), (1, 0));

    for (mode, expected) in [
        (Mode::WrongBytes, sound.bytes().map(|byte| !byte).collect()),
        (Mode::CutAfter { bytes: 10 }, sound.as_bytes()[..10].to_vec()),
        (Mode::HalfClosed, vec![]),
        (Mode::Cut, vec![]),
        (Mode::Drip { every: Duration::from_millis(1) }, sound.as_bytes().to_vec()),
    ] {
        proxy.set_mode(Mode::Pass).unwrap();
        let mut stream = connect(&proxy).unwrap();
        // Open before it is switched, but for the server, which sees it with the first bytes.
        proxy.set_mode(mode).unwrap();
        let _ = stream.write_all(b"POST /a HTTP/1.1\r\nHost: lab\r\nContent-Length: 4\r\n\r\nwork");
        let mut answer = Vec::new();
        let mut byte = [0];
        while answer.len() < sound.len() && stream.read(&mut byte).is_ok_and(|count| count == 1) {
            answer.extend(byte);
        }
        assert_eq!(answer, expected, "{mode:?}");
    }
    for mode in [Mode::BlackHole, Mode::Hold, Mode::Delay { request: NEVER, answer: NEVER }] {
        proxy.set_mode(mode).unwrap();
        let stream = connect(&proxy).unwrap();
        send(&stream, "/a");
        assert!(is_silent(&stream), "{mode:?}");
    }
    proxy.set_mode(Mode::Pass).unwrap();
    assert!(ask(&proxy, "/a").ends_with("/a"));
}

#[test]
fn a_real_service_behind_it_is_asked_as_often_as_is_counted() {
    let lab = Lab::builder("fault proxy").apiservers(0).start().unwrap();
    let bao = OpenBao::dev(&lab).unwrap();
    bao.transit("transit").unwrap().create("kek").unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let seal = || {
        let mut curl = std::process::Command::new(casemate_lab::python().unwrap());
        curl.args(["-c", SEAL, &format!("{}/v1/transit/encrypt/kek", proxy.address()), bao.root_token()]);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert!(seal().starts_with("200 {"));
    proxy.set_mode(Mode::Throttle { retry_after: Some(1) }).unwrap();
    assert!(seal().starts_with("429 {"));
    assert_eq!(proxy.requests_to("/v1/transit/"), 2);
}

/// A client of another kind.
const SEAL: &str = r#"
import http.client, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
server = http.client.HTTPConnection(url.netloc)
server.request("POST", url.path, '{"plaintext": "d29yaw=="}', {"X-Vault-Token": sys.argv[2]})
answer = server.getresponse()
print(answer.status, answer.read().decode())
"#;
