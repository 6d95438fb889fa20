//! Single cases: what is waited for, what is refused, and what odd values come to.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster::{Cluster, file, id, layout, name, record, resource, wanting};
use crate::*;

const SECRETS: &[&str] = &["secrets"];
const STABLE: Duration = Intent::KEY_ID_STABLE_FOR;

/// Encrypted with a local key, and on the way to another one: both are read.
fn rotating() -> Cluster {
    let mut cluster = Cluster::new(SECRETS, File::default()).wants("cbc:a");
    cluster.run();
    wanting(&mut cluster.observed.intent, "cbc:b");
    while cluster.deployed() != "cbc:1,cbc:2,identity" {
        let step = cluster.step();
        cluster.carry_out(step);
    }
    cluster
}

/// Encrypted through a plugin, whose key id is `first`.
fn with_plugin() -> Cluster {
    let mut cluster = Cluster::new(SECRETS, File::default()).wants("kms:p");
    cluster.objects.insert(resource("secrets"), vec![Stored { slot: Slot::Plain, key_id: None }; 3]);
    cluster.run();
    cluster
}

#[test]
fn servers_agree_only_if_all_that_are_expected_say_so() {
    // What is observed of server `b`, and what is waited for; the rest of it is library-go's table of pods, where a pod is
    // a server and a revision what it has loaded.
    let old = || Some(file(SECRETS, "cbc:1,identity"));
    let new = || Some(file(SECRETS, "cbc:1,cbc:2,identity"));
    let server = |terminating, file, loaded| Some(Server { terminating, file, loaded, ..Server::default() });
    let rows = [
        ("as it should be", server(false, new(), new()), None),
        ("not there", None, Some(Lag::Absent)),
        ("has not loaded its file", server(false, new(), old()), Some(Lag::NotLoaded)),
        ("says nothing", server(false, new(), None), Some(Lag::Silent)),
        ("terminating, with what it had", server(true, new(), old()), Some(Lag::Terminating)),
    ];
    for (what, server, lag) in rows {
        let mut cluster = rotating();
        match server {
            Some(server) => *cluster.server("b") = server,
            None => {
                cluster.observed.servers.remove(&name("b"));
            }
        }
        match (lag, cluster.step()) {
            (None, Step::Record { progress, .. }) => {
                assert_eq!(progress.courses[&resource("secrets")].writer, Slot::Key(id(2)), "{what}");
            }
            (Some(lag), Step::Wait(lagging)) => assert_eq!(lagging, [(name("b"), lag)].into(), "{what}"),
            (_, step) => panic!("{what}: {step:?}"),
        }
    }

    let mut cluster = rotating();
    cluster.observed.expected.remove(&name("b"));
    *cluster.server("b") = Server { file: old(), loaded: old(), ..Server::default() };
    let lag: BTreeMap<_, _> = [(name("b"), Lag::Unexpected)].into();
    assert_eq!(cluster.step(), Step::Wait(lag), "it runs, whoever expects it");
    cluster.observed.expected.clear();
    assert_eq!(cluster.step(), Step::Hold(Hold::NoServers), "nobody is not everybody");
}

#[test]
fn a_server_on_its_way_out_holds_the_migration_up() {
    // It reads everything, so that others may write with the new key. It still writes with the old one.
    let mut cluster = rotating();
    let terminating = Server { terminating: true, ..cluster.server("b").clone() };
    cluster.observed.expected.remove(&name("b"));
    *cluster.server("b") = terminating;
    while let step @ (Step::Record { .. } | Step::Write(_)) = cluster.step() {
        cluster.carry_out(step);
    }
    assert_eq!(cluster.step(), Step::Wait([(name("b"), Lag::Terminating)].into()));
    assert_eq!(cluster.course("secrets").writer, Slot::Key(id(2)));
    cluster.observed.servers.remove(&name("b"));
    assert!(matches!(cluster.step(), Step::Migrate(_)));
}

