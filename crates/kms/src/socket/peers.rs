//! Who may connect, and what is said of those who may not.

use std::collections::HashMap;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

/// How long nothing is said again of the same.
const QUIET: Duration = Duration::from_secs(60);
/// Of how many different ones something is said meanwhile.
const MOST_NAMED: usize = 32;

/// Users and groups that are served. The system says who a peer is (`SO_PEERCRED`), as of its connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPeers {
    /// Effective user ids.
    pub uids: Vec<u32>,
    /// Effective group ids; supplementary groups of a peer do not count.
    pub gids: Vec<u32>,
}

impl AllowedPeers {
    /// Whether a peer of this user and group is served.
    pub fn allow(&self, uid: u32, gid: u32) -> bool {
        self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

/// The user and group of a peer.
pub(super) fn user_and_group(stream: &UnixStream) -> Option<(u32, u32)> {
    let peer = stream.peer_cred().ok()?;
    Some((peer.uid(), peer.gid()))
}

/// Says which events are worth a log line: one of a kind a minute, and few kinds, whatever peers do.
#[derive(Debug, Default)]
pub(super) struct Seldom(HashMap<u64, Kind>);

#[derive(Debug)]
struct Kind {
    since: Instant,
    /// Not logged since.
    more: u64,
}

impl Seldom {
    /// If this one is to be logged: how many of its kind were not, since the last that was.
    pub(super) fn worth_a_line(&mut self, kind: u64) -> Option<u64> {
        let now = Instant::now();
        let over = |known: &Kind| now.duration_since(known.since) >= QUIET;
        match self.0.get_mut(&kind) {
            Some(known) if over(known) => {
                let more = std::mem::take(&mut known.more);
                known.since = now;
                Some(more)
            }
            Some(known) => {
                known.more += 1;
                None
            }
            None => {
                if self.0.len() >= MOST_NAMED {
                    self.0.retain(|_, known| !over(known));
                }
                (self.0.len() < MOST_NAMED).then(|| {
                    self.0.insert(kind, Kind { since: now, more: 0 });
                    0
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_or_group() {
        let peers = AllowedPeers { uids: vec![0, 5], gids: vec![7] };
        let allowed = [(0, 9), (5, 9), (9, 7)].map(|(uid, gid)| peers.allow(uid, gid));
        assert_eq!((allowed, peers.allow(7, 5)), ([true; 3], false));
        assert!(!AllowedPeers::default().allow(0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_of_a_kind_a_minute() {
        let mut log = Seldom::default();
        assert_eq!([1, 1, 1, 2].map(|kind| log.worth_a_line(kind)), [Some(0), None, None, Some(0)]);
        tokio::time::advance(QUIET).await;
        assert_eq!([1, 1].map(|kind| log.worth_a_line(kind)), [Some(2), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_kinds_are_bounded_and_old_ones_make_room() {
        let mut log = Seldom::default();
        let lines = (0..10_000).filter(|kind| log.worth_a_line(*kind).is_some()).count();
        assert_eq!((lines, log.0.len()), (MOST_NAMED, MOST_NAMED));
        tokio::time::advance(QUIET).await;
        assert_eq!(log.worth_a_line(9_999), Some(0));
        assert_eq!(log.0.len(), 1);
    }
}
