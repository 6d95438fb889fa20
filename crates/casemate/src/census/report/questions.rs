//! What was asked, and the answer to each.
use std::collections::BTreeMap;

use casemate_census::answers::{Holder, Judged, MayGo, State, Verdict};
use casemate_census::survey::Tally;
use casemate_report::plot::{Row, Scale};
use casemate_report::{Bars, Block, Cell, Ink, Section, Table, Tone};

use super::super::answer::{Answer, example, named, span};
use super::contents::left_out;
use super::{Made, counted, sum, values};

const ROWS: usize = 200;
const BARS: usize = 20;

/// One section a question.
pub(super) fn sections(answer: &Answer, made: &Made) -> Vec<Section> {
    let mut sections = Vec::new();
    sections.extend(policy(answer));
    sections.extend(configuration(answer));
    sections.extend(answer.may_go.as_ref().map(may_go));
    sections.extend(answer.needs.as_ref().map(|holders| needs(holders, &answer.needs_unclear, made)));
    sections.extend(closed(answer));
    sections
}

fn policy(answer: &Answer) -> Option<Section> {
    let mut table =
        Table::new("Violations", ["File", "Rule", "Resource", "What", "Objects", "Old revisions", "Example"]);
    let (mut all, mut unclear) = (0, Vec::new());
    let mut is_asked = false;
    for file in &answer.files {
        let Some(kept) = &file.policy else { continue };
        is_asked = true;
        unclear.extend(kept.unclear.iter().map(|why| format!("{}: {why}", file.file)));
        for one in &kept.violations {
            all += 1;
            if all > ROWS {
                continue;
            }
            table.row([
                Cell::Name(file.file.clone()),
                Cell::Text(one.rule.map_or("malformed".to_owned(), |rule| format!("rules[{rule}]"))),
                Cell::Text(one.group.resource.to_string()),
                Cell::Text(one.what.clone()),
                Cell::Number(one.live.values),
                Cell::Number(one.past.values),
                Cell::Name(example(&one.live, &one.past)),
            ]);
        }
    }
    if !is_asked {
        return None;
    }
    let mut blocks = Vec::new();
    if all == 0 {
        blocks.push(Block::Note(
            if unclear.is_empty() { Tone::Good } else { Tone::Open },
            "Nothing speaks against the policy.".to_owned(),
        ));
    } else {
        blocks.push(Block::Table(table.without_first(answer.files.len() == 1)));
        blocks.extend(left_out(all, ROWS));
    }
    blocks.extend(open(unclear));
    Some(Section { title: "Is the policy kept?".to_owned(), blocks })
}

/// States with their inks, words and meanings, the worst first.
const STATES: [(State, Ink, &str, &str); 5] = [
    (
        State::Unencrypted,
        Ink::Trouble,
        "unencrypted",
        "in plaintext, and the configuration encrypts the resource",
    ),
    (State::Unreadable, Ink::Violet, "unreadable", "no API server with this configuration can read it"),
    (State::Stale, Ink::Amber, "stale", "readable, and the next write stores it in another way"),
    (State::Undecided, Ink::Sky, "can't tell", "the key in etcd does not say enough"),
    (State::Current, Ink::Blue, "as configured", "as a write would store it now"),
];

