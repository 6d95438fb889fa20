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

/// What reading all of a file tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Whether it is as it was written.
    pub integrity: Integrity,
    /// SHA-256 of all its bytes, a checksum behind them included: what `sha256sum` prints.
    pub sha256: [u8; SHA256_OUTPUT_LEN],
}

/// Of a file of `len` bytes.
pub(super) fn digest(
    source: &dyn Source,
    len: u64,
    mut progress: impl FnMut(u64),
) -> Result<Digest, bolt::Error> {
    let (database, has_trailer) = split(len);
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < database {
        let length = (database - offset).min(buffer.len() as u64);
        let part = &mut buffer[..length as usize];
        bolt::read_exact(source, part, offset)?;
        context.update(part);
        offset += length;
        progress(offset);
    }
    let mut integrity = Integrity::Absent;
    if has_trailer {
        let mut expected = [0; SHA256_OUTPUT_LEN];
        bolt::read_exact(source, &mut expected, database)?;
        let is_same = context.clone().finish().as_ref() == expected;
        integrity = if is_same { Integrity::Verified } else { Integrity::Mismatch };
        context.update(&expected);
    }
    let mut sha256 = [0; SHA256_OUTPUT_LEN];
    sha256.copy_from_slice(context.finish().as_ref());
    Ok(Digest { integrity, sha256 })
}
