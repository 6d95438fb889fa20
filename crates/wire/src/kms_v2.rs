//! Kubernetes KMS v2: messages, client and server of `/v2.KeyManagementService/{Status,Encrypt,Decrypt}`.
//!
//! The messages and their fields are explained in `proto/kms_v2.proto`, from which they are generated.
//! Byte fields are [`Bytes`](prost::bytes::Bytes), annotations a sorted map.
use std::fmt;

use crate::hidden::Hidden;

pub mod limits;
pub mod stored;

#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod generated;

pub use generated::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
    key_management_service_client, key_management_service_server,
};

/// The only `healthz` that kube-apiserver takes for healthy.
pub const HEALTHZ_OK: &str = "ok";

/// `version` of a Status reply, understood by Kubernetes 1.29 and later.
pub const VERSION: &str = "v2";

/// `version` of a Status reply for Kubernetes 1.27 and 1.28, which accept nothing else; later releases
/// accept it too.
pub const VERSION_BETA: &str = "v2beta1";

impl fmt::Debug for EncryptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptRequest")
            .field("plaintext", &Hidden(self.plaintext.len()))
            .field("uid", &self.uid)
            .finish()
    }
}

impl fmt::Debug for DecryptResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecryptResponse").field("plaintext", &Hidden(self.plaintext.len())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_dek_sources() {
        let secret = b"SECRETSECRETSECRETSECRETSECRET!!";
        let request = EncryptRequest { plaintext: secret.to_vec().into(), uid: "u-1".into() };
        let reply = DecryptResponse { plaintext: secret.to_vec().into() };
        let shown = format!("{request:?} {reply:#?}");
        assert!(!shown.contains("SECRET"), "{shown}");
        assert!(shown.contains("<32 bytes hidden>") && shown.contains("u-1"), "{shown}");
    }

    #[test]
    fn methods_stand_where_kube_apiserver_looks_for_them() {
        assert_eq!(key_management_service_server::SERVICE_NAME, "v2.KeyManagementService");
    }
}
