//! What somebody wants of a survey, for CI and cron.
//!
//! ```
//! use casemate_census::policy::Policy;
//!
//! let policy = Policy::parse("
//! apiVersion: casemate.dev/v1alpha1
//! kind: CensusPolicy
//! rules:
//! - resources: [secrets, '*.apps']
//!   allow: [kms:v2:casemate]
//!   maxKeyAge: 90d
//! ").unwrap();
//! assert_eq!(policy.rules.len(), 1);
//! ```
//!
//! Every rule that chooses a resource holds for its values. Resources that no rule chooses may be stored in any way. A
//! malformed value is a violation wherever it is, unless the policy says `malformed: allow`.
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use casemate_encryption_config::ResourcePattern;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::survey::{Encryption, Entry, Group, Key, Resource, Survey, Tally};

/// Rules for what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Policy {
    /// `casemate.dev/v1alpha1`.
    #[schemars(extend("const" = API_VERSION))]
    api_version: String,
    /// `CensusPolicy`.
    #[schemars(extend("const" = KIND))]
    kind: String,
    /// At least one.
    #[schemars(length(min = 1))]
    pub rules: Vec<Rule>,
    /// Whether malformed values may be there; `refuse` if left out.
    #[serde(default)]
    pub malformed: Malformed,
}

/// What holds for some resources.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Rule {
    /// As in an EncryptionConfiguration: `secrets`, `deployments.apps`, `*.apps`, `*.` for the core group, `*.*`.
    #[schemars(with = "Vec<String>", length(min = 1))]
    #[serde(deserialize_with = "patterns")]
    pub resources: Vec<ResourcePattern>,
    /// How their values may be stored: any of these.
    #[schemars(length(min = 1))]
    pub allow: Vec<Allowed>,
    /// How long ago the local KEK may have been made, as in `90d` or `36h`. Only records of `casemate-kms` tell; values
    /// that don't are a violation.
    pub max_key_age: Option<Age>,
    /// Whether it holds for values, too, that were overwritten or deleted, and not compacted away.
    #[serde(default)]
    pub include_past: bool,
    /// Whether resources that it names need not be there. Else one of which nothing is stored leaves the answer open, since a
    /// name that is misspelled would be kept for ever.
    #[serde(default)]
    pub may_be_absent: bool,
}

/// Whether malformed values may be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Malformed {
    /// Each is a violation.
    #[default]
    Refuse,
    /// None is.
    Allow,
}

/// A way of storing, or several: `plaintext`; `aescbc`, `kms:v2`: under any key or plugin of this kind; a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub enum Allowed {
    /// In the clear.
    Plaintext,
    /// Under any key of a kind: `aescbc`, `aesgcm`, `secretbox`, `kms:v1` or `kms:v2`.
    Kind(String),
    /// Under this key.
    Key(Key),
}

/// A length of time, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Age(pub u64);

/// Why a policy is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No YAML of a policy.
    #[error("{0}")]
    Yaml(String),
    /// Another version or kind.
    #[error("apiVersion is {api_version:?} and kind {kind:?}; write `{API_VERSION}` and `{KIND}`")]
    Kind {
        /// What it says.
        api_version: String,
        /// What it says.
        kind: String,
    },
    /// A list with nothing in it.
    #[error("{field} is empty: it would be kept by anything; name at least one")]
    Empty {
        /// Which.
        field: String,
    },
}

/// A group that is not as the policy wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Violation {
    /// Which rule, from 0; absent for malformed values.
    pub rule: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What the values have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Values that are what their objects are now.
    pub live: Tally,
    /// Values that were overwritten or deleted, and not compacted away.
    pub past: Tally,
}

/// What a survey is by a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Kept {
    /// What is not as the policy wants it.
    pub violations: Vec<Violation>,
    /// Why more can't be told.
    pub unclear: Vec<String>,
}

/// Seconds by which clocks of two hosts may differ.
const CLOCKS: u64 = 3600;

const API_VERSION: &str = "casemate.dev/v1alpha1";
const KIND: &str = "CensusPolicy";
const KINDS: [&str; 5] = ["aescbc", "aesgcm", "secretbox", "kms:v1", "kms:v2"];

