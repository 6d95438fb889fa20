//! What follows from what was seen: pure, and in one table.
use std::collections::BTreeSet;

use serde::Serialize;

use super::facts::Facts;

mod files;
mod host;
mod kinds;
mod providers;
mod seen;

pub(super) use kinds::{KINDS, Kind, Severity, kind};

/// Something to be mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    /// What it means for whoever runs the cluster.
    means: &'static str,
    /// Null if it is no provider's.
    pub(super) provider: Option<String>,
    pub(super) evidence: String,
    pub(super) remedy: String,
    /// Where it stands, and where more is said.
    pub(super) docs: [String; 2],
}

impl Finding {
    pub(super) fn new(id: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        let Kind { severity, means, see, .. } = kind(id);
        let more = match see.strip_prefix("../") {
            Some(elsewhere) => format!("docs/{elsewhere}"),
            None => format!("docs/reference/{see}"),
        };
        Self {
            id,
            severity: *severity,
            means,
            provider: None,
            evidence: evidence.into(),
            remedy: remedy.into(),
            docs: [format!("docs/reference/doctor.md#{id}"), more],
        }
    }

    fn of(self, provider: &str) -> Self {
        Self { provider: Some(provider.to_owned()), ..self }
    }
}

/// All that is to be mended, the worst first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    // What stops the cluster, before what may be its cause.
    for provider in &facts.providers {
        let found = providers::of_provider(provider, facts);
        all.extend(found.into_iter().map(|finding| finding.of(&provider.name)));
    }
    all.extend(host::of_host(facts));
    all.extend(facts.files.iter().flat_map(|file| files::of_file(file, facts.user)));
    // One folder may be wrong for many files: it is mended once.
    let mut told = BTreeSet::new();
    all.retain(|one| told.insert((one.id, one.provider.clone(), one.remedy.clone())));
    all.sort_by_key(|finding| finding.severity);
    all
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::healthy;
