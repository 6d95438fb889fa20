//! Recovery wraps from outside: published vectors, budgets, damage.
#![allow(clippy::unwrap_used, clippy::panic)]

mod identity;
mod vectors;
mod wraps;
