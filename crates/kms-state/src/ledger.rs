//! Which key ids were active on this node, in order. It only ever refuses.

use casemate_keys::KeyId;
use casemate_keys::names::sha256;

/// One key id that became active.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Which one.
    pub key_id: KeyId,
    /// When, in seconds since 1970: for people, no decision looks at it.
    pub at: u64,
}

/// The history of active key ids of one provider on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    entries: Vec<Entry>,
}

/// Lines of a ledger that could not be read, with their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDamage {
    /// From 1.
    pub lines: Vec<usize>,
    /// Whether only the end of the last line is missing, as after a crash while it was written.
    pub torn_end: bool,
}

impl Ledger {
    /// The key id that was active last.
    pub fn last(&self) -> Option<&KeyId> {
        self.entries.last().map(|entry| &entry.key_id)
    }

    /// Whether `key_id` was active once and another one since: it must not come back by itself, because
    /// kube-apiserver would take data written under the other one for stale, and data of the first time
    /// for fresh.
    pub fn was_superseded(&self, key_id: &KeyId) -> bool {
        self.last() != Some(key_id) && self.entries.iter().any(|entry| entry.key_id == *key_id)
    }

    /// Notes that `key_id` became active at `at`; says whether that is news to be kept.
    pub fn note(&mut self, key_id: &KeyId, at: u64) -> bool {
        let news = self.last() != Some(key_id);
        if news {
            self.entries.push(Entry { key_id: key_id.clone(), at });
        }
        news
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads a ledger file. Lines that don't check are left out and told: losing one can only make the
    /// ledger refuse less, and that is for people to judge.
    pub fn parse(text: &[u8]) -> (Self, Option<LedgerDamage>) {
        let mut ledger = Self::default();
        let mut bad = Vec::new();
        let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
        for (index, line) in lines.iter().enumerate() {
            match parse_line(line) {
                Some(entry) => ledger.entries.push(entry),
                None => bad.push(index + 1),
            }
        }
        let torn_end = bad == [lines.len()] && !text.ends_with(b"\n");
        let damage = (!bad.is_empty()).then_some(LedgerDamage { lines: bad, torn_end });
        (ledger, damage)
    }

    /// The whole file: what [`Ledger::parse`] reads back.
    pub fn render(&self) -> String {
        self.entries.iter().map(line).collect()
    }
}

/// `<seconds> <key id> <16 hex digits of SHA-256 over what stands before>\n`
fn line(entry: &Entry) -> String {
    let body = format!("{} {}", entry.at, entry.key_id);
    format!("{body} {}\n", check(&body))
}

fn check(body: &str) -> String {
    sha256(body.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_line(line: &[u8]) -> Option<Entry> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (body, found) = line.rsplit_once(' ')?;
    if check(body) != found {
        return None;
    }
    let (at, key_id) = body.split_once(' ')?;
    Some(Entry { key_id: key_id.parse().ok()?, at: at.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> KeyId {
        format!("prod:{}", hex(number)).parse().unwrap()
    }

    fn hex(number: u8) -> String {
        format!("{number:032x}")
    }

    #[test]
    fn only_what_was_followed_by_another_is_superseded() {
        let mut ledger = Ledger::default();
        assert!(!ledger.was_superseded(&id(1)));
        assert!(ledger.note(&id(1), 10));
        assert!(!ledger.note(&id(1), 11));
        assert!(!ledger.was_superseded(&id(1)));
        ledger.note(&id(2), 12);
        assert!(ledger.was_superseded(&id(1)));
        assert!(!ledger.was_superseded(&id(2)));
        assert!(!ledger.was_superseded(&id(3)));
        // After an accepted re-use, the once superseded one is the last.
        ledger.note(&id(1), 13);
        assert!(!ledger.was_superseded(&id(1)));
        assert!(ledger.was_superseded(&id(2)));
    }

    #[test]
    fn a_file_comes_back_and_damage_is_told() {
        let mut ledger = Ledger::default();
        for number in 1..=3 {
            ledger.note(&id(number), u64::from(number));
        }
        let appended = ledger.render();
        assert_eq!(Ledger::parse(appended.as_bytes()), (ledger.clone(), None));

        let torn = &appended.as_bytes()[..appended.len() - 5];
        let (read, damage) = Ledger::parse(torn);
        assert_eq!(read.entries(), &ledger.entries()[..2]);
        assert_eq!(damage, Some(LedgerDamage { lines: vec![3], torn_end: true }));

        for position in 0..appended.len() {
            let mut changed = appended.clone().into_bytes();
            changed[position] ^= 1;
            let (read, damage) = Ledger::parse(&changed);
            assert!(damage.is_some(), "byte {position}");
            assert!(read.entries().iter().all(|entry| ledger.entries().contains(entry)), "byte {position}");
        }
    }
}
