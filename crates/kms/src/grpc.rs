//! KMS v2 over gRPC: limits of the contract, codes by class, nothing else.

use std::sync::Arc;

use casemate_keys::{RECORD_ANNOTATION, Refusal, Sealed};
use casemate_keyservice::Class;
use casemate_wire::kms_v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use casemate_wire::kms_v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, HEALTHZ_OK, StatusRequest,
    StatusResponse, VERSION, limits,
};
use prost::bytes::Bytes;
use tonic::{Code, Request, Response, Status};

use crate::audit::Recording;
use crate::audit::format::PeerIds;
use crate::hosted::Hosted;
use crate::provider::Error;
use crate::socket::Peer;
use crate::traffic::Method;

/// Anything but `ok`. Why stands in the log, in metrics and in `/status`.
const NOT_OK: &str = "not ok";
/// The largest message that is read; the largest lawful one has some 34 kB.
const MAX_MESSAGE_LEN: usize = 64 * 1024;

/// The service of one provider.
#[derive(Debug)]
pub struct Service {
    hosted: Arc<Hosted>,
}

impl Service {
    /// The server for tonic.
    pub fn server(hosted: Arc<Hosted>) -> KeyManagementServiceServer<Self> {
        KeyManagementServiceServer::new(Self { hosted })
            .max_decoding_message_size(MAX_MESSAGE_LEN)
            .max_encoding_message_size(MAX_MESSAGE_LEN)
    }

    /// Logs what went wrong, once, with the request's uid, and makes the reply.
    fn fail(&self, call: &'static str, uid: &str, peer: &Peer, error: &Error) -> Status {
        tracing::warn!(provider = &**self.hosted.name(), call, uid = shown(uid), peer = peer.process, %error, "not served");
        Status::new(code(error), error.to_string())
    }
}

#[tonic::async_trait]
impl KeyManagementService for Service {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let mut recording = self.record(Method::Status, &request);
        self.counted(Method::Status, async {
            let answer = self.name_key_id(request, &mut recording).await;
            recorded(recording, answer).await
        })
        .await
    }

    async fn encrypt(&self, request: Request<EncryptRequest>) -> Result<Response<EncryptResponse>, Status> {
        let mut recording = self.record(Method::Encrypt, &request);
        recording.uid(&request.get_ref().uid);
        self.counted(Method::Encrypt, async {
            let answer = self.seal(request, &mut recording).await;
            recorded(recording, answer).await
        })
        .await
    }

    async fn decrypt(&self, request: Request<DecryptRequest>) -> Result<Response<DecryptResponse>, Status> {
        let mut recording = self.record(Method::Decrypt, &request);
        recording.uid(&request.get_ref().uid);
        recording.key_id(&request.get_ref().key_id);
        recording.root_key_asked(false);
        self.counted(Method::Decrypt, async {
            let answer = self.open(request, &mut recording).await;
            recorded(recording, answer).await
        })
        .await
    }
}

impl Service {
    fn record<T>(&self, method: Method, request: &Request<T>) -> Recording {
        let Some(recorder) = self.hosted.recorder() else { return Recording::none() };
        let peer = peer(request);
        recorder.begin(self.hosted.name(), method, PeerIds { pid: peer.process, uid: peer.user })
    }

    async fn counted<T>(
        &self,
        method: Method,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let provider = self.hosted.provider();
        let call = provider.traffic().begin(method);
        let answer = answer.await;
        call.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer
    }

    async fn name_key_id(
        &self,
        request: Request<StatusRequest>,
        recording: &mut Recording,
    ) -> Result<Response<StatusResponse>, Status> {
        let peer = peer(&request);
        let provider = self.hosted.provider();
        let health = provider.health(&peer.told).map_err(|error| self.fail("Status", "", &peer, &error))?;
        recording.key_id(health.key_id.as_str());
        Ok(Response::new(StatusResponse {
            version: VERSION.into(),
            healthz: if health.ok { HEALTHZ_OK.into() } else { NOT_OK.into() },
            key_id: health.key_id.as_str().into(),
        }))
    }

