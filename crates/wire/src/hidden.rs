//! Bytes that are not shown.
use std::fmt;

/// Stands for secret bytes in `Debug` output: their number only.
pub(crate) struct Hidden(pub(crate) usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes hidden>", self.0)
    }
}
