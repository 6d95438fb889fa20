//! `casemate audit`: whether an audit log of casemate-kms is as it was written.
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::path::PathBuf;

use casemate_kms::audit::chain::{Report, Verifier};
use casemate_kms::audit::format::{Head, Line, MAX_LINE_LEN};
use casemate_kms::audit::key::CheckpointKey;
use clap::Subcommand;
use serde::Serialize;

use crate::output::{Exit, Failure, Output};

/// What `casemate audit verify --help` says.
const ABOUT: &str = "Is this audit log as it was written?\n\n\
    Give all files of one log, in any order: audit.log and the rotated ones beside it. Finds lines that were changed, \
    removed, put elsewhere or brought in from another log, and gaps of which the log itself tells.\n\n\
    Who may write the files can also compute a chain anew, or cut off its end. That is found with an anchor alone: a \
    head (SEQ:HASH) that was kept elsewhere, as the plugin shows it in its journal, or the key of the checkpoints. \
    Without one, the answer says what is not proved. Older files that are not given are no finding: a log that is \
    rotated loses its beginning.";

/// What its exit codes say.
const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found; the answer says what that proves
  1  something was found
  2  usage: the command line is wrong, or a file on it can't be opened
  3  can't tell: there is no line, or a file could not be read to its end";

/// `casemate audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Is this audit log as it was written?
    #[command(long_about = ABOUT, after_help = EXIT_CODES)]
    Verify(VerifyArgs),
}

#[derive(clap::Args)]
struct VerifyArgs {
    /// Files of one log, in any order
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// A line's number and hash, kept elsewhere since: proves all lines up to it
    #[arg(long, value_name = "SEQ:HASH")]
    head: Option<Head>,

    /// The key file of the checkpoints: proves all lines up to the last of them. Of keys that followed each other, the
    /// oldest first
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,
}

/// Does what the command line says.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let Verb::Verify(args) = args.verb;
    verify(&args, output)
}

#[derive(Serialize)]
struct Answer {
    verdict: Verdict,
    /// Oldest first.
    files: Vec<String>,
    #[serde(flatten)]
    report: Report,
    /// What is proved, and what is not.
    proof: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    NothingFound,
    Found,
    NoLine,
}

fn verify(args: &VerifyArgs, output: &Output) -> Result<Exit, Failure> {
    let keys = args.key.iter().map(|path| CheckpointKey::read(path)).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| Failure::new(Exit::Usage, &error))?;
    // All of them before the first is read: the plugin may rotate them meanwhile.
    let mut files = args.files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(|file| file.first_seq);

    let mut verifier = Verifier::new(args.head, keys);
    for file in &mut files {
        verifier.file(&file.name);
        feed(&mut verifier, &mut file.bytes).map_err(|error| file.unreadable(Exit::Unknown, &error))?;
    }
    let report = verifier.finish();
    let (verdict, exit) = match (report.finding_count, report.lines) {
        (0, 0) => (Verdict::NoLine, Exit::Unknown),
        (0, _) => (Verdict::NothingFound, Exit::Yes),
        _ => (Verdict::Found, Exit::No),
    };
    let proof = proof(&report, args);
    let files = files.into_iter().map(|file| file.name).collect();
    let answer = Answer { verdict, files, report, proof };
    output.answer(&answer, answer.rows())?;
    Ok(exit)
}

struct LogFile {
    name: String,
    bytes: BufReader<File>,
    /// Of its first line that is one; the last place is for a file without any.
    first_seq: u64,
}

impl LogFile {
    fn unreadable(&self, exit: Exit, error: &io::Error) -> Failure {
        Failure::new(exit, &format_args!("{}: can't be read: {error}", self.name))
    }
}

fn open(path: &PathBuf) -> Result<LogFile, Failure> {
    let name = path.display().to_string();
    let failed =
        |error: &io::Error| Failure::new(Exit::Usage, &format_args!("{name}: can't be read: {error}"));
    // A pipe in its place must not hang the program.
    if !std::fs::metadata(path).map_err(|error| failed(&error))?.is_file() {
        return Err(Failure::new(
            Exit::Usage,
            &format_args!("{name}: this is no file; give the log's files"),
        ));
    }
    let mut bytes = BufReader::new(File::open(path).map_err(|error| failed(&error))?);
    let mut first_seq = u64::MAX;
    // A first line that was changed must not put its file elsewhere.
    for skipped in 0..10 {
        match next_line(&mut bytes).map_err(|error| failed(&error))? {
            Next::Line(line) => {
                if let Ok(line) = Line::parse(&line) {
                    first_seq = line.fields.seq.saturating_sub(skipped);
                    break;
                }
            }
            Next::Overlong => {}
            Next::Torn | Next::End => break,
        }
    }
    bytes.rewind().map_err(|error| failed(&error))?;
    Ok(LogFile { name, bytes, first_seq })
}

