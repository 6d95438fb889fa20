//! Stopped, continued and ended while calls run.

use std::fs;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use casemate_wire::kms_v2::StatusRequest;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Code;

use super::{Acknowledged, Load};
use crate::node::client_over;
use crate::process::{Daemon, Host, until};

async fn until_stopped(daemon: &Daemon) {
    let state = format!("/proc/{}/stat", daemon.pid());
    until("it stands still", async || fs::read_to_string(&state).unwrap().contains(") T ")).await;
}

#[tokio::test]
async fn stopped_and_continued_under_load_it_fails_no_call() {
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let load = Load::on(&host.socket(), 100, &acknowledged).await;
    for _ in 0..3 {
        let before = acknowledged.count();
        until("calls run", async || acknowledged.count() > before + 300).await;
        daemon.signal(Signal::STOP);
        until_stopped(&daemon).await;
        let asked = timeout(Duration::from_millis(100), client.status(StatusRequest {})).await;
        assert!(asked.is_err(), "it stands still, and answers");
        daemon.signal(Signal::CONT);
    }
    let before = acknowledged.count();
    until("calls run again", async || acknowledged.count() > before + 300).await;
    none_failed_and_all_is_read(load, daemon, &acknowledged, &host).await;
}

/// With nothing new in the configuration, and with a terminal gone that it was started from.
#[tokio::test]
async fn hung_up_under_load_it_goes_on() {
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    daemon.healthy().await;
    let load = Load::on(&host.socket(), 100, &acknowledged).await;
    for _ in 0..20 {
        let before = acknowledged.count();
        daemon.signal(Signal::HUP);
        until("calls run", async || acknowledged.count() > before + 100 || !daemon.is_running()).await;
    }
    none_failed_and_all_is_read(load, daemon, &acknowledged, &host).await;
}

#[tokio::test]
async fn asked_to_end_under_load_it_finishes_what_is_in_flight() {
    const IN_FLIGHT: usize = 200;
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    daemon.healthy().await;
    let load = Load::on(&host.socket(), 100, &acknowledged).await;
    until("calls run", async || acknowledged.count() > 300).await;

    // In flight for certain: sent whole, to a process that can't have answered.
    let sent = Arc::new(Mutex::new(Vec::new()));
    let stream = UnixStream::connect(host.socket()).await.unwrap();
    let mut client = client_over(Overheard { stream, sent: sent.clone() }).await.unwrap();
    acknowledged.encrypt(&mut client).await.unwrap();
    daemon.signal(Signal::STOP);
    until_stopped(&daemon).await;
    let calls: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (mut client, acknowledged) = (client.clone(), acknowledged.clone());
            tokio::spawn(async move { acknowledged.encrypt(&mut client).await })
        })
        .collect();
    until("all are sent", async || whole_requests(&sent.lock().unwrap()) == IN_FLIGHT + 1).await;
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::CONT);

    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Those who went on calling were told to go elsewhere, if anything.
    for status in load.end().await {
        // The client has a code of its own for a call that it was making up when it was told so.
        let told_so = format!("{status:?}").contains("GoAway(b\"\", NO_ERROR, Remote)");
        let elsewhere = matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Unknown);
        assert!(elsewhere || told_so, "{status:?}");
    }
    let (ended, log) = daemon.end();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(!host.socket().exists());
    assert!(!log.contains("ERROR"), "{log}");
    acknowledged.read_after_a_restart(&host).await;
}

/// A stream of which a test knows what was written.
struct Overheard {
    stream: UnixStream,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Overheard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Overheard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(length)) = written {
            self.sent.lock().unwrap().extend(&buf[..length]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How many streams were ended by what an HTTP/2 client has sent (RFC 9113, 4.1: nine bytes, then the payload).
fn whole_requests(sent: &[u8]) -> usize {
    const PREFACE: usize = 24;
    const HEADER: usize = 9;
    let (mut rest, mut ended) = (sent.get(PREFACE..).unwrap_or_default(), 0);
    while let Some([a, b, c, kind, flags, ..]) = rest.first_chunk::<HEADER>().copied() {
        let Some(next) = rest.get(HEADER + u32::from_be_bytes([0, a, b, c]) as usize..) else { break };
        ended += usize::from(kind < 2 && flags & 1 == 1);
        rest = next;
    }
    ended
}

async fn none_failed_and_all_is_read(load: Load, daemon: Daemon, acknowledged: &Acknowledged, host: &Host) {
    let failed = load.end().await;
    assert!(failed.is_empty(), "{failed:?}");
    daemon.signal(Signal::TERM);
    let (ended, log) = daemon.end();
    assert!(ended.success(), "{log}");
    acknowledged.read_after_a_restart(host).await;
}