#[test]
fn what_helps_is_written_to_who_lags() {
    let mut cluster = rotating();
    let file_of_a = cluster.server("a").file.clone();
    // Half of a file.
    cluster.server("b").file = None;
    let Step::Write(files) = cluster.step() else { panic!("{:?}", cluster.step()) };
    assert_eq!(
        (files[0].server.clone(), &files[0].replaces, Some(&files[0].file)),
        (name("b"), &None, file_of_a.as_ref())
    );
    // Nothing loads the new key until its settings are mended.
    let mut cluster = rotating();
    for server in ["a", "b"] {
        cluster.server(server).loaded = Some(file(SECRETS, "cbc:1,identity"));
    }
    assert!(matches!(cluster.step(), Step::Wait(_)));
    let Some(Record::Intact(key)) = cluster.observed.records.get_mut(&id(2)) else { panic!() };
    key.settings = Settings(1);
    let Step::Write(files) = cluster.step() else { panic!("{:?}", cluster.step()) };
    assert_eq!(files.len(), 2);
    assert_eq!(files[0].file.layout(&resource("secrets")).keys()[&id(2)].settings, Settings(1));
}

#[test]
fn servers_that_began_with_different_keys_read_both_before_one_writes() {
    let mut cluster =
        Cluster::new(SECRETS, file(SECRETS, "cbc:1,identity")).with(&["cbc:1", "cbc:2"]).wants("cbc:2");
    let other = Some(file(SECRETS, "cbc:2,identity"));
    (cluster.server("b").file, cluster.server("b").loaded) = (other.clone(), other);
    let (seen, last) = cluster.run();
    assert_eq!(
        seen,
        [
            "cbc:1,identity | cbc:2,identity",
            "cbc:1,cbc:2,identity | cbc:2,cbc:1,identity",
            "cbc:2,cbc:1,identity",
            "cbc:2,identity"
        ]
    );
    assert_eq!(last, Step::Done);
}

#[test]
fn from_a_to_b_and_back_to_a_before_anything_is_migrated_needs_no_third_key() {
    let mut cluster = Cluster::new(SECRETS, File::default()).wants("kms:p");
    cluster.run();
    wanting(&mut cluster.observed.intent, "kms:q");
    while cluster.deployed() != "kms:2,kms:1,identity" {
        let step = cluster.step();
        cluster.carry_out(step);
    }
    let turn = cluster.course("secrets").turn;
    wanting(&mut cluster.observed.intent, "kms:p");
    assert_eq!(
        desired(&cluster.observed).decisions.could_write,
        [Slot::Plain, Slot::Key(id(1)), Slot::Key(id(2))].into()
    );
    let (seen, last) = cluster.run();
    assert_eq!(seen, ["kms:2,kms:1,identity", "kms:1,kms:2,identity", "kms:1,identity"]);
    assert!(last == Step::Done && cluster.course("secrets").turn > turn);
    assert_eq!(cluster.observed.records.len(), 2);
}

#[test]
fn before_anything_is_written_with_it_a_key_goes_as_it_came() {
    let mut cluster = rotating();
    wanting(&mut cluster.observed.intent, "cbc:a");
    assert_eq!(cluster.run(), (vec!["cbc:1,cbc:2,identity".into(), "cbc:1,identity".into()], Step::Done));
}

#[test]
fn a_third_key_waits_until_the_second_is_migrated_to() {
    let mut cluster = rotating();
    wanting(&mut cluster.observed.intent, "cbc:c");
    // Nothing is stored under key 2 yet: it goes first.
    let verdict = desired(&cluster.observed);
    assert_eq!(verdict.decisions.new_key, [NewKeyReason::Reason]);
    assert!(matches!(verdict.step, Step::Record { .. }), "{:?}", verdict.step);
    let (seen, _) = cluster.run();
    assert_eq!(seen[..3], ["cbc:1,cbc:2,identity", "cbc:1,identity", "cbc:1,cbc:3,identity"]);
}

