//! Landlock: which files can be opened, and nobody else's.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    Scope,
};
use rustix::fs::fstat;

use super::calls::Networks;

/// The newest that this was tried on. A newer kernel enforces this much.
pub(super) const NEWEST: ABI = ABI::V7;

/// What of the file system a daemon needs, and of networks. Folders and not files: what is delivered anew is another
/// file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    folders: Vec<(Access, PathBuf)>,
    network: Option<Ports>,
    names: bool,
}

/// Which TCP ports of others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ports {
    All,
    These(BTreeSet<u16>),
}

/// What a process would need, and is confined not to have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lacking {
    /// A folder.
    #[error("{} is in no folder that this process may {verb}", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// For what.
        verb: &'static str,
    },
    /// Names of hosts.
    #[error("this process may not look up names of hosts")]
    Names,
    /// Any socket to another host.
    #[error("this process may use no network")]
    Network,
    /// A port of another host.
    #[error("TCP port {0} is none that this process may connect to")]
    Port(u16),
}

/// Where the system says how names of hosts are looked up. Whole folders: these files are replaced while a process runs.
const NAMES: [&str; 1] = ["/etc/resolv.conf"];
/// DNS over TCP, for answers that are too long for UDP.
const DNS: u16 = 53;

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
    pub(super) folders: Vec<Held>,
    network: Option<Ports>,
    pub(super) networks: Networks,
    /// Declared ones that are not there.
    pub(super) absent: Vec<PathBuf>,
}

