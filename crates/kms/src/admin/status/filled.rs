//! The document, filled with what is there now.

use casemate_keys::{Root, WritePolicy};
use casemate_keyservice::guarded::Condition;
use casemate_kms_state::TroubleKind;
use jiff::Timestamp;

use super::*;
use crate::admin::Shown;
use crate::audit::Recorder;
use crate::provider::{self, Provider, Sighting, Snapshot, Standing, WriteKek, class_name};
use crate::reload::Configured;
use crate::traffic::{self, Method, code_name};

impl Document {
    /// What is so now. Asks nobody.
    pub fn of(shown: &Shown) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            time: Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
            configuration: shown.configuration.as_ref().map(ConfigurationStatus::of),
            audit: shown.audit.as_ref().map(AuditStatus::of),
            providers: shown.providers().iter().map(|provider| ProviderStatus::of(provider)).collect(),
        }
    }

    /// The JSON Schema of the document: every field with what it means.
    pub fn schema() -> Schema {
        schemars::schema_for!(Self)
    }
}

impl ConfigurationStatus {
    fn of(held: &Configured) -> Self {
        Self {
            path: held.path.display().to_string(),
            sha256: held.sha256.clone(),
            since: time(held.since),
            reloads: held.reloads,
            refused: held.refused.as_ref().map(|(why, _)| why.clone()),
            refused_since: held.refused.as_ref().map(|(_, since)| time(*since)),
            needs_restart: held.needs_restart,
            not_started: held
                .not_started
                .iter()
                .map(|(name, why)| NotStarted { name: name.clone(), why: why.clone() })
                .collect(),
        }
    }
}

impl AuditStatus {
    fn of(audit: &Recorder) -> Self {
        let head = audit.head();
        Self {
            head: AuditHead { seq: head.seq, hash: head.hash.to_string(), anchor: head.to_string() },
            missed: audit.missed(),
            problem: audit.problem().map(|problem| problem.to_string()),
        }
    }
}

impl ProviderStatus {
    fn of(provider: &Provider) -> Self {
        let (settings, standing) = (provider.settings(), provider.standing());
        let now = (settings.clock)();
        // After the standing: it is published first, so that what writes is in its ledger.
        let snapshot = provider.snapshot();
        let (next_write, not_writing_because) = match &*standing {
            Standing::Writing(kek) | Standing::Failing(kek, _) => {
                (Some(NextWrite::of(kek, &snapshot, now)), None)
            }
            Standing::Refusing(why) => (None, Some(why.clone())),
        };
        let candidate = snapshot.candidate.as_ref();
        let (opened, connections) = (provider.opened_counts(), provider.traffic().connections());
        Self {
            name: provider.name().into(),
            cluster_id: settings.cluster.to_string(),
            epoch: settings.epoch.0,
            writing: next_write.is_some(),
            not_writing_because,
            next_write,
            candidate: candidate.map(|(policy, progress)| Candidate {
                key_id: policy.key_id().to_string(),
                key_id_hash: key_id_hash(policy.key_id().as_str()),
                roots: roots(policy),
                signer: signer(policy),
                sightings: progress.sightings,
                preparing: progress.preparing,
            }),
            refused_reuse: snapshot.refused_reuse.as_ref().map(|key_id| RefusedReuse {
                key_id: key_id.to_string(),
                key_id_hash: key_id_hash(key_id.as_str()),
            }),
            trouble: snapshot.trouble.as_ref().map(Trouble::of),
            last_look: time(snapshot.looked.unix),
            last_observation: snapshot.observed.map(|moment| time(moment.unix)),
            refreshes: Some(Refreshes { asked: provider.refreshes(), done: snapshot.refreshed }),
            root_keys: snapshot.root_keys.iter().map(|key| RootKeyStatus::of(key, now)).collect(),
            readable: Readable::of(provider, &snapshot),
            ledger: Ledger::of(&snapshot),
            opened_keks: OpenedKeks {
                hits: opened.hits,
                sealed_hits: opened.sealed_hits,
                opened: opened.opened,
                joined: opened.joined,
                failed: opened.failed,
                evicted: opened.evicted,
                held: opened.held,
            },
            sealed_cache: provider.sealed_counts().map(|sealed| SealedCache {
                entries: sealed.entries,
                saved: sealed.saved,
                damaged: sealed.damaged,
                problem: sealed.problem,
            }),
            requests: requests(provider.traffic()),
            connections: Connections {
                open: connections.open(),
                accepted: connections.accepted(),
                refused_peers: connections.refused_peers(),
                refused_excess: connections.refused_excess(),
            },
        }
    }
}

