//! The lab against its own promises, with the real servers.
#![allow(clippy::panic, clippy::unwrap_used)]

mod failing;
mod leftovers;
mod servers;
mod tools;
