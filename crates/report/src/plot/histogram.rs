//! Columns beside each other, along time.
use maud::{Markup, html};

use super::Ink;
use crate::table::{grouped, percent};

/// How many there are of each age, or of whatever has an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// What is seen.
    pub title: String,
    /// The same in a sentence or two, for who can't see it.
    pub description: String,
    /// What is counted, as in `objects`.
    pub unit: String,
    /// Columns, from left to right.
    pub bins: Vec<Bin>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bin {
    /// What stands below it; short.
    pub label: String,
    /// How high it is.
    pub count: u64,
    /// What it is drawn with.
    pub ink: Ink,
}

/// Pixels that a column has, and what is above it for its number and below for its label.
const HEIGHT: u64 = 140;
const ABOVE: u64 = 20;
const BELOW: u64 = 24;

impl Histogram {
    /// In `figure`, with identities that begin with `id`.
    pub(crate) fn figure(&self, id: &str) -> Markup {
        let most = self.bins.iter().map(|bin| bin.count).max().unwrap_or_default();
        let step = 100.0 / self.bins.len().max(1) as f64;
        let at = |place: usize, within: f64| format!("{:.2}%", step * (place as f64 + within));
        let base = ABOVE + HEIGHT;
        html! {
            figure.plot aria-labelledby={ (id) "-title" } {
                figcaption { span id={ (id) "-title" } { (self.title) } span.unit { (self.unit) } }
                svg.columns width="100%" height=(base + BELOW) role="img" aria-labelledby={ (id) "-name" } aria-describedby={ (id) "-text" } {
                    title id={ (id) "-name" } { (self.title) }
                    desc id={ (id) "-text" } { (self.description) }
                    line.axis x1="0" x2="100%" y1=(base) y2=(base) {}
                    @for (place, bin) in self.bins.iter().enumerate() {
                        @let height = height(bin.count, most);
                        @if bin.count > 0 {
                            rect class=(bin.ink.class()) x=(at(place, 0.12)) width=(format!("{:.2}%", step * 0.76)) y=(base - height) height=(height) {
                                title { (bin.label) ": " (grouped(bin.count)) " " (self.unit) " (" (percent(bin.count, self.sum())) ")" }
                            }
                            text.value x=(at(place, 0.5)) y=(base - height - 6) { (grouped(bin.count)) }
                        }
                        // On a narrow screen there is room for each second one.
                        text class=(if place % 2 == 0 { "tick" } else { "tick second" }) x=(at(place, 0.5)) y=(base + 16) { (bin.label) }
                    }
                }
            }
        }
    }

    fn sum(&self) -> u64 {
        self.bins.iter().fold(0, |sum, bin| sum.saturating_add(bin.count))
    }
}

/// What is there is seen.
fn height(count: u64, most: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    let height = count as f64 / most as f64 * HEIGHT as f64;
    (height.round() as u64).clamp(2, HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_high_as_what_they_count() {
        for (count, most, expected) in
            [(0, 0, 0), (0, 9, 0), (1, 1_000_000, 2), (5, 10, 70), (u64::MAX, u64::MAX, 140)]
        {
            assert_eq!(height(count, most), expected, "{count} of {most}");
        }
    }
}
