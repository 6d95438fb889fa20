//! Plots, as SVG that stands in the page.
//!
//! Lengths are percentages of the place that there is, and text has the page's size: a plot is as readable on a telephone
//! as on paper. What a plot shows, its description says, and a table beside it has the numbers.
mod bars;
mod histogram;

pub use bars::{Bars, Row, Scale};
pub use histogram::{Bin, Histogram};

/// What something is drawn with: colours that the colour-blind tell apart, with a pattern where it matters most.
/// `page.css` has them, for light and dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Ink {
    /// Grey and hatched: not encrypted, or not so important.
    Plain,
    /// Hatched in the colour of trouble.
    Trouble,
    /// The main thing.
    Blue,
    /// Another.
    Teal,
    /// Another.
    Violet,
    /// Another.
    Amber,
    /// Another.
    Sky,
    /// Another.
    Rose,
}

impl Ink {
    /// For series that have no meaning of their own, in the order in which they are best told apart.
    pub const SERIES: [Self; 6] = [Self::Blue, Self::Amber, Self::Teal, Self::Violet, Self::Sky, Self::Rose];

    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Plain => "ink-plain",
            Self::Trouble => "ink-trouble",
            Self::Blue => "ink-blue",
            Self::Teal => "ink-teal",
            Self::Violet => "ink-violet",
            Self::Amber => "ink-amber",
            Self::Sky => "ink-sky",
            Self::Rose => "ink-rose",
        }
    }
}
