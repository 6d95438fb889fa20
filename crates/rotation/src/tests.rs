//! Tables and walks: what library-go's controllers do is the left column, what differs says why.
#![allow(clippy::unwrap_used)]

mod arbitrary;
mod cases;
mod cluster;
mod condition;
mod facts;
mod walk;
