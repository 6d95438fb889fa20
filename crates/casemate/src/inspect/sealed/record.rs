//! Everything that a record says: all of it is public.
use casemate_keys::Record;
use jiff::Timestamp;
use serde::Serialize;

use super::super::finding::Rows;
use super::super::lineage::Explained;
use crate::kms::key_id_hash;

#[derive(Debug, Serialize)]
pub(in super::super) struct RecordFacts {
    bytes: usize,
    suite: u8,
    cluster_id: String,
    epoch: u64,
    /// Of its write policy.
    key_id: String,
    key_id_hash: String,
    roots: Vec<RootFacts>,
    recipients: Vec<RecipientFacts>,
    local_kek_id: String,
    /// RFC 3339; none if the number is no time.
    created: Option<String>,
    created_seconds: u64,
    age_seconds: Option<i64>,
    writer: String,
    signer: Option<String>,
    origin_signature_bytes: Option<usize>,
}

#[derive(Debug, Serialize)]
struct RootFacts {
    lineage: String,
    algorithm: String,
    #[serde(flatten)]
    explained: Explained,
    wrap_bytes: usize,
}

#[derive(Debug, Serialize)]
struct RecipientFacts {
    fingerprint: String,
    wrap_bytes: usize,
}

impl RecordFacts {
    pub(in super::super) fn new(record: &Record, bytes: usize, now: Timestamp) -> Self {
        let core = record.core();
        let policy = &core.policy;
        let key_id = policy.key_id();
        let created = i64::try_from(core.created).ok().and_then(|s| Timestamp::from_second(s).ok());
        Self {
            bytes,
            suite: policy.suite().number(),
            cluster_id: policy.cluster().to_string(),
            epoch: policy.epoch().0,
            key_id_hash: key_id_hash(key_id.as_str()),
            key_id: key_id.to_string(),
            roots: record
                .wraps()
                .map(|(root, wrap)| RootFacts {
                    lineage: root.lineage.to_string(),
                    algorithm: root.algorithm.to_string(),
                    explained: Explained::new(&root.lineage),
                    wrap_bytes: wrap.len(),
                })
                .collect(),
            recipients: record
                .recovery_wraps()
                .map(|(fingerprint, wrap)| RecipientFacts {
                    fingerprint: fingerprint.to_string(),
                    wrap_bytes: wrap.len(),
                })
                .collect(),
            local_kek_id: core.kek_id.to_string(),
            created: created.map(|created| created.to_string()),
            created_seconds: core.created,
            age_seconds: created.map(|created| now.as_second().saturating_sub(created.as_second())),
            writer: core.writer.to_string(),
            signer: policy.signer().map(ToString::to_string),
            origin_signature_bytes: record.origin_signature().map(<[u8]>::len),
        }
    }

    pub(in super::super) fn rows(&self, rows: &mut Rows) {
        rows.add("record", format!("{} bytes, suite {}", self.bytes, self.suite));
        rows.add("record's key id", &self.key_id);
        rows.add("cluster", &self.cluster_id);
        rows.add("epoch", self.epoch.to_string());
        for RootFacts { lineage, algorithm, explained, wrap_bytes } in &self.roots {
            rows.add("root key", format!("{lineage}: {}", explained.words));
            rows.add("  wrap", format!("{wrap_bytes} bytes, {algorithm}"));
        }
        for RecipientFacts { fingerprint, wrap_bytes } in &self.recipients {
            rows.add("recovery recipient", fingerprint);
            rows.add("  wrap", format!("{wrap_bytes} bytes"));
        }
        rows.add("local KEK", &self.local_kek_id);
        let created = match (&self.created, self.age_seconds) {
            (Some(created), Some(age)) => format!("{created}, {}", in_words(age)),
            _ => format!("{} seconds since 1970, which is no time", self.created_seconds),
        };
        rows.add("created", created);
        rows.add("writer", &self.writer);
        rows.add_some("signer", self.signer.as_ref());
        let signature = self.origin_signature_bytes.map(|bytes| format!("{bytes} bytes, not verified here"));
        rows.add_some("  signature", signature.as_ref());
    }
}

/// How long ago, in its largest unit.
fn in_words(age: i64) -> String {
    let (number, unit) = match age.unsigned_abs() {
        seconds @ 0..60 => (seconds, "second"),
        seconds @ 60..3600 => (seconds / 60, "minute"),
        seconds @ 3600..86_400 => (seconds / 3600, "hour"),
        seconds => (seconds / 86_400, "day"),
    };
    let plural = if number == 1 { "" } else { "s" };
    match age {
        0.. => format!("{number} {unit}{plural} ago"),
        _ => format!("{number} {unit}{plural} from now: a clock is wrong"),
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn ages() {
        for (age, words) in [
            (0, "0 seconds ago"),
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (60, "1 minute ago"),
            (7200, "2 hours ago"),
            (86_400, "1 day ago"),
            (-90, "1 minute from now: a clock is wrong"),
        ] {
            assert_eq!(in_words(age), words);
        }
        assert!(in_words(i64::MIN).contains("days from now"));
    }
}