fn configuration(answer: &Answer) -> Option<Section> {
    let config = answer.encryption_config.as_ref()?;
    let judged: Vec<(&str, &Judged)> = answer
        .files
        .iter()
        .flat_map(|file| file.against.iter().flatten().map(|one| (file.file.as_str(), one)))
        .collect();
    let mut resources: BTreeMap<String, (bool, Vec<u64>)> = BTreeMap::new();
    for (_, one) in &judged {
        let (is_concerned, parts) =
            resources.entry(one.group.resource.to_string()).or_insert((false, vec![0; STATES.len()]));
        *is_concerned |= one.state != State::Current || !one.group.encryption.is_plain();
        if let Some(place) = STATES.iter().position(|(state, ..)| *state == one.state) {
            parts[place] += one.live.values;
        }
    }
    let mut rows: Vec<Row> = resources
        .into_iter()
        .filter(|(_, (is_concerned, parts))| *is_concerned && parts.iter().any(|part| *part > 0))
        .map(|(label, (_, parts))| Row { label, parts })
        .collect();
    rows.sort_by(|row, other| other.parts.cmp(&row.parts).then_with(|| row.label.cmp(&other.label)));
    let shown = rows.len().min(BARS);
    let more = rows.len() - shown;
    rows.truncate(shown);
    let mut blocks = vec![Block::Text(format!(
        "Each object of {} against {}: is it stored as an API server with this configuration would store it now?",
        match answer.files.as_slice() {
            [one] => one.file.clone(),
            files => counted(files.len() as u64, "file", "files"),
        },
        config.file
    ))];
    if !rows.is_empty() {
        blocks.push(Block::Bars(Bars {
            title: "Resources that it encrypts, or that are encrypted".to_owned(),
            description:
                "For each resource the share of objects that are stored as configured, stale, unreadable or \
                          unencrypted; the table below has the numbers."
                    .to_owned(),
            unit: "objects".to_owned(),
            scale: Scale::Whole,
            series: STATES.map(|(_, ink, word, _)| (word.to_owned(), ink)).into(),
            rows,
        }));
    }
    blocks.extend((more > 0).then(|| {
        Block::Text(format!("{} more are not drawn.", counted(more as u64, "resource", "resources")))
    }));
    blocks.push(Block::Table(states(&judged)));
    let head = ["File", "State", "Resource", "Is", "Should be", "Objects", "Old revisions", "Example"];
    let mut table = Table::new("What is not as configured", head);
    let mut found: Vec<_> = judged.into_iter().filter(|(_, one)| one.state != State::Current).collect();
    found.sort_by_key(|(_, one)| one.state);
    for (file, one) in found.iter().take(ROWS) {
        table.row([
            Cell::Name((*file).to_owned()),
            mark(one.state),
            Cell::Text(one.group.resource.to_string()),
            Cell::Name(named(&one.group.encryption)),
            Cell::Name(one.expected.clone()),
            Cell::Number(one.live.values),
            Cell::Number(one.past.values),
            Cell::Name(example(&one.live, &one.past)),
        ]);
    }
    if !found.is_empty() {
        blocks.push(Block::Table(table.without_first(answer.files.len() == 1)));
        blocks.extend(left_out(found.len(), ROWS));
    }
    Some(Section { title: "Is all stored as the EncryptionConfiguration says?".to_owned(), blocks })
}

fn states(judged: &[(&str, &Judged)]) -> Table {
    let mut table = Table::new("In numbers", ["State", "Which means", "Objects", "Old revisions"]);
    for (state, _, _, means) in STATES {
        let of_it = judged.iter().filter(|(_, one)| one.state == state);
        let (live, past) = sum(of_it.map(|(_, one)| (&one.live, &one.past)));
        if live + past == 0 && state != State::Current {
            continue;
        }
        table.row([mark(state), Cell::Text(means.to_owned()), Cell::Number(live), Cell::Number(past)]);
    }
    table
}

fn mark(state: State) -> Cell {
    let tone = match state {
        State::Unencrypted | State::Unreadable | State::Stale => Tone::Bad,
        State::Undecided => Tone::Open,
        _ => Tone::Good,
    };
    let word = STATES.iter().find(|(known, ..)| *known == state).map_or("", |(_, _, word, _)| word);
    Cell::Mark(tone, word.to_owned())
}

