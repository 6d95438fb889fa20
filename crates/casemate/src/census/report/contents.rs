//! What files hold: how each resource is stored, by which keys, of what age, at what cost.
use std::collections::BTreeMap;

use casemate_census::survey::{Encryption, Entry, Key, RecordKeys};
use casemate_report::plot::{Bin, Row, Scale};
use casemate_report::table::grouped;
use casemate_report::{Bars, Block, Cell, Histogram, Ink, Section, Table, Tone};

use super::super::answer::{Answer, FileAnswer, named};
use super::super::scan::Checksum;
use super::{Made, counted, fact, moment};

/// Rows of plots and of tables, beyond which the rest is summed up.
const BARS: usize = 20;
const ROWS: usize = 200;
/// Names in one cell.
const NAMES: usize = 12;
/// What has no colour of its own.
const OTHERS: &str = "other ways";
const PLAINTEXT: &str = "plaintext";
const DAMAGED: &str = "damaged";

/// One file.
pub(super) fn section(file: &FileAnswer, is_one_of_many: bool, made: &Made) -> Section {
    let survey = &file.survey;
    let mut blocks = Vec::new();
    if is_one_of_many {
        blocks.push(Block::Facts(facts(file)));
    }
    if survey.groups.is_empty() {
        blocks.push(Block::Text("There is nothing in it that an API server stored.".to_owned()));
        return Section { title: format!("What {} holds", file.file), blocks };
    }
    blocks.push(Block::Bars(shares(&survey.groups)));
    blocks.extend(groups(file));
    if !file.keys.is_empty() {
        blocks.push(Block::Heading("Keys".to_owned()));
        blocks.push(Block::Text(
            "Each name under which something is encrypted. A value that several keys open counts for each of them."
                .to_owned(),
        ));
        blocks.push(Block::Table(keys(file)));
    }
    blocks.extend(ages(file, made));
    blocks.extend(overhead(file));
    if !survey.malformed.is_empty() {
        blocks.push(Block::Heading("Damaged values".to_owned()));
        blocks.push(Block::Table(malformed(file)));
    }
    Section { title: format!("What {} holds", file.file), blocks }
}

/// All files beside each other.
pub(super) fn overview(answer: &Answer) -> Section {
    let ways = Ways::of(answer.files.iter().flat_map(|file| &file.survey.groups));
    let rows = answer
        .files
        .iter()
        .take(BARS)
        .map(|file| Row { label: file.file.clone(), parts: ways.parts(file.survey.groups.iter()) });
    let bars = Bars {
        title: "How the objects of each file are stored".to_owned(),
        description: "For each file the share of its objects under each key or plugin; the table has what each key opens."
            .to_owned(),
        unit: "objects".to_owned(),
        scale: Scale::Whole,
        series: ways.series(),
        rows: rows.collect(),
    };
    let mut needed: BTreeMap<&Key, Vec<&str>> = BTreeMap::new();
    for file in &answer.files {
        for used in &file.keys {
            needed.entry(&used.key).or_default().push(&file.file);
        }
    }
    let mut table = Table::new("Files by key", ["Key", "Files that need it", "Which"]);
    for (key, files) in needed.iter().take(ROWS) {
        let more = files.len().saturating_sub(NAMES);
        let which = match (files.len() == answer.files.len(), more) {
            (true, _) => "all of them".to_owned(),
            (false, 0) => files.join(", "),
            (false, more) => format!("{} and {more} more", files[..NAMES].join(", ")),
        };
        let count = files.len() as u64;
        table.row([
            Cell::Name(key.to_string()),
            Cell::Bar(count, answer.files.len() as u64),
            Cell::Text(which),
        ]);
    }
    let mut blocks = vec![Block::Bars(bars), Block::Table(table)];
    blocks.extend(left_out(needed.len(), ROWS));
    Section { title: "Which file needs which key".to_owned(), blocks }
}

