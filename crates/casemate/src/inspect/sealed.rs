//! DEK sources as KMS v2 plugins encrypt them: in etcd, in a reply, and the parts of ours alone.
use std::collections::BTreeMap;

use casemate_census::classify::{Casemate, RecordFault, suite_of};
use casemate_keys::names::sha256;
use casemate_keys::{CIPHERTEXT_OVERHEAD, RECORD_ANNOTATION, Record, Suite};
use casemate_wire::kms_v2::stored::{self, EncryptedDekSourceType, StoredError, StoredValue};
use casemate_wire::kms_v2::{EncryptResponse, limits};
use jiff::Timestamp;
use prost::bytes::Bytes;
use serde::Serialize;

use super::etcd::{LINE_BREAK, at};
use super::finding::{Finding, Problem, Rows, Thing, shown};
use super::lineage::alternative;
use crate::kms::key_id_hash;
use crate::kms::reply::ReplyError;

mod record;

pub(super) use record::RecordFacts;

/// A value of etcd that a KMS v2 provider wrote.
#[derive(Debug, Serialize)]
pub(super) struct KmsV2 {
    provider: Option<String>,
    object: Option<Object>,
}

#[derive(Debug, Serialize)]
struct Object {
    #[serde(flatten)]
    reply: Reply,
    dek_source_type: &'static str,
    sizes: Sizes,
}

#[derive(Debug, Serialize)]
struct Sizes {
    value: usize,
    encrypted_data: usize,
    /// The object in the clear.
    object: Option<usize>,
    /// What encryption adds.
    overhead: Option<usize>,
}

/// What a plugin answered to Encrypt.
#[derive(Debug, Serialize)]
pub(super) struct Reply {
    key_id: String,
    key_id_hash: String,
    encrypted_dek_source: Digested,
    annotations: Vec<Annotation>,
    /// Of the annotation, if it is ours and whole.
    record: Option<RecordFacts>,
    /// Whether the key id is that of the record's write policy.
    key_id_is_the_records: Option<bool>,
    /// Whether the ciphertext has the length and the suite that the record asks for. Only its key can tell more.
    ciphertext_can_be_the_records: Option<bool>,
}

/// Bytes that are told apart, not shown.
#[derive(Debug, Serialize)]
struct Digested {
    bytes: usize,
    sha256: String,
}

#[derive(Debug, Serialize)]
struct Annotation {
    name: String,
    bytes: usize,
}

/// A ciphertext of ours without its record.
#[derive(Debug, Serialize)]
pub(super) struct Ciphertext {
    suite: u8,
    dek_source_bytes: usize,
    sha256: String,
}

/// A value with the prefix of KMS v2.
pub(super) fn kms_v2(bytes: &[u8], now: Timestamp) -> Finding {
    match stored::parse(bytes) {
        Ok(value) => whole_value(&value, bytes.len(), now),
        Err(error) => match bytes.strip_suffix(b"\n").map(|bytes| (bytes, stored::parse(bytes))) {
            Some((bytes, Ok(value))) => whole_value(&value, bytes.len(), now).note(LINE_BREAK),
            _ => broken_value(bytes, &error),
        },
    }
}

/// What the file `record` of a state directory has behind its record.
const TAG_LEN: usize = 32;
const TAG: &str = "the last 32 bytes are the tag by which casemate-kms tells that the file was not changed: no secret, and \
    not verified here";

const KMS_V2: &str = "a value of etcd, encrypted by a KMS v2 provider";

fn whole_value(value: &StoredValue<'_>, length: usize, now: Timestamp) -> Finding {
    let StoredValue { provider, object } = value;
    let examined =
        examine(&object.key_id, &object.encrypted_dek_source, &object.annotations, Some(provider), now);
    let title = match &examined.reply.record {
        Some(_) => format!("{KMS_V2}: casemate-kms"),
        None => KMS_V2.to_owned(),
    };
    let size = value.plaintext_len();
    let facts = KmsV2 {
        provider: Some(shown(provider)),
        object: Some(Object {
            reply: examined.reply,
            dek_source_type: match EncryptedDekSourceType::try_from(object.encrypted_dek_source_type) {
                Ok(EncryptedDekSourceType::AesGcmKey) => "aes_gcm_key",
                Ok(EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed) => "hkdf_sha256_xnonce_aes_gcm_seed",
                Err(_) => "unknown",
            },
            sizes: Sizes {
                value: length,
                encrypted_data: object.encrypted_data.len(),
                object: size,
                overhead: size.and_then(|size| length.checked_sub(size)),
            },
        }),
    };
    let mut finding = Finding::new(Thing::EtcdKmsV2(facts), title).read_with(examined.to_read);
    for fault in value.faults() {
        finding = finding.problem("kube-apiserver refuses it", fault.to_string());
    }
    finding.problems.extend(examined.problems);
    finding
}

