//! The sockets: who gets in, from the first moment on; how many; and what nobody gets by being slow, silent or big.

pub(crate) mod limits;
pub(crate) mod passed;
mod peers;

use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};

use casemate_keys::Algorithm;
use casemate_kms::grpc::Service;
use casemate_kms::hosted::Hosted;
use casemate_kms::provider::Settings;
use casemate_kms::socket::{Socket, transport};
use casemate_wire::kms_v2::StatusRequest;
use rustix::process::{Gid, Uid};
use rustix::process::{getegid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::double::RootKeyDouble;
use crate::node::{Client, Node, client_over, settings};

const DEK: [u8; 32] = *b"<the one DEK source of the test>";

fn one_key() -> Settings {
    settings(&[&std::sync::Arc::new(RootKeyDouble::new("a", Algorithm::TRANSIT))])
}

/// A node behind a socket that a test has bound.
struct Served {
    node: Node,
    _stop: DropGuard,
}

impl Served {
    async fn on(socket: Socket) -> Self {
        let (node, stop) = (Node::start(one_key()).await, CancellationToken::new());
        let connections = socket.serve(node.provider.traffic().clone(), stop.clone());
        let server = transport()
            .add_service(Service::server(std::sync::Arc::new(Hosted::new(node.provider.clone(), None))));
        tokio::spawn(server.serve_with_incoming(connections));
        Self { node, _stop: stop.drop_guard() }
    }
}

/// A name in the abstract name space that no other test uses.
fn free_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("casemate-kms-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn connect_to_name(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

async fn client_of(stream: UnixStream) -> Client {
    stream.set_nonblocking(true).unwrap();
    client_over(tokio::net::UnixStream::from_std(stream).unwrap()).await.unwrap()
}

async fn key_id(client: &mut Client) -> String {
    client.status(StatusRequest {}).await.unwrap().into_inner().key_id
}

/// Whether the server closed at once. To one that is let in it sends its settings first.
fn is_refused(mut stream: &UnixStream) -> bool {
    // With a byte of ours unread, closing is a reset.
    !matches!(stream.read(&mut [0; 1]), Ok(1))
}

/// Ourselves, as the system tells it to the server.
fn own_uid() -> u32 {
    geteuid().as_raw()
}

fn own_gid() -> u32 {
    getegid().as_raw()
}

/// Runs `work` as another user, whom nothing lets in; only root can. The system keeps users by thread.
pub(crate) fn as_another_user<T: Send>(gid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(gid)).unwrap();
            set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
            work()
        });
        other.join().unwrap()
    })
}

/// No user of the host.
pub(crate) const NOBODY: u32 = 65534;