#[test]
fn what_is_stored_and_by_whom_holds_a_key() {
    let mut cluster = rotating();
    cluster.objects.insert(resource("secrets"), vec![Stored { slot: Slot::Key(id(1)), key_id: None }]);
    cluster
        .observed
        .backups
        .insert("monday".into(), [Stored { slot: Slot::Key(id(1)), key_id: None }].into());
    assert_eq!(cluster.run().1, Step::Done);
    let by = |cluster: &Cluster| -> Vec<HeldBy> {
        desired(&cluster.observed).decisions.held[&id(1)].iter().map(|held| held.by.clone()).collect()
    };
    assert_eq!(by(&cluster), [HeldBy::Backup("monday".into())]);
    let without = file(SECRETS, "cbc:2,identity");
    assert_eq!(strands(&cluster.observed, &without)[&id(1)][0].by, HeldBy::Backup("monday".into()));
    let plain = strands(&cluster.observed, &File::default());
    assert_eq!(plain[&id(2)][0].by, HeldBy::Writer);

    let mut other = cluster.clone();
    let Course { turn, .. } = *other.course("secrets");
    let count = Count { turn, key_id: None, after_claim: true, stored: BTreeMap::new() };
    other.observed.census.insert(resource("secrets"), count);
    count_of(&mut other)
        .stored
        .insert(Stored { slot: Slot::Key(id(1)), key_id: None }, Need { objects: 2, revisions: 3 });
    assert_eq!(by(&other)[..2], [HeldBy::Objects(2), HeldBy::Revisions(3)]);
    count_of(&mut other).turn = Turn(0);
    assert_eq!(by(&other)[0], HeldBy::Unproven, "a count of another turn proves nothing");
    other.server("b").loaded = None;
    assert_eq!(by(&other)[0], HeldBy::Server(name("b")));

    cluster.observed.backups.clear();
    assert_eq!(cluster.run().1, Step::Done);
    assert_eq!(cluster.deployed(), "cbc:2,identity");
    assert!(strands(&cluster.observed, &without).is_empty());
    assert_eq!(desired(&cluster.observed).decisions.prunable, [id(1)].into());
}

fn count_of(cluster: &mut Cluster) -> &mut Count {
    cluster.observed.census.get_mut(&resource("secrets")).unwrap()
}

#[test]
fn without_a_census_nothing_goes_but_by_consent_of_this_turn() {
    let mut cluster = rotating();
    cluster.observed.has_census = false;
    cluster.observed.census.clear();
    assert_eq!(
        cluster.run(),
        (vec!["cbc:1,cbc:2,identity".into(), "cbc:2,cbc:1,identity".into()], Step::Done)
    );
    let turn = cluster.observed.progress.as_ref().unwrap().turn;
    cluster.observed.intent.accept_unproven.insert(id(1), Turn(turn.0 - 1));
    assert_eq!(cluster.step(), Step::Done, "what was accepted before the last change is void");
    cluster.observed.intent.accept_unproven.insert(id(1), turn);
    cluster.history.clear();
    assert_eq!(cluster.run().0.last().unwrap(), "cbc:2,identity");
    let Change::Read { unproven, .. } = &cluster.history[0].change else { panic!("{:?}", cluster.history) };
    assert_eq!(*unproven, [id(1)].into());
    assert_eq!((cluster.history[0].by.as_str(), cluster.history[0].at), ("controller", Moment(7)));
}