/// Which file it was.
pub(super) fn facts(file: &FileAnswer) -> Vec<(String, Cell)> {
    let survey = &file.survey;
    let number = |number: Option<u64>| number.map_or("none".to_owned(), |number| number.to_string());
    let checksum = match file.checksum {
        Checksum::Verified => "verified: the file is as it was written",
        Checksum::Absent => "none: it was not made by etcdctl snapshot save",
        Checksum::Live => "none: it is no file, a running etcd was asked",
    };
    let sha256 = file.sha256.iter().map(|sha256| ("SHA-256".to_owned(), Cell::Name(sha256.clone())));
    let others = [
        fact("Bytes", grouped(file.bytes)),
        fact("Checksum within it", checksum.to_owned()),
        fact("Revision of etcd", number(survey.revision)),
        fact(
            "Compacted up to revision",
            survey.compacted.map_or("never compacted".to_owned(), |at| at.to_string()),
        ),
        fact("Below the key", survey.prefix.clone()),
        fact("Objects", grouped(survey.live)),
        fact("Old revisions", grouped(survey.past)),
    ];
    sha256.chain(others).collect()
}

/// Ways of storing, each with a colour: the most used ones have one of their own.
struct Ways {
    names: Vec<(String, Ink)>,
}

impl Ways {
    fn of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Self {
        let mut used: BTreeMap<String, u64> = BTreeMap::new();
        for entry in entries {
            *used.entry(way(&entry.group.encryption)).or_default() += entry.live.values;
        }
        used.retain(|name, live| *live > 0 && name != PLAINTEXT && name != DAMAGED);
        let mut used: Vec<(String, u64)> = used.into_iter().collect();
        used.sort_by(|(name, live), (other, more)| more.cmp(live).then(name.cmp(other)));
        let room = Ink::SERIES.len();
        let own = if used.len() > room { room - 1 } else { room };
        let inks = Ink::SERIES.into_iter();
        let mut names: Vec<(String, Ink)> =
            used.iter().map(|(name, _)| name.clone()).take(own).zip(inks).collect();
        if used.len() > own {
            names.push((OTHERS.to_owned(), Ink::SERIES[room - 1]));
        }
        names.push((PLAINTEXT.to_owned(), Ink::Plain));
        names.push((DAMAGED.to_owned(), Ink::Trouble));
        Self { names }
    }

    fn series(&self) -> Vec<(String, Ink)> {
        self.names.clone()
    }

    /// How many objects are stored in each way.
    fn parts<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Vec<u64> {
        let mut parts = vec![0; self.names.len()];
        for entry in entries {
            let way = way(&entry.group.encryption);
            let place = |name: &str| self.names.iter().position(|(known, _)| known == name);
            if let Some(place) = place(&way).or_else(|| place(OTHERS)) {
                parts[place] += entry.live.values;
            }
        }
        parts
    }
}

fn way(encryption: &Encryption) -> String {
    if encryption.is_plain() {
        PLAINTEXT.to_owned()
    } else if encryption.is_broken() {
        DAMAGED.to_owned()
    } else {
        encryption.to_string()
    }
}

/// Resources of which something is encrypted come first: of them one wants to know.
fn shares(entries: &[Entry]) -> Bars {
    let ways = Ways::of(entries.iter());
    let mut resources: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.live.values > 0) {
        resources.entry(entry.group.resource.to_string()).or_default().push(entry);
    }
    let mut rows: Vec<(bool, Row)> = Vec::new();
    for (label, entries) in resources {
        let is_all_plain = entries.iter().all(|entry| entry.group.encryption.is_plain());
        rows.push((is_all_plain, Row { label, parts: ways.parts(entries.into_iter()) }));
    }
    let total = |row: &Row| row.parts.iter().sum::<u64>();
    rows.sort_by(|(plain, row), (other, next)| {
        plain.cmp(other).then(total(next).cmp(&total(row))).then_with(|| row.label.cmp(&next.label))
    });
    let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    if rows.len() > BARS {
        let rest = rows.split_off(BARS - 1);
        let mut parts = vec![0; ways.names.len()];
        for row in &rest {
            parts.iter_mut().zip(&row.parts).for_each(|(part, more)| *part += more);
        }
        rows.push(Row { label: counted(rest.len() as u64, "other resource", "other resources"), parts });
    }
    Bars {
        title: "How the objects of each resource are stored".to_owned(),
        description: format!(
            "For each resource the share of its objects under each key or plugin, and in plaintext. Most used: {}.",
            ways.names.first().map_or(PLAINTEXT, |(name, _)| name)
        ),
        unit: "objects".to_owned(),
        scale: Scale::Whole,
        series: ways.series(),
        rows,
    }
}

