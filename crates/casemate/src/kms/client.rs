//! One connection to a plugin, as kube-apiserver makes it, and what can go wrong on it.
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use casemate_wire::kms_v1;
use casemate_wire::kms_v2::key_management_service_client::KeyManagementServiceClient;
use casemate_wire::kms_v2::limits::Violation;
use casemate_wire::kms_v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::socket::Socket;
use crate::output::{Exit, Failure};

/// Why a call gave nothing that could be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(
        "{call} at {socket} breaks the KMS v2 contract: {violation}; kube-apiserver would refuse it too: report it \
         to the plugin's maker"
    )]
    Contract { call: &'static str, socket: Socket, violation: Violation },
    #[error("can't connect to {socket}: {source}")]
    Connect { socket: Socket, source: io::Error },
    #[error(
        "{call} at {socket} gave no answer within {timeout:?}: see the plugin's log for what it waits for, often its \
         key service; --timeout gives it longer, kube-apiserver by default gives it 3 s"
    )]
    Deadline { call: &'static str, socket: Socket, timeout: Duration },
    #[error(
        "permission to connect to {socket} denied: run as root, or as the user or group that owns the socket and may \
         enter its folder"
    )]
    Denied { socket: Socket },
    #[error(
        "the connection to {socket} broke during {call} ({reason}): either the plugin ended, then see its log, or \
         what listens there speaks no gRPC"
    )]
    Lost { call: &'static str, socket: Socket, reason: String },
    #[error(
        "{socket} does not exist: start the plugin, or compare the path with the one that it is told to listen at"
    )]
    Missing { socket: Socket },
    #[error(
        "nobody listens at {socket}: start the plugin (a socket file alone may be left of an earlier run)"
    )]
    NobodyListens { socket: Socket },
    #[error("{socket} is not a socket: compare the path with the one that the plugin is told to listen at")]
    NotASocket { socket: Socket },
    #[error("{call} at {socket} refused: {message} ({code:?}); the plugin's log may say more")]
    Refused { call: &'static str, socket: Socket, code: Code, message: String },
    #[error(
        "what listens at {socket} has no KMS v2 method {call}: it may be a KMS v1 plugin or another kind of gRPC server"
    )]
    Unimplemented { call: &'static str, socket: Socket },
    #[error(
        "what listens at {socket} decrypts nothing of KMS v1: it may be a KMS v2 plugin or another kind of gRPC server"
    )]
    NotOfV1 { socket: Socket },
}

impl CallError {
    /// The plugin answered, and its answer is no.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Contract { .. } | Self::Refused { .. } | Self::Unimplemented { .. } | Self::NotOfV1 { .. }
        )
    }
}

impl CallError {
    /// Somebody listens there, whatever comes of it.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.is_answer() || matches!(self, Self::Deadline { .. } | Self::Lost { .. })
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let exit = if error.is_answer() { Exit::No } else { Exit::Unknown };
        Self::new(exit, &error)
    }
}

/// A connected plugin.
pub(crate) struct Plugin {
    client: KeyManagementServiceClient<Channel>,
    v1: kms_v1::key_management_service_client::KeyManagementServiceClient<Channel>,
    socket: Socket,
    timeout: Duration,
    calls: u64,
}

