//! A KMS v2 plugin of a few lines on a real socket: a good one, and ones that misbehave in one named way.
#![allow(clippy::unwrap_used)]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use casemate_wire::kms_v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use casemate_wire::kms_v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

const KEY_ID: &str = "key-1";
const ANNOTATION: &str = "mask.example.com";

/// How a plugin misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It doesn't.
    None,
    /// Encrypt's annotation key is no domain name.
    AnnotationKey,
    /// Status and Encrypt name another key id at each call.
    ChangingKeyId,
    /// Encrypt's ciphertext has 1025 bytes.
    CiphertextTooLong,
    /// Encrypt gives the plaintext as ciphertext.
    Clear,
    /// Decrypt ignores annotations.
    IgnoresAnnotations,
    /// Decrypt ignores the key id.
    IgnoresKeyId,
    /// Decrypt gives other bytes.
    OtherPlaintext,
    /// No call is ever answered.
    Silent,
    /// Encrypt and Decrypt don't check integrity.
    Unauthenticated,
    /// Status says that it is not healthy.
    Unhealthy,
    /// Every call is refused.
    Unavailable,
    /// Status names version v1.
    Version,
}

/// A running plugin, which ends when this is dropped.
pub(crate) struct Plugin {
    pub(crate) url: String,
    pub(crate) folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    server: Option<thread::JoinHandle<()>>,
}

impl Plugin {
    /// Serves at a path in a folder of its own.
    pub(crate) fn start(fault: Fault) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kms.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Self::serve(fault, folder, listener, format!("unix://{}", path.display()))
    }

    /// Serves at an abstract name.
    pub(crate) fn start_abstract() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        let name = format!("casemate-test-{}-{name}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::serve(Fault::None, folder, listener, format!("unix:///@{name}"))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(fault: Fault, folder: TempDir, listener: UnixListener, url: String) -> Self {
        let (stop, stopped) = oneshot::channel();
        listener.set_nonblocking(true).unwrap();
        let server = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                let service = KeyManagementServiceServer::new(Masking { fault, calls: AtomicU32::new(0) });
                let serving = tonic::transport::Server::builder()
                    .add_service(service)
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! { _ = serving => {} _ = stopped => {} }
            });
        });
        Self { url, folder, stop: Some(stop), server: Some(server) }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Not encryption: bytes are masked, and a checksum stands for authentication. Enough to be asked about.
struct Masking {
    fault: Fault,
    calls: AtomicU32,
}

impl Masking {
    async fn answer<T>(&self, reply: T) -> Result<Response<T>, Status> {
        match self.fault {
            Fault::Silent => std::future::pending().await,
            Fault::Unavailable => Err(Status::unavailable("key service is away")),
            _ => Ok(Response::new(reply)),
        }
    }

    fn key_id(&self) -> String {
        match self.fault {
            Fault::ChangingKeyId => format!("key-{}", self.calls.fetch_add(1, Ordering::Relaxed)),
            _ => KEY_ID.to_owned(),
        }
    }

    fn mask(&self, bytes: &[u8]) -> Vec<u8> {
        let mask = if self.fault == Fault::Clear { 0 } else { 0x5a };
        bytes.iter().map(|byte| byte ^ mask).collect()
    }

    fn is_whole(&self, request: &DecryptRequest) -> bool {
        let annotation = request.annotations.get(ANNOTATION).is_some_and(|value| value[..] == [1, 2, 3]);
        (request.key_id == KEY_ID || matches!(self.fault, Fault::IgnoresKeyId | Fault::ChangingKeyId))
            && (annotation || matches!(self.fault, Fault::IgnoresAnnotations | Fault::AnnotationKey))
    }
}

#[tonic::async_trait]
impl KeyManagementService for Masking {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.answer(StatusResponse {
            version: if self.fault == Fault::Version { "v1" } else { "v2" }.to_owned(),
            healthz: if self.fault == Fault::Unhealthy { "\x1b[31mkey service is away" } else { "ok" }
                .to_owned(),
            key_id: self.key_id(),
        })
        .await
    }

    async fn encrypt(&self, request: Request<EncryptRequest>) -> Result<Response<EncryptResponse>, Status> {
        let mut ciphertext = self.mask(&request.into_inner().plaintext);
        ciphertext.extend(checksum(&ciphertext));
        if self.fault == Fault::CiphertextTooLong {
            ciphertext.resize(1025, 0);
        }
        let key = if self.fault == Fault::AnnotationKey { "example.com/mask" } else { ANNOTATION };
        self.answer(EncryptResponse {
            ciphertext: ciphertext.into(),
            key_id: self.key_id(),
            annotations: [(key.to_owned(), vec![1, 2, 3].into())].into(),
        })
        .await
    }

    async fn decrypt(&self, request: Request<DecryptRequest>) -> Result<Response<DecryptResponse>, Status> {
        let request = request.into_inner();
        let too_long = self.fault != Fault::CiphertextTooLong && request.ciphertext.len() > 1024;
        let Some((body, sum)) = request.ciphertext.split_last_chunk::<4>().filter(|_| !too_long) else {
            return Err(Status::invalid_argument("the ciphertext is too short or too long"));
        };
        let authentic = *sum == checksum(body) || self.fault == Fault::Unauthenticated;
        if !authentic || !self.is_whole(&request) {
            return Err(Status::invalid_argument("not made here"));
        }
        let mut plaintext = self.mask(body);
        if self.fault == Fault::OtherPlaintext {
            plaintext.reverse();
        }
        self.answer(DecryptResponse { plaintext: plaintext.into() }).await
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    bytes.iter().fold(1u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte))).to_be_bytes()
}
