//! What a cluster's encryption should do next: decisions without I/O, clock or async.
//!
//! A shell observes one API server component ([`Observed`]), asks [`desired`], carries out the [`Step`] and observes again.
//! Nothing is remembered in between but what [`Progress`] records, so that a shell can be ended at any of its writes.
//!
//! Two kinds of change: *another key* is to write (another scheme, another root key, a rotation of a local key, plaintext),
//! or a plugin reports another *key id* of the same key. The first goes by configuration files: read it everywhere, write
//! with it, migrate, stop reading what is proven to be unneeded. The second changes no file: all expected servers' plugins
//! report it for five minutes, then everything is migrated again.
//!
//! What it promises:
//! * No server writes with what a running server could not read, so that every object is decryptable by every server.
//! * A key leaves a configuration only when nothing needs it: no object and no uncompacted revision by a census of this
//!   turn, no server's file, no server's loaded configuration, no declared backup. Without a census only if the admin
//!   accepts that for this key.
//! * Whether a key's record is intact changes none of that. A lost or damaged record is a reason for a new key.
//! * Silence is never agreement: a server that is expected and absent, or terminating, or that does not say what it has
//!   loaded, holds up whatever needs all of them, and nothing else: a file that is to be repaired is written.
//! * Total: every value has a verdict. From wherever no key is gone altogether it leads to what is wanted.
//!
//! Map: [`Observed`] with [`File`] and [`Layout`] is what comes in, [`Progress`] what is recorded, [`Verdict`] with
//! [`Step`] and [`Decisions`] what comes out. `desired` puts the steps in order; `desired/goal` decides which key should
//! write, `desired/recording` what to record, `desired/files` what to write, `desired/held` what holds a key back,
//! `desired/view` answers questions about what was observed. [`Materials`] are what makes a [`File`] the configuration that
//! API servers read, and back. [`encrypted`] is the condition that people look at.
//!
//! `model` goes through all interleavings of servers, controllers, an admin who changes his mind, and faults; it finds each
//! of a list of planted defects that other controllers had.

mod configuration;
mod desired;
mod encrypted;
mod layout;
mod names;
mod observed;
mod progress;
mod verdict;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use configuration::{Material, Materials, NotReadable, NotWritable, entries};
pub use desired::{desired, is_unneeded, strands};
pub use encrypted::{Encrypted, encrypted};
pub use layout::{File, Layout, Shape, Slot};
pub use names::{Moment, PluginKeyId, ProviderId, Resources, ServerName, ServiceName, Settings, Turn};
pub use observed::{
    Age, Count, EngineReport, Intent, Key, KeyIdReport, Need, Observed, Outcome, Record, Server, Stored,
    Wanted,
};
pub use progress::{Change, Claim, Course, Entry, KeyIds, Progress};
pub use verdict::{
    Decisions, Held, HeldBy, Hold, Lag, NewKeyReason, Proposal, ServerFile, Step, Task, Verdict,
};