impl NextWrite {
    fn of(kek: &WriteKek, snapshot: &Snapshot, now: u64) -> Self {
        let core = kek.record().core();
        let since = snapshot.ledger.iter().rfind(|entry| entry.key_id == *kek.key_id());
        Self {
            key_id: kek.key_id().to_string(),
            key_id_hash: key_id_hash(kek.key_id().as_str()),
            since: since.map(|entry| time(entry.at)),
            local_kek: LocalKek {
                id: core.kek_id.to_string(),
                created: time(core.created),
                age_seconds: now.saturating_sub(core.created),
            },
            roots: roots(&core.policy),
            recovery_recipients: core.policy.recipients().iter().map(ToString::to_string).collect(),
            signer: signer(&core.policy),
        }
    }
}

impl Trouble {
    fn of(wrong: &provider::Wrong) -> Self {
        let kind = match wrong.kind {
            TroubleKind::Refused => "refused",
            _ => "passing",
        };
        Self { kind: kind.into(), message: wrong.message.clone(), since: time(wrong.since) }
    }
}

impl RootKeyStatus {
    fn of(key: &Sighting, now: u64) -> Self {
        let state = match (key.failing_since, key.last_good) {
            (Some(_), _) => "failing",
            (None, Some(_)) => "ok",
            (None, None) => "unknown",
        };
        Self {
            name: key.name.clone(),
            r#use: match key.role {
                provider::Use::Write => "write".into(),
                provider::Use::Read => "read".into(),
            },
            prefix: key.prefix.to_string(),
            state: state.into(),
            version: key.root.as_ref().map(wrapped_under),
            absent: key.key.absent(),
            last_good: key.last_good.map(|moment| time(moment.unix)),
            failing_since: key.failing_since.map(|moment| time(moment.unix)),
            last_error: key.last_failure.as_ref().map(|(failure, at)| RootKeyError {
                class: class_name(failure.class).into(),
                message: failure.to_string(),
                time: time(at.unix),
            }),
            guard: Some(Guard::of(key.key.condition(), now)),
        }
    }
}

impl Guard {
    fn of(condition: Condition, now: u64) -> Self {
        let Condition { breaker, since, own_in_flight, stored_in_flight, counts } = condition;
        Self {
            breaker: breaker.name().into(),
            since: time(now.saturating_sub(since.elapsed().as_secs())),
            own_in_flight,
            stored_in_flight,
            retries: counts.retries,
            fast_failures: counts.fast_failures,
            negative_hits: counts.negative_hits,
            limited: counts.limited,
        }
    }
}

impl Readable {
    fn of(provider: &Provider, snapshot: &Snapshot) -> Self {
        let policy = &provider.settings().read_policy;
        let rule = |rule: &casemate_keys::ReadRule| {
            let key = snapshot.root_keys.iter().find(|key| key.prefix.overlaps(&rule.key));
            ReadRule {
                root_key: key.map_or_else(|| rule.key.to_string(), |key| key.name.clone()),
                prefix: rule.key.to_string(),
                algorithms: rule.algorithms.iter().map(ToString::to_string).collect(),
                min_version: rule.min_version,
            }
        };
        let cluster = |other: &casemate_keys::AcceptedCluster| AcceptedCluster {
            cluster_id: other.cluster.to_string(),
            until: time(other.until),
        };
        Self {
            rules: policy.rules.iter().map(rule).collect(),
            clusters: policy.also_accept.iter().map(cluster).collect(),
        }
    }
}

impl Ledger {
    fn of(snapshot: &Snapshot) -> Self {
        let entry = |entry: &casemate_kms_state::Entry| LedgerEntry {
            key_id: entry.key_id.to_string(),
            key_id_hash: key_id_hash(entry.key_id.as_str()),
            since: time(entry.at),
        };
        Self {
            entries: snapshot.ledger_entries as u64,
            saved: !snapshot.ledger_unsaved,
            last: snapshot.ledger.iter().map(entry).collect(),
        }
    }
}

fn requests(traffic: &traffic::Traffic) -> Vec<Requests> {
    let of_method = |method: Method| {
        traffic.by_code(method).into_iter().map(move |(code, count)| Requests {
            method: method.name().into(),
            code: code_name(code).into(),
            count,
        })
    };
    Method::ALL.into_iter().flat_map(of_method).collect()
}

fn roots(policy: &WritePolicy) -> Vec<WrappedUnder> {
    policy.roots().iter().map(wrapped_under).collect()
}

fn signer(policy: &WritePolicy) -> Option<String> {
    policy.signer().map(ToString::to_string)
}

fn wrapped_under(root: &Root) -> WrappedUnder {
    WrappedUnder { lineage: root.lineage.to_string(), algorithm: root.algorithm.to_string() }
}

fn time(unix: u64) -> String {
    let seconds = i64::try_from(unix).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}
