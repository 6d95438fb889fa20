//! Writes stored objects anew, so that they are encrypted as API servers encrypt now, without changing them.
//!
//! An API server writes an object whose stored form is stale even if nothing in it changes. So each object gets an empty
//! patch that names its uid and version: what somebody else writes meanwhile is never overwritten, and what is fresh is
//! not written at all. Replies are asked for without contents.
//!
//! Promises:
//! * **No object is changed**, and none is passed in silence: what can't be listed, read or written is named, with why.
//! * **Others go first.** As many writes are in flight as the server does without letting them wait; 429 and `Retry-After`
//!   are obeyed ([`pace`]).
//! * **Killed at any time, it repeats one page at most** ([`cursor`]).
//! * **Nothing is tried for ever.** What an answer means follows from its code, and a read where that leaves it open
//!   ([`verdict`]).
//! * **Finished is what a census says** ([`proof`]); without access to etcd the end is called unproven.
//! * **No value is seen**, but by [`source::Etcd`], which classifies what etcd has and drops it.
//!
//! ```text
//!  source ──pages──► engine ──patches──► API servers
//!    ▲                 │ verdict, pace, progress
//!  API lists or      cursor ──► folder
//!  etcd's keys         └──► report;  a census after it ──► proof
//! ```
//!
//! Pure: [`budget`], [`pace`], [`progress`], [`proof`], [`report`], [`targets`], [`token`], [`verdict`]. At the rim: [`Api`],
//! [`source`], [`cursor::FileStore`], [`Migration`].
pub mod budget;
pub mod cursor;
pub mod pace;
pub mod progress;
pub mod proof;
pub mod report;
pub mod source;
pub mod targets;
pub mod token;
pub mod verdict;

mod api;
mod engine;

pub use api::{Api, ApiError};
pub use engine::{EtcdSource, Migration, Options, Source};