fn may_go(answer: &MayGo) -> Section {
    let (live, past) = sum(answer.held_by.iter().map(|holder| (&holder.live, &holder.past)));
    let mut blocks = vec![match answer.verdict {
        Verdict::Yes => {
            Block::Note(Tone::Good, format!("Yes: nothing in these files is under {}.", answer.key))
        }
        Verdict::No if live + past > 0 => {
            Block::Note(Tone::Bad, format!("No: it opens {}.", values(live, past)))
        }
        Verdict::No => {
            Block::Note(Tone::Bad, "No: nothing is under it yet, and API servers write with it.".to_owned())
        }
        Verdict::Unknown => Block::Note(Tone::Open, "It can't be told.".to_owned()),
    }];
    if !answer.writes.is_empty() {
        blocks.push(Block::Text(format!(
            "API servers write with it, by the EncryptionConfiguration: {}.",
            answer.writes.join(", ")
        )));
    }
    blocks.extend(held("What holds it back", &answer.held_by));
    blocks.extend(open(answer.unclear.clone()));
    if !answer.notes.is_empty() {
        blocks.extend(answer.notes.iter().map(|note| Block::Text(sentence(note))));
    }
    Section { title: format!("May {} go?", answer.key), blocks }
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn needs(holders: &[Holder], unclear: &[String], made: &Made) -> Section {
    let key = made.needs.as_deref().unwrap_or_default();
    let mut blocks = Vec::new();
    if holders.is_empty() && unclear.is_empty() {
        blocks.push(Block::Note(Tone::Good, "Nothing in these files does.".to_owned()));
    }
    if holders.is_empty() {
        blocks.extend(unclear.iter().map(|why| Block::Note(Tone::Open, sentence(why))));
    }
    blocks.extend(held("What needs it", holders));
    Section { title: format!("What needs {key}?"), blocks }
}

fn held(title: &str, holders: &[Holder]) -> Vec<Block> {
    if holders.is_empty() {
        return Vec::new();
    }
    let sources: std::collections::BTreeSet<&str> =
        holders.iter().map(|holder| holder.source.as_str()).collect();
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for holder in holders {
        let resource = holder.group.resource.to_string();
        let label = if sources.len() > 1 { format!("{resource} in {}", holder.source) } else { resource };
        let sum = sums.entry(label).or_default();
        *sum = (sum.0 + holder.live.values, sum.1 + holder.past.values);
    }
    let mut rows: Vec<Row> =
        sums.into_iter().map(|(label, (live, past))| Row { label, parts: vec![live, past] }).collect();
    rows.sort_by(|row, other| other.parts.cmp(&row.parts).then_with(|| row.label.cmp(&other.label)));
    rows.truncate(BARS);
    let (live, past) = sum(holders.iter().map(|holder| (&holder.live, &holder.past)));
    let bars = Bars {
        title: title.to_owned(),
        description: format!("It opens {}; the table below says where they are.", values(live, past)),
        unit: "objects and old revisions".to_owned(),
        scale: Scale::Largest,
        series: vec![("objects".to_owned(), Ink::Blue), ("old revisions".to_owned(), Ink::Plain)],
        rows,
    };
    let head = [
        "File",
        "Resource",
        "Stored as",
        "Objects",
        "Old revisions",
        "Written at revisions",
        "Examples",
        "Also opened by",
    ];
    let mut table = Table::new("The same in numbers", head);
    for holder in holders.iter().take(ROWS) {
        table.row([
            Cell::Name(holder.source.clone()),
            Cell::Text(holder.group.resource.to_string()),
            Cell::Name(holder.group.encryption.to_string()),
            Cell::Number(holder.live.values),
            Cell::Number(holder.past.values),
            Cell::Text(span(&holder.live, &holder.past)),
            Cell::Names(examples(&holder.live, &holder.past)),
            Cell::Names(holder.alternatives.iter().map(ToString::to_string).collect()),
        ]);
    }
    let mut blocks = vec![Block::Bars(bars), Block::Table(table.without_first(sources.len() == 1))];
    blocks.extend(left_out(holders.len(), ROWS));
    blocks
}

fn examples(live: &Tally, past: &Tally) -> Vec<String> {
    live.examples.iter().chain(&past.examples).take(3).cloned().collect()
}

fn closed(answer: &Answer) -> Option<Section> {
    let head = ["File", "Resource", "Stored as", "Objects", "Old revisions", "Opened by any of"];
    let mut table = Table::new("What stays closed", head);
    let (mut all, mut is_asked) = (0, false);
    for file in &answer.files {
        is_asked |= file.closed.is_some();
        for one in file.closed.iter().flatten() {
            all += 1;
            if all > ROWS {
                continue;
            }
            let keys: Vec<String> = one.opened_by.iter().map(ToString::to_string).collect();
            table.row([
                Cell::Name(file.file.clone()),
                Cell::Text(one.group.resource.to_string()),
                Cell::Name(named(&one.group.encryption)),
                Cell::Number(one.live.values),
                Cell::Number(one.past.values),
                if keys.is_empty() { Cell::Text("no key".to_owned()) } else { Cell::Names(keys) },
            ]);
        }
    }
    if !is_asked {
        return None;
    }
    let mut blocks = Vec::new();
    if all == 0 {
        blocks.push(Block::Note(Tone::Good, "They open all of it.".to_owned()));
    } else {
        blocks.push(Block::Table(table.without_first(answer.files.len() == 1)));
        blocks.extend(left_out(all, ROWS));
    }
    Some(Section { title: "What can't be read with the keys that were given?".to_owned(), blocks })
}

fn open(unclear: Vec<String>) -> Vec<Block> {
    if unclear.is_empty() {
        return Vec::new();
    }
    vec![Block::Note(Tone::Open, "What leaves it open:".to_owned()), Block::List(unclear)]
}
