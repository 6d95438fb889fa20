//! A root key whose code panics is one that gives no answer: its own provider says so, and none ends with it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use casemate_keys::{Digest, LineagePrefix, Root, payload};
use casemate_keyservice::{Answer, Class, Failure, Pace, RootKey};
use zeroize::Zeroizing;

/// A root key that never panics when it is asked.
#[derive(Debug)]
pub struct Contained(Box<dyn RootKey>);

impl Contained {
    /// Around this one.
    pub fn around(key: Box<dyn RootKey>) -> Arc<dyn RootKey> {
        Arc::new(Self(key))
    }
}

impl RootKey for Contained {
    fn prefix(&self) -> &LineagePrefix {
        self.0.prefix()
    }

    fn pace(&self) -> Pace {
        self.0.pace()
    }

    fn observe(&self) -> Answer<'_, Root> {
        Box::pin(contained(async { self.0.observe().await }))
    }

    fn wrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        payload: &'a [u8; payload::LEN],
    ) -> Answer<'a, Vec<u8>> {
        Box::pin(contained(async move { self.0.wrap(root, core, payload).await }))
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(contained(async move { self.0.unwrap(root, core, wrap).await }))
    }

    fn binds_associated_data(&self, root: &Root) -> bool {
        self.0.binds_associated_data(root)
    }
}

async fn contained<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
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
