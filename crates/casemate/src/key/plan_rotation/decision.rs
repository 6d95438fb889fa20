//! What follows from what is seen, as the plugin decides it.
use casemate_keys::{
    ClusterId, Epoch, Fingerprint, KeyId, Lineage, LineagePrefix, ReadPolicy, Root, Suite, WritePolicy,
};
use casemate_keyservice::{Class, Failure};
use casemate_kms::admin::status::ProviderStatus;
use casemate_kms_state::Ledger;
use serde::Serialize;

use crate::host::class_name;
use crate::output::Exit;

/// What writes now.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Active {
    pub(super) key_id: String,
    /// Lineages of its root keys, if they are known.
    pub(super) roots: Vec<String>,
    /// `the running plugin` or `the ledger`.
    pub(super) known_from: &'static str,
}

impl Active {
    /// The running plugin knows best; without one, what is on disk does.
    pub(super) fn of(
        status: Option<&ProviderStatus>,
        ledger: &Ledger,
        record: Option<&WritePolicy>,
    ) -> Option<Self> {
        if let Some(next) = status.and_then(|status| status.next_write.as_ref()) {
            let roots = next.roots.iter().map(|root| root.lineage.clone()).collect();
            return Some(Self { key_id: next.key_id.clone(), roots, known_from: "the running plugin" });
        }
        let last = ledger.last()?;
        let of_last = record.filter(|policy| policy.key_id() == *last);
        let roots = of_last.into_iter().flat_map(WritePolicy::roots).map(|root| root.lineage.to_string());
        Some(Self { key_id: last.to_string(), roots: roots.collect(), known_from: "the ledger" })
    }

    /// What of a root key writes now.
    fn version_of(&self, prefix: &LineagePrefix) -> Option<&String> {
        self.roots.iter().find(|text| covers(prefix, text))
    }
}

fn covers(prefix: &LineagePrefix, lineage: &str) -> bool {
    lineage.parse::<Lineage>().is_ok_and(|lineage| prefix.rest(&lineage).is_some())
}

/// One root key that is to write, as its key service shows it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) prefix: LineagePrefix,
    pub(crate) shows: Result<Root, Failure>,
}

/// All that the decision looks at.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) cluster: ClusterId,
    pub(super) epoch: Epoch,
    pub(super) recipients: Vec<Fingerprint>,
    pub(super) signer: Option<Lineage>,
    pub(super) read_policy: ReadPolicy,
    /// Whether all root keys that write are files.
    pub(super) is_local: bool,
    pub(super) seen: Vec<Seen>,
    pub(super) ledger: Ledger,
    /// What the record on disk is written under.
    pub(super) record: Option<WritePolicy>,
    pub(super) active: Option<Active>,
    /// What the running plugin has seen already.
    pub(super) candidate: Option<String>,
    pub(super) socket: String,
    /// Where the plugin can be hurried; none if the configuration has none.
    pub(super) admin: Option<String>,
}

impl Facts {
    /// What shows the key id that writes.
    fn status(&self) -> String {
        match &self.admin {
            Some(admin) => format!("`casemate kms status --admin {admin}`"),
            None => format!("`casemate kms status --socket {}`", self.socket),
        }
    }
}

/// What the next looks would come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Would {
    /// It goes on.
    NothingChanges { key_id: String },
    /// This writes next.
    Write { key_id: String, because: Vec<String>, when: String },
    /// Nothing new writes: what is seen is not taken.
    Refused { class: &'static str, key_id: Option<String>, message: String },
    /// A root key can't be asked: nothing changes until it can.
    CantTell { class: &'static str, message: String },
}

impl Would {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::NothingChanges { .. } => Exit::Yes,
            Self::Write { .. } | Self::Refused { .. } => Exit::No,
            Self::CantTell { .. } => Exit::Unknown,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::NothingChanges { key_id } => format!("nothing changes: key id {key_id} goes on"),
            Self::Write { key_id, when, .. } => format!("it changes: key id {key_id} writes {when}"),
            Self::Refused { class, key_id: Some(key_id), message } => {
                format!("it is refused ({class}): key id {key_id} does not write: {message}")
            }
            Self::Refused { class, key_id: None, message } => format!("it is refused ({class}): {message}"),
            Self::CantTell { class, message } => {
                format!("can't tell ({class}): {message}. Nothing changes until it answers")
            }
        }
    }

    /// What of it comes true if the running plugin goes on with an older configuration, and what is next then.
    pub(super) fn unless_refused(self, next: Vec<String>, why: &str) -> (Self, Vec<String>) {
        let Self::Write { key_id, .. } = self else { return (self, next) };
        let message = format!(
            "nothing: the running plugin does not take this configuration over: {}; restart it",
            why.trim_end_matches('.')
        );
        let next = vec![format!("restart casemate-kms: then key id {key_id} can write; look again before")];
        (Self::Refused { class: "configuration", key_id: None, message }, next)
    }

    pub(super) fn because(&self) -> &[String] {
        match self {
            Self::Write { because, .. } => because,
            _ => &[],
        }
    }
}

