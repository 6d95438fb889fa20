//! What a statement about API servers leaves open. Each one carries its own, so that it can't be quoted without.
use schemars::JsonSchema;
use serde::Serialize;

/// Something that a statement says nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    /// Objects that were not read.
    Unread,
    /// What was written since it was looked at.
    Since,
    /// Old revisions and backups.
    Past,
    /// API servers that were not asked.
    OtherServers,
    /// What a server did before it started.
    BeforeStart,
    /// How objects are stored.
    Storage,
    /// Whether a plugin can decrypt.
    Decryption,
    /// A server that answers reads from its cache.
    Cache,
    /// Resources that the EncryptionConfiguration names by a wildcard.
    Wildcards,
}

impl Limit {
    /// In a few words, beside a statement.
    pub(super) fn brief(self) -> &'static str {
        match self {
            Self::Unread => "objects that were not read",
            Self::Since => "what was written since",
            Self::Past => "old revisions and backups",
            Self::OtherServers => "API servers that were not asked",
            Self::BeforeStart => "what was before the server's start",
            Self::Storage => "how objects are stored",
            Self::Decryption => "whether a plugin can decrypt",
            Self::Cache => "servers that read from a cache",
            Self::Wildcards => "resources under a wildcard",
        }
    }

    /// In full, and why.
    pub(super) fn whole(self) -> &'static str {
        match self {
            Self::Unread => "objects that were not read: the sample is no proof for them",
            Self::Since => "what was written since, or under another configuration meanwhile",
            Self::Past => "values that were overwritten or deleted and that etcd still has, and backups",
            Self::OtherServers => {
                "API servers that were not asked: each has its own configuration, key id and counters"
            }
            Self::BeforeStart => {
                "what a server read or wrote before it started: a key id that it does not show may still be needed"
            }
            Self::Storage => {
                "how objects are stored: a configuration and a key id say what is written from now on"
            }
            Self::Decryption => "whether a plugin can still decrypt: servers keep DEKs for a day",
            Self::Cache => {
                "anything, if a read without a resourceVersion is not answered from etcd: kube-apiserver 1.31 to 1.37 do so"
            }
            Self::Wildcards => {
                "resources that the EncryptionConfiguration names by a wildcard: name them with --resource"
            }
        }
    }
}

/// One that an answer has, in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Explained {
    /// Which.
    pub(super) limit: Limit,
    /// What no statement that has it says anything of, and why.
    pub(super) says_nothing_of: &'static str,
}

/// What was found, or stays open, and what that leaves open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Statement {
    /// What, and what to do.
    pub(super) text: String,
    /// What it says nothing of.
    pub(super) limits: Vec<Limit>,
}

impl Statement {
    pub(super) fn new(text: impl Into<String>, limits: &[Limit]) -> Self {
        Self { text: text.into(), limits: limits.into() }
    }
}

/// As in `says nothing of: old revisions and backups; what was written since`.
pub(super) fn beside(limits: &[Limit]) -> String {
    let brief: Vec<&str> = limits.iter().map(|limit| limit.brief()).collect();
    format!("says nothing of: {}", brief.join("; "))
}