fn groups(file: &FileAnswer) -> Vec<Block> {
    // Local KEKs have a table of their own.
    let mut merged: BTreeMap<_, (&Encryption, [u64; 3])> = BTreeMap::new();
    for entry in &file.survey.groups {
        let encryption = &entry.group.encryption;
        let (_, sums) = merged
            .entry((&entry.group.resource, named(encryption), key_id(encryption)))
            .or_insert((encryption, [0; 3]));
        let amounts = [entry.live.values, entry.past.values, entry.live.bytes];
        sums.iter_mut().zip(amounts).for_each(|(sum, more)| *sum += more);
    }
    let head = ["Resource", "Stored as", "Key id", "Objects", "Old revisions", "Bytes"];
    let mut table = Table::new("The same in numbers", head);
    for ((resource, stored, id), (encryption, [live, past, bytes])) in merged.iter().take(ROWS) {
        let stored = if encryption.is_broken() {
            Cell::Mark(Tone::Bad, stored.clone())
        } else if encryption.is_plain() {
            Cell::Text(encryption.to_string())
        } else {
            Cell::Name(encryption.to_string())
        };
        table.row([
            Cell::Text(resource.to_string()),
            stored,
            id.map_or(Cell::Text(String::new()), |id| Cell::Name(id.to_owned())),
            Cell::Number(*live),
            Cell::Number(*past),
            Cell::Number(*bytes),
        ]);
    }
    let mut blocks = vec![Block::Table(table)];
    blocks.extend(left_out(merged.len(), ROWS));
    blocks
}

fn key_id(encryption: &Encryption) -> Option<&str> {
    match encryption {
        Encryption::KmsV2 { key_id, .. } => Some(key_id),
        _ => None,
    }
}

fn keys(file: &FileAnswer) -> Table {
    let most = file.keys.iter().map(|used| used.live).max().unwrap_or_default();
    let mut table = Table::new("What each key opens", ["Key", "Objects", "Old revisions"]);
    for used in file.keys.iter().take(ROWS) {
        table.row([Cell::Name(used.key.to_string()), Cell::Bar(used.live, most), Cell::Number(used.past)]);
    }
    table
}

/// Ages in seconds below which a column takes objects, and what stands under it.
const AGES: [(u64, &str); 7] = [
    (DAY, "< 1 d"),
    (7 * DAY, "1–7 d"),
    (30 * DAY, "7–30 d"),
    (60 * DAY, "30–60 d"),
    (90 * DAY, "60–90 d"),
    (180 * DAY, "90–180 d"),
    (365 * DAY, "180 d–1 y"),
];
const DAY: u64 = 24 * 60 * 60;

