//! Answers are checked before they are used.
use casemate_wire::etcd::{RangeRequest, RangeResponse};

use crate::classify::Name;
use crate::mvcc::{Item, KeyValue, Revision};

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageFault {
    /// Without what every answer begins with.
    #[error("it has no header with a revision")]
    Header,
    /// More keys than were asked for.
    #[error("{found} keys, where at most {asked} were asked for")]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many may be.
        asked: usize,
    },
    /// A key that was not asked for.
    #[error("key {key} is outside of the range that was asked for")]
    Outside {
        /// Which.
        key: String,
    },
    /// Keys that do not ascend.
    #[error("key {key} comes twice, or behind a later one")]
    Order {
        /// Which.
        key: String,
    },
    /// A revision that can't be.
    #[error("key {key} is of revision {found}, which is not in 1..={newest}")]
    Revision {
        /// Which.
        key: String,
        /// What it says.
        found: i64,
        /// The newest one that it may be of.
        newest: i64,
    },
    /// More is to come, and nothing came.
    #[error("there is more, it says, and gives nothing")]
    Stuck,
    /// Fewer keys than are in the range, and no more to come.
    #[error("{found} keys, where {count} are in the range, and no more to come")]
    Count {
        /// How many there are.
        found: usize,
        /// How many there should be.
        count: i64,
    },
    /// Changes of a watch in no order, or of other keys than they should be.
    #[error("a change of key {key} at revision {revision} does not fit to those before it")]
    Change {
        /// Which key.
        key: String,
        /// Which revision.
        revision: i64,
    },
}

/// Whether `answer` can be one to `request`.
pub(super) fn check(request: &RangeRequest, answer: &RangeResponse) -> Result<(), PageFault> {
    let newest = answer.header.as_ref().map_or(0, |header| header.revision);
    if newest < 1 {
        return Err(PageFault::Header);
    }
    let newest = if request.revision > 0 { request.revision } else { newest };
    let asked = match request {
        RangeRequest { count_only: true, .. } => 0,
        RangeRequest { limit: 0, .. } => usize::MAX,
        RangeRequest { limit, .. } => usize::try_from(*limit).unwrap_or(usize::MAX),
    };
    if answer.kvs.len() > asked {
        return Err(PageFault::TooMany { found: answer.kvs.len(), asked });
    }
    let mut before: Option<&[u8]> = None;
    for pair in &answer.kvs {
        let key = || Name::new(&pair.key).to_string();
        if !is_within(request, &pair.key) {
            return Err(PageFault::Outside { key: key() });
        }
        if before.is_some_and(|before| before >= &pair.key[..]) {
            return Err(PageFault::Order { key: key() });
        }
        if !(1..=newest).contains(&pair.mod_revision) {
            return Err(PageFault::Revision { key: key(), found: pair.mod_revision, newest });
        }
        before = Some(&pair.key);
    }
    if request.count_only || request.min_mod_revision > 0 {
        return Ok(());
    }
    match answer.more {
        true if answer.kvs.is_empty() => Err(PageFault::Stuck),
        false if usize::try_from(answer.count) != Ok(answer.kvs.len()) => {
            Err(PageFault::Count { found: answer.kvs.len(), count: answer.count })
        }
        _ => Ok(()),
    }
}

/// As the reader of files has it.
pub(super) fn item(pair: &casemate_wire::etcd::KeyValue) -> Item<'_> {
    let revision = Revision { main: pair.mod_revision.unsigned_abs(), sub: 0 };
    let pair = KeyValue {
        key: &pair.key,
        create_revision: pair.create_revision,
        mod_revision: pair.mod_revision,
        version: pair.version,
        value: &pair.value,
        lease: pair.lease,
    };
    Item { revision, deletes: false, pair, page: 0 }
}

fn is_within(request: &RangeRequest, key: &[u8]) -> bool {
    match &request.range_end[..] {
        [] => key == request.key,
        [0] => key >= &request.key[..],
        end => (&request.key[..]..end).contains(&key),
    }
}

#[cfg(test)]
mod tests {
    use casemate_wire::etcd::{KeyValue, ResponseHeader};

    use super::*;

    fn answer(keys: &[&str]) -> RangeResponse {
        let pair =
            |key: &&str| KeyValue { key: (*key).to_owned().into(), mod_revision: 5, ..KeyValue::default() };
        let header = ResponseHeader { revision: 9, ..ResponseHeader::default() };
        RangeResponse {
            header: Some(header),
            kvs: keys.iter().map(pair).collect(),
            more: false,
            count: keys.len() as i64,
        }
    }

    #[test]
    fn an_answer_that_can_not_be_is_told_with_its_key() {
        let request = RangeRequest {
            key: "/a".into(),
            range_end: "/d".into(),
            limit: 3,
            revision: 7,
            ..RangeRequest::default()
        };
        let good = answer(&["/a", "/b", "/c"]);
        assert_eq!(check(&request, &good), Ok(()));
        let fault = |change: &dyn Fn(&mut RangeResponse)| {
            let mut answer = good.clone();
            change(&mut answer);
            check(&request, &answer).unwrap_err()
        };
        let key = |key: &str| key.to_owned();
        assert_eq!(fault(&|answer| answer.header = None), PageFault::Header);
        assert_eq!(fault(&|answer| answer.kvs.swap(0, 1)), PageFault::Order { key: key("/a") });
        assert_eq!(fault(&|answer| answer.kvs[1].key = "/a".into()), PageFault::Order { key: key("/a") });
        assert_eq!(fault(&|answer| answer.kvs[2].key = "/d".into()), PageFault::Outside { key: key("/d") });
        assert_eq!(fault(&|answer| answer.kvs[0].key = "/Z".into()), PageFault::Outside { key: key("/Z") });
        for found in [0, -1, 8] {
            let expected = PageFault::Revision { key: key("/b"), found, newest: 7 };
            assert_eq!(fault(&|answer| answer.kvs[1].mod_revision = found), expected);
        }
        let doubled = |answer: &mut RangeResponse| answer.kvs.extend(answer.kvs.clone());
        assert_eq!(fault(&doubled), PageFault::TooMany { found: 6, asked: 3 });
        assert_eq!(fault(&|answer| answer.count = 4), PageFault::Count { found: 3, count: 4 });
        let nothing = |answer: &mut RangeResponse| (answer.kvs, answer.more) = (Vec::new(), true);
        assert_eq!(fault(&nothing), PageFault::Stuck);
    }

    #[test]
    fn ranges_of_one_key_and_without_an_end() {
        let within = |key: &[u8], end: &[u8], found: &[u8]| {
            let (key, range_end) = (key.to_vec().into(), end.to_vec().into());
            is_within(&RangeRequest { key, range_end, ..RangeRequest::default() }, found)
        };
        assert!(within(b"/a", b"", b"/a") && !within(b"/a", b"", b"/a/b"));
        assert!(within(b"/a", b"\0", b"/z") && !within(b"/a", b"\0", b"/"));
    }
}