/// A folder that is kept, as the one that was there: another one in its place is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) access: Access,
    pub(super) folder: PathBuf,
    device: u64,
    inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landlock {
    Absent(&'static str),
    Version(u32),
}

/// A file that this process can't read, or a socket that it can't bind, any more, whatever permissions say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfReach {
    /// It is not in a declared folder.
    #[error(
        "{} is refused by confinement: it is {}, and what can be used is below {folders}; \
         put it there, or restart to confine anew",
        path.display(), target.display()
    )]
    Elsewhere {
        /// The file.
        path: PathBuf,
        /// What it is behind all links.
        target: PathBuf,
        /// The declared folders.
        folders: String,
    },
    /// The folder is another one than at the start.
    #[error(
        "{} is refused by confinement: folder {} was replaced by another one since the start; restart to confine anew",
        path.display(), folder.display()
    )]
    Replaced {
        /// The file.
        path: PathBuf,
        /// The folder that is not the one of that name any more.
        folder: PathBuf,
    },
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
    /// A folder that is open and can't be told from others.
    #[error("folder {}: what it is can't be read: {source}", folder.display())]
    Unknown {
        /// Which folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
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

    /// Other hosts can be connected to at this TCP port.
    #[must_use]
    pub fn connect(mut self, port: u16) -> Self {
        if let Ports::These(ports) = self.network.get_or_insert(Ports::These(BTreeSet::new())) {
            ports.insert(port);
        }
        self
    }

    /// Names of hosts can be looked up.
    #[must_use]
    pub fn look_up_names(self) -> Self {
        let folders = Self { names: true, ..self.connect(DNS) };
        NAMES.iter().fold(folders, |folders, file| folders.read_beside(Path::new(file)))
    }

    /// The first of what `others` have and these do not cover.
    pub fn lack(&self, others: &Self) -> Option<Lacking> {
        let folder = others.folders.iter().find(|(access, folder)| !self.cover(*access, folder));
        let folder =
            folder.map(|(access, folder)| Lacking::Folder { folder: folder.clone(), verb: access.purpose() });
        let names = (others.names && !self.names && self.network.is_some()).then_some(Lacking::Names);
        folder.or(names).or_else(|| match (&self.network, &others.network) {
            (Some(Ports::All), _) | (_, None) => None,
            (None, Some(_)) => Some(Lacking::Network),
            (Some(_), Some(Ports::All)) => Some(Lacking::Network),
            (Some(Ports::These(ours)), Some(Ports::These(theirs))) => {
                theirs.difference(ours).next().map(|port| Lacking::Port(*port))
            }
        })
    }

    /// Whether there is anything on a network among them.
    pub fn use_network(&self) -> bool {
        self.network.is_some()
    }

    /// Whether names of hosts can be looked up.
    pub fn use_names(&self) -> bool {
        self.names
    }

    pub(super) fn networks(&self) -> Networks {
        match (self.use_network(), self.names) {
            (false, _) => Networks::None,
            (true, false) => Networks::Tcp,
            (true, true) => Networks::TcpAndNames,
        }
    }

    fn with(mut self, access: Access, folder: PathBuf) -> Self {
        // Rules are about what is there, not about the links that lead to it.
        let folder = folder.canonicalize().unwrap_or(folder);
        if !self.cover(access, &folder) {
            self.folders.push((access, folder));
            self.folders.sort();
        }
        self
    }

    fn cover(&self, access: Access, folder: &Path) -> bool {
        let covers = |(had, above): &(Access, PathBuf)| {
            (*had == access || access == Access::Read) && folder.starts_with(above)
        };
        self.folders.iter().any(covers)
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
    fn purpose(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sockets => "bind sockets in",
            Self::State => "write",
        }
    }

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

impl Held {
    fn of(access: Access, folder: &Path, opened: &PathFd) -> Result<Self, FilesError> {
        let known = fstat(opened)
            .map_err(|errno| FilesError::Unknown { folder: folder.to_owned(), source: errno.into() })?;
        Ok(Self { access, folder: folder.to_owned(), device: known.st_dev, inode: known.st_ino })
    }

    fn is_in_place(&self) -> bool {
        fs::metadata(&self.folder).is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
    }
}

impl Kept {
    /// What the process can use.
    pub(super) fn folders(&self) -> Folders {
        // System calls say so, on any kernel.
        let names = self.networks == Networks::TcpAndNames;
        match self.landlock {
            Landlock::Version(_) => Folders {
                folders: self.folders.iter().map(|held| (held.access, held.folder.clone())).collect(),
                network: if self.landlock.tcp() { self.network.clone() } else { self.all_ports() },
                names,
            },
            Landlock::Absent(_) => Folders {
                folders: [Access::Read, Access::Sockets, Access::State]
                    .map(|access| (access, "/".into()))
                    .into(),
                network: self.all_ports(),
                names,
            },
        }
    }

    /// System calls still say whether there is a network at all.
    fn all_ports(&self) -> Option<Ports> {
        self.network.is_some().then_some(Ports::All)
    }

    /// For people: where it may connect to, if anywhere.
    pub(super) fn ports(&self) -> Option<String> {
        match self.network.as_ref()? {
            Ports::All => Some("any TCP port".into()),
            Ports::These(ports) => {
                let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
                Some(format!("TCP port {}", ports.join(", ")))
            }
        }
    }

    /// Whether `path` can be read, as far as this is about folders. One that is not there can.
    pub(super) fn reaches(&self, path: &Path) -> Result<(), OutOfReach> {
        let (Landlock::Version(_), Ok(target)) = (self.landlock, path.canonicalize()) else { return Ok(()) };
        let mut replaced = None;
        for held in self.folders.iter().filter(|held| target.starts_with(&held.folder)) {
            if held.is_in_place() {
                return Ok(());
            }
            replaced = Some(held.folder.clone());
        }
        let path = path.to_owned();
        Err(match replaced {
            Some(folder) => OutOfReach::Replaced { path, folder },
            None => OutOfReach::Elsewhere { path, target, folders: self.names() },
        })
    }

    /// The same for binding a socket. Where there is no folder at all, nothing is refused by confinement.
    pub(super) fn binds(&self, socket: &Path) -> Result<(), OutOfReach> {
        let (Landlock::Version(_), Ok(folder)) = (self.landlock, parent(socket).canonicalize()) else {
            return Ok(());
        };
        let path = socket.to_owned();
        let sockets = |held: &&Held| held.access == Access::Sockets && held.folder == folder;
        match self.folders.iter().find(sockets) {
            Some(held) if held.is_in_place() => Ok(()),
            Some(_) => Err(OutOfReach::Replaced { path, folder }),
            None => Err(OutOfReach::Elsewhere { path, target: folder, folders: self.names() }),
        }
    }

    fn names(&self) -> String {
        let mut names: Vec<_> = self.folders.iter().map(|held| held.folder.display().to_string()).collect();
        names.dedup();
        names.join(", ")
    }
}

/// Nothing but `folders` from now on.
pub(super) fn confine(folders: &Folders) -> Result<Kept, FilesError> {
    let mut kept = Kept {
        landlock: Landlock::Absent(""),
        folders: Vec::new(),
        network: folders.network.clone(),
        networks: folders.networks(),
        absent: Vec::new(),
    };
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
                let held = Held::of(*access, folder, &opened)?;
                rules = allow(rules, opened, *access)?;
                kept.folders.push(held);
            }
            Err(error) if is_absent(&error) => kept.absent.push(folder.clone()),
            Err(source) => return Err(FilesError::Folder { folder: folder.clone(), source }),
        }
    }
    if let Some(Ports::These(ports)) = &folders.network {
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
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
    fn what_is_out_of_reach_is_told_with_what_is_not() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        for folder in ["etc", "srv"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("key"), "").unwrap();
        }
        let etc = at("etc");
        let held = Held::of(Access::Read, &etc, &PathFd::new(&etc).unwrap()).unwrap();
        let mut kept = Kept {
            landlock: Landlock::Version(3),
            folders: vec![held],
            network: None,
            networks: Networks::None,
            absent: vec![],
        };
        assert_eq!(kept.reaches(&at("etc/key")), Ok(()));
        assert_eq!(kept.reaches(&at("etc/absent")), Ok(()));

        std::os::unix::fs::symlink("../srv/key", at("etc/link")).unwrap();
        let refused = kept.reaches(&at("etc/link")).unwrap_err().to_string();
        for part in [at("etc/link"), at("srv/key"), at("etc")] {
            assert!(refused.contains(&*part.to_string_lossy()), "{refused}");
        }

        fs::rename(&etc, at("old")).unwrap();
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("key"), "").unwrap();
        let refused = kept.reaches(&etc.join("key")).unwrap_err().to_string();
        assert!(refused.contains("was replaced by another one"), "{refused}");

        // What is read is not for sockets.
        assert!(matches!(kept.binds(&etc.join("socket")), Err(OutOfReach::Elsewhere { .. })));
        kept.folders[0].access = Access::Sockets;
        assert!(matches!(kept.binds(&etc.join("socket")), Err(OutOfReach::Replaced { .. })));
        fs::remove_dir_all(&etc).unwrap();
        assert_eq!(kept.binds(&etc.join("socket")), Ok(()), "there is nowhere to bind it");
        fs::rename(at("old"), &etc).unwrap();
        assert_eq!(kept.binds(&etc.join("socket")), Ok(()));

        kept.landlock = Landlock::Absent("");
        assert_eq!(kept.reaches(&at("etc/link")), Ok(()));
    }

    #[test]
    fn networks_are_lacked_like_folders() {
        let (none, bao) = (Folders::default(), Folders::default().connect(8200));
        let both = bao.clone().connect(443);
        assert_eq!(none.lack(&bao), Some(Lacking::Network));
        assert_eq!(bao.lack(&both), Some(Lacking::Port(443)));
        assert_eq!((both.lack(&bao), bao.lack(&none)), (None, None));
        let named = bao.clone().look_up_names().read("/");
        assert!(named.lack(&Folders::default().connect(DNS)).is_none());
        assert_eq!(bao.clone().read("/").connect(DNS).lack(&named), Some(Lacking::Names));
        // Where Landlock is absent, system calls still forbid what was not declared.
        let kept = |declared: &Folders| {
            let (network, networks) = (declared.network.clone(), declared.networks());
            Kept { landlock: Landlock::Absent(""), folders: vec![], network, networks, absent: vec![] }
                .folders()
        };
        assert_eq!(kept(&none).lack(&both), Some(Lacking::Network));
        assert_eq!(kept(&bao).lack(&both.read("/etc").state("/var")), None);
        assert_eq!(kept(&bao).lack(&named), Some(Lacking::Names));
        assert_eq!(kept(&named).lack(&named), None);
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
