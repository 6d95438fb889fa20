//! The HTTP/2 library that serves, behind the filter and without it.

use std::convert::Infallible;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::{Client, Form};
use crate::socket::authority::{AnyAuthority, END_HEADERS, HEADERS};

/// Answers everything with 200 and no body.
#[derive(Clone)]
struct Anything;

impl NamedService for Anything {
    const NAME: &'static str = "v2.KeyManagementService";
}

impl tonic::codegen::Service<http::Request<Body>> for Anything {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        std::future::ready(Ok(http::Response::new(Body::empty())))
    }
}

impl Connected for AnyAuthority<DuplexStream> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

const END_STREAM: u8 = 0x1;
const RST_STREAM: u8 = 3;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

/// Two calls on one connection: the second names path and authority by the entries that the first one made.
fn two_calls() -> Vec<u8> {
    let path = b"\x44\x1f/v2.KeyManagementService/Status";
    let mut client = Client::default();
    let first = [&[0x83, 0x86], &path[..], &Client::field(b"%2Frun%2Fkms.sock", Form::Coded)].concat();
    client.frame(HEADERS, END_HEADERS | END_STREAM, 1, &first);
    client.frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x83, 0x86, 0xbf, 0xbe]);
    client.sent
}

/// What the streams 1 and 3 came to: `None` if answered, else the code of the reset.
async fn answers<S>(serve: impl FnOnce(DuplexStream) -> S, piece: usize) -> Vec<(u32, Option<[u8; 4]>)>
where
    S: Connected + tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    S::ConnectInfo: Clone + Send + Sync + 'static,
{
    // A pipe this narrow is read in pieces.
    let (mut ours, theirs) = duplex(piece);
    let connections =
        tokio_stream::once(Ok::<_, std::io::Error>(serve(theirs))).chain(tokio_stream::pending());
    let server = tokio::spawn(Server::builder().add_service(Anything).serve_with_incoming(connections));
    let (mut read, mut write) = tokio::io::split(&mut ours);
    let reading = async {
        let mut answers = Vec::new();
        while answers.len() < 2 {
            let mut header = [0; 9];
            read.read_exact(&mut header).await.unwrap();
            let [a, b, c, kind, flags, stream @ ..] = header;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            read.read_exact(&mut payload).await.unwrap();
            match kind {
                HEADERS if flags & END_STREAM != 0 => answers.push((u32::from_be_bytes(stream), None)),
                RST_STREAM => answers.push((u32::from_be_bytes(stream), Some(payload.try_into().unwrap()))),
                _ => {}
            }
        }
        answers
    };
    let sent = two_calls();
    let (answers, written) = tokio::join!(reading, write.write_all(&sent));
    written.unwrap();
    server.abort();
    answers
}

#[tokio::test]
async fn a_path_is_served_behind_the_filter_and_refused_without_it() {
    for piece in [1, 2, 3, 7, 64, 4096] {
        assert_eq!(answers(AnyAuthority::new, piece).await, [(1, None), (3, None)], "in pieces of {piece}");
    }
    let refused = Some(PROTOCOL_ERROR);
    assert_eq!(answers(|stream| stream, 4096).await, [(1, refused), (3, refused)]);
}
