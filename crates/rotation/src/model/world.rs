//! A whole cluster as a few numbers: what is observed of it, and what is not.

use std::fmt;

/// Keys have the numbers 1 to 4; 0 is plaintext. A set of them is a byte.
pub(super) const KEYS: u8 = 4;
/// As many entries of the configuration as there can be.
pub(super) const ENTRIES: usize = 2;
pub(super) const OBJECTS: usize = 2;
pub(super) const SERVERS: usize = 3;

pub(super) fn set(key: u8) -> u8 {
    if key == 0 { 0 } else { 1 << key }
}

/// What stands in a file about one entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Conf {
    pub(super) there: bool,
    pub(super) writer: u8,
    pub(super) keys: u8,
    /// Keys whose provider is mended here.
    pub(super) mended: u8,
}

impl Conf {
    pub(super) fn reads(self, key: u8) -> bool {
        key == 0 || self.keys & set(key) != 0
    }
}

/// What writes, and in brackets all keys that are read.
impl fmt::Debug for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.there {
            return f.write_str("-");
        }
        let keys: Vec<u8> = (1..=KEYS).filter(|key| self.keys & set(*key) != 0).collect();
        write!(f, "{}{keys:?}", self.writer)
    }
}

pub(super) type Confs = [Conf; ENTRIES];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Life {
    #[default]
    Absent,
    Running,
    Down,
    /// It runs on with what it has, and is expected no more.
    Terminating,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Server {
    pub(super) life: Life,
    pub(super) file: Confs,
    /// Half of a file stands there.
    pub(super) is_broken: bool,
    pub(super) loaded: Confs,
    /// What its plugin reports.
    pub(super) reports: u8,
    /// What it writes under.
    pub(super) uses: u8,
    /// Whether its plugin has reported that for five minutes.
    pub(super) is_stable: bool,
    /// Whether nothing is heard of its plugin.
    pub(super) is_silent: bool,
    /// What another controller is about to write there.
    pub(super) late: Option<Confs>,
}

impl Server {
    pub(super) fn runs(self) -> bool {
        matches!(self.life, Life::Running | Life::Terminating)
    }

    pub(super) fn is_expected(self) -> bool {
        matches!(self.life, Life::Running | Life::Down)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Record {
    #[default]
    None,
    Intact,
    Damaged,
    Lost,
}

/// A key that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) record: Record,
    /// No server can load a file with it, until it is mended.
    pub(super) is_bad: bool,
    /// Its record has been mended.
    pub(super) is_mended: bool,
}

/// What is wanted, and what a key does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    #[default]
    Plain,
    Local,
    /// A local key that replaces one.
    Rotated,
    KmsA,
    KmsB,
}

impl Kind {
    pub(super) fn has_key_ids(self) -> bool {
        matches!(self, Self::KmsA | Self::KmsB)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Object {
    pub(super) key: u8,
    pub(super) key_id: u8,
    /// Whether the engine has rewritten it since it began.
    pub(super) is_done: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Course {
    pub(super) turn: u8,
    pub(super) writer: u8,
    pub(super) keys: u8,
    /// Of which key id everything is migrated, plus one; 1 without a key id, 0 if it is not.
    pub(super) claim: u8,
    pub(super) encrypted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Progress {
    pub(super) turn: u8,
    pub(super) highest: u8,
    pub(super) deployed: u8,
    pub(super) courses: [Option<Course>; ENTRIES],
    /// By key: target and migrated, 0 if there is none.
    pub(super) key_ids: [(u8, u8); KEYS as usize + 1],
}

/// How far the engine is with an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Engine {
    pub(super) turn: u8,
    pub(super) key_id: u8,
    pub(super) is_finished: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Count {
    pub(super) turn: u8,
    pub(super) key_id: u8,
    /// By entry: keys and key ids, as objects have them.
    pub(super) found: [Option<(u8, u8)>; OBJECTS],
    /// A set, with plaintext as bit 0.
    pub(super) revisions: u8,
}

/// Servers and objects are sorted: which of them is which makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) wanted: Kind,
    pub(super) servers: [Server; SERVERS],
    pub(super) keys: [Key; KEYS as usize + 1],
    pub(super) progress: Option<Progress>,
    pub(super) engines: [Engine; ENTRIES],
    pub(super) counts: [Option<Count>; ENTRIES],
    pub(super) backup: u8,
    /// What another controller is about to record.
    pub(super) late: Option<Progress>,
    // From here on nobody sees it.
    pub(super) objects: [Object; OBJECTS],
    /// Keys of revisions that are not compacted, by entry; bit 0 for plaintext.
    pub(super) revisions: [u8; ENTRIES],
    /// Of the key service.
    pub(super) key_id: u8,
    pub(super) left: Left,
}

/// How much may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Left {
    /// Changes of the admin's mind.
    pub(super) changes: u8,
    /// Records that are lost or damaged.
    pub(super) records: u8,
    /// Servers that go down, and files that break.
    pub(super) outages: u8,
    /// Servers that leave and come.
    pub(super) moves: u8,
    /// Key ids that the key service comes to.
    pub(super) key_ids: u8,
    /// Backups that are declared.
    pub(super) backups: u8,
    /// Progress that is lost, and engines that forget.
    pub(super) memory: u8,
    /// Providers that no server can load.
    pub(super) bad: u8,
    /// Steps of another controller that come late.
    pub(super) late: u8,
    /// Writes of clients; the migration's are not among them.
    pub(super) writes: u8,
}

impl World {
    /// Which entry an object belongs to.
    pub(super) fn entry_of(object: usize, entries: usize) -> usize {
        object % entries
    }

    pub(super) fn sorted(mut self, entries: usize) -> Self {
        self.servers.sort_unstable();
        if entries == 1 {
            self.objects.sort_unstable();
            for count in self.counts.iter_mut().flatten() {
                count.found.sort_unstable();
            }
        }
        self
    }

    /// What a controller sees, and all of it that a verdict rests on.
    pub(super) fn seen(mut self) -> Self {
        self.objects = Default::default();
        (self.revisions, self.key_id, self.left, self.late) = Default::default();
        for server in &mut self.servers {
            (server.uses, server.late) = Default::default();
        }
        self
    }

    /// A server writes an object.
    pub(super) fn write(&mut self, object: usize, server: usize, entries: usize) {
        let entry = Self::entry_of(object, entries);
        let by = self.servers[server];
        let key = by.loaded[entry].writer;
        let key_id = if self.keys[usize::from(key)].kind.has_key_ids() { by.uses } else { 0 };
        let new = Object { key, key_id, ..self.objects[object] };
        if new != self.objects[object] {
            self.revisions[entry] |= 1 << self.objects[object].key;
            self.objects[object] = new;
        }
    }
}
