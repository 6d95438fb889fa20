//! What an API server does to Secrets and ConfigMaps before they go to etcd.

use std::{fmt::Write as _, path::Path};

/// One KMS v2 plugin as an API server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsProvider {
    /// The provider's name; it becomes part of what is written to etcd.
    pub name: String,
    /// Where the plugin listens: `unix:///…`, or `unix:///@…` for an abstract socket.
    pub endpoint: String,
}

/// The `EncryptionConfiguration` of one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Everything in clear.
    Identity,
    /// New data goes through the first plugin; what any of them or nobody encrypted can be read.
    Kms(Vec<KmsProvider>),
    /// This text as it is, right or wrong.
    Verbatim(String),
}

impl Encryption {
    /// One plugin that listens on `socket`.
    pub fn kms(name: impl Into<String>, socket: &Path) -> Self {
        Self::Kms(vec![KmsProvider { name: name.into(), endpoint: format!("unix://{}", socket.display()) }])
    }

    /// The file's text.
    pub(crate) fn to_yaml(&self) -> String {
        let plugins: &[KmsProvider] = match self {
            Encryption::Identity => &[],
            Encryption::Kms(plugins) => plugins,
            Encryption::Verbatim(text) => return text.clone(),
        };
        let mut text = String::from(
            "apiVersion: apiserver.config.k8s.io/v1\n\
             kind: EncryptionConfiguration\n\
             resources:\n\
             - resources: [secrets, configmaps]\n\
             \x20 providers:\n",
        );
        for KmsProvider { name, endpoint } in plugins {
            // A JSON string is a YAML string, whatever is in it. Writing to a String can't fail.
            let (name, endpoint) = (serde_json::json!(name), serde_json::json!(endpoint));
            let _ = writeln!(
                text,
                "  - kms: {{apiVersion: v2, name: {name}, endpoint: {endpoint}, timeout: 3s}}"
            );
        }
        text.push_str("  - identity: {}\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_comes_first_and_plain_text_stays_readable() {
        let yaml = Encryption::kms("casemate", Path::new("/run/a b.sock")).to_yaml();
        let providers = yaml.split("providers:\n").last().unwrap_or_default();
        assert_eq!(
            providers,
            "  - kms: {apiVersion: v2, name: \"casemate\", endpoint: \"unix:///run/a b.sock\", timeout: 3s}\n\
             \x20 - identity: {}\n"
        );
    }
}
