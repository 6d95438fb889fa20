//! The number of a change.
use std::fmt;

/// What etcd counts changes by: a transaction, and a change within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// Which transaction.
    pub main: u64,
    /// Which change of it, from 0.
    pub sub: u64,
}

impl Revision {
    /// Bytes of one; a deletion has [`Self::TOMBSTONE`] behind them.
    const LEN: usize = 17;
    const TOMBSTONE: u8 = b't';

    /// The key of an entry in bucket `key`: which revision, and whether it deletes. Numbers of 2^63 and more are none.
    pub fn parse(key: &[u8]) -> Option<(Self, bool)> {
        let (revision, deletes) = match key.split_at_checked(Self::LEN)? {
            (revision, []) => (revision, false),
            (revision, [Self::TOMBSTONE]) => (revision, true),
            _ => return None,
        };
        let (main, rest) = revision.split_first_chunk()?;
        let (separator, sub) = rest.split_first()?;
        let (main, sub) = (u64::from_be_bytes(*main), u64::from_be_bytes(sub.try_into().ok()?));
        let positive = |number| i64::try_from(number).is_ok();
        (*separator == b'_' && positive(main) && positive(sub)).then_some((Self { main, sub }, deletes))
    }

    /// As the key of an entry: what [`Self::parse`] reads.
    pub fn encode(self, deletes: bool) -> Vec<u8> {
        let mut key = [&self.main.to_be_bytes()[..], b"_", &self.sub.to_be_bytes()].concat();
        key.extend(deletes.then_some(Self::TOMBSTONE));
        key
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sub {
            0 => write!(f, "{}", self.main),
            sub => write!(f, "{}.{sub}", self.main),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_read_and_nothing_else() {
        for (main, sub, deletes) in [(1, 0, false), (7, 3, true), (i64::MAX as u64, 2, false)] {
            let revision = Revision { main, sub };
            assert_eq!(Revision::parse(&revision.encode(deletes)), Some((revision, deletes)));
        }
        let good = Revision { main: 1, sub: 2 }.encode(true);
        for length in 0..good.len() - 1 {
            assert_eq!(Revision::parse(&good[..length]), None, "{length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut key = good.clone();
            key[at] = byte;
            Revision::parse(&key)
        };
        assert_eq!((changed(8, b'-'), changed(17, b's')), (None, None));
        assert_eq!((changed(0, 0x80), changed(9, 0x80)), (None, None));
        assert_eq!(Revision::parse(&[&good[..], b"t"].concat()), None);
    }
}
