//! What is told of API servers. Its JSON is a contract: `docs/reference/census-api.schema.json`.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::bounds::{Bounds, Silence};
use super::limit::{Explained, Limit, Statement, beside};
use super::metrics::{Instance, KeyIdUse, Operations};
use crate::census::answer::Configuration;
use crate::output::{Exit, Section};

/// The whole answer: an estimate, never a proof.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "casemate census api --output json")]
pub(in crate::census) struct Answer {
    /// What follows from all of it.
    pub(super) verdict: Verdict,
    /// Each server that was asked.
    pub(super) servers: Vec<ServerAnswer>,
    /// Each resource of which objects were read.
    pub(super) resources: Vec<ResourceAnswer>,
    /// The EncryptionConfiguration that all was compared with.
    pub(super) encryption_config: Option<Configuration>,
    /// What speaks against it.
    pub(super) findings: Vec<Statement>,
    /// What was asked and stays open.
    pub(super) open: Vec<Statement>,
    /// All limits of what is stated here, in full.
    pub(super) limits: Vec<Explained>,
}

/// What follows. There is no "proved".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Nothing that was seen speaks against it.
    NothingAgainst,
    /// Something does: see `findings`.
    Finding,
    /// Some of it stays open, and the rest does not speak against it.
    Partly,
    /// Nothing was seen that would tell.
    Unknown,
}

/// What one server shows, or a load balancer's choice of one.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ServerAnswer {
    /// Where it was asked.
    pub(super) server: String,
    /// Which process answered.
    pub(super) instance: Option<Instance>,
    /// Why it does not tell more.
    pub(super) error: Option<String>,
    /// SHA-256 of the EncryptionConfiguration that it runs with; API servers of 1.31 and earlier do not tell, nor do those
    /// that do not reload it by themselves.
    pub(super) configurations: Vec<String>,
    /// Whether that is the one that was given.
    pub(super) configuration_matches: Option<bool>,
    /// What all that it shows says nothing of.
    pub(super) limits: Vec<Limit>,
    /// Key ids that it used since it started.
    pub(super) key_ids: Vec<KeyIdUse>,
    /// DEK sources that it holds opened, by provider of KMS v2.
    pub(super) dek_sources: BTreeMap<String, u64>,
    /// Values that it read from etcd and wrote there since it started.
    pub(super) operations: Vec<Operations>,
}

/// What reading some objects of one resource tells of how they are stored.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ResourceAnswer {
    /// As in `secrets` or `deployments.apps`.
    pub(super) resource: String,
    /// Why nothing is told.
    pub(super) error: Option<String>,
    /// What the bounds say nothing of.
    pub(super) limits: Vec<Limit>,
    /// Whose counters were watched.
    pub(super) server: String,
    /// How many objects there are.
    pub(super) objects: u64,
    /// How many of them the sample was chosen from: the first by name.
    pub(super) listed: u64,
    /// How many were read while the counters told of them: what the bounds are about.
    pub(super) read: u64,
    /// How many were read while the counters told nothing.
    pub(super) untold: u64,
    /// Why they did not.
    pub(super) silences: Vec<Silence>,
    /// How many were deleted meanwhile.
    pub(super) gone: u64,
    /// Objects that the server answered with an error of its own.
    pub(super) unreadable: Vec<String>,
    /// Values that the server took from etcd for others meanwhile: they keep the bounds apart.
    pub(super) others: u64,
    /// With what a write would begin now; with the empty text it would be plaintext.
    pub(super) expected: Option<String>,
    /// By what they begin with in etcd: `identity` is plaintext, and `none` is plaintext of a resource that the server
    /// encrypts nothing of.
    pub(super) stored: Vec<Class>,
    /// By local key.
    pub(super) local_keys: Vec<Class>,
    /// By key id of KMS v2.
    pub(super) key_ids: Vec<KeyIdClass>,
}

/// So many of the objects that were read.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Class {
    /// With what they begin, or the name of the local key.
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) bounds: Bounds,
}

/// So many of the objects that were read.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct KeyIdClass {
    /// The provider's name.
    pub(super) provider: String,
    /// SHA-256 of the key id.
    pub(super) hash: String,
    #[serde(flatten)]
    pub(super) bounds: Bounds,
}

impl Answer {
    pub(super) fn exit(&self) -> Exit {
        match self.verdict {
            Verdict::NothingAgainst => Exit::Yes,
            Verdict::Finding => Exit::No,
            Verdict::Partly => Exit::Partly,
            Verdict::Unknown => Exit::Unknown,
        }
    }

