//! The answer as a page for people who were not there, and as gauges for Prometheus.
//!
//! * `verdict`: what was found, in words
//! * `contents`: what one file holds
//! * `questions`: what was asked
//! * `limits`: what is left open, what was not looked at, and how to make it again
//! * `metrics`: gauges
//!
//! Both are made of the [`Answer`] and of [`Made`] alone: the same answer makes the same bytes.
mod contents;
mod limits;
mod metrics;
mod questions;
mod verdict;

use std::path::PathBuf;

use casemate_census::survey::{Key, Tally};
use casemate_report::table::grouped;
use casemate_report::{Cell, Destination, Page, file, page, prometheus};
use clap::Args;
use jiff::Timestamp;

use super::answer::Answer;
use crate::output::{Exit, Failure, Output};

/// Where else the answer goes.
#[derive(Args)]
pub(super) struct Reports {
    /// Write a page with plots about all of it, too: one file, for any browser, without network or scripts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write gauges, too, for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
}

/// How an answer came about.
pub(super) struct Made {
    /// When, in seconds since 1970.
    pub(super) at: u64,
    /// The command line, as one types it.
    pub(super) command: String,
    /// The program's version.
    pub(super) version: &'static str,
    /// The key that was asked about by `--needs`.
    pub(super) needs: Option<String>,
}

/// Files of which a page tells everything.
const FILES_IN_DETAIL: usize = 8;

impl Reports {
    /// Says before the work is done if a report can't go where it should.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut destinations = self.page().into_iter().chain(self.gauges());
        let refused = |error: file::Error| Failure::new(Exit::Usage, &error);
        destinations.try_for_each(|destination| destination.check().map_err(refused))
    }

    /// Writes what was wished for.
    pub(super) fn write(&self, answer: &Answer, made: &Made, output: &Output) -> Result<(), Failure> {
        let put = |destination: Destination, text: &str| -> Result<(), Failure> {
            destination.write(text).map_err(|error| Failure::new(Exit::Unknown, &error))?;
            output.note(format_args!("{}: written", destination.path().display()));
            Ok(())
        };
        if let Some(destination) = self.page() {
            put(destination, &page(answer, made).html())?;
        }
        if let Some(destination) = self.gauges() {
            put(destination, &metrics::metrics(answer, made).text())?;
        }
        Ok(())
    }

    fn page(&self) -> Option<Destination> {
        self.html.as_ref().map(|path| Destination::new(path, page::MARK))
    }

    fn gauges(&self) -> Option<Destination> {
        self.prometheus.as_ref().map(|path| Destination::new(path, prometheus::MARK))
    }
}

impl Made {
    /// By this process, at `at`.
    pub(super) fn now(at: u64, needs: Option<&Key>) -> Self {
        let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
        let command = std::iter::once("casemate".to_owned()).chain(words).collect::<Vec<_>>().join(" ");
        Self { at, command, version: env!("CARGO_PKG_VERSION"), needs: needs.map(ToString::to_string) }
    }
}

fn page(answer: &Answer, made: &Made) -> Page {
    let mut facts = vec![fact("Made at", moment(made.at))];
    match answer.files.as_slice() {
        [one] => {
            facts.push(fact("File", one.file.clone()));
            facts.extend(contents::facts(one));
        }
        // Backups of one cluster: a sum of their objects would be none of the cluster's.
        files => facts.push(fact("Of", counted(files.len() as u64, "file", "files"))),
    }
    if let Some(config) = &answer.encryption_config {
        facts.push(fact("EncryptionConfiguration", config.file.clone()));
        facts.push(("Its hash".to_owned(), Cell::Name(config.hash.clone())));
    }
    let mut sections = questions::sections(answer, made);
    if answer.files.len() > 1 {
        sections.push(contents::overview(answer));
    }
    let is_one_of_many = answer.files.len() > 1;
    let in_detail = answer.files.iter().take(FILES_IN_DETAIL);
    sections.extend(in_detail.map(|file| contents::section(file, is_one_of_many, made)));
    sections.extend(limits::sections(answer, made));
    Page {
        title: "Census of etcd".to_owned(),
        verdict: verdict::verdict(answer, made),
        facts,
        sections,
        footer: format!(
            "Made by casemate {} without any key, from what the files say of themselves. It holds names, counts and \
             revisions, and no value of any object.",
            made.version
        ),
    }
}

fn fact(name: &str, value: String) -> (String, Cell) {
    (name.to_owned(), Cell::Text(value))
}

/// `one` or `many`, after the number.
fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// As in `3 objects and 1 old revision`.
fn values(live: u64, past: u64) -> String {
    let objects = counted(live, "object", "objects");
    let revisions = counted(past, "old revision", "old revisions");
    match (live, past) {
        (_, 0) => objects,
        (0, _) => revisions,
        _ => format!("{objects} and {revisions}"),
    }
}

/// How many there are, live and past.
fn sum<'a>(tallies: impl Iterator<Item = (&'a Tally, &'a Tally)>) -> (u64, u64) {
    tallies.fold((0, 0), |(live, past), (more, old)| (live + more.values, past + old.values))
}

/// In UTC, as in `2026-12-01 03:10:00 UTC`.
fn moment(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.map_or_else(
        || format!("{seconds} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

/// As a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=@%+,".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
