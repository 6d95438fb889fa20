//! Whether somebody who writes etcd, and knows a public key, could have made a record.
use std::collections::BTreeSet;

use casemate_keys::Digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From who had the root key, or what signs records; or a census saw the record earlier.
    Proven,
    /// From whoever knows the public half of what opened it, and writes to etcd.
    Unproven,
}

impl Origin {
    /// Proven, or not.
    pub fn of(is_proven: bool) -> Self {
        if is_proven { Self::Proven } else { Self::Unproven }
    }
}

/// Records that a census saw at a time when etcd was trusted.
#[derive(Debug, Default)]
pub struct Records(BTreeSet<Digest>);

/// No list of records.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// No JSON, or of another kind.
    #[error(
        "is no answer of a census: {0}; make one with `casemate census snapshot FILE --output json` from a snapshot of when \
         etcd was trusted"
    )]
    Json(#[from] serde_json::Error),
    /// A digest that is none.
    #[error("files[{file}].survey.records[{record}].digest is not 64 hex digits")]
    Digest {
        /// From 0.
        file: usize,
        /// From 0.
        record: usize,
    },
}

impl Records {
    /// Those in the JSON that `casemate census snapshot` prints.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub fn parse(json: &[u8]) -> Result<Self, RecordsError> {
        #[derive(Deserialize)]
        struct Answer {
            files: Vec<File>,
        }
        #[derive(Deserialize)]
        struct File {
            survey: Survey,
        }
        #[derive(Deserialize)]
        struct Survey {
            records: Vec<Record>,
        }
        #[derive(Deserialize)]
        struct Record {
            digest: String,
        }
        let answer: Answer = serde_json::from_slice(json)?;
        let mut records = BTreeSet::new();
        for (file, one) in answer.files.iter().enumerate() {
            for (record, Record { digest }) in one.survey.records.iter().enumerate() {
                records.insert(parse_hex(digest).ok_or(RecordsError::Digest { file, record })?);
            }
        }
        Ok(Self(records))
    }

    /// Whether the record with this SHA-256 was seen.
    pub fn has(&self, annotation: &Digest) -> bool {
        self.0.contains(annotation)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse_hex(text: &str) -> Option<Digest> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_all_files_are_read_and_nothing_else() {
        let of = |digests: &[&str]| {
            let records: Vec<String> =
                digests.iter().map(|digest| format!(r#"{{"digest": "{digest}", "created": 1}}"#)).collect();
            let survey = format!(r#"{{"survey": {{"records": [{}], "live": 1}}}}"#, records.join(","));
            format!(r#"{{"files": [{survey}, {{"survey": {{"records": []}}}}], "failed": []}}"#)
        };
        let (one, other) = ("0f".repeat(32), "a0".repeat(32));
        let records = Records::parse(of(&[&one, &other]).as_bytes()).unwrap();
        assert_eq!((records.len(), records.has(&[0x0f; 32]), records.has(&[1; 32])), (2, true, false));
        for wrong in [&one[1..], "", &"g0".repeat(32), &"é".repeat(32)] {
            let error = Records::parse(of(&[&other, wrong]).as_bytes()).unwrap_err();
            assert!(error.to_string().contains("files[0].survey.records[1]"), "{error}");
        }
        assert!(Records::parse(b"{}").unwrap_err().to_string().contains("census snapshot"));
    }
}
