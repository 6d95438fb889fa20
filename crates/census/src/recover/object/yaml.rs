//! Secrets and ConfigMaps as YAML that every version of it reads alike: each text is quoted, whatever it looks like.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::messages::{ConfigMap, ObjectMeta, OwnerReference, Secret, Time};

pub(super) fn secret(secret: &Secret) -> Zeroizing<Vec<u8>> {
    let mut yaml = Yaml::new("Secret", secret.metadata.as_ref());
    yaml.map(0, "data", &secret.data, |bytes| STANDARD.encode(bytes));
    yaml.text(0, "type", secret.r#type.as_deref());
    yaml.plain(0, "immutable", secret.immutable);
    yaml.finish()
}

pub(super) fn config_map(map: &ConfigMap) -> Zeroizing<Vec<u8>> {
    let mut yaml = Yaml::new("ConfigMap", map.metadata.as_ref());
    yaml.map(0, "data", &map.data, String::clone);
    yaml.map(0, "binaryData", &map.binary_data, |bytes| STANDARD.encode(bytes));
    yaml.plain(0, "immutable", map.immutable);
    yaml.finish()
}

/// A document in block style. Writing to a `String` can't fail.
struct Yaml(Zeroizing<String>);

impl Yaml {
    fn new(kind: &str, metadata: Option<&ObjectMeta>) -> Self {
        let mut yaml = Self(Zeroizing::new(String::with_capacity(1024)));
        let _ = writeln!(yaml.0, "apiVersion: v1\nkind: {kind}");
        if let Some(metadata) = metadata {
            yaml.0.push_str("metadata:\n");
            yaml.metadata(metadata);
        }
        yaml
    }

    fn metadata(&mut self, metadata: &ObjectMeta) {
        let start = self.0.len();
        self.text(2, "name", metadata.name.as_deref());
        self.text(2, "generateName", metadata.generate_name.as_deref());
        self.text(2, "namespace", metadata.namespace.as_deref());
        self.text(2, "uid", metadata.uid.as_deref());
        self.plain(2, "generation", metadata.generation.filter(|generation| *generation != 0));
        self.time("creationTimestamp", metadata.creation_timestamp);
        self.time("deletionTimestamp", metadata.deletion_timestamp);
        self.plain(2, "deletionGracePeriodSeconds", metadata.deletion_grace_period_seconds);
        self.map(2, "labels", &metadata.labels, String::clone);
        self.map(2, "annotations", &metadata.annotations, String::clone);
        if !metadata.owner_references.is_empty() {
            self.0.push_str("  ownerReferences:\n");
        }
        for owner in &metadata.owner_references {
            self.owner(owner);
        }
        if !metadata.finalizers.is_empty() {
            self.0.push_str("  finalizers:\n");
        }
        for finalizer in &metadata.finalizers {
            self.0.push_str("  - ");
            self.quoted(finalizer);
            self.0.push('\n');
        }
        if self.0.len() == start {
            // A key without anything below it would be null.
            self.0.truncate(start - 1);
            self.0.push_str(" {}\n");
        }
    }

    fn owner(&mut self, owner: &OwnerReference) {
        self.0.push_str("  - kind: ");
        self.quoted(owner.kind());
        self.0.push('\n');
        self.text(4, "apiVersion", owner.api_version.as_deref());
        self.text(4, "name", owner.name.as_deref());
        self.text(4, "uid", owner.uid.as_deref());
        self.plain(4, "controller", owner.controller);
        self.plain(4, "blockOwnerDeletion", owner.block_owner_deletion);
    }

    /// A text that is there and not empty, as kube-apiserver leaves empty ones out of JSON.
    fn text(&mut self, indent: usize, name: &str, text: Option<&str>) {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return };
        let _ = write!(self.0, "{:indent$}{name}: ", "");
        self.quoted(text);
        self.0.push('\n');
    }

    /// A number or a truth value.
    fn plain(&mut self, indent: usize, name: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            let _ = writeln!(self.0, "{:indent$}{name}: {value}", "");
        }
    }

    fn map<V>(&mut self, indent: usize, name: &str, map: &BTreeMap<String, V>, text: impl Fn(&V) -> String) {
        if !map.is_empty() {
            let _ = writeln!(self.0, "{:indent$}{name}:", "");
        }
        for (key, value) in map {
            let _ = write!(self.0, "{:1$}", "", indent + 2);
            self.quoted(key);
            self.0.push_str(": ");
            self.quoted(&Zeroizing::new(text(value)));
            self.0.push('\n');
        }
    }

    /// RFC 3339 in UTC, as Kubernetes has it: to the second. What is no time of this calendar is left out.
    fn time(&mut self, name: &str, time: Option<Time>) {
        let Some(time) = time.filter(|time| *time != Time::default()) else { return };
        if let Ok(time) = Timestamp::from_second(time.seconds()) {
            let _ = writeln!(self.0, "  {name}: \"{time}\"");
        }
    }

    /// In double quotes, with an escape for all that some version of YAML folds, refuses or strips.
    fn quoted(&mut self, text: &str) {
        self.0.reserve(text.len() + 2);
        self.0.push('"');
        for character in text.chars() {
            match character {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                '\t' => self.0.push_str("\\t"),
                '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => self.escape(character),
                character if character.is_control() => self.escape(character),
                character => self.0.push(character),
            }
        }
        self.0.push('"');
    }

    /// All of these are below U+10000.
    fn escape(&mut self, character: char) {
        let _ = write!(self.0, "\\u{:04X}", u32::from(character));
    }

    fn finish(mut self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(std::mem::take(&mut *self.0).into_bytes())
    }
}
