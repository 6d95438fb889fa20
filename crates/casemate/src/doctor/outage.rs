//! What an outage of the root keys would do now, or does: by the configured rules, by what is on disk, and by what the
//! running plugin holds.
use std::time::Duration;

use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms_state::outage::{OnRefused, Policy, Reply, Rules, State, row};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::facts::{KeyFacts, ProviderFacts};

/// Of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outage {
    pub(super) provider: String,
    /// Whether it is out already: the plugin is not answered by a root key that writes.
    pub(super) has_begun: bool,
    /// Each root key whose outage it would be.
    root_keys: Vec<String>,
    status: &'static str,
    writes: String,
    reads: String,
    restart: String,
}

impl Outage {
    pub(super) fn of(facts: &ProviderFacts, document: Option<&Document>) -> Self {
        let status =
            document.and_then(|document| document.providers.iter().find(|one| one.name == facts.name));
        let writing: Vec<&KeyFacts> = facts.keys.iter().filter(|key| key.writes).collect();
        let out: Vec<&KeyFacts> =
            writing.iter().copied().filter(|key| status.is_some() && is_out(key)).collect();
        let has_begun = !out.is_empty();
        let since = out.iter().filter_map(|key| key.failing_since.as_ref()?.parse::<Timestamp>().ok()).min();
        let others = writing.len() - if has_begun { out.len() } else { writing.len().min(1) };
        let ends = |within: Duration| match since {
            Some(since) => {
                let end = since.checked_add(within).unwrap_or(Timestamp::MAX);
                format!("go on until {end}, then Status fails and they are refused")
            }
            None => format!("go on for {}, then Status fails and they are refused", in_words(within)),
        };
        let (status_says, writes) = match (row(State::Outage, &facts.rules).status, facts.rules.policy) {
            (Reply::Ok, Policy::Coast { until: Some(until) }) => ("ok", ends(until)),
            (Reply::Ok, _) => ("ok", "go on for as long as it lasts".into()),
            (Reply::NotOk, Policy::FailAfter(until)) => ("not ok", ends(until)),
            (Reply::NotOk, _) => ("not ok", "go on".into()),
            (Reply::Error, _) => ("an error", "are refused at once".into()),
        };
        let until_then = |why: &str| {
            let so = if has_begun { "leave it running" } else { "it would have to run on" };
            format!("does not come up before it ends, since {why}: {so}")
        };
        Self {
            provider: facts.name.clone(),
            has_begun,
            root_keys: if has_begun { out } else { writing }.iter().map(|key| key.name.clone()).collect(),
            status: status_says,
            writes,
            reads: reads(&facts.rules, others, status),
            restart: match facts.sealed.as_ref().map(|sealed| &sealed.found) {
                None => until_then("there is no sealed cache"),
                Some(Ok(Some((entries @ 1.., _)))) => {
                    format!("comes up: the sealed cache has {entries} local KEKs")
                }
                Some(Ok(_)) => until_then("the sealed cache is empty"),
                Some(Err(_)) => until_then("the sealed cache does not open"),
            },
        }
    }

    pub(super) fn rows(&self) -> Vec<[String; 2]> {
        let Self { provider, has_begun, root_keys, status, writes, reads, restart } = self;
        let whose = match &root_keys[..] {
            [] => "its root key".into(),
            [one] => format!("root key {one}"),
            [all @ .., last] => format!("root key {} or {last}", all.join(", ")),
        };
        let of = if *has_begun { "under way, of" } else { "if there was one now, of" };
        let row = |name: &str, text: String| [format!("  {name}"), text];
        vec![
            ["outage".into(), format!("provider {provider}: {of} {whose}")],
            row("status", format!("says {status}")),
            row("writes", writes.clone()),
            row("reads", reads.clone()),
            row("restart", restart.clone()),
            row("see", "docs/reference/outages.md#states".into()),
        ]
    }
}

/// Whether the plugin is not answered, so that its policy's time runs: a lost credential coasts under all of them.
fn is_out(key: &KeyFacts) -> bool {
    key.running.as_ref().is_some_and(|(class, _)| matches!(&**class, "unreachable" | "throttled" | "corrupt"))
}

