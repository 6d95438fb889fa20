//! A connection whose bytes mean nothing to the proxy.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
};

use super::{Mode, state::State};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

/// Both ways, until both are over.
pub(super) fn pump_both(client: &Arc<TcpStream>, state: &Arc<State>) -> io::Result<()> {
    let server = state.connect()?;
    thread::scope(|scope| {
        scope.spawn(|| pump(client, &server, state, Way::Request));
        pump(&server, client, state, Way::Answer)
    })
}

/// One way. Whatever ends it, both sides know afterwards.
fn pump(from: &TcpStream, to: &TcpStream, state: &State, way: Way) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    let mut passed = 0;
    loop {
        let mut stream = from;
        let count = match stream.read(&mut chunk) {
            Ok(0) => return to.shutdown(Shutdown::Write),
            Ok(count) => count,
            Err(error) => return cut(from, to, error),
        };
        let mode = state.mode();
        let passes = match (mode, way) {
            (Mode::Cut | Mode::Refuse | Mode::Throttle { .. } | Mode::Flood { .. }, _) => {
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            (Mode::BlackHole, _) => return swallow(from),
            (Mode::HalfClosed, Way::Answer) => {
                to.shutdown(Shutdown::Write)?;
                return swallow(from);
            }
            (Mode::Delay { request, .. }, Way::Request) => state.rest(request),
            (Mode::Delay { answer, .. }, Way::Answer) => state.rest(answer),
            (Mode::Hold, Way::Answer) => state.released().map(drop),
            _ => Ok(()),
        };
        let sent = passes.and_then(|()| match way {
            Way::Request => { to }.write_all(&chunk[..count]),
            Way::Answer => deliver(to, &mut chunk[..count], 0, state, mode, &mut passed),
        });
        if let Err(error) = sent {
            return cut(from, to, error);
        }
    }
}

/// Writes (a part of) an answer as `mode` has it. What is before `sound` stays right under [`Mode::WrongBytes`];
/// `passed` is what went before of this answer.
pub(super) fn deliver(
    mut to: &TcpStream,
    answer: &mut [u8],
    sound: usize,
    state: &State,
    mode: Mode,
    passed: &mut u64,
) -> io::Result<()> {
    match mode {
        Mode::WrongBytes => {
            for byte in &mut answer[sound..] {
                *byte = !*byte;
            }
            to.write_all(answer)
        }
        Mode::Drip { every } => answer.chunks(1).try_for_each(|byte| {
            state.rest(every)?;
            to.write_all(byte)
        }),
        Mode::CutAfter { bytes } => {
            let left = usize::try_from(bytes.saturating_sub(*passed)).unwrap_or(usize::MAX);
            let part = &answer[..left.min(answer.len())];
            *passed += part.len() as u64;
            to.write_all(part)?;
            if part.len() < answer.len() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
        }
        _ => to.write_all(answer),
    }
}

/// Reads to the end and lets it go.
pub(super) fn swallow(mut from: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut io::sink()).map(drop)
}

fn cut(from: &TcpStream, to: &TcpStream, why: io::Error) -> io::Result<()> {
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    Err(why)
}
