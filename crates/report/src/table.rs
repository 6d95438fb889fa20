//! Tables. On a narrow screen each row becomes a block of its own, and each cell tells its column.
use maud::{Markup, Render, html};

use crate::page::Tone;

/// Rows under names of columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// What it is, for who can't see where it stands.
    pub caption: String,
    /// Names of columns.
    pub head: Vec<String>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cell {
    /// Words.
    Text(String),
    /// A name that is written exactly so: of a key, a file, an object.
    Name(String),
    /// Several of these.
    Names(Vec<String>),
    /// A number, with a thin space between thousands.
    Number(u64),
    /// A number, and a bar as long as its share of the second.
    Bar(u64, u64),
    /// A word of judgement.
    Mark(Tone, String),
}

impl Table {
    /// One without rows.
    pub fn new<const N: usize>(caption: impl Into<String>, head: [&str; N]) -> Self {
        Self { caption: caption.into(), head: head.map(str::to_owned).into(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// Without its first column, where all rows would say the same in it.
    pub fn without_first(mut self, is_needless: bool) -> Self {
        if is_needless && !self.head.is_empty() {
            self.head.remove(0);
            for row in self.rows.iter_mut().filter(|row| !row.is_empty()) {
                row.remove(0);
            }
        }
        self
    }

    fn is_number(&self, column: usize) -> bool {
        self.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Number(_) | Cell::Bar(..))))
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        let class = |column| if self.is_number(column) { "number" } else { "words" };
        // What a style sheet makes of a table would take its meaning from it: the roles keep it.
        html! {
            table role="table" {
                caption { (self.caption) }
                thead role="rowgroup" {
                    tr role="row" {
                        @for (column, name) in self.head.iter().enumerate() {
                            th role="columnheader" scope="col" class=(class(column)) { (name) }
                        }
                    }
                }
                tbody role="rowgroup" {
                    @for row in &self.rows {
                        tr role="row" {
                            @for (column, (cell, name)) in row.iter().zip(&self.head).enumerate() {
                                td role="cell" class=(class(column)) data-column=(name) { span.cell.short[cell.is_short()] { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Cell {
    /// Whether it should not be broken where there is room.
    fn is_short(&self) -> bool {
        const SHORT: usize = 24;
        matches!(self, Self::Text(text) | Self::Name(text) | Self::Mark(_, text) if text.chars().count() <= SHORT)
    }
}

impl Render for Cell {
    fn render(&self) -> Markup {
        match self {
            Self::Text(text) => html! { (breakable(text)) },
            Self::Name(name) => html! { code { (breakable(name)) } },
            Self::Names(names) => html! {
                @for (place, name) in names.iter().enumerate() {
                    @if place > 0 { br; }
                    code { (breakable(name)) }
                }
            },
            Self::Number(number) => html! { (grouped(*number)) },
            Self::Bar(number, of) => html! {
                span.beside {
                    svg.bar width="100%" height="10" aria-hidden="true" {
                        rect.track width="100%" height="10" rx="2" {}
                        rect.fill width=(percent(*number, *of)) height="10" rx="2" {}
                    }
                    span { (grouped(*number)) }
                }
            },
            Self::Mark(tone, word) => html! { span class={ "mark " (tone.class()) } { (breakable(word)) } },
        }
    }
}

/// `text`, in which long words may go on in the next line after each separator, and every few letters: a column is as
/// narrow as that.
pub(crate) fn breakable(text: &str) -> Markup {
    const LONGEST: usize = 16;
    let mut parts = Vec::new();
    for word in text.split_inclusive(char::is_whitespace) {
        let is_long = word.chars().count() > LONGEST;
        let (mut begin, mut length) = (0, 0);
        for (place, character) in word.char_indices().filter(|_| is_long) {
            length += 1;
            if length == LONGEST || length > 1 && "/:.-_,=@".contains(character) {
                let end = place + character.len_utf8();
                parts.push((&word[begin..end], true));
                (begin, length) = (end, 0);
            }
        }
        parts.push((&word[begin..], false));
    }
    html! { @for (part, may_break) in parts { (part) @if may_break { wbr; } } }
}

/// As in `12 345`, with thin spaces that don't break.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 2);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push('\u{202f}');
        }
        shown.push(digit);
    }
    shown
}

/// A share as SVG has it. What is there is seen: a share that is not nothing has at least a sliver.
pub(crate) fn percent(part: u64, of: u64) -> String {
    const SLIVER: f64 = 0.4;
    let share = if of == 0 { 0.0 } else { part as f64 / of as f64 * 100.0 };
    let share = if part > 0 { share.clamp(SLIVER, 100.0) } else { 0.0 };
    format!("{share:.2}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, shown) in
            [(0, "0"), (999, "999"), (1000, "1\u{202f}000"), (1234567, "1\u{202f}234\u{202f}567")]
        {
            assert_eq!(grouped(number), shown);
        }
    }

    #[test]
    fn long_names_may_be_broken() {
        for (text, shown) in [
            ("plaintext (protobuf) ", "plaintext (protobuf) "),
            ("/registry/secrets/default/a b", "/registry/<wbr>secrets/<wbr>default/<wbr>a b"),
            ("0123456789abcdef0123", "0123456789abcdef<wbr>0123"),
            ("2026-12-01 04:40:00", "2026-12-01 04:40:00"),
            ("a<b>&", "a&lt;b&gt;&amp;"),
            ("", ""),
        ] {
            assert_eq!(breakable(text).into_string(), shown);
        }
    }

    #[test]
    fn a_small_share_is_seen() {
        for (part, of, shown) in
            [(0, 0, "0.00%"), (0, 9, "0.00%"), (1, 1_000_000, "0.40%"), (1, 2, "50.00%"), (9, 3, "100.00%")]
        {
            assert_eq!(percent(part, of), shown);
        }
    }
}
