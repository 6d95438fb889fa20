//! Bars that are made of parts.
use maud::{Markup, html};

use super::Ink;
use crate::table::{breakable, grouped};

/// One bar a row, each of which consists of the same series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bars {
    /// What is seen.
    pub title: String,
    /// The same in a sentence or two, for who can't see it.
    pub description: String,
    /// What is counted, as in `objects`.
    pub unit: String,
    /// How long a bar is.
    pub scale: Scale,
    /// Names of series, and what they are drawn with.
    pub series: Vec<(String, Ink)>,
    /// Bars.
    pub rows: Vec<Row>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub label: String,
    /// As many numbers as there are series.
    pub parts: Vec<u64>,
}

/// How long a bar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As long as all others: it shows shares.
    Whole,
    /// As long as its sum: the largest fills the place.
    Largest,
}

impl Bars {
    /// In `figure`, with identities that begin with `id`.
    pub(crate) fn figure(&self, id: &str) -> Markup {
        let largest = self.rows.iter().map(Row::sum).max().unwrap_or_default();
        html! {
            figure.plot aria-labelledby={ (id) "-title" } {
                figcaption { span id={ (id) "-title" } { (self.title) } span.unit { (self.unit) } }
                @if self.series.len() > 1 {
                    ul.legend aria-hidden="true" {
                        @for (name, ink) in self.used() {
                            li { svg.swatch width="14" height="14" { rect class=(ink.class()) width="14" height="14" rx="3" {} } (name) }
                        }
                    }
                }
                div.bars role="img" aria-label=(self.description) {
                    @for row in &self.rows {
                        div.row aria-hidden="true" {
                            span.label { (breakable(&row.label)) }
                            (self.bar(row, match self.scale { Scale::Whole => row.sum(), Scale::Largest => largest }))
                            span.total { (grouped(row.sum())) }
                        }
                    }
                }
            }
        }
    }

    /// Series of which there is something.
    fn used(&self) -> impl Iterator<Item = &(String, Ink)> {
        let is_used =
            |place: usize| self.rows.iter().any(|row| row.parts.get(place).is_some_and(|part| *part > 0));
        self.series.iter().enumerate().filter(move |(place, _)| is_used(*place)).map(|(_, series)| series)
    }

    fn bar(&self, row: &Row, of: u64) -> Markup {
        let spans = spans(&row.parts, of);
        html! {
            svg.bar width="100%" height="20" {
                rect.track width="100%" height="20" rx="3" {}
                @for ((name, ink), (part, (begin, width))) in self.series.iter().zip(row.parts.iter().zip(spans)) {
                    @if *part > 0 {
                        rect class={ "part " (ink.class()) } x={ (format!("{begin:.2}")) "%" } width={ (format!("{width:.2}")) "%" } height="20" {
                            title { (row.label) ": " (name) ", " (grouped(*part)) " " (self.unit) }
                        }
                    }
                }
            }
        }
    }
}

impl Row {
    fn sum(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }
}

/// Where each part begins, and its width, in percent of the place. One that is not nothing gets a sliver, which the others
/// give from theirs.
fn spans(parts: &[u64], of: u64) -> Vec<(f64, f64)> {
    const SLIVER: f64 = 0.6;
    let share = |part: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 * 100.0 };
    let widths: Vec<f64> =
        parts.iter().map(|part| if *part == 0 { 0.0 } else { share(*part).max(SLIVER) }).collect();
    let (sum, room) =
        (widths.iter().sum::<f64>(), parts.iter().map(|part| share(*part)).sum::<f64>().max(SLIVER));
    let shrunk = if sum > room { room / sum } else { 1.0 };
    let mut begin = 0.0;
    let place = |width: f64| {
        let span = (begin, width * shrunk);
        begin += span.1;
        span
    };
    widths.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_stand_side_by_side_within_the_place(parts in prop::collection::vec(0..u64::MAX / 16, 0..8), more in 0..1000u64) {
            let sum: u64 = parts.iter().sum();
            let spans = spans(&parts, sum + more);
            let mut end = 0.0;
            for (part, (begin, width)) in parts.iter().zip(&spans) {
                prop_assert!((begin - end).abs() < 1e-9);
                prop_assert_eq!(*part > 0, *width > 0.0);
                end = begin + width;
            }
            prop_assert!(end <= 100.0 + 1e-9, "{}", end);
        }
    }

    #[test]
    fn one_object_of_a_million_is_seen() {
        let spans = spans(&[999_999, 1], 1_000_000);
        assert!(spans[1].1 > 0.5 && spans[0].1 > 99.0, "{spans:?}");
    }
}