#[test]
fn a_plugins_key_id_is_migrated_to_when_all_report_it_for_five_minutes() {
    let target =
        |cluster: &Cluster| cluster.observed.progress.as_ref().unwrap().key_ids[&id(1)].target.to_string();
    let mut cluster = with_plugin();
    let before = cluster.deployed();
    assert_eq!((cluster.step(), target(&cluster)), (Step::Done, "first".into()));
    cluster.report(1, "second", STABLE - Duration::from_secs(1));
    assert_eq!(
        cluster.step(),
        Step::Wait([name("a"), name("b")].map(|name| (name, Lag::KeyId(id(1)))).into())
    );
    cluster.report(1, "second", STABLE);
    let mut silent = cluster.clone();
    silent.server("b").key_ids.clear();
    assert!(matches!(silent.step(), Step::Wait(_)), "a missing report is no agreement");
    let mut absent = cluster.clone();
    absent.observed.servers.remove(&name("b"));
    assert!(matches!(absent.step(), Step::Wait(_)), "nor is a missing server");
    assert!(PluginKeyId::new("").is_none(), "an empty one is no report");

    let step = cluster.step();
    cluster.carry_out(step);
    assert_eq!(target(&cluster), "second");
    let Step::Migrate(tasks) = cluster.step() else { panic!("{:?}", cluster.step()) };
    assert_eq!(tasks[0].key_id, PluginKeyId::new("second"));
    // A second change waits for the first.
    cluster.report(1, "third", STABLE);
    assert_eq!(cluster.step(), Step::Migrate(tasks));
    let first = PluginKeyId::new("first").unwrap();
    assert!(!is_unneeded(&cluster.observed, id(1), &first));
    let (_, last) = cluster.run();
    assert_eq!((last, target(&cluster), cluster.deployed()), (Step::Done, "third".into(), before));
    assert_eq!(cluster.observed.records.len(), 1, "it is no new key");
    let key_ids = cluster.history.iter().filter(|entry| matches!(entry.change, Change::KeyIdMigrated { .. }));
    assert_eq!(key_ids.count(), 3);
}

#[test]
fn a_key_id_may_go_when_nothing_has_it() {
    let mut cluster = with_plugin();
    let first = PluginKeyId::new("first").unwrap();
    assert!(!is_unneeded(&cluster.observed, id(1), &first));
    cluster.report(1, "second", STABLE);
    while !matches!(cluster.step(), Step::Prove(_)) {
        let step = cluster.step();
        cluster.carry_out(step);
    }
    assert!(!is_unneeded(&cluster.observed, id(1), &first), "nobody counted");
    cluster.run();
    assert!(is_unneeded(&cluster.observed, id(1), &first));
    assert!(!is_unneeded(&cluster.observed, id(1), &PluginKeyId::new("second").unwrap()));
    let old = Stored { slot: Slot::Key(id(1)), key_id: Some(first.clone()) };
    cluster.observed.backups.insert("monday".into(), [old].into());
    assert!(!is_unneeded(&cluster.observed, id(1), &first));
}

#[test]
fn keys_and_key_ids_are_approved_by_somebody_else() {
    let mut cluster = Cluster::new(SECRETS, File::default()).wants("kms:p");
    cluster.observed.intent.needs_approval = true;
    let (_, last) = cluster.run();
    let Step::Propose(proposal) = last else { panic!("{last:?}") };
    assert_eq!(proposal, Proposal::Key { id: id(1), wanted: Wanted::KmsV2(ServiceName("p".into())) });
    cluster.observed.approvals.insert(proposal.clone(), ["admin".into()].into());
    assert_eq!(cluster.step(), Step::Propose(proposal.clone()), "who wants it does not approve it");
    cluster.observed.approvals.insert(proposal, ["auditor".into()].into());
    assert_eq!(cluster.run().1, Step::Done);
    assert!(cluster.history.iter().any(
        |entry| matches!(&entry.change, Change::KeyCreated { approved, .. } if approved.contains("auditor"))
    ));
    cluster.report(1, "second", STABLE);
    let proposal = Proposal::KeyId { provider: id(1), key_id: PluginKeyId::new("second").unwrap() };
    assert_eq!(cluster.step(), Step::Propose(proposal.clone()));
    cluster.observed.approvals.insert(proposal, ["auditor".into()].into());
    assert!(matches!(cluster.step(), Step::Record { .. }));
}

#[test]
fn nothing_happens_while_it_is_paused() {
    let mut cluster = rotating();
    cluster.observed.intent.paused = true;
    assert_eq!(cluster.step(), Step::Hold(Hold::Paused));
}

