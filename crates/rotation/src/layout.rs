//! What a configuration file comes to: for each resource what writes and what else is read.

use std::collections::BTreeMap;

use casemate_encryption_config::Scheme;

use crate::{ProviderId, Resources, Settings};

/// A way of storing, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// In plaintext, through the provider `identity`.
    Plain,
    /// Under a key.
    Key(ProviderId),
}

impl Slot {
    /// The key, if it is one.
    pub fn key(self) -> Option<ProviderId> {
        match self {
            Self::Plain => None,
            Self::Key(id) => Some(id),
        }
    }
}

/// What stands in a file about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// How it encrypts.
    pub scheme: Scheme,
    /// What can change about it.
    pub settings: Settings,
}

/// The providers of one resource. What writes is read, too: another layout can't be made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    writer: Slot,
    keys: BTreeMap<ProviderId, Shape>,
    reads_plain: bool,
}

impl Layout {
    /// Everything in plaintext: what holds where no configuration says anything.
    pub const PLAIN: Self = Self { writer: Slot::Plain, keys: BTreeMap::new(), reads_plain: true };

    /// None, if `writer` is not among the keys. Plaintext is read.
    pub fn new(writer: Slot, keys: BTreeMap<ProviderId, Shape>) -> Option<Self> {
        let is_read = writer.key().is_none_or(|id| keys.contains_key(&id));
        is_read.then_some(Self { writer, keys, reads_plain: true })
    }

    /// As found on a server: one under which plaintext is not read. None where that can't be, because it writes plaintext.
    pub fn without_plain(self) -> Option<Self> {
        (self.writer != Slot::Plain).then_some(Self { reads_plain: false, ..self })
    }

    /// What new data is written with.
    pub fn writer(&self) -> Slot {
        self.writer
    }

    /// All keys that are read.
    pub fn keys(&self) -> &BTreeMap<ProviderId, Shape> {
        &self.keys
    }

    /// Whether what is stored so can be read.
    pub fn reads(&self, slot: Slot) -> bool {
        match slot {
            Slot::Plain => self.reads_plain,
            Slot::Key(id) => self.keys.contains_key(&id),
        }
    }

    /// In the order of the file: what writes, then keys from the newest on, then plaintext.
    pub fn order(&self) -> Vec<Slot> {
        let others =
            self.keys.keys().rev().map(|id| Slot::Key(*id)).chain(self.reads_plain.then_some(Slot::Plain));
        std::iter::once(self.writer).chain(others.filter(|slot| *slot != self.writer)).collect()
    }
}

/// One file, for one API server component.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File(pub BTreeMap<Resources, Layout>);

static PLAIN: Layout = Layout::PLAIN;

impl File {
    /// What holds for `resources`: plaintext, where nothing is said.
    pub fn layout(&self, resources: &Resources) -> &Layout {
        self.0.get(resources).unwrap_or(&PLAIN)
    }
}
