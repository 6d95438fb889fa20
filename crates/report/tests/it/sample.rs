//! A page that has one of everything.
use casemate_report::plot::{Bin, Row, Scale};
use casemate_report::{Bars, Block, Cell, Histogram, Ink, Page, Section, Table, Tone, Verdict};

/// With what `text` says for each text.
pub fn page(mut text: impl FnMut() -> String) -> Page {
    let mut table = Table::new(text(), ["Name", "Several", "Number", "Bar", "Mark"]);
    table.head[0] = text();
    for (number, tone) in [(7, Tone::Bad), (65_536, Tone::Good), (0, Tone::Open)] {
        table.row([
            Cell::Name(text()),
            Cell::Names(vec![text(), text()]),
            Cell::Number(number),
            Cell::Bar(number, 70_000),
            Cell::Mark(tone, text()),
        ]);
    }
    let empty = || Cell::Text(String::new());
    table.row([Cell::Text(text()), Cell::Names(Vec::new()), Cell::Number(1), Cell::Bar(1, 1), empty()]);
    let inks = [Ink::Blue, Ink::Amber, Ink::Teal, Ink::Violet, Ink::Sky, Ink::Rose, Ink::Plain, Ink::Trouble];
    let row = |label, parts: [u64; 8]| Row { label, parts: parts.into() };
    let bars = Bars {
        title: text(),
        description: text(),
        unit: text(),
        scale: Scale::Whole,
        series: inks.into_iter().map(|ink| (text(), ink)).collect(),
        rows: vec![row(text(), [50, 30, 20, 10, 9, 8, 7, 1]), row(text(), [0, 0, 0, 0, 0, 0, 1_000_000, 1])],
    };
    let largest = Bars { scale: Scale::Largest, title: text(), ..bars.clone() };
    let histogram = Histogram {
        title: text(),
        description: text(),
        unit: text(),
        bins: [3, 0, 12_000, 40].map(|count| Bin { label: text(), count, ink: Ink::Blue }).into(),
    };
    Page {
        title: text(),
        verdict: Verdict {
            tone: Tone::Bad,
            headline: text(),
            reasons: vec![(Tone::Good, text()), (Tone::Open, text()), (Tone::Plain, text())],
        },
        facts: vec![(text(), Cell::Text(text())), (text(), Cell::Name(text()))],
        sections: vec![
            Section {
                title: text(),
                blocks: vec![
                    Block::Text(text()),
                    Block::Note(Tone::Good, text()),
                    Block::Heading(text()),
                    Block::List(vec![text(), text()]),
                    Block::Command(text()),
                    Block::Facts(vec![(text(), Cell::Number(3))]),
                ],
            },
            Section {
                title: text(),
                blocks: vec![
                    Block::Bars(bars),
                    Block::Table(table),
                    Block::Bars(largest),
                    Block::Histogram(histogram),
                ],
            },
        ],
        footer: text(),
    }
}

/// Texts that tell their place.
pub fn numbered() -> impl FnMut() -> String {
    let mut number = 0;
    move || {
        number += 1;
        format!("text {number}")
    }
}
