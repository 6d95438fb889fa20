//! From a file to values, as strictly as kube-apiserver: fields that it does not know, or that stand twice, are errors.

mod fields;
mod json;
mod scalar;
mod tree;
mod yaml;

use std::time::Duration;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use zeroize::Zeroizing;

use crate::{
    EncryptionConfiguration, Endpoint, Entry, Fault, KeyBytes, KmsV1, KmsV2, LocalKey, Problem, Provider,
    Refused, ResourcePattern, ServerFlags,
};
use fields::{Decoder, Fields};
use tree::{Item, Node, Number};

/// As Go decodes it: padded, but with any bits where the last byte ends.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

impl EncryptionConfiguration {
    /// Reads the bytes of a file, YAML or JSON, as an API server that runs with `flags` does.
    pub fn read(file: &[u8], flags: ServerFlags) -> Result<Self, Refused> {
        let whole = |fault| Refused::new(vec![Problem::new("", fault)]);
        if file.is_empty() {
            return Err(whole(Fault::EmptyFile));
        }
        let text = str::from_utf8(file).map_err(|_| whole(Fault::NotUtf8))?;
        let is_json = text.trim_start().starts_with('{');
        let root = if is_json { json::parse(text) } else { yaml::parse(text) };
        let root = root.map_err(|(at, fault)| Refused::new(vec![Problem::at(at, "", fault)]))?;

        let mut decoder = Decoder::default();
        let config = decoder.configuration(&root);
        decoder.finish()?;
        config.check(flags).map_err(|refused| decoder.placed(refused))?;
        Ok(config)
    }
}

impl Decoder {
    fn configuration(&mut self, root: &Item) -> EncryptionConfiguration {
        let fields = self.fields(root, "", &["apiVersion", "kind", "resources"]);
        let api_version = self.text(&fields, "apiVersion");
        let kind = self.text(&fields, "kind");
        match (api_version.as_str(), kind.as_str()) {
            // The second is a mistake of old documentation that API servers still accept.
            ("apiserver.config.k8s.io/v1", "EncryptionConfiguration") | ("v1", "EncryptionConfig") => {}
            (api_version, kind) => {
                let [api_version, kind] = [api_version, kind].map(str::to_owned);
                self.found("apiVersion", Fault::Kind { api_version, kind });
            }
        }
        EncryptionConfiguration { entries: self.list(&fields, "resources", Self::entry) }
    }

    fn entry(&mut self, item: &Item, path: &str) -> Option<Entry> {
        let fields = self.fields(item, path, &["resources", "providers"]);
        Some(Entry {
            resources: self.list(&fields, "resources", Self::pattern),
            providers: self.list(&fields, "providers", Self::provider),
        })
    }

    fn pattern(&mut self, item: &Item, path: &str) -> Option<ResourcePattern> {
        let found = self.text_of(item, path);
        match found.parse() {
            Ok(pattern) => Some(pattern),
            Err(fault) => {
                self.found(path, Fault::Pattern { found: found.to_string(), fault });
                None
            }
        }
    }

    fn provider(&mut self, item: &Item, path: &str) -> Option<Provider> {
        let fields = self.fields(item, path, &["aesgcm", "aescbc", "secretbox", "identity", "kms"]);
        let mut providers = Vec::new();
        for (name, field) in fields.present() {
            let path = fields.path(name);
            providers.push(match name {
                "identity" => {
                    self.fields(field, &path, &[]);
                    Some(Provider::Identity)
                }
                "aesgcm" => Some(Provider::AesGcm(self.keys(field, &path))),
                "aescbc" => Some(Provider::AesCbc(self.keys(field, &path))),
                "secretbox" => Some(Provider::Secretbox(self.keys(field, &path))),
                _ => self.kms(field, &path),
            });
        }
        match providers.len() {
            1 => providers.pop().flatten(),
            0 => {
                self.found(
                    path,
                    Fault::Missing { needed: "one of aesgcm, aescbc, secretbox, identity, kms" },
                );
                None
            }
            found => {
                self.found(path, Fault::SeveralProviders { found });
                None
            }
        }
    }

