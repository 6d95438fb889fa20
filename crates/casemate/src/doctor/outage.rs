//! What an outage of the root keys would do now, or does: by the configured rules, by what is on disk, and by what the
//! running plugin holds.
use std::time::Duration;

use casemate_keyservice::Class;
use casemate_kms::admin::status::ProviderStatus;
use casemate_kms_state::outage::{OnRefused, Policy, Reply, Rules, State, row};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::facts::{Facts, KeyFacts, ProviderFacts};
use crate::host::class_name;

/// Of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outage {
    pub(super) provider: String,
    /// Whether it is out already: a root key that writes does not answer the plugin, or does not answer here.
    pub(super) has_begun: bool,
    /// Each root key whose outage it would be.
    root_keys: Vec<String>,
    status: &'static str,
    writes: String,
    reads: String,
    restart: String,
    /// What is to be known, if the plugin has not met it yet.
    noticed: Option<String>,
}

/// What the plugin does at this moment.
#[derive(Clone, Copy)]
enum Now<'a> {
    Down,
    /// It runs, and nothing has been active since its start.
    Starting,
    /// It does not write for another reason, which it says.
    Refuses(&'a str),
    Writes,
}

impl<'a> Now<'a> {
    fn of(facts: &ProviderFacts, status: Option<&'a ProviderStatus>) -> Self {
        match status {
            None if facts.answer.as_ref().is_err_and(|why| !why.is_running) => Self::Down,
            Some(status) if !status.writing && status.last_observation.is_none() => Self::Starting,
            Some(status) if !status.writing => {
                Self::Refuses(status.not_writing_because.as_deref().unwrap_or("see its log"))
            }
            _ => Self::Writes,
        }
    }
}

impl Outage {
    pub(super) fn of(facts: &ProviderFacts, all: &Facts) -> Self {
        let document = all.status.as_ref().and_then(|status| status.as_ref().ok());
        let status =
            document.and_then(|document| document.providers.iter().find(|one| one.name == facts.name));
        let now = Now::of(facts, status);
        let writing: Vec<&KeyFacts> = facts.keys.iter().filter(|key| key.writes).collect();
        let fails = |key: &&KeyFacts| outage(key).is_some();
        let (out, ahead): (Vec<&KeyFacts>, Vec<&KeyFacts>) =
            writing.iter().copied().filter(fails).partition(|key| key.running.is_some() || !all.is_refused());
        let has_begun = !out.is_empty();
        let since = out.iter().filter_map(|key| key.failing_since.as_ref()?.parse::<Timestamp>().ok()).min();
        let others = writing.len() - if has_begun { out.len() } else { writing.len().min(1) };
        let unnoticed = status.is_some() && out.iter().any(|key| key.running.is_none());
        let (status_says, writes) = match now {
            Now::Down => ("nothing: the plugin does not run", "are not served".into()),
            Now::Starting => ("an error", "are refused: nothing has been active since its start".into()),
            Now::Refuses(why) => ("an error", format!("are refused: {why}")),
            Now::Writes => by_policy(&facts.rules, since),
        };
        let restart = restart(facts, now, &out);
        Self {
            provider: facts.name.clone(),
            has_begun,
            root_keys: if has_begun { out } else { writing }.iter().map(|key| key.name.clone()).collect(),
            status: status_says,
            writes,
            reads: match now {
                Now::Down => "are not served".into(),
                _ => reads(&facts.rules, others, status),
            },
            restart,
            noticed: if let Some(key) = ahead.first() {
                Some(format!(
                    "root key {} fails with the file as it is now, which the plugin has refused: a restart would meet that",
                    key.name
                ))
            } else {
                unnoticed.then(|| {
                    format!("not by the plugin yet: it looks every 200 s; {} makes it look", all.look_again())
                })
            },
        }
    }

    pub(super) fn rows(&self) -> Vec<[String; 2]> {
        let Self { provider, has_begun, root_keys, status, writes, reads, restart, noticed } = self;
        let whose = match &root_keys[..] {
            [] => "its root key".into(),
            [one] => format!("root key {one}"),
            [all @ .., last] => format!("root key {} or {last}", all.join(", ")),
        };
        let of = if *has_begun { "under way, of" } else { "if there was one now, of" };
        let row = |name: &str, text: String| [format!("  {name}"), text];
        let mut rows = vec![["outage".into(), format!("provider {provider}: {of} {whose}")]];
        rows.extend(noticed.iter().map(|text| row("noticed", text.clone())));
        rows.extend([
            row("status", format!("says {status}")),
            row("writes", writes.clone()),
            row("reads", reads.clone()),
            row("restart", restart.clone()),
            row("see", "docs/reference/outages.md#states".into()),
        ]);
        rows
    }
}

