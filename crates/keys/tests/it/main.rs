//! What `casemate-keys` promises, tested from outside.
#![allow(clippy::unwrap_used, missing_docs)]

mod generated;
