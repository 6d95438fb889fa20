//! What can be seen of how a cluster is encrypted, by an admin with a kubeconfig, and files and etcd where he has them.
//!
//! * `expected`: which API servers there must be, and who of them answered
//! * `look`: asking all that there is
//! * `keys`: keys, by what EncryptionConfigurations say of them
//! * `counts`: what a census of etcd says of these
//! * `sight`: all of it as what `casemate-rotation` decides on
pub(crate) mod counts;
pub(crate) mod expected;
pub(crate) mod keys;
pub(crate) mod look;
pub(crate) mod sight;
