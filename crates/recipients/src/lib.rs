//! Recovery recipients: offline public keys under which every local KEK is wrapped too, so that who loses the key
//! service does not lose the cluster.
//!
//! What this crate promises:
//! * A recovery wrap is an age file that the `age` and `rage` programs open: nobody needs Casemate to get at the
//!   64 bytes in it.
//! * A recipient that would not protect anything (a point of low order, a secret key in the place of a public one) is
//!   refused when it is parsed, and a wrap is looked at before it is given away.
//! * An [`Identity`] has no `Debug`, is wiped when dropped, and no error quotes a byte of one.
//!
//! What it can't promise: that a wrap opens. Only the identity can tell, and that is in a safe; hence
//! `casemate recovery test`.
//!
//! Map: [`Recipient`] wraps; [`Identity`] unwraps; `shape` reads the header of an age file without opening it.
//!
//! It is apart from `casemate-keys` because the `age` library brings some hundred packages along.

mod identity;
mod recipient;
mod shape;

pub use identity::{Identity, IdentityError, UnwrapError};
pub use recipient::{MAX_WRAP_LEN, Recipient, RecipientError, WrapError};
