//! The end of a test, for threads that go on until then.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets it when it is dropped, also in a panic: whoever waits for it would go on for ever, and the scope with them.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
