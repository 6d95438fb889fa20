//! Landlock: which files can be opened, and nobody else's.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

/// The newest that this was tried on. A newer kernel enforces this much.
const NEWEST: ABI = ABI::V7;

/// What of the file system a daemon needs. Folders and not files: what is delivered anew is another file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    folders: Vec<(Access, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    Read,
    Sockets,
    State,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) landlock: Landlock,
    pub(super) folders: Vec<(Access, PathBuf)>,
    /// Declared ones that are not there.
    pub(super) absent: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landlock {
    Absent(&'static str),
    Version(u32),
}

/// Landlock is there and refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A folder that is declared and can't be opened.
    #[error("folder {}: {source}", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// What the system said.
        source: PathFdError,
    },
    /// The kernel refuses the rules.
    #[error(transparent)]
    Rules(#[from] RulesetError),
}

impl Folders {
    /// Everything below `folder` can be read.
    #[must_use]
    pub fn read(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Access::Read, folder.into())
    }

    /// `file`, what takes its place, and what lies beside it can be read; if it is a link, also beside its target.
    #[must_use]
    pub fn read_beside(self, file: &Path) -> Self {
        let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        self.read(parent(file)).read(parent(&target))
    }

    /// Files below `folder` can be read, written, replaced and removed.
    #[must_use]
    pub fn state(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Access::State, folder.into())
    }

    /// `socket` can be bound there, through a folder beside it.
    #[must_use]
    pub fn socket(self, socket: &Path) -> Self {
        self.with(Access::Sockets, parent(socket))
    }

    fn with(mut self, access: Access, folder: PathBuf) -> Self {
        // Rules are about what is there, not about the links that lead to it.
        let folder = folder.canonicalize().unwrap_or(folder);
        let covered = |(had, above): &(Access, PathBuf)| {
            (*had == access || access == Access::Read) && folder.starts_with(above)
        };
        if !self.folders.iter().any(covered) {
            self.folders.push((access, folder));
            self.folders.sort();
        }
        self
    }
}

fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("/"),
    }
}

impl Access {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Sockets => "binds in",
            Self::State => "writes",
        }
    }

    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let replace = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
        let folders = AccessFs::MakeDir | AccessFs::RemoveDir;
        match self {
            Self::Read => read,
            // The socket is bound in a folder of its own and moved out of it.
            Self::Sockets => read | replace | folders | AccessFs::MakeSock | AccessFs::Refer,
            Self::State => read | replace | folders,
        }
    }
}

impl Landlock {
    pub(super) fn files(self) -> bool {
        matches!(self, Self::Version(version) if version >= ABI::V3 as u32)
    }

    pub(super) fn tcp(self) -> bool {
        matches!(self, Self::Version(version) if version >= ABI::V4 as u32)
    }

    pub(super) fn scoped(self) -> bool {
        matches!(self, Self::Version(version) if version >= ABI::V6 as u32)
    }
}

/// Nothing but `folders` from now on.
pub(super) fn confine(folders: &Folders) -> Result<Kept, FilesError> {
    let mut kept = Kept { landlock: Landlock::Absent(""), folders: Vec::new(), absent: Vec::new() };
    // Landlock 1 (Linux 5.13 to 5.18) refuses every move from one folder to another: no socket could be bound.
    let moves =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer);
    let whole = moves.is_ok();
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .set_compatibility(CompatLevel::BestEffort);
    for (access, folder) in &folders.folders {
        match PathFd::new(folder) {
            Ok(opened) => {
                rules = allow(rules, opened, *access)?;
                kept.folders.push((*access, folder.clone()));
            }
            Err(error) if is_absent(&error) => kept.absent.push(folder.clone()),
            Err(source) => return Err(FilesError::Folder { folder: folder.clone(), source }),
        }
    }
    if !whole {
        kept.landlock =
            Landlock::Absent("the kernel has no Landlock, or too old a one (Linux 5.19 is needed)");
        return Ok(kept);
    }
    kept.landlock = match rules.restrict_self()?.landlock {
        LandlockStatus::Available { effective_abi, .. } => {
            Landlock::Version((effective_abi as u32).min(NEWEST as u32))
        }
        LandlockStatus::NotEnabled => Landlock::Absent("Landlock is switched off in this kernel"),
        LandlockStatus::NotImplemented => Landlock::Absent("the kernel has no Landlock"),
    };
    Ok(kept)
}

fn allow(rules: RulesetCreated, folder: PathFd, access: Access) -> Result<RulesetCreated, RulesetError> {
    rules.add_rule(PathBeneath::new(folder, access.rights()))
}

fn is_absent(error: &PathFdError) -> bool {
    matches!(error, PathFdError::OpenCall { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(folders: &Folders) -> Vec<(Access, &str)> {
        folders.folders.iter().map(|(access, folder)| (*access, folder.to_str().unwrap_or("?"))).collect()
    }

    #[test]
    fn a_folder_is_declared_once_and_what_is_below_it_is_covered() {
        let folders =
            Folders::default().read("/etc/c").read("/etc/c/keys").read("/etc/c").state("/etc/c/state");
        assert_eq!(declared(&folders), [(Access::Read, "/etc/c"), (Access::State, "/etc/c/state")]);
    }

    #[test]
    fn what_can_be_written_can_be_read_but_not_the_other_way_round() {
        let folders = Folders::default().state("/s").read("/s/keys");
        assert_eq!(declared(&folders), [(Access::State, "/s")]);
        let folders = Folders::default().read("/run/c").socket(Path::new("/run/c/kms.sock"));
        assert_eq!(declared(&folders), [(Access::Read, "/run/c"), (Access::Sockets, "/run/c")]);
    }

    #[test]
    fn a_name_that_begins_alike_is_another_folder() {
        let folders = Folders::default().read("/etc/c").read("/etc/c2");
        assert_eq!(declared(&folders).len(), 2);
    }

    #[test]
    fn the_folder_of_a_bare_name_is_the_current_one() {
        assert_eq!(parent(Path::new("config.yaml")), Path::new("."));
        assert_eq!(parent(Path::new("/")), Path::new("/"));
    }
}
