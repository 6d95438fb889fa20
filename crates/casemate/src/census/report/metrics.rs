//! The answer as gauges.
//!
//! Names in etcd are chosen by whoever writes it, and each combination of labels is a series for as long as Prometheus
//! keeps data. So ways of encryption are a fixed list, resources and keys are at most [`MOST`] a file, the most used ones,
//! and the rest is summed up under [`OTHERS`]. Files are those of the command line: a name that stays is a series that stays.
use std::collections::BTreeMap;

use casemate_census::answers::{State, Verdict};
use casemate_census::survey::{Encryption, RecordKeys, Tally};
use casemate_report::Metrics;

use super::super::answer::{Answer, FileAnswer};
use super::{Made, sum};

/// Resources and keys of a file that have series of their own.
const MOST: usize = 100;
/// The label of all others.
const OTHERS: &str = "(others)";

/// All gauges, in the order of the documentation; those of questions that were not asked have no samples.
pub(super) fn metrics(answer: &Answer, made: &Made) -> Metrics {
    let mut metrics = Metrics::default();
    whole(&mut metrics, answer, made);
    files(&mut metrics, answer);
    contents(&mut metrics, answer);
    keys(&mut metrics, answer);
    questions(&mut metrics, answer);
    metrics
}

fn whole(metrics: &mut Metrics, answer: &Answer, made: &Made) {
    metrics
        .gauge("casemate_census_timestamp_seconds", &[], "When the census was taken, in seconds since 1970.")
        .sample([], made.at);
    metrics
        .gauge(
            "casemate_census_exit_code",
            &[],
            "What the census ended with: 0 nothing was found, 1 something was, 3 can't tell, 4 some files were not read.",
        )
        .sample([], u64::from(answer.exit().number()));
    metrics
        .gauge("casemate_census_unread_files", &[], "Files that could not be read.")
        .sample([], answer.failed.len() as u64);
}

fn files(metrics: &mut Metrics, answer: &Answer) {
    let mut of = |name, help, value: &dyn Fn(&FileAnswer) -> Option<u64>| {
        let gauge = metrics.gauge(name, &["file"], help);
        for file in &answer.files {
            if let Some(value) = value(file) {
                gauge.sample([&file.file], value);
            }
        }
    };
    of("casemate_census_file_bytes", "Size of the file.", &|file| Some(file.bytes));
    of("casemate_census_revision", "The newest revision of etcd in the file.", &|file| file.survey.revision);
    of(
        "casemate_census_compacted_revision",
        "Up to this revision of etcd, what was overwritten is gone.",
        &|file| file.survey.compacted,
    );
    of(
        "casemate_census_ungrouped_values",
        "Values of too many kinds to be told apart; if there are any, no answer is a yes.",
        &|file| Some(file.survey.ungrouped),
    );
    of(
        "casemate_census_outside_revisions",
        "Revisions of keys outside of the prefix, at which nobody looked.",
        &|file| Some(file.survey.outside),
    );
}

