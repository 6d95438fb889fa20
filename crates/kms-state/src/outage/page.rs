//! `docs/reference/outages.md`, made from the table; and that the table has no holes.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;

const STATES: [State; 8] = [
    State::Starting,
    State::Well,
    State::Outage,
    State::OutageEnded,
    State::Credential,
    State::Refused,
    State::OtherKey,
    State::Reused,
];
const REGENERATE: &str = "CASEMATE_REGENERATE=1 cargo test -p casemate-kms-state page";

fn all_rules() -> Vec<Rules> {
    let day = Duration::from_secs(24 * 3600);
    let policies = [
        Policy::Coast { until: None },
        Policy::Coast { until: Some(day) },
        Policy::FailAfter(day),
        Policy::FailClosed,
    ];
    let both =
        |policy| [OnRefused::KeepReads, OnRefused::Wipe].map(|on_refused| Rules { policy, on_refused });
    policies.into_iter().flat_map(both).collect()
}

#[test]
fn every_state_has_one_row_under_all_rules_and_every_row_is_used() {
    let mut used = Vec::new();
    for (state, rules) in
        STATES.iter().flat_map(|state| all_rules().into_iter().map(move |rules| (state, rules)))
    {
        let holds = |row: &&Row| row.state == *state && row.when.holds(&rules);
        assert_eq!(TABLE.iter().filter(holds).count(), 1, "{state:?} under {rules:?}");
        used.push(row(*state, &rules));
    }
    assert!(TABLE.iter().all(|row| used.contains(&row)));
}

#[test]
fn only_a_root_key_that_says_no_costs_reads() {
    for row in &TABLE {
        let may = row.state == State::Refused && row.when == When::Wipe;
        assert_eq!(row.reads == Reads::Wiped, may, "{row:?}");
        // Whoever is told that nothing is written must hear it.
        let quiet = row.level != Level::Error && row.state != State::Starting;
        assert_eq!(row.status != Reply::Error, quiet, "{row:?}");
    }
}

#[test]
fn the_page_is_what_the_table_says() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let path = manifest.join("../../docs/reference/outages.md");
    let made = page();
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "docs/reference/outages.md is not what the code says; run `{REGENERATE}`");
}

fn page() -> String {
    let mut page = HEAD.replace("REGENERATE", REGENERATE);
    for row in &TABLE {
        let (status, encrypt) = match row.status {
            Reply::Ok => ("`ok`, the active key id", "writes"),
            Reply::NotOk => ("not `ok`, the active key id", "writes"),
            Reply::Error => ("gRPC error `UNAVAILABLE`", "refused"),
        };
        let reads = match row.reads {
            Reads::GoOn => "from opened local KEKs",
            Reads::Wiped => "opened local KEKs are wiped: each has to be opened by its root key again",
        };
        let level = match row.level {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        let (state, when) = (named(row.state), under(row.when));
        let Row { metric, log, .. } = row;
        writeln!(page, "| {state} | {when} | {status} | {encrypt} | {reads} | `{metric}` | {level}: {log} |")
            .unwrap();
    }
    page += APISERVER;
    for row in &TABLE {
        let seen = row.seen();
        let is = |so, yes, no| if so { yes } else { no };
        writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            named(row.state),
            under(row.when),
            is(seen.ready, "ready", "unready"),
            is(seen.writes_at_once, "good", "fail"),
            is(seen.writes_after_three_minutes, "good", "fail"),
            is(seen.reads_from_memory, "good", "fail"),
            is(seen.reads_by_asking, "good", "fail"),
        )
        .unwrap();
    }
    page + TAIL
}

fn named(state: State) -> &'static str {
    match state {
        State::Starting => "nothing is active yet",
        State::Well => "well",
        State::Outage => "outage",
        State::OutageEnded => "outage, and its time has ended",
        State::Credential => "credential",
        State::Refused => "refused",
        State::OtherKey => "same name, other key",
        State::Reused => "only a superseded key id",
    }
}

fn under(when: When) -> &'static str {
    match when {
        When::Always => "any",
        When::Coast => "`coast`",
        When::FailAfter => "`failAfter`",
        When::FailClosed => "`failClosed`",
        When::KeepReads => "`keepReads`",
        When::Wipe => "`wipe`",
    }
}

