//! A proxy in front of a server that does to its clients what networks and tired servers do.
//!
//! It lives in this process, in threads of its own, on a port that stays its own. What it does is
//! switched while it runs: connections that are open follow from their next bytes on, or next
//! request. In front of plain HTTP/1.1 it goes by messages, so that it can count requests, answer
//! by itself and replace answers; in front of anything else, TLS too, it goes by bytes.

mod bytes;
mod http;
mod state;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::net::Shutdown;

use self::state::State;
use crate::{
    Error, Result,
    ports::{Port, retry_taken_port},
};

/// What the proxy does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing but passing on.
    #[default]
    Pass,
    /// Nobody listens: connections are refused, and those that are open are cut.
    Refuse,
    /// Connections are accepted and closed at once, and those that are open are cut.
    Cut,
    /// What a client sends vanishes, and no answer comes, ever, on a connection that met this.
    BlackHole,
    /// What goes to the server, and what comes back, is late: by message in front of HTTP, else by what
    /// was read at once.
    Delay {
        /// To the server.
        request: Duration,
        /// And back.
        answer: Duration,
    },
    /// The server does its work, and the client gets the answer when the mode changes.
    Hold,
    /// 429 from the proxy itself; the server gets nothing. HTTP only.
    Throttle {
        /// `Retry-After`, in seconds.
        retry_after: Option<u64>,
    },
    /// Each byte of the answer is another one: of its body in front of HTTP.
    WrongBytes,
    /// The server does its work; the client gets the end of the stream instead of an answer, and may go
    /// on sending.
    HalfClosed,
    /// Answers come byte by byte, with this rest before each; so does a TLS handshake.
    Drip {
        /// The rest.
        every: Duration,
    },
    /// 200 with a JSON body of so many bytes, 64 at least, from the proxy itself. HTTP only.
    Flood {
        /// How many.
        bytes: u64,
        /// Whether `Content-Length` says so; else the body ends with the connection.
        announced: bool,
    },
    /// The connection is cut after so many bytes of an answer, or of all answers if it isn't HTTP.
    CutAfter {
        /// How many.
        bytes: u64,
    },
}

/// An answer that the proxy gives by itself.
#[derive(Clone, Debug)]
pub struct Canned {
    /// The HTTP status.
    pub status: u16,
    /// Names and values, beside `Content-Length`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// How often an answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// To the next request; then the server answers again.
    Once,
    /// Until [`FaultProxy::forget_answers`].
    Always,
}

/// A running proxy. It ends when it is dropped, and what goes through it is cut then.
#[derive(Debug)]
pub struct FaultProxy {
    port: Port,
    scheme: String,
    state: Arc<State>,
    speaks: Speaks,
    accepting: Mutex<Option<Accepting>>,
}

#[derive(Clone, Copy, Debug)]
enum Speaks {
    Http,
    Bytes,
}

#[derive(Debug)]
struct Accepting {
    listener: Arc<TcpListener>,
    thread: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy in front of the server of plain HTTP/1.1 at `upstream`, as in `http://127.0.0.1:8200`.
    pub fn http(upstream: &str) -> Result<Self> {
        Self::start(upstream, Speaks::Http)
    }

    /// A proxy in front of any server, as in `https://127.0.0.1:8200` or `127.0.0.1:8200`.
    pub fn bytes(upstream: &str) -> Result<Self> {
        Self::start(upstream, Speaks::Bytes)
    }

    fn start(upstream: &str, speaks: Speaks) -> Result<Self> {
        let (scheme, at) = upstream.split_once("://").map_or(("", upstream), |(scheme, at)| (scheme, at));
        let server: SocketAddr = at.trim_end_matches('/').parse().map_err(|_| Error::Request {
            request: format!("a proxy in front of {upstream}"),
            status: None,
            found: "give an IP address and a port, as in http://127.0.0.1:8200".into(),
        })?;
        retry_taken_port(|| {
            let proxy = Self {
                port: Port::claim()?,
                scheme: scheme.to_owned(),
                state: Arc::new(State::new(server)),
                speaks,
                accepting: Mutex::default(),
            };
            proxy.listen()?;
            Ok(proxy)
        })
    }