#[test]
fn numbers_of_keys_have_gaps_and_an_end() {
    let mut cluster =
        Cluster::new(SECRETS, file(SECRETS, "cbc:7,identity")).with(&["cbc:7", "cbc:40"]).wants("cbc:x");
    cluster.run();
    assert_eq!(cluster.deployed(), "cbc:41,identity");
    cluster.observed.records.insert(id(u64::MAX), record("cbc:9").1);
    wanting(&mut cluster.observed.intent, "cbc:y");
    assert_eq!(cluster.run().1, Step::Hold(Hold::NoNumbersLeft));
}

#[test]
fn age_makes_a_new_local_key_and_a_wrong_clock_does_not() {
    let mut cluster = Cluster::new(SECRETS, File::default()).wants("cbc:a");
    cluster.run();
    let week = Duration::from_secs(168 * 3600);
    cluster.observed.intent.max_age = Some(week);
    let mut aged = |age| {
        let Some(Record::Intact(key)) = cluster.observed.records.get_mut(&id(1)) else { panic!() };
        key.migrated = age;
        desired(&cluster.observed)
    };
    assert_eq!(aged(Age::Since(week)).step, Step::Done);
    assert_eq!(aged(Age::InTheFuture).step, Step::Done);
    assert_eq!(aged(Age::InTheFuture).decisions.from_the_future, [id(1)].into());
    for age in [Age::Unknown, Age::Since(week + Duration::from_secs(1))] {
        let Step::CreateKey { because, .. } = aged(age).step else { panic!("{age:?}") };
        assert_eq!(because, [NewKeyReason::Age]);
    }
    // A plugin's key gets no older.
    let mut plugin = with_plugin();
    plugin.observed.intent.max_age = Some(week);
    plugin.observed.intent.reason = Some("please".into());
    assert_eq!(plugin.step(), Step::Done);
}

#[test]
fn reasons_are_told_as_openshift_tells_them() {
    let because = |deployed: &str, records: &[&str], wanted: &str| {
        let mut cluster = Cluster::new(SECRETS, file(SECRETS, deployed)).with(records).wants(wanted);
        loop {
            match cluster.step() {
                Step::CreateKey { because, .. } => {
                    return because.iter().map(NewKeyReason::openshift).collect::<Vec<_>>();
                }
                step => cluster.carry_out(step),
            }
        }
    };
    assert_eq!(because("identity", &[], "cbc:1"), ["key-does-not-exist"]);
    assert_eq!(because("cbc:4,identity", &[], "cbc:4"), ["encryption-config-key-4-not-backed-by-secret"]);
    assert_eq!(because("cbc:1,identity", &["cbc:1"], "kms:1"), ["encryption-mode-changed"]);
    assert_eq!(because("kms:1,identity", &["kms:1"], "kms:2"), ["kms-provider-changed"]);
    assert_eq!(because("cbc:1,identity", &["cbc:1"], "cbc:2"), ["external-reason-changed"]);
    // Which can only be left.
    assert_eq!(because("kms1:1,identity", &["kms1:1"], "kms:1"), ["encryption-mode-changed"]);
}

#[test]
fn resources_come_and_go_in_the_middle_of_it() {
    // Two of one name in two groups are two.
    let (routes, others) = ("routes.route.example", "routes.other.example");
    let mut cluster = rotating();
    let wanted = &mut cluster.observed.intent.resources;
    wanted.extend([resource(routes), resource(others)]);
    assert_eq!(cluster.run().1, Step::Done);
    let all: BTreeMap<Resources, Layout> =
        ["secrets", routes, others].map(|name| (resource(name), layout("cbc:2,identity"))).into();
    assert_eq!(cluster.server("a").file, Some(File(all)));

    // What is no longer wanted is decrypted before it is left, and encrypted anew when it is wanted again.
    cluster.objects.insert(resource(routes), vec![Stored { slot: Slot::Key(id(2)), key_id: None }; 2]);
    cluster.observed.intent.resources.remove(&resource(routes));
    let mut halfway = cluster.clone();
    while halfway.course(routes).writer != Slot::Plain {
        let step = halfway.step();
        halfway.carry_out(step);
    }
    halfway.observed.intent.resources.insert(resource(routes));
    assert_eq!(halfway.run().1, Step::Done);
    assert_eq!(halfway.deployed(), "cbc:2,identity");

    assert_eq!(cluster.run().1, Step::Done);
    assert_eq!(
        cluster.objects[&resource(routes)],
        [(); 2].map(|()| Stored { slot: Slot::Plain, key_id: None })
    );
    assert!(!cluster.observed.progress.as_ref().unwrap().courses.contains_key(&resource(routes)));
    assert!(!cluster.server("a").file.as_ref().unwrap().0.contains_key(&resource(routes)));
}

