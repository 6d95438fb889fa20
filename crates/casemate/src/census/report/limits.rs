//! What is left open, what was not looked at, and how to make the report again.
use casemate_report::{Block, Section, Tone};

use super::super::answer::{Answer, FileAnswer};
use super::super::scan::Checksum;
use super::{FILES_IN_DETAIL, Made, counted, quoted};

/// The last sections of a page.
pub(super) fn sections(answer: &Answer, made: &Made) -> Vec<Section> {
    let mut sections = Vec::new();
    let open = left_open(answer);
    if !open.is_empty() {
        let note = Block::Note(Tone::Open, "This keeps answers from being complete:".to_owned());
        sections
            .push(Section { title: "What is left open".to_owned(), blocks: vec![note, Block::List(open)] });
    }
    sections.push(Section {
        title: "What was not looked at".to_owned(),
        blocks: vec![Block::List(not_looked_at(answer))],
    });
    sections.push(Section { title: "How to make this report again".to_owned(), blocks: again(answer, made) });
    sections
}

fn left_open(answer: &Answer) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for failed in &answer.failed {
        let error = failed.error.strip_prefix(failed.file.as_str()).unwrap_or(&failed.error);
        open.push(format!("{} was not read: {}", failed.file, error.trim_start_matches([':', ' '])));
    }
    for FileAnswer { file, checksum, survey, .. } in &answer.files {
        if survey.looked_elsewhere() {
            open.push(format!(
                "{file}: nothing is below {}, but {} elsewhere; if kube-apiserver has an --etcd-prefix, give it as --prefix.",
                survey.prefix,
                counted(survey.outside, "revision is", "revisions are")
            ));
        }
        if let Some(encrypted @ 1..) = survey.outside_encrypted {
            open.push(format!(
                "{file}: {} not below {}, and may be under any key; --prefix / takes all of them.",
                counted(encrypted, "encrypted value is", "encrypted values are"),
                survey.prefix
            ));
        }
        open.extend(survey.unseen.iter().map(|unseen| format!("{file}: {unseen}.")));
        if survey.ungrouped > 0 {
            open.push(format!(
                "{file}: {} of too many kinds to be told apart.",
                counted(survey.ungrouped, "value is", "values are")
            ));
        }
        if *checksum == Checksum::Absent {
            open.push(format!(
                "{file} carries no checksum, so that only its structure shows whether it is whole."
            ));
        }
    }
    let more = answer.files.len().saturating_sub(FILES_IN_DETAIL);
    if more > 0 {
        let more = counted(more as u64, "file is", "files are");
        open.push(format!(
            "{more} told of in the answers only, not one by one; the JSON of this census has them all."
        ));
    }
    open
}

fn not_looked_at(answer: &Answer) -> Vec<String> {
    let outside: u64 = answer.files.iter().map(|file| file.survey.outside).sum();
    let mut points: Vec<String> = [
        "Whether a value opens. No key was used: what a value says of its own encryption was read, and whoever can write \
         etcd can write that.",
        "Other files. A backup that was not given may need a key that nothing here needs.",
        "What was written after the revision that stands beside each file.",
        "Other etcd clusters: events are often kept in one of their own (--etcd-servers-overrides).",
        "Free pages of the database, and its write-ahead log: what was deleted or overwritten, plaintext too, stays there \
         until compaction and defragmentation, and in the log for longer. casemate census residue looks there.",
    ]
    .map(str::to_owned)
    .into();
    if answer.encryption_config.is_some() {
        points.push(
            "Whether a KMS v2 plugin uses another key by now. Its rotations are not in an EncryptionConfiguration; they \
             show as several key ids."
                .to_owned(),
        );
    }
    if outside > 0 {
        let prefixes: std::collections::BTreeSet<&str> =
            answer.files.iter().map(|file| file.survey.prefix.as_str()).collect();
        let prefixes: Vec<&str> = prefixes.into_iter().collect();
        points.push(format!(
            "{} of keys that are not below {}.",
            counted(outside, "revision", "revisions"),
            prefixes.join(", ")
        ));
    }
    points
}

fn again(answer: &Answer, made: &Made) -> Vec<Block> {
    let is_running = answer.files.iter().any(|file| file.sha256.is_none());
    let same = if is_running {
        format!(
            "By casemate {}. A running etcd goes on, and its numbers with it; a snapshot stays.",
            made.version
        )
    } else {
        format!(
            "With casemate {} and the same files, the numbers are the same. Ages count from the time at the top.",
            made.version
        )
    };
    let mut blocks = vec![Block::Text(same), Block::Command(made.command.clone())];
    let files: Vec<(&str, &str)> = answer
        .files
        .iter()
        .filter_map(|file| Some((file.sha256.as_deref()?, file.file.as_str())))
        .take(FILES_IN_DETAIL)
        .collect();
    if !files.is_empty() {
        let sums = files.iter().map(|(sha256, file)| format!("{sha256}  {file}"));
        let names = files.iter().map(|(_, file)| quoted(file));
        blocks.push(Block::Text("That they are the same files:".to_owned()));
        blocks.push(Block::Command(
            std::iter::once(format!("$ sha256sum {}", names.collect::<Vec<_>>().join(" ")))
                .chain(sums)
                .collect::<Vec<_>>()
                .join("\n"),
        ));
    }
    blocks
}
