//! What `casemate-encryption-config` promises, on files. The lab asks kube-apiserver's own loader the same questions.
#![allow(clippy::panic, clippy::unwrap_used)]

mod corpus;
mod round_trip;
mod secrecy;
