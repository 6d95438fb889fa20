//! Calls that no handler sees, because they are no lawful call of KMS v2: another method, a message that is too large,
//! malformed, compressed, or never complete. They are counted and audited here, as those that are served are there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use tokio::time::Instant;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::audit::format::PeerIds;
use crate::hosted::Hosted;
use crate::socket::Peer;
use crate::traffic::{Method, and_whether_begun, begun};

/// Stands between the transport and the methods of one provider.
#[derive(Clone, Debug)]
pub struct Rejections(Arc<Hosted>);

impl Rejections {
    /// Of this provider.
    pub fn of(hosted: Arc<Hosted>) -> Self {
        Self(hosted)
    }
}

impl<S> Layer<S> for Rejections {
    type Service = Watched<S>;

    fn layer(&self, inner: S) -> Watched<S> {
        Watched { inner, rejections: self.clone() }
    }
}

/// A service whose rejected calls are seen.
#[derive(Clone, Debug)]
pub struct Watched<S> {
    inner: S,
    rejections: Rejections,
}

impl<S, B, R> Service<Request<B>> for Watched<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<Peer>();
        let mut call = Call {
            rejections: self.rejections.clone(),
            method: Method::at(request.uri().path()),
            peer: peer.map_or(PeerIds::default(), |peer| PeerIds { pid: peer.process, uid: peer.user }),
            started: Instant::now(),
            code: Code::Cancelled,
        };
        let answer = self.inner.call(request);
        Box::pin(and_whether_begun(async move {
            let answer = answer.await;
            if let Ok(answer) = &answer {
                // All that tonic rejects is told in the head.
                let status = Status::from_header_map(answer.headers());
                call.answered(status.map_or(Code::Unknown, |status| status.code()));
            }
            answer
        }))
    }
}

/// Tells of itself when it ends, in whatever way, unless a handler has begun it and does so.
struct Call {
    rejections: Rejections,
    method: Method,
    peer: PeerIds,
    started: Instant,
    code: Code,
}

impl Call {
    fn answered(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if begun() {
            return;
        }
        let Rejections(hosted) = &self.rejections;
        let took = self.started.elapsed();
        hosted.provider().traffic().count(self.method, self.code, took);
        if let Some(recorder) = hosted.recorder() {
            recorder.rejected(hosted.name(), self.method, self.peer, self.code, took);
        }
    }
}
