//! How many, how slow, how big: what one peer does is no other one's loss.

use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use casemate_kms::socket::{Admission, PREFACE_WITHIN};
use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Request};

use super::{DEK, is_refused, key_id, one_key};
use crate::node::{Plugin, client_over, connect};
use crate::process::{Host, encrypt, program, until};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NO_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A server that has not ended what it must end after this will never do it.
const NEVER: Duration = Duration::from_secs(100);

async fn ended(peer: &mut UnixStream) {
    let _ = timeout(NEVER, peer.read_to_end(&mut Vec::new())).await.expect("the connection ends");
}

async fn plugin(max_connections: u32) -> Plugin {
    Plugin::serve_to(one_key(), Admission { max_connections, ..Admission::default() }).await
}

#[tokio::test]
async fn ten_thousand_connections_arrive_and_the_one_that_was_there_is_served() {
    const PLACES: usize = 16;
    const BATCH: usize = 500;
    let host = Host::new();
    host.set(&format!("maxConnections: {PLACES}"));
    let mut daemon = host.serve();
    let mut early = daemon.healthy().await;

    let socket = host.socket();
    let flood = tokio::task::spawn_blocking(move || {
        let batches = (0..10_000 / BATCH).map(|_| {
            let all: Vec<_> = (0..BATCH).map(|_| StdStream::connect(&socket).unwrap()).collect();
            all.iter().filter(|stream| is_refused(stream)).count()
        });
        batches.collect::<Vec<usize>>()
    });
    let mut served = 0;
    while !flood.is_finished() {
        let stored = encrypt(&mut early, &DEK).await.unwrap();
        crate::process::opens(&mut early, &stored, &DEK).await;
        served += 1;
    }
    for refused in flood.await.unwrap() {
        assert!((BATCH - PLACES..BATCH).contains(&refused), "{refused} were refused");
    }
    assert!(served > 0);

    // Their places are free again.
    encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let log = daemon.kill();
    let lines = log.lines().filter(|line| line.contains("all places are taken")).count();
    assert!((1..5).contains(&lines), "{log}");
}

#[tokio::test]
async fn the_cap_counts_who_is_there_and_refuses_the_next() {
    let plugin = plugin(2).await;
    let (mut first, second) = (plugin.client().await, plugin.client().await);
    let stream = StdStream::connect(&plugin.socket).unwrap();
    assert!(tokio::task::spawn_blocking(move || is_refused(&stream)).await.unwrap());
    let connections = plugin.node.provider.traffic().connections();
    assert_eq!((connections.open(), connections.accepted(), connections.refused_excess()), (2, 2, 1));
    key_id(&mut first).await;
    drop(second);
    until("a place is free", async || connections.open() == 1).await;
    key_id(&mut plugin.client().await).await;
}