fn broken_value(bytes: &[u8], error: &StoredError) -> Finding {
    let name = bytes[stored::PREFIX.len()..].split(|byte| *byte == b':').next();
    let known = !matches!(error, StoredError::Provider);
    let provider = name.filter(|_| known).and_then(|name| std::str::from_utf8(name).ok()).map(shown);
    Finding::new(Thing::EtcdKmsV2(KmsV2 { provider, object: None }), KMS_V2)
        .problem(at(error.at()), error.to_string())
        .read_with("nothing: it was cut off or changed; restore the object from a backup")
}

/// What `casemate kms encrypt` wrote.
pub(super) fn reply(parsed: Result<EncryptResponse, ReplyError>, now: Timestamp) -> Finding {
    let title = "a reply to Encrypt, as `casemate kms encrypt` writes it";
    let reply = match parsed {
        Ok(reply) => reply,
        Err(error) => {
            // Their own words may quote what they found.
            let (place, what) = match error {
                ReplyError::Base64 { field, .. } => (shown(&field), "is not base64".to_owned()),
                ReplyError::Json(error) => (
                    format!("line {}, column {}", error.line(), error.column()),
                    "is not the JSON of a reply: {\"key_id\", \"ciphertext\", \"annotations\"}".to_owned(),
                ),
            };
            return Finding::new(Thing::EncryptReply(None), title).problem(place, what);
        }
    };
    let examined = examine(&reply.key_id, &reply.ciphertext, &reply.annotations, None, now);
    let mut finding =
        Finding::new(Thing::EncryptReply(Some(examined.reply)), title).read_with(examined.to_read);
    if let Err(violation) = limits::check_encrypt_response(&reply) {
        finding = finding.problem("kube-apiserver refuses it", violation.to_string());
    }
    finding.problems.extend(examined.problems);
    finding
}

/// A record or a ciphertext without anything around it, told by its form.
pub(super) fn recognise(bytes: &[u8], now: Timestamp) -> Option<Finding> {
    let cut = bytes.strip_suffix(b"\n");
    if let Some(suite) = suite_of(bytes) {
        return Some(ciphertext(bytes, suite));
    }
    if let Some((cut, suite)) = cut.and_then(|cut| Some((cut, suite_of(cut)?))) {
        return Some(ciphertext(cut, suite).note(LINE_BREAK));
    }
    let title =
        "a record of casemate-kms: what an annotation, or the file `record` of a state directory, holds";
    let whole = |record: &Record, length: usize| {
        let facts = RecordFacts::new(record, length, now);
        Finding::new(Thing::Record(Some(facts)), title)
            .read_with(format!("for objects that were encrypted under it: {}", any_one_of(record)))
    };
    if let Some((cut, _)) = bytes.split_last_chunk::<TAG_LEN>()
        && let Ok(record) = Record::decode(cut)
    {
        return Some(whole(&record, cut.len()).note(TAG));
    }
    match (Record::decode(bytes), cut.map(|cut| (cut, Record::decode(cut)))) {
        (Ok(record), _) => Some(whole(&record, bytes.len())),
        (_, Some((cut, Ok(record)))) => Some(whole(&record, cut.len()).note(LINE_BREAK)),
        (Err(error), _) if begins_as_a_record(bytes) => {
            Some(Finding::new(Thing::Record(None), title).problem("record", error.to_string()).read_with(
                "nothing: casemate-kms refuses it; restore the objects that carry it from a backup",
            ))
        }
        _ => None,
    }
}

fn ciphertext(bytes: &[u8], suite: Suite) -> Finding {
    let facts = Ciphertext {
        suite: suite.number(),
        dek_source_bytes: bytes.len() - CIPHERTEXT_OVERHEAD,
        sha256: hex::encode(sha256(bytes)),
    };
    Finding::new(Thing::Ciphertext(facts), "by its length and first byte, a ciphertext of casemate-kms")
        .note("which key it needs stands in its record only, the annotation beside it: it can't be told from here")
        .read_with(format!(
            "the record that was stored with it; `casemate inspect` of the record, or of the whole value, says which \
             key. {RECORD_ANNOTATION} is the annotation"
        ))
}

/// Field 1, a core, which begins with a suite and a cluster id.
fn begins_as_a_record(bytes: &[u8]) -> bool {
    let core = match bytes {
        [0x0a, low, high, core @ ..] if low & 0x80 != 0 && high & 0x80 == 0 => core,
        [0x0a, low, core @ ..] if low & 0x80 == 0 => core,
        _ => return false,
    };
    matches!(core, [0x08, 1..=0x7f, 0x12, 1..=63, ..])
}

/// What is known of a sealed DEK source, whoever sealed it.
struct Examined {
    reply: Reply,
    problems: Vec<Problem>,
    to_read: String,
}