/// What would happen, and what the admin does next, in order.
pub(super) fn decide(facts: &Facts) -> (Would, Vec<String>) {
    let mut roots = Vec::new();
    let mut failures = Vec::new();
    for seen in &facts.seen {
        match &seen.shows {
            Ok(root) => roots.push(root.clone()),
            Err(failure) => failures.push((&seen.name, failure)),
        }
    }
    if let Some((name, gravest)) = failures.into_iter().max_by_key(|(_, failure)| gravity(failure.class)) {
        return not_observed(name, gravest);
    }
    let refused = |class, key_id: Option<&KeyId>, message: String, next: Vec<String>| {
        (Would::Refused { class, key_id: key_id.map(ToString::to_string), message }, next)
    };
    for root in &roots {
        if let Err(reason) = facts.read_policy.may_ask(root) {
            let message = format!(
                "root key {} should write and {reason}: what it wrote could not be read back; what wrote before goes on",
                root.lineage
            );
            let next =
                "deliver the current key file to this node, or correct minReadVersion in the configuration";
            return refused("not_readable", None, message, vec![next.into()]);
        }
    }
    let (cluster, recipients, signer) =
        (facts.cluster.clone(), facts.recipients.clone(), facts.signer.clone());
    let policy = match WritePolicy::new(Suite::One, cluster, facts.epoch, roots, recipients, signer) {
        Ok(policy) => policy,
        Err(error) => {
            let next = "correct rootKeys or recoveryRecipients in the configuration";
            return refused("configuration", None, error.to_string(), vec![next.into()]);
        }
    };
    let key_id = policy.key_id();
    if facts.active.as_ref().is_some_and(|active| active.key_id == key_id.as_str()) {
        return (Would::NothingChanges { key_id: key_id.to_string() }, Vec::new());
    }
    if facts.ledger.was_superseded(&key_id) {
        let (epoch, raised) = (facts.epoch.0, facts.epoch.0.saturating_add(1));
        let next = vec![
            "find out why an older version is back: an old key file or configuration was delivered, or the version or label \
             in the key service was set back; correct it"
                .into(),
            format!("if it is meant: raise `epoch` from {epoch} to {raised} on all nodes, which makes another key id of it"),
        ];
        let message = "it was active on this node before, and another one since: none comes back by itself";
        return refused("reuse", Some(&key_id), message.into(), next);
    }
    let (because, next) = (because(facts, &policy), next_steps(facts, &policy));
    (Would::Write { key_id: key_id.to_string(), because, when: when(facts, &key_id) }, next)
}

/// The root key that says no outweighs the one that can't be asked.
fn gravity(class: Class) -> u8 {
    match class {
        Class::Refused => 4,
        Class::Corrupt | Class::NotOpened => 3,
        Class::Undecided => 2,
        _ => 1,
    }
}

fn not_observed(name: &str, failure: &Failure) -> (Would, Vec<String>) {
    let (class, next) = (class_name(failure.class), vec![failure.remedy.clone()]);
    let message = format!("root key {name}: {}", failure.what);
    if failure.class.could_not_be_asked() {
        return (Would::CantTell { class, message }, next);
    }
    let follows = match failure.class {
        Class::Undecided => "what was confirmed last goes on",
        Class::Refused => {
            "what wrote before goes on; if this root key has wrapped it, new writes stop after two minutes"
        }
        _ => "what wrote before goes on",
    };
    (Would::Refused { class, key_id: None, message: format!("{message}; {follows}") }, next)
}

