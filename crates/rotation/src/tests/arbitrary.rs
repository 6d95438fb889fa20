//! Whatever is observed, there is a verdict; it comes out the same again, and no step takes away what something needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use casemate_encryption_config::Scheme;
use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;

use super::cluster::{id, name, resource};
use crate::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const RESOURCES: [&str; 3] = ["secrets", "configmaps", "routes.route.example"];
const KEY_IDS: [&str; 3] = ["first", "second", "third"];

fn ids() -> impl Strategy<Value = ProviderId> {
    prop_oneof![9 => (1..5_u64).prop_map(id), 1 => Just(id(u64::MAX))]
}

fn slots() -> impl Strategy<Value = Slot> {
    prop_oneof![Just(Slot::Plain), ids().prop_map(Slot::Key)]
}

fn schemes() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::ALL.to_vec())
}

fn resources() -> impl Strategy<Value = Resources> {
    prop::sample::select(RESOURCES.to_vec()).prop_map(resource)
}

fn servers() -> impl Strategy<Value = ServerName> {
    prop::sample::select(NAMES.to_vec()).prop_map(name)
}

fn key_ids() -> impl Strategy<Value = PluginKeyId> {
    prop::sample::select(KEY_IDS.to_vec()).prop_map(|text| PluginKeyId::new(text).unwrap())
}

fn turns() -> impl Strategy<Value = Turn> {
    prop_oneof![9 => (0..4_u64).prop_map(Turn), 1 => Just(Turn(u64::MAX))]
}

fn layouts() -> impl Strategy<Value = Layout> {
    let shapes =
        (schemes(), 0..2_u64).prop_map(|(scheme, settings)| Shape { scheme, settings: Settings(settings) });
    (slots(), btree_map(ids(), shapes, 0..4), any::<bool>()).prop_map(|(writer, keys, is_open)| {
        let made = Layout::new(writer, keys.clone()).or_else(|| Layout::new(Slot::Plain, keys)).unwrap();
        if is_open { made } else { made.clone().without_plain().unwrap_or(made) }
    })
}

fn files() -> impl Strategy<Value = File> {
    btree_map(resources(), layouts(), 0..3).prop_map(File)
}

fn records() -> impl Strategy<Value = Record> {
    let ages = prop_oneof![
        Just(Age::Unknown),
        Just(Age::InTheFuture),
        (0..20_u64).prop_map(|days| Age::Since(Duration::from_secs(days * 86_400)))
    ];
    let keys = (schemes(), option::of("[ab]"), 0..2_u64, option::of("[ab]"), ages);
    let intact = keys.prop_map(|(scheme, service, settings, reason, migrated)| {
        let settings = Settings(settings);
        Record::Intact(Key { scheme, service: service.map(ServiceName), settings, reason, migrated })
    });
    prop_oneof![4 => intact, 1 => option::of(schemes()).prop_map(|scheme| Record::Damaged { scheme })]
}

fn stored() -> impl Strategy<Value = Stored> {
    (slots(), option::of(key_ids())).prop_map(|(slot, key_id)| Stored { slot, key_id })
}

fn reports() -> impl Strategy<Value = KeyIdReport> {
    (key_ids(), 0..601_u64)
        .prop_map(|(key_id, since)| KeyIdReport { key_id, since: Duration::from_secs(since) })
}

fn found() -> impl Strategy<Value = Server> {
    let parts = (
        prop::bool::weighted(0.1),
        option::weighted(0.9, files()),
        option::weighted(0.9, files()),
        btree_map(ids(), reports(), 0..3),
    );
    parts.prop_map(|(terminating, file, loaded, key_ids)| Server { terminating, file, loaded, key_ids })
}

fn progress() -> impl Strategy<Value = Progress> {
    let courses =
        (turns(), slots(), btree_set(ids(), 0..4), option::of(option::of(key_ids())), any::<bool>());
    let courses = courses.prop_map(|(turn, writer, keys, claim, encrypted)| {
        let claim = claim.map(|key_id| Claim { key_id });
        Course { turn, writer, keys, claim, encrypted }
    });
    let known = (key_ids(), option::of(key_ids())).prop_map(|(target, migrated)| KeyIds { target, migrated });
    let parts = (turns(), ids(), ids(), btree_map(resources(), courses, 0..4), btree_map(ids(), known, 0..3));
    parts.prop_map(|(turn, highest, deployed, courses, key_ids)| Progress {
        turn,
        highest,
        deployed,
        courses,
        key_ids,
    })
}

