//! What of a value matters to a recovery identity: its record, and what was sealed under it.
use std::collections::BTreeMap;

use casemate_keys::{KeyId, RECORD_ANNOTATION, Record};
use casemate_wire::kms_v2::stored;
use prost::bytes::Bytes;
use serde::Serialize;

use crate::inspect::input::Encoding;
use crate::kms::reply;

/// A record, and what was stored with it.
pub(super) struct Value {
    pub(super) kind: Kind,
    pub(super) record: Record,
    /// The encoded record, which the ciphertext is bound to.
    pub(super) annotation: Vec<u8>,
    /// A record alone has none.
    pub(super) ciphertext: Option<Vec<u8>>,
}

/// What the bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    EncryptReply,
    EtcdValue,
    Record,
}

/// Why there is no [`Value`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoValue {
    /// Ours, but not whole, or its parts don't belong together.
    Damaged(String),
    /// Nothing that casemate-kms writes.
    Unknown(&'static str),
}

impl Value {
    /// What `bytes` are: as they stand, or spelled in hex, in base64 or by etcdctl. A line break that a program added at
    /// the end does not count.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NoValue> {
        let spelled = || {
            let spellings = [Encoding::Hex, Encoding::Base64, Encoding::EtcdctlJson].into_iter();
            spellings
                .filter_map(|spelling| spelling.decode(bytes).ok())
                .find_map(|bytes| Self::parse_raw(&bytes))
        };
        Self::parse_raw(bytes)
            .or_else(|| Self::parse_raw(bytes.strip_suffix(b"\n")?).filter(Result::is_ok))
            .or_else(spelled)
            .unwrap_or(Err(NoValue::Unknown(
                "it is no value of etcd that a KMS v2 provider wrote, no record and no reply to Encrypt; `casemate inspect` \
                 says what it is",
            )))
    }

    /// `None` if the bytes don't bear the marks of anything known.
    fn parse_raw(bytes: &[u8]) -> Option<Result<Self, NoValue>> {
        if bytes.starts_with(stored::PREFIX.as_bytes()) {
            // etcdctl adds a line break, which may look like the beginning of a field.
            let parsed = stored::parse(bytes).or_else(|error| {
                bytes
                    .strip_suffix(b"\n")
                    .map_or(Err(error.clone()), |cut| stored::parse(cut).map_err(|_| error))
            });
            return Some(match parsed {
                Ok(value) => {
                    let object = value.object;
                    let (ciphertext, annotations) = (&object.encrypted_dek_source, &object.annotations);
                    Self::sealed(Kind::EtcdValue, &object.key_id, ciphertext, annotations)
                }
                Err(error) => Err(NoValue::Damaged(format!("at byte {}: {error}", error.at()))),
            });
        }
        if bytes.trim_ascii_start().starts_with(b"{") {
            let reply = reply::parse(bytes).ok()?;
            return Some(Self::sealed(
                Kind::EncryptReply,
                &reply.key_id,
                &reply.ciphertext,
                &reply.annotations,
            ));
        }
        // A state directory's has a tag behind it.
        let tagless = bytes.split_last_chunk::<32>().map(|(record, _)| record);
        [Some(bytes), tagless].into_iter().flatten().find_map(|bytes| Record::decode(bytes).ok()).map(
            |record| Ok(Self { kind: Kind::Record, annotation: record.encode(), record, ciphertext: None }),
        )
    }

    fn sealed(
        kind: Kind,
        key_id: &str,
        ciphertext: &[u8],
        annotations: &BTreeMap<String, Bytes>,
    ) -> Result<Self, NoValue> {
        let Some(annotation) = annotations.get(RECORD_ANNOTATION) else {
            return Err(match key_id.parse::<KeyId>() {
                Ok(_) => NoValue::Damaged(format!("its annotation {RECORD_ANNOTATION} is missing")),
                Err(_) => NoValue::Unknown(
                    "another KMS plugin than casemate-kms wrote it: it has no recovery wraps",
                ),
            });
        };
        let record =
            Record::decode(annotation).map_err(|error| NoValue::Damaged(format!("its record: {error}")))?;
        if annotations.len() > 1 {
            return Err(NoValue::Damaged(format!("it has annotations beside {RECORD_ANNOTATION}")));
        }
        let derived = record.core().policy.key_id();
        if derived.as_str() != key_id {
            return Err(NoValue::Damaged(format!("its key id is not that of its record, {derived}")));
        }
        Ok(Self { kind, annotation: annotation.to_vec(), record, ciphertext: Some(ciphertext.to_vec()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_told_from_what_is_damaged() {
        for unknown in
            [&b""[..], b"\n", b"k8s\0", b"{\"kind\": \"Secret\"}", b"k8s:enc:aescbc:v1:key1:abc", &[7; 300]]
        {
            assert!(matches!(Value::parse(unknown), Err(NoValue::Unknown(_))), "{unknown:?}");
        }
        for damaged in [&b"k8s:enc:kms:v2:"[..], b"k8s:enc:kms:v2:casemate:\xff"] {
            assert!(matches!(Value::parse(damaged), Err(NoValue::Damaged(_))), "{damaged:?}");
        }
    }
}
