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

use crate::provider::{Error, Provider};
use crate::socket::Peer;
use crate::traffic::Method;

/// The largest message that is read; the largest lawful one has some 34 kB.
const MAX_MESSAGE_LEN: usize = 64 * 1024;

/// The service of one provider.
#[derive(Debug)]
pub struct Service {
    provider: Arc<Provider>,
}

impl Service {
    /// The server for tonic.
    pub fn server(provider: Arc<Provider>) -> KeyManagementServiceServer<Self> {
        KeyManagementServiceServer::new(Self { provider })
            .max_decoding_message_size(MAX_MESSAGE_LEN)
            .max_encoding_message_size(MAX_MESSAGE_LEN)
    }

    /// Logs what went wrong, once, with the request's uid, and makes the reply.
    fn fail(&self, call: &'static str, uid: &str, peer: &Peer, error: &Error) -> Status {
        tracing::warn!(provider = self.provider.name(), call, uid = shown(uid), peer = peer.process, %error, "not served");
        Status::new(code(error), error.to_string())
    }
}

#[tonic::async_trait]
impl KeyManagementService for Service {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.counted(Method::Status, self.name_key_id(request)).await
    }

    async fn encrypt(&self, request: Request<EncryptRequest>) -> Result<Response<EncryptResponse>, Status> {
        self.counted(Method::Encrypt, self.seal(request)).await
    }

    async fn decrypt(&self, request: Request<DecryptRequest>) -> Result<Response<DecryptResponse>, Status> {
        self.counted(Method::Decrypt, self.open(request)).await
    }
}

impl Service {
    async fn counted<T>(
        &self,
        method: Method,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let call = self.provider.traffic().begin(method);
        let answer = answer.await;
        call.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer
    }

    async fn name_key_id(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let peer = peer(&request);
        let key_id =
            self.provider.status(&peer.told).map_err(|error| self.fail("Status", "", &peer, &error))?;
        Ok(Response::new(StatusResponse {
            version: VERSION.into(),
            healthz: HEALTHZ_OK.into(),
            key_id: key_id.as_str().into(),
        }))
    }

    async fn seal(&self, request: Request<EncryptRequest>) -> Result<Response<EncryptResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        limits::check_encrypt_request(&request).map_err(invalid)?;
        let encrypted = self
            .provider
            .encrypt(&request.plaintext, &peer.told)
            .await
            .map_err(|error| self.fail("Encrypt", &request.uid, &peer, &error))?;
        let annotation = Bytes::copy_from_slice(encrypted.kek.annotation());
        let reply = EncryptResponse {
            ciphertext: encrypted.ciphertext.into(),
            key_id: encrypted.kek.key_id().as_str().into(),
            annotations: [(RECORD_ANNOTATION.to_owned(), annotation)].into(),
        };
        limits::check_encrypt_response(&reply).map_err(ours)?;
        tracing::debug!(provider = self.provider.name(), uid = shown(&request.uid), key_id = %reply.key_id, "encrypted");
        Ok(Response::new(reply))
    }

    async fn open(&self, request: Request<DecryptRequest>) -> Result<Response<DecryptResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        limits::check_decrypt_request(&request).map_err(invalid)?;
        let annotations: Vec<_> =
            request.annotations.iter().map(|(name, value)| (name.as_str(), value.as_ref())).collect();
        let sealed =
            Sealed { ciphertext: &request.ciphertext, key_id: &request.key_id, annotations: &annotations };
        let plaintext = self
            .provider
            .decrypt(&sealed)
            .await
            .map_err(|error| self.fail("Decrypt", &request.uid, &peer, &error))?;
        let reply = DecryptResponse { plaintext: Bytes::copy_from_slice(&plaintext) };
        limits::check_decrypt_response(&reply).map_err(ours)?;
        tracing::debug!(provider = self.provider.name(), uid = shown(&request.uid), key_id = %request.key_id, "decrypted");
        Ok(Response::new(reply))
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
