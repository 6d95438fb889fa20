//! Findings, for people and for machines: one self-contained HTML page, and metrics for Prometheus' textfile collector.
//!
//! What it promises:
//! * A [`Page`] needs nothing but itself: no network, no script, no font. Its content security policy refuses all of these,
//!   so that text which should not be there can't act either.
//! * Every text is escaped, wherever it stands. Texts come from etcd, and whoever writes etcd chooses them.
//! * The same findings make the same bytes: no clock, no chance, no order of a hash table.
//! * Each plot stands beside a table of its numbers, and colours are never all that tells things apart.
//! * A [`Destination`] is replaced at once or not at all, and only if it is one of ours.
//!
//! Map:
//! * [`page`]: verdict, facts, sections; `page.css` is how it looks, on screens and on paper
//! * [`plot`]: [`Bars`] and [`Histogram`], as SVG
//! * [`table`]: rows and cells
//! * [`prometheus`]: gauges as text
//! * [`file`]: where a report goes
pub mod file;
pub mod page;
pub mod plot;
pub mod prometheus;
pub mod table;

pub use file::Destination;
pub use page::{Block, Page, Section, Tone, Verdict};
pub use plot::{Bars, Histogram, Ink};
pub use prometheus::Metrics;
pub use table::{Cell, Table};
