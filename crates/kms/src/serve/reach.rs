//! What a confined process came to reach no more. Who opens a file finds it forbidden, although its permissions are
//! right; only here it is known why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use casemate_daemon::confine::{Enforced, OutOfReach};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::config::Config;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the configuration that holds names.
#[derive(Debug)]
pub(super) struct Named {
    files: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
}

impl Named {
    /// By `config`, which was read from `file`.
    pub(super) fn by(config: &Config, file: &Path) -> Self {
        Self { files: config.files(file), sockets: config.sockets().map(Path::to_owned).collect() }
    }
}

/// Says in the log which of the files that are `named` can't be read any more.
///
/// Ends when a socket can't be bound any more because its folder was replaced: only a new process can serve there.
pub(super) async fn watch(enforced: Option<Enforced>, named: Arc<ArcSwap<Named>>) -> OutOfReach {
    let Some(enforced) = enforced else { return std::future::pending().await };
    let mut reach = Reach { enforced, said: BTreeMap::new() };
    loop {
        let now = named.load_full();
        // Not on a worker: a file system may hang.
        match spawn_blocking(move || (reach.look(&now), reach)).await {
            Ok((Ok(()), again)) => reach = again,
            Ok((Err(cut_off), _)) => return cut_off,
            // The process ends.
            Err(_) => return std::future::pending().await,
        }
        sleep(LOOK_EVERY).await;
    }
}

struct Reach {
    enforced: Enforced,
    said: BTreeMap<PathBuf, OutOfReach>,
}

impl Reach {
    fn look(&mut self, named: &Named) -> Result<(), OutOfReach> {
        named.sockets.iter().try_for_each(|socket| self.enforced.binds(socket))?;
        for file in &named.files {
            match self.enforced.reaches(file) {
                Ok(()) if self.said.remove(file).is_some() => {
                    tracing::info!(file = %file.display(), "this file can be read again");
                }
                Err(refused) if self.said.get(file) != Some(&refused) => {
                    tracing::warn!("{refused}");
                    self.said.insert(file.clone(), refused);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