/// What Status says in an outage, and until when is written.
fn by_policy(rules: &Rules, since: Option<Timestamp>) -> (&'static str, String) {
    let ends = |within: Duration| match since {
        Some(since) => {
            let end = since.checked_add(within).unwrap_or(Timestamp::MAX);
            format!("go on until {end}, then Status fails and they are refused")
        }
        None => format!("go on for {}, then Status fails and they are refused", in_words(within)),
    };
    match (row(State::Outage, rules).status, rules.policy) {
        (Reply::Ok, Policy::Coast { until: Some(until) }) => ("ok", ends(until)),
        (Reply::Ok, _) => ("ok", "go on for as long as it lasts".into()),
        (Reply::NotOk, Policy::FailAfter(until)) => ("not ok", ends(until)),
        (Reply::NotOk, _) => ("not ok", "go on".into()),
        (Reply::Error, _) => ("an error", "are refused at once".into()),
    }
}

/// What comes of a restart, or of a start, while these are out.
///
/// What was active last is gone on with if its record opens, by a root key or by the sealed cache; but not if a root key has
/// answered, and with what can't be.
fn restart(facts: &ProviderFacts, now: Now<'_>, out: &[&KeyFacts]) -> String {
    if let Some(key) = out.iter().find(|key| outage(key) == Some(class_name(Class::Corrupt))) {
        let why = format!("what root key {} answers is no outage to start in", key.name);
        return match now {
            Now::Down => format!("a start does not come up, since {why}"),
            Now::Starting => format!("changes nothing, since {why}"),
            _ => format!("does not come up before it ends, since {why}: leave it running"),
        };
    }
    let sealed = match facts.sealed.as_ref().map(|sealed| &sealed.found) {
        None => Err(("there is no sealed cache", "")),
        Some(Ok(Some((entries @ 1.., _)))) => Ok(format!("the sealed cache has {}", keks(*entries))),
        Some(Ok(_)) => Err(("the sealed cache is empty", "")),
        Some(Err(_)) => Err(("the sealed cache does not open", "deliver what opens it, or ")),
    };
    let opens = opener(facts, out).map_or(sealed, Ok);
    match (now, opens) {
        (Now::Down, Ok(by)) => format!("a start comes up: {by}"),
        (Now::Down, Err((why, or))) => {
            format!("a start does not come up, since {why}: {or}bring the key service back")
        }
        (Now::Starting, Ok(by)) => format!("comes up now: {by}"),
        (Now::Starting, Err((why, or))) => {
            format!("changes nothing, since {why}: {or}bring the key service back")
        }
        (_, Ok(by)) => format!("comes up: {by}"),
        (_, Err((why, _))) => {
            let so = if out.is_empty() { "it would have to run on" } else { "leave it running" };
            format!("does not come up before it ends, since {why}: {so}")
        }
    }
}

/// The root key that opens what this node wrote last while these are out; if none is, while any one of them would be.
fn opener(facts: &ProviderFacts, out: &[&KeyFacts]) -> Option<String> {
    let is_out = |key: &KeyFacts| out.iter().any(|other| other.name == key.name);
    let opens = |key: &&KeyFacts| key.writes && matches!(key.opens_record, Some(Ok(()))) && !is_out(key);
    let able: Vec<&KeyFacts> = facts.keys.iter().filter(opens).collect();
    match (out.is_empty(), &able[..]) {
        (true, [_, _, ..]) => Some("another root key opens what this node wrote last".into()),
        (false, [one, ..]) => Some(format!("root key {} opens what this node wrote last", one.name)),
        _ => None,
    }
}

/// Its class, if the plugin, or this command, is not answered, so that its policy's time runs: a lost credential coasts
/// under all of them.
fn outage(key: &KeyFacts) -> Option<&str> {
    let is_outage =
        |class: &&str| [Class::Unreachable, Class::Throttled, Class::Corrupt].map(class_name).contains(class);
    if let Some((class, _)) = &key.running {
        return Some(class.as_str()).filter(is_outage);
    }
    let observed = key.observed.as_ref().and_then(|observed| observed.as_ref().err());
    let tried = [&key.wrapped, &key.opened].into_iter().flatten().filter_map(|tried| tried.as_ref().err());
    observed.into_iter().chain(tried).map(|failure| class_name(failure.class)).find(is_outage)
}

