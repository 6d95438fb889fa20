//! Tests that need processes of their own (they re-run this program as the writer that is killed), and what stands
//! around every root key.
#![allow(clippy::unwrap_used)]

mod crash;
mod guarded;
mod scripted;
