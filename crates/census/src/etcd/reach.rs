//! How far a page may reach.
//!
//! etcd counts all keys of the range that a request names, whatever its limit, and who writes waits meanwhile: pages
//! that all reach to the end of a million keys would have it go through its index a thousand times. So a page ends with
//! the keys that begin as the last ones did, and what is seen of their number moves that border.
use casemate_wire::etcd::{RangeResponse, UNBOUNDED};
use prost::bytes::Bytes;

/// How many keys may be counted for each that a page may have, without reaching less far.
const MOST_COUNTED: i64 = 16;

/// Where pages end.
#[derive(Debug)]
pub(super) struct Reach {
    /// How many bytes the keys of a page have in common; `None` for pages without a border.
    common: Option<usize>,
    /// Bytes that all keys have in common.
    least: usize,
}

impl Reach {
    /// Of keys below `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        Self { common: None, least: prefix.len() + 1 }
    }

    /// Where a page that begins at `start` ends, `end` at last.
    pub(super) fn from(&self, start: &Bytes, end: &Bytes) -> Bytes {
        let Some(common) = self.common else { return end.clone() };
        // A page begins right behind the last key of the one before.
        let begin = start.strip_suffix(&[0]).unwrap_or(start);
        let mut border = begin[..common.min(begin.len())].to_vec();
        while let Some(last) = border.pop() {
            if let Some(next) = last.checked_add(1) {
                border.push(next);
                break;
            }
        }
        match border {
            border if border.is_empty() => end.clone(),
            border if end[..] == *UNBOUNDED || *border < end[..] => border.into(),
            _ => end.clone(),
        }
    }

    /// A page came that might have had `limit` keys.
    pub(super) fn learn(&mut self, page: &RangeResponse, limit: i64) {
        if let (true, [first, .., last]) = (page.more && page.count > limit * MOST_COUNTED, &page.kvs[..]) {
            let same = first.key.iter().zip(&last.key).take_while(|(one, other)| one == other).count();
            self.common = Some(same.max(self.common.map_or(0, |common| common.min(same + 1))));
        } else if page.count < limit / 2 {
            let less = self.common.map(|common| common.saturating_sub(if page.count == 0 { 3 } else { 1 }));
            self.common = less.filter(|common| *common > self.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use casemate_wire::etcd::KeyValue;

    use super::*;

    fn page(keys: &[&str], count: i64) -> RangeResponse {
        let pair = |key: &&str| KeyValue { key: (*key).to_owned().into(), ..KeyValue::default() };
        let kvs: Vec<KeyValue> = keys.iter().map(pair).collect();
        RangeResponse { more: (kvs.len() as i64) < count, kvs, count, header: None }
    }

    #[test]
    fn a_page_ends_with_keys_like_the_last_ones_until_there_are_few() {
        let mut reach = Reach::new("/registry");
        let (start, end) = (Bytes::from("/registry/"), Bytes::from("/registry0"));
        assert_eq!(reach.from(&start, &end), end);
        reach.learn(&page(&["/registry/a/0100", "/registry/a/0199"], 1_000_000), 100);
        assert_eq!(reach.from(&"/registry/a/0199\0".into(), &end), "/registry/a/02");
        assert_eq!(reach.from(&"/registry/a/02".into(), &end), "/registry/a/03");
        // At the end of these, what comes is taken as a whole.
        assert_eq!(reach.from(&"/registry/b".into(), &end), "/registry/c");
        reach.learn(&page(&["/registry/a/0200"], 1), 100);
        assert_eq!(reach.from(&"/registry/a/03".into(), &end), "/registry/a/1");
        reach.learn(&page(&[], 0), 100);
        reach.learn(&page(&[], 0), 100);
        assert_eq!(reach.from(&"/registry/a/1".into(), &end), end);
    }

    #[test]
    fn a_border_is_never_before_its_beginning_nor_behind_the_end() {
        let reach = |common| Reach { common: Some(common), least: 0 };
        let from = |common, start: &[u8], end: &[u8]| {
            reach(common).from(&start.to_vec().into(), &end.to_vec().into()).to_vec()
        };
        assert_eq!(from(2, b"ab", b"ab\x01"), b"ab\x01");
        assert_eq!(from(2, b"a\xff\xff", b"\0"), b"b");
        assert_eq!(from(2, b"\xff\xff", b"\0"), b"\0");
        assert_eq!(from(9, b"\0", b"\0"), b"\0");
        assert_eq!(from(0, b"ab", b"x"), b"x");
    }
}
