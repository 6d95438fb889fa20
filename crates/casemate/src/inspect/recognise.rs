//! Which kind of thing some bytes are.
use jiff::Timestamp;

use super::finding::{Finding, Thing};
use super::{etcd, sealed, text};

/// The kind whose marks `bytes` bear, and what there is to tell; pure.
pub(super) fn recognise(bytes: &[u8], now: Timestamp) -> Finding {
    // In this order: what begins with marks of its own, then text, then what is told by its form alone.
    etcd::recognise(bytes, now)
        .or_else(|| text::recognise(bytes, now))
        .or_else(|| sealed::recognise(bytes, now))
        .unwrap_or_else(|| unknown(bytes))
}

fn unknown(bytes: &[u8]) -> Finding {
    let finding = Finding::new(Thing::Unknown, "nothing that is known here");
    match bytes.len() {
        0 => finding.note("there is not one byte"),
        _ if [&b"/"[..], br"\x2f", br#"{"header":"#].iter().any(|mark| bytes.starts_with(mark)) => finding.note(
            "if it is a key of etcd with its value, or several: `etcdctl get --print-value-only KEY` gives one value alone",
        ),
        16 | 24 | 32 => finding.note(
            "as many bytes as a key or a seed has: if it is one, keep it where nobody else can read it",
        ),
        _ => finding.note(
            "known are: values as etcd holds them, records and ciphertexts of casemate-kms, what `casemate kms encrypt` \
             writes, key files, age files and PEM, each whole and from its first byte",
        ),
    }
}
