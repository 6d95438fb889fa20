//! One provider through all changes of the configuration.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::audit::Recorder;
use crate::provider::Provider;

/// A provider as its callers see it: which of its successors answers now, and where calls are recorded. A call asks
/// once, when it begins, and goes on with what it got.
#[derive(Debug)]
pub struct Hosted {
    name: Arc<str>,
    provider: ArcSwap<Provider>,
    recorder: ArcSwapOption<Recorder>,
}

impl Hosted {
    /// `provider`, with its calls recorded if there is a recorder.
    pub fn new(provider: Arc<Provider>, recorder: Option<Recorder>) -> Self {
        Self {
            name: provider.name().into(),
            provider: ArcSwap::new(provider),
            recorder: ArcSwapOption::new(recorder.map(Arc::new)),
        }
    }

    /// Its name, which never changes.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What answers now.
    pub fn provider(&self) -> Arc<Provider> {
        self.provider.load_full()
    }

    /// Where calls are recorded now, if anywhere.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.load_full()
    }

    /// This answers from now on.
    pub fn answer_with(&self, successor: Arc<Provider>) {
        self.provider.store(successor);
    }

    /// Calls are recorded here from now on, or nowhere.
    pub fn record_with(&self, recorder: Option<Recorder>) {
        self.recorder.store(recorder.map(Arc::new));
    }
}
