//! The page: what was found in words first, then what it is about, then the numbers.
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use crate::plot::{Bars, Histogram};
use crate::table::{Cell, Table};

/// How everything looks.
const STYLE: &str = include_str!("page/page.css");
/// SHA-256 of it in base64: the only style that the content security policy lets in. A test compares.
const STYLE_HASH: &str = "iIlyHU4c1p+PFdA7laKnSLqPNDkPAKfj9sa/wtZ//to=";
/// Nothing is loaded and nothing runs.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-";

/// The first line of every page, by which a file is known as one.
pub const MARK: &str = "<!DOCTYPE html><!-- casemate report -->\n";

/// One page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// What it is, in the window's title and above everything.
    pub title: String,
    /// What was found.
    pub verdict: Verdict,
    /// What it is about: when, of what, made how.
    pub facts: Vec<(String, Cell)>,
    /// The rest.
    pub sections: Vec<Section>,
    /// The last line.
    pub footer: String,
}

/// What was found, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How good that is.
    pub tone: Tone,
    /// One sentence.
    pub headline: String,
    /// What it rests on.
    pub reasons: Vec<(Tone, String)>,
}

/// How good something is. Each has a sign and a word beside its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Neither good nor bad.
    Plain,
    /// It can't be told.
    Open,
    /// Something is to be done.
    Bad,
}

/// A part of the page under a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What stands in it.
    pub blocks: Vec<Block>,
}

/// What stands in a section.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Block {
    /// A heading within the section.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A paragraph that judges.
    Note(Tone, String),
    /// Points.
    List(Vec<String>),
    /// Lines as one types them.
    Command(String),
    /// Names and what they are.
    Facts(Vec<(String, Cell)>),
    /// A plot. A table with its numbers should follow.
    Bars(Bars),
    /// A plot. A table with its numbers should follow.
    Histogram(Histogram),
    /// A table.
    Table(Table),
}

impl Page {
    /// The whole file.
    pub fn html(&self) -> String {
        let body = html! {
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content={ (POLICY) (STYLE_HASH) "'" };
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    meta name="robots" content="noindex";
                    title { (self.title) ": " (self.verdict.headline) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    (patterns())
                    header {
                        p.what { (self.title) }
                        (self.verdict)
                        (facts(&self.facts))
                    }
                    main {
                        @for (place, section) in self.sections.iter().enumerate() {
                            (section.markup(place))
                        }
                    }
                    footer { p { (self.footer) } }
                }
            }
        };
        debug_assert!(MARK.starts_with(DOCTYPE.0));
        MARK.to_owned() + &visible(&body.into_string()) + "\n"
    }
}

impl Render for Verdict {
    fn render(&self) -> Markup {
        html! {
            div class={ "verdict " (self.tone.class()) } {
                (self.tone.sign())
                div {
                    h1 { (self.headline) }
                    @if !self.reasons.is_empty() {
                        ul { @for (tone, reason) in &self.reasons { li class=(tone.class()) { (tone.sign()) span { (reason) } } } }
                    }
                }
            }
        }
    }
}

impl Section {
    fn markup(&self, place: usize) -> Markup {
        html! {
            section aria-labelledby={ "section-" (place) } {
                h2 id={ "section-" (place) } { (self.title) }
                @for (number, block) in self.blocks.iter().enumerate() {
                    (block.markup(&format!("plot-{place}-{number}")))
                }
            }
        }
    }
}

impl Block {
    fn markup(&self, id: &str) -> Markup {
        match self {
            Self::Heading(text) => html! { h3 { (text) } },
            Self::Text(text) => html! { p { (text) } },
            Self::Note(tone, text) => {
                html! { p class={ "note " (tone.class()) } { (tone.sign()) span { (text) } } }
            }
            Self::List(points) => html! { ul.points { @for point in points { li { (point) } } } },
            Self::Command(lines) => html! { pre { code { (lines) } } },
            Self::Facts(list) => facts(list),
            Self::Bars(bars) => bars.figure(id),
            Self::Histogram(histogram) => histogram.figure(id),
            Self::Table(table) => table.render(),
        }
    }
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Plain => "plain",
            Self::Open => "open",
            Self::Bad => "bad",
        }
    }

    /// A sign, with a word for who can't see it.
    fn sign(self) -> Markup {
        let (word, path) = match self {
            Self::Good => ("Good", "M5.5 12.5l4.2 4.2 8.8-9.2"),
            Self::Plain => ("Note", "M12 11v6M12 7v.5"),
            Self::Open => ("Open", "M9 9.2a3 3 0 1 1 4.2 2.8c-.8.4-1.2 1-1.2 2M12 17v.5"),
            Self::Bad => ("Finding", "M7.5 7.5l9 9M16.5 7.5l-9 9"),
        };
        html! {
            svg.sign viewBox="0 0 24 24" role="img" aria-label=(word) {
                circle cx="12" cy="12" r="12" {}
                path d=(path) {}
            }
        }
    }
}

/// What would not be seen, or would turn the order of letters, made visible: a name in etcd could read as another one.
/// None of it is part of our own markup.
fn visible(html: &str) -> String {
    let is_hidden = |character: char| {
        character.is_control() && character != '\n'
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut shown = String::with_capacity(html.len());
    for character in html.chars() {
        if is_hidden(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

fn facts(list: &[(String, Cell)]) -> Markup {
    html! { dl.facts { @for (name, value) in list { div { dt { (name) } dd { (value) } } } } }
}

/// What hatched inks are filled with.
fn patterns() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs {
                pattern id="hatched-plain" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect.ground-plain width="6" height="6" {}
                    line.line-plain x1="1" x2="1" y1="0" y2="6" {}
                }
                pattern id="hatched-trouble" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)" {
                    rect.ground-trouble width="6" height="6" {}
                    line.line-trouble x1="1" x2="1" y1="0" y2="6" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