    /// Where clients find it: the server's address with another port.
    pub fn address(&self) -> String {
        let separator = if self.scheme.is_empty() { "" } else { "://" };
        format!("{}{separator}127.0.0.1:{}", self.scheme, self.port.number())
    }

    /// Switches what it does. It holds for all that comes after this call.
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        self.state.set_mode(mode);
        match mode {
            Mode::Refuse => self.stop_listening(),
            _ => self.listen()?,
        }
        if matches!(mode, Mode::Refuse | Mode::Cut) {
            self.state.cut_all();
        }
        Ok(())
    }

    /// Answers requests for `path`, whatever their method and query, instead of the server. HTTP only.
    /// Of several answers for one path the oldest is given first. They go before any mode but
    /// [`Mode::Refuse`] and [`Mode::Cut`].
    pub fn answer(&self, path: &str, answer: Canned, times: Times) {
        self.state.answer(path, answer, times);
    }

    /// The server answers again.
    pub fn forget_answers(&self) {
        self.state.forget_answers();
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.state.connections()
    }

    /// How many requests came, by method and path without query, answered or not. HTTP only.
    pub fn requests(&self) -> BTreeMap<(String, String), usize> {
        self.state.requests()
    }

    /// How many requests came whose path begins with `prefix`.
    pub fn requests_to(&self, prefix: &str) -> usize {
        let begins =
            |((_, path), count): ((String, String), usize)| path.starts_with(prefix).then_some(count);
        self.requests().into_iter().filter_map(begins).sum()
    }

    /// Counts anew.
    pub fn forget_counts(&self) {
        self.state.forget_counts();
    }

    fn listen(&self) -> Result<()> {
        let mut accepting = self.accepting();
        if accepting.is_none() {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()));
            let failed = |source| Error::Listen { address, source };
            let listener = Arc::new(TcpListener::bind(address).map_err(failed)?);
            let (state, speaks, own) = (self.state.clone(), self.speaks, listener.clone());
            let thread = thread::Builder::new().name("fault-proxy".into());
            let thread = thread.spawn(move || accept(&own, &state, speaks)).map_err(failed)?;
            *accepting = Some(Accepting { listener, thread });
        }
        Ok(())
    }

    fn stop_listening(&self) {
        if let Some(Accepting { listener, thread }) = self.accepting().take() {
            // Wakes who accepts, with an error. The port is free when both have let go of it.
            let _ = rustix::net::shutdown(&listener, Shutdown::Both);
            let _ = thread.join();
        }
    }

    fn accepting(&self) -> MutexGuard<'_, Option<Accepting>> {
        self.accepting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.state.stop();
        self.stop_listening();
        self.state.cut_all();
    }
}

impl Canned {
    /// A JSON body.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        let headers = vec![("Content-Type".into(), "application/json".into())];
        Self { status, headers, body: body.to_string().into() }
    }
}

/// Until the listener is shut down.
fn accept(listener: &TcpListener, state: &Arc<State>, speaks: Speaks) {
    loop {
        match listener.accept() {
            Ok((client, _)) => serve(client, state, speaks),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
            // One that went away meanwhile, or no descriptor is left for now.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// One connection, in a thread that ends with it. An error on it means that it is over: that is what a proxy is for.
fn serve(client: TcpStream, state: &Arc<State>, speaks: Speaks) {
    state.count_connection();
    if state.mode() == Mode::Cut {
        return;
    }
    let client = state.keep(client);
    let state = state.clone();
    let _ = thread::Builder::new().name("fault-proxy".into()).spawn(move || {
        let _ = match speaks {
            Speaks::Http => http::converse(&client, &state),
            Speaks::Bytes => bytes::pump_both(&client, &state),
        };
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
}
