//! An Encrypt reply as JSON: what `casemate kms encrypt` writes and `casemate kms decrypt` reads.
use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_wire::kms_v2::EncryptResponse;
use serde::{Deserialize, Serialize};

/// The document. Binary values are standard base64 with padding.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reply {
    key_id: String,
    ciphertext: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Why a text is no such document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("{field} is not base64: {source}; accepted is the standard alphabet with padding")]
    Base64 { field: String, source: base64::DecodeError },
    #[error(
        "not what `casemate kms encrypt` writes: {0}; accepted is {{\"key_id\", \"ciphertext\", \"annotations\"}}"
    )]
    Json(#[from] serde_json::Error),
}

impl From<&EncryptResponse> for Reply {
    fn from(reply: &EncryptResponse) -> Self {
        let annotations = reply.annotations.iter();
        Self {
            key_id: reply.key_id.clone(),
            ciphertext: STANDARD.encode(&reply.ciphertext),
            annotations: annotations.map(|(key, value)| (key.clone(), STANDARD.encode(value))).collect(),
        }
    }
}

/// Reads the document. Limits are left to the plugin: what it does with a bad one may be the question.
pub(crate) fn parse(text: &[u8]) -> Result<EncryptResponse, ReplyError> {
    let Reply { key_id, ciphertext, annotations } = serde_json::from_slice(text)?;
    let annotations = annotations.into_iter().map(|(key, value)| {
        let value = decode(&format!("annotation {key:?}"), &value)?;
        Ok((key, value.into()))
    });
    Ok(EncryptResponse {
        key_id,
        ciphertext: decode("ciphertext", &ciphertext)?.into(),
        annotations: annotations.collect::<Result<_, ReplyError>>()?,
    })
}

fn decode(field: &str, text: &str) -> Result<Vec<u8>, ReplyError> {
    STANDARD.decode(text).map_err(|source| ReplyError::Base64 { field: field.to_owned(), source })
}
