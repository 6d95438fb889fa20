//! What values hold, opened with keys that are given: the way back, when nothing of a cluster is left but a snapshot.
//!
//! The census itself needs no key; this module is apart from it, behind the feature `recover`, and is handed what opens:
//! [`LocalKeys`] of an EncryptionConfiguration, and an [`Unwrapper`] for what a key outside of this process has to open.
//!
//! Promises:
//! * **What kube-apiserver would serve, and nothing else.** Values are read as it reads them: encrypted under the key in
//!   etcd where the provider binds it, records of `casemate-kms` canonical, of the write policy that the key id names, and
//!   with the local KEK that they name.
//! * **One call each.** Each local KEK, and each DEK source of another plugin, is asked for once, an answer of no too;
//!   what was opened is kept, bounded, and wiped when dropped.
//! * **Nothing is shown.** No key and no plaintext is in a type that has `Debug`, or in an error.
//!
//! Map: [`Opener`] opens values; [`object`] tells what objects are and makes manifests of them; [`place`] names files for
//! them; [`Sealer`] encrypts anew. `cipher` is kube-apiserver's ways to encrypt.
mod cipher;
mod local;
pub mod object;
mod opener;
mod origin;
pub mod place;
mod sealer;

pub use local::LocalKeys;
pub use object::{Manifest, Shape};
pub use opener::{Closed, NotOpened, Opened, Opener, Unwrapped, Unwrapper};
pub use origin::{Origin, Records, RecordsError};
pub use sealer::{NewSource, SealError, Sealer};
