//! The checksum behind a snapshot.
use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::bolt::{self, Source};

/// Pages are multiples of it, so that 32 bytes more are no page.
const UNIT: u64 = 512;
const TRAILER: u64 = SHA256_OUTPUT_LEN as u64;

/// Whether a file is as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// It carries no checksum: a `db`, or a copy of one. Only meta pages are known to be whole.
    Absent,
    /// It was changed since, or was cut off.
    Mismatch,
    /// Every byte is as the etcd that made the snapshot sent it. Anybody can write a checksum, so this finds accidents.
    Verified,
}

/// Bytes of the database, and whether a checksum stands behind them.
pub(super) fn split(len: u64) -> (u64, bool) {
    match len.checked_sub(TRAILER) {
        Some(database) if database > 0 && database % UNIT == 0 => (database, true),
        _ => (len, false),
    }
}

/// Of a file of `len` bytes that carries a checksum.
pub(super) fn check(
    source: &dyn Source,
    len: u64,
    mut progress: impl FnMut(u64),
) -> Result<Integrity, bolt::Error> {
    let (database, _) = split(len);
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < database {
        let length = (database - offset).min(buffer.len() as u64);
        let part = &mut buffer[..length as usize];
        bolt::read_exact(source, part, offset)?;
        digest.update(part);
        offset += length;
        progress(offset);
    }
    let mut expected = [0; SHA256_OUTPUT_LEN];
    bolt::read_exact(source, &mut expected, database)?;
    Ok(if digest.finish().as_ref() == expected { Integrity::Verified } else { Integrity::Mismatch })
}