impl Policy {
    /// Reads a file's text.
    ///
    /// # Errors
    /// If it is none, or would be kept by anything.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_anchors: 0,
                max_aliases: 0,
                max_depth: 16,
                max_documents: 1,
                max_nodes: 10_000,
            },
            with_snippet: false,
        };
        let policy: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| PolicyError::Yaml(error.to_string()))?;
        let Self { api_version, kind, rules, .. } = &policy;
        if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
            let (api_version, kind) = (api_version.clone(), kind.clone());
            return Err(PolicyError::Kind { api_version, kind });
        }
        let lists = rules.iter().enumerate().flat_map(|(place, rule)| {
            [("resources", rule.resources.is_empty()), ("allow", rule.allow.is_empty())]
                .map(|(field, is_empty)| (format!("rules[{place}].{field}"), is_empty))
        });
        let mut lists = std::iter::once(("rules".to_owned(), rules.is_empty())).chain(lists);
        match lists.find(|(_, is_empty)| *is_empty) {
            Some((field, _)) => Err(PolicyError::Empty { field }),
            None => Ok(policy),
        }
    }

    /// What of `survey` is not as it wants, at `now` in seconds since 1970.
    pub fn judge(&self, survey: &Survey, now: u64) -> Kept {
        let mut kept = Kept::default();
        for entry in &survey.groups {
            if matches!(entry.group.encryption, Encryption::Malformed { .. }) {
                if self.malformed == Malformed::Refuse {
                    kept.violations.push(Violation::new(
                        None,
                        "malformed: nobody can read it".to_owned(),
                        entry,
                    ));
                }
                continue;
            }
            // No configuration could make it otherwise.
            if entry.group.resource.is_bookkeeping() && entry.group.encryption.is_plain() {
                continue;
            }
            for (place, rule) in self.rules.iter().enumerate() {
                match rule.chooses(&entry.group.resource) {
                    Some(false) => {}
                    None if !rule.looks_at(entry) => {}
                    None => kept.unclear.push(format!(
                        "rules[{place}]: whether it chooses {} depends on its API group, which the key in etcd does not tell",
                        entry.group.resource
                    )),
                    Some(true) => {
                        let what = rule.judge(entry, now);
                        kept.violations.extend(what.map(|what| Violation::new(Some(place), what, entry)));
                    }
                }
            }
        }
        kept.unclear.extend(self.absent(survey));
        if survey.ungrouped > 0 {
            kept.unclear.push(format!("{} values were of too many kinds to be told apart", survey.ungrouped));
        }
        if survey.looked_elsewhere() {
            kept.unclear.push(format!("nothing is below {}", survey.prefix));
        }
        let asks_past = self.rules.iter().any(|rule| rule.include_past);
        let unseen = survey.unseen.iter().filter(|unseen| asks_past || !unseen.is_past());
        kept.unclear.extend(unseen.map(ToString::to_string));
        kept
    }
}

impl Policy {
    /// Patterns of which nothing is stored, so that their rules judged nothing.
    fn absent(&self, survey: &Survey) -> Vec<String> {
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| !rule.may_be_absent);
        let patterns =
            rules.flat_map(|(place, rule)| rule.resources.iter().map(move |one| (place, rule, one)));
        let absent = patterns.filter(|(_, rule, pattern)| {
            let judged = survey.groups.iter().filter(|entry| rule.looks_at(entry));
            !judged.into_iter().any(|entry| may_match(pattern, &entry.group.resource))
        });
        absent
            .map(|(place, _, pattern)| {
                format!(
                    "rules[{place}]: nothing that it could judge is stored of {pattern}: check the name, or write \
                     `mayBeAbsent: true`"
                )
            })
            .collect()
    }
}

impl Rule {
    /// Whether it holds for values that are there.
    fn looks_at(&self, entry: &Entry) -> bool {
        entry.live.values > 0 || self.include_past && entry.past.values > 0
    }

    /// `None` if that depends on the group, which is not known.
    fn chooses(&self, resource: &Resource) -> Option<bool> {
        if let Some(resource) = resource.group_resource() {
            return Some(self.resources.iter().any(|pattern| pattern.matches(&resource)));
        }
        if self.resources.contains(&ResourcePattern::All) {
            return Some(true);
        }
        let may = self.resources.iter().any(|pattern| may_match(pattern, resource));
        (!may).then_some(false)
    }

