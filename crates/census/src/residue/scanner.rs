//! Looks through bytes that come in parts.
use zeroize::Zeroizing;

use super::header::{self, Header, LOOKAHEAD};
use super::{Found, Place, Search, name};

/// Counts the objects that begin in what it is given. Parts that follow one another are one piece: what begins in one and
/// goes on in the next is found.
pub struct Scanner<'s> {
    search: &'s Search,
    found: Found,
    /// The end of what came, as far as an object could begin there; and the part after it.
    window: Zeroizing<Vec<u8>>,
    /// Where that stands.
    offset: u64,
}

/// Bytes that are looked at with what was left of those before them.
const AT_ONCE: usize = 64 << 10;

impl<'s> Scanner<'s> {
    pub(super) fn new(search: &'s Search, place: Place) -> Self {
        // Never outgrown: where it moved from would not be wiped.
        let window = Zeroizing::new(Vec::with_capacity(AT_ONCE + LOOKAHEAD));
        Self { search, found: Found::new(place), window, offset: 0 }
    }

    /// Looks at `bytes`, which stand at `offset`.
    pub fn feed(&mut self, offset: u64, bytes: &[u8]) {
        self.found.look(bytes);
        if offset != self.offset + self.window.len() as u64 {
            self.search(true);
            self.window.clear();
            self.offset = offset;
        }
        for part in bytes.chunks(AT_ONCE) {
            self.window.extend_from_slice(part);
            let done = self.search(false);
            self.window.drain(..done);
            self.offset += done as u64;
        }
    }

    /// What was found.
    pub fn finish(mut self) -> Found {
        self.search(true);
        self.found
    }

    /// Goes through the window, and tells up to where that is done: if it is not the `last` of a piece, to where an object
    /// begins whose header is not all there.
    fn search(&mut self, last: bool) -> usize {
        let Self { search, found, window, offset } = self;
        let mut at = 0;
        while let Some(next) = header::position(&window[at..]) {
            at += next;
            match header::read(&window[at..]) {
                Header::Cut if !last => return at,
                Header::Object(object) => {
                    let resource = object.resource();
                    if search.wants(&resource) {
                        found.note(&name(&resource), || format!("byte {}", *offset + at as u64));
                    }
                }
                Header::Cut | Header::None => {}
            }
            at += 1;
        }
        window.len()
    }
}
