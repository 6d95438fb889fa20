//! The audit log's part of the configuration.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{AbsolutePath, Parsed};

/// The audit log: one line a call, each chained to the one before; see [its reference](audit.md).
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditConfig {
    /// The file, in a folder that is there. Rotated ones stand beside it, with `.1` (the newest), `.2` and so on.
    pub path: Parsed<AbsolutePath>,
    /// How large the file gets before it is rotated.
    #[serde(default)]
    pub max_bytes: MaxBytes,
    /// How many rotated files are kept.
    #[serde(default)]
    pub keep: Keep,
    /// What calls get while the log can't be written: `serve` answers them and notes later how many are missing,
    /// `refuse` answers none that is not in the log.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Authenticates checkpoints, for who has the key.
    #[serde(default)]
    #[schemars(with = "CheckpointKeyConfig")]
    pub checkpoint_key: Option<CheckpointKeyConfig>,
}

/// A key for checkpoints.
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointKeyConfig {
    /// A file with 64 digits of lower-case hex (`openssl rand -hex 32`), readable by its owner alone.
    pub path: Parsed<AbsolutePath>,
}

/// What calls get while the log can't be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Answers, and a gap in the log.
    #[default]
    Serve,
    /// `Unavailable`.
    Refuse,
}

impl JsonSchema for OnFailure {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OnFailure".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"oneOf": [{"const": "serve"}, {"const": "refuse"}]})
    }
}

/// The size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct MaxBytes(pub u64);

impl MaxBytes {
    const LEAST: u64 = 64 * 1024;
    const MOST: u64 = 1 << 40;
}

impl Default for MaxBytes {
    fn default() -> Self {
        Self(100 * 1024 * 1024)
    }
}

/// How many files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct Keep(pub u32);

impl Keep {
    const LEAST: u64 = 1;
    const MOST: u64 = 1000;
}

impl Default for Keep {
    fn default() -> Self {
        Self(10)
    }
}

macro_rules! number {
    ($name:ident) => {
        impl TryFrom<u64> for $name {
            type Error = String;

            fn try_from(number: u64) -> Result<Self, String> {
                let (least, most) = (Self::LEAST, Self::MOST);
                if (least..=most).contains(&number) {
                    number.try_into().map(Self).map_err(|_| format!("{number} is too large"))
                } else {
                    Err(format!("found {number}; accepted is a number from {least} to {most}"))
                }
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({"type": "integer", "minimum": Self::LEAST, "maximum": Self::MOST})
            }
        }
    };
}
number!(MaxBytes);
number!(Keep);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, ConfigError};
    use super::*;

    fn parse(audit: &str) -> Result<AuditConfig, ConfigError> {
        let text = format!(
            "{{apiVersion: casemate.dev/v1alpha1, kind: KmsConfiguration, clusterId: a, audit: {audit}, providers: \
             [{{name: a, endpoint: unix:///a, rootKeys: [{{name: a, file: {{path: /a, id: \
             00000000000000000000000000000000}}}}]}}]}}"
        );
        Ok(Config::parse(&text, Path::new("config.yaml"))?.audit.unwrap())
    }

    #[test]
    fn what_is_left_out_has_values() {
        let audit = parse("{path: /a/audit.log}").unwrap();
        assert_eq!((audit.max_bytes, audit.keep), (MaxBytes(104_857_600), Keep(10)));
        assert_eq!(audit.on_failure, OnFailure::Serve);
        assert!(audit.checkpoint_key.is_none());
        let audit = parse(
            "{path: /a/audit.log, maxBytes: 65536, keep: 1, onFailure: refuse, checkpointKey: {path: /a/key}}",
        );
        let audit = audit.unwrap();
        assert_eq!((audit.max_bytes, audit.keep), (MaxBytes(65536), Keep(1)));
        assert_eq!(audit.on_failure, OnFailure::Refuse);
        assert_eq!(audit.checkpoint_key.unwrap().path.0.0, Path::new("/a/key"));
    }

    #[test]
    fn what_is_not_accepted_says_what_is() {
        for (audit, said) in [
            ("{}", "path"),
            ("{path: audit.log}", "absolute"),
            ("{path: /a, maxBytes: 65535}", "from 65536 to"),
            ("{path: /a, keep: 0}", "from 1 to 1000"),
            ("{path: /a, keep: 1001}", "from 1 to 1000"),
            ("{path: /a, onFailure: panic}", "refuse"),
            ("{path: /a, checkpointKey: /a}", ""),
            ("{path: /a, secret: b}", "secret"),
        ] {
            let error = parse(audit).unwrap_err().to_string();
            assert!(error.contains(said), "{audit}: {error}");
        }
    }
}
