//! What a connection was told last.

use std::sync::Arc;

use tokio::time::Instant;

use super::{STATUS_HOLDS, WriteKek};

/// What one connection was told last.
#[derive(Default)]
pub struct Told(std::sync::Mutex<Option<(Arc<WriteKek>, Instant)>>);

impl Told {
    pub(super) fn remember(&self, kek: &Arc<WriteKek>) {
        if let Ok(mut told) = self.0.lock() {
            *told = Some((kek.clone(), Instant::now()));
        }
    }

    pub(super) fn recently(&self) -> Option<Arc<WriteKek>> {
        let told = self.0.lock().ok()?;
        told.as_ref().filter(|(_, at)| at.elapsed() < STATUS_HOLDS).map(|(kek, _)| kek.clone())
    }
}
