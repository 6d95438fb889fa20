//! Files of text: key files, replies as JSON, age, PEM, and what looks secret.
use casemate_keyservice::file::text as key_file_text;
use casemate_keyservice::file::{KeyFileError, Keyring};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::{Deserialize, IgnoredAny};

use super::finding::{Finding, Rows, Thing, shown};
use super::{etcd, sealed};
use crate::kms::reply;

/// A key file: never a secret of it.
#[derive(Debug, Serialize)]
pub(super) struct KeyFileFacts {
    id: String,
    comment: Option<String>,
    active: u32,
    versions: Vec<VersionFacts>,
}

#[derive(Debug, Serialize)]
struct VersionFacts {
    version: u32,
    state: Option<String>,
    staged: String,
    activated: Option<String>,
    retired: Option<String>,
    lineage: Option<String>,
}

/// What stands in the first line of PEM.
#[derive(Debug, Serialize)]
pub(super) struct Label {
    label: String,
}

/// `None` if `bytes` are no text, or text of no known form.
pub(super) fn recognise(bytes: &[u8], now: Timestamp) -> Option<Finding> {
    // Before all else: what is secret is told to be so even if the rest is damaged.
    let has = |mark: &str| bytes.windows(mark.len()).any(|window| window == mark.as_bytes());
    if has("\napiVersion: casemate.dev/file-key/") || bytes.starts_with(b"# A root key of Casemate") {
        return Some(key_file(bytes));
    }
    if bytes.starts_with(b"age-encryption.org/v1\n")
        || bytes.starts_with(b"-----BEGIN AGE ENCRYPTED FILE-----")
    {
        return Some(age_file());
    }
    if let Some(what) = SECRETS.iter().find_map(|(mark, what)| has(mark).then_some(*what)) {
        return Some(secret(what));
    }
    if let Some(label) = pem_label(bytes) {
        let title = format!("PEM: {label}");
        return Some(
            Finding::new(Thing::Pem(Label { label }), title).note("it says that it is no private key"),
        );
    }
    if bytes.trim_ascii_start().starts_with(b"{") { json(bytes, now) } else { None }
}

/// Marks of what must not be shown, and what they are marks of.
const SECRETS: [(&str, &str); 6] = [
    ("AGE-SECRET-KEY-", "an age identity, such as one for recovery: a private key"),
    ("PRIVATE KEY-----", "a private key in PEM"),
    ("client-key-data:", "a kubeconfig with a private key"),
    ("kind: EncryptionConfiguration", "an EncryptionConfiguration of kube-apiserver, which can hold keys"),
    ("kind: Secret\n", "a Secret of Kubernetes in the clear, as YAML"),
    ("OPENSSH PRIVATE", "a private key of SSH"),
];

fn secret(what: &str) -> Finding {
    Finding::new(Thing::Secret, what)
        .note("SECRET: nothing of it is shown here. Keep it where only its owner can read it, and out of terminals and logs")
}

fn age_file() -> Finding {
    Finding::new(Thing::AgeFile, "an encrypted age file: a recovery wrap of a record is one, in binary form")
        .read_with("the identity of one of the recipients that it was encrypted to; for a recovery wrap, its record tells \
            their fingerprints")
}

fn pem_label(bytes: &[u8]) -> Option<String> {
    let rest = bytes.trim_ascii_start().strip_prefix(b"-----BEGIN ")?;
    let end = rest.windows(5).position(|window| window == b"-----").filter(|end| (1..=64).contains(end))?;
    let label = std::str::from_utf8(&rest[..end]).ok()?;
    label.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == ' ').then(|| label.to_owned())
}

fn json(bytes: &[u8], now: Timestamp) -> Option<Finding> {
    /// Whether it means to be a reply.
    #[derive(serde::Deserialize)]
    struct Marks {
        key_id: Option<IgnoredAny>,
        ciphertext: Option<IgnoredAny>,
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match Marks::deserialize(&mut reader).and_then(|marks| reader.end().map(|()| marks)) {
        Ok(Marks { key_id: None, ciphertext: None }) => etcd::plain_json(bytes),
        Ok(_) => Some(sealed::reply(reply::parse(bytes), now)),
        Err(error) => {
            let has = |mark: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
            if has(b"\"key_id\"") {
                Some(sealed::reply(reply::parse(bytes), now))
            } else if has(b"\"apiVersion\"") || has(b"\"kind\"") {
                Some(etcd::broken_json(&error))
            } else {
                None
            }
        }
    }
}

fn key_file(bytes: &[u8]) -> Finding {
    let title = "a key file: a root key of casemate-kms, in all its versions. SECRET";
    let note = "its secrets are not shown. Keep it at mode 0600";
    match key_file_text::parse(bytes) {
        Ok(keyring) => Finding::new(Thing::KeyFile(Some(KeyFileFacts::new(&keyring))), title).note(note).read_with(
            "it is in the clear. It opens every value whose record names one of its lineages, save those of retired \
             versions",
        ),
        Err(error) => {
            let place = match &error {
                KeyFileError::Malformed { line, column } => format!("line {line}, column {column}"),
                KeyFileError::WrongSecret { number } => format!("version {number}"),
                KeyFileError::Empty | KeyFileError::Truncated => "the last line".to_owned(),
                _ => "the file".to_owned(),
            };
            let error = format!("{error}; casemate-kms uses nothing of it. Deliver an undamaged copy");
            Finding::new(Thing::KeyFile(None), title).note(note).problem(place, error)
        }
    }
}

impl KeyFileFacts {
    fn new(keyring: &Keyring) -> Self {
        let versions = keyring.versions().map(|(number, version)| VersionFacts {
            version: number,
            state: keyring.state(number).map(|state| state.to_string()),
            staged: version.staged_at().to_string(),
            activated: version.activated_at().map(|at| at.to_string()),
            retired: version.retired_at().map(|at| at.to_string()),
            lineage: keyring.lineage(number).map(|lineage| lineage.to_string()),
        });
        Self {
            id: keyring.id().to_string(),
            comment: keyring.comment().map(shown),
            active: keyring.active(),
            versions: versions.collect(),
        }
    }

    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add("id", &self.id);
        rows.add_some("comment", self.comment.as_ref());
        for VersionFacts { version, state, staged, activated, retired, lineage } in &self.versions {
            let state = state.as_deref().unwrap_or("unknown");
            let mut text = format!("{state}, staged {staged}");
            for (word, at) in [("activated", activated), ("retired", retired)] {
                if let Some(at) = at {
                    text += &format!(", {word} {at}");
                }
            }
            rows.add(format!("version {version}"), text);
            rows.add_some("  lineage", lineage.as_ref());
        }
    }
}

impl Label {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add("label", &self.label);
    }
}
