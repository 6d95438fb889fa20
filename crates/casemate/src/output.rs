//! How answers leave the program: tables for people, JSON for programs, exit codes for scripts.
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde::Serialize;

/// What the exit code of every command says. The numbers are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// 0: yes, done.
    Yes,
    /// 1: no, or something was found.
    No,
    /// 2: the command line, or a file given on it, is wrong.
    Usage,
    /// 3: can't tell: what was asked could not be reached.
    Unknown,
    /// 4: some of it could not be told or done.
    Partly,
}

impl Exit {
    /// What scripts see.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unknown => 3,
            Self::Partly => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// Why a command gave no answer: one text that ends with what to do, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: &dyn fmt::Display) -> Self {
        Self { exit, text: error.to_string() }
    }

    /// What is told.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Flags that all commands share.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Output {
    /// How to print the answer
    #[arg(long = "output", global = true, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Print errors only: the exit code is the answer
    #[arg(long, global = true)]
    quiet: bool,

    /// No colours, as with the environment variable NO_COLOR
    #[arg(long, global = true)]
    no_color: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

impl Output {
    /// Prints an answer: `rows` for people, `json` for programs.
    pub(crate) fn answer<const N: usize>(
        &self,
        json: &impl Serialize,
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        write_stdout(
            match self.format {
                Format::Json => to_json(json)?,
                Format::Table => table(rows),
            }
            .as_bytes(),
        )
    }

    /// Prints an answer of several tables.
    pub(crate) fn sections(&self, json: &impl Serialize, sections: &[Section]) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        let text = match self.format {
            Format::Json => to_json(json)?,
            Format::Table => sections.iter().map(Section::text).collect::<Vec<_>>().join("\n"),
        };
        write_stdout(text.as_bytes())
    }

    /// Whether somebody watches who wants to know how far it is.
    pub(crate) fn is_watched(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Whether the exit code is all that is wanted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether the answer is for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Says on stderr what was done.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet {
            // Nobody there to read it is no reason to fail.
            let _ = writeln!(io::stderr(), "{}", printable(&text.to_string()));
        }
    }

    /// The same as tables on stderr, where stdout has something else.
    pub(crate) fn note_sections(&self, sections: &[Section]) {
        self.note(sections.iter().map(Section::text).collect::<Vec<_>>().join("\n").trim_end());
    }

    pub(crate) fn fail(&self, failure: &Failure) -> Exit {
        let mut stderr = io::stderr();
        let colour = !self.no_color
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && stderr.is_terminal();
        let label = if colour { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        let _ = writeln!(stderr, "{label} {}", printable(&failure.text));
        failure.exit
    }
}

/// Pretty JSON with a final line break, of which a terminal obeys nothing.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Unknown, &error))?;
    Ok(harmless_json(&text) + "\n")
}

/// The same JSON. It escapes by itself only what is below U+0020, and what else is odd can stand in strings only.
pub(crate) fn harmless_json(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for character in text.chars() {
        if is_odd(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                harmless += &format!("\\u{unit:04x}");
            }
        } else {
            harmless.push(character);
        }
    }
    harmless
}

/// Writes all of `bytes` to stdout. A reader that went away (`| head`) has what it wanted.
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Unknown, &format_args!("can't write to stdout: {error}")))
        }
        Ok(()) => Ok(()),
        Err(_) => {
            READER_IS_GONE.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
}

static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// Whether nobody reads what is printed any more, as behind `| head`: what would go on for ever ends then.
pub(crate) fn reader_is_gone() -> bool {
    READER_IS_GONE.load(Ordering::Relaxed)
}

/// What a terminal obeys, what turns letters round, and what nobody sees.
fn is_odd(character: char) -> bool {
    character.is_control() && character != '\n'
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text from outside, made harmless for a terminal: such characters become escapes.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_odd(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A table of an answer that has several.
pub(crate) struct Section {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Section {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// A row of names of columns.
    pub(crate) fn head<const N: usize>(mut self, names: [&str; N]) -> Self {
        self.row(names.map(str::to_owned));
        self
    }

    fn text(&self) -> String {
        let title = printable(&self.title) + "\n";
        if self.rows.is_empty() { title } else { title + &table(self.rows.iter().cloned()) }
    }
}

fn table<R: IntoIterator<Item = String>>(rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for row in rows {
        table.add_row(row.into_iter().map(|cell| printable(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if table.is_empty() { String::new() } else { table.trim_fmt() + "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\r\u{9b}c\nd"), "a\\u{1b}[31mb\\r\\u{9b}c\nd");
        assert_eq!(
            printable("a\u{202e}b\u{200b}c\u{2028}d äöü 鍵"),
            "a\\u{202e}b\\u{200b}c\\u{2028}d äöü 鍵"
        );
        let text = "a\x1b[2J\u{7f}\u{9b}\u{202e}\u{e0001}\n\"\\ 鍵";
        let json = to_json(&text).unwrap();
        assert!(
            json.trim_end().chars().all(|character| character == '鍵' || matches!(character, ' '..='~')),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn tables_are_columns_of_text() {
        let rows = [["a".to_owned(), "b".to_owned()], ["long".to_owned(), "c".to_owned()]];
        assert_eq!(table(rows), "a     b\nlong  c\n");
        assert_eq!(table(Vec::<[String; 2]>::new()), "", "nothing to say, and nothing said");
    }
}
