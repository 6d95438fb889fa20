//! A connection of HTTP/1.1, message by message.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use super::{
    Canned, Mode,
    bytes::{deliver, swallow},
    state::State,
};

/// A message as it came: its head, and its body, chunks and all.
struct Message {
    bytes: Vec<u8>,
    head: usize,
}

/// One side, and what was read of it beyond the last message.
struct Side {
    stream: Arc<TcpStream>,
    ahead: Vec<u8>,
}

/// Requests and answers, until the connection is over.
pub(super) fn converse(client: &Arc<TcpStream>, state: &State) -> io::Result<()> {
    let mut requests = Side { stream: client.clone(), ahead: Vec::new() };
    let mut server = None;
    while let Some(request) = requests.read(false)? {
        let (method, path) = request.asks_for()?;
        state.count_request(&method, &path);
        let mode = state.mode();
        if matches!(mode, Mode::Cut | Mode::Refuse) {
            return Ok(());
        }
        if let Some(canned) = state.answer_for(&path) {
            answer(client, &canned)?;
            continue;
        }
        match mode {
            Mode::BlackHole => return swallow(client),
            Mode::Throttle { retry_after } => {
                let headers = retry_after.map(|seconds| ("Retry-After".into(), seconds.to_string()));
                let headers = headers.into_iter().collect();
                answer(
                    client,
                    &Canned { status: 429, headers, body: br#"{"errors":["slow down"]}"#.into() },
                )?;
                continue;
            }
            Mode::Flood { bytes, announced } => {
                flood(client, bytes, announced)?;
                if !announced {
                    return Ok(());
                }
                continue;
            }
            Mode::Delay { request: late, .. } => state.rest(late)?,
            _ => {}
        }
        let mut from_server = exchange(&mut server, &request, method == "HEAD", state)?;
        // Looked at again: it may have been switched while the server worked.
        let mode = state.released()?;
        match mode {
            Mode::Cut | Mode::Refuse => return Ok(()),
            Mode::BlackHole => return swallow(client),
            Mode::HalfClosed => {
                client.shutdown(Shutdown::Write)?;
                return swallow(client);
            }
            Mode::Delay { answer: late, .. } => state.rest(late)?,
            _ => {}
        }
        let over = request.is_last() || from_server.is_last();
        let head = from_server.head;
        deliver(client, &mut from_server.bytes, head, state, mode, &mut 0)?;
        if over {
            return Ok(());
        }
    }
    Ok(())
}

/// Over the connection to the server that there is; once more over a new one, if it had closed that.
fn exchange(
    server: &mut Option<Side>,
    request: &Message,
    is_head: bool,
    state: &State,
) -> io::Result<Message> {
    let again = server.is_some();
    for _ in 0..=usize::from(again) {
        let mut side = match server.take() {
            Some(side) => side,
            None => Side { stream: state.connect()?, ahead: Vec::new() },
        };
        let asked = side.stream.as_ref().write_all(&request.bytes);
        if let (Ok(()), Ok(Some(answer))) = (asked, side.read(is_head)) {
            if !answer.is_last() {
                *server = Some(side);
            }
            return Ok(answer);
        }
    }
    Err(ErrorKind::UnexpectedEof.into())
}

impl Side {
    /// The next message; nothing at the end of the stream. `no_body`: whatever its head says.
    fn read(&mut self, no_body: bool) -> io::Result<Option<Message>> {
        let head = loop {
            if let Some(at) = find(&self.ahead, b"\r\n\r\n") {
                break at + 4;
            }
            if self.more()? == 0 {
                return Ok(None);
            }
        };
        let text = String::from_utf8_lossy(&self.ahead[..head]).to_ascii_lowercase();
        let end = match body(&text) {
            _ if no_body => head,
            Body::Length(length) => head + length,
            Body::Chunks => self.end_of_chunks(head)?,
            Body::UntilClosed => {
                while self.more()? > 0 {}
                self.ahead.len()
            }
        };
        while self.ahead.len() < end {
            if self.more()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.ahead.split_off(end);
        Ok(Some(Message { bytes: std::mem::replace(&mut self.ahead, rest), head }))
    }

    /// Where the last chunk ends, that of length 0 and what follows it.
    fn end_of_chunks(&mut self, mut at: usize) -> io::Result<usize> {
        loop {
            let line = loop {
                if let Some(length) = find(&self.ahead[at..], b"\r\n") {
                    break length;
                }
                self.must_have_more()?;
            };
            let said = String::from_utf8_lossy(&self.ahead[at..at + line]).into_owned();
            let size = said.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| ErrorKind::InvalidData)?;
            at += line + 2 + size + 2;
            while self.ahead.len() < at {
                self.must_have_more()?;
            }
            if size == 0 {
                return Ok(at);
            }
        }
    }

    fn must_have_more(&mut self) -> io::Result<()> {
        if self.more()? == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 16 << 10];
        let count = self.stream.as_ref().read(&mut chunk)?;
        self.ahead.extend_from_slice(&chunk[..count]);
        Ok(count)
    }
}

impl Message {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.head]).into_owned()
    }

    /// A request's method, and its path without the query.
    fn asks_for(&self) -> io::Result<(String, String)> {
        let text = self.text();
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some(method), Some(target)) => {
                let path = target.split('?').next().unwrap_or_default();
                Ok((method.to_owned(), path.to_owned()))
            }
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Whether its sender closes the connection after it.
    fn is_last(&self) -> bool {
        let text = self.text().to_ascii_lowercase();
        header(&text, "connection").is_some_and(|value| value.contains("close"))
            || matches!(body(&text), Body::UntilClosed)
    }
}

enum Body {
    Length(usize),
    Chunks,
    UntilClosed,
}

/// What a head, in lower case, says of the body after it.
fn body(head: &str) -> Body {
    if header(head, "transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        return Body::Chunks;
    }
    if let Some(length) = header(head, "content-length").and_then(|value| value.parse().ok()) {
        return Body::Length(length);
    }
    let status = head.strip_prefix("http/1.1 ").and_then(|rest| rest.get(..3));
    match status {
        // A request, or an answer that never has one.
        None | Some("204" | "304") => Body::Length(0),
        Some(_) => Body::UntilClosed,
    }
}

fn header<'head>(head: &'head str, name: &str) -> Option<&'head str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

fn answer(mut client: &TcpStream, canned: &Canned) -> io::Result<()> {
    let mut bytes = format!("HTTP/1.1 {} Canned\r\nContent-Length: {}\r\n", canned.status, canned.body.len());
    for (name, value) in &canned.headers {
        bytes += &format!("{name}: {value}\r\n");
    }
    client.write_all(&[bytes.as_bytes(), b"\r\n", &canned.body].concat())
}

fn flood(mut client: &TcpStream, bytes: u64, announced: bool) -> io::Result<()> {
    const BEGIN: &[u8] = br#"{"data":{"ciphertext":""#;
    const END: &[u8] = br#""}}"#;

    let length = if announced { format!("Content-Length: {bytes}") } else { "Connection: close".into() };
    client.write_all(
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{length}\r\n\r\n").as_bytes(),
    )?;
    client.write_all(BEGIN)?;
    let filling = bytes.saturating_sub((BEGIN.len() + END.len()) as u64);
    io::copy(&mut io::repeat(b'A').take(filling), &mut client)?;
    client.write_all(END)
}