#[test]
fn a_server_that_joins_gets_what_the_others_have() {
    let mut cluster = rotating();
    let empty = Server { file: Some(File::default()), ..Server::default() };
    cluster.observed.expected.insert(name("c"));
    cluster.observed.servers.insert(name("c"), empty);
    let Step::Write(files) = cluster.step() else { panic!("{:?}", cluster.step()) };
    assert_eq!(
        files,
        [ServerFile {
            server: name("c"),
            replaces: Some(File::default()),
            file: file(SECRETS, "cbc:1,cbc:2,identity"),
        }]
    );
}

#[test]
fn what_nobody_can_open_any_more_is_told_and_holds_nothing_else_up() {
    let mut cluster = rotating();
    // Key 1 is gone from every file, and its record is lost.
    for server in ["a", "b"] {
        let without = Some(file(SECRETS, "cbc:2,identity"));
        (cluster.server(server).file, cluster.server(server).loaded) = (without.clone(), without);
    }
    cluster.observed.records.remove(&id(1));
    cluster.objects.insert(resource("secrets"), vec![Stored { slot: Slot::Key(id(1)), key_id: None }]);
    let decisions = desired(&cluster.observed).decisions;
    assert_eq!((decisions.gone, decisions.unbacked), ([id(1)].into(), [id(1)].into()));
    for _ in 0..20 {
        let step = cluster.step();
        match step {
            Step::Done => break,
            Step::Migrate(tasks) => {
                let Task { resource, turn, key_id, .. } = tasks[0].clone();
                cluster
                    .observed
                    .engine
                    .insert(resource.clone(), EngineReport { turn, key_id, outcome: Outcome::Failed });
                cluster.carry_out(Step::Prove(tasks));
            }
            other => cluster.carry_out(other),
        }
    }
    assert_eq!(cluster.step(), Step::Done);
    // The record is found again.
    cluster.observed.records.extend([record("cbc:1")]);
    cluster.run();
    assert_eq!(cluster.objects[&resource("secrets")], [Stored { slot: Slot::Key(id(2)), key_id: None }]);
}

#[test]
fn an_old_file_that_comes_back_voids_what_was_counted() {
    let mut cluster = rotating();
    let old = Stored { slot: Slot::Key(id(1)), key_id: None };
    cluster.observed.backups.insert("monday".into(), [old].into());
    assert_eq!(cluster.run().1, Step::Done);
    // Server `b` may have written with key 1 since the count.
    let old = Some(file(SECRETS, "cbc:1,cbc:2,identity"));
    (cluster.server("b").file, cluster.server("b").loaded) = (old.clone(), old);
    cluster.observed.backups.clear();
    let before = cluster.course("secrets").turn;
    let Step::Record { progress, history } = cluster.step() else { panic!("{:?}", cluster.step()) };
    assert!(history.iter().any(|entry| matches!(entry.change, Change::Strayed { .. })), "{history:?}");
    let course = &progress.courses[&resource("secrets")];
    assert!(course.turn != before && course.claim.is_none() && course.keys.contains(&id(1)));
    assert_eq!(cluster.run().0.last().unwrap(), "cbc:2,identity");
}