fn keks(count: u64) -> String {
    if count == 1 { "1 local KEK".into() } else { format!("{count} local KEKs") }
}

fn in_words(time: Duration) -> String {
    SignedDuration::try_from(time)
        .map_or_else(|_| format!("{} s", time.as_secs()), |time| format!("{time:#}"))
}

fn reads(rules: &Rules, others: usize, status: Option<&ProviderStatus>) -> String {
    let opened = match status.map(|status| status.opened_keks.held) {
        Some(0) => None,
        Some(1) => Some("the one local KEK that is opened".into()),
        Some(held) => Some(format!("the {held} local KEKs that are opened")),
        None => Some("opened local KEKs".into()),
    };
    let sealed = status.and_then(|status| status.sealed_cache.as_ref());
    let sealed = sealed.filter(|sealed| sealed.problem.is_none() && sealed.entries > 0);
    let sealed = sealed.map(|sealed| format!("the sealed cache ({})", keks(sealed.entries)));
    let from: Vec<String> = opened.into_iter().chain(sealed).collect();
    match (&from[..], others) {
        ([], 0) => return "have to wait: no local KEK is opened".into(),
        ([], _) => return "no local KEK is opened; what is read, another root key opens".into(),
        _ => {}
    }
    let wiped = match rules.on_refused {
        OnRefused::KeepReads => "",
        OnRefused::Wipe => ", until the root key says no, which wipes them",
    };
    let rest = if others > 0 {
        "; what else is read, another root key opens"
    } else {
        "; what else is read has to wait"
    };
    format!("go on from {}{wiped}{rest}", from.join(" and "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use casemate_keyservice::Failure;
    use serde_json::{Value, json};

    use super::*;
    use crate::doctor::facts::{NoAnswer, SealedFacts};
    use crate::doctor::findings::healthy;

    fn told(change: impl FnOnce(&mut ProviderFacts)) -> String {
        told_by(&healthy(), change)
    }

    fn told_by(facts: &Facts, change: impl FnOnce(&mut ProviderFacts)) -> String {
        let mut provider = facts.providers[0].clone();
        change(&mut provider);
        let outage = Outage::of(&provider, facts);
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
                "has to wait; restart: comes up: the sealed cache has 3 local KEKs",
            ),
            (Policy::default(), wipe, sealed(Ok(None)), "the sealed cache is empty"),
            (Policy::default(), wipe, sealed(Err("no".into())), "does not open"),
            (
                Policy::default(),
                wipe,
                None,
                "restart: does not come up before it ends, since there is no sealed cache",
            ),
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
        let two = |class: &'static str, change: fn(&mut KeyFacts)| {
            told(|facts| {
                let mut hsm = KeyFacts { name: "hsm".into(), ..facts.keys[0].clone() };
                change(&mut hsm);
                facts.keys.push(hsm);
                out(facts, class);
            })
        };
        let text = two("throttled", |_| ());
        assert!(
            text.contains("of root key main;") && text.contains("what else is read, another root key opens"),
            "{text}"
        );
        // What the other one opens comes up, and nothing else does.
        assert!(text.contains("restart: comes up: root key hsm opens what this node wrote last;"), "{text}");
        let text = two("throttled", |hsm| hsm.opens_record = None);
        assert!(
            text.contains("restart: does not come up before it ends, since there is no sealed cache"),
            "{text}"
        );
        let text = two("throttled", |hsm| hsm.writes = false);
        assert!(text.contains("restart: does not come up before it ends"), "{text}");
        let text = two("throttled", |hsm| hsm.running = Some(("unreachable".into(), "no".into())));
        assert!(text.contains("of root key main or hsm;") && text.contains("does not come up"), "{text}");
        // Nobody goes on with what a root key answers wrongly, whoever else opens it.
        let text = two("corrupt", |_| ());
        assert!(
            text.contains("what root key main answers is no outage to start in: leave it running"),
            "{text}"
        );
        // Either may go, as long as the other one is there.
        let text = told(|facts| {
            facts.sealed = None;
            facts.keys.push(KeyFacts { name: "hsm".into(), ..facts.keys[0].clone() });
        });
        assert!(
            text.contains("restart: comes up: another root key opens what this node wrote last;"),
            "{text}"
        );
    }

    /// Of which the plugin says that.
    fn saying(change: impl FnOnce(&mut Value)) -> Facts {
        let mut facts = healthy();
        let mut document = serde_json::to_value(facts.status.unwrap().unwrap()).unwrap();
        change(&mut document["providers"][0]);
        facts.status = Some(Ok(serde_json::from_value(document).unwrap()));
        facts
    }

    #[test]
    fn a_plugin_that_has_nothing_active_neither_writes_nor_reads_and_a_restart_changes_nothing() {
        let starting = |sealed_entries: u64, problem: Option<&str>| {
            saying(|status| {
                status["writing"] = false.into();
                status["not_writing_because"] = "starting".into();
                status["opened_keks"]["held"] = 0.into();
                status["sealed_cache"] =
                    json!({"entries": sealed_entries, "saved": true, "damaged": 0, "problem": problem});
            })
        };
        let out = |found: Option<Result<Option<(u64, u64)>, String>>| {
            move |facts: &mut ProviderFacts| {
                facts.keys[0].running = Some(("unreachable".into(), "no".into()));
                facts.sealed = found.map(|found| SealedFacts { found, is_beside_its_secret: false });
            }
        };
        let text = told_by(&starting(0, Some("no such file")), out(Some(Err("no such file".into()))));
        for says in [
            "under way",
            "status: says an error; writes: are refused: nothing has been active",
            "reads: have to wait: no local KEK is opened;",
            "restart: changes nothing, since the sealed cache does not open: deliver what opens it, or bring the key \
             service back",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        let text = told_by(&starting(0, None), out(None));
        assert!(text.contains("there is no sealed cache: bring the key service back"), "{text}");
        let text = told_by(&starting(1, None), out(Some(Ok(Some((1, 0))))));
        assert!(
            text.contains("go on from the sealed cache (1 local KEK);")
                && text.contains("restart: comes up now: the sealed cache has 1 local KEK;"),
            "{text}"
        );
        // One that has written, and does not any more.
        let ended = saying(|status| {
            status["writing"] = false.into();
            status["not_writing_because"] = "it has lasted too long".into();
            status["last_observation"] = "2027-01-15T08:00:00Z".into();
        });
        let text = told_by(&ended, out(None));
        assert!(
            text.contains("are refused: it has lasted too long;")
                && text.contains("the one local KEK")
                && text.contains("leave it running"),
            "{text}"
        );
    }

    #[test]
    fn what_only_this_command_has_met_is_told_too_and_so_is_what_a_start_would_do() {
        let out = |facts: &mut ProviderFacts| {
            facts.keys[0].observed = Some(Err(Failure::new(Class::Unreachable, "no answer", "mend it")));
        };
        let text = told(out);
        assert!(
            text.contains("under way, of root key main; noticed: not by the plugin yet")
                && text.contains("--admin unix:///run/admin.sock` makes it look; status: says ok"),
            "{text}"
        );
        let text = told(|facts| {
            out(facts);
            facts.keys[0].running = Some(("unreachable".into(), "no".into()));
        });
        assert!(text.contains("under way") && !text.contains("noticed"), "{text}");
        // By a file that the plugin has not taken over: it knows nothing of that.
        let mut refusing = healthy();
        let mut document = serde_json::to_value(refusing.status.unwrap().unwrap()).unwrap();
        document["configuration"]["refused"] = "another token, which needs a restart".into();
        refusing.status = Some(Ok(serde_json::from_value(document).unwrap()));
        let text = told_by(&refusing, out);
        assert!(
            text.contains("if there was one now, of root key main; noticed: root key main fails with the file as it is now")
                && !text.contains("makes it look"),
            "{text}"
        );
        // Nothing runs.
        let facts = Facts { status: Some(Err("nobody listens".into())), ..healthy() };
        let silence = || Err(NoAnswer { why: "nobody listens".into(), is_running: false });
        let text = told_by(&facts, |facts| {
            out(facts);
            facts.answer = silence();
        });
        assert!(
            text.contains("the plugin does not run; writes: are not served; reads: are not served; restart: a start comes up: \
                           the sealed cache has 3 local KEKs"),
            "{text}"
        );
        let text = told_by(&facts, |facts| {
            out(facts);
            (facts.answer, facts.sealed) = (silence(), None);
        });
        assert!(text.contains("a start does not come up, since there is no sealed cache"), "{text}");
    }
}