fn in_words(time: Duration) -> String {
    SignedDuration::try_from(time)
        .map_or_else(|_| format!("{} s", time.as_secs()), |time| format!("{time:#}"))
}

fn reads(rules: &Rules, others: usize, status: Option<&ProviderStatus>) -> String {
    let opened = match status.map(|status| status.opened_keks.held) {
        Some(1) => "the one local KEK that is opened".into(),
        Some(held) => format!("the {held} local KEKs that are opened"),
        None => "opened local KEKs".into(),
    };
    let wiped = match rules.on_refused {
        OnRefused::KeepReads => "",
        OnRefused::Wipe => ", until the root key says no, which wipes them",
    };
    let rest = if others > 0 {
        "; what else is read, another root key opens"
    } else {
        "; what else is read has to wait"
    };
    format!("go on from {opened}{wiped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::SealedFacts;
    use crate::doctor::findings::healthy;

    fn told(change: impl FnOnce(&mut ProviderFacts)) -> String {
        let facts = healthy();
        let mut provider = facts.providers[0].clone();
        change(&mut provider);
        let outage = Outage::of(&provider, facts.status.as_ref().and_then(|status| status.as_ref().ok()));
        outage.rows().iter().map(|[name, text]| format!("{}: {text}; ", name.trim())).collect()
    }

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
                "if there was one now, of root key main; status: says ok; writes: go on for as long as it lasts; reads: go on from \
                 the one local KEK that is opened, until the root key says no, which wipes them; what else is read has to wait",
            ),
            (Policy::Coast { until: Some(minute) }, wipe, None, "writes: go on for 1m, then Status fails"),
            (Policy::FailAfter(minute), wipe, None, "says not ok; writes: go on for 1m"),
            (Policy::FailClosed, wipe, None, "says an error; writes: are refused at once"),
            (
                Policy::default(),
                OnRefused::KeepReads,
                sealed(Ok(Some((3, 0)))),
                "has to wait; restart: comes up: the sealed cache has 3",
            ),
            (Policy::default(), wipe, sealed(Ok(None)), "the sealed cache is empty"),
            (Policy::default(), wipe, sealed(Err("no".into())), "does not open"),
            (Policy::default(), wipe, None, "there is no sealed cache"),
        ] {
            let text = told(|facts| (facts.rules, facts.sealed) = (Rules { policy, on_refused }, sealed));
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn one_that_is_under_way_has_an_end_and_a_second_root_key_reads() {
        let rules = Rules {
            policy: Policy::Coast { until: Some(Duration::from_secs(600)) },
            on_refused: OnRefused::KeepReads,
        };
        let out = |facts: &mut ProviderFacts, class: &str| {
            (facts.rules, facts.sealed) = (rules, None);
            facts.keys[0].running = Some((class.into(), "no".into()));
            facts.keys[0].failing_since = Some("2027-01-15T08:00:00Z".into());
        };
        let text = told(|facts| out(facts, "throttled"));
        assert!(
            text.contains("under way")
                && text.contains("leave it running")
                && text.contains("go on until 2027-01-15T08:10:00Z,"),
            "{text}"
        );
        // A lost credential is no outage.
        let text = told(|facts| out(facts, "credential"));
        assert!(text.contains("if there was one now") && text.contains("go on for 10m"), "{text}");
        let text = told(|facts| {
            let hsm = KeyFacts { name: "hsm".into(), ..facts.keys[0].clone() };
            facts.keys.push(hsm);
        });
        assert!(text.contains("root key main or hsm") && text.contains("another root key opens"), "{text}");
        // Of two, the one that is out is named.
        let text = told(|facts| {
            let hsm = KeyFacts { name: "hsm".into(), ..facts.keys[0].clone() };
            facts.keys.push(hsm);
            out(facts, "corrupt");
        });
        assert!(text.contains("of root key main;") && text.contains("another root key opens"), "{text}");
    }
}