impl Plugin {
    /// Connects once: a connection that breaks later is an answer, not a reason to try again.
    pub(crate) async fn connect(socket: Socket, timeout: Duration) -> Result<Self, CallError> {
        let stream = Mutex::new(Some(TokioIo::new(connect(&socket, timeout).await?)));
        // kube-apiserver's `:authority` since 1.32.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let stream = stream.lock().ok().and_then(|mut stream| stream.take());
                std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset)))
            }),
        );
        let v1 = kms_v1::key_management_service_client::KeyManagementServiceClient::new(channel.clone());
        Ok(Self { client: KeyManagementServiceClient::new(channel), v1, socket, timeout, calls: 0 })
    }

    /// Status, and how long it took.
    pub(crate) async fn status(&mut self) -> Result<(StatusResponse, Duration), CallError> {
        let mut client = self.client.clone();
        let request = self.request(StatusRequest {});
        let started = Instant::now();
        let reply = self.bounded("Status", client.status(request)).await?;
        Ok((reply, started.elapsed()))
    }

    pub(crate) async fn encrypt(&mut self, plaintext: Vec<u8>) -> Result<EncryptResponse, CallError> {
        let mut client = self.client.clone();
        let uid = self.uid();
        let request = self.request(EncryptRequest { plaintext: plaintext.into(), uid });
        self.bounded("Encrypt", client.encrypt(request)).await
    }

    /// Decrypts what an Encrypt reply holds.
    pub(crate) async fn decrypt(&mut self, stored: EncryptResponse) -> Result<DecryptResponse, CallError> {
        let mut client = self.client.clone();
        let uid = self.uid();
        let EncryptResponse { ciphertext, key_id, annotations } = stored;
        let request = self.request(DecryptRequest { ciphertext, uid, key_id, annotations });
        self.bounded("Decrypt", client.decrypt(request)).await
    }

    /// Decrypts a DEK of KMS v1.
    pub(crate) async fn decrypt_v1(&mut self, cipher: Bytes) -> Result<kms_v1::DecryptResponse, CallError> {
        let mut client = self.v1.clone();
        let request = self.request(kms_v1::DecryptRequest { version: kms_v1::VERSION.to_owned(), cipher });
        self.bounded("Decrypt", client.decrypt(request)).await.map_err(|error| match error {
            CallError::Unimplemented { socket, .. } => CallError::NotOfV1 { socket },
            error => error,
        })
    }

    pub(super) fn contract(&self, call: &'static str, violation: Violation) -> CallError {
        CallError::Contract { call, socket: self.socket.clone(), violation }
    }

    /// Names this process and the call, so that it is found in the plugin's log.
    fn uid(&mut self) -> String {
        self.calls += 1;
        format!("casemate-{}-{}", std::process::id(), self.calls)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    async fn bounded<T>(
        &self,
        call: &'static str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let socket = self.socket.clone();
        match tokio::time::timeout(self.timeout, reply).await {
            Err(_) => Err(CallError::Deadline { call, socket, timeout: self.timeout }),
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(self.call_error(call, &status)),
        }
    }

    fn call_error(&self, call: &'static str, status: &Status) -> CallError {
        let socket = self.socket.clone();
        // What the other side sent has no cause in this process.
        let causes = std::iter::successors(std::error::Error::source(status), |cause| cause.source());
        if causes.clone().any(|cause| cause.is::<tonic::TimeoutExpired>()) {
            return CallError::Deadline { call, socket, timeout: self.timeout };
        }
        if let Some(root) = causes.last() {
            return CallError::Lost { call, socket, reason: root.to_string() };
        }
        match status.code() {
            Code::Unimplemented => CallError::Unimplemented { call, socket },
            code => CallError::Refused { call, socket, code, message: status.message().to_owned() },
        }
    }
}

/// Connects, and says what is wrong if it can't.
pub(super) async fn connect(socket: &Socket, timeout: Duration) -> Result<UnixStream, CallError> {
    match tokio::time::timeout(timeout, UnixStream::connect(socket.address())).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(connect_error(socket.clone(), source)),
        Err(_) => Err(CallError::Deadline { call: "connecting", socket: socket.clone(), timeout }),
    }
}

fn connect_error(socket: Socket, source: io::Error) -> CallError {
    match source.kind() {
        io::ErrorKind::NotFound => CallError::Missing { socket },
        io::ErrorKind::PermissionDenied => CallError::Denied { socket },
        io::ErrorKind::ConnectionRefused if is_other_file(&socket) => CallError::NotASocket { socket },
        io::ErrorKind::ConnectionRefused => CallError::NobodyListens { socket },
        _ => CallError::Connect { socket, source },
    }
}

fn is_other_file(socket: &Socket) -> bool {
    match socket {
        Socket::Abstract(_) => false,
        Socket::Path(path) => path.metadata().is_ok_and(|found| !found.file_type().is_socket()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests may run as root, whom no socket refuses; the other kinds are met for real in tests/it/kms.rs.
    #[test]
    fn a_denied_connection_says_who_may() {
        let error =
            connect_error(Socket::Path("/run/kms.sock".into()), io::ErrorKind::PermissionDenied.into());
        assert!(error.to_string().contains("run as root, or as the user or group that owns the socket"));
        assert!(!error.is_answer());
    }
}
