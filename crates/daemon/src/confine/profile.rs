//! How a process is confined that runs code of others, or starts such processes.
//!
//! A vendor's library may load more libraries, start threads, and call the kernel for what no list of ours foresees. So
//! this is a list of what is refused, not of what is allowed: files outside the named folders, networks, other programs,
//! and what only serves to break out. What is refused fails; it does not end the process, since foreign code that asks
//! for more than it needs is common, and mostly lives without.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};

use super::calls;
use super::folders::{FilesError, NEWEST};
use super::{ConfineError, keep_private};

/// What such a process may touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    network: bool,
    programs: Vec<PathBuf>,
}

/// Libraries, and what the C library and common ones read.
const SYSTEM: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
    "/dev/urandom",
    "/dev/random",
    "/sys/devices/system/cpu",
];

/// What is written wherever one is.
const SINKS: &[&str] = &["/dev/null"];

/// What names on a network are looked up by, and certificates.
const NETWORK: &[&str] = &[
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
];

impl Default for Profile {
    /// Libraries and what they read of the system, and of this process; no network, no program.
    fn default() -> Self {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        Self { read: paths(SYSTEM), write: paths(SINKS), network: false, programs: Vec::new() }
            .read("/proc/self")
    }
}

impl Profile {
    /// Everything below `path`, or the file, can be read.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.read.push(path.into());
        self
    }

    /// Everything below `path`, or the file or device, can be read and written.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.write.push(path.into());
        self
    }

    /// It may speak to networks.
    #[must_use]
    pub fn network(mut self) -> Self {
        self.network = true;
        self.read.extend(NETWORK.iter().map(PathBuf::from));
        self
    }

    /// It may start this program. Both are then confined to this, whatever else the other one may.
    #[must_use]
    pub fn starts(mut self, program: impl Into<PathBuf>) -> Self {
        self.programs.push(program.into());
        // Of the process that is started, which is another one.
        self.read("/proc")
    }

    /// What either may.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.read.extend(other.read);
        self.write.extend(other.write);
        self.programs.extend(other.programs);
        self.network |= other.network;
        self
    }

    /// Confines the calling process, which has one thread: others would go free. Paths that are not there are left out.
    ///
    /// # Errors
    /// [`ConfineError`]; then the process should end. A kernel without Landlock is no error.
    pub fn confine(&self) -> Result<(), ConfineError> {
        keep_private()?;
        self.confine_files()?;
        calls::deny(self.network, !self.programs.is_empty())?;
        Ok(())
    }

    fn confine_files(&self) -> Result<(), FilesError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?;
        if !self.network {
            rules = rules.handle_access(AccessNet::from_all(NEWEST))?;
        }
        let mut rules = rules.create()?.set_compatibility(CompatLevel::BestEffort);
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        // Devices and sockets are not for them to make.
        let write =
            AccessFs::from_all(NEWEST) & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeChar);
        // What it is linked with is executed, too.
        let execute = if self.programs.is_empty() { read } else { read | AccessFs::Execute };
        let reads = self.read.iter().map(|path| (path, execute));
        let writes = self.write.iter().map(|path| (path, write));
        let programs = self.programs.iter().map(|path| (path, execute));
        for (path, access) in reads.chain(writes).chain(programs) {
            let Ok(opened) = PathFd::new(path) else { continue };
            rules = rules.add_rule(PathBeneath::new(opened, fitting(path, access)))?;
        }
        rules.restrict_self()?;
        Ok(())
    }
}

/// What of `access` there is for a file, if it is one.
fn fitting(path: &Path, access: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    if path.is_dir() { access } else { access & AccessFs::from_file(ABI::V7) }
}

#[cfg(test)]
mod tests;
