//! What an object is, and how it is told outside of etcd.
//!
//! Kubernetes' own kinds are protobuf: `k8s\0`, then `runtime.Unknown` with the kind and its message. Secrets and ConfigMaps
//! are read here and told as YAML. Their messages are written down below, as far as they are told: they have been the same
//! since Kubernetes 1.0, and a library of all kinds is hundreds of times as much. Where one has fields of a later version, it
//! is told as it was stored, too. Everything else is told as it was stored.
mod fields;
mod messages;
mod yaml;

use prost::Message;
use serde::Deserialize;
use zeroize::Zeroizing;

/// With what kube-apiserver's protobuf begins.
const PROTOBUF: &[u8] = b"k8s\0";
/// Tag 55799 of RFC 8949, by which CBOR describes itself.
const CBOR: &[u8] = &[0xd9, 0xd9, 0xf7];

/// What an object says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Protobuf of this kind.
    Protobuf {
        /// As in `v1` or `apps/v1`.
        api_version: String,
        /// As in `Secret`.
        kind: String,
    },
    /// CBOR that says so, as custom resources are behind the feature gate `CBORServingAndStorage`.
    Cbor,
    /// JSON with a kind, as custom resources are.
    Json,
    /// Something else.
    Other,
}

impl Shape {
    /// Of the bytes that kube-apiserver stores where it does not encrypt.
    pub fn of(object: &[u8]) -> Self {
        if let Some(message) = object.strip_prefix(PROTOBUF) {
            let known = messages::Unknown::decode(message).ok().and_then(|unknown| unknown.type_meta);
            return match known {
                Some(meta) if !meta.kind().is_empty() => Self::Protobuf {
                    api_version: meta.api_version().to_owned(),
                    kind: meta.kind().to_owned(),
                },
                _ => Self::Other,
            };
        }
        if object.starts_with(CBOR) {
            return Self::Cbor;
        }
        /// Of all that JSON holds.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind {
            kind: String,
            api_version: String,
        }
        let is_object = object.trim_ascii_start().starts_with(b"{");
        match serde_json::from_slice::<Kind>(object) {
            Ok(Kind { kind, api_version }) if is_object && !kind.is_empty() && !api_version.is_empty() => {
                Self::Json
            }
            _ => Self::Other,
        }
    }
}

/// An object in a form that people and kubectl read.
pub struct Manifest {
    /// What the name of its file ends with: `yaml`, `json`, `pb`, `cbor` or `bin`.
    pub extension: &'static str,
    /// The file.
    pub bytes: Zeroizing<Vec<u8>>,
    /// The object as it was stored (`pb`), if it has fields that the file does not tell.
    pub stored: Option<Zeroizing<Vec<u8>>>,
}

impl Manifest {
    /// Secrets and ConfigMaps become YAML, without `managedFields`; JSON and other protobuf stay as they were stored.
    pub fn of(object: Zeroizing<Vec<u8>>) -> Self {
        let extension = match Shape::of(&object) {
            Shape::Protobuf { api_version, kind } => {
                if let Some((bytes, is_all)) = yaml_of(&api_version, &kind, &object) {
                    let stored = (!is_all).then_some(object);
                    return Self { extension: "yaml", bytes, stored };
                }
                "pb"
            }
            Shape::Cbor => "cbor",
            Shape::Json => "json",
            Shape::Other => "bin",
        };
        Self { extension, bytes: object, stored: None }
    }
}

/// And whether it tells all. `None` if it is of another kind, or no message of its kind.
fn yaml_of(api_version: &str, kind: &str, object: &[u8]) -> Option<(Zeroizing<Vec<u8>>, bool)> {
    if api_version != "v1" {
        return None;
    }
    let message = object.strip_prefix(PROTOBUF)?;
    let unknown = messages::Unknown::decode(message).ok()?;
    let is_all =
        |fields: fields::Fields, raw: &[u8]| fields::UNKNOWN.are_all_of(message) && fields.are_all_of(raw);
    // Compressed or in another form: kube-apiserver stores none such.
    if !unknown.content_encoding().is_empty() {
        return None;
    }
    let raw = unknown.raw();
    match kind {
        "ConfigMap" => {
            let map = messages::ConfigMap::decode(raw).ok()?;
            Some((yaml::config_map(&map), is_all(fields::CONFIG_MAP, raw)))
        }
        "Secret" => {
            let secret = messages::Secret::decode(raw).ok()?;
            Some((yaml::secret(&secret), is_all(fields::SECRET, raw)))
        }
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests;