    pub(super) fn sections(&self) -> Vec<Section> {
        let said = match self.verdict {
            Verdict::NothingAgainst => "ESTIMATE  nothing that was seen speaks against it",
            Verdict::Finding => "ESTIMATE  something was found",
            Verdict::Partly => "ESTIMATE  some of it stays open",
            Verdict::Unknown => "ESTIMATE  can't tell",
        };
        let mut sections = vec![list(said, &self.findings)];
        // What to do comes before the numbers that it rests on.
        if !self.open.is_empty() {
            sections.push(list("LEFT OPEN", &self.open));
        }
        // Why others told nothing stands above.
        let told = self.servers.iter().filter(|server| server.instance.is_some());
        sections.extend(told.map(ServerAnswer::section));
        let keys: Vec<_> = self.servers.iter().filter(|server| !server.key_ids.is_empty()).collect();
        if !keys.is_empty() {
            sections.push(key_ids(&keys));
        }
        let read = self.resources.iter().filter(|resource| resource.error.is_none() || resource.read > 0);
        sections.extend(read.map(ResourceAnswer::section));
        if !self.limits.is_empty() {
            let mut limits = Section::new("WHAT THIS CAN'T SAY");
            for Explained { says_nothing_of, .. } in &self.limits {
                limits.row([format!("* {says_nothing_of}")]);
            }
            sections.push(limits);
        }
        sections
    }
}

fn list(title: &str, statements: &[Statement]) -> Section {
    let mut section = Section::new(title);
    for Statement { text, limits } in statements {
        section.row([format!("* {text}")]);
        if !limits.is_empty() {
            section.row([format!("    {}", beside(limits))]);
        }
    }
    section
}

impl ServerAnswer {
    fn section(&self) -> Section {
        let mut section = Section::new(format!("API SERVER {}", self.server));
        let mut row = |name: &str, value: String| section.row([name.to_owned(), value]);
        if let Some(Instance { started, id_hash }) = &self.instance {
            let since = started.map_or_else(|| "unknown".to_owned(), at);
            row("process", format!("started {since}, identity {}", id_hash.as_deref().unwrap_or("not told")));
        }
        match (self.configurations.as_slice(), self.configuration_matches) {
            _ if self.instance.is_none() => {}
            ([], _) => row("configuration", "does not tell its hash".to_owned()),
            (hashes, matches) => {
                let given = match matches {
                    Some(true) => ", the one that was given",
                    Some(false) => ", NOT the one that was given",
                    None => "",
                };
                row("configuration", format!("{}{given}", hashes.join(", ")));
            }
        }
        for (provider, held) in &self.dek_sources {
            row(
                "DEK sources",
                format!("{held} of {provider}: so many calls of the plugin at its next start, about"),
            );
        }
        let mut since: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
        for one in self.operations.iter().filter(|one| one.direction == "from_storage") {
            let resource = one.resource.as_deref().unwrap_or("all resources");
            *since.entry((resource, &one.prefix, &one.status)).or_default() += one.count;
        }
        for ((resource, prefix, status), count) in since {
            let failed = if status == "OK" { String::new() } else { format!(", FAILED: {status}") };
            row("read since its start", format!("{count} times {resource} under {prefix}{failed}"));
        }
        if !self.limits.is_empty() {
            row("limits", beside(&self.limits));
        }
        section
    }
}

fn key_ids(servers: &[&ServerAnswer]) -> Section {
    let mut section =
        Section::new(format!("KEY IDS since each server's start; {}", beside(&super::judge::OF_KEY_IDS)))
            .head(["SERVER", "PROVIDER", "KEY ID", "WRITTEN", "READ", "LAST GIVEN BY THE PLUGIN", ""]);
    for server in servers {
        for used in &server.key_ids {
            section.row([
                server.server.clone(),
                used.provider.clone(),
                used.key_id.clone().unwrap_or_else(|| used.hash.clone()),
                used.encrypted.to_string(),
                used.decrypted.to_string(),
                used.last_status.map_or_else(|| "-".to_owned(), at),
                if used.is_newest { "newest" } else { "given no more: objects and backups may need it" }
                    .to_owned(),
            ]);
        }
    }
    section
}

impl ResourceAnswer {
    fn section(&self) -> Section {
        let Self { resource, objects, read, .. } = self;
        let title = format!("{resource}  {read} of {objects} objects were read and counted");
        let mut section = Section::new(title).head(["STORED UNDER", "AT LEAST", "AT MOST", ""]);
        let mut row = |name: String, bounds: Bounds, what: &str| {
            section.row([name, bounds.at_least.to_string(), bounds.at_most.to_string(), what.to_owned()]);
        };
        for Class { name, bounds } in &self.stored {
            let plain = matches!(name.as_str(), super::bounds::IDENTITY | super::bounds::UNCOVERED);
            row(name.clone(), *bounds, if plain { "plaintext" } else { "" });
        }
        for Class { name, bounds } in &self.local_keys {
            row(format!("  local key {}", name.trim_end_matches(':')), *bounds, "");
        }
        for KeyIdClass { provider, hash, bounds } in &self.key_ids {
            row(format!("  key id {hash} of {provider}"), *bounds, "");
        }
        let mut note =
            |name: &str, value: String| section.row([name.to_owned(), String::new(), String::new(), value]);
        if self.others > 0 {
            note(
                "others meanwhile",
                format!("{} values were taken from etcd for others: they keep the bounds apart", self.others),
            );
        }
        if self.untold > 0 {
            let why: Vec<&str> = self.silences.iter().map(|silence| silence.what()).collect();
            note("not counted", format!("{} objects: {}", self.untold, why.join("; ")));
        }
        if let Some(error) = &self.error {
            note("PROBLEM", error.clone());
        }
        if !self.limits.is_empty() {
            note("limits", beside(&self.limits));
        }
        section
    }
}

/// Seconds since 1970 for people.
fn at(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}
