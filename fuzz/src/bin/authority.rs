//! A client's half of an HTTP/2 connection, in pieces of any size. The first byte chooses the pieces.
#![no_main]

use casemate_kms::socket::authority::{AuthorityFilter, MAX_UNDECIDED};
use libfuzzer_sys::fuzz_target;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fuzz_target!(|bytes: &[u8]| {
    let Some((piece, frames)) = bytes.split_first() else { return };
    // Both, since few inputs would begin with a preface.
    check(frames, usize::from(*piece));
    check(&[PREFACE, frames].concat(), usize::from(*piece));
});

fn check(sent: &[u8], piece: usize) {
    let whole = filtered(sent, sent.len());
    assert_eq!(filtered(sent, piece), whole, "no cut changes what comes out");
    assert_eq!(filtered(sent, 1), whole, "no cut changes what comes out");
    assert_eq!(filtered(&whole, piece), whole, "what came out is acceptable, or can't be made so");
}

/// `sent` in pieces; what is undecided comes again with the next.
fn filtered(sent: &[u8], piece: usize) -> Vec<u8> {
    let (mut filter, mut out, mut from, mut to) = (AuthorityFilter::default(), sent.to_vec(), 0, 0);
    while to < out.len() {
        to = (to + piece.max(1)).min(out.len());
        let undecided = filter.filter(&mut out[from..to]);
        assert!(undecided <= MAX_UNDECIDED && undecided <= to - from);
        from = to - undecided;
    }
    out
}