    /// What is wrong with values that it chooses, if anything.
    fn judge(&self, entry: &Entry, now: u64) -> Option<String> {
        if !self.looks_at(entry) {
            return None;
        }
        let encryption = &entry.group.encryption;
        if encryption.is_broken() {
            return Some("damaged: nobody can read it".to_owned());
        }
        if !self.allow.iter().any(|allowed| allowed.has(encryption)) {
            let allowed: Vec<String> = self.allow.iter().map(ToString::to_string).collect();
            return Some(format!("{encryption}; allowed is {}", allowed.join(", ")));
        }
        let Age(most) = self.max_key_age.filter(|_| !encryption.is_plain())?;
        match encryption {
            Encryption::KmsV2 { record: Some(record), .. } if record.created > now.saturating_add(CLOCKS) => {
                let ahead = Age(record.created - now);
                Some(format!("its local KEK was made {ahead} from now: a clock is wrong, here or there"))
            }
            Encryption::KmsV2 { record: Some(record), .. } => {
                let age = now.saturating_sub(record.created);
                (age > most).then(|| format!("its local KEK is {} old; allowed are {}", Age(age), Age(most)))
            }
            _ => Some(format!("{encryption} does not say how old its key is; allowed are {}", Age(most))),
        }
    }
}

/// Whether `pattern` chooses `resource`, or would for some API group where the key in etcd does not tell it.
fn may_match(pattern: &ResourcePattern, resource: &Resource) -> bool {
    match (resource.group_resource(), pattern) {
        (Some(resource), _) => pattern.matches(&resource),
        (None, ResourcePattern::One(one)) => one.resource == resource.name,
        (None, _) => true,
    }
}

impl Violation {
    fn new(rule: Option<usize>, what: String, entry: &Entry) -> Self {
        let (group, live, past) = (entry.group.clone(), entry.live.clone(), entry.past.clone());
        Self { rule, what, group, live, past }
    }
}

impl Allowed {
    fn has(&self, encryption: &Encryption) -> bool {
        match self {
            Self::Plaintext => encryption.is_plain(),
            Self::Key(key) => encryption.keys().contains(key),
            Self::Kind(kind) => match encryption {
                Encryption::Local { cipher, .. } => kind == cipher,
                Encryption::KmsV1 { .. } => kind == "kms:v1",
                Encryption::KmsV2 { .. } => kind == "kms:v2",
                _ => false,
            },
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "plaintext" => Ok(Self::Plaintext),
            kind if KINDS.contains(&kind) => Ok(Self::Kind(kind.to_owned())),
            key => key.parse().map(Self::Key).map_err(|error| {
                format!("{error}. Or write plaintext, or a kind alone: {}", KINDS.join(", "))
            }),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plaintext => f.write_str("plaintext"),
            Self::Kind(kind) => f.write_str(kind),
            Self::Key(key) => key.fmt(f),
        }
    }
}

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds =
            |number: &str, unit: u64| number.parse::<u32>().ok().map(|number| u64::from(number) * unit);
        let age = match (text.strip_suffix('d'), text.strip_suffix('h')) {
            (Some(days), _) => seconds(days, 24 * 3600),
            (_, Some(hours)) => seconds(hours, 3600),
            _ => None,
        };
        age.filter(|age| *age > 0)
            .map(Self)
            .ok_or(format!("{text:?} is no age: write days or hours, as 90d or 36h"))
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 3600 {
            hours if hours >= 48 => write!(f, "{} days", hours / 24),
            hours => write!(f, "{hours} hours"),
        }
    }
}

impl TryFrom<String> for Allowed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Age {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl JsonSchema for Allowed {
    fn schema_name() -> Cow<'static, str> {
        "Allowed".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^(plaintext|aescbc|aesgcm|secretbox|kms:v[12]|(aescbc|aesgcm|secretbox|kms:v[12]|key-id|local-kek|root|recovery):.+)$";
        json_schema!({ "type": "string", "pattern": pattern })
    }
}

impl JsonSchema for Age {
    fn schema_name() -> Cow<'static, str> {
        "Age".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+[dh]$" })
    }
}

fn patterns<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<ResourcePattern>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        text.parse::<ResourcePattern>()
            .map_err(|fault| serde::de::Error::custom(format!("resource {text:?}: {fault}")))
    };
    texts.iter().map(parse).collect()
}