fn feed(verifier: &mut Verifier, bytes: &mut impl BufRead) -> io::Result<()> {
    loop {
        match next_line(bytes)? {
            Next::Line(line) => verifier.line(&line),
            Next::Overlong => verifier.overlong_line(),
            Next::Torn => verifier.torn_line(),
            Next::End => return Ok(()),
        }
    }
}

enum Next {
    Line(Vec<u8>),
    Overlong,
    Torn,
    End,
}

/// Takes no more memory than a line can have, whatever is in the file.
fn next_line(bytes: &mut impl BufRead) -> io::Result<Next> {
    let mut line = Vec::new();
    let mut overlong = false;
    loop {
        let piece = bytes.fill_buf()?;
        if piece.is_empty() {
            return Ok(if line.is_empty() && !overlong { Next::End } else { Next::Torn });
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(piece.len());
        overlong |= line.len() + taken > MAX_LINE_LEN;
        if !overlong {
            line.extend_from_slice(&piece[..taken]);
        }
        bytes.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(if overlong { Next::Overlong } else { Next::Line(line) });
        }
    }
}

fn proof(report: &Report, args: &VerifyArgs) -> Vec<String> {
    let mut proof = Vec::new();
    let first = report.first_seq.unwrap_or(0);
    let last = report.last.map_or(0, |last| last.seq);
    let after = |seq: u64| last.saturating_sub(seq);
    match (args.head, report.anchored_to) {
        (_, Some(seq)) => proof.push(format!(
            "lines {first} to {seq} are as they were written when the head was kept; {} after it are not anchored",
            after(seq)
        )),
        (Some(_), None) => proof.push("the head does not prove these lines".into()),
        (None, _) => {}
    }
    match (args.key.is_empty(), report.authenticated_to) {
        (_, Some(seq)) => proof.push(format!(
            "lines {first} to {seq} are as the holder of the key wrote them; {} after it, and what may have been \
             cut off behind it, are not authenticated",
            after(seq)
        )),
        (false, None) => proof.push("no checkpoint of this key proves these lines".into()),
        (true, None) => {}
    }
    if args.head.is_none() {
        proof.push(
            "the tail is not anchored: without --head, lines that were cut off the end can't be told".into(),
        );
    }
    if args.head.is_none() && args.key.is_empty() {
        proof.push(
            "without --head or --key, a chain that was computed anew can't be told from the one that was written"
                .into(),
        );
    }
    proof
}

impl Answer {
    fn rows(&self) -> Vec<[String; 2]> {
        let row = |name: &str, value: String| [name.to_owned(), value];
        let report = &self.report;
        let verdict = match self.verdict {
            Verdict::NothingFound => "nothing was found".to_owned(),
            Verdict::Found => format!("{} found", report.finding_count),
            Verdict::NoLine => "there is no line to look at".to_owned(),
        };
        let mut rows = vec![row("verdict", verdict), row("files", self.files.join(", "))];
        if let (Some(first), Some(last)) = (report.first_seq, report.last) {
            rows.push(row("lines", format!("{}, numbers {first} to {}", report.lines, last.seq)));
            rows.push(row(
                "calls",
                format!("{}, and {} that the log says are missing", report.calls, report.missed),
            ));
            rows.push(row("head", last.to_string()));
        }
        for finding in &report.findings {
            let kind = serde_json::to_value(finding.kind).ok();
            let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("finding").to_owned();
            let place = format!("{}:{}", finding.file, finding.line);
            rows.push(row(&kind, format!("{place}: {}", finding.detail)));
        }
        let more = report.finding_count.saturating_sub(report.findings.len() as u64);
        if more > 0 {
            rows.push(row("more", format!("{more} findings are not shown")));
        }
        let notes = report.notes.iter();
        rows.extend(notes.map(|note| row("note", format!("{}:{}: {}", note.file, note.line, note.detail))));
        rows.extend(self.proof.iter().map(|proof| row("proof", proof.clone())));
        rows
    }
}
