//! Work on the folder of a provider: off the way of calls, one after the other, and waited for only so long.
//!
//! A disk may be full, which it says, or silent: a file system of a network that is gone never answers. What waits for
//! it then holds a thread until it does, so that nothing else is begun meanwhile.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

use super::{Store, StoreError};

/// How long anybody waits for a disk: much longer than a busy one takes, and much less than an admin would.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Folders that are opened at a time, all providers together.
const OPENINGS: usize = 8;

/// Who works there.
pub(super) type Desk = Mutex<()>;

impl Store {
    /// As [`Store::open`], for those who must not wait for a disk that does not answer.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_in_time(state_directory: &Path, name: &str) -> Result<Self, StoreError> {
        static OPENING: Semaphore = Semaphore::const_new(OPENINGS);

        let (directory, owned) = (state_directory.to_owned(), name.to_owned());
        let opened = async {
            let place = OPENING.acquire().await;
            // One that comes too late is closed again.
            spawn_blocking(move || {
                let _place = place;
                Self::open(&directory, &owned)
            })
            .await
        };
        in_time(state_directory.join(name), opened).await
    }

    /// Does `work` there. What hangs goes on if the disk ever answers.
    pub(in crate::provider) async fn work<T, E>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let store = self.clone();
        let done = async {
            let place = self.desk.clone().lock_owned().await;
            spawn_blocking(move || {
                let _place = place;
                work(&store)
            })
            .await
        };
        in_time(self.folder.clone(), done).await
    }
}

async fn in_time<T, E: From<StoreError>>(
    folder: PathBuf,
    done: impl Future<Output = Result<Result<T, E>, JoinError>>,
) -> Result<T, E> {
    match timeout(ANSWERS_WITHIN, done).await {
        Ok(Ok(done)) => done,
        Ok(Err(ended)) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(StoreError::Stopping.into()),
        },
        Err(_) => Err(StoreError::Hangs { folder }.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_holds_one_thread_and_nobody_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_in_time(folder.path(), "test").await.unwrap();
        let (answers, disk) = mpsc::channel::<()>();
        let hanging = tokio::spawn({
            let store = store.clone();
            async move {
                let work = move |_: &Store| disk.recv().map_err(|_| StoreError::Stopping);
                store.work(work).await
            }
        });
        yield_now().await;
        // The clock stands still while a thread is at work.
        let mut waiting = vec![hanging];
        for _ in 0..3 {
            let store = store.clone();
            waiting.push(tokio::spawn(async move { store.work(|_| Ok::<_, StoreError>(())).await }));
        }
        yield_now().await;
        advance(ANSWERS_WITHIN + Duration::from_secs(1)).await;
        for waiting in waiting {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(matches!(error, StoreError::Hangs { .. }), "{error}");
            assert!(error.to_string().contains("/test: it has given no answer"), "{error}");
        }
        // Another process would do what this one may still do.
        let beside = Store::open_in_time(folder.path(), "test").await;
        assert!(matches!(beside, Err(StoreError::InUse { .. })));

        answers.send(()).unwrap();
        store.work(|_| Ok::<_, StoreError>(())).await.unwrap();
        drop(store);
        Store::open_in_time(folder.path(), "test").await.unwrap();
    }
}
