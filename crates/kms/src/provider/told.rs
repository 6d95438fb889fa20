//! What a connection was told last, and what wrote until a moment ago.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::opened::Wipes;
use super::{STATUS_HOLDS, WriteKek};

/// What one connection was told last. It holds no local KEK: who was told long ago must not keep one in memory.
#[derive(Default)]
pub struct Told(Mutex<Option<Saying>>);

struct Saying {
    kek: Weak<WriteKek>,
    at: Instant,
    /// How often all had been wiped.
    wipes: Wipes,
}

/// Local KEKs that wrote until a moment ago: who was told of one still writes with it for [`STATUS_HOLDS`].
#[derive(Debug, Default)]
pub(super) struct Retired(Mutex<Vec<(Arc<WriteKek>, Instant)>>);

impl Told {
    pub(super) fn remember(&self, kek: &Arc<WriteKek>, wipes: Wipes) {
        *lock(&self.0) = Some(Saying { kek: Arc::downgrade(kek), at: Instant::now(), wipes });
    }

    /// What was told a moment ago, and not before a wipe.
    pub(super) fn recently(&self, wipes: Wipes) -> Option<Arc<WriteKek>> {
        let told = lock(&self.0);
        let said = told.as_ref().filter(|said| said.wipes == wipes && said.at.elapsed() < STATUS_HOLDS)?;
        said.kek.upgrade()
    }
}

impl Retired {
    /// It was told until now.
    pub(super) fn put(&self, kek: Arc<WriteKek>) {
        self.drop_old();
        lock(&self.0).push((kek, Instant::now()));
    }

    /// A Status that was under way at the change may have been answered a moment after it.
    pub(super) fn drop_old(&self) {
        lock(&self.0).retain(|(_, since)| since.elapsed() < STATUS_HOLDS * 2);
    }

    pub(super) fn forget_all(&self) {
        lock(&self.0).clear();
    }
}

/// Every state of it is valid, whatever panicked.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
