//! The heart of Casemate: what keys are called, how a local KEK seals a DEK source, and the record
//! that travels with it.
//!
//! What this crate promises:
//! * **Frozen formats.** What version 1 wrote, every later version opens; `vectors/` proves it and
//!   `docs/reference/formats.md` describes it well enough to write another implementation.
//! * **One encoding.** A record that is not canonical protobuf is refused, so every bit that is
//!   stored is bound: by the seal key of each ciphertext, or by not being accepted at all.
//! * **Nothing is believed.** [`ReadPolicy::check`] decides from the configuration, before any
//!   call to a key service, which wraps of a record may be tried.
//! * **No I/O, no clock.** Time comes in as an argument; key bytes are zeroized and have no `Debug`. The system is asked
//!   for randomness and for memory.
//!
//! Map:
//! * [`names`], [`Lineage`]: the names of keys, parsed once.
//! * [`WritePolicy`]: what new data is wrapped under, and the key id that names it.
//! * [`Core`], [`Record`]: what one local KEK's annotation holds.
//! * [`LocalKek`]: seals and opens DEK sources; [`payload`]: what a root key wraps.
//! * [`ReadPolicy`]: the checks of Decrypt. [`origin`]: who made a record.
//! * [`SealingKey`], [`Protector`]: local KEKs on a node's own disk, for a start while no root key answers.
//! * [`kdf`], [`gcm`], [`list`]: the three compositions that everything above is made of.
//! * [`secret_memory`]: where local KEKs stand. The one module with `unsafe` is below it.
//! * [`crypto_module`]: what computes them, and whether in FIPS mode.

pub mod crypto_module;
pub mod gcm;
pub mod kdf;
mod kek;
mod lineage;
pub mod list;
pub mod names;
pub mod origin;
pub mod payload;
mod policy;
mod read;
mod record;
mod sealing;
pub mod secret_memory;

pub use kek::{CIPHERTEXT_OVERHEAD, DEK_SOURCE_LEN, KekError, LocalKek};
pub use lineage::{Lineage, LineageError, LineagePrefix};
pub use names::{Algorithm, ClusterId, Digest, Epoch, Fingerprint, KekId, KeyId, Suite, Writer};
pub use policy::{MAX_WRAPS_OF_A_KIND, PolicyError, Root, WritePolicy};
pub use read::{AcceptedCluster, Attempt, ReadPolicy, ReadRule, Readable, Refusal, Sealed, Skipped};
pub use record::{Core, MAX_CORE_LEN, MAX_RECORD_LEN, MAX_WRAP_LEN, Record, RecordError, origin_message};
pub use sealing::{
    CacheOf, MAX_ITERATIONS, MIN_ITERATIONS, PASSPHRASE_LEN, Protector, SALT_LEN, SEALED_LEN, SealedKek,
    SealingKey, WeakSecret,
};

/// The one annotation of an EncryptResponse of ours; its value is an encoded [`Record`].
pub const RECORD_ANNOTATION: &str = "record.casemate.dev";

/// Prefix of every label that separates the uses of keys and hashes.
pub(crate) const DOMAIN: &str = "casemate.dev/v1/";
