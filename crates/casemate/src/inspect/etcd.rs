//! Values as they stand in etcd: in the clear, or encrypted by a provider of kube-apiserver.
use casemate_census::classify::Cipher;
use casemate_wire::kms_v2::stored;
use jiff::Timestamp;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Rows, Thing, shown};
use super::sealed;

const ENCRYPTED: &[u8] = b"k8s:enc:";
const PROTOBUF: &[u8] = b"k8s\0";

/// An object in the clear: its type, nothing of what it holds.
#[derive(Debug, Serialize)]
pub(super) struct Plain {
    api_version: Option<String>,
    object_kind: Option<String>,
}

/// Encrypted with a key that stands in the EncryptionConfiguration.
#[derive(Debug, Serialize)]
pub(super) struct LocalProvider {
    provider: &'static str,
    key_name: Option<String>,
    encrypted_bytes: Option<usize>,
}

/// Encrypted by a KMS v1 provider.
#[derive(Debug, Serialize)]
pub(super) struct KmsV1 {
    provider: Option<String>,
    encrypted_dek_bytes: Option<usize>,
    encrypted_bytes: Option<usize>,
}

/// `None` if the bytes don't begin as such a value does.
pub(super) fn recognise(bytes: &[u8], now: Timestamp) -> Option<Finding> {
    if bytes.starts_with(PROTOBUF) {
        return Some(plain_protobuf(&bytes[PROTOBUF.len()..]));
    }
    if !bytes.starts_with(ENCRYPTED) {
        return None;
    }
    if bytes.starts_with(stored::PREFIX.as_bytes()) {
        return Some(sealed::kms_v2(bytes, now));
    }
    if let Some(rest) = bytes.strip_prefix(b"k8s:enc:kms:v1:") {
        return Some(kms_v1(rest, bytes.len()));
    }
    for cipher in Cipher::ALL {
        if let Some(rest) = bytes.strip_prefix(cipher.mark()) {
            return Some(local_provider(cipher, rest, bytes.len()));
        }
    }
    let finding =
        Finding::new(Thing::EtcdOther, "an encrypted value of etcd, by a provider that is not known");
    let known = "after `k8s:enc:` stand `aescbc:v1:`, `aesgcm:v1:`, `secretbox:v1:`, `kms:v1:` or `kms:v2:`";
    Some(
        finding.problem(at(ENCRYPTED.len()), format!("it breaks here, or is of a later Kubernetes: {known}")),
    )
}

pub(super) fn at(byte: usize) -> String {
    format!("byte {byte}")
}

#[derive(Clone, PartialEq, Eq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// `runtime.Unknown` without its content, which the decoder steps over.
#[derive(Clone, PartialEq, Eq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
}

fn plain_protobuf(message: &[u8]) -> Finding {
    let named = |Envelope { type_meta }| {
        let TypeMeta { api_version, kind } = type_meta.unwrap_or_default();
        plain(Thing::PlainProtobuf, "protobuf", &api_version, &kind)
    };
    match (Envelope::decode(message), message.strip_suffix(b"\n").map(Envelope::decode)) {
        (Ok(envelope), _) => named(envelope),
        (_, Some(Ok(envelope))) => named(envelope).note(LINE_BREAK),
        (Err(error), _) => {
            let nothing = Plain { api_version: None, object_kind: None };
            Finding::new(Thing::PlainProtobuf(nothing), "an object of etcd in the clear, as protobuf")
                .problem("behind byte 4", format!("runtime.Unknown breaks: {error}"))
        }
    }
}

