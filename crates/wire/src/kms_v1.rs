//! Kubernetes KMS v1: messages and client of `/v1beta1.KeyManagementService/Decrypt`, for what such a plugin encrypted once.
//!
//! The messages and their fields are explained in `proto/kms_v1.proto`, from which they are generated.
use std::fmt;

use crate::hidden::Hidden;

#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod generated;

pub use generated::{DecryptRequest, DecryptResponse, key_management_service_client};

/// `version` of each request.
pub const VERSION: &str = "v1beta1";

impl fmt::Debug for DecryptResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecryptResponse").field("plain", &Hidden(self.plain.len())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_deks() {
        let shown = format!("{:?}", DecryptResponse { plain: b"SECRETSECRETSECR".to_vec().into() });
        assert_eq!(shown, "DecryptResponse { plain: <16 bytes hidden> }");
    }
}