fn examine(
    key_id: &str,
    ciphertext: &[u8],
    annotations: &BTreeMap<String, Bytes>,
    provider: Option<&str>,
    now: Timestamp,
) -> Examined {
    let mut examined = Examined {
        reply: Reply {
            key_id: shown(key_id),
            key_id_hash: key_id_hash(key_id),
            encrypted_dek_source: Digested {
                bytes: ciphertext.len(),
                sha256: hex::encode(sha256(ciphertext)),
            },
            annotations: annotations
                .iter()
                .map(|(name, value)| Annotation { name: shown(name), bytes: value.len() })
                .collect(),
            record: None,
            key_id_is_the_records: None,
            ciphertext_can_be_the_records: None,
        },
        problems: Vec::new(),
        to_read: match provider {
            Some(provider) => format!(
                "the KMS v2 plugin that the EncryptionConfiguration names {}, with what it calls key {}",
                shown(provider),
                shown(key_id)
            ),
            None => format!("the plugin that wrote it, with what it calls key {}", shown(key_id)),
        },
    };
    if let Some(casemate) = Casemate::read(key_id, ciphertext, annotations) {
        examined.ours(&casemate, now);
    }
    examined
}

impl Examined {
    fn ours(&mut self, Casemate { record, bytes, faults, .. }: &Casemate, now: Timestamp) {
        let (mut belongs, mut fits) = (true, true);
        for fault in faults {
            match fault {
                RecordFault::Record(error) => {
                    self.to_read =
                        "nothing: casemate-kms refuses its record; restore the object from a backup"
                            .to_owned();
                    self.problem(format!("annotation {RECORD_ANNOTATION}"), error.to_string());
                }
                RecordFault::KeyId { derived } => {
                    belongs = false;
                    self.problem("keyID", format!("it is not that of the record's write policy, {derived}"));
                }
                RecordFault::Ciphertext(refusal) => {
                    fits = false;
                    self.problem("encryptedDEKSource", refusal.to_string());
                }
                RecordFault::Others { count } => {
                    let what = format!("{count} beside {RECORD_ANNOTATION}: casemate-kms refuses that");
                    self.problem("annotations", what);
                }
                other => self.problem("annotations", other.to_string()),
            }
        }
        let Some(record) = record else { return };
        self.to_read = match belongs && fits {
            true => any_one_of(record),
            false => format!(
                "nothing as it stands: casemate-kms refuses it, restore the object from a backup. Its record names {}",
                any_one_of(record)
            ),
        };
        self.reply.record = Some(RecordFacts::new(record, *bytes, now));
        self.reply.key_id_is_the_records = Some(belongs);
        self.reply.ciphertext_can_be_the_records = Some(fits);
    }

    fn problem(&mut self, place: impl Into<String>, what: String) {
        self.problems.push(Problem { place: place.into(), what });
    }
}

/// The keys of a record, each of which alone opens it.
fn any_one_of(record: &Record) -> String {
    let policy = &record.core().policy;
    let roots = policy.roots().iter().map(|root| alternative(root, policy.signer()));
    let recipients = policy
        .recipients()
        .iter()
        .map(|fingerprint| format!("the recovery identity with fingerprint {fingerprint}"));
    let all: Vec<String> = roots.chain(recipients).collect();
    let cluster = policy.cluster();
    match &all[..] {
        [only] => format!("{only}, in cluster {cluster}"),
        all => format!("any one of, in cluster {cluster}: {}", all.join("; ")),
    }
}

impl KmsV2 {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add_some("provider", self.provider.as_ref());
        let Some(object) = &self.object else { return };
        object.reply.rows(rows);
        rows.add(
            "DEK source is",
            match object.dek_source_type {
                "aes_gcm_key" => "an AES key, as of Kubernetes 1.27 and 1.28 (AES_GCM_KEY)",
                "unknown" => "of an unknown type",
                _ => "a seed (HKDF_SHA256_XNONCE_AES_GCM_SEED)",
            },
        );
        let Sizes { value, encrypted_data, object, overhead } = object.sizes;
        let known = match (object, overhead) {
            (Some(object), Some(overhead)) => format!("; object {object}, encryption adds {overhead}"),
            _ => String::new(),
        };
        rows.add("sizes in bytes", format!("value {value}, encryptedData {encrypted_data}{known}"));
    }
}

impl Reply {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add("key id", &self.key_id);
        rows.add("key id hash", &self.key_id_hash);
        let Digested { bytes, sha256 } = &self.encrypted_dek_source;
        rows.add("encrypted DEK source", format!("{bytes} bytes, sha256:{sha256}"));
        for Annotation { name, bytes } in &self.annotations {
            rows.add("annotation", format!("{name}, {bytes} bytes"));
        }
        let Some(record) = &self.record else { return };
        record.rows(rows);
        let yes_no = |is: Option<bool>| if is == Some(true) { "yes" } else { "NO" };
        rows.add("key id is the record's", yes_no(self.key_id_is_the_records));
        rows.add("ciphertext can be the record's", yes_no(self.ciphertext_can_be_the_records));
    }
}

impl Ciphertext {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add("suite", self.suite.to_string());
        rows.add("DEK source", format!("{} bytes", self.dek_source_bytes));
        rows.add("digest", format!("sha256:{}", self.sha256));
    }
}