/// What differs from what writes now.
fn because(facts: &Facts, policy: &WritePolicy) -> Vec<String> {
    let Some(active) = &facts.active else {
        return vec![
            "nothing has written on this node yet: the first look after the start counts for two".into(),
        ];
    };
    let mut because = Vec::new();
    for seen in &facts.seen {
        let Ok(Root { lineage, .. }) = &seen.shows else { continue };
        match active.version_of(&seen.prefix) {
            Some(before) if before == lineage.as_str() => {}
            Some(before) => {
                because.push(format!("root key {}: {before} writes now, {lineage} is shown", seen.name));
            }
            None if active.roots.is_empty() => {}
            None => because.push(format!("root key {} ({lineage}) did not write before", seen.name)),
        }
    }
    let gone = active.roots.iter().filter(|root| !facts.seen.iter().any(|seen| covers(&seen.prefix, root)));
    because
        .extend(gone.map(|root| format!("{root} writes now, and its root key is not in rootKeys any more")));
    let of_active = |record: &&WritePolicy| record.key_id().as_str() == active.key_id;
    let Some(before) = facts.record.as_ref().filter(of_active) else { return because };
    if before.epoch() != policy.epoch() {
        because.push(format!("epoch: {} before, {} now", before.epoch().0, policy.epoch().0));
    }
    if before.cluster() != policy.cluster() {
        because.push(format!("clusterId: {} before, {} now", before.cluster(), policy.cluster()));
    }
    if before.recipients() != policy.recipients() {
        let (before, now) = (before.recipients().len(), policy.recipients().len());
        because.push(format!("recoveryRecipients: {before} before, {now} now, and not the same"));
    }
    if before.signer() != policy.signer() {
        let [before, now] =
            [before, policy].map(|policy| policy.signer().map_or("none", |signer| signer.as_str()));
        because.push(format!("signer: {before} before, {now} now"));
    }
    because
}

fn when(facts: &Facts, key_id: &KeyId) -> String {
    let seen = facts.candidate.as_deref() == Some(key_id.as_str());
    let already = if seen { "; the running plugin has seen it already" } else { "" };
    match (&facts.active, facts.is_local) {
        (None, _) => "as soon as the plugin runs".into(),
        (_, true) => format!("60 seconds from now at the latest{already}"),
        (_, false) => {
            let sooner = facts.admin.as_ref().map_or(String::new(), |admin| {
                format!(", or some seconds after `casemate kms refresh --wait --admin {admin}`")
            });
            format!("7 minutes from now at the latest (two looks){sooner}{already}")
        }
    }
}

/// The order that no node can get wrong: everybody reads first.
fn next_steps(facts: &Facts, policy: &WritePolicy) -> Vec<String> {
    let Some(active) = &facts.active else {
        return vec![format!("start the plugin; then look at it with {}", facts.status())];
    };
    let mut next = Vec::new();
    for Seen { name, prefix, shows } in &facts.seen {
        let Ok(Root { lineage, .. }) = shows else { continue };
        let before = active.version_of(prefix);
        if before.is_some_and(|before| before == lineage.as_str()) {
            continue;
        }
        let on_each = "see on every control plane node that";
        next.push(match lineage.kind() {
            _ if before.is_none() && !active.roots.is_empty() => format!(
                "{on_each} root key {name} can be read there: under readKeys first, and only then under rootKeys anywhere"
            ),
            "file" => format!(
                "{on_each} its key file has {lineage} (`casemate key list`); deliver the file where it has not"
            ),
            "pkcs11" => {
                format!("{on_each} its token has {lineage}, and that `keys` in its configuration lists it")
            }
            _ => format!("{on_each} `casemate key plan-rotation` shows {lineage} there, too"),
        });
    }
    next.push(match &facts.admin {
        Some(admin) => format!("on every node: `casemate kms refresh --wait --admin {admin}`, or wait"),
        None => {
            "wait; with `admin: {endpoint: …}` in its configuration, `casemate kms refresh` hurries a plugin"
                .into()
        }
    });
    next.push(format!(
        "when every node names key id {} ({}), migrate storage; keep what wrote before readable until nothing needs it",
        policy.key_id(),
        facts.status()
    ));
    next
}

#[cfg(test)]
mod tests;
