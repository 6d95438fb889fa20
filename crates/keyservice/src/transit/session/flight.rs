//! One login at a time: who asks while it is under way shares its outcome.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Class, Failure};

/// How long nobody tries again what was not answered: in an outage each call would begin another login.
pub(super) const SILENCE_REMEMBERED_FOR: Duration = Duration::from_secs(1);

/// The login that is under way, or was last.
pub(super) struct Flight<T>(Mutex<Option<Landing<T>>>);

type Landing<T> = watch::Receiver<Option<Landed<T>>>;

struct Landed<T> {
    outcome: Result<T, Failure>,
    at: Instant,
}

/// What came of it.
pub(super) struct Shared<T> {
    pub(super) outcome: Result<T, Failure>,
    /// It was somebody else's, and had begun before.
    pub(super) is_joined: bool,
}

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone + Send + Sync + 'static> Flight<T> {
    /// The outcome of the login that is under way, else of `login`, in a task of its own: whoever waits may go away.
    pub(super) async fn share<F>(&self, login: impl FnOnce() -> F) -> Shared<T>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (mut landing, is_joined) = match self.board(login) {
            Ok(boarded) => boarded,
            Err(silence) => return Shared { outcome: Err(silence), is_joined: true },
        };
        let landed = landing.wait_for(Option::is_some).await.ok();
        let outcome = landed.and_then(|landed| landed.as_ref().map(|landed| landed.outcome.clone()));
        let broken_off = || {
            let remedy = "try again; the program may be stopping";
            Err(Failure::new(Class::Unreachable, "a login was broken off", remedy))
        };
        Shared { outcome: outcome.unwrap_or_else(broken_off), is_joined }
    }

    /// Where it will land, and whether it had begun before; or that nobody has answered a moment ago.
    fn board<F>(&self, login: impl FnOnce() -> F) -> Result<(Landing<T>, bool), Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        // Whatever panicked, what is in it is a login.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(landing) = last.as_ref() {
            match &*landing.borrow() {
                // It ends without landing only if it panics, or the runtime stops.
                None if landing.has_changed().is_ok() => return Ok((landing.clone(), true)),
                Some(Landed { outcome: Err(failure), at })
                    if failure.class == Class::Unreachable && at.elapsed() < SILENCE_REMEMBERED_FOR =>
                {
                    return Err(failure.clone().unasked());
                }
                _ => {}
            }
        }
        let (land, landing) = watch::channel(None);
        let login = login();
        tokio::spawn(async move {
            let outcome = login.await;
            // That nobody waits any more is no matter.
            let _ = land.send(Some(Landed { outcome, at: Instant::now() }));
        });
        *last = Some(landing.clone());
        Ok((landing, false))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    use super::*;

    const LASTS: Duration = Duration::from_secs(20);
    const DEADLINE: Duration = Duration::from_millis(2500);

    fn silence() -> Failure {
        Failure::new(Class::Unreachable, "planted", "nothing")
    }

    #[derive(Clone, Default)]
    struct Logins {
        flight: Arc<Flight<usize>>,
        begun: Arc<AtomicUsize>,
        /// Under way now, and the most there were.
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Logins {
        /// One that ends so after a while.
        async fn share(&self, ends: Result<(), Failure>) -> Shared<usize> {
            let logins = self.clone();
            let login = || async move {
                let number = logins.begun.fetch_add(1, SeqCst) + 1;
                logins.most.fetch_max(logins.now.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(LASTS).await;
                logins.now.fetch_sub(1, SeqCst);
                ends.map(|()| number)
            };
            self.flight.share(login).await
        }

        fn begun(&self) -> usize {
            self.begun.load(SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_without_an_answer_is_one_login_after_another_however_many_ask() {
        let logins = Logins::default();
        let start = Instant::now();
        let mut calls = JoinSet::new();
        while start.elapsed() < Duration::from_secs(3600) {
            let logins = logins.clone();
            // Each gives up long before it ends.
            calls.spawn(async move { timeout(DEADLINE, logins.share(Err(silence()))).await.is_err() });
            sleep(Duration::from_millis(100)).await;
            while calls.try_join_next().is_some() {}
        }
        let whole = 3600 / (LASTS + SILENCE_REMEMBERED_FOR).as_secs() as usize;
        assert!((whole..=whole + 1).contains(&logins.begun()), "{} logins", logins.begun());
        assert_eq!(logins.most.load(SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_away_takes_nothing_along_and_all_others_share_what_comes() {
        let logins = Logins::default();
        let first = timeout(DEADLINE, logins.share(Ok(()))).await;
        assert!(first.is_err(), "the one that has begun it goes");
        let mut others = JoinSet::new();
        for _ in 0..50 {
            let logins = logins.clone();
            others.spawn(async move { logins.share(Ok(())).await });
        }
        let others = others.join_all().await;
        assert!(others.iter().all(|shared| shared.is_joined && shared.outcome == Ok(1)));
        // What came is nothing to go on with: the next login is another one.
        let next = logins.share(Ok(())).await;
        assert_eq!((next.is_joined, next.outcome), (false, Ok(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_remembered_for_a_moment_and_a_no_is_not() {
        let logins = Logins::default();
        assert_eq!(logins.share(Err(silence())).await.outcome, Err(silence()));
        let last = Instant::now() + SILENCE_REMEMBERED_FOR - Duration::from_millis(1);
        while Instant::now() < last {
            assert_eq!(logins.share(Ok(())).await.outcome, Err(silence().unasked()));
            sleep(Duration::from_millis(9)).await;
        }
        assert_eq!(logins.begun(), 1);
        sleep(Duration::from_millis(2)).await;
        let no = Failure::new(Class::Credential, "planted", "nothing");
        assert_eq!(logins.share(Err(no.clone())).await.outcome, Err(no));
        assert_eq!(logins.share(Ok(())).await.outcome, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_panics_is_in_nobodys_way() {
        let flight = Flight::<()>::default();
        let panicking = flight.share(|| async { panic!("planted") }).await;
        assert_eq!(panicking.outcome.unwrap_err().class, Class::Unreachable);
        assert_eq!(flight.share(|| async { Ok(()) }).await.outcome, Ok(()));
    }
}
