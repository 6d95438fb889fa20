//! A root key's name in words.
use casemate_keys::{Lineage, Root};
use percent_encoding::percent_decode_str;
use serde::Serialize;

/// What a lineage says, read as its kind of key service writes it.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    /// Kind of key service.
    kind: String,
    /// Which key there.
    key: String,
    /// Which version of it.
    version: Option<String>,
    /// Both, as one says it.
    #[serde(skip)]
    pub(super) words: String,
    /// What makes a plugin able to use it.
    #[serde(skip)]
    pub(super) how: &'static str,
}

impl Explained {
    pub(super) fn new(lineage: &Lineage) -> Self {
        let fields: Vec<String> = lineage
            .fields()
            .map(|field| percent_decode_str(field).decode_utf8_lossy().into_owned())
            .collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let configured = "list the key under rootKeys or readKeys of casemate-kms";
        let (key, version, words, how) = match (lineage.kind(), &fields[..]) {
            ("file", [id, version, _check]) => (
                (*id).to_owned(),
                Some(*version),
                format!("version {version} of file key {id}"),
                "deliver its key file, and list the key under rootKeys or readKeys of casemate-kms",
            ),
            ("transit", [namespace, mount, name, version, _created]) => {
                let key = if namespace.is_empty() {
                    format!("{mount}/{name}")
                } else {
                    format!("{namespace}/{mount}/{name}")
                };
                let words = format!("version {version} of Transit key {key}");
                (key, Some(*version), words, configured)
            }
            ("aws", [arn, material]) => {
                let words = format!("key material {material} of AWS KMS key {arn}");
                ((*arn).to_owned(), Some(*material), words, configured)
            }
            ("pkcs11", [id]) => ((*id).to_owned(), None, format!("PKCS#11 key with CKA_ID {id}"), configured),
            ("azure", [url]) => ((*url).to_owned(), None, format!("Azure key version {url}"), configured),
            ("google", [name]) => {
                ((*name).to_owned(), None, format!("Google Cloud KMS key version {name}"), configured)
            }
            ("tpm", [id]) => ((*id).to_owned(), None, format!("TPM-sealed shared key {id}"), configured),
            (kind, fields) => {
                let key = fields.join("/");
                let words = format!("key {key} of key service {kind}");
                (key, None, words, configured)
            }
        };
        let (kind, version) = (lineage.kind().to_owned(), version.map(str::to_owned));
        Self { kind, key, version, words, how }
    }
}

/// What one has to have to use `root`, as part of a list of alternatives.
pub(super) fn alternative(root: &Root, signer: Option<&Lineage>) -> String {
    let Explained { words, how, .. } = Explained::new(&root.lineage);
    match (root.algorithm.is_asymmetric(), signer) {
        (false, _) => format!("{words} ({how})"),
        (true, Some(signer)) => format!("{words} ({how}, and pin its signer {signer})"),
        (true, None) => format!(
            "{words} ({how}; the record is not signed, so it is refused unless unproven origins are accepted)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_in_words() {
        let cases = [
            ("file:4f/2/9a", "version 2 of file key 4f"),
            ("transit:/ops%2Ftransit/k8s%20key/3/1764500000", "version 3 of Transit key ops/transit/k8s key"),
            ("transit:eu/transit/k8s/3/1764500000", "version 3 of Transit key eu/transit/k8s"),
            ("pkcs11:00ff", "PKCS#11 key with CKA_ID 00ff"),
            ("aws:arn%3Aaws%3Akms/ab", "key material ab of AWS KMS key arn:aws:kms"),
            ("azure:https%3A%2F%2Fv%2Fk%2F1", "Azure key version https://v/k/1"),
            ("google:projects%2Fp", "Google Cloud KMS key version projects/p"),
            ("tpm:a", "TPM-sealed shared key a"),
            ("exec:a/1", "key a/1 of key service exec"),
            ("file:4f", "key 4f of key service file"),
        ];
        for (lineage, words) in cases {
            assert_eq!(Explained::new(&lineage.parse().unwrap()).words, words);
        }
    }
}