/// The two fields that every object has; the rest is stepped over.
#[derive(Deserialize)]
struct JsonType {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// An object as JSON, if `text` is one with a type.
pub(super) fn plain_json(text: &[u8]) -> Option<Finding> {
    match serde_json::from_slice(text) {
        Ok(JsonType { api_version: Some(api_version), kind: Some(kind) }) => {
            Some(plain(Thing::PlainJson, "JSON", &api_version, &kind))
        }
        _ => None,
    }
}

/// JSON that can't be read.
pub(super) fn broken_json(error: &serde_json::Error) -> Finding {
    let nothing = Plain { api_version: None, object_kind: None };
    // The library's own words may quote a value.
    let what = if error.is_eof() { "the text ends too early" } else { "this is no JSON of an object" };
    Finding::new(Thing::PlainJson(nothing), "an object as JSON, as custom resources are in etcd")
        .problem(format!("line {}, column {}", error.line(), error.column()), what)
}

fn plain(thing: fn(Plain) -> Thing, form: &str, api_version: &str, kind: &str) -> Finding {
    // Bytes of a value that slipped into the place of a name are not shown.
    let name = |text: &str, most: usize, more: &str| {
        let accepted = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        ((1..=most).contains(&text.len()) && text.chars().all(accepted)).then(|| text.to_owned())
    };
    let facts = Plain { api_version: name(api_version, 253, "./-"), object_kind: name(kind, 63, "") };
    let whole = facts.api_version.is_some() && facts.object_kind.is_some();
    let title = format!("an object in the clear, as {form}: nothing encrypts it");
    let finding =
        Finding::new(thing(facts), title).read_with("no key: who can read these bytes can read the object");
    match whole {
        true => finding,
        false => finding.problem("apiVersion, kind", "they are not names as Kubernetes has them"),
    }
}

fn local_provider(cipher: Cipher, rest: &[u8], whole: usize) -> Finding {
    let (provider, (least, unit)) = (cipher.as_str(), cipher.lengths());
    let title = format!("a value of etcd, encrypted by provider {provider} of kube-apiserver");
    let name = named(rest);
    let facts = |encrypted: Option<usize>| LocalProvider {
        provider,
        key_name: name.map(|(name, _)| shown(name)),
        encrypted_bytes: encrypted,
    };
    let Some((key, encrypted)) = name else {
        return Finding::new(Thing::EtcdLocal(facts(None)), title).problem(at(whole - rest.len()), NO_NAME);
    };
    // `etcdctl get --print-value-only` adds a line break, which the length alone tells here.
    let broken = unit > 1 && encrypted.len() % unit == 1 && encrypted.ends_with(b"\n");
    let length = encrypted.len() - usize::from(broken);
    let to_read = format!(
        "the key named {} under {provider} in the EncryptionConfiguration of kube-apiserver, and the object's path \
         in etcd",
        shown(key)
    );
    let finding = Finding::new(Thing::EtcdLocal(facts(Some(length))), title).read_with(to_read);
    let finding = match (broken, encrypted.ends_with(b"\n")) {
        (true, _) => finding.note(LINE_BREAK),
        (false, true) if unit == 1 => finding.note(
            "the last byte is a line break: if etcdctl printed this, it added it, and one byte is too many",
        ),
        _ => finding,
    };
    if length < least || length % unit != 0 {
        let form = if unit > 1 {
            format!("a multiple of {unit}, at least {least}")
        } else {
            format!("at least {least}")
        };
        return finding
            .problem(at(whole - encrypted.len()), format!("{length} bytes follow; {provider} makes {form}"));
    }
    finding
}

fn kms_v1(rest: &[u8], whole: usize) -> Finding {
    let title = "a value of etcd, encrypted by a KMS v1 provider (deprecated since Kubernetes 1.28)";
    let name = named(rest);
    let facts = |dek: Option<usize>, encrypted: Option<usize>| {
        let provider = name.map(|(name, _)| shown(name));
        Thing::EtcdKmsV1(KmsV1 { provider, encrypted_dek_bytes: dek, encrypted_bytes: encrypted })
    };
    let Some((provider, body)) = name else {
        return Finding::new(facts(None, None), title).problem(at(whole - rest.len()), NO_NAME);
    };
    let to_read =
        format!("the KMS v1 plugin that the EncryptionConfiguration names {}, with its key", shown(provider));
    let parts = body
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(usize::from(u16::from_be_bytes(*length))));
    match parts {
        Some((dek, encrypted)) if !dek.is_empty() && !encrypted.is_empty() => {
            Finding::new(facts(Some(dek.len()), Some(encrypted.len())), title).read_with(to_read)
        }
        _ => Finding::new(facts(None, None), title).read_with(to_read).problem(
            at(whole - body.len()),
            "here stand the length of the encrypted DEK in two bytes, the encrypted DEK and the object; they are cut \
             off",
        ),
    }
}

const NO_NAME: &str = "no name that ends with `:` stands here";
pub(super) const LINE_BREAK: &str =
    "a line break at the end was left out: etcdctl adds one to what it prints";

/// What stands before the first `:`, if it is text, and what follows.
fn named(rest: &[u8]) -> Option<(&str, &[u8])> {
    let end = rest.iter().position(|byte| *byte == b':').filter(|end| *end > 0)?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]))
}

impl Plain {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add_some("api version", self.api_version.as_ref());
        rows.add_some("object kind", self.object_kind.as_ref());
    }
}

impl LocalProvider {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add("provider", self.provider);
        rows.add_some("key name", self.key_name.as_ref());
        rows.add_some("encrypted bytes", self.encrypted_bytes.as_ref());
    }
}

impl KmsV1 {
    pub(super) fn rows(&self, rows: &mut Rows) {
        rows.add_some("provider", self.provider.as_ref());
        rows.add_some(
            "encrypted DEK",
            self.encrypted_dek_bytes.map(|bytes| format!("{bytes} bytes")).as_ref(),
        );
        rows.add_some("encrypted bytes", self.encrypted_bytes.as_ref());
    }
}