fn intents() -> impl Strategy<Value = Intent> {
    let wanted = prop_oneof![
        Just(Wanted::Identity),
        Just(Wanted::AesCbc),
        Just(Wanted::AesGcm),
        Just(Wanted::Secretbox),
        "[ab]".prop_map(|name| Wanted::KmsV2(ServiceName(name)))
    ];
    let parts = (
        wanted,
        btree_set(resources(), 0..4),
        option::of("[ab]?"),
        option::of(0..20_u64),
        any::<bool>(),
        prop::bool::weighted(0.05),
        btree_map(ids(), turns(), 0..3),
    );
    parts.prop_map(|(wanted, resources, reason, days, needs_approval, paused, accept_unproven)| Intent {
        by: "admin".into(),
        wanted,
        resources,
        reason,
        max_age: days.map(|days| Duration::from_secs(days * 86_400)),
        key_id_stable_for: Intent::KEY_ID_STABLE_FOR,
        needs_approval,
        paused,
        accept_unproven,
    })
}

fn observed() -> impl Strategy<Value = Observed> {
    let outcomes = prop::sample::select(vec![Outcome::Running, Outcome::Finished, Outcome::Failed]);
    let engines = (turns(), option::of(key_ids()), outcomes)
        .prop_map(|(turn, key_id, outcome)| EngineReport { turn, key_id, outcome });
    let needs = (0..3_u64, 0..3_u64).prop_map(|(objects, revisions)| Need { objects, revisions });
    let counts = (turns(), option::of(key_ids()), any::<bool>(), btree_map(stored(), needs, 0..4));
    let counts =
        counts.prop_map(|(turn, key_id, after_claim, stored)| Count { turn, key_id, after_claim, stored });
    let parts = (
        (
            intents(),
            btree_map(ids(), records(), 0..4),
            btree_set(servers(), 0..4),
            btree_map(servers(), found(), 0..4),
        ),
        (option::weighted(0.8, progress()), btree_map(resources(), engines, 0..3), any::<bool>()),
        (btree_map(resources(), counts, 0..3), btree_map("[ab]", btree_set(stored(), 0..3), 0..2)),
    );
    parts.prop_map(
        |((intent, records, expected, servers), (progress, engine, has_census), (census, backups))| {
            Observed {
                by: "controller".into(),
                at: Moment(0),
                intent,
                records,
                expected,
                servers,
                progress,
                engine,
                has_census,
                census,
                backups,
                approvals: BTreeMap::new(),
            }
        },
    )
}

/// Keys that something of what was observed needs, by a rule of its own.
fn needed(observed: &Observed, resources: &Resources, id: ProviderId) -> bool {
    let slot = Slot::Key(id);
    let configurations =
        observed.servers.values().flat_map(|server| server.file.iter().chain(&server.loaded));
    let is_written = configurations.into_iter().any(|file| file.layout(resources).writer() == slot);
    let is_in_backup = observed.backups.values().flatten().any(|stored| stored.slot == slot);
    let is_stored = observed.census.get(resources).is_none_or(|count| {
        count.stored.iter().any(|(stored, need)| stored.slot == slot && *need != Need::default())
    });
    let is_accepted = observed.intent.accept_unproven.contains_key(&id);
    is_written || is_in_backup || (is_stored && !is_accepted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn there_is_always_a_verdict_and_it_takes_nothing_away(observed in observed()) {
        let mut observed = observed;
        let mut verdict = desired(&observed);
        prop_assert_eq!(&verdict, &desired(&observed));
        let _ = encrypted(&observed);
        // What is written rests on what was recorded before.
        for _ in 0..8 {
            let Step::Record { progress, .. } = verdict.step else { break };
            observed.progress = Some(progress);
            verdict = desired(&observed);
        }
        prop_assert!(!matches!(verdict.step, Step::Record { .. }), "it records for ever");
        if let Step::Write(files) = &verdict.step {
            for ServerFile { server, replaces, file } in files {
                let found = &observed.servers[server];
                prop_assert_eq!(&found.file, replaces);
                prop_assert_ne!(Some(file), replaces.as_ref());
                for resources in observed.progress.iter().flat_map(|progress| progress.courses.keys()) {
                    let old: BTreeSet<ProviderId> = [&found.file, &found.loaded].into_iter().flatten()
                        .flat_map(|old| old.layout(resources).keys().keys().copied()).collect();
                    for id in old.into_iter().filter(|id| !file.layout(resources).reads(Slot::Key(*id))) {
                        prop_assert!(!needed(&observed, resources, id), "{server} loses {id} of {resources}");
                    }
                    prop_assert!(file.layout(resources).reads(Slot::Plain));
                }
            }
        }
    }

    #[test]
    fn what_was_recorded_or_written_is_not_asked_for_again(observed in observed()) {
        let mut observed = observed;
        let mut last = None;
        for _ in 0..8 {
            let step = desired(&observed).step;
            prop_assert_ne!(Some(&step), last.as_ref());
            match &step {
                Step::Record { progress, history } => {
                    prop_assert!(!history.is_empty() || observed.progress.as_ref().map(|old| &old.courses) == Some(&progress.courses) || observed.progress.is_none());
                    observed.progress = Some(progress.clone());
                }
                Step::Write(files) => {
                    for written in files {
                        let server = observed.servers.get_mut(&written.server).unwrap();
                        server.file = Some(written.file.clone());
                    }
                }
                _ => break,
            }
            last = Some(step);
        }
    }
}
