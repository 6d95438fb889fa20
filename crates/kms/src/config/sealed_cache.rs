//! The sealed cache's part of the configuration.

use std::path::Path;

use schemars::JsonSchema;
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::{AbsolutePath, ConfigError, Parsed};
use crate::provider::Protection;

/// Opened local KEKs on this host's disk, sealed, so that it starts while no root key answers; see [what that costs, and
/// whom it helps](../how-to/start-in-an-outage.md). Exactly one of the fields.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SealedCacheConfig {
    /// A file with at least 32 random bytes, such as a systemd credential (`LoadCredentialEncrypted=`), on another file
    /// system than the state directory.
    #[serde(default)]
    #[schemars(with = "String")]
    pub credential: Option<Parsed<AbsolutePath>>,
    /// A file with a passphrase of at least 14 bytes in one line, on another file system than the state directory.
    #[serde(default)]
    #[schemars(with = "String")]
    pub passphrase_file: Option<Parsed<AbsolutePath>>,
    /// Says what to use instead.
    #[serde(default)]
    #[schemars(skip)]
    pub tpm: NotByItself,
}

/// What is not a field of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotByItself;

impl SealedCacheConfig {
    /// What protects it.
    pub fn protection(&self) -> Option<Protection> {
        let credential = self.credential.as_ref().map(|path| Protection::credential(&path.0.0));
        credential.or_else(|| self.passphrase_file.as_ref().map(|path| Protection::passphrase(&path.0.0)))
    }

    /// `at` is a line to name where there is none.
    pub(super) fn check(&self, path: &Path, at: u64) -> Result<(), ConfigError> {
        let unfit = |line, message: &str| {
            Err(ConfigError::Unfit {
                path: path.to_owned(),
                line,
                field: "sealedCache",
                message: message.to_owned(),
            })
        };
        match (&self.credential, &self.passphrase_file) {
            (None, None) => unfit(at, "is empty; name a credential or a passphraseFile, or leave it out"),
            (Some(_), Some(other)) => unfit(
                other.line(),
                "has both a credential and a passphraseFile; one of them alone protects it",
            ),
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for NotByItself {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer)?;
        Err(D::Error::custom(
            "tpm is not a field of its own: bind a systemd credential to the TPM (`systemd-creds encrypt \
             --with-key=tpm2`), load it with LoadCredentialEncrypted=, and name its file as `credential`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Config;
    use super::*;

    fn parse(sealed_cache: &str) -> Result<Config, String> {
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nproviders:\n  - name: a\n    \
             endpoint: unix:///run/a.sock\n    sealedCache: {sealed_cache}\n    rootKeys:\n      - name: main\n        \
             file: {{path: /etc/k, id: \"0123456789abcdef0123456789abcdef\"}}\n"
        );
        Config::parse(&text, Path::new("/c.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn exactly_one_protects_it() {
        let of = |text: &str| parse(text).unwrap().providers[0].sealed_cache.as_ref().unwrap().protection();
        assert_eq!(of("{credential: /run/c/key}"), Some(Protection::credential("/run/c/key")));
        assert_eq!(of("{passphraseFile: /run/c/words}"), Some(Protection::passphrase("/run/c/words")));
        for (text, says) in [
            ("{}", "/c.yaml:5"),
            ("{}", "name a credential or a passphraseFile"),
            ("{credential: /a, passphraseFile: /b}", "/c.yaml:7"),
            ("{credential: /a, passphraseFile: /b}", "one of them alone"),
            ("{credential: a}", "absolute"),
            ("{tpm: {device: /dev/tpmrm0}}", "systemd-creds encrypt --with-key=tpm2"),
            ("{tmp: true}", "unknown field"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_confined_process_may_read_what_protects_it() {
        let config = parse("{credential: /run/credentials/a/key}").unwrap();
        assert!(config.files(Path::new("/c.yaml")).contains(&PathBuf::from("/run/credentials/a/key")));
    }
}