#[tokio::test]
async fn one_connection_with_thousands_of_calls_at_a_time() {
    let plugin = plugin(1).await;
    let client = plugin.client().await;
    let calls: Vec<_> = (0..3000)
        .map(|number| {
            let mut client = client.clone();
            tokio::spawn(async move {
                if number % 3 == 0 {
                    client.status(StatusRequest {}).await.map(|_| ())
                } else {
                    let request = EncryptRequest { plaintext: DEK.to_vec().into(), uid: number.to_string() };
                    client.encrypt(request).await.map(|_| ())
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(plugin.node.provider.traffic().connections().accepted(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_begin_gives_its_place_back_and_who_is_idle_keeps_it() {
    let plugin = plugin(8).await;
    let connections = plugin.node.provider.traffic().connections();
    let mut idle = plugin.client().await;
    key_id(&mut idle).await;
    let started = Instant::now();
    let mut held = Vec::new();
    // Nothing, half of what opens a connection, and all of it but nothing more.
    for begun in [&PREFACE[..0], &PREFACE[..12], &PREFACE[..23], PREFACE, &[PREFACE, NO_SETTINGS].concat()] {
        let mut peer = UnixStream::connect(&plugin.socket).await.unwrap();
        peer.write_all(begun).await.unwrap();
        held.push(peer);
    }
    // One byte at a time is no beginning either.
    let mut trickle = UnixStream::connect(&plugin.socket).await.unwrap();
    for byte in &PREFACE[..9] {
        let _ = trickle.write_all(&[*byte]).await;
        sleep(PREFACE_WITHIN / 8).await;
    }
    ended(&mut trickle).await;
    assert!(started.elapsed() < PREFACE_WITHIN * 2);
    for mut peer in held {
        ended(&mut peer).await;
    }
    assert!(started.elapsed() < Duration::from_secs(61), "{:?}", started.elapsed());
    until("only the idle one is left", async || connections.open() == 1).await;

    // kube-apiserver may say nothing for a minute, and nothing at all for hours.
    sleep(Duration::from_secs(3 * 3600)).await;
    key_id(&mut idle).await;
    assert_eq!(connections.accepted(), 7);
}

/// A stream that stops to read when it is told to.
pub(crate) struct Stubborn {
    pub(crate) stream: UnixStream,
    pub(crate) reads: Arc<AtomicBool>,
}

impl AsyncRead for Stubborn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.reads.load(Ordering::Relaxed) {
            Pin::new(&mut self.stream).poll_read(cx, buf)
        } else {
            Poll::Pending
        }
    }
}

impl AsyncWrite for Stubborn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_nothing_loses_its_place_and_the_others_notice_nothing() {
    let plugin = plugin(8).await;
    let connections = plugin.node.provider.traffic().connections();
    let mut other = plugin.client().await;
    for asks in [0, 2000] {
        let reads = Arc::new(AtomicBool::new(true));
        let stream = UnixStream::connect(&plugin.socket).await.unwrap();
        let mut slow = client_over(Stubborn { stream, reads: reads.clone() }).await.unwrap();
        key_id(&mut slow).await;
        reads.store(false, Ordering::Relaxed);
        let answered = plugin.node.provider.counts().encrypted.load(Ordering::Relaxed);
        let calls: Vec<_> = (0..asks)
            .map(|_| {
                let mut slow = slow.clone();
                tokio::spawn(async move { encrypt(&mut slow, &DEK).await })
            })
            .collect();
        for _ in 0..120 {
            sleep(Duration::from_secs(1)).await;
            encrypt(&mut other, &DEK).await.unwrap();
        }
        assert_eq!(connections.open(), 1, "{asks} answers that nobody reads");
        let made = plugin.node.provider.counts().encrypted.load(Ordering::Relaxed) - answered - 120;
        // Not all of them: what is not read is not made.
        assert!(made <= 600, "{made} of {asks}");
        for call in calls {
            call.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_message_never_comes_ends() {
    let plugin = plugin(1).await;
    let mut peer = UnixStream::connect(&plugin.socket).await.unwrap();
    peer.write_all(&call_without_message()).await.unwrap();
    let started = Instant::now();
    let mut over = false;
    while !over {
        let mut header = [0; 9];
        timeout(NEVER, peer.read_exact(&mut header)).await.unwrap().unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
        peer.read_exact(&mut payload).await.unwrap();
        let [.., kind, flags, a, b, c, d] = header;
        match kind {
            // It lives, and says so.
            6 if flags == 0 && started.elapsed() < NEVER => {
                peer.write_all(&frame(6, 1, 0, &payload)).await.unwrap()
            }
            // The end of our stream, by its trailers or by a reset.
            1 | 3 => {
                assert_eq!([a, b, c, d], [0, 0, 0, 1]);
                over = kind == 3 || flags & 1 == 1;
            }
            7 => panic!("the connection ended with it"),
            _ => {}
        }
    }
}

/// All that comes before the message of an Encrypt.
pub(crate) fn call_without_message() -> Vec<u8> {
    // Literal headers without an index, as RFC 7541 writes them; the stream stays open on our side.
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v2.KeyManagementService/Encrypt"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    [PREFACE, NO_SETTINGS, &frame(1, 0x4, 1, &block)].concat()
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
}

#[tokio::test]
async fn what_is_too_big_is_refused_and_hurts_nobody_else() {
    let plugin = plugin(8).await;
    let mut other = plugin.client().await;

    // A frame: the connection ends.
    for kind in [0, 1, 4, 0xee] {
        let mut peer = UnixStream::connect(&plugin.socket).await.unwrap();
        let big = frame(kind, 0, u8::from(kind < 2), &vec![0; 16 * 1024 + 1]);
        let _ = peer.write_all(&[PREFACE, NO_SETTINGS, &big].concat()).await;
        ended(&mut peer).await;
        key_id(&mut other).await;
    }
    let connections = plugin.node.provider.traffic().connections();
    until("those are gone", async || connections.open() == 1).await;

    // A message, and a header: the call ends.
    let mut client = plugin.client().await;
    for length in [64 * 1024, 4 << 20] {
        let request = EncryptRequest { plaintext: vec![1; length].into(), uid: String::new() };
        let status = client.encrypt(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    let mut request = Request::new(StatusRequest {});
    request.metadata_mut().insert("x-big", "a".repeat(9 * 1024).parse().unwrap());
    assert!(client.status(request).await.is_err());
    key_id(&mut client).await;
    key_id(&mut other).await;
    assert_eq!(connections.open(), 2, "on the same connections");
}

#[tokio::test]
async fn without_a_free_descriptor_who_is_there_is_served_and_who_waits_is_later() {
    let host = Host::new();
    let mut daemon = host.serve();
    let mut early = daemon.healthy().await;
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() as u64;
    // The program has made its own limit as high as ours can be.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let fewer = Rlimit { current: Some(open - 2), maximum };
    let before = prlimit(Some(pid), Resource::Nofile, fewer).unwrap();

    let waiting: Vec<_> = (0..20).map(|_| StdStream::connect(host.socket()).unwrap()).collect();
    let mut stored = encrypt(&mut early, &DEK).await.unwrap();
    for _ in 0..200 {
        stored = encrypt(&mut early, &DEK).await.unwrap();
        crate::process::opens(&mut early, &stored, &DEK).await;
    }
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    let refused =
        tokio::task::spawn_blocking(move || waiting.iter().filter(|stream| is_refused(stream)).count());
    assert_eq!(refused.await.unwrap(), 0, "they waited and are served");
    encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let log = daemon.kill();
    assert_eq!(log.matches("a connection was not accepted").count(), 1, "{log}");
    crate::process::opens(&mut host.serve().healthy().await, &stored, &DEK).await;
}

#[tokio::test]
async fn a_cap_that_does_not_fit_is_told_and_the_limit_is_raised_as_far_as_it_goes() {
    let host = Host::new();
    host.set("maxConnections: 150");
    let limited = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"ulimit {limit}; exec "$0" serve --config "$1""#)]);
        command.arg(program()).arg(host.config());
        command
    };
    let (status, log) = host.serve_by(limited("-n 200")).end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("maxConnections") && log.contains("may have 200"), "{log}");
    assert!(log.contains("LimitNOFILE="), "{log}");
    assert!(!host.socket().exists());

    let mut daemon = host.serve_by(limited("-n 1000; ulimit -S -n 64"));
    daemon.healthy().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let files: Vec<_> =
        limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
    assert_eq!(files[3..5], ["1000", "1000"]);
    daemon.signal(Signal::TERM);
    daemon.end();
}

#[tokio::test]
async fn a_peer_that_is_gone_in_the_midst_of_a_call_gives_its_place_back() {
    let plugin = plugin(1).await;
    for _ in 0..50 {
        until("a place", async || plugin.node.provider.traffic().connections().open() == 0).await;
        let mut peer = StdStream::connect(&plugin.socket).unwrap();
        peer.write_all(&[PREFACE, NO_SETTINGS, &frame(1, 0x4, 1, &[0x83])[..9]].concat()).unwrap();
    }
    until("a place", async || plugin.node.provider.traffic().connections().open() == 0).await;
    key_id(&mut connect(&plugin.socket).await.unwrap()).await;
}
