//! Code of a root key that panics gives no answer: its own provider says so, and none ends with it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::{Class, Failure};

/// The answer, or the failure that it panicked.
pub(super) async fn contained<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        // What panicked is not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(Failure::new(
                Class::Unreachable,
                "the program's own code for this root key panicked",
                "please report this, with what stands in the log before it",
            )))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure_wherever_it_comes() {
        let at_once = contained::<()>(async { panic!("planted") }).await;
        let later = contained::<()>(async {
            tokio::task::yield_now().await;
            panic!("planted")
        });
        for failure in [at_once.unwrap_err(), later.await.unwrap_err()] {
            assert!(failure.class == Class::Unreachable && failure.to_string().contains("panicked"));
        }
        assert_eq!(contained(async { Ok(7) }).await, Ok(7));
    }
}
