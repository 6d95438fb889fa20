//! What stands in a file of SQLite where no table has anything: SQLite overwrites neither a row that is deleted nor a page
//! that becomes free, unless it is told to (`secure_delete`), which kine does not.
//!
//! Which pages are in use, SQLite says itself (its table `dbstat`). In a page of a tree, bytes are unused between the
//! pointers to its cells and the first of these, and in free blocks; in a page of an overflow, behind its end
//! ([file format](https://www.sqlite.org/fileformat2.html), 1.6). Pages are read from the file as it is, not from the log.
use std::iter::once;
use std::ops::Range;

use zeroize::Zeroizing;

use super::{Error, Fault, StateDb};
use crate::bolt::read_exact;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Free,
    Tree,
    /// The end of a value, with as many bytes behind it.
    Overflow {
        unused: u32,
    },
}

impl StateDb {
    /// Hands each piece of the file that is unused to `each`, with its offset, in their order.
    ///
    /// # Errors
    /// If the file is damaged, can't be read, or changed meanwhile.
    pub fn unused(&self, mut each: impl FnMut(u64, &[u8])) -> Result<(), Error> {
        let file = |error: crate::bolt::Error| self.error(Fault::File(error.into()));
        let mut header = [0; 100];
        read_exact(&self.opened.file, &mut header, 0).map_err(file)?;
        let size = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65536,
            size => usize::from(size),
        };
        if !size.is_power_of_two() || size < 512 {
            return Err(self.error(Fault::NotSqlite));
        }
        let usable = size - usize::from(header[20]);
        let count = self.len() / size as u64;
        let pages = self.pages(count)?;
        let mut page = Zeroizing::new(vec![0; size]);
        for (number, kind) in pages.iter().enumerate() {
            let offset = number as u64 * size as u64;
            read_exact(&self.opened.file, &mut page, offset).map_err(file)?;
            let begin = if number == 0 { header.len() } else { 0 };
            let pieces = match *kind {
                Page::Free => once(begin..size).collect(),
                Page::Tree => of_tree(&page[..usable], begin),
                Page::Overflow { unused } => once(usable.saturating_sub(unused as usize)..usable).collect(),
            };
            for piece in pieces {
                each(offset + piece.start as u64, &page[piece]);
            }
        }
        self.ensure_unchanged()
    }

    /// What the first `count` pages are.
    fn pages(&self, count: u64) -> Result<Vec<Page>, Error> {
        let sqlite = |error| self.error(Fault::of(&error));
        let mut pages = vec![Page::Free; usize::try_from(count).unwrap_or_default()];
        let mut statement =
            self.connection.prepare("SELECT pageno, pagetype, unused FROM dbstat").map_err(sqlite)?;
        let mut rows = statement.query([]).map_err(sqlite)?;
        while let Some(row) = rows.next().map_err(sqlite)? {
            let number: i64 = row.get(0).map_err(sqlite)?;
            let kind: String = row.get(1).map_err(sqlite)?;
            let unused: i64 = row.get(2).map_err(sqlite)?;
            // Pages behind the file's end are in the log alone.
            let page = usize::try_from(number - 1).ok().and_then(|index| pages.get_mut(index));
            let Some(page) = page else { continue };
            *page = match kind.as_str() {
                "overflow" => Page::Overflow { unused: u32::try_from(unused).unwrap_or(u32::MAX) },
                _ => Page::Tree,
            };
        }
        Ok(pages)
    }
}

/// Of a page of a tree, whose header is at `begin`. One that contradicts itself has no free blocks from there on.
fn of_tree(page: &[u8], begin: usize) -> Vec<Range<usize>> {
    let number =
        |at: usize| page.get(at..at + 2).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
    let header = match page.get(begin) {
        Some(2 | 5) => 12,
        _ => 8,
    };
    let cells = number(begin + 3);
    let content = match number(begin + 5) {
        0 => 65536,
        content => content,
    };
    let first = begin + header + 2 * cells;
    let mut pieces: Vec<_> =
        (first <= content && content <= page.len()).then_some(first..content).into_iter().collect();
    let (mut at, mut end) = (number(begin + 1), content);
    // They are in the order of their places.
    while at >= end && at + 4 <= page.len() {
        let length = number(at + 2);
        if length < 4 || at + length > page.len() {
            break;
        }
        pieces.push(at..at + length);
        end = at + length;
        at = number(at);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_tree_are_between_its_cells() {
        let mut page = vec![0; 512];
        // A leaf of two cells, whose contents begin at 400, with free blocks at 420 and 460.
        page[..8].copy_from_slice(&[13, 420_u16.to_be_bytes()[0], 420_u16.to_be_bytes()[1], 0, 2, 1, 144, 0]);
        page[420..424].copy_from_slice(&[1, 204, 0, 20]);
        page[460..464].copy_from_slice(&[0, 0, 0, 12]);
        assert_eq!(of_tree(&page, 0), [12..400, 420..440, 460..472]);
        // An inner page has four bytes more, and the first page the file's header before it.
        page[0] = 5;
        assert_eq!(of_tree(&page, 0)[0], 16..400);
        page.copy_within(..8, 100);
        assert_eq!(of_tree(&page, 100)[0], 116..400);
        // Free blocks that lead round, out of the page, or over each other end it.
        for (at, next) in [(460, 420_u16), (460, 460), (460, 465), (460, 510), (420, 421)] {
            let mut page = page.clone();
            page[at..at + 2].copy_from_slice(&next.to_be_bytes());
            assert!(of_tree(&page, 0).len() <= 3, "{at} to {next}");
        }
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_within_the_page_and_apart(page in proptest::collection::vec(0_u8.., 0..600), begin in 0_usize..101) {
            let pieces = of_tree(&page, begin);
            let mut end = 0;
            for piece in pieces {
                proptest::prop_assert!(end <= piece.start && piece.start <= piece.end && piece.end <= page.len());
                end = piece.end;
            }
        }
    }
}