/// How old the keys are, as records of `casemate-kms` tell; nothing where nothing is encrypted.
fn ages(file: &FileAnswer, made: &Made) -> Vec<Block> {
    let mut bins: Vec<u64> = vec![0; AGES.len() + 1];
    let mut keks: BTreeMap<(u64, &str), (u64, u64)> = BTreeMap::new();
    let (mut silent, mut told) = (0, 0);
    for entry in &file.survey.groups {
        match &entry.group.encryption {
            Encryption::KmsV2 { record: Some(RecordKeys { created, local_kek, .. }), .. } => {
                let age = made.at.saturating_sub(*created);
                let place = AGES.iter().position(|(below, _)| age < *below).unwrap_or(AGES.len());
                bins[place] += entry.live.values;
                told += entry.live.values;
                let of_it = keks.entry((*created, local_kek)).or_default();
                *of_it = (of_it.0 + entry.live.values, of_it.1 + entry.past.values);
            }
            encryption if encryption.is_plain() || encryption.is_broken() => {}
            _ => silent += entry.live.values,
        }
    }
    if silent == 0 && keks.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Heading("Age of keys".to_owned())];
    if silent > 0 {
        let silent = counted(silent, "encrypted object is", "encrypted objects are");
        blocks.push(Block::Text(format!(
            "{silent} under keys that don't tell when they were made: only records of casemate-kms do."
        )));
    }
    if keks.is_empty() {
        return blocks;
    }
    let mut columns: Vec<Bin> = AGES
        .iter()
        .zip(&bins)
        .map(|((_, label), count)| Bin { label: (*label).to_owned(), count: *count, ink: Ink::Blue })
        .collect();
    columns.push(Bin { label: "> 1 y".to_owned(), count: bins[AGES.len()], ink: Ink::Blue });
    if silent > 0 {
        columns.push(Bin { label: "not told".to_owned(), count: silent, ink: Ink::Plain });
    }
    let oldest = keks.keys().next().map_or(String::new(), |(created, _)| moment(*created));
    blocks.push(Block::Histogram(Histogram {
        title: "Objects by the age of their local KEK".to_owned(),
        description: format!(
            "{} under {}; the oldest was made at {oldest}.",
            counted(told, "object is", "objects are"),
            counted(keks.len() as u64, "local key", "local keys")
        ),
        unit: "objects".to_owned(),
        bins: columns,
    }));
    let head = ["Local KEK", "Made at", "Age in days", "Objects", "Old revisions"];
    let mut table = Table::new("Local KEKs, the oldest first", head);
    let count = keks.len();
    for ((created, kek), (live, past)) in keks.into_iter().take(ROWS) {
        table.row([
            Cell::Name(kek.to_owned()),
            Cell::Text(moment(created)),
            Cell::Number(made.at.saturating_sub(created) / DAY),
            Cell::Number(live),
            Cell::Number(past),
        ]);
    }
    blocks.push(Block::Table(table));
    blocks.extend(left_out(count, ROWS));
    blocks
}

/// What records cost, which stand beside each value.
fn overhead(file: &FileAnswer) -> Vec<Block> {
    let mut costs: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for entry in file.survey.groups.iter().filter(|entry| entry.live.annotation_bytes > 0) {
        let cost = costs.entry(entry.group.encryption.to_string()).or_default();
        let live = &entry.live;
        *cost = (cost.0 + live.values, cost.1 + live.bytes, cost.2 + live.annotation_bytes);
    }
    if costs.is_empty() {
        return Vec::new();
    }
    let head = ["Plugin", "Objects", "Bytes", "Of these in annotations", "Annotations an object"];
    let mut table = Table::new("Annotations of KMS v2 plugins", head);
    let count = costs.len();
    let mut costs: Vec<_> = costs.into_iter().collect();
    costs.sort_by(|(name, (_, _, cost)), (other, (_, _, more))| more.cmp(cost).then(name.cmp(other)));
    for (plugin, (live, bytes, annotations)) in costs.into_iter().take(ROWS) {
        table.row([
            Cell::Name(plugin),
            Cell::Number(live),
            Cell::Number(bytes),
            Cell::Bar(annotations, bytes),
            Cell::Number(annotations / live.max(1)),
        ]);
    }
    let mut blocks = vec![
        Block::Heading("What records cost".to_owned()),
        Block::Text(
            "What a plugin has kube-apiserver store beside each value, to open it later, as part of all bytes of the values \
             that it encrypts."
                .to_owned(),
        ),
        Block::Table(table),
    ];
    blocks.extend(left_out(count, ROWS));
    blocks
}

fn malformed(file: &FileAnswer) -> Table {
    let mut table = Table::new("Values that nobody can read", ["Key in etcd", "Revision", "Is", "Why"]);
    for value in &file.survey.malformed {
        table.row([
            Cell::Name(value.key.clone()),
            Cell::Number(value.revision),
            Cell::Text(if value.live { "an object" } else { "an old revision" }.to_owned()),
            Cell::Text(value.reasons.join("; ")),
        ]);
    }
    table
}

/// That a table is longer than what is shown of it.
pub(super) fn left_out(all: usize, shown: usize) -> Option<Block> {
    let more = all.checked_sub(shown).filter(|more| *more > 0)?;
    Some(Block::Text(format!(
        "{} more: the JSON of this census has all.",
        counted(more as u64, "row", "rows")
    )))
}
