//! How far a page may reach.
//!
//! etcd counts all keys of the range that a request names, whatever its limit, and who writes waits meanwhile: pages
//! that all reach to the end of a million keys would have it go through its index a thousand times. So keys are read in
//! groups that begin alike, in so many bytes that a group has about as many keys as a page:
//!
//! * One with many more than that teaches to look at more bytes: those in which its keys differ from the ones before,
//!   or else from each other.
//! * Some small ones in a row teach to look at one byte less.
//! * Where nothing is, steps grow, without forgetting how large groups are where something is: names have gaps, behind
//!   `9` and `z` and between one namespace and the next.
use prost::bytes::Bytes;

/// How many times the keys of a page may be counted for one that comes.
const WIDTH: u64 = 2;
/// So many keys are counted in less time than a request takes.
const CHEAP: u64 = 1000;
/// Small groups in a row.
const FEW: u32 = 3;
/// Empty steps in a row, one of them larger: where two pages are asked for at a time, what the last one found is not known.
const EMPTY: u32 = 4;
/// How many times as many keys as may be in a range may be in the last one.
const LAST: u64 = 4;

/// Where pages end.
#[derive(Debug)]
pub(super) struct Reach {
    /// How many bytes the keys of a group have in common.
    common: usize,
    /// Bytes that all keys have in common, and one more.
    least: usize,
    few: u32,
    empty: u32,
    last: Bytes,
}

/// What a page says of its range.
#[derive(Debug)]
pub(super) struct Seen {
    /// First and last key.
    pub(super) keys: Option<(Bytes, Bytes)>,
    /// Keys in all of the range.
    pub(super) count: u64,
    /// Keys of the range that are behind the page.
    pub(super) left: u64,
    /// Whether there are such.
    pub(super) more: bool,
    /// Keys that the page might have had.
    pub(super) limit: u64,
}

impl Reach {
    /// Of keys below `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        let least = prefix.len() + 2;
        Self { common: least, least, few: 0, empty: 0, last: Bytes::new() }
    }

    /// Where a page of `limit` keys that begins at `start` ends, `end` at last, which is `\0` where nothing ends it.
    /// `known` is how many keys are there up to `end`, and `all` how many in all ranges that are to come.
    pub(super) fn from(&self, start: &Bytes, end: &Bytes, known: Option<u64>, all: u64, limit: u64) -> Bytes {
        if all <= LAST * most(limit) || known.is_some_and(|known| known <= most(limit)) {
            return end.clone();
        }
        // A page begins right behind the last key of the one before, or where a group ended.
        let begin = start.strip_suffix(&[0]).unwrap_or(start);
        let climbs = match self.empty % EMPTY {
            rest if rest == EMPTY - 1 => 1 << (self.empty / EMPTY).min(16),
            _ => 0,
        };
        let length = self.common.saturating_sub(climbs).max(self.least);
        let mut border = begin[..length.min(begin.len())].to_vec();
        // Of a shorter one what comes first: `0` of names.
        border.resize(length, b'0');
        if let Some(last) = border.last_mut()
            && climbs == 0
            && (b':'..b'a').contains(last)
        {
            // Nothing of a name is between digits and letters.
            *last = b'a';
        }
        while let Some(last) = border.pop() {
            if let Some(next) = last.checked_add(1) {
                border.push(next);
                break;
            }
        }
        match border {
            border if border.is_empty() => end.clone(),
            border if end[..] == [0] || *border < end[..] => border.into(),
            _ => end.clone(),
        }
    }

    /// A page came of the range from `start` to `end`.
    pub(super) fn learn(&mut self, start: &[u8], end: &[u8], seen: &Seen) {
        let mut branch = None;
        if let Some((first, last)) = &seen.keys {
            let apart = alike(first, last) + 1;
            let behind = Some(alike(&self.last, first) + 1).filter(|_| !self.last.is_empty());
            branch = Some(behind.filter(|behind| (end.len() + 1..apart).contains(behind)).unwrap_or(apart));
            self.last = last.clone();
            self.empty = 0;
        }
        match branch {
            Some(branch) if seen.left > most(seen.limit) => (self.common, self.few) = (branch, 0),
            // It begins within a group: how large that is it does not say.
            _ if start.ends_with(&[0]) => {}
            None => self.empty += 1,
            Some(_) if seen.count < seen.limit / 2 => {
                self.few += 1;
                if self.few >= FEW {
                    self.common = self.common.saturating_sub(1).max(self.least);
                }
            }
            Some(_) => self.few = 0,
        }
    }
}

/// As many keys may be in a range.
fn most(limit: u64) -> u64 {
    (WIDTH * limit).max(CHEAP)
}

