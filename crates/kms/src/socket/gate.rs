//! Who may connect to a socket, and how many at a time: changed while it is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::file::give_access;
use super::{AllowedPeers, FileAccess, MAX_CONNECTIONS, SocketError};
use crate::config::Endpoint;

/// Who may connect, and how many at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Of a socket that is bound here as a file.
    pub access: FileAccess,
    /// Whoever else can connect is refused; without a list whoever can connect is served.
    pub peers: Option<AllowedPeers>,
    /// Those beyond are refused.
    pub max_connections: u32,
}

impl Default for Admission {
    fn default() -> Self {
        Self { access: FileAccess::default(), peers: None, max_connections: MAX_CONNECTIONS }
    }
}

/// What decides about new connections of one socket. Cheap to clone; those who are connected stay.
#[derive(Clone, Debug)]
pub struct Gate {
    admission: Arc<ArcSwap<Admission>>,
    /// Of a socket that is bound here.
    file: Option<PathBuf>,
    /// Of an abstract one: nothing but a list of peers says who may connect.
    is_abstract: bool,
    is_passed: bool,
    endpoint: Endpoint,
}

impl Gate {
    /// # Errors
    /// [`SocketError::NoPeers`] of an abstract one.
    pub(super) fn new(
        endpoint: &Endpoint,
        admission: Admission,
        file: Option<&Path>,
        is_abstract: bool,
    ) -> Result<Self, SocketError> {
        let admission = Arc::new(ArcSwap::from_pointee(admission));
        let gate = Self {
            admission,
            file: file.map(Path::to_owned),
            is_abstract,
            is_passed: false,
            endpoint: endpoint.clone(),
        };
        gate.may_admit(&gate.admission())?;
        Ok(gate)
    }

    /// Of a socket that somebody else has bound.
    pub(super) fn passed(
        endpoint: &Endpoint,
        admission: Admission,
        is_abstract: bool,
    ) -> Result<Self, SocketError> {
        Ok(Self { is_passed: true, ..Self::new(endpoint, admission, None, is_abstract)? })
    }

    /// Whether somebody else has bound the socket: closed here, it goes on to be there.
    pub fn is_passed(&self) -> bool {
        self.is_passed
    }

    /// What holds now.
    pub fn admission(&self) -> Arc<Admission> {
        self.admission.load_full()
    }

    /// This holds from now on.
    ///
    /// # Errors
    /// [`SocketError::System`] if the file can't get its mode, owner or group, [`SocketError::NoPeers`] of an abstract
    /// one; then all is as it was.
    pub fn admit(&self, admission: Admission) -> Result<(), SocketError> {
        self.may_admit(&admission)?;
        let before = self.admission();
        if let Some(file) = self.file.as_deref().filter(|_| before.access != admission.access)
            && let Err(error) = give_access(file, admission.access)
        {
            // What was changed before the failure; the same hands gave it once.
            let _ = give_access(file, before.access);
            return Err(error);
        }
        self.admission.store(Arc::new(admission));
        Ok(())
    }

    fn may_admit(&self, admission: &Admission) -> Result<(), SocketError> {
        if self.is_abstract && admission.peers.is_none() {
            return Err(SocketError::NoPeers { endpoint: self.endpoint.clone() });
        }
        Ok(())
    }
}
