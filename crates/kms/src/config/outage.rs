//! What an outage of a root key does.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use casemate_kms_state::outage::{OnRefused, Policy};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::{ConfigError, Parsed};

/// What an outage of a root key does.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutageConfig {
    /// `coast` goes on to write with the local KEK in memory, `failAfter` is unready at once and writes nothing any more
    /// after a time, `failClosed` writes nothing at once.
    #[serde(default)]
    pub policy: Parsed<PolicyName>,
    /// How long an outage may last before nothing is written: `90s`, `5m`, `24h`. Required by `failAfter`; without it,
    /// `coast` has no end.
    #[serde(default)]
    #[schemars(with = "Time")]
    pub after: Option<Parsed<Time>>,
}

/// A policy, without its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    /// [`Policy::Coast`].
    #[default]
    Coast,
    /// [`Policy::FailAfter`].
    FailAfter,
    /// [`Policy::FailClosed`].
    FailClosed,
}

/// Once a root key says no for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnRefusedName(pub OnRefused);

/// A time, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

/// A year: whoever wants more wants no end.
const LONGEST: u64 = 365 * 24 * 3600;

impl OutageConfig {
    /// The policy with its time.
    pub fn policy(&self) -> Policy {
        let after = self.after.map(|after| after.0.0);
        match (self.policy.0, after) {
            (PolicyName::Coast, until) => Policy::Coast { until },
            (PolicyName::FailAfter, Some(after)) => Policy::FailAfter(after),
            // Without a time it is refused before; nothing less strict may come of it.
            (PolicyName::FailAfter, None) | (PolicyName::FailClosed, _) => Policy::FailClosed,
        }
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let unfit = |line, message: &str| {
            Err(ConfigError::Unfit {
                path: path.to_owned(),
                line,
                field: "after",
                message: message.to_owned(),
            })
        };
        match (self.policy.0, &self.after) {
            (PolicyName::FailAfter, None) => {
                unfit(self.policy.line(), "failAfter needs a time; add it, such as `after: 5m`")
            }
            (PolicyName::FailClosed, Some(after)) => {
                unfit(after.line(), "failClosed has no time; leave it out, or use failAfter")
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "coast" => Ok(Self::Coast),
            "failAfter" => Ok(Self::FailAfter),
            "failClosed" => Ok(Self::FailClosed),
            _ => Err(format!("found {text:?}; accepted are coast, failAfter and failClosed")),
        }
    }
}

impl FromStr for OnRefusedName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "keepReads" => Ok(Self(OnRefused::KeepReads)),
            "wipe" => Ok(Self(OnRefused::Wipe)),
            _ => Err(format!("found {text:?}; accepted are keepReads and wipe")),
        }
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = || {
            let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
            let unit = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                _ => return None,
            };
            let digits = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
            let seconds = number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit)?;
            (1..=LONGEST).contains(&seconds).then_some(seconds)
        };
        seconds().map(|seconds| Self(Duration::from_secs(seconds))).ok_or_else(|| {
            format!(
                "found {text:?}; a time is a number of s, m or h, such as 90s, 5m or 24h, and a year at most"
            )
        })
    }
}

macro_rules! described {
    ($name:ident $schema:tt) => {
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
described!(PolicyName { "oneOf": [{"const": "coast"}, {"const": "failAfter"}, {"const": "failClosed"}] });
described!(OnRefusedName { "oneOf": [{"const": "keepReads"}, {"const": "wipe"}] });
described!(Time { "type": "string", "pattern": "^[1-9][0-9]*[smh]$" });

#[cfg(test)]
mod tests {
    use casemate_kms_state::outage::Rules;

    use super::*;

    fn parse(text: &str) -> Result<OutageConfig, String> {
        let config: OutageConfig = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        config.check(Path::new("a.yaml")).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn policies_and_times() {
        let (five, day) = (Duration::from_secs(300), Duration::from_secs(86_400));
        let cases = [
            ("{}", Policy::Coast { until: None }),
            ("{policy: coast, after: 24h}", Policy::Coast { until: Some(day) }),
            ("{policy: failAfter, after: 5m}", Policy::FailAfter(five)),
            ("{policy: failAfter, after: 300s}", Policy::FailAfter(five)),
            ("{policy: failClosed}", Policy::FailClosed),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap().policy(), expected, "{text}");
        }
    }

    #[test]
    fn a_provider_has_its_own_and_the_default_stops_nothing() {
        let provider = |more: &str| {
            let file = "file: {path: /a, id: 00000000000000000000000000000000}";
            let text = format!(
                "{{apiVersion: casemate.dev/v1alpha1, kind: KmsConfiguration, clusterId: a, providers: [{{name: a, \
                 endpoint: unix:///a, {more} rootKeys: [{{name: a, {file}}}]}}]}}"
            );
            let config = crate::config::Config::parse(&text, Path::new("a.yaml"));
            config.map(|config| config.providers[0].outage()).map_err(|error| error.to_string())
        };
        assert_eq!(provider("").unwrap(), Rules::default());
        let rules = Rules { policy: Policy::FailClosed, on_refused: OnRefused::Wipe };
        assert_eq!(provider("outage: {policy: failClosed}, onRefused: wipe,").unwrap(), rules);
        assert!(provider("outage: {policy: failAfter},").unwrap_err().contains("failAfter needs a time"));
        assert!(provider("onRefused: forget,").unwrap_err().contains("accepted are keepReads and wipe"));
    }

    #[test]
    fn what_is_refused_says_what_is_accepted() {
        let cases = [
            ("{policy: failAfter}", "a.yaml:1: after: failAfter needs a time"),
            ("{policy: failClosed, after: 5m}", "failClosed has no time"),
            ("{policy: coasting}", "accepted are coast, failAfter and failClosed"),
            ("{after: 5}", "such as 90s, 5m or 24h"),
            ("{after: 0m}", "such as 90s, 5m or 24h"),
            ("{after: +5m}", "such as 90s, 5m or 24h"),
            ("{after: 5ä}", "such as 90s, 5m or 24h"),
            ("{after: 9000h}", "a year at most"),
            ("{after: 99999999999999999999h}", "a year at most"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
