//! What can be wrong with an `EncryptionConfiguration`.

use std::fmt;

use crate::{EndpointFault, PatternFault};

/// A configuration that kube-apiserver would refuse, with each reason that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    problems: Vec<Problem>,
}

/// One reason, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As in `resources[0].providers[1].kms.timeout`; empty for the whole.
    pub field: String,
    /// In the file; absent for values that were not read from one.
    pub position: Option<Position>,
    /// What is wrong.
    pub fault: Fault,
}

/// A place in a file; both numbers begin with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

/// What is wrong, what is accepted, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A file without a byte.
    #[error("the file is empty: write a configuration, or start the API server without one")]
    EmptyFile,
    /// Bytes that are no text.
    #[error("the file is not UTF-8: write it again in that encoding")]
    NotUtf8,
    /// The file begins with `{` and is no JSON.
    #[error(
        "this is not JSON, which a file that begins with `{{` has to be: correct it, or write block-style YAML"
    )]
    Json,
    /// The YAML is wrong. What the parser says is not shown: it may quote a key.
    #[error("this is not YAML: look at quotes, colons and indentation here and in the line before")]
    Yaml,
    /// A tab where block style has spaces.
    #[error("found a tab before the first thing on a line: put spaces there")]
    Tab,
    /// U+0085, U+2028 or U+2029 as it is.
    #[error(
        "found a character that ends lines in YAML 1.1 only: write it as an escape in double quotes, or remove it"
    )]
    LineEnd,
    /// An alias to what it stands in, or to nothing.
    #[error("this alias can't be resolved: write what it stands for")]
    Alias,
    /// What is too big to be a configuration.
    #[error(
        "this is too deep or too big; accepted are {MAX_DEPTH} levels and {MAX_NODES} values: shorten it"
    )]
    TooBig,
    /// A key of a map that is not text.
    #[error("found a field whose name is not text: write a field of those documented")]
    FieldName,
    /// `<<` with something else than maps.
    #[error("only maps can be merged by `<<`: write the fields themselves")]
    Merge,
    /// A tag that is none of YAML's own, or does not fit.
    #[error("found a tag that is not read here or does not fit its value: leave the tag out")]
    Tag,
    /// Another type of value.
    #[error("found {found}; accepted is {accepted}{}", quoting_hint(.found, .accepted))]
    Type {
        /// What stands there. Never its value.
        found: &'static str,
        /// What may.
        accepted: &'static str,
    },
    /// A field that kube-apiserver does not know; it is strict.
    #[error("unknown field {}; accepted are {}: correct or remove it", shown(.name), listed(.accepted))]
    UnknownField {
        /// Its name, where that can't be a key put in a wrong place.
        name: Option<String>,
        /// Fields that there are.
        accepted: &'static [&'static str],
    },
    /// A field that stands twice.
    #[error("the field stands twice: remove one of them")]
    DuplicateField,
    /// Not an EncryptionConfiguration.
    #[error(
        "found apiVersion `{api_version}`, kind `{kind}`; accepted is `apiserver.config.k8s.io/v1`, \
         `EncryptionConfiguration`: correct both"
    )]
    Kind {
        /// What stands there.
        api_version: String,
        /// What stands there.
        kind: String,
    },
    /// Nothing, where something has to be.
    #[error("found nothing; needed is {needed}: write it")]
    Missing {
        /// What.
        needed: &'static str,
    },
    /// More than one provider in one place.
    #[error("found {found} providers in one place; accepted is one: give each a list item of its own")]
    SeveralProviders {
        /// How many.
        found: usize,
    },
    /// A pattern that is none.
    #[error("found `{found}`: {fault}")]
    Pattern {
        /// What stands there.
        found: String,
        /// Why it is refused.
        fault: PatternFault,
    },
    /// One resource twice in one list.
    #[error("`{0}` stands twice in this list: remove one of them")]
    DuplicateResource(String),
    /// Two in one list, of which one has the other in it.
    #[error(
        "`{0}` and `{1}` overlap in one list: remove the narrower one, or give it an earlier list of its own"
    )]
    Overlap(String, String),
    /// Something that an earlier wildcard has taken.
    #[error(
        "`{masked}` would never be used, since `{by}` stands in an earlier list: move it before that, or remove it"
    )]
    Masked {
        /// What stands there.
        masked: String,
        /// The wildcard.
        by: String,
    },
    /// A key that is not base64.
    #[error(
        "found a secret that is not base64 of the standard alphabet, padded: encode the key's bytes again"
    )]
    SecretEncoding,
    /// A key of another length.
    #[error("found a key of {found} bytes; accepted are {}: make one of such a length", lengths(.accepted))]
    SecretLength {
        /// After base64.
        found: usize,
        /// Those that the cipher takes.
        accepted: &'static [usize],
    },
    /// `apiVersion` of a plugin.
    #[error("found `{found}`; accepted are `v1`, which is the default, and `v2`: write `apiVersion: v2`")]
    KmsVersion {
        /// What stands there.
        found: String,
    },
    /// KMS v1 without the feature gate.
    #[error(
        "found a plugin of KMS v1, which is also what no `apiVersion` means; accepted is `v2`: write `apiVersion: v2`, \
         or start the API server with `--feature-gates=KMSv1=true`"
    )]
    KmsV1Disabled,
    /// `name` of a KMS v2 plugin.
    #[error(
        "found `{found}`; accepted is a name without `:`: take another, it becomes part of what is stored"
    )]
    KmsNameColon {
        /// What stands there.
        found: String,
    },
    /// Two plugins of one name.
    #[error("`{found}` is the name of another plugin too: give each its own")]
    DuplicateKmsName {
        /// What stands there.
        found: String,
    },
    /// `endpoint`.
    #[error(
        "found `{found}`: {fault}; accepted is such as `unix:///run/kms.sock` or `unix:///@name`: write that"
    )]
    Endpoint {
        /// What stands there.
        found: String,
        /// Why it is refused.
        fault: EndpointFault,
    },
    /// `timeout`.
    #[error(
        "found `{found}`; accepted is a time above zero with its unit, such as `3s`, `500ms` or `1m30s`: write that"
    )]
    Timeout {
        /// What stands there.
        found: String,
    },
    /// `cachesize` of a KMS v2 plugin.
    #[error("KMS v2 has no cachesize: remove it")]
    CacheSizeOfV2,
    /// `cachesize: 0`.
    #[error(
        "found 0; accepted is a number above zero, or one below for no cache: write one, or leave it out"
    )]
    CacheSizeZero,
}

/// How deep a document may be; an `EncryptionConfiguration` has eight levels.
pub(crate) const MAX_DEPTH: usize = 64;
/// How many values it may have, those behind aliases counted each time.
pub(crate) const MAX_NODES: usize = 100_000;

impl Refused {
    /// There is at least one problem.
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Each reason, in the order of the file as far as it was found on the way; never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl Problem {
    pub(crate) fn new(field: impl Into<String>, fault: Fault) -> Self {
        Self { field: field.into(), position: None, fault }
    }

    pub(crate) fn at(position: Position, field: impl Into<String>, fault: Fault) -> Self {
        Self { field: field.into(), position: Some(position), fault }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.position {
            write!(f, "{position}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// What people fall over most: `name: 1` and `name: yes` are no text in YAML.
fn quoting_hint(found: &str, accepted: &str) -> &'static str {
    match (found, accepted) {
        ("a number" | "yes or no", "text") => ": put it in quotes",
        _ => ": write that",
    }
}

fn shown(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(|| "(its name is not shown, it may be a key)".to_owned(), |name| format!("`{name}`"))
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        _ => format!("`{}`", names.join("`, `")),
    }
}

fn lengths(accepted: &[usize]) -> String {
    accepted.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
