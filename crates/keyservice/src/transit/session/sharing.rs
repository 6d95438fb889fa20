//! Who asks alike shares one session: the root keys of a configuration, and those of the next one.
//!
//! A secret id may be good for few logins, and a wrapped one opens once: a changed configuration that is tried, refused
//! and tried again must use up neither.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Session, WrappedSecretId};
use crate::http::{Address, Tls};
use crate::transit::Auth;

/// How long somebody who has an answer waits for tokens to be ended.
const LOG_OUT: Duration = Duration::from_secs(2);

/// The sessions of a process. Root keys that log in alike share one, and its token. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    sessions: HashMap<Caller, Session>,
    /// By whom they are for. Never forgotten, only replaced: they can't be got again.
    wrapped: HashMap<Recipient, Arc<WrappedSecretId>>,
}

/// Who asks whom.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::transit) struct Caller {
    pub(in crate::transit) addresses: Vec<Address>,
    pub(in crate::transit) tls: Tls,
    pub(in crate::transit) auth: Auth,
    /// Where it logs in.
    pub(in crate::transit) namespace: String,
}

/// Whose a secret id is, whatever address leads there. The role id may be corrected.
#[derive(PartialEq, Eq, Hash)]
struct Recipient {
    namespace: String,
    mount: String,
    file: std::path::PathBuf,
}

impl Sessions {
    /// Logs in at the next call where it would wait, since the service refused a login: an admin says that it may be
    /// granted now. Not more often than each 16 minutes, since the service counts.
    pub fn try_again(&self) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.sessions.values().for_each(Session::try_again);
    }

    /// Ends the tokens of all sessions that logged in, within two seconds: for a program that was started to ask once, as
    /// a token would outlive it. One that can't be ended ends by itself.
    pub async fn log_out(&self) {
        let sessions: Vec<Session> = {
            let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.sessions.values().cloned().collect()
        };
        let ended = async {
            for session in sessions {
                session.log_out().await;
            }
        };
        let _ = tokio::time::timeout(LOG_OUT, ended).await;
    }

    /// The session of this caller. One that no root key uses any more is kept for as long as its token holds, or its
    /// refused logins count.
    pub(in crate::transit) fn of(&self, caller: Caller) -> Session {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.sessions.retain(|_, session| session.is_used() || session.is_worth_keeping());
        if let Some(session) = held.sessions.get(&caller) {
            return session.clone();
        }
        let wrapped = match Recipient::of(&caller) {
            Some(recipient) => Arc::clone(held.wrapped.entry(recipient).or_default()),
            None => Arc::default(),
        };
        let session = Session::new(caller.clone(), wrapped);
        held.sessions.insert(caller, session.clone());
        session
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Recipient {
    fn of(caller: &Caller) -> Option<Self> {
        match &caller.auth {
            Auth::AppRole { mount, secret_id_file, wrapped: true, .. } => Some(Self {
                namespace: caller.namespace.clone(),
                mount: mount.clone(),
                file: secret_id_file.clone(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::time::Instant;
    use zeroize::Zeroizing;

    use super::*;
    use crate::transit::RoleId;
    use crate::transit::login::Grant;
    use crate::transit::session::Token;

    fn caller(change: impl FnOnce(&mut Caller)) -> Caller {
        let mut caller = Caller {
            addresses: vec!["https://bao.example".parse().unwrap()],
            tls: Tls::default(),
            auth: approle("/run/secret-id", "role"),
            namespace: String::new(),
        };
        change(&mut caller);
        caller
    }

    fn approle(file: &str, role_id: &str) -> Auth {
        let role_id = RoleId::Text(role_id.into());
        Auth::AppRole { mount: "approle".into(), role_id, secret_id_file: file.into(), wrapped: true }
    }

    fn is_same(a: &Session, b: &Session) -> bool {
        Arc::ptr_eq(&a.0, &b.0)
    }

    #[test]
    fn who_asks_alike_shares_a_session_and_nobody_else_does() {
        let sessions = Sessions::default();
        let one = sessions.of(caller(|_| ()));
        assert!(is_same(&one, &sessions.clone().of(caller(|_| ()))));
        assert!(!is_same(&one, &Sessions::default().of(caller(|_| ()))));
        let others = [
            caller(|c| c.addresses.push("https://bao2.example".parse().unwrap())),
            caller(|c| c.tls.ca_file = Some("/run/ca".into())),
            caller(|c| c.auth = approle("/run/other", "role")),
            caller(|c| c.auth = approle("/run/secret-id", "other")),
            caller(|c| c.auth = Auth::TokenFile { path: "/run/secret-id".into() }),
            caller(|c| c.namespace = "team".into()),
        ];
        for other in others {
            assert!(!is_same(&one, &sessions.of(other)));
        }
    }

    #[test]
    fn what_opens_once_is_kept_for_every_way_to_the_same_role() {
        let sessions = Sessions::default();
        let wrapped = |c: Caller| Arc::clone(&sessions.of(c).0.wrapped);
        let one = wrapped(caller(|_| ()));
        // The session has gone, what it unwrapped has not.
        assert!(Arc::ptr_eq(&one, &wrapped(caller(|_| ()))));
        let moved = caller(|c| c.addresses = vec!["https://bao2.example".parse().unwrap()]);
        assert!(Arc::ptr_eq(&one, &wrapped(moved)));
        assert!(Arc::ptr_eq(&one, &wrapped(caller(|c| c.auth = approle("/run/secret-id", "other")))));
        assert!(!Arc::ptr_eq(&one, &wrapped(caller(|c| c.auth = approle("/run/other", "role")))));
        assert!(!Arc::ptr_eq(&one, &wrapped(caller(|c| c.namespace = "team".into()))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_nobody_uses_goes_when_its_token_has_ended() {
        let sessions = Sessions::default();
        let held = || sessions.0.lock().unwrap().sessions.len();
        let grant = |lasts| Grant { token: Zeroizing::new("t".into()), lasts, renewable: true };
        let until = |seconds| {
            Arc::new(Token::new(grant(Some(Duration::from_secs(seconds))), Instant::now()).unwrap())
        };
        let other = || caller(|c| c.namespace = "team".into());

        // Without a token there is nothing to keep.
        drop(sessions.of(caller(|_| ())));
        let used = sessions.of(other());
        assert_eq!(held(), 1);

        let one = sessions.of(caller(|_| ()));
        one.0.current.store(Some(until(60)));
        let token = one.0.current.load_full().unwrap();
        drop(one);
        // Before it is due to be renewed.
        tokio::time::advance(Duration::from_secs(39)).await;
        let again = sessions.of(caller(|_| ()));
        assert!(Arc::ptr_eq(&token, &again.token().await.unwrap()), "no other login");
        drop(again);
        tokio::time::advance(Duration::from_secs(21)).await;
        // What is used stays, token or none.
        assert!(is_same(&used, &sessions.of(other())));
        assert_eq!(held(), 1);
    }
}