const HEAD: &str = "\
# Outages

<!-- Made from the code: REGENERATE -->

What a provider does when a root key does not do its work. The program follows this very table; nothing else decides.
The metric is `casemate_kms_state`, with the label `state`; `/status` and the log tell more.

| class of the failure | what it means | leads to |
|---|---|---|
| *unreachable* | no answer: network, an overloaded or failing server | outage |
| *throttled* | the key service asks to slow down | outage |
| *corrupt* | an answer that can't be, such as another payload than the one that was wrapped | outage |
| *credential* | the key service does not accept who we are: token expired, login failed, clocks differ | credential |
| *refused* | it knows us and says no: disabled, destroyed, denied | outage; after three times over at least two minutes, refused |
| *undecided* | it is well, and the selection fits none of its versions, or several | nothing: what was confirmed last writes on, and it is reported |

With several root keys in a write policy, what is wrong with one of them is wrong with the policy, although each of them can
read; of several troubles the one that leads furthest counts.

Only what the plugin itself asks counts: it wraps a payload of its own under the active write policy, and opens it again.
What a root key answers to bytes that came from etcd changes no state: whoever writes etcd could stop all writes.

## States

| state | policy | Status | Encrypt | Decrypt | metric | log |
|---|---|---|---|---|---|---|
";

const APISERVER: &str = "
A record whose local KEK was not opened yet needs its root key in every state: while that is out, such a read fails.

## What kube-apiserver does

For the cluster it matters what kube-apiserver makes of it. This is what a server does that was ready when the state began:
in `./dev test outage-slow` a real one goes through each row, its root key out in earnest, and is compared with this table.

| state | policy | `/readyz` | writes at once | writes after three minutes | reads from its memory | reads for which it asks the plugin |
|---|---|---|---|---|---|---|
";

const TAIL: &str = "
* kube-apiserver asks for Status once a minute and keeps a good answer for 20 seconds, so that `/readyz` may be that late.
* Without a Status that names a key id it writes for three minutes, with the key that it holds. Then every create and
  update fails of the resources that are encrypted; a server that starts meanwhile reads none of them either.
* With any key id, `ok` or not, it writes for ever: being unready takes it out of a load balancer and stops nothing else.
* What it has read once it reads from memory for a day. The last column is about all else, such as what another server
  has written: good where a root key had opened its local KEK before. A plugin that has just been started has opened none,
  unless it has a [sealed cache](../how-to/start-in-an-outage.md).
* Whatever is acknowledged in any of these rows is read again once the root key is back, by new processes of both.

## Policies

A provider's [configuration](kms-config.md) names one under `outage`, with its time `after`; `onRefused` stands beside it.

| policy | for whom |
|---|---|
| `coast` | the default: an outage of the key service does not touch the cluster. It may be given an end, after which nothing is written |
| `failAfter` | who wants an API server taken out of the load balancer at once, and writes stopped after a while. Unready alone stops no write: kube-apiserver goes on under the same key id for as long as it gets one |
| `failClosed` | who must not write while the key service can't be asked |

An outage begins with the first failed probe and ends with the first good one; a node that starts in one begins to count then. A lost credential coasts under all policies
and for any time: an expired token must not stop a control plane. It neither begins an outage nor ends one.

`keepReads` (the default) and `wipe` say what happens once a root key says no for good. With `wipe`, what could be read
without the root key can't be read any more; if it is allowed again, the local KEK of the last record is opened again
before anything is written.

## Same name, other key

A root key was deleted and made again, or restored from elsewhere, under the same name, and does not open this node's last
record. Writing under its key id stops, since no other node could tell the two keys apart. It heals by itself when the
record opens again, under each of its root keys: bring the old key back. That the new one wraps well, or that another root
key or a sealed cache opens the record, heals nothing. Otherwise raise `epoch` on all nodes, which makes the new key a write policy of
its own; what the old one wrapped is read as long as a local KEK of it is opened somewhere, and by a recovery recipient. A
root key in a file can't be mistaken so: its lineage holds check digits of the secret.
";
