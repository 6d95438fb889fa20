//! Tables.
use casemate_census::survey::{Entry, Group, Resource, Tally, Unseen};
use casemate_encryption_config::{EncryptionConfiguration, GroupResource, ServerFlags};

use super::*;

const CONFIG: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
    - resources: [secrets]\n  providers:\n  - kms: {apiVersion: v2, name: new, endpoint: unix:///a}\n\
    \x20 - secretbox: {keys: [{name: old, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}\n  - identity: {}\n";

fn known() -> (Known, BTreeSet<Resources>) {
    let mut known = Known::default();
    let configuration = EncryptionConfiguration::read(CONFIG.as_bytes(), ServerFlags::default()).unwrap();
    let file = known.take(&configuration).unwrap();
    (known, file.0.into_keys().collect())
}

fn kms(provider: &str, key_id: &str) -> Encryption {
    let (provider, key_id, dek_source) = (provider.into(), key_id.into(), "seed".into());
    Encryption::KmsV2 { provider, key_id, dek_source, record: None, faults: Vec::new() }
}

fn survey(of: &[(&str, Encryption, u64, u64)]) -> Survey {
    let mut survey = Survey::default();
    (survey.live, survey.revision) = (1, Some(7));
    for (name, encryption, live, past) in of {
        let GroupResource { group, resource } = GroupResource::parse(name);
        let resource = Resource { name: resource, group: Some(group) };
        let tally = |values: &u64| Tally { values: *values, bytes: *values * 10, ..Tally::default() };
        let group = Group { resource, encryption: encryption.clone() };
        survey.groups.push(Entry { group, live: tally(live), past: tally(past) });
    }
    survey
}

#[test]
fn values_are_counted_by_key_and_key_id() {
    let (known, resources) = known();
    let local = |key: &str| Encryption::Local { cipher: "secretbox".into(), key: key.into() };
    let counted = Counted::of(
        &survey(&[
            ("secrets", kms("new", "v1:a"), 5, 1),
            ("secrets", local("old"), 3, 2),
            ("secrets", Encryption::PlainProtobuf, 2, 0),
            ("secrets", local("gone"), 1, 0),
            ("secrets", kms("other", "x"), 0, 4),
            ("pods", Encryption::PlainProtobuf, 100, 0),
            ("pods", kms("new", "v1:a"), 1, 0),
        ]),
        &known,
        &resources,
    )
    .unwrap();
    let need = |objects, revisions| Need { objects, revisions };
    let id = PluginKeyId::new(&file_hash(b"v1:a")).unwrap();
    let found: Vec<_> = counted.entries.values().next().unwrap().clone().into_iter().collect();
    assert_eq!(
        found,
        [
            (Stored { slot: Slot::Plain, key_id: None }, need(2, 0)),
            (Stored { slot: Slot::Key(ProviderId(1)), key_id: None }, need(3, 2)),
            (Stored { slot: Slot::Key(ProviderId(2)), key_id: Some(id.clone()) }, need(5, 1)),
        ]
    );
    assert_eq!(counted.key_ids[&id], "v1:a");
    let unknown: Vec<_> =
        counted.unknown.iter().map(|unknown| (unknown.resource.as_str(), unknown.objects)).collect();
    assert_eq!(unknown, [("secrets", 1), ("pods", 1)], "what is plain and below no entry is as it should be");
}

#[test]
fn what_is_not_all_is_no_census() {
    let (known, resources) = known();
    let of = |survey: &Survey| Counted::of(survey, &known, &resources);
    let mut ungrouped = survey(&[]);
    ungrouped.ungrouped = 1;
    assert!(of(&ungrouped).is_err_and(|why| why.contains("too many kinds")));
    let mut moving = survey(&[]);
    moving.unseen.push(Unseen::Moment { oldest: 1, newest: 2 });
    assert!(of(&moving).is_err());
}

#[test]
fn old_revisions_that_nobody_saw_hold_every_key() {
    let (known, resources) = known();
    let mut past = survey(&[("secrets", kms("new", "v1:a"), 5, 0)]);
    let mut progress = Progress::default();
    let keys = [ProviderId(1), ProviderId(2)].into();
    let course =
        Course { turn: Turn(3), writer: Slot::Key(ProviderId(2)), keys, claim: None, encrypted: false };
    progress.courses.insert(resources.first().unwrap().clone(), course);
    let revisions = |survey: &Survey| -> u64 {
        let counts = Counted::of(survey, &known, &resources).unwrap().counts(&progress, |_, _| true);
        let count = counts.values().next().unwrap();
        assert_eq!(count.turn, Turn(3));
        let old = |(stored, _): &(&Stored, &Need)| stored.slot == Slot::Key(ProviderId(1));
        count.stored.iter().filter(old).map(|(_, need)| need.revisions).sum()
    };
    assert_eq!(revisions(&past), 0);
    let counts = Counted::of(&past, &known, &resources).unwrap().counts(&progress, |_, _| false);
    assert!(
        counts.values().all(|count| count.turn != Turn(3)),
        "while a server writes otherwise, it is of no turn"
    );
    past.unseen.push(Unseen::Past { since: None, why: "too many".into() });
    assert_eq!(revisions(&past), 1);
}