/// By resource and way of encryption.
type Contents = BTreeMap<(String, &'static str), Amounts>;
/// Live and past values by key.
type Keys = BTreeMap<String, (u64, u64)>;
/// Live values, past ones, bytes and bytes of annotations of live ones.
type Amounts = [u64; 4];

fn contents(metrics: &mut Metrics, answer: &Answer) {
    const LABELS: &[&str] = &["file", "resource", "encryption"];
    let counted: Vec<(&FileAnswer, Contents)> =
        answer.files.iter().map(|file| (file, by_resource(file))).collect();
    for (place, (name, help)) in [
        ("casemate_census_objects", "Objects, by resource and by how they are encrypted."),
        ("casemate_census_old_revisions", "Overwritten and deleted values that etcd still has."),
        ("casemate_census_object_bytes", "Bytes of the values of objects."),
        (
            "casemate_census_annotation_bytes",
            "Bytes of these that are annotations of KMS v2 plugins: what records cost.",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let gauge = metrics.gauge(name, LABELS, help);
        for (file, counted) in &counted {
            for ((resource, encryption), amounts) in counted {
                gauge.sample([&file.file, resource, encryption], amounts[place]);
            }
        }
    }
}

fn by_resource(file: &FileAnswer) -> Contents {
    let groups = &file.survey.groups;
    let mut values: BTreeMap<String, u64> = BTreeMap::new();
    for entry in groups {
        *values.entry(entry.group.resource.to_string()).or_default() += entry.live.values + entry.past.values;
    }
    let known = most(values);
    let mut counted = Contents::new();
    for entry in groups {
        let resource = entry.group.resource.to_string();
        let resource = if known.contains(&resource) { resource } else { OTHERS.to_owned() };
        let amounts = counted.entry((resource, kind(&entry.group.encryption))).or_default();
        let Tally { values, bytes, annotation_bytes, .. } = &entry.live;
        for (amount, more) in amounts.iter_mut().zip([values, &entry.past.values, bytes, annotation_bytes]) {
            *amount += more;
        }
    }
    counted
}

/// The most used ones.
fn most(values: BTreeMap<String, u64>) -> Vec<String> {
    let mut values: Vec<(String, u64)> = values.into_iter().collect();
    values.sort_by(|(name, count), (other, more)| more.cmp(count).then(name.cmp(other)));
    values.into_iter().take(MOST).map(|(name, _)| name).collect()
}

/// All that there is to be said of a way of encryption in a label.
fn kind(encryption: &Encryption) -> &'static str {
    match encryption {
        _ if encryption.is_plain() => "plaintext",
        _ if encryption.is_unknown() => "unknown",
        _ if encryption.is_broken() => "damaged",
        Encryption::Local { cipher, .. } => match cipher.as_str() {
            "aescbc" => "aescbc",
            "aesgcm" => "aesgcm",
            "secretbox" => "secretbox",
            _ => "unknown",
        },
        Encryption::KmsV1 { .. } => "kms_v1",
        Encryption::KmsV2 { .. } => "kms_v2",
        _ => "unknown",
    }
}

fn keys(metrics: &mut Metrics, answer: &Answer) {
    let shown: Vec<(&FileAnswer, Keys)> = answer
        .files
        .iter()
        .map(|file| {
            let known =
                most(file.keys.iter().map(|used| (used.key.to_string(), used.live + used.past)).collect());
            let mut keys = Keys::new();
            for used in &file.keys {
                let key = used.key.to_string();
                // One value may be under several of the others: their sum would count it more than once.
                if known.contains(&key) {
                    keys.insert(key, (used.live, used.past));
                }
            }
            (file, keys)
        })
        .collect();
    let labels: &[&str] = &["file", "key"];
    let gauge = metrics.gauge("casemate_census_key_objects", labels, "Objects that a key opens.");
    for (file, keys) in &shown {
        keys.iter().for_each(|(key, (live, _))| gauge.sample([&file.file, key], *live));
    }
    let gauge = metrics.gauge("casemate_census_key_old_revisions", labels, "Old revisions that a key opens.");
    for (file, keys) in &shown {
        keys.iter().for_each(|(key, (_, past))| gauge.sample([&file.file, key], *past));
    }
    let gauge = metrics.gauge(
        "casemate_census_keys_left_out",
        &["file"],
        "Keys beyond the hundred most used ones, which have no series.",
    );
    for (file, keys) in &shown {
        gauge.sample([&file.file], (file.keys.len() - keys.len()) as u64);
    }
    let gauge = metrics.gauge(
        "casemate_census_oldest_key_timestamp_seconds",
        &["file"],
        "When the oldest local KEK of casemate-kms that an object is under was made, in seconds since 1970.",
    );
    for file in &answer.files {
        let created = file.survey.groups.iter().filter(|entry| entry.live.values > 0);
        let created = created.filter_map(|entry| match &entry.group.encryption {
            Encryption::KmsV2 { record: Some(RecordKeys { created, .. }), .. } => Some(*created),
            _ => None,
        });
        if let Some(oldest) = created.min() {
            gauge.sample([&file.file], oldest);
        }
    }
}

fn questions(metrics: &mut Metrics, answer: &Answer) {
    let gauge = metrics.gauge(
        "casemate_census_configuration_objects",
        &["file", "state"],
        "With --encryption-config: objects by how they stand to it.",
    );
    for file in &answer.files {
        let Some(judged) = &file.against else { continue };
        for (state, word) in [
            (State::Unencrypted, "unencrypted"),
            (State::Unreadable, "unreadable"),
            (State::Stale, "stale"),
            (State::Undecided, "undecided"),
            (State::Current, "current"),
        ] {
            let of_it = judged.iter().filter(|one| one.state == state);
            gauge.sample([&file.file, word], of_it.map(|one| one.live.values).sum::<u64>());
        }
    }
    let gauge = metrics.gauge(
        "casemate_census_policy_violations",
        &["file", "standing"],
        "With --policy: values that break it; one that breaks several rules counts for each.",
    );
    for file in &answer.files {
        let Some(kept) = &file.policy else { continue };
        let (live, past) = sum(kept.violations.iter().map(|one| (&one.live, &one.past)));
        gauge.sample([&file.file, "live"], live);
        gauge.sample([&file.file, "past"], past);
    }
    let gauge = metrics.gauge(
        "casemate_census_policy_unclear",
        &["file"],
        "With --policy: reasons why it can't be told whether it is kept.",
    );
    for file in &answer.files {
        if let Some(kept) = &file.policy {
            gauge.sample([&file.file], kept.unclear.len() as u64);
        }
    }
    let gauge = metrics.gauge(
        "casemate_census_may_go",
        &["key", "verdict"],
        "With --may-go: 1 for what the answer is, and 0 for what it is not.",
    );
    if let Some(may_go) = &answer.may_go {
        for (verdict, word) in [(Verdict::Yes, "yes"), (Verdict::No, "no"), (Verdict::Unknown, "unknown")] {
            gauge.sample([&may_go.key.to_string(), word], u64::from(may_go.verdict == verdict));
        }
    }
    let gauge = metrics.gauge(
        "casemate_census_held_values",
        &["key", "standing"],
        "With --may-go: values of all files that are under the key.",
    );
    if let Some(may_go) = &answer.may_go {
        let (live, past) = sum(may_go.held_by.iter().map(|holder| (&holder.live, &holder.past)));
        gauge.sample([&may_go.key.to_string(), "live"], live);
        gauge.sample([&may_go.key.to_string(), "past"], past);
    }
    let gauge = metrics.gauge(
        "casemate_census_needed_by_values",
        &["standing"],
        "With --needs: values of all files that are under the key.",
    );
    if let Some(holders) = &answer.needs {
        let (live, past) = sum(holders.iter().map(|holder| (&holder.live, &holder.past)));
        gauge.sample(["live"], live);
        gauge.sample(["past"], past);
    }
    let gauge = metrics.gauge(
        "casemate_census_closed_values",
        &["file", "standing"],
        "With --have: values that the given keys don't open.",
    );
    for file in &answer.files {
        let Some(closed) = &file.closed else { continue };
        let (live, past) = sum(closed.iter().map(|one| (&one.live, &one.past)));
        gauge.sample([&file.file, "live"], live);
        gauge.sample([&file.file, "past"], past);
    }
}
