//! A running etcd, read as far as it shows what it keeps.
//!
//! ```text
//!  keys ─────────────────────────────────►
//!  [ segment )[ segment )[   not yet     )   each segment: the revision it was read at, and a survey of its own
//! ```
//!
//! * **One revision.** The newest revision is asked for with the consent of the cluster; then pages of it are read from
//!   one member after another. What an etcd has at a revision does not change, so any member may answer by itself.
//! * **Compaction.** If etcd forgets that revision meanwhile, a new one is chosen. Segments in which nothing changed
//!   since theirs are taken over, the others are read again, until all of them are of one revision. Where etcd
//!   forgets faster than that, the survey says so ([`Unseen::Moment`]), and no answer from it is a yes.
//! * **The past.** A Range shows what keys are, not what they were. What was overwritten or deleted since the last
//!   compaction is read from a watch that begins there: each change comes with what it replaced. That needs a user who
//!   may read all keys of etcd; else, or if etcd does not show it, the survey says so ([`Unseen::Past`]).
//! * **Read-only by type.** The client has no method that writes.
//! * **No surprise from a server.** Each page is checked before it is used: keys in order, within what was asked for, of
//!   revisions that can be. Memory is bounded by the largest message that is accepted, [`MAX_MESSAGE`], and some
//!   kilobytes of survey a segment.
//!
//! Map: [`Client`] asks the endpoints, one after another if need be; [`Scanner`] goes through the keys; `past` watches;
//! `page` checks answers; `handshake` finds out why TLS failed; `pace`, `ranges` and `reach` say
//! how much is asked for, `ask` asks again where an answer says how; [`detect`] finds endpoints and certificates on a host; [`Error`] is what goes wrong.
//!
//! [`Unseen::Moment`]: crate::survey::Unseen::Moment
//! [`Unseen::Past`]: crate::survey::Unseen::Past
mod ask;
mod client;
pub mod detect;
mod error;
mod handshake;
mod pace;
mod page;
mod past;
mod ranges;
mod reach;
mod scan;
mod settings;

#[cfg(test)]
mod tests;

pub use casemate_wire::etcd::{RangeRequest, RangeResponse};
pub use client::{Client, MAX_MESSAGE};
pub use error::{Error, Failure, Fault};
pub use page::PageFault;
pub use scan::{Options, Progress, Scanner};
pub use settings::{Identity, Settings, Tls, User};