    fn keys(&mut self, item: &Item, path: &str) -> Vec<LocalKey> {
        let fields = self.fields(item, path, &["keys"]);
        self.list(&fields, "keys", Self::key)
    }

    fn key(&mut self, item: &Item, path: &str) -> Option<LocalKey> {
        let fields = self.fields(item, path, &["name", "secret"]);
        let name = self.text(&fields, "name").to_string();
        let mut encoded = self.text(&fields, "secret");
        encoded.retain(|next| !['\r', '\n'].contains(&next));
        let secret = if encoded.is_empty() {
            Err(Fault::Missing { needed: "a key in base64" })
        } else {
            // Enough from the beginning, so that nothing is left where a smaller buffer was.
            let mut bytes = Zeroizing::new(Vec::with_capacity(encoded.len()));
            BASE64
                .decode_vec(encoded.as_bytes(), &mut bytes)
                .map(|()| bytes)
                .map_err(|_| Fault::SecretEncoding)
        };
        match secret {
            Ok(bytes) => Some(LocalKey { name, secret: KeyBytes::new(bytes) }),
            Err(fault) => {
                self.found(fields.path("secret"), fault);
                None
            }
        }
    }

    fn kms(&mut self, item: &Item, path: &str) -> Option<Provider> {
        let fields = self.fields(item, path, &["apiVersion", "name", "cachesize", "endpoint", "timeout"]);
        let version = self.text(&fields, "apiVersion");
        let name = self.text(&fields, "name").to_string();
        let endpoint = self.endpoint(&fields);
        let timeout = self.timeout(&fields);
        let cache_size = self.cache_size(&fields);
        match version.as_str() {
            "" | "v1" => {
                let cache_size = cache_size.unwrap_or(KmsV1::DEFAULT_CACHE_SIZE);
                Some(Provider::KmsV1(KmsV1 { name, endpoint: endpoint?, timeout: timeout?, cache_size }))
            }
            "v2" => {
                if cache_size.is_some() {
                    self.found(fields.path("cachesize"), Fault::CacheSizeOfV2);
                }
                Some(Provider::KmsV2(KmsV2 { name, endpoint: endpoint?, timeout: timeout? }))
            }
            found => {
                self.found(fields.path("apiVersion"), Fault::KmsVersion { found: found.to_owned() });
                None
            }
        }
    }

    fn endpoint(&mut self, fields: &Fields<'_>) -> Option<Endpoint> {
        let found = self.text(fields, "endpoint");
        let fault = match Endpoint::parse(&found) {
            Ok(endpoint) => return Some(endpoint),
            Err(_) if found.is_empty() => {
                Fault::Missing { needed: "an endpoint such as `unix:///run/kms.sock`" }
            }
            Err(fault) => Fault::Endpoint { found: found.to_string(), fault },
        };
        self.found(fields.path("endpoint"), fault);
        None
    }

    fn timeout(&mut self, fields: &Fields<'_>) -> Option<Duration> {
        if fields.get("timeout").is_none() {
            return Some(Provider::DEFAULT_TIMEOUT);
        }
        let found = self.text(fields, "timeout");
        let timeout = scalar::duration(&found);
        if timeout.is_none() {
            self.found(fields.path("timeout"), Fault::Timeout { found: found.to_string() });
        }
        timeout
    }

    fn cache_size(&mut self, fields: &Fields<'_>) -> Option<i32> {
        let item = fields.get("cachesize")?;
        if let Node::Number(Number::Whole(size)) = item.node
            && let Ok(size) = i32::try_from(size)
        {
            return Some(size);
        }
        let accepted = "a whole number of 32 bits";
        self.found(fields.path("cachesize"), Fault::Type { found: item.node.kind(), accepted });
        None
    }
}

#[cfg(test)]
mod tests;