    async fn seal(
        &self,
        request: Request<EncryptRequest>,
        recording: &mut Recording,
    ) -> Result<Response<EncryptResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        limits::check_encrypt_request(&request).map_err(invalid)?;
        let provider = self.hosted.provider();
        let encrypted = provider
            .encrypt(&request.plaintext, &peer.told)
            .await
            .map_err(|error| self.fail("Encrypt", &request.uid, &peer, &error))?;
        recording.key_id(encrypted.kek.key_id().as_str());
        let annotation = Bytes::copy_from_slice(encrypted.kek.annotation());
        let reply = EncryptResponse {
            ciphertext: encrypted.ciphertext.into(),
            key_id: encrypted.kek.key_id().as_str().into(),
            annotations: [(RECORD_ANNOTATION.to_owned(), annotation)].into(),
        };
        limits::check_encrypt_response(&reply).map_err(ours)?;
        tracing::debug!(provider = &**self.hosted.name(), uid = shown(&request.uid), key_id = %reply.key_id, "encrypted");
        Ok(Response::new(reply))
    }

    async fn open(
        &self,
        request: Request<DecryptRequest>,
        recording: &mut Recording,
    ) -> Result<Response<DecryptResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        limits::check_decrypt_request(&request).map_err(invalid)?;
        let annotations: Vec<_> =
            request.annotations.iter().map(|(name, value)| (name.as_str(), value.as_ref())).collect();
        let sealed =
            Sealed { ciphertext: &request.ciphertext, key_id: &request.key_id, annotations: &annotations };
        let provider = self.hosted.provider();
        let plaintext = provider
            .decrypt_and_tell(&sealed, || recording.root_key_asked(true))
            .await
            .map_err(|error| self.fail("Decrypt", &request.uid, &peer, &error))?;
        let reply = DecryptResponse { plaintext: Bytes::copy_from_slice(&plaintext) };
        limits::check_decrypt_response(&reply).map_err(ours)?;
        tracing::debug!(provider = &**self.hosted.name(), uid = shown(&request.uid), key_id = %request.key_id, "decrypted");
        Ok(Response::new(reply))
    }
}

/// The answer, unless it must not be given because the audit log does not have it.
async fn recorded<T>(recording: Recording, answer: Result<T, Status>) -> Result<T, Status> {
    let recorded = recording.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok)).await;
    match recorded {
        Err(why) if answer.is_ok() => Err(Status::unavailable(why.to_string())),
        _ => answer,
    }
}

/// As much of a uid as a log line needs. A client chooses it: as a text field it is quoted, line ends too.
fn shown(uid: &str) -> &str {
    uid.char_indices().nth(64).map_or(uid, |(end, _)| &uid[..end])
}

fn peer<T>(request: &Request<T>) -> Peer {
    // Absent only where a test calls without a connection; it then was told nothing.
    request.extensions().get::<Peer>().cloned().unwrap_or_default()
}

fn invalid(violation: limits::Violation) -> Status {
    Status::invalid_argument(violation.to_string())
}

fn ours(violation: limits::Violation) -> Status {
    Status::internal(format!("the reply would break the contract: {violation}; please report this"))
}

/// What a caller may conclude from each error.
fn code(error: &Error) -> Code {
    match error {
        Error::NotWriting { .. } => Code::Unavailable,
        Error::Invalid(_) => Code::InvalidArgument,
        Error::Refused { refusal, .. } => match refusal {
            Refusal::OtherCluster { .. } | Refusal::NoReadableRoot { .. } => Code::FailedPrecondition,
            _ => Code::InvalidArgument,
        },
        Error::NotOpened { source, .. } => match source.class {
            Class::Unreachable | Class::Credential => Code::Unavailable,
            Class::Throttled => Code::ResourceExhausted,
            Class::NotOpened if !source.missing => Code::DataLoss,
            _ => Code::FailedPrecondition,
        },
        Error::Damaged { .. } => Code::DataLoss,
    }
}
