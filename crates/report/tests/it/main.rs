//! Pages as a browser reads them.
#![allow(clippy::panic, clippy::unwrap_used)]

mod hostile;
mod sample;
mod snapshot;
