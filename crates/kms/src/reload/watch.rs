//! When to look at the file, and when it has settled.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::config::{ConfigError, Source};

/// How often the file is read; it is used when it is read twice alike.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The file, as it was read.
#[derive(Debug)]
pub struct Reading {
    /// What is there.
    pub source: Result<Source, ConfigError>,
    /// Whether somebody asked for it; then it need not have settled.
    pub asked: bool,
}

/// Reads the file at `path` every [`LOOK_EVERY`], and at once for each of `asked`, until nobody receives any more.
/// Received is what was read twice alike, again and again.
pub fn watch(path: PathBuf, mut asked: mpsc::Receiver<()>) -> mpsc::Receiver<Reading> {
    let (found, readings) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = None;
        loop {
            let asked = tokio::select! {
                _ = ticks.tick() => false,
                Some(()) = asked.recv() => true,
                () = found.closed() => return,
            };
            let Some(source) = read(&path).await else { continue };
            let now =
                source.as_ref().map_or_else(|error| Err(error.to_string()), |source| Ok(source.clone()));
            let settled = before.as_ref() == Some(&now);
            before = Some(now);
            if (settled || asked) && found.send(Reading { source, asked }).await.is_err() {
                return;
            }
        }
    });
    readings
}

/// Whether the file says what `source` says, as far as it can be read soon.
pub(crate) async fn says_still(source: &Source) -> bool {
    matches!(timeout(LOOK_EVERY, read(source.path())).await, Ok(Some(Ok(now))) if now == *source)
}

/// Not on a worker: a file system may hang.
async fn read(path: &Path) -> Option<Result<Source, ConfigError>> {
    let path = path.to_owned();
    spawn_blocking(move || Source::read_ours(&path)).await.ok()
}
