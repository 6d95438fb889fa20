//! Sockets that a service manager has bound and passed on (systemd's protocol: `LISTEN_FDS`, `LISTEN_PID`,
//! `LISTEN_FDNAMES`).

use std::env;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

use crate::config::Endpoint;

/// Sockets that were passed to this process and are not taken yet.
#[derive(Debug, Default)]
pub struct PassedSockets(Vec<Passed>);

#[derive(Debug)]
struct Passed {
    name: String,
    listener: UnixListener,
}

impl PassedSockets {
    /// Takes all from the environment, which says nothing of them afterwards: to be called once, before there are
    /// threads. What is no listening unix stream socket is named in the log and left alone.
    pub fn from_environment() -> Self {
        let ours = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
        if !ours {
            return Self::default();
        }
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default().to_owned();
            match passed.take_unix_listener(index) {
                Ok(Some(listener)) => sockets.push(Passed { name, listener }),
                Ok(None) => {}
                Err(error) => tracing::warn!(name, %error, "a passed socket is of no use here"),
            }
        }
        Self(sockets)
    }

    /// How many are not taken yet.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one that is called `name` or is bound at `endpoint`, if there is one.
    pub fn take(&mut self, name: &str, endpoint: &Endpoint) -> Option<UnixListener> {
        let found = self.0.iter().position(|passed| passed.name == name).or_else(|| {
            self.0
                .iter()
                .position(|passed| passed.listener.local_addr().is_ok_and(|address| endpoint.is_at(&address)))
        })?;
        Some(self.0.swap_remove(found).listener)
    }

    /// Logs and closes what nobody took.
    pub fn close_rest(self) {
        for Passed { name, listener } in self.0 {
            tracing::warn!(
                name,
                address = ?listener.local_addr().ok(),
                "a passed socket is closed: no provider has its name or its path (FileDescriptorName= of the unit)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn passed(folder: &std::path::Path, names: &[&str]) -> PassedSockets {
        let socket = |name: &&str| Passed {
            name: (*name).to_owned(),
            listener: UnixListener::bind(folder.join(format!("{name}.sock"))).unwrap(),
        };
        PassedSockets(names.iter().map(socket).collect())
    }

    #[test]
    fn a_name_goes_before_a_path_and_each_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut sockets = passed(folder.path(), &["a", "b", "c"]);
        let endpoint = |name: &str| {
            format!("unix://{}", folder.path().join(format!("{name}.sock")).display())
                .parse::<Endpoint>()
                .unwrap()
        };
        let taken = |listener: UnixListener| listener.local_addr().unwrap().as_pathname().unwrap().to_owned();
        assert_eq!(taken(sockets.take("b", &endpoint("a")).unwrap()), folder.path().join("b.sock"));
        assert_eq!(taken(sockets.take("x", &endpoint("c")).unwrap()), folder.path().join("c.sock"));
        assert!(sockets.take("b", &endpoint("b")).is_none());
        assert!(sockets.take("x", &endpoint("x")).is_none());
        assert_eq!(sockets.0.len(), 1);
    }
}
