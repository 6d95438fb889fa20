//! What an outage of the root keys would do now, by the configured rules and by what is on disk.
use casemate_kms_state::outage::{OnRefused, Policy, Reply, Rules, State, row};
use serde::Serialize;

use super::facts::ProviderFacts;

/// Of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outage {
    pub(super) provider: String,
    status: &'static str,
    writes: String,
    reads: String,
    restart: String,
}

impl Outage {
    pub(super) fn of(facts: &ProviderFacts) -> Self {
        let (status, writes) = match (row(State::Outage, &facts.rules).status, facts.rules.policy) {
            (Reply::Ok, Policy::Coast { until: Some(until) }) => {
                ("ok", format!("go on for {} s, then Status fails and they are refused", until.as_secs()))
            }
            (Reply::Ok, _) => ("ok", "go on for as long as it lasts".into()),
            (Reply::NotOk, Policy::FailAfter(until)) => {
                ("not ok", format!("go on for {} s, then Status fails and they are refused", until.as_secs()))
            }
            (Reply::NotOk, _) => ("not ok", "go on".into()),
            (Reply::Error, _) => ("an error", "are refused at once".into()),
        };
        Self {
            provider: facts.name.clone(),
            status,
            writes,
            reads: reads(&facts.rules),
            restart: match facts.sealed.as_ref().map(|sealed| &sealed.found) {
                None => "would not come up before it ends: there is no sealed cache".into(),
                Some(Ok(Some((entries @ 1.., _)))) => {
                    format!("would come up: the sealed cache has {entries} local KEKs")
                }
                Some(Ok(_)) => "would not come up before it ends: the sealed cache is empty".into(),
                Some(Err(_)) => "would not come up before it ends: the sealed cache does not open".into(),
            },
        }
    }

    pub(super) fn text(&self) -> String {
        let Self { provider: _, status, writes, reads, restart } = self;
        format!(
            "Status says {status}; writes {writes}; reads {reads}; a restart {restart} (docs/reference/outages.md#states)"
        )
    }
}

fn reads(rules: &Rules) -> String {
    let wiped = match rules.on_refused {
        OnRefused::KeepReads => "",
        OnRefused::Wipe => ", until the root key says no, which wipes them",
    };
    format!("go on from opened local KEKs{wiped}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::doctor::facts::SealedFacts;
    use crate::doctor::findings::healthy;

    #[test]
    fn each_policy_and_each_sealed_cache_is_told() {
        let minute = Duration::from_secs(60);
        let sealed = |found| Some(SealedFacts { found, is_beside_its_secret: false });
        let wipe = OnRefused::Wipe;
        for (policy, on_refused, sealed, says) in [
            (
                Policy::default(),
                wipe,
                None,
                "Status says ok; writes go on for as long as it lasts; reads go on from opened local KEKs, until the root key says no",
            ),
            (Policy::Coast { until: Some(minute) }, wipe, None, "writes go on for 60 s, then Status fails"),
            (Policy::FailAfter(minute), wipe, None, "Status says not ok; writes go on for 60 s"),
            (Policy::FailClosed, wipe, None, "Status says an error; writes are refused at once"),
            (
                Policy::default(),
                OnRefused::KeepReads,
                sealed(Ok(Some((3, 0)))),
                "KEKs; a restart would come up: the sealed cache has 3",
            ),
            (Policy::default(), wipe, sealed(Ok(None)), "the sealed cache is empty"),
            (Policy::default(), wipe, sealed(Err("no".into())), "does not open"),
            (Policy::default(), wipe, None, "there is no sealed cache"),
        ] {
            let mut facts = healthy().providers.remove(0);
            (facts.rules, facts.sealed) = (Rules { policy, on_refused }, sealed);
            let text = Outage::of(&facts).text();
            assert!(text.contains(says), "{says}: {text}");
        }
    }
}
