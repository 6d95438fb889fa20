//! What a confined process came to reach no more. Who opens a file finds it forbidden, although its permissions are
//! right; only here it is known why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_daemon::confine::{Enforced, Folders, OutOfReach};

use crate::config::Config;

/// How often it is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the process is confined to, if it is, and what was said of it.
#[derive(Debug)]
pub(super) struct Reach {
    enforced: Option<Enforced>,
    said: BTreeMap<PathBuf, OutOfReach>,
}

impl Reach {
    pub(super) fn new(enforced: Option<Enforced>) -> Self {
        Self { enforced, said: BTreeMap::new() }
    }

    /// The folders that can be used, if there are any that can't.
    pub(super) fn folders(&self) -> Option<Folders> {
        self.enforced.as_ref().and_then(Enforced::folders)
    }

    /// Says in the log which files of `config`, read from `file`, can't be read any more.
    ///
    /// # Errors
    /// A socket can't be bound any more because its folder was replaced: only a new process can serve there.
    pub(super) fn look(&mut self, config: &Config, file: &Path) -> Result<(), OutOfReach> {
        let Some(enforced) = &self.enforced else { return Ok(()) };
        config.sockets().try_for_each(|socket| enforced.binds(socket))?;
        for file in config.files(file) {
            match enforced.reaches(&file) {
                Ok(()) if self.said.remove(&file).is_some() => {
                    tracing::info!(file = %file.display(), "this file can be read again");
                }
                Err(refused) if self.said.get(&file) != Some(&refused) => {
                    tracing::warn!("{refused}");
                    self.said.insert(file, refused);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
