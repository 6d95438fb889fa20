//! What a proxy counted, by what it is for.

use serde_json::{Value, json};

use crate::FaultProxy;

/// Calls to a Transit key, and to whom gives tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) observe: usize,
    pub(super) wrap: usize,
    pub(super) unwrap: usize,
    /// Logins, renewals and questions about a token.
    pub(super) token: usize,
    /// What should not be.
    pub(super) other: usize,
}

impl Calls {
    pub(super) fn at(proxy: &FaultProxy) -> Self {
        let mut calls = Self::default();
        for ((_, path), count) in proxy.requests() {
            let of_its_kind = match path.trim_start_matches("/v1/") {
                path if path.starts_with("transit/keys/") => &mut calls.observe,
                path if path.starts_with("transit/encrypt/") => &mut calls.wrap,
                path if path.starts_with("transit/decrypt/") => &mut calls.unwrap,
                path if path.starts_with("auth/") => &mut calls.token,
                _ => &mut calls.other,
            };
            *of_its_kind += count;
        }
        calls
    }

    pub(super) fn all(self) -> usize {
        self.observe + self.wrap + self.unwrap + self.token + self.other
    }

    pub(super) fn json(self) -> Value {
        let Self { observe, wrap, unwrap, token, other } = self;
        json!({"observe": observe, "wrap": wrap, "unwrap": unwrap, "token": token, "other": other, "all": self.all()})
    }
}
