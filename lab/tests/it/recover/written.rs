//! What the lab wrote, by its SHA-256.

use std::collections::BTreeMap;
use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_keys::names::sha256;
use casemate_lab::Apiserver;
use serde_json::{Value, json};

/// Objects by resource and name; of each the SHA-256 of what it holds, by its name in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written(BTreeMap<(String, String), Holds>);

type Holds = BTreeMap<String, [u8; 32]>;

/// Text that readers of YAML like to take for something else.
const TRICKY: &str = "yes\n- on: 1e3\n  \"quoted\": 'too' # \\ \t\u{85}\u{2028}\u{feff}\u{1F512}~ end ";

impl Written {
    /// Makes the kind of which `thing` is.
    pub(super) fn define_things(server: &Apiserver) {
        let definition = br#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.recover.example"}, "spec": {"group": "recover.example", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"}, "versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;
        server.kubectl_with_input(&["create", "-f", "-"], definition).unwrap();
        let established =
            ["wait", "--for=condition=Established", "--timeout=60s", "crd/things.recover.example"];
        server.kubectl(&established).unwrap();
    }

    /// Writes a Secret, a ConfigMap and a thing of this name.
    pub(super) fn write(&mut self, server: &Apiserver, name: &str) {
        // Every byte, and bytes that no other object has.
        let bytes: Vec<u8> =
            (0..=255).chain(sha256(name.as_bytes())).chain((0..60_u8).map(|byte| byte ^ 0x5a)).collect();
        let tricky = format!("{name} {TRICKY}");
        let named = json!({"name": name, "labels": {"on": "yes", "number": "1e3"}});
        let objects = [
            json!({"apiVersion": "v1", "kind": "Secret", "type": "example/kind", "metadata": named, "data":
                {"bytes": STANDARD.encode(&bytes), "tricky": STANDARD.encode(&tricky), "empty": ""}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": true,
                "data": {"tricky": tricky, "empty": ""}, "binaryData": {"bytes": STANDARD.encode(&bytes)}}),
            json!({"apiVersion": "recover.example/v1", "kind": "Thing", "metadata": named,
                "data": {"tricky": tricky, "number": 1.5, "list": [null, true, {}]}}),
        ];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        server.kubectl_with_input(&["create", "-f", "-"], list.to_string().as_bytes()).unwrap();
        for object in &objects {
            self.note(object);
        }
    }

    fn note(&mut self, object: &Value) {
        let (resource, is_secret) = match object["kind"].as_str().unwrap() {
            "Secret" => ("secrets", true),
            "ConfigMap" => ("configmaps", false),
            _ => ("things.recover.example", false),
        };
        let mut holds = BTreeMap::new();
        for (field, is_encoded) in [("data", is_secret), ("binaryData", true)] {
            for (name, value) in object[field].as_object().into_iter().flatten() {
                let bytes = match value.as_str() {
                    Some(text) if is_encoded => STANDARD.decode(text).unwrap(),
                    Some(text) => text.as_bytes().to_vec(),
                    None => value.to_string().into_bytes(),
                };
                holds.insert(format!("{field}.{name}"), sha256(&bytes));
            }
        }
        for field in ["type", "immutable"] {
            if !object[field].is_null() {
                holds.insert(field.to_owned(), sha256(object[field].to_string().as_bytes()));
            }
        }
        holds.insert("labels".to_owned(), sha256(object["metadata"]["labels"].to_string().as_bytes()));
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.0.insert((resource.to_owned(), name), holds);
    }

    /// For one that was deleted.
    pub(super) fn forget(&mut self, resource: &str, name: &str) {
        self.0.remove(&(resource.to_owned(), name.to_owned())).unwrap();
    }

    /// How many objects.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those whose name is so.
    pub(super) fn only(&self, is: impl Fn(&str) -> bool) -> Self {
        Self(self.0.clone().into_iter().filter(|((_, name), _)| is(name)).collect())
    }

    /// What manifests in `folder` say of the objects in `default`, as kubectl reads them. Nothing else is there.
    pub(super) fn read(folder: &Path, server: &Apiserver) -> Self {
        let mut read = Self::default();
        for file in super::files(folder) {
            let Some(object) = file.strip_prefix("default/") else { continue };
            let (resource, _) = object.split_once('/').unwrap();
            if !["secrets", "configmaps", "things.recover.example"].contains(&resource) {
                continue;
            }
            let path = folder.join(&file);
            let args = ["create", "--dry-run=client", "--output=json", "-f", super::text(&path)];
            let object: Value = serde_json::from_str(&server.kubectl(&args).unwrap()).unwrap();
            if object["metadata"]["name"] != "kube-root-ca.crt" {
                read.note(&object);
            }
        }
        read
    }

    /// What an API server serves of the same objects.
    pub(super) fn served(&self, server: &Apiserver) -> Self {
        let mut read = Self::default();
        for (resource, name) in self.0.keys() {
            let args = ["get", resource, name, "--output=json"];
            read.note(&serde_json::from_str(&server.kubectl(&args).unwrap()).unwrap());
        }
        read
    }
}