/// How many bytes two keys have in common.
fn alike(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An etcd's index, with what a scan costs it.
    struct Index {
        keys: Vec<String>,
        requests: u64,
        counted: u64,
    }

    impl Index {
        fn new(mut keys: Vec<String>) -> Self {
            keys.sort_unstable();
            Self { keys, requests: 0, counted: 0 }
        }

        fn page(&mut self, start: &[u8], end: &[u8], limit: u64) -> (Vec<String>, u64) {
            let at = |key: &[u8]| self.keys.partition_point(|other| other.as_bytes() < key);
            let range = &self.keys[at(start)..at(end).max(at(start))];
            self.requests += 1;
            self.counted += range.len() as u64;
            (range.iter().take(limit as usize).cloned().collect(), range.len() as u64)
        }

        /// As a scanner does it; requests for each page that there must be, and how often a key was counted.
        fn scan(mut self, most_of_a_page: u64) -> (f64, f64) {
            let mut reach = Reach::new("/registry");
            let mut todo =
                vec![(Bytes::from("/registry/"), Bytes::from("/registry0"), Some(self.keys.len() as u64))];
            let (mut read, mut limit) = (Vec::new(), 100.min(most_of_a_page));
            while let Some((start, end, known)) = todo.pop() {
                let all = (self.keys.len() - read.len()) as u64;
                let border = reach.from(&start, &end, known, all, limit);
                assert!(border > start && border <= end, "{start:?} {border:?} {end:?}");
                if border < end {
                    todo.push((border.clone(), end, None));
                }
                let (keys, count) = self.page(&start, &border, limit);
                let left = count - keys.len() as u64;
                let ends = keys.first().zip(keys.last());
                let ends = ends.map(|(first, last)| (first.clone().into(), last.clone().into()));
                reach.learn(&start, &border, &Seen { keys: ends, count, left, more: left > 0, limit });
                if left > 0 {
                    todo.push((format!("{}\0", keys.last().unwrap()).into(), border, Some(left)));
                }
                limit = if keys.is_empty() { limit } else { most_of_a_page.min(limit * 2) };
                read.extend(keys);
            }
            assert!(read == self.keys, "{} keys of {}", read.len(), self.keys.len());
            let all = self.keys.len() as f64;
            (self.requests as f64 / (all / most_of_a_page as f64).ceil(), self.counted as f64 / all)
        }
    }

    /// Numbers that look like chance, the same ones each time.
    fn chance(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
    }

    fn cluster() -> Vec<String> {
        let resources = [
            "pods",
            "secrets",
            "configmaps",
            "events",
            "replicasets",
            "leases",
            "services/specs",
            "cronjobs",
            "cert-manager.io/certificates",
            "monitoring.coreos.com/servicemonitors",
            "serviceaccounts",
        ];
        let mut keys = Vec::new();
        for (place, resource) in resources.iter().enumerate() {
            for namespace in 0..200 {
                let number = chance(namespace * 100 + place as u64);
                let kind = ["team", "prod", "dev", "customer"][(namespace % 4) as usize];
                for object in 0..number % [3, 10, 40, 400][(number >> 20) as usize % 4] {
                    let (app, suffix) = (chance(object / 7) % 50, chance(number + object));
                    keys.push(format!(
                        "/registry/{resource}/{kind}-{:x}/app{app}-{suffix:x}",
                        chance(namespace) % 4096
                    ));
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    #[test]
    fn whatever_keys_look_like_pages_are_few_and_each_key_is_counted_some_times() {
        let teams = (0..300_000).map(|number| {
            let resource = ["secrets", "configmaps"][number % 2];
            format!("/registry/{resource}/team-{:04}/object-{number:08}", number % 300)
        });
        let hashes = (0..100_000).map(|number| format!("/registry/secrets/one/{:014x}", chance(number)));
        let numbered = (0..100_000).map(|number| format!("/registry/configmaps/default/cm-{number}"));
        let releases = (0..60_000)
            .map(|n| format!("/registry/secrets/ns-{}/sh.helm.release.v1.app{}.v{n}", n % 7, n % 97));
        for (what, keys) in [
            ("teams", teams.collect::<Vec<_>>()),
            ("hashes", hashes.collect()),
            ("numbered", numbered.collect()),
            ("releases", releases.collect()),
            ("a cluster", cluster()),
        ] {
            // Without a rate, and with one, where what is counted anew counts less than a request.
            for (limit, requests, counted) in [(688, 8.0, 10.0), (20, 3.0, 50.0)] {
                let found = Index::new(keys.clone()).scan(limit);
                println!("{what} {limit} {found:?}");
                assert!(found.0 <= requests && found.1 <= counted, "{what}, {limit} a page: {found:?}");
            }
        }
    }

    #[test]
    fn a_border_is_never_before_its_beginning_nor_behind_the_end() {
        let from = |common, start: &[u8], end: &[u8]| {
            let reach = Reach { common, least: 0, ..Reach::new("") };
            reach.from(&start.to_vec().into(), &end.to_vec().into(), None, u64::MAX, 1).to_vec()
        };
        assert_eq!(from(2, b"ab", b"ab\x01"), b"ab\x01");
        assert_eq!(from(2, b"a\xff\xff", b"\0"), b"b");
        assert_eq!(from(2, b"\xff\xff", b"\0"), b"\0");
        assert_eq!(from(1, b"\0", b"\0"), b"1");
        assert_eq!(from(0, b"ab", b"x"), b"x");
    }
}
