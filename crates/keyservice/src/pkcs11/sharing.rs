//! Who goes on with whose host: a root key, and what it is under the next configuration.
//!
//! A host is a process with a login of its own. A changed configuration, such as the longer list of keys of a rotation,
//! must cost neither.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::client::Host;
use super::{CkaId, HostConfig, Launch, Patience};

/// The hosts of a process, as one provider sees them: what hangs with the keys of one does not with those of another.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HeldHosts {
    whose: Arc<str>,
    held: Arc<Mutex<Vec<Held>>>,
}

#[derive(Debug)]
struct Held {
    whose: Arc<str>,
    config: HostConfig,
    /// All that it was asked to hold.
    keys: BTreeSet<CkaId>,
    host: Weak<Host>,
}

impl HeldHosts {
    /// As this provider sees them.
    #[must_use]
    pub fn of(&self, provider: &str) -> Self {
        Self { whose: provider.into(), held: self.held.clone() }
    }

    /// The host that holds one of these keys on these terms; else a new one, for which nothing is started before it is
    /// asked something.
    pub(super) fn host(
        &self,
        config: &HostConfig,
        keys: BTreeSet<CkaId>,
        launcher: Arc<dyn Launch>,
    ) -> Arc<Host> {
        // Every state of it is valid, whatever panicked.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|one| one.host.strong_count() > 0);
        for one in held.iter_mut() {
            let is_same = one.whose == self.whose && one.config == *config && !one.keys.is_disjoint(&keys);
            if let Some(host) = one.host.upgrade().filter(|_| is_same) {
                one.keys.extend(keys);
                return host;
            }
        }
        let host = Arc::new(Host::new(launcher, Patience::default()));
        let (whose, config, weak) = (self.whose.clone(), config.clone(), Arc::downgrade(&host));
        held.push(Held { whose, config, keys, host: weak });
        host
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::pkcs11::{Running, TokenSelector};

    #[derive(Debug)]
    struct Nobody;

    impl Launch for Nobody {
        fn launch(&self) -> io::Result<(Box<dyn Running>, UnixStream)> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn config(pin_file: &str) -> HostConfig {
        HostConfig {
            module: "/usr/lib/module.so".into(),
            token: TokenSelector::Label("kms".into()),
            pin_file: pin_file.into(),
            guard_folder: "/var/lib/guard".into(),
            folders: Vec::new(),
            network: false,
            environment: Default::default(),
        }
    }

    fn of(held: &HeldHosts, whose: &str, pin_file: &str, keys: &[u8]) -> Arc<Host> {
        let keys = keys.iter().map(|byte| hex::encode([*byte; 16]).parse().unwrap()).collect();
        held.of(whose).host(&config(pin_file), keys, Arc::new(Nobody))
    }

    #[test]
    fn a_root_key_keeps_its_host_whatever_keys_come_and_go_and_nobody_else_has_it() {
        let held = HeldHosts::default();
        let host = of(&held, "a", "/run/pin", &[1]);
        assert!(Arc::ptr_eq(&host, &of(&held.clone(), "a", "/run/pin", &[1, 2])));
        assert!(Arc::ptr_eq(&host, &of(&held, "a", "/run/pin", &[2, 3])));
        // Split: one that writes, and one that only reads.
        assert!(Arc::ptr_eq(&host, &of(&held, "a", "/run/pin", &[3])));
        assert!(Arc::ptr_eq(&host, &of(&held, "a", "/run/pin", &[2])));
        for other in [
            of(&held, "a", "/run/pin", &[4]),
            of(&held, "b", "/run/pin", &[1]),
            of(&held, "a", "/run/other", &[1]),
            of(&HeldHosts::default(), "a", "/run/pin", &[1]),
        ] {
            assert!(!Arc::ptr_eq(&host, &other));
        }
    }

    #[test]
    fn a_host_that_no_key_has_any_more_is_not_kept() {
        let held = HeldHosts::default();
        let host = Arc::downgrade(&of(&held, "a", "/run/pin", &[1]));
        assert!(host.upgrade().is_none());
        let other = of(&held, "a", "/run/pin", &[1]);
        assert_eq!((held.held.lock().unwrap().len(), Arc::strong_count(&other)), (1, 1));
    }
}
